#include "device/parts.h"

#include <stdlib.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"

namespace ravenstore::device {
namespace {

constexpr int kPartsMost = 8;

// What the parts of one device have created.
class Shares {
 public:
  Shares(std::shared_ptr<Device> whole, int parts)
      : whole_(std::move(whole)),
        total_(Bytes(whole_->info().total.count() / static_cast<uint64_t>(parts))
                   .RoundDown(whole_->granularity())),
        created_(static_cast<size_t>(parts)) {}

  Device& whole() const { return *whole_; }
  size_t parts() const { return created_.size(); }
  Bytes total() const { return total_; }  // of each part

  Status Charge(size_t part, Bytes bytes) {
    std::lock_guard lock(mutex_);
    const Bytes free = core::Minus(total_, created_[part]);
    if (bytes > free) {
      return core::Error{core::ErrorCode::kOutOfMemory,
                         whole_->info().uuid + ": part " + std::to_string(part) + ": " +
                             std::to_string(bytes.count()) + " bytes asked, " +
                             std::to_string(free.count()) + " free"};
    }
    created_[part] += bytes;
    return core::Ok();
  }
  void Refund(size_t part, Bytes bytes) {
    std::lock_guard lock(mutex_);
    created_[part] -= bytes;
  }
  // What is free of the part while that is free of the device.
  Bytes FreeOf(size_t part, Bytes free) const {
    std::lock_guard lock(mutex_);
    Bytes others = core::Minus(whole_->info().total, free);
    for (const Bytes created : created_) others = core::Minus(others, created);
    return core::Minus(total_, created_[part] + PartOf(others));
  }
  Bytes PartOf(Bytes bytes) const { return Bytes(bytes.count() / created_.size()); }

 private:
  const std::shared_ptr<Device> whole_;
  const Bytes total_;
  mutable std::mutex mutex_;
  std::vector<Bytes> created_;  // by part; guarded by mutex_
};

// Memory that is charged to a part while this lives.
struct ChargedMemory {
  ChargedMemory(std::shared_ptr<const PhysicalMemory> charged, std::shared_ptr<Shares> to,
                size_t index)
      : memory(std::move(charged)), shares(std::move(to)), part(index) {}
  ~ChargedMemory() { shares->Refund(part, memory->size()); }

  const std::shared_ptr<const PhysicalMemory> memory;
  const std::shared_ptr<Shares> shares;
  const size_t part;
};

Result<std::shared_ptr<const PhysicalMemory>> CreateCharged(const std::shared_ptr<Shares>& shares,
                                                            size_t part, Bytes bytes) {
  RAVEN_RETURN_IF_ERROR(shares->Charge(part, bytes));
  auto created = shares->whole().CreateMemory(bytes);
  if (!created.ok()) {
    shares->Refund(part, bytes);
    return created;
  }
  auto charged = std::make_shared<ChargedMemory>(*std::move(created), shares, part);
  const PhysicalMemory* const memory = charged->memory.get();
  return std::shared_ptr<const PhysicalMemory>(std::move(charged), memory);
}

// Addresses for device memory of a part.
class PartRange : public VaRange {
 public:
  PartRange(std::unique_ptr<VaRange> range, std::shared_ptr<Shares> shares, size_t part)
      : range_(std::move(range)), shares_(std::move(shares)), part_(part) {}

  std::byte* base() const override { return range_->base(); }
  Bytes size() const override { return range_->size(); }
  bool CopiesStraddle() const override { return range_->CopiesStraddle(); }

  Status Create(Bytes offset, Bytes bytes) override {
    RAVEN_ASSIGN_OR_RETURN(auto memory, CreateCharged(shares_, part_, bytes));
    return range_->Map(offset, std::move(memory));
  }
  Status Map(Bytes offset, std::shared_ptr<const PhysicalMemory> memory) override {
    return range_->Map(offset, std::move(memory));
  }
  Result<ipc::UniqueFd> Export(Bytes offset) override { return range_->Export(offset); }
  Status Import(ipc::UniqueFd descriptor, Bytes offset, Bytes bytes) override {
    return range_->Import(std::move(descriptor), offset, bytes);
  }
  Status Unmap(Bytes offset) override { return range_->Unmap(offset); }

 private:
  const std::unique_ptr<VaRange> range_;
  const std::shared_ptr<Shares> shares_;
  const size_t part_;
};

class PartOfDevice : public Device {
 public:
  PartOfDevice(std::shared_ptr<Shares> shares, size_t part)
      : shares_(std::move(shares)), part_(part), info_(whole().info()) {
    info_.uuid += "/" + std::to_string(part);
    info_.name +=
        " (part " + std::to_string(part + 1) + " of " + std::to_string(shares_->parts()) + ")";
    info_.total = shares_->total();
  }

  const DeviceInfo& info() const override { return info_; }
  Bytes granularity() const override { return whole().granularity(); }

  Result<Bytes> FreeBytes() override {
    RAVEN_ASSIGN_OR_RETURN(const Bytes free, whole().FreeBytes());
    return shares_->FreeOf(part_, free);
  }
  Result<MemoryUse> ReadMemoryUse() override {
    RAVEN_ASSIGN_OR_RETURN(const MemoryUse use, whole().ReadMemoryUse());
    return MemoryUse{shares_->FreeOf(part_, use.free), shares_->PartOf(use.context)};
  }
  Result<std::vector<DeviceProcess>> ReadProcesses() override { return whole().ReadProcesses(); }
  Result<uint32_t> ReadUtilization() override { return whole().ReadUtilization(); }
  bool InUse() override { return whole().InUse(); }

  Result<std::shared_ptr<const PhysicalMemory>> CreateMemory(Bytes bytes) override {
    return CreateCharged(shares_, part_, bytes);
  }
  Result<std::shared_ptr<const PhysicalMemory>> ImportMemory(ipc::UniqueFd descriptor,
                                                             Bytes bytes) override {
    return whole().ImportMemory(std::move(descriptor), bytes);
  }
  Result<std::unique_ptr<VaRange>> ReserveVaRange(Bytes size) override {
    RAVEN_ASSIGN_OR_RETURN(auto range, whole().ReserveVaRange(size));
    return std::unique_ptr<VaRange>(std::make_unique<PartRange>(std::move(range), shares_, part_));
  }
  Result<std::unique_ptr<VaRange>> ReserveHostVaRange(Bytes size, int numa_node) override {
    return whole().ReserveHostVaRange(size, numa_node);
  }
  Result<std::unique_ptr<VaRange>> ReservePoolVaRange(Bytes size, int numa_node) override {
    return whole().ReservePoolVaRange(size, numa_node);
  }
  Result<std::unique_ptr<Registration>> RegisterWords(void* begin, Bytes bytes) override {
    return whole().RegisterWords(begin, bytes);
  }
  Result<std::unique_ptr<Channel>> OpenChannel(Direction direction) override {
    return whole().OpenChannel(direction);
  }
  bool Reaches(const Device& peer) override {
    const auto* other = dynamic_cast<const PartOfDevice*>(&peer);
    if (other == nullptr || other == this) return false;
    return &other->whole() == &whole() || whole().Reaches(other->whole());
  }
  Result<std::unique_ptr<Channel>> OpenPeerChannel() override { return whole().OpenPeerChannel(); }
  Result<std::unique_ptr<Stream>> WrapStream(StreamHandle stream) override {
    return whole().WrapStream(stream);
  }

 private:
  Device& whole() const { return shares_->whole(); }

  const std::shared_ptr<Shares> shares_;
  const size_t part_;
  DeviceInfo info_;
};

}  // namespace

Result<int> PartsForTests() {
  const char* text = getenv("RAVENSTORE_TEST_GPU_PARTS");
  if (text == nullptr) return 1;
  char* end = nullptr;
  const long parts = strtol(text, &end, 10);
  if (*text != '\0' && *end == '\0' && parts >= 1 && parts <= kPartsMost)
    return static_cast<int>(parts);
  return core::Error{core::ErrorCode::kInvalidArgument,
                     "RAVENSTORE_TEST_GPU_PARTS is \"" + std::string(text) +
                         "\", which is no number from 1 to " + std::to_string(kPartsMost)};
}

Devices InParts(Devices devices, int parts) {
  RAVEN_CHECK(parts >= 1);
  if (parts == 1) return devices;
  Devices all;
  for (auto& device : devices) {
    const auto shares = std::make_shared<Shares>(std::move(device), parts);
    for (size_t part = 0; part < shares->parts(); ++part)
      all.push_back(std::make_shared<PartOfDevice>(shares, part));
  }
  return all;
}

}  // namespace ravenstore::device
