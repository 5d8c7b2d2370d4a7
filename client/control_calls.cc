#include "client/control_calls.h"

#include <chrono>
#include <mutex>
#include <utility>

#include "client/lease.h"
#include "ipc/clock.h"

namespace ravenstore::client {

using core::Error;
using core::ErrorCode;
using core::Result;
using core::Status;
using core::Tick;

namespace {
constexpr auto kExplainTimeout = std::chrono::seconds(1);
constexpr const char* kNoId = "the daemon gave a name no id";

Status CheckName(std::string_view name) {
  constexpr size_t kMost = ControlCalls::kNameBytesMax;
  if (name.size() > kMost) {
    return Error{ErrorCode::kInvalidArgument, "a name of " + std::to_string(name.size()) +
                                                  " bytes: at most " + std::to_string(kMost) +
                                                  " are possible"};
  }
  if (!wire::IsUtf8(name)) return Error{ErrorCode::kInvalidArgument, "a name must be UTF-8"};
  return core::Ok();
}
}  // namespace

Result<InternedName> ControlCalls::Intern(std::string_view name, Tick deadline) {
  if (name.empty()) return InternedName{};
  RAVEN_RETURN_IF_ERROR(CheckName(name));
  {
    std::shared_lock lock(names_mutex_);
    const auto known = names_.find(name);
    if (known != names_.end()) return InternedName{known->second, &known->first};
  }
  // Two that ask for one name at the same time get the same answer.
  wire::ClientPacket packet{.request = 0, .body = wire::InternName{std::string(name)}};
  RAVEN_ASSIGN_OR_RETURN(const auto interned,
                         Ask<wire::NameInterned>(std::move(packet), deadline, kNoId));
  if (interned.id == 0) return Error{ErrorCode::kCorrupt, kNoId};
  std::lock_guard lock(names_mutex_);
  const auto kept = names_.emplace(name, interned.id).first;
  return InternedName{interned.id, &kept->first};
}

std::string ControlCalls::Explain(uint32_t slot) {
  const auto explained = Ask<wire::FailureExplained>(
      {.request = 0, .body = wire::ExplainFailure{slot}},
      DeadlineAfter(ipc::Now(), kExplainTimeout), "the daemon explained nothing");
  return explained.ok() ? explained->message : "";
}

Result<wire::Stats> ControlCalls::Stats() {
  return Ask<wire::Stats>({.request = 0, .body = wire::StatsQuery{.whole_store = false}},
                          DeadlineAfter(ipc::Now(), timeout_), "the daemon gave no figures");
}

Status ControlCalls::Send(const wire::ClientPacket& packet) {
  return control_->Send(packet, DeadlineAfter(ipc::Now(), timeout_));
}

Status ControlCalls::Trim() {
  return Send({.request = 0, .body = wire::Trim{}});
}

Status ControlCalls::KeepInPlace(const wire::KeepInPlace& keep) {
  const auto kept =
      Ask<wire::KeptInPlace>({.request = 0, .body = keep}, DeadlineAfter(ipc::Now(), timeout_),
                             "the daemon did not say whether a tensor keeps its place");
  return kept.ok() ? core::Ok() : kept.error();
}

Status ControlCalls::CheckAwake() const {
  if (!asleep_.load(std::memory_order_relaxed)) return core::Ok();
  return Error{ErrorCode::kWrongState, "the store is asleep: wake it first"};
}

Result<core::Bytes> ControlCalls::Sleep(Tick deadline) {
  if (asleep_.exchange(true)) return Error{ErrorCode::kWrongState, "the store is asleep already"};
  const auto at = static_cast<uint64_t>(deadline.time_since_epoch().count());
  const auto asleep =
      Ask<wire::Asleep>({.request = 0, .body = wire::Sleep{at}}, DeadlineAfter(deadline, kGrace),
                        "the daemon did not say whether the store is asleep");
  if (asleep.ok()) return core::Bytes(asleep->bytes);
  // A daemon that answers too late may have put it to sleep.
  if (asleep.error().code == ErrorCode::kTimedOut) static_cast<void>(Wake());
  asleep_.store(false);
  return asleep.error();
}

Status ControlCalls::Wake() {
  if (!asleep_.load()) return core::Ok();
  const auto awake =
      Ask<wire::Awake>({.request = 0, .body = wire::Wake{}}, DeadlineAfter(ipc::Now(), timeout_),
                       "the daemon did not say whether the store is awake");
  if (!awake.ok()) return awake.error();
  asleep_.store(false);
  return core::Ok();
}

Status ControlCalls::TakeOrders(wire::TakeOrders as) {
  RAVEN_RETURN_IF_ERROR(CheckName(as.tag));
  RAVEN_RETURN_IF_ERROR(CheckName(as.job));
  const auto taken = Ask<wire::OrdersTaken>(
      {.request = 0, .body = std::move(as)}, DeadlineAfter(ipc::Now(), timeout_),
      "the daemon did not say whether it will pass on orders");
  return taken.ok() ? core::Ok() : taken.error();
}

// A daemon that does not read it finds the client late.
void ControlCalls::AnswerOrder(const wire::OrderDone& done) {
  static_cast<void>(
      control_->Send({.request = 0, .body = done}, DeadlineAfter(ipc::Now(), timeout_)));
}

Result<wire::PinnedAllocated> ControlCalls::AllocatePinned(const wire::PinnedAlloc& ask,
                                                           Tick deadline) {
  return Ask<wire::PinnedAllocated>({.request = 0, .body = ask}, deadline,
                                    "the daemon gave a block no place");
}

Status ControlCalls::FreePinned(uint64_t block, std::vector<uint64_t> tickets) {
  return Send({.request = 0, .body = wire::PinnedFree{block, std::move(tickets)}});
}

}  // namespace ravenstore::client
