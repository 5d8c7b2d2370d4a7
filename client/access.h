// get and put: the hot path. Resident tensors need one compare-and-swap each and no system call.
//
// Threads: any, as client/ravenstore.h says.
// Errors: kWrongState (not in the state the call asks for), kLost, kForked, kCapturing,
// kOutOfMemory
//   and kTimedOut (away, and no room or no answer by the deadline), kCorrupt (poison), the
//   device's.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "client/lease.h"
#include "client/session.h"
#include "client/tensor.h"
#include "core/result.h"
#include "core/types.h"
#include "device/device.h"
#include "proto/layout.h"

namespace ravenstore::client {

struct GetOptions {
  bool read_only = false;
  bool blocking = false;
  int device = -1;            // -1: where it is or was last
  core::Duration timeout{0};  // 0: the session's
};

struct PutOptions {
  std::optional<core::Duration> needed_in = {};
  std::optional<int64_t> order = {};
  bool not_modified = false;
  bool not_needed = false;
  core::Duration recompute{0};  // what recomputing the bytes would take; 0: they cannot be
  proto::HintPriority priority = proto::HintPriority::kNormal;
};

// A ticket that several puts or frees of one call share.
struct SharedTicket {
  ClientStream* stream = nullptr;
  uint64_t ticket = 0;
};

// Look at MustRecompute after a get.
core::Result<void*> Get(TensorRecord& tensor, device::StreamHandle stream,
                        const GetOptions& options);
// All or none. `addresses` has one place for each tensor.
core::Status GetBatch(std::span<TensorRecord* const> tensors, device::StreamHandle stream,
                      const GetOptions& options, void** addresses);
// Asks for those that are away, in this order, and does not wait for the answers: the next get of
// each takes its own. Until that get a tensor may be in use by nothing but its answer.
core::Status BeginGets(std::span<TensorRecord* const> tensors, const GetOptions& options);
// Copies nothing when the bytes must be recomputed.
core::Status GetInto(TensorRecord& tensor, void* to, device::StreamHandle stream,
                     const GetOptions& options);
core::Status Put(TensorRecord& tensor, device::StreamHandle stream, const PutOptions& options,
                 SharedTicket* shared);

// The physical memory beneath a tensor in use stays there until its free or until EndKeepInPlace.
// Errors: kWrongState if it is not in use; kUnsupported if the daemon does not plan in pages.
core::Status KeepInPlace(TensorRecord& tensor);
core::Status EndKeepInPlace(TensorRecord& tensor);

// All tensors leave the devices, and their device memory is released. Returns how much that is.
// Until Wake, creates and gets fail. Errors: kWrongState (a tensor is in use, or it sleeps
// already), kTimedOut (they do not leave, and are awake).
core::Result<core::Bytes> Sleep(Session& session, core::Duration timeout);

// The bytes were discarded, as the put allowed: the holder recomputes them.
bool MustRecompute(const TensorRecord& tensor);

// The address in Userspace, else null.
void* Address(const TensorRecord& tensor);
// This process's ordinal of the device the tensor is on or was on last; -1 when it has none.
int DeviceOf(const TensorRecord& tensor);
enum class Readiness { kReady, kNotYet, kLost };
Readiness ReadinessOf(const TensorRecord& tensor);

// The device that the tensor's row names. kNotFound when this process does not see it.
core::Result<ClientDevice*> HomeOf(const TensorRecord& tensor);
// A ticket for what was enqueued on `stream` and for the open ones of `also`; taken once for all
// that share.
core::Result<uint64_t> TicketFor(ClientStream& stream, std::span<const uint64_t> also,
                                 Deadline& deadline, SharedTicket* shared);

}  // namespace ravenstore::client
