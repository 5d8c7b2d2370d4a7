#include "daemon/job_orders.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

#include "core/printable.h"
#include "ipc/clock.h"

namespace ravenstore::daemon {

using core::ClientId;
using core::Error;
using core::ErrorCode;
using core::ToInt;

namespace {

constexpr core::Duration kTimeoutByDefault = std::chrono::seconds(30);
constexpr core::Duration kTimeoutMost = std::chrono::hours(1);
// An answer sent at the deadline is still accepted.
constexpr core::Duration kGrace = std::chrono::seconds(1);
constexpr size_t kNameBytesMax = 255;
constexpr size_t kReasonBytesMax = 1024;
constexpr size_t kJobsListed = 8;
constexpr size_t kNotUndoneMost = 4096;  // bytes

core::Duration TimeoutOf(const proto::OrderJob& wanted) {
  if (wanted.timeout_ns() == 0) return kTimeoutByDefault;
  const auto most = static_cast<uint64_t>(kTimeoutMost.count());
  return core::Duration(static_cast<int64_t>(std::min(wanted.timeout_ns(), most)));
}

std::string NameOf(pid_t pid, const std::string& tag) {
  return "process " + std::to_string(pid) + " (" + core::Printable(tag) + "): ";
}

Error ReasonOf(pid_t pid, const std::string& tag, const proto::OrderDone& done) {
  const bool known = done.code() <= static_cast<uint32_t>(ErrorCode::kUnsupported);
  const std::string_view message = std::string_view(done.message()).substr(0, kReasonBytesMax);
  return {known ? static_cast<ErrorCode>(done.code()) : ErrorCode::kCorrupt,
          NameOf(pid, tag) + core::Printable(message)};
}

std::string Quoted(const std::string& name) {
  return "'" + core::Printable(name) + "'";
}

// In which order the meanings of a job's name are tried: the next one if none had the one before.
enum class Meaning { kName, kRun, kNumber };

}  // namespace

bool JobOrders::Handle(const Caller& caller, const proto::ClientPacket& packet) {
  const auto fail_unless = [&](const core::Status& status) {
    if (!status.ok()) connections_->Fail(caller.key, packet.request(), status.error());
  };
  switch (packet.body_case()) {
    case proto::ClientPacket::kTakeOrders: {
      const core::Status taken = Take(caller, packet.take_orders());
      fail_unless(taken);
      if (!taken.ok()) return true;
      proto::DaemonPacket answer;
      answer.set_request(packet.request());
      answer.mutable_orders_taken();
      connections_->Send(caller.key, answer, {});
      return true;
    }
    case proto::ClientPacket::kOrderDone: Done(caller, packet.order_done()); return true;
    case proto::ClientPacket::kOrderJob:
      fail_unless(Begin(caller, packet.request(), packet.order_job()));
      return true;
    default: return false;
  }
}

core::Status JobOrders::Take(const Caller& caller, const proto::TakeOrders& take) {
  if (caller.client == ClientId{})
    return Error{ErrorCode::kWrongState, "this connection has no client that could sleep"};
  if (take.tag().size() > kNameBytesMax || take.job().size() > kNameBytesMax) {
    return Error{ErrorCode::kInvalidArgument,
                 "tags and names of jobs have at most " + std::to_string(kNameBytesMax) + " bytes"};
  }
  Member& member = members_[caller.key];
  member = {.client = ToInt(caller.client),
            .pid = caller.peer.pid,
            .uid = caller.peer.uid,
            .tag = take.tag(),
            .job = take.job(),
            .run = take.run(),
            .order = member.order};
  return core::Ok();
}

JobOrders::Found JobOrders::Find(const Audience& audience, const proto::OrderJob& wanted) const {
  const std::string& name = wanted.job();
  const auto may_be = [&](uid_t uid) {
    return (!audience || uid == *audience) && (!wanted.has_uid() || uid == wanted.uid());
  };
  // By number a client stands for all clients of its process.
  std::set<pid_t> processes;
  for (const auto& [key, member] : members_) {
    if (may_be(member.uid) && std::to_string(member.client) == name) processes.insert(member.pid);
  }
  for (const Meaning meaning : {Meaning::kName, Meaning::kRun, Meaning::kNumber}) {
    Found found;
    bool is_job = false;
    for (const auto& [key, member] : members_) {
      if (!may_be(member.uid)) continue;
      if (meaning == Meaning::kName && member.job != name) continue;
      if (meaning == Meaning::kRun && (member.run == 0 || std::to_string(member.run) != name))
        continue;
      if (meaning == Meaning::kNumber && !processes.contains(member.pid)) continue;
      is_job = true;
      if (!wanted.tag().empty() && member.tag != wanted.tag()) continue;
      found.members.insert(key);
      found.users.insert(member.uid);
    }
    ledger_->ForEach([&](const LegacyLedger::Newcomer& job) {
      if (!wanted.tag().empty() || !may_be(job.uid)) return;
      if (meaning == Meaning::kName && job.name != name) return;
      if (meaning == Meaning::kRun && (job.run == 0 || std::to_string(job.run) != name)) return;
      if (meaning == Meaning::kNumber && std::to_string(job.client) != name) return;
      is_job = true;
      found.legacy.push_back(job.client);
      found.users.insert(job.uid);
    });
    if (is_job) return found;
  }
  return {};
}

Error JobOrders::NothingFound(const Audience& audience, const proto::OrderJob& wanted) const {
  std::set<std::string> known;
  for (const auto& [key, member] : members_) {
    if (audience && member.uid != *audience) continue;
    known.insert(Quoted(member.job) + " with " + Quoted(member.tag));
  }
  std::string text = "no job " + Quoted(wanted.job()) + " has ";
  text += wanted.tag().empty() ? "memory that can sleep" : "the tag " + Quoted(wanted.tag());
  text += known.empty() ? ", and no other has any" : "; there are: ";
  size_t listed = 0;
  for (const std::string& each : known) {
    if (listed++ == kJobsListed) return {ErrorCode::kNotFound, text + ", ..."};
    text += (listed == 1 ? "" : ", ") + each;
  }
  return {ErrorCode::kNotFound, text};
}

core::Status JobOrders::Check(const Caller& caller, const proto::OrderJob& wanted,
                              const Found& found) const {
  if (found.members.empty() && found.legacy.empty()) return NothingFound(caller.audience(), wanted);
  if (found.users.size() > 1) {
    return Error{ErrorCode::kInvalidArgument, std::to_string(found.users.size()) +
                                                  " users have a job " + Quoted(wanted.job()) +
                                                  ": say whose"};
  }
  if (found.members.size() > kClientsMost) {
    return Error{ErrorCode::kLimit,
                 "job " + Quoted(wanted.job()) + " has " + std::to_string(found.members.size()) +
                     " clients: one order is for at most " + std::to_string(kClientsMost)};
  }
  const auto is_users = [&](const auto& entry) { return entry.second.user == caller.user(); };
  if (std::ranges::count_if(orders_, is_users) >= static_cast<ptrdiff_t>(kOrdersMost)) {
    return Error{ErrorCode::kLimit,
                 std::to_string(kOrdersMost) + " orders of this user are not done: wait for one"};
  }
  for (const uint64_t key : found.members) {
    if (members_.at(key).order == 0) continue;
    return Error{ErrorCode::kWrongState,
                 "job " + Quoted(wanted.job()) + " is being put to sleep or woken already"};
  }
  return core::Ok();
}

core::Result<std::vector<uint32_t>> JobOrders::ElasticOf(const Found& found) const {
  std::vector<uint32_t> elastic;
  std::string others;
  ledger_->ForEach([&](const LegacyLedger::Newcomer& job) {
    if (std::ranges::find(found.legacy, job.client) == found.legacy.end()) return;
    if (job.mode == "elastic") return elastic.push_back(job.client);
    others = "job " + std::to_string(job.client) + " runs in mode " + job.mode;
  });
  if (elastic.empty() && found.members.empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 others + ": only one under ravenrun --mode elastic can give its memory up"};
  }
  return elastic;
}

core::Status JobOrders::Begin(const Caller& caller, uint64_t request,
                              const proto::OrderJob& wanted) {
  if (wanted.job().empty()) return Error{ErrorCode::kInvalidArgument, "the order names no job"};
  const Found found = Find(caller.audience(), wanted);
  RAVEN_RETURN_IF_ERROR(Check(caller, wanted, found));
  RAVEN_ASSIGN_OR_RETURN(std::vector<uint32_t> elastic, ElasticOf(found));
  const core::Duration timeout = TimeoutOf(wanted);
  const uint64_t number = ++last_number_;
  orders_[number] = {.asker = caller.key,
                     .request = request,
                     .user = caller.user(),
                     .wanted = wanted,
                     .timeout = timeout,
                     .deadline = ipc::Now() + timeout,
                     .members = found.members,
                     .awaited = {},
                     .elastic = std::move(elastic),
                     .failure = {},
                     .not_undone = {}};
  Send(number, 0, {});
  AnswerIfComplete(number);
  return core::Ok();
}

void JobOrders::Send(uint64_t number, uint64_t undoes, const std::set<uint64_t>& failed) {
  Order& order = orders_.at(number);
  proto::DaemonPacket packet;
  proto::SleepOrder& sent = *packet.mutable_sleep_order();
  sent.set_number(number);
  sent.set_wakes(order.wanted.wakes() == (undoes == 0));
  sent.set_keeps_nothing(order.wanted.keeps_nothing());
  sent.set_deadline_ns(static_cast<uint64_t>(order.deadline.time_since_epoch().count()));
  sent.set_undoes(undoes);
  order.awaited.clear();
  for (const uint64_t key : order.members) {
    const bool is_awaited = !failed.contains(key);
    members_.at(key).order = is_awaited ? number : 0;
    if (is_awaited) order.awaited.insert(key);
    connections_->Send(key, packet, {});
  }
  UpdateDue();
}

void JobOrders::Done(const Caller& caller, const proto::OrderDone& done) {
  const auto found = members_.find(caller.key);
  // An answer to an order that was undone meanwhile, or a client that makes it up.
  if (found == members_.end() || done.order() == 0 || found->second.order != done.order()) return;
  Member& member = found->second;
  if (done.code() != 0)
    return Fail(done.order(), {caller.key}, ReasonOf(member.pid, member.tag, done));
  member.order = 0;
  Order& order = orders_.at(done.order());
  order.awaited.erase(caller.key);
  order.bytes += done.bytes();
  AnswerIfComplete(done.order());
}

void JobOrders::Fail(uint64_t number, const std::set<uint64_t>& failed, Error why) {
  Order& order = orders_.at(number);
  if (order.failure) {
    if (order.not_undone.size() < kNotUndoneMost) order.not_undone += "; " + why.message;
    for (const uint64_t key : failed) {
      order.awaited.erase(key);
      members_.at(key).order = 0;
    }
    return AnswerIfComplete(number);
  }
  order.failure = std::move(why);
  order.deadline = ipc::Now() + order.timeout;
  order.has_undone = order.members.size() > failed.size();
  auto undone = orders_.extract(number);
  undone.key() = ++last_number_;
  orders_.insert(std::move(undone));
  Send(last_number_, number, failed);
  AnswerIfComplete(last_number_);
}

void JobOrders::AnswerIfComplete(uint64_t number) {
  if (!orders_.at(number).awaited.empty()) return;
  const Order order = std::move(orders_.extract(number).mapped());
  UpdateDue();
  Answer(order);
}

void JobOrders::Answer(const Order& order) {
  if (order.failure) {
    Error why = *order.failure;
    const std::string state = order.wanted.wakes() ? "asleep" : "awake";
    if (!order.not_undone.empty()) {
      why.message += "; not " + state + " again" + order.not_undone;
    } else if (order.has_undone) {
      why.message += "; the others are as before";
    }
    return connections_->Fail(order.asker, order.request, why);
  }
  proto::DaemonPacket answer;
  answer.set_request(order.request);
  proto::JobOrdered& ordered = *answer.mutable_job_ordered();
  ordered.set_clients(static_cast<uint32_t>(order.members.size()));
  ordered.set_bytes(order.bytes);
  for (const uint32_t job : order.elastic) {
    // One that has ended meanwhile holds nothing.
    if (ledger_->SetPaused(job, !order.wanted.wakes()).ok()) ordered.add_elastic_jobs(job);
  }
  connections_->Send(order.asker, answer, {});
}

void JobOrders::Forget(uint64_t key) {
  const auto extracted = members_.extract(key);
  if (!extracted || extracted.mapped().order == 0) return;
  const Member& member = extracted.mapped();
  Order& order = orders_.at(member.order);
  order.members.erase(key);
  order.awaited.erase(key);
  // A client that has ended has nothing that could be undone.
  if (order.failure) return AnswerIfComplete(member.order);
  Fail(member.order, {}, {ErrorCode::kLost, NameOf(member.pid, member.tag) + "it ended"});
}

void JobOrders::OnTime(core::Tick now) {
  if (now < due_) return;
  std::vector<uint64_t> late;
  for (const auto& [number, order] : orders_) {
    if (now >= order.deadline + kGrace) late.push_back(number);
  }
  for (const uint64_t number : late) {
    const Order& order = orders_.at(number);
    const std::set<uint64_t> failed = order.awaited;
    const Member& first = members_.at(*failed.begin());
    std::string why = NameOf(first.pid, first.tag) + "it did not answer in time";
    if (!order.failure && !order.wanted.wakes())
      why += ": it has come to no ravenstore.sleep_point(), or is stopped";
    if (failed.size() > 1) why += ", nor did " + std::to_string(failed.size() - 1) + " others";
    Fail(number, failed, {ErrorCode::kTimedOut, why});
  }
}

void JobOrders::UpdateDue() {
  due_ = core::kNever;
  for (const auto& [number, order] : orders_) due_ = std::min(due_, order.deadline + kGrace);
}

}  // namespace ravenstore::daemon
