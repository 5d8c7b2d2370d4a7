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
}  // namespace

Result<InternedName> ControlCalls::Intern(std::string_view name, Tick deadline) {
  if (name.empty()) return InternedName{};
  if (name.size() > kNameBytesMax) {
    return Error{ErrorCode::kInvalidArgument, "a name of " + std::to_string(name.size()) +
                                                  " bytes: at most " +
                                                  std::to_string(kNameBytesMax) + " are possible"};
  }
  if (!wire::IsUtf8(name)) return Error{ErrorCode::kInvalidArgument, "a name must be UTF-8"};
  {
    std::shared_lock lock(names_mutex_);
    const auto known = names_.find(name);
    if (known != names_.end()) return InternedName{known->second, &known->first};
  }
  // Two that ask for one name at the same time get the same answer.
  wire::ClientPacket packet{.request = 0, .body = wire::InternName{std::string(name)}};
  RAVEN_ASSIGN_OR_RETURN(const auto answer, control_->Call(std::move(packet), deadline, *phase_));
  const auto* interned = std::get_if<wire::NameInterned>(&answer.body);
  if (interned == nullptr || interned->id == 0) {
    return Error{ErrorCode::kCorrupt, "the daemon gave a name no id"};
  }
  std::lock_guard lock(names_mutex_);
  const auto kept = names_.emplace(name, interned->id).first;
  return InternedName{interned->id, &kept->first};
}

std::string ControlCalls::Explain(uint32_t slot) {
  const auto answer = control_->Call({.request = 0, .body = wire::ExplainFailure{slot}},
                                     DeadlineAfter(ipc::Now(), kExplainTimeout), *phase_);
  if (!answer.ok()) return "";
  const auto* explained = std::get_if<wire::FailureExplained>(&answer->body);
  return explained != nullptr ? explained->message : "";
}

Result<wire::Stats> ControlCalls::Stats() {
  RAVEN_ASSIGN_OR_RETURN(
      auto answer, control_->Call({.request = 0, .body = wire::StatsQuery{.whole_store = false}},
                                  DeadlineAfter(ipc::Now(), timeout_), *phase_));
  auto* figures = std::get_if<wire::Stats>(&answer.body);
  if (figures == nullptr) return Error{ErrorCode::kCorrupt, "the daemon gave no figures"};
  return std::move(*figures);
}

Status ControlCalls::Trim() {
  return control_->Send({.request = 0, .body = wire::Trim{}}, DeadlineAfter(ipc::Now(), timeout_));
}

Status ControlCalls::KeepInPlace(const wire::KeepInPlace& keep) {
  RAVEN_ASSIGN_OR_RETURN(
      const auto answer,
      control_->Call({.request = 0, .body = keep}, DeadlineAfter(ipc::Now(), timeout_), *phase_));
  if (!std::holds_alternative<wire::KeptInPlace>(answer.body))
    return Error{ErrorCode::kCorrupt, "the daemon did not say whether a tensor keeps its place"};
  return core::Ok();
}

Result<wire::PinnedAllocated> ControlCalls::AllocatePinned(const wire::PinnedAlloc& ask,
                                                           Tick deadline) {
  RAVEN_ASSIGN_OR_RETURN(const auto answer,
                         control_->Call({.request = 0, .body = ask}, deadline, *phase_));
  const auto* place = std::get_if<wire::PinnedAllocated>(&answer.body);
  if (place == nullptr) return Error{ErrorCode::kCorrupt, "the daemon gave a block no place"};
  return *place;
}

Status ControlCalls::FreePinned(uint64_t block, std::vector<uint64_t> tickets) {
  return control_->Send({.request = 0, .body = wire::PinnedFree{block, std::move(tickets)}},
                        DeadlineAfter(ipc::Now(), timeout_));
}

}  // namespace ravenstore::client
