#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "device/chunks.h"
#include "device/device.h"
#include "device/host_channel.h"
#include "device/host_stream.h"
#include "device/reservation.h"

namespace ravenstore::device {
namespace {

// As on a GPU, so that what is aligned here is aligned there.
constexpr Bytes kGranularity = core::MiB(2);

// What one simulated device has left.
class HostLedger {
 public:
  // `others`: what other processes hold.
  HostLedger(std::string name, Bytes total, std::function<Bytes()> others)
      : name_(std::move(name)), total_(total), others_(std::move(others)) {}

  Status Charge(Bytes bytes) {
    const Bytes most = core::Minus(total_, others_());
    uint64_t used = used_.load(std::memory_order_relaxed);
    do {
      const uint64_t free = core::Minus(most, Bytes(used)).count();
      if (bytes.count() > free) {
        return core::Error{core::ErrorCode::kOutOfMemory,
                           name_ + ": " + std::to_string(bytes.count()) + " bytes asked, " +
                               std::to_string(free) + " free"};
      }
    } while (!used_.compare_exchange_weak(used, used + bytes.count(), std::memory_order_relaxed));
    return core::Ok();
  }
  void Refund(Bytes bytes) { used_.fetch_sub(bytes.count(), std::memory_order_relaxed); }
  Bytes Used() const { return Bytes(used_.load(std::memory_order_relaxed)); }
  Bytes Free() const { return core::Minus(total_, others_() + Used()); }

 private:
  const std::string name_;
  const Bytes total_;
  const std::function<Bytes()> others_;
  std::atomic<uint64_t> used_{0};
};

// A memfd. Created memory keeps its descriptor. Imported memory keeps a mapping of its own instead,
// as a process of few descriptors may import much.
class HostMemory : public PhysicalMemory {
 public:
  // Charged to `ledger` while the result lives; null: host memory, which is not limited.
  static Result<std::shared_ptr<const HostMemory>> Create(int device, Bytes bytes,
                                                          std::shared_ptr<HostLedger> ledger) {
    RAVEN_RETURN_IF_ERROR(CheckSize(bytes, kGranularity));
    if (ledger != nullptr) RAVEN_RETURN_IF_ERROR(ledger->Charge(bytes));
    auto memory = std::make_shared<HostMemory>(device, bytes, std::move(ledger));
    RAVEN_ASSIGN_OR_RETURN(memory->descriptor_, NewMemory(bytes));
    return std::shared_ptr<const HostMemory>(std::move(memory));
  }
  static Result<std::shared_ptr<const HostMemory>> Import(int device, ipc::UniqueFd descriptor,
                                                          Bytes bytes) {
    RAVEN_RETURN_IF_ERROR(CheckSize(bytes, kGranularity));
    auto memory = std::make_shared<HostMemory>(device, bytes, nullptr);
    RAVEN_ASSIGN_OR_RETURN(memory->imported_, Reservation::Make(bytes));
    RAVEN_RETURN_IF_ERROR(memory->imported_.MapWhole(Bytes{}, bytes, descriptor.get()));
    return std::shared_ptr<const HostMemory>(std::move(memory));
  }

  HostMemory(int device, Bytes size, std::shared_ptr<HostLedger> charged)
      : device_(device), size_(size), ledger_(std::move(charged)) {}
  ~HostMemory() override {
    if (ledger_ != nullptr) ledger_->Refund(size_);
  }

  int device() const { return device_; }
  Bytes size() const override { return size_; }
  Result<ipc::UniqueFd> Export() const override {
    if (!descriptor_) return ImportedMemory();
    return Duplicate(descriptor_.get());
  }
  Status MapInto(Reservation* range, Bytes offset) const {
    return descriptor_ ? range->Map(offset, size_, descriptor_.get())
                       : range->MapSame(offset, size_, imported_.base());
  }

 private:
  const int device_;
  const Bytes size_;
  const std::shared_ptr<HostLedger> ledger_;
  ipc::UniqueFd descriptor_;  // none when it was imported
  Reservation imported_;
};

class HostVaRange : public VaRange {
 public:
  // `ledger` is null for host memory, which is not limited.
  HostVaRange(Reservation range, int device, std::shared_ptr<HostLedger> ledger,
              std::shared_ptr<HostFaults> faults)
      : range_(std::move(range)),
        device_(device),
        ledger_(std::move(ledger)),
        faults_(std::move(faults)),
        chunks_(range_.size(), kGranularity) {}

  std::byte* base() const override { return range_.base(); }
  Bytes size() const override { return range_.size(); }
  bool CopiesStraddle() const override { return true; }

  Status Create(Bytes offset, Bytes bytes) override {
    return chunks_.Place(offset, bytes, [&]() -> Result<std::shared_ptr<const HostMemory>> {
      RAVEN_RETURN_IF_ERROR(faults_->Pass(Step(ledger_ ? Kind::kCreate : Kind::kPin)));
      RAVEN_ASSIGN_OR_RETURN(auto memory, HostMemory::Create(device_, bytes, ledger_));
      return MapAt(offset, std::move(memory));
    });
  }

  Status Map(Bytes offset, std::shared_ptr<const PhysicalMemory> memory) override {
    if (ledger_ == nullptr) return RangeOfHostMemory();
    auto of_host = std::dynamic_pointer_cast<const HostMemory>(std::move(memory));
    if (of_host == nullptr || of_host->device() != device_) return MemoryOfAnother();
    return chunks_.Place(offset, of_host->size(), [&] { return MapAt(offset, of_host); });
  }

  Result<ipc::UniqueFd> Export(Bytes offset) override {
    RAVEN_ASSIGN_OR_RETURN(auto chunk, chunks_.Find(offset));
    return chunk->Export();
  }

  Status Import(ipc::UniqueFd descriptor, Bytes offset, Bytes bytes) override {
    return chunks_.Place(offset, bytes, [&]() -> Result<std::shared_ptr<const HostMemory>> {
      RAVEN_ASSIGN_OR_RETURN(auto memory,
                             HostMemory::Import(device_, std::move(descriptor), bytes));
      RAVEN_RETURN_IF_ERROR(memory->MapInto(&range_, offset));
      return memory;
    });
  }

  Status MapReadOnly(Bytes offset, std::shared_ptr<const PhysicalMemory> memory) override {
    RAVEN_RETURN_IF_ERROR(Map(offset, std::move(memory)));
    RAVEN_ASSIGN_OR_RETURN(const auto chunk, chunks_.Find(offset));
    return range_.MakeReadOnly(offset, chunk->size());
  }

  Status Unmap(Bytes offset) override {
    return chunks_.Remove(offset, [&](const HostMemory& chunk) -> Status {
      RAVEN_RETURN_IF_ERROR(faults_->Pass(Step(ledger_ ? Kind::kUnmap : Kind::kUnpin)));
      return range_.Unmap(offset, chunk.size());
    });
  }

 private:
  using Kind = HostStep::Kind;
  Result<std::shared_ptr<const HostMemory>> MapAt(Bytes offset,
                                                  std::shared_ptr<const HostMemory> memory) {
    if (ledger_ != nullptr) RAVEN_RETURN_IF_ERROR(faults_->Pass(Step(Kind::kMap)));
    RAVEN_RETURN_IF_ERROR(memory->MapInto(&range_, offset));
    return memory;
  }
  HostStep Step(Kind kind) const { return {kind, device_}; }

  Reservation range_;
  const int device_;
  const std::shared_ptr<HostLedger> ledger_;
  const std::shared_ptr<HostFaults> faults_;
  ChunkTable<const HostMemory> chunks_;
};

class HostDevice : public Device {
 public:
  HostDevice(int ordinal, const HostOptions& options, std::shared_ptr<HostFaults> faults)
      : info_{.uuid = "HOST-" + std::to_string(ordinal),
              .name = "simulated device " + std::to_string(ordinal),
              .total = options.total},
        ordinal_(ordinal),
        fail_memory_use_(options.fail_memory_use),
        fail_processes_(options.fail_processes),
        others_([ordinal, others = options.others] {
          return others ? others(ordinal) : std::vector<DeviceProcess>();
        }),
        utilization_([ordinal, utilization = options.utilization]() -> Result<uint32_t> {
          return utilization ? utilization(ordinal) : 0;
        }),
        ledger_(std::make_shared<HostLedger>(info_.uuid, options.total,
                                             [others = others_] { return SumOf(others()); })),
        faults_(std::move(faults)),
        up_(std::make_shared<HostLink>(options.bytes_per_second, options.latency)),
        down_(std::make_shared<HostLink>(options.bytes_per_second, options.latency)),
        to_peers_(std::make_shared<HostLink>(options.peer_bytes_per_second, options.latency)) {}

  const DeviceInfo& info() const override { return info_; }
  Bytes granularity() const override { return kGranularity; }
  Result<Bytes> FreeBytes() override { return ledger_->Free(); }
  Result<MemoryUse> ReadMemoryUse() override {
    if (fail_memory_use_ && fail_memory_use_()) return InjectedFault("memory use");
    return MemoryUse{ledger_->Free(), Bytes{0}};
  }
  Result<std::vector<DeviceProcess>> ReadProcesses() override {
    if (fail_processes_ && fail_processes_()) return InjectedFault("processes");
    std::vector<DeviceProcess> processes = others_();
    processes.push_back({static_cast<uint32_t>(::getpid()), ledger_->Used()});
    return processes;
  }
  Result<uint32_t> ReadUtilization() override { return utilization_(); }
  bool InUse() override { return true; }  // its streams are no device's

  Result<std::shared_ptr<const PhysicalMemory>> CreateMemory(Bytes bytes) override {
    RAVEN_RETURN_IF_ERROR(faults_->Pass({Kind::kCreate, ordinal_}));
    RAVEN_ASSIGN_OR_RETURN(auto memory, HostMemory::Create(ordinal_, bytes, ledger_));
    return std::shared_ptr<const PhysicalMemory>(std::move(memory));
  }
  Result<std::shared_ptr<const PhysicalMemory>> ImportMemory(ipc::UniqueFd descriptor,
                                                             Bytes bytes) override {
    RAVEN_ASSIGN_OR_RETURN(auto memory, HostMemory::Import(ordinal_, std::move(descriptor), bytes));
    return std::shared_ptr<const PhysicalMemory>(std::move(memory));
  }
  Result<std::unique_ptr<VaRange>> ReserveVaRange(Bytes size) override {
    return Reserve(size, ledger_);
  }
  Result<std::unique_ptr<VaRange>> ReserveHostVaRange(Bytes size, int) override {
    return Reserve(size, nullptr);
  }
  Result<std::unique_ptr<Registration>> RegisterWords(void*, Bytes) override {
    // Shared memory is all that the threads of this backend need.
    return std::make_unique<Registration>();
  }
  Result<std::unique_ptr<Channel>> OpenChannel(Direction direction) override {
    return direction == Direction::kHostToDevice ? Open(Kind::kUp, up_) : Open(Kind::kDown, down_);
  }
  bool Reaches(const Device& peer) override { return &peer != this; }
  Result<std::unique_ptr<Channel>> OpenPeerChannel() override {
    return Open(Kind::kToPeer, to_peers_);
  }
  Result<std::unique_ptr<Stream>> WrapStream(StreamHandle stream) override {
    return WrapHostStream(stream);
  }

 private:
  using Kind = HostStep::Kind;

  Result<std::unique_ptr<VaRange>> Reserve(Bytes size, std::shared_ptr<HostLedger> ledger) {
    RAVEN_ASSIGN_OR_RETURN(Reservation range, Reservation::Make(size.RoundUp(kGranularity)));
    return std::unique_ptr<VaRange>(
        std::make_unique<HostVaRange>(std::move(range), ordinal_, std::move(ledger), faults_));
  }
  Result<std::unique_ptr<Channel>> Open(Kind copies, std::shared_ptr<HostLink> link) {
    RAVEN_RETURN_IF_ERROR(faults_->Pass({Kind::kOpen, ordinal_}));
    try {
      return OpenHostChannel(info_.uuid, {copies, ordinal_}, std::move(link), faults_);
    } catch (const std::system_error& error) {
      return core::Error{core::ErrorCode::kSystem,
                         info_.uuid + ": a thread for copies: " + error.what()};
    }
  }

  core::Error InjectedFault(const char* what) const {
    return {core::ErrorCode::kDevice, info_.uuid + ": " + what + ": injected fault"};
  }
  static Bytes SumOf(const std::vector<DeviceProcess>& processes) {
    Bytes sum;
    for (const DeviceProcess& process : processes) sum += process.bytes;
    return sum;
  }

  const DeviceInfo info_;
  const int ordinal_;
  const std::function<bool()> fail_memory_use_;
  const std::function<bool()> fail_processes_;
  const std::function<std::vector<DeviceProcess>()> others_;
  const std::function<Result<uint32_t>()> utilization_;
  const std::shared_ptr<HostLedger> ledger_;
  const std::shared_ptr<HostFaults> faults_;
  const std::shared_ptr<HostLink> up_;
  const std::shared_ptr<HostLink> down_;
  const std::shared_ptr<HostLink> to_peers_;
};

}  // namespace

Devices OpenHostDevices(const HostOptions& options) {
  auto faults = std::make_shared<HostFaults>(options);
  Devices devices;
  for (int ordinal = 0; ordinal < options.count; ++ordinal) {
    devices.push_back(std::make_shared<HostDevice>(ordinal, options, faults));
  }
  return devices;
}

}  // namespace ravenstore::device
