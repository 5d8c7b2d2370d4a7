// The requests of one attachment that go to the daemon as control messages.
//
// Owns: the names that the daemon knows, and other processes' orders to the client. Threads: any.
// Errors: those of ControlLink::Call or Send, and those that each call names. Cost: a message and
// its answer; a known name only a shared lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "client/control.h"
#include "client/orders.h"
#include "client/phase.h"
#include "client/wire.h"
#include "core/result.h"
#include "core/types.h"

namespace ravenstore::client {

// A name as the daemon knows it.
struct InternedName {
  uint32_t id = 0;                    // 0: none
  const std::string* name = nullptr;  // owned by the ControlCalls
};

class ControlCalls {
 public:
  static constexpr size_t kNameBytesMax = 255;

  // `timeout`: of calls without a deadline of their own. The others outlive the last call.
  ControlCalls(ControlLink* control, const PhaseWord* phase, core::Duration timeout)
      : control_(control),
        phase_(phase),
        timeout_(timeout),
        orders_([this](const wire::OrderDone& done) { AnswerOrder(done); }) {}

  // Asks the daemon, unless the name's id is known already. Errors: kInvalidArgument (too long),
  // the daemon's.
  core::Result<InternedName> Intern(std::string_view name, core::Tick deadline);
  // Why the last request of `slot` failed, in the daemon's words; empty when it does not say.
  std::string Explain(uint32_t slot);
  core::Result<wire::Stats> Stats();
  // Asks the daemon to take back memory as it comes to hold nothing.
  core::Status Trim();
  // The daemon keeps the tensor's physical memory beneath it, or does not any more.
  core::Status KeepInPlace(const wire::KeepInPlace& keep);
  // All tensors leave the devices; the device memory that goes back. Until Wake, calls that ask for
  // memory are to fail. Errors: kWrongState (it sleeps already), kTimedOut.
  core::Result<core::Bytes> Sleep(core::Tick deadline);
  core::Status Wake();
  // From now on other processes may order the client to sleep and to wake. Errors:
  // kInvalidArgument (a name that is too long, or is not UTF-8).
  core::Status TakeOrders(wire::TakeOrders as);
  Orders& orders() { return orders_; }
  // Errors: kWrongState, while it sleeps.
  core::Status CheckAwake() const;
  // A block of pinned memory.
  core::Result<wire::PinnedAllocated> AllocatePinned(const wire::PinnedAlloc& ask,
                                                     core::Tick deadline);
  core::Status FreePinned(uint64_t block, std::vector<uint64_t> tickets);

  // Asks the daemon. `descriptors`: those of the answer; null: they are closed.
  // Errors: those of ControlLink::Call; kCorrupt with `missing` if the answer is another message.
  template <typename Answer>
  core::Result<Answer> Ask(wire::ClientPacket packet, core::Tick deadline, const char* missing,
                           std::vector<ipc::UniqueFd>* descriptors = nullptr) {
    RAVEN_ASSIGN_OR_RETURN(auto reply, control_->Call(std::move(packet), deadline, *phase_));
    auto* const answer = std::get_if<Answer>(&reply.packet.body);
    if (answer == nullptr) return core::Error{core::ErrorCode::kCorrupt, missing};
    if (descriptors != nullptr) *descriptors = std::move(reply.descriptors);
    return std::move(*answer);
  }
  // Sends the daemon what it does not answer. Errors: those of ControlLink::Send.
  core::Status Send(const wire::ClientPacket& packet);

 private:
  void AnswerOrder(const wire::OrderDone& done);

  ControlLink* const control_;
  const PhaseWord* const phase_;
  const core::Duration timeout_;
  std::atomic<bool> asleep_{false};
  Orders orders_;
  std::shared_mutex names_mutex_;
  std::map<std::string, uint32_t, std::less<>> names_;  // guarded by names_mutex_
};

}  // namespace ravenstore::client
