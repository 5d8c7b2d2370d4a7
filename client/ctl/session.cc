#include "client/ctl/session.h"

#include <chrono>
#include <cstdlib>
#include <optional>
#include <utility>

#include "ipc/clock.h"
#include "proto/layout.h"
#include "proto/packet.h"
#include "proto/version.h"

namespace ravenstore::client::ctl {
namespace {

using core::Error;
using core::ErrorCode;
using core::Result;
using core::Status;
using proto::ClientPacket;
using proto::DaemonPacket;

// The daemon's answer fits a packet; this keeps it small enough to be taken in one go.
constexpr uint32_t kTensorsPerPage = 128;
// The daemon waits a little for answers that are late.
constexpr auto kOrderGrace = std::chrono::seconds(2);

Error FromFailure(const proto::Failure& failure) {
  const bool known = failure.code() >= static_cast<uint32_t>(ErrorCode::kInvalidArgument) &&
                     failure.code() <= static_cast<uint32_t>(ErrorCode::kUnsupported);
  return {known ? static_cast<ErrorCode>(failure.code()) : ErrorCode::kCorrupt,
          "the daemon says: " + failure.message()};
}

}  // namespace

std::string DefaultSocket() {
  const char* socket = std::getenv(proto::kSocketPathVariable);
  return socket != nullptr && *socket != '\0' ? socket : proto::kDefaultSocketPath;
}

std::string_view AdviceAbout(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUnavailable:
      return "start the daemon (systemctl start ravenstored), or name its socket with --socket";
    case ErrorCode::kTimedOut: return "the daemon is stuck or stopped: see its log";
    case ErrorCode::kVersionMismatch: return "install the same version of both";
    default: return "";
  }
}

Result<Session> Session::Open(const std::string& path, core::Duration timeout) {
  auto socket = ipc::ConnectToDaemon(path, ipc::Now() + timeout);
  if (!socket.ok()) return std::move(socket).error();
  Session session(std::move(*socket), timeout);
  ClientPacket packet;
  proto::Hello* hello = packet.mutable_hello();
  hello->set_protocol_version(proto::kProtocolVersion);
  hello->set_name("ravenctl");
  hello->set_control_only(true);
  hello->set_library_version(proto::kVersion);
  auto answer = session.Ask(std::move(packet), DaemonPacket::kWelcome);
  if (!answer.ok()) return std::move(answer).error();
  session.welcome_ = answer->welcome();
  if (session.welcome_.protocol_version() != proto::kProtocolVersion) {
    return Error{ErrorCode::kVersionMismatch,
                 "the daemon (version " + session.welcome_.daemon_version() +
                     ") speaks another protocol than ravenctl " + proto::kVersion};
  }
  return session;
}

Result<DaemonPacket> Session::Ask(ClientPacket packet, DaemonPacket::BodyCase expected) {
  const core::Tick deadline = ipc::Now() + timeout_;
  packet.set_request(++last_request_);
  const std::string bytes = packet.SerializeAsString();
  for (;;) {
    Status sent = ipc::Send(socket_.get(), bytes);
    if (sent.ok()) break;
    // A daemon that hung up said why.
    if (sent.error().code == ErrorCode::kUnavailable) break;
    if (sent.error().code != ErrorCode::kTimedOut) return std::move(sent).error();
    RAVEN_RETURN_IF_ERROR(ipc::WaitWritable(socket_.get(), deadline));
  }
  RAVEN_ASSIGN_OR_RETURN(DaemonPacket answer, Await(last_request_, deadline));
  if (answer.has_failure()) return FromFailure(answer.failure());
  if (answer.body_case() != expected) {
    return Error{ErrorCode::kCorrupt, "the daemon's answer is not what was asked for"};
  }
  return answer;
}

Result<DaemonPacket> Session::Await(uint64_t request, core::Tick deadline) {
  for (;;) {
    Status readable = ipc::WaitReadable(socket_.get(), deadline);
    if (!readable.ok() && readable.error().code == ErrorCode::kTimedOut) {
      return Error{ErrorCode::kTimedOut, "the daemon did not answer in time"};
    }
    if (!readable.ok()) return std::move(readable).error();
    auto packet = ipc::Receive(socket_.get(), /*wait=*/false);
    if (!packet.ok() && packet.error().code == ErrorCode::kTimedOut) continue;
    if (!packet.ok()) return std::move(packet).error();
    if (!packet->has_value()) {
      return Error{ErrorCode::kUnavailable, "the daemon hung up (see its log)"};
    }
    DaemonPacket answer;
    if (!answer.ParseFromString((*packet)->bytes)) {
      return Error{ErrorCode::kCorrupt, "the daemon's answer is malformed"};
    }
    if (answer.request() == 0 && answer.has_failure()) return answer;
    // Anything else is no business of a tool that asks one thing at a time.
    if (answer.request() == request) return answer;
  }
}

Result<proto::Stats> Session::Stats() {
  ClientPacket packet;
  packet.mutable_stats()->set_whole_store(true);
  RAVEN_ASSIGN_OR_RETURN(DaemonPacket answer, Ask(std::move(packet), DaemonPacket::kStats));
  return std::move(*answer.mutable_stats());
}

Status Session::List(uint32_t client, const std::function<bool(const proto::TensorInfo&)>& take) {
  uint64_t cursor = 0;
  do {
    ClientPacket packet;
    packet.mutable_list_tensors()->set_cursor(cursor);
    packet.mutable_list_tensors()->set_client(client);
    packet.mutable_list_tensors()->set_limit(kTensorsPerPage);
    RAVEN_ASSIGN_OR_RETURN(const DaemonPacket answer,
                           Ask(std::move(packet), DaemonPacket::kTensors));
    for (const proto::TensorInfo& tensor : answer.tensors().tensors()) {
      if (!take(tensor)) return core::Ok();
    }
    const uint64_t next = answer.tensors().next_cursor();
    if (next != 0 && next <= cursor) {
      return Error{ErrorCode::kCorrupt, "the daemon's list of tensors does not advance"};
    }
    cursor = next;
  } while (cursor != 0);
  return core::Ok();
}

Result<std::vector<proto::ClientInfo>> Session::Clients() {
  std::vector<proto::ClientInfo> clients;
  uint64_t cursor = 0;
  do {
    ClientPacket packet;
    packet.mutable_list_clients()->set_cursor(cursor);
    RAVEN_ASSIGN_OR_RETURN(const DaemonPacket answer,
                           Ask(std::move(packet), DaemonPacket::kClients));
    clients.insert(clients.end(), answer.clients().clients().begin(),
                   answer.clients().clients().end());
    const uint64_t next = answer.clients().next_cursor();
    if (next != 0 && next <= cursor) {
      return Error{ErrorCode::kCorrupt, "the daemon's list of clients does not advance"};
    }
    cursor = next;
  } while (cursor != 0);
  return clients;
}

Result<std::vector<proto::LegacyJob>> Session::LegacyJobs() {
  std::vector<proto::LegacyJob> jobs;
  uint64_t cursor = 0;
  do {
    ClientPacket packet;
    packet.mutable_list_legacy()->set_cursor(cursor);
    const auto answer = Ask(std::move(packet), DaemonPacket::kLegacyJobs);
    if (!answer.ok() && answer.error().code == ErrorCode::kInvalidArgument) return jobs;
    if (!answer.ok()) return answer.error();
    jobs.insert(jobs.end(), answer->legacy_jobs().jobs().begin(),
                answer->legacy_jobs().jobs().end());
    const uint64_t next = answer->legacy_jobs().next_cursor();
    if (next != 0 && next <= cursor) {
      return Error{ErrorCode::kCorrupt, "the daemon's list of legacy jobs does not advance"};
    }
    cursor = next;
  } while (cursor != 0);
  return jobs;
}

Result<proto::JobKnown> Session::Known(const std::string& job, const std::string& model) {
  ClientPacket packet;
  packet.mutable_job_query()->set_job(job);
  packet.mutable_job_query()->set_model(model);
  RAVEN_ASSIGN_OR_RETURN(DaemonPacket answer, Ask(std::move(packet), DaemonPacket::kJobKnown));
  return std::move(*answer.mutable_job_known());
}

Result<std::vector<proto::JobRecord>> Session::JobRecords() {
  std::vector<proto::JobRecord> records;
  uint64_t cursor = 0;
  do {
    ClientPacket packet;
    packet.mutable_list_job_records()->set_cursor(cursor);
    const auto answer = Ask(std::move(packet), DaemonPacket::kJobRecords);
    if (!answer.ok() && answer.error().code == ErrorCode::kInvalidArgument) return records;
    if (!answer.ok()) return answer.error();
    const proto::JobRecords& page = answer->job_records();
    records.insert(records.end(), page.records().begin(), page.records().end());
    const uint64_t next = page.next_cursor();
    if (next != 0 && next <= cursor)
      return Error{ErrorCode::kCorrupt, "the daemon's list of commands does not advance"};
    cursor = next;
  } while (cursor != 0);
  return records;
}

Result<std::vector<proto::SetRow>> Session::Sets() {
  std::vector<proto::SetRow> sets;
  uint64_t cursor = 0;
  do {
    ClientPacket packet;
    packet.mutable_list_sets()->set_cursor(cursor);
    RAVEN_ASSIGN_OR_RETURN(const DaemonPacket answer, Ask(std::move(packet), DaemonPacket::kSets));
    sets.insert(sets.end(), answer.sets().sets().begin(), answer.sets().sets().end());
    const uint64_t next = answer.sets().next_cursor();
    if (next != 0 && next <= cursor)
      return Error{ErrorCode::kCorrupt, "the daemon's list of sets does not advance"};
    cursor = next;
  } while (cursor != 0);
  return sets;
}

Result<proto::TensorExplained> Session::Explain(uint64_t tensor) {
  ClientPacket packet;
  packet.mutable_explain_tensor()->set_id(tensor);
  RAVEN_ASSIGN_OR_RETURN(DaemonPacket answer,
                         Ask(std::move(packet), DaemonPacket::kTensorExplained));
  return std::move(*answer.mutable_tensor_explained());
}

Result<std::vector<proto::JobExplained>> Session::ExplainJob(uint32_t job) {
  std::vector<proto::JobExplained> pages;
  uint32_t cursor = 0;
  do {
    ClientPacket packet;
    packet.mutable_explain_job()->set_client(job);
    packet.mutable_explain_job()->set_cursor(cursor);
    RAVEN_ASSIGN_OR_RETURN(DaemonPacket answer,
                           Ask(std::move(packet), DaemonPacket::kJobExplained));
    pages.push_back(std::move(*answer.mutable_job_explained()));
    const uint32_t next = pages.back().next_cursor();
    if (next != 0 && next <= cursor)
      return Error{ErrorCode::kCorrupt, "the daemon's explanation of a job does not advance"};
    cursor = next;
  } while (cursor != 0);
  return pages;
}

Result<proto::Recorded> Session::Record(uint32_t client) {
  ClientPacket packet;
  packet.mutable_record()->set_client(client);
  RAVEN_ASSIGN_OR_RETURN(DaemonPacket answer, Ask(std::move(packet), DaemonPacket::kRecorded));
  return std::move(*answer.mutable_recorded());
}

Result<Snapshot> Session::Look() {
  Snapshot seen;
  RAVEN_ASSIGN_OR_RETURN(seen.stats, Stats());
  RAVEN_ASSIGN_OR_RETURN(seen.clients, Clients());
  RAVEN_ASSIGN_OR_RETURN(seen.jobs, LegacyJobs());
  RAVEN_ASSIGN_OR_RETURN(seen.records, JobRecords());
  return seen;
}

Result<proto::HarvestReturned> Session::ReturnHarvest(const proto::ReturnHarvest& wanted) {
  timeout_ += core::Duration(static_cast<int64_t>(wanted.within_ns()));
  ClientPacket packet;
  *packet.mutable_return_harvest() = wanted;
  RAVEN_ASSIGN_OR_RETURN(DaemonPacket answer,
                         Ask(std::move(packet), DaemonPacket::kHarvestReturned));
  return std::move(*answer.mutable_harvest_returned());
}

Result<proto::JobOrdered> Session::OrderJob(const proto::OrderJob& order) {
  // Twice: a failed order is undone. Each time the daemon accepts answers that are a little late.
  timeout_ += 2 * (core::Duration(static_cast<int64_t>(order.timeout_ns())) + kOrderGrace);
  ClientPacket packet;
  *packet.mutable_order_job() = order;
  RAVEN_ASSIGN_OR_RETURN(DaemonPacket answer, Ask(std::move(packet), DaemonPacket::kJobOrdered));
  return std::move(*answer.mutable_job_ordered());
}

Result<proto::LimitsSet> Session::SetLimits(const proto::SetLimits& limits) {
  ClientPacket packet;
  *packet.mutable_set_limits() = limits;
  RAVEN_ASSIGN_OR_RETURN(DaemonPacket answer, Ask(std::move(packet), DaemonPacket::kLimitsSet));
  return std::move(*answer.mutable_limits_set());
}

}  // namespace ravenstore::client::ctl
