#include "client/ctl/jobs.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <ostream>
#include <utility>

#include "client/ctl/admit.h"
#include "client/ctl/estimate.h"
#include "client/ctl/job_key.h"
#include "client/ctl/render_estimates.h"
#include "client/ctl/session.h"
#include "core/printable.h"
#include "core/size_text.h"
#include "ipc/clock.h"

namespace ravenstore::client::ctl {

using core::Error;
using core::ErrorCode;
using core::Result;

namespace {

int Fail(const Common& common, const Error& error, Streams streams) {
  if (common.json) streams.out << ErrorJson(error);
  streams.err << "ravenctl: " << core::Printable(core::Describe(error)) << '\n';
  return kExitFailed;
}

uint64_t NowSeconds() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(since).count());
}

// Errors: also kNotFound: there were no earlier runs.
Result<Estimate> Remembered(const Common& common, const std::string& job,
                            const std::string& model = "") {
  auto session = Session::Open(common.socket, common.timeout);
  if (!session.ok()) return std::move(session).error();
  RAVEN_ASSIGN_OR_RETURN(const proto::JobKnown known, session->Known(job, model));
  return EstimateOf(known, NowSeconds());
}

// By the package; where another command of the user's ran the same model, by what that took.
Result<Estimate> Captured(const Common& common, const std::string& job,
                          const std::vector<std::string>& command, Streams streams) {
  RAVEN_ASSIGN_OR_RETURN(const auto words, PackageCommand(command));
  // It may take minutes.
  streams.err << "no earlier run of it is known: its script runs up to the third step, on no device"
              << std::endl;
  RAVEN_ASSIGN_OR_RETURN(const std::string output, OutputOf(words));
  RAVEN_ASSIGN_OR_RETURN(Estimate captured, EstimateIn(output));
  if (captured.model.empty()) return captured;
  auto same_model = Remembered(common, job, captured.model);
  if (!same_model.ok()) return captured;
  same_model->model = captured.model;
  same_model->notes.push_back("of the same model under another command");
  return same_model;
}

Result<Estimate> Find(const Common& common, const std::vector<std::string>& command,
                      bool may_capture, Streams streams) {
  const std::string job = JobKey(command);
  auto found = Remembered(common, job);
  if (!found.ok() && may_capture) found = Captured(common, job, command, streams);
  if (found.ok()) found->job = job;
  return found;
}

void Say(Streams streams, const std::string& words) {
  streams.err << "ravenrun: " << core::Printable(words) << std::endl;
}

// Nothing of the command's memory is known.
Error Unknown(const Error& why) {
  if (why.code != ErrorCode::kNotFound) return why;
  return {ErrorCode::kNotFound,
          why.message + ": run it once under ravenrun, or say --admit=SIZE or --admit=capture"};
}

Result<Estimate> Wanted(const Common& common, const AdmitOptions& options, Streams streams) {
  const auto size = core::ParseBytes(options.size);
  if (size && *size > core::Bytes{0}) {
    Estimate given;
    given.job = JobKey(options.command);
    given.source = "given";
    given.bytes = *size;
    return given;
  }
  auto found = Find(common, options.command, options.size == "capture", streams);
  if (!found.ok()) return Unknown(found.error());
  return found;
}

// The devices that the job may be given.
Result<std::vector<std::string>> Devices(const Common& common) {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return std::vector<std::string>();
  auto session = Session::Open(common.socket, common.timeout);
  if (!session.ok()) return std::move(session).error();
  return VisibleDevices(visible, session->welcome());
}

Result<Admitted> Wait(const Common& common, const AdmitOptions& options, const Estimate& estimate,
                      Streams streams) {
  RAVEN_ASSIGN_OR_RETURN(const auto uuids, Devices(common));
  const std::string name = CommandName(options.command);
  const core::Tick deadline = options.wait ? ipc::Now() + *options.wait : core::kNever;
  return AwaitAdmission(common.socket, AdmitPacket(estimate, uuids, name), deadline,
                        [&](const proto::LegacyTurn& turn) {
                          Say(streams, "waits for " + core::SizeText(core::Bytes(turn.bytes())) +
                                           " as number " + std::to_string(turn.position()) + ": " +
                                           turn.words());
                        });
}

// Errors: kSystem: the program cannot be run.
Error Become(const AdmitOptions& options, const std::string& job) {
  ::setenv("RAVENSTORE_JOB", (job + ":" + std::to_string(::getpid())).c_str(), 1);
  if (!options.preload.empty()) ::setenv("LD_PRELOAD", options.preload.c_str(), 1);
  std::vector<char*> words;
  for (const std::string& word : options.command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execvp(words.front(), words.data());
  return {ErrorCode::kSystem, options.command.front() + ": " + std::strerror(errno)};
}

}  // namespace

int RunEstimate(const Common& common, const std::vector<std::string>& command, Streams streams) {
  const auto estimate = Find(common, command, /*may_capture=*/true, streams);
  if (!estimate.ok()) return Fail(common, estimate.error(), streams);
  streams.out << (common.json ? EstimateJson(*estimate) : EstimateText(*estimate));
  return kExitOk;
}

int RunKey(const std::vector<std::string>& command, Streams streams) {
  streams.out << JobKey(command) << '\n';
  return kExitOk;
}

int RunAdmit(const Common& common, const AdmitOptions& options, Streams streams) {
  const auto estimate = Wanted(common, options, streams);
  const bool no_daemon = !estimate.ok() && estimate.error().code == ErrorCode::kUnavailable;
  if (!estimate.ok() && !no_daemon) return Fail(common, estimate.error(), streams);
  auto admitted =
      no_daemon ? Result<Admitted>(estimate.error()) : Wait(common, options, *estimate, streams);
  if (admitted.ok()) {
    const std::string size = core::SizeText(estimate->bytes) + " by " + estimate->source;
    Say(streams, "admitted to " + admitted->uuid + " with " + core::SizeText(admitted->bytes) +
                     " (" + size + ")" + (admitted->words.empty() ? "" : "; " + admitted->words));
    ::setenv("CUDA_VISIBLE_DEVICES", admitted->uuid.c_str(), 1);
    ::setenv("RAVENSTORE_BUDGET", std::to_string(admitted->bytes.count()).c_str(), 1);
    ::setenv("RAVENSTORE_ESTIMATE", size.c_str(), 1);
  } else if (admitted.error().code == ErrorCode::kUnavailable) {
    Say(streams, admitted.error().message + ": the job runs without being admitted");
  } else if (admitted.error().code == ErrorCode::kTimedOut) {
    return Fail(common, {ErrorCode::kTimedOut, "no turn within the time: the job does not run"},
                streams);
  } else {
    return Fail(common, admitted.error(), streams);
  }
  return Fail(common, Become(options, estimate.ok() ? estimate->job : JobKey(options.command)),
              streams);
}

int RunJobs(const Common& common, Streams streams) {
  auto session = Session::Open(common.socket, common.timeout);
  if (!session.ok()) return ReportUnreachable(common, session.error(), streams);
  const auto jobs = session->LegacyJobs();
  if (!jobs.ok()) return Fail(common, jobs.error(), streams);
  streams.out << (common.json ? JobsJson(*jobs) : JobsText(*jobs, common.columns));
  return kExitOk;
}

int RunEstimates(const Common& common, const std::string& html, Streams streams) {
  auto session = Session::Open(common.socket, common.timeout);
  if (!session.ok()) return ReportUnreachable(common, session.error(), streams);
  const auto records = session->JobRecords();
  if (!records.ok()) return Fail(common, records.error(), streams);
  if (!html.empty() && !(std::ofstream(html) << EstimatesHtml(*records) << std::flush))
    return Fail(common, {ErrorCode::kSystem, html + ": cannot be written"}, streams);
  streams.out << (common.json ? EstimatesJson(*records)
                              : EstimatesText(*records, NowSeconds(), common.columns));
  return kExitOk;
}

}  // namespace ravenstore::client::ctl
