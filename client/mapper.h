// The thread that maps the daemon's memory, as the instructions in the control segment say.
//
// Instructions are executed in order (proto/layout.h, MapRing), and each is acknowledged. One that
// cannot be executed is acknowledged with its error, and does not keep later ones from theirs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "client/devices.h"
#include "core/result.h"
#include "ipc/ring.h"
#include "ipc/unique_fd.h"
#include "proto/layout.h"

namespace ravenstore::client {

// Owns: the thread, and the descriptors of memory that is not imported yet.
// Threads: Offer, NoteMissedPacket by the watcher; Start and Stop by the owner.
class Mapper {
 public:
  struct Hooks {
    std::function<void()> acknowledged;  // after each instruction: wakes a daemon that sleeps
    std::function<void()> failed;  // the ring is corrupt, or no memory is left: no more is done
  };

  // `ring` and `devices` outlive it. The hooks run on the thread, and must not throw.
  Mapper(proto::MapRing* ring, DeviceSet* devices, Hooks hooks);
  ~Mapper() { Stop(); }

  // Errors: kSystem: the thread could not be started.
  core::Status Start();
  // Waits for the instruction that is being executed. What waits for a descriptor is dropped. The
  // ring is not touched afterwards.
  void Stop();

  // Descriptors of the memories `first`, `first` + 1, ... came.
  void Offer(uint32_t first, std::vector<ipc::UniqueFd> descriptors);
  // A packet could not be taken, which may have brought descriptors.
  void NoteMissedPacket(const core::Error& why);

  // Around fork, so that the child can close the descriptors. Waits for an import.
  void LockForFork();
  void UnlockAfterFork();
  // In the child, between the two. The thread is not there, so this object must never be destroyed.
  void DropInChild() { offered_.clear(); }

 private:
  void Run();
  core::Status Execute(const proto::MapInstruction& instruction);
  core::Status Import(ClientDevice& device, const proto::MapInstruction& instruction);
  // Errors: kTimedOut: it did not arrive, and a later one did, or the mapper stops.
  core::Status AwaitDescriptor(uint32_t memory);
  ipc::UniqueFd TakeDescriptor(uint32_t memory);

  ipc::MapConsumer ring_;
  DeviceSet* const devices_;
  const Hooks hooks_;
  std::thread thread_;
  std::atomic<bool> stopping_{false};

  std::mutex importing_;  // held while the driver imports a descriptor
  std::mutex mutex_;
  std::map<uint32_t, ipc::UniqueFd> offered_;  // by memory; guarded by mutex_, as all below
  uint32_t offered_end_ = 0;                   // one more than the last that came
  std::string missed_;                         // why a packet was, the last time
};

}  // namespace ravenstore::client
