#include "daemon/legacy_jobs.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/size_text.h"
#include "daemon/packets.h"
#include "ipc/clock.h"
#include "proto/layout.h"
#include "proto/packet.h"

namespace ravenstore::daemon {

using core::Bytes;
using core::ErrorCode;

namespace {

// Of a turn (daemon/turn_budget.h): what other threads do for a job that begins.
constexpr uint32_t kUnitsOfHello = 8;
constexpr core::Duration kUsesEvery = std::chrono::seconds(5);
// A list's answer; what else is in its packet, and its last entry, take less than the rest.
constexpr size_t kBytesOfList = proto::kControlPacketMax - 1024;

// A stranger's number.
std::optional<double> PartOf(bool is_there, double part) {
  return is_there && part >= 0 && part <= 1 ? std::optional(part) : std::nullopt;
}

void FillEstimate(const JobHistory::Estimate& estimate, Bytes reserved, proto::JobEstimate* to) {
  to->set_source(estimate.source);
  to->set_bytes(estimate.bytes.count());
  to->set_reserved(reserved.count());
}

}  // namespace

LegacyJobs::LegacyJobs(Options options)
    : options_(std::move(options)),
      places_("legacy jobs (clients_max of the configuration)", options_.jobs_max),
      uses_(options_.links),
      reclaims_(options_.capacities, options_.memory, options_.connections),
      waits_({.devices = options_.devices,
              .slowdown_most = options_.slowdown_most,
              .settle = options_.settle,
              .links = options_.links,
              .measure = [this] { return Measured(); },
              .ledger = options_.ledger,
              .memory = options_.memory,
              .connections = options_.connections,
              .log = options_.log}) {}

bool LegacyJobs::Handle(Caller& caller, const proto::ClientPacket& packet,
                        std::vector<ipc::UniqueFd>& descriptors) {
  const uint64_t request = packet.request();
  switch (packet.body_case()) {
    case proto::ClientPacket::kLegacyHello:
      HandleHello(caller, request, packet.legacy_hello(), descriptors);
      return true;
    case proto::ClientPacket::kLegacyReclaim:
      HandleReclaim(caller, request, packet.legacy_reclaim());
      return true;
    case proto::ClientPacket::kLegacyElastic:
      HandleElastic(caller, request, descriptors);
      return true;
    case proto::ClientPacket::kLegacyWait:
      HandleWait(caller, request, packet.legacy_wait());
      return true;
    case proto::ClientPacket::kAdmitJob:
      HandleAdmit(caller, request, packet.admit_job());
      return true;
    default: return false;
  }
}

void LegacyJobs::HandleHello(Caller& caller, uint64_t request, const proto::LegacyHello& hello,
                             std::vector<ipc::UniqueFd>& descriptors) {
  if (caller.greeted || descriptors.size() != 1) {
    return Fail(caller, request, ErrorCode::kWrongState,
                "LegacyHello comes first and brings one descriptor");
  }
  if (hello.protocol_version() != proto::kProtocolVersion) {
    return Fail(caller, request, ErrorCode::kVersionMismatch,
                "this daemon speaks protocol " + std::to_string(proto::kProtocolVersion) +
                    ", the interceptor " + std::to_string(hello.protocol_version()));
  }
  options_.turns->Spend(caller.user(), kUnitsOfHello);
  // What is none stays with who closes it.
  if (!LegacyLedger::IsPage(descriptors.front().get()))
    return Fail(caller, request, ErrorCode::kInvalidArgument, LegacyLedger::kNoPage);
  if (const core::Status place = TakePlace(caller); !place.ok())
    return options_.connections->Fail(caller.key, request, place.error());
  LegacyLedger::Newcomer job;
  job.client = (*options_.next_client)++;
  job.pid = caller.peer.pid;
  job.start_time = caller.peer.start_time;
  job.uid = caller.peer.uid;
  job.name = PrintableName(hello.name());
  job.mode = hello.mode() == "store" || hello.mode() == "elastic" ? hello.mode() : "account";
  if (JobHistory::IsKey(hello.job())) job.job = hello.job();
  job.run = hello.run();
  job.page = std::move(descriptors.front());
  if (options_.log->Allow(job.uid, ipc::Now()))
    spdlog::info("legacy job {} attached: pid {}, uid {}, {}", job.client, job.pid, job.uid,
                 job.name);
  proto::DaemonPacket answer;
  answer.set_request(request);
  answer.mutable_legacy_welcome()->set_client(job.client);
  const auto process_slot = options_.ledger->Add(caller.key, std::move(job));
  if (!process_slot.ok())
    return options_.connections->Fail(caller.key, request, process_slot.error());
  ForgetReplaced();
  if (options_.compute) uses_due_ = std::min(uses_due_, ipc::Now() + kUsesEvery);
  answer.mutable_legacy_welcome()->set_slot(process_slot->slot);
  caller.greeted = true;
  std::vector<ipc::UniqueFd> page;
  page.emplace_back(::fcntl(process_slot->page, F_DUPFD_CLOEXEC, 0));
  if (!page.front()) page.clear();
  options_.connections->Send(caller.key, answer, std::move(page));
}

core::Status LegacyJobs::TakePlace(const Caller& caller) {
  if (jobs_.contains(caller.key)) return core::Ok();
  RAVEN_RETURN_IF_ERROR(places_.Take(caller.user()));
  if (core::Status page = options_.descriptors->Take(caller.user()); !page.ok()) {
    places_.Give(caller.user());
    return page;
  }
  jobs_[caller.key] = {.user = caller.user()};
  return core::Ok();
}

void LegacyJobs::ForgetReplaced() {
  std::vector<uint64_t> over;
  for (const auto& [key, job] : jobs_) {
    // Its process slot went along to the new connection.
    if (job.hung_up && !job.admits && !options_.ledger->HasProcessSlot(key)) over.push_back(key);
  }
  for (const uint64_t key : over) options_.connections->Forget(key);
}

void LegacyJobs::Record(uint64_t key) {
  const auto taken = options_.ledger->TakenBy(key);
  if (!taken) return;
  JobHistory::Process ended{.uid = taken->uid,
                            .job = taken->job,
                            .run = taken->run,
                            .name = taken->name,
                            .peak = taken->peak,
                            .seen = std::chrono::system_clock::now()};
  ended.use = uses_.Of(key);
  const auto* reservation = waits_.queue().FindReservation(core::TenantId{taken->uid}, taken->pid,
                                                           static_cast<pid_t>(taken->run));
  if (reservation != nullptr) {
    ended.model = reservation->model;
    ended.estimate = reservation->estimate;
  }
  options_.history->Add(ended);
}

void LegacyJobs::Ended(const ipc::Peer& peer) {
  // While it is known as what it was admitted.
  if (peer.pid != 0) Record(options_.ledger->KeyOfProcess(peer.pid));
  waits_.Ended(peer);
}

bool LegacyJobs::HangUp(uint64_t key) {
  Record(key);
  bool holds = options_.ledger->HangUp(key);
  const auto place = jobs_.find(key);
  if (place != jobs_.end() && place->second.admits)
    holds = waits_.queue().ReservationOf(*place->second.admits) != nullptr;
  if (holds) place->second.hung_up = true;
  return holds;
}

void LegacyJobs::Forget(uint64_t key) {
  Record(key);
  uses_.Forget(key);
  options_.ledger->Remove(key);
  reclaims_.Forget(key);
  waits_.Leave(key);
  const auto found = jobs_.find(key);
  if (found == jobs_.end()) return;
  const Place& job = found->second;
  places_.Give(job.user);
  options_.descriptors->Give(job.user, job.elastic ? 2 : 1);
  jobs_.erase(found);
}

void LegacyJobs::HandleElastic(Caller& caller, uint64_t request,
                               std::vector<ipc::UniqueFd>& descriptors) {
  if (caller.greeted || descriptors.size() != 1) {
    return Fail(caller, request, ErrorCode::kWrongState,
                "LegacyElastic comes on a connection of its own and brings one descriptor");
  }
  caller.asked = true;
  const auto job = jobs_.find(options_.ledger->KeyOfProcess(caller.peer.pid));
  if (job == jobs_.end() || job->second.elastic) {
    return Fail(caller, request, ErrorCode::kPermission,
                "only a legacy job may send that, and once");
  }
  // What is none stays with who closes it.
  if (!LegacyLedger::IsElasticPage(descriptors.front().get()))
    return Fail(caller, request, ErrorCode::kInvalidArgument, LegacyLedger::kNoElasticPage);
  if (const core::Status place = options_.descriptors->Take(job->second.user); !place.ok())
    return options_.connections->Fail(caller.key, request, place.error());
  job->second.elastic = true;
  options_.ledger->SetElasticPage(job->first, std::move(descriptors.front()));
}

void LegacyJobs::HandleReclaim(Caller& caller, uint64_t request,
                               const proto::LegacyReclaim& reclaim) {
  if (caller.greeted) {
    return Fail(caller, request, ErrorCode::kWrongState,
                "LegacyReclaim comes on a connection of its own");
  }
  caller.asked = true;
  const uint64_t job = options_.ledger->KeyOfProcess(caller.peer.pid);
  if (job == 0)
    return Fail(caller, request, ErrorCode::kPermission, "only a legacy job may ask for that");
  if (const auto device = FindDevice(reclaim.uuid())) {
    spdlog::debug("legacy job of pid {} asks for {} bytes of device {}", caller.peer.pid,
                  reclaim.bytes(), *device);
    return reclaims_.Begin(caller, request, *device, Bytes(reclaim.bytes()), MostOf(job, *device));
  }
  // Not a device of the store's: it took nothing there.
  proto::DaemonPacket answer;
  answer.set_request(request);
  answer.mutable_legacy_reclaimed();
  options_.connections->Send(caller.key, answer, {});
}

void LegacyJobs::HandleWait(Caller& caller, uint64_t request, const proto::LegacyWait& wait) {
  if (caller.greeted) {
    return Fail(caller, request, ErrorCode::kWrongState,
                "LegacyWait comes on a connection of its own");
  }
  caller.asked = true;
  const uint64_t job = options_.ledger->KeyOfProcess(caller.peer.pid);
  if (job == 0) return Fail(caller, request, ErrorCode::kPermission, "only a legacy job may wait");
  // Of a foreign namespace: it could not be distinguished from others.
  if (caller.peer.pid == 0) {
    return Fail(caller, request, ErrorCode::kUnsupported,
                "the daemon does not see the process's number");
  }
  const auto device = FindDevice(wait.uuid());
  if (!device) {
    return Fail(caller, request, ErrorCode::kNotFound,
                "this daemon has no such device, and no job waits for it");
  }
  const Bytes most = MostOf(job, *device);
  waits_.Add(caller, request, *device,
             wait.bytes() == 0 ? most : std::min(Bytes(wait.bytes()), most));
}

void LegacyJobs::HandleAdmit(Caller& caller, uint64_t request, const proto::AdmitJob& admit) {
  if (caller.greeted) {
    return Fail(caller, request, ErrorCode::kWrongState,
                "AdmitJob comes on a connection of its own");
  }
  caller.asked = true;
  options_.turns->Spend(caller.user(), kUnitsOfHello);
  if (caller.peer.pid == 0) {
    return Fail(caller, request, ErrorCode::kUnsupported,
                "the daemon does not see the process's number");
  }
  if (admit.bytes() == 0 || admit.bytes() > UINT64_MAX - admit.margin() ||
      !JobHistory::IsModel(admit.model()) || !JobHistory::IsSource(admit.source())) {
    return Fail(caller, request, ErrorCode::kInvalidArgument,
                "AdmitJob is for some bytes, of a known source, and of a model's hash or none");
  }
  WaitQueue::Waiter wanted;
  wanted.devices = DevicesOf(admit);
  if (wanted.devices.none())
    return Fail(caller, request, ErrorCode::kNotFound, "this daemon has none of these devices");
  wanted.need.bytes = Bytes(admit.bytes() + admit.margin());
  wanted.need.use = {PartOf(admit.has_compute(), admit.compute()),
                     PartOf(admit.has_link(), admit.link())};
  wanted.need.limit = options_.ledger->VisibleOfTenant(caller.peer.uid);
  wanted.name = PrintableName(admit.name());
  wanted.model = admit.model();
  wanted.estimate = {admit.source(), Bytes(admit.bytes()), wanted.need.bytes};
  if (const std::string never = NeverFits(caller, wanted); !never.empty())
    return Fail(caller, request, ErrorCode::kOutOfMemory, never);
  if (const core::Status place = TakePlace(caller); !place.ok())
    return options_.connections->Fail(caller.key, request, place.error());
  jobs_.at(caller.key).admits = {caller.peer.pid, caller.peer.start_time};
  waits_.Admit(caller, request, std::move(wanted));
}

WaitQueue::Devices LegacyJobs::DevicesOf(const proto::AdmitJob& admit) const {
  WaitQueue::Devices devices;
  for (size_t i = 0; i < std::min(options_.devices.size(), WaitQueue::kDevices); ++i) {
    const auto& uuids = admit.uuids();
    const bool is_one = std::ranges::find(uuids, options_.devices[i]->info().uuid) != uuids.end();
    if (uuids.empty() || is_one) devices.set(i);
  }
  return devices;
}

std::string LegacyJobs::NeverFits(const Caller& caller, const WaitQueue::Waiter& wanted) const {
  const Bytes bytes = wanted.need.bytes;
  const Bytes limit = wanted.need.limit;
  if (limit != Bytes{0} && bytes > limit) {
    return "the job needs " + core::SizeText(bytes) + ", and user " +
           std::to_string(caller.peer.uid) + " may have " + core::SizeText(limit) +
           " of a device (visible_memory)";
  }
  Bytes largest;
  for (size_t i = 0; i < options_.devices.size(); ++i) {
    if (wanted.devices.test(i)) largest = std::max(largest, options_.devices[i]->info().total);
  }
  if (bytes <= largest) return "";
  return "the job needs " + core::SizeText(bytes) + ", and the largest of its devices has " +
         core::SizeText(largest);
}

void LegacyJobs::FillWaits(proto::LegacyJob* job) const {
  const WaitQueue& queue = waits_.queue();
  const auto pid = static_cast<pid_t>(job->pid());
  const auto place = queue.PlaceOf(pid);
  job->set_waiting(place.position);
  job->set_waiting_bytes(place.bytes.count());
  const auto* reservation =
      queue.FindReservation(core::TenantId{job->uid()}, pid, static_cast<pid_t>(job->run()));
  if (reservation == nullptr || !reservation->estimate) return;
  FillEstimate(*reservation->estimate, reservation->bytes, job->mutable_estimate());
  job->mutable_estimate()->set_actual(job->peak());
}

void LegacyJobs::FillWaiting(const Caller& caller, proto::LegacyJobs* answer) const {
  for (const WaitQueue::Notification& waiter : waits_.queue().All()) {
    const bool is_job = options_.ledger->KeyOfProcess(waiter.process.pid) != 0;
    const auto audience = caller.audience();
    // One that waits by --wait and has hung up as a job is none that is to become one.
    if (is_job || !waiter.estimate || (audience && *audience != core::ToInt(waiter.user))) continue;
    if (answer->ByteSizeLong() > kBytesOfList) return;
    proto::LegacyJob& job = *answer->add_jobs();
    job.set_pid(static_cast<uint32_t>(waiter.process.pid));
    job.set_uid(core::ToInt(waiter.user));
    job.set_name(waiter.name);
    job.set_waiting(waiter.position);
    job.set_waiting_bytes(waiter.need.bytes.count());
    job.set_waits_for(WordsOf(waiter.judgement, waiter.slowdown_most));
    FillEstimate(*waiter.estimate, waiter.need.bytes, job.mutable_estimate());
  }
}

void LegacyJobs::HandleList(const Caller& caller, uint64_t request,
                            const proto::ListLegacy& query) {
  proto::DaemonPacket answer;
  answer.set_request(request);
  proto::LegacyJobs& jobs = *answer.mutable_legacy_jobs();
  options_.ledger->Fill(caller.audience(), query, &jobs);
  for (proto::LegacyJob& job : *jobs.mutable_jobs()) FillWaits(&job);
  if (jobs.next_cursor() == 0) FillWaiting(caller, &jobs);
  options_.connections->Send(caller.key, answer, {});
}

void LegacyJobs::HandleExplain(const Caller& caller, uint64_t request,
                               const proto::ExplainJob& query) {
  auto explained = options_.ledger->Explain(caller.audience(), query, ipc::Now());
  if (!explained.ok()) return options_.connections->Fail(caller.key, request, explained.error());
  proto::DaemonPacket answer;
  answer.set_request(request);
  *answer.mutable_job_explained() = std::move(*explained);
  options_.connections->Send(caller.key, answer, {});
}

void LegacyJobs::HandleQuery(const Caller& caller, uint64_t request, const proto::JobQuery& query) {
  proto::DaemonPacket answer;
  answer.set_request(request);
  proto::JobKnown& known = *answer.mutable_job_known();
  const uid_t uid = caller.peer.uid;
  if (const auto* record = options_.history->Find(uid, query.job(), query.model()))
    *known.mutable_record() = *record;
  if (JobHistory::IsKey(query.job()))
    known.set_running(options_.ledger->RunningPeak(uid, query.job()).count());
  options_.connections->Send(caller.key, answer, {});
}

void LegacyJobs::HandleRecords(const Caller& caller, uint64_t request,
                               const proto::ListJobRecords& query) {
  proto::DaemonPacket answer;
  answer.set_request(request);
  options_.history->Fill(caller.audience(), query, answer.mutable_job_records());
  options_.connections->Send(caller.key, answer, {});
}

void LegacyJobs::LookAtUses(core::Tick now) {
  if (now < uses_due_) return;
  uses_due_ = options_.ledger->size() == 0 ? core::kNever : now + kUsesEvery;
  uses_.Look(now, options_.compute(), options_.ledger->Holdings());
}

std::vector<ResourceUse> LegacyJobs::Measured() const {
  std::vector<ResourceUse> all(options_.devices.size());
  if (!options_.compute) return all;
  const auto compute = options_.compute();
  for (size_t i = 0; i < all.size(); ++i) all[i] = {compute[i], uses_.LinkOf(i)};
  return all;
}

void LegacyJobs::OnTime(core::Tick now) {
  LookAtUses(now);
  reclaims_.OnTime(now);
  waits_.OnTime(now);
}

std::optional<size_t> LegacyJobs::FindDevice(const std::string& uuid) const {
  for (size_t i = 0; i < options_.devices.size(); ++i) {
    if (options_.devices[i]->info().uuid == uuid) return i;
  }
  return std::nullopt;
}

Bytes LegacyJobs::MostOf(uint64_t job, size_t device) const {
  const Bytes total = options_.devices[device]->info().total;
  const Bytes visible = options_.ledger->VisibleOfJob(job);
  return visible == Bytes{0} ? total : std::min(visible, total);
}

void LegacyJobs::Fail(const Caller& caller, uint64_t request, ErrorCode code, std::string message) {
  options_.connections->Fail(caller.key, request, {code, std::move(message)});
}

}  // namespace ravenstore::daemon
