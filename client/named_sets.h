// Named sets: tensors that processes of one user share (docs/share.md).
//
// A process fills the tensors of a store of its own, puts them, and hands the store over by
// SealSet(). Other processes open the set by its name. While one uses it, the set's pages are
// mapped in that process, for reading alone, at addresses that stay the same until the set is
// closed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "client/session.h"
#include "client/wire.h"
#include "core/result.h"
#include "core/types.h"
#include "device/device.h"

namespace ravenstore::client {

// The session's tensors are a set of that name from now on; its version. The session has it open
// until Disconnect(), and refuses all other calls. `load`: of Open(), or 0. `layout`: a number that
// is another one for sets whose bytes mean something else.
// Waits for the streams. Errors: kWrongState: a tensor is in use, the session has no fixed
// addresses, or another process loads the set; kTimedOut; kInvalidArgument; kPermission.
core::Result<uint64_t> SealSet(Session& session, const std::string& name, uint64_t load,
                               uint64_t layout);

// No process opens the set any more; version 0: all of that name. Errors: kNotFound.
core::Status DropSet(Session& session, const std::string& name, uint64_t version);

struct SetOptions {
  uint64_t version = 0;        // 0: the newest
  uint64_t least_version = 0;  // of the newest: it is waited for
  core::Tick deadline{};       // of that wait
  bool may_load = false;       // answered with a load if there is none, and no process loads it
};

// A set that this process has open.
//
// Owns: the open, and the mappings while the set is in use. REQUIRES: the session outlives it.
// Threads: any. Streams: the caller orders its work: none that reads the set is under way when its
// use ends. Units: bytes. Fork: of no use in a child.
class OpenedSet {
 public:
  struct Part {
    int device = 0;                // as this process numbers it
    std::byte* address = nullptr;  // the same while the set is open; null before the first use
    uint64_t bytes = 0;
  };

  // `*load`: not 0 if the caller is to load the set; the result is null then. Errors: kNotFound;
  // kTimedOut; kLimit; kPermission; the daemon's.
  static core::Result<std::unique_ptr<OpenedSet>> Open(Session& session, const std::string& name,
                                                       const SetOptions& options, uint64_t* load);
  ~OpenedSet();

  // Its bytes are there when this returns, and stay until EndUse(). No error if it is in use.
  // Errors: kOutOfMemory, with the clients that hold the device's memory; kTimedOut; kLost;
  // kNotFound: this process does not see one of its devices; the device's.
  core::Status Use(core::Tick deadline);
  // The pages may leave the devices. No error if it is not in use.
  core::Status EndUse();
  // The newest version takes the place of this one, at the same addresses: waits for one of at
  // least `least_version`. In use then if this one was, for which both find room on their devices.
  // The set is as before if that fails, and not in use if the device cannot map the new version.
  // Errors: those of Open and Use; kInvalidArgument: the new version has another layout.
  core::Status Advance(uint64_t least_version, core::Tick deadline);

  uint64_t version() const;
  std::vector<Part> parts() const;

 private:
  // Of one tensor.
  struct Mapping {
    ClientDevice* device = nullptr;
    std::unique_ptr<device::VaRange> range;
    uint32_t mapped = 0;  // pages
  };

  OpenedSet(Session& session, std::string name, wire::SetOpened opened);
  core::Status AskForUse(uint64_t open, core::Tick deadline);
  // In use from now on, unless it fails.
  core::Status MapAll(core::Tick deadline);
  core::Status Map(uint32_t tensor, core::Tick deadline);
  core::Status UnmapAll();
  core::Status UseLocked(core::Tick deadline);
  core::Status EndUseLocked();
  void Close(uint64_t open);

  Session& session_;
  const std::string name_;
  mutable std::mutex mutex_;
  wire::SetOpened opened_;         // guarded by mutex_, as all below
  std::vector<Mapping> mappings_;  // by tensor
  bool is_used_ = false;
};

}  // namespace ravenstore::client
