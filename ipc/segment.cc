#include "ipc/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/interprocess/exceptions.hpp>
#include <boost/interprocess/mapped_region.hpp>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace ravenstore::ipc {
namespace {

using core::Error;
using core::ErrorCode;
using core::Result;

// Newer than Debian 12's headers; older kernels answer EINVAL.
constexpr unsigned kMemfdNoExecSeal = 0x0008;
constexpr int kSealsMade = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr int kSealsNeeded = F_SEAL_SHRINK | F_SEAL_GROW;

Error SystemError(const std::string& what, int error) {
  return {ErrorCode::kSystem, what + ": " + std::strerror(error)};
}

Result<UniqueFd> CreateMemory() {
  constexpr const char* kMemoryName = "ravenstore-segment";
  // Nothing will ever execute this memory, and a hardened kernel insists on hearing so.
  UniqueFd memory(memfd_create(kMemoryName, MFD_CLOEXEC | MFD_ALLOW_SEALING | kMemfdNoExecSeal));
  if (!memory && errno == EINVAL) {
    memory.reset(memfd_create(kMemoryName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  }
  if (!memory && errno == ENOSYS) {
    return Error{ErrorCode::kUnsupported, "this kernel has no memfd_create"};
  }
  if (!memory) return SystemError("memfd_create", errno);
  return memory;
}

core::Status CheckMemory(int memory) {
  const int seals = fcntl(memory, F_GET_SEALS);
  if (seals < 0) {
    return Error{ErrorCode::kCorrupt, "the control segment's descriptor is no sealable memory"};
  }
  if ((seals & kSealsNeeded) != kSealsNeeded) {
    return Error{ErrorCode::kCorrupt,
                 "the control segment is not sealed against shrinking and growing"};
  }
  struct stat status {};
  if (fstat(memory, &status) != 0) return SystemError("fstat of the control segment", errno);
  if (status.st_size != static_cast<off_t>(sizeof(proto::Segment))) {
    return Error{ErrorCode::kCorrupt, "the control segment has " + std::to_string(status.st_size) +
                                          " bytes instead of " +
                                          std::to_string(sizeof(proto::Segment))};
  }
  return core::Ok();
}

// What Boost's mapped_region asks of a thing it can map.
class Mappable {
 public:
  explicit Mappable(int memory) : memory_(memory) {}
  boost::interprocess::mapping_handle_t get_mapping_handle() const {
    return boost::interprocess::ipcdetail::mapping_handle_from_file_handle(memory_);
  }

 private:
  int memory_;
};

}  // namespace

class ControlSegment::Mapping {
 public:
  // Throws boost::interprocess::interprocess_exception.
  explicit Mapping(int memory)
      : region_(Mappable(memory), boost::interprocess::read_write, 0, sizeof(proto::Segment)),
        process_(getpid()) {}

  proto::Segment* segment() const { return static_cast<proto::Segment*>(region_.get_address()); }
  bool InThisProcess() const { return process_ == getpid(); }

 private:
  boost::interprocess::mapped_region region_;
  pid_t process_;
};

ControlSegment::ControlSegment(UniqueFd memory, std::unique_ptr<Mapping> mapping)
    : memory_(std::move(memory)), mapping_(std::move(mapping)) {}
ControlSegment::ControlSegment(ControlSegment&&) noexcept = default;
ControlSegment& ControlSegment::operator=(ControlSegment&& other) noexcept {
  if (this != &other) {
    Drop();
    memory_ = std::move(other.memory_);
    mapping_ = std::move(other.mapping_);
  }
  return *this;
}
ControlSegment::~ControlSegment() {
  Drop();
}

void ControlSegment::Drop() {
  if (mapping_ && !mapping_->InThisProcess()) {
    // A fork's address space never had this mapping, and may have something else in its place by
    // now: unmapping would hit that. The few bytes of bookkeeping stay.
    static_cast<void>(mapping_.release());
  }
  mapping_.reset();
  memory_.reset();
}

Result<ControlSegment> ControlSegment::MapUnchecked(UniqueFd memory) {
  std::unique_ptr<Mapping> mapping;
  try {
    mapping = std::make_unique<Mapping>(memory.get());
  } catch (const boost::interprocess::interprocess_exception& exception) {
    return Error{ErrorCode::kSystem,
                 std::string("mapping the control segment: ") + exception.what()};
  }
  if (madvise(mapping->segment(), sizeof(proto::Segment), MADV_DONTFORK) != 0) {
    return SystemError("keeping the control segment from forks", errno);
  }
  return ControlSegment(std::move(memory), std::move(mapping));
}

Result<ControlSegment> ControlSegment::Create(uint32_t client) {
  RAVEN_ASSIGN_OR_RETURN(UniqueFd memory, CreateMemory());
  if (ftruncate(memory.get(), sizeof(proto::Segment)) != 0) {
    return SystemError("sizing the control segment", errno);
  }
  if (fcntl(memory.get(), F_ADD_SEALS, kSealsMade) != 0) {
    return SystemError("sealing the control segment", errno);
  }
  RAVEN_ASSIGN_OR_RETURN(ControlSegment segment, MapUnchecked(std::move(memory)));
  proto::SegmentHeader& header = segment->header;
  header.magic = proto::kSegmentMagic;
  header.version = proto::kProtocolVersion;
  header.client = client;
  header.segment_bytes = sizeof(proto::Segment);
  return segment;
}

Result<ControlSegment> ControlSegment::Map(UniqueFd memory) {
  RAVEN_RETURN_IF_ERROR(CheckMemory(memory.get()));
  RAVEN_ASSIGN_OR_RETURN(ControlSegment segment, MapUnchecked(std::move(memory)));
  const proto::SegmentHeader& header = segment->header;
  if (header.magic != proto::kSegmentMagic) {
    return Error{ErrorCode::kCorrupt, "the control segment's magic number is wrong"};
  }
  if (header.version != proto::kProtocolVersion) {
    return Error{ErrorCode::kVersionMismatch,
                 "the control segment has version " + std::to_string(header.version) +
                     ", this program speaks " + std::to_string(proto::kProtocolVersion)};
  }
  if (header.segment_bytes != sizeof(proto::Segment)) {
    return Error{ErrorCode::kCorrupt, "the control segment's header disagrees with its size"};
  }
  return segment;
}

proto::Segment* ControlSegment::get() const {
  return mapping_ ? mapping_->segment() : nullptr;
}

}  // namespace ravenstore::ipc
