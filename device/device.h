// The one seam to hardware.
//
// A Device is one GPU (backend "cuda") or a simulated one (backend "host": memfds and copy threads,
// with a configurable size, link speed and faults). The daemon creates, exports and copies; a
// client imports, maps and orders its own streams. Both backends pass
// tests/device/conformance_test.cc.
//
// Threads: every method of Device and of Arena may be called from any thread. A Channel or a Stream
// belongs to one thread at a time.
// Errors: kDevice with the driver's words, kOutOfMemory when the device has no room, kLimit when
// this process has no descriptors left, kUnsupported, kInvalidArgument for ranges that are
// misaligned, outside, or (un)mapped when they must not be.
// Shared words: the std::atomic<uint64_t> that streams write and await lie in memory given to
// RegisterWords of that device in the process that passes them. A channel's words may be anywhere.
// These may block, and so are kept off the daemon's loop: the methods of Device and VaRange, the
// destructors of VaRange, Channel and Registration, Stream::Synchronize. With CUDA, ending a
// Registration waits for every stream of this process that is held in a Wait. Channel's and
// Stream's other methods return immediately while fewer than about 1,000 commands are queued.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/result.h"
#include "core/types.h"
#include "device/medium.h"
#include "ipc/unique_fd.h"

namespace ravenstore::device {

using core::Bytes;
using core::Result;
using core::Status;

// A CUstream (equally a cudaStream_t), or a HostStream* of host_stream.h; null is the backend's
// default stream, which on the host backend is the calling thread itself.
using StreamHandle = void*;
// Every stream of this process that works on the device, as one: a signal after it comes once all
// that was enqueued on any of them so far is done. Nothing can be enqueued on it.
inline StreamHandle AllStreams() {
  return reinterpret_cast<StreamHandle>(~uintptr_t{0});
}
using Word = std::atomic<uint64_t>;

struct DeviceInfo {
  std::string
      uuid;  // "GPU-..." or "MIG-..." as the driver prints it; "HOST-<n>" on the host backend
  std::string name;
  Bytes total;
  int numa_node = -1;  // -1: unknown
};

// A process that holds memory of a device. Its number is the driver's: in a container perhaps
// another than there.
struct DeviceProcess {
  uint32_t pid = 0;
  Bytes bytes;  // 0: the driver does not say
};

// What of a device's memory is free, of all processes.
struct MemoryUse {
  Bytes free;
  Bytes context;  // of what is used: this process's own context; 0: there is none, or not known
};

// Physical memory of a device, which has no address until a VaRange maps it. It may be mapped in
// several places, of this process and of others.
// Owns: a reference. The memory is freed when the last reference, the last mapping of each process
// and the last exported descriptor are gone. (The host backend counts it as free when the creator's
// last reference is.)
// Threads: any.
class PhysicalMemory {
 public:
  virtual ~PhysicalMemory() = default;
  virtual Bytes size() const = 0;
  // A descriptor for another process's ImportMemory. A new one on each call, closed on exec.
  // Errors: kInvalidArgument: it was imported, and only its creator exports it.
  virtual Result<ipc::UniqueFd> Export() const = 0;

 protected:
  // kInvalidArgument for a size that is no multiple of `granularity`, or 0.
  static Status CheckSize(Bytes bytes, Bytes granularity);
};
// Why imported memory is not exported.
inline core::Error ImportedMemory() {
  return {core::ErrorCode::kInvalidArgument, "imported memory: only its creator exports it"};
}

// A contiguous range of virtual addresses in this process, into which physical memory is mapped in
// chunks. Owns: the reservation and every mapping in it, with a reference on its memory. Destroying
// it unmaps; the caller makes sure that no stream still uses it.
class VaRange {
 public:
  virtual ~VaRange() = default;

  // Fixed for the range's life. Addresses outside mapped chunks must not be touched.
  virtual std::byte* base() const = 0;
  virtual Bytes size() const = 0;
  // Whether one copy may run across the border of two chunks that are mapped side by side.
  virtual bool CopiesStraddle() const = 0;

  // Creates physical memory and maps it at `offset`. Both are multiples of Device::granularity(),
  // the range is not mapped yet. Device memory comes zeroed.
  virtual Status Create(Bytes offset, Bytes bytes) = 0;
  // Maps all of `memory` at `offset`, a multiple of Device::granularity() where nothing is mapped
  // yet. Of ranges of ReserveVaRange, and memory of the same device.
  // Errors: kUnsupported for a range of host memory; kInvalidArgument for another device's memory.
  virtual Status Map(Bytes offset, std::shared_ptr<const PhysicalMemory> memory) = 0;
  // The same; it can only be read there: a kernel that writes ends with its context, and a CPU's
  // thread with SIGSEGV. Other mappings stay as they are.
  virtual Status MapReadOnly(Bytes /*offset*/, std::shared_ptr<const PhysicalMemory> /*memory*/) {
    return RangeOfHostMemory();
  }
  // A descriptor of the chunk created (not imported) at `offset`, for another process's Import.
  // Fresh on every call, closed on exec.
  virtual Result<ipc::UniqueFd> Export(Bytes offset) = 0;
  // Maps the physical memory behind `descriptor`, `bytes` long, at `offset`.
  virtual Status Import(ipc::UniqueFd descriptor, Bytes offset, Bytes bytes) = 0;
  // Unmaps the chunk at `offset`, and releases its memory. kNotFound when no chunk begins there.
  virtual Status Unmap(Bytes offset) = 0;

 protected:
  // Why Map refuses.
  static core::Error RangeOfHostMemory() {
    return {core::ErrorCode::kUnsupported,
            "device memory is not mapped into a range of host memory"};
  }
  static core::Error MemoryOfAnother() {
    return {core::ErrorCode::kInvalidArgument, "the memory is another device's"};
  }
};

enum class Direction { kHostToDevice, kDeviceToHost };

// An in-order queue of copies: on a device's copy engine, between its memory and the host's
// (Device::OpenChannel), or between memory and a medium (medium_channel.h). The daemon's; it never
// launches a kernel and never waits on a client.
class Channel {
 public:
  // Waits for what was enqueued; of a channel that failed, for what still runs.
  virtual ~Channel() = default;
  // Enqueues one copy and returns immediately. The ranges stay mapped until a later Signal is seen.
  // Errors: kInvalidArgument for ends that this channel does not lead from and to.
  virtual Status Copy(Target to, Source from, Bytes bytes) = 0;
  // Enqueues a write: once every copy so far is done, *word = value (a release). Returns
  // immediately. Later copies do not wait for the write.
  virtual Status Signal(Word* word, uint64_t value) = 0;
  // Gives the signals that are due. A thread that waits for a word of this channel calls it in its
  // loop. Cheap.
  virtual void Poll() {}
  // Ok, or the first failure of a command that had been enqueued. From that on no Signal fires, the
  // bytes of the copies behind the last one that did are undefined, and Copy and Signal return
  // errors.
  // Costs up to 3 microseconds: meant for when a Signal is late, not for every poll.
  virtual Status Health() = 0;
  // For a channel that goes on after a failed copy (MediumChannelOptions): why one of the copies
  // before the signal of `value` failed, if no earlier signal reported it. Then the bytes of their
  // targets are undefined. Call it for each signal once it was seen, in their order; values rise.
  virtual Status OutcomeOf(uint64_t /*value*/) { return core::Ok(); }

 protected:
  // What a channel between two memories says of ends that are not addresses.
  static Status CheckAddresses(const Target& to, const Source& from) {
    if (to.medium() == nullptr && from.medium() == nullptr) return core::Ok();
    return core::Error{core::ErrorCode::kInvalidArgument,
                       "this channel copies between addresses, not from or to a medium"};
  }
};

// A place in a stream's work, to measure the time between two of them. Threads: any.
class StreamMark {
 public:
  virtual ~StreamMark() = default;
  // Whether the stream has come there. Errors: the device's.
  virtual Result<bool> Reached() const = 0;
  // From `earlier`, a mark of the same device; negative if the stream came here first.
  // REQUIRES: both are reached. Errors: the device's.
  virtual Result<core::Duration> Since(const StreamMark& earlier) const = 0;
};

// What the client library does to one of its caller's streams. Owns: a side stream and an event of
// its own. REQUIRES for all but Capturing: the stream is not being captured; a capture would take
// our commands in, and break.
class Stream {
 public:
  virtual ~Stream() = default;
  // What a stream that stands for all of them says to whatever would enqueue.
  static core::Error NothingCanBeEnqueued() {
    return {core::ErrorCode::kInvalidArgument, "all streams together are no stream to enqueue on"};
  }
  // Once the work enqueued on the stream so far is done, *word = value. The stream itself pays an
  // event record and no GPU time.
  virtual Status SignalAfter(Word* word, uint64_t value) = 0;
  // Later work on the stream runs only once *word >= value. Returns immediately. On a stream that
  // is the calling thread (synchronous()) nothing could end the wait: kWrongState unless the word
  // is there already; the caller waits on the CPU instead.
  virtual Status Wait(Word* word, uint64_t value) = 0;
  // Copies on the stream, within the device or between it and pinned or pageable host memory. With
  // pageable memory the call may wait for the stream.
  virtual Status Copy(void* to, const void* from, Bytes bytes) = 0;
  // Sets every byte on the stream.
  virtual Status Fill(void* to, uint8_t value, Bytes bytes) = 0;
  // True while the stream is being captured into a graph.
  virtual Result<bool> Capturing() = 0;
  // Waits for the stream's work.
  virtual Status Synchronize() = 0;
  // Behind the work enqueued on the stream so far. The stream pays an event record.
  virtual Result<std::unique_ptr<StreamMark>> Mark() = 0;
  // True when the stream is the calling thread: everything enqueued is already done.
  virtual bool synchronous() const = 0;
  // True when the handle means another stream in every thread: the methods act on the calling
  // thread's, and that two calls name the same handle puts nothing in order.
  virtual bool per_thread() const { return false; }
};

// Keeps a shared page usable by streams; destroying it makes it unusable.
class Registration {
 public:
  virtual ~Registration() = default;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual const DeviceInfo& info() const = 0;
  // Sizes and offsets of chunks are multiples of this: 2 MiB on a GPU.
  virtual Bytes granularity() const = 0;
  // Memory of the device that is not in use. (Host backend: that this Device's arenas did not
  // create; what other processes created or this one imported is not counted.)
  virtual Result<Bytes> FreeBytes() = 0;
  // The same, and who uses it. They never make a context: a GPU's costs hundreds of megabytes of
  // it. MemoryUse::context is known of one that was made after the first call of ReadMemoryUse.
  // Errors: kUnavailable where only a context could tell (a GPU without NVML); of ReadProcesses
  // also kUnsupported.
  virtual Result<MemoryUse> ReadMemoryUse() = 0;
  // In no order; this process may be one of them.
  virtual Result<std::vector<DeviceProcess>> ReadProcesses() = 0;
  // How busy its compute units are: the percent of the last moments (of up to a second) in which
  // kernels of any process ran; on GPUs without counters of their own (before Hopper) copies count
  // as well. Never makes a context.
  // Errors: kUnavailable without NVML; kUnsupported where it does not say (MIG).
  virtual Result<uint32_t> ReadUtilization() = 0;
  // Whether any stream of this process may be at work on it. Never makes it so.
  virtual bool InUse() = 0;

  // Physical memory of this device, zeroed. `bytes` is a multiple of granularity().
  virtual Result<std::shared_ptr<const PhysicalMemory>> CreateMemory(Bytes bytes) = 0;
  // The memory of another process behind `descriptor`, `bytes` long. The descriptor is closed.
  virtual Result<std::shared_ptr<const PhysicalMemory>> ImportMemory(ipc::UniqueFd descriptor,
                                                                     Bytes bytes) = 0;
  // Reserves addresses for device memory of this device; `size` is rounded up to the granularity.
  virtual Result<std::unique_ptr<VaRange>> ReserveVaRange(Bytes size) = 0;
  // Reserves addresses for pinned host memory on NUMA node `numa_node` (-1: any) that every device
  // of this backend can copy from and to. Create() then pins, which is slow: call it on a thread
  // that may wait (with CUDA 0.3 s a GiB, and the driver pins one chunk at a time). Its bytes are
  // the CPU's to read and write as well; those of ReserveVaRange are not.
  virtual Result<std::unique_ptr<VaRange>> ReserveHostVaRange(Bytes size, int numa_node) = 0;

  // The same for memory that is never exported, which may be faster (with CUDA 0.08 s a GiB if the
  // system has huge pages). One thread creates its chunks.
  virtual Result<std::unique_ptr<VaRange>> ReservePoolVaRange(Bytes size, int numa_node) {
    return ReserveHostVaRange(size, numa_node);
  }

  // Makes the words in [begin, begin + bytes), whole pages of shared memory that stay mapped,
  // usable by this device's channels and streams.
  virtual Result<std::unique_ptr<Registration>> RegisterWords(void* begin, Bytes bytes) = 0;
  virtual Result<std::unique_ptr<Channel>> OpenChannel(Direction direction) = 0;
  // Whether channels of this device copy from and to memory of `peer`, another of these devices,
  // without passing the host.
  virtual bool Reaches(const Device& peer) = 0;
  // A channel from memory of this device to memory of devices that it reaches. Copies the other way
  // are for a channel of theirs: a GPU's engine for its peers does all copies of one GPU in turn,
  // whichever way they go.
  virtual Result<std::unique_ptr<Channel>> OpenPeerChannel() = 0;
  // Wraps a stream of the caller's. REQUIRES: the stream outlives the result or is idle when
  // destroyed. What the result enqueued is still done after its own end.
  // Errors for AllStreams(): kUnsupported (a driver before CUDA 12.5); of its SignalAfter
  // kCapturing, while any stream is captured.
  virtual Result<std::unique_ptr<Stream>> WrapStream(StreamHandle stream) = 0;
};

using Devices = std::vector<std::shared_ptr<Device>>;

// A step of the host backend that can be made to go wrong: what is done, and by which device.
struct HostStep {
  enum class Kind : uint8_t {
    kCreate,  // memory of the device
    kMap,     // that memory here, once it was offered to another process
    kUnmap,
    kPin,  // host memory
    kUnpin,
    kOpen,  // a channel
    // Copies; between two devices by the one whose memory they read.
    kUp,
    kDown,
    kToPeer,
  };
  Kind kind{};
  int device = 0;

  bool IsCopy() const { return kind >= Kind::kUp; }
};
enum class HostFault : uint8_t {
  kNone,
  kRefused,    // the call returns an error
  kBreaksOff,  // the same, but of a copy its channel fails, with wrong bytes in half of the target
  kIsLate,     // it takes a millisecond longer
  kLies,       // of a copy: it seems to go well, but one byte is another; else as kRefused
};

// How the host backend behaves. Both processes of a test give the same values, or take the default.
struct HostOptions {
  int count = 1;                // devices
  Bytes total = core::GiB(2);   // of each device
  double bytes_per_second = 0;  // of each direction of each link; 0 is as fast as memcpy goes
  core::Duration latency{0};    // added to every copy
  // Of each direction of what joins a device to the others; 0 as above.
  double peer_bytes_per_second = 0;
  // The other processes that hold memory of the device of that number, as they are now: they leave
  // it as much less. Asked from any thread.
  std::function<std::vector<DeviceProcess>(int)> others = nullptr;
  // What ReadUtilization of the device of that number answers; null: 0. Asked from any thread.
  std::function<Result<uint32_t>(int)> utilization = nullptr;
  // Faults: asked before the n-th Create or Copy (counted from 1) of any of these devices, from any
  // thread; true makes it fail. A failed Copy fails its channel (Channel::Health).
  std::function<bool(uint64_t)> fail_create = nullptr;
  std::function<bool(uint64_t)> fail_copy = nullptr;
  // What goes wrong with the step that is next; asked before each, as the two above.
  std::function<HostFault(HostStep)> fault = nullptr;
  // The same before each ReadMemoryUse, and before each ReadProcesses.
  std::function<bool()> fail_memory_use = nullptr;
  std::function<bool()> fail_processes = nullptr;
};

// Devices of the host backend; their UUIDs are "HOST-0", "HOST-1", ...
Devices OpenHostDevices(const HostOptions& options);

// The GPUs that the driver shows, through a libcuda.so.1 loaded now; in tests perhaps in parts
// (parts.h).
// Errors: kUnavailable without a driver or without a GPU.
Result<Devices> OpenCudaDevices();

// The device of `devices` with this UUID, or null.
std::shared_ptr<Device> FindByUuid(const Devices& devices, const std::string& uuid);

}  // namespace ravenstore::device
