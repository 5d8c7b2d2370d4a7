// One attachment of this process to its daemon.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/access_log.h"
#include "client/control.h"
#include "client/control_calls.h"
#include "client/devices.h"
#include "client/mapper.h"
#include "client/phase.h"
#include "client/pinned.h"
#include "client/poison.h"
#include "client/requests.h"
#include "client/streams.h"
#include "client/task_thread.h"
#include "client/tensor.h"
#include "client/wire.h"
#include "core/result.h"
#include "core/types.h"
#include "ipc/segment.h"

namespace ravenstore::client {

class CallRecorder;

// `given`, else $RAVENSTORE_SOCKET, else the default path.
std::string ChosenSocket(const std::string& given);

struct ConnectOptions {
  std::string socket;  // as ChosenSocket has it
  std::string name;    // empty: the program's name
  core::Bytes device_budget;
  core::Bytes host_budget;
  core::Duration timeout = std::chrono::seconds(30);
  bool fixed_addresses = false;  // of all tensors
};

struct SessionStats {
  wire::Stats daemon_stats;  // by the daemon
  uint64_t device_bytes = 0;
  uint64_t host_bytes = 0;
  uint64_t device_budget = 0;
  uint64_t host_budget = 0;
  uint64_t stall_ns = 0;
};

// Owns: everything of the attachment, and the records of its tensors. It outlives Disconnect as
//   long as handles of its tensors do: they then belong to a session whose phase refuses every
//   call.
// Threads: any; Disconnect once, while no other thread is in a call.
class Session {
 public:
  // The result is the caller's until Disconnect.
  static core::Result<Session*> Connect(const ConnectOptions& options);
  void Disconnect();

  // The parts below exist while the phase is kAttached, kLost or kHandedOver.
  core::Status CheckUsable() const {
    const Phase now = phase_.load(std::memory_order_acquire);
    if (now == Phase::kAttached) [[likely]]
      return core::Ok();
    return RefusalOf(now);
  }
  const PhaseWord& phase() const { return phase_; }
  proto::LeaseSlot& RowAt(uint32_t slot) const { return rows_[slot]; }
  proto::LeaseSlot& Row(const TensorRecord& tensor) const { return rows_[tensor.slot]; }
  DeviceSet& devices() { return *devices_; }
  StreamTable& streams() { return *streams_; }
  // True once the transfer that `arrival` stands for is done, or when there is none.
  bool HasArrived(uint64_t arrival) const {
    const proto::WordValue wait = proto::UnpackWordValue(arrival);
    if (wait.value == 0 || wait.index >= proto::kArrivalWords) return true;
    return segment_->get()->arrivals[wait.index].load(std::memory_order_acquire) >= wait.value;
  }
  AccessLog& log() { return *log_; }
  ControlCalls& calls() { return *calls_; }
  RequestQueue& requests() { return *requests_; }
  TensorTable& tensors() { return tensors_; }
  PinnedMemory& pinned() { return pinned_; }
  // Null unless RAVENSTORE_DEBUG says poison.
  PoisonKeeper* poison() { return poison_.get(); }
  // Null unless RAVENSTORE_RECORD names a file. Null also while no call is possible: a child of
  // fork() shares the file, and another thread may have held the recorder's lock.
  CallRecorder* recorder() {
    if (recorder_ == nullptr || !CheckUsable().ok()) [[likely]]
      return nullptr;
    return recorder_.get();
  }

  core::Duration timeout() const { return timeout_; }
  const std::string& backend() const { return backend_; }

  core::Result<SessionStats> Stats();
  // Notifies the daemon that the next iteration begins. Errors: kTimedOut (the ring stayed full),
  // kLost.
  core::Status Step();
  void CountStall(core::Duration stall) {
    stall_ns_.fetch_add(static_cast<uint64_t>(stall.count()), std::memory_order_relaxed);
  }

  // The tensors are the daemon's (client/named_sets.h): calls are refused from now on.
  void HandOver();

  // Every live handle holds one reference.
  void Ref() { references_.fetch_add(1, std::memory_order_relaxed); }
  void Unref();

  // Fork handlers (session.cc).
  void LockForFork();
  void UnlockAfterFork();
  void BecomeForked();

 private:
  Session();
  ~Session();

  core::Status Attach(const ConnectOptions& options);
  core::Status TakeWelcome(const wire::Welcome& welcome, std::vector<ipc::UniqueFd> descriptors);
  // A task of the pinned memory's thread: keeps or unmaps it, as the packet says, or keeps an
  // order.
  void HandlePosted(Incoming incoming);
  // The watcher's callbacks.
  void OnPacket(Incoming incoming);
  void OnMissed(const core::Error& why);
  void OnHangup();
  void MarkLost();
  // Lets every stream go on that waits for bytes.
  void ReleaseArrivals();
  bool AnyInUse() const;

  alignas(64) PhaseWord phase_{Phase::kAttached};
  proto::LeaseSlot* rows_ = nullptr;

  // Constant after Connect.
  std::string backend_;
  core::Duration timeout_{};
  core::Duration restart_timeout_{};
  uint64_t device_budget_ = 0;
  uint64_t host_budget_ = 0;

  std::optional<ipc::ControlSegment> segment_;
  std::optional<DeviceSet> devices_;
  std::optional<StreamTable> streams_;
  std::optional<AccessLog> log_;
  std::optional<RequestQueue> requests_;
  std::unique_ptr<PoisonKeeper> poison_;
  std::unique_ptr<CallRecorder> recorder_;
  std::unique_ptr<ControlLink> control_;
  std::optional<ControlCalls> calls_;  // stays after Disconnect: records refer to its names
  TensorTable tensors_;
  PinnedMemory pinned_;

  alignas(64) std::atomic<uint64_t> references_{1};
  std::atomic<uint64_t> stall_ns_{0};

  // End first: they use the others.
  TaskThread pinned_thread_{"raven-pinned", [this] { OnHangup(); }};
  std::optional<Mapper> mapper_;
};

}  // namespace ravenstore::client
