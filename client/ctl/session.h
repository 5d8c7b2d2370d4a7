// ravenctl's conversation with the daemon: requests and their answers, one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "core/types.h"
#include "ipc/socket.h"
#include "ipc/unique_fd.h"
#include "proto/control.pb.h"

namespace ravenstore::client::ctl {

// Where the daemon is: $RAVENSTORE_SOCKET, else where it usually is.
std::string DefaultSocket();

// What a daemon says of itself at one moment.
struct Snapshot {
  proto::Stats stats;
  std::vector<proto::ClientInfo> clients;
  std::vector<proto::LegacyJob> jobs;
  std::vector<proto::JobRecord> records;
};

// Owns: the connection. It holds no tensors and counts as no client.
// Threads: one.
// Errors: kTimedOut when an answer takes longer than `timeout`; kUnavailable when the daemon hangs
//   up; kCorrupt when it talks nonsense; else the code and words of the daemon's Failure.
class Session {
 public:
  // Connects and says Hello. Errors: also kPermission (the socket's mode and group) and
  // kVersionMismatch; AdviceAbout says what to do.
  static core::Result<Session> Open(const std::string& path, core::Duration timeout);

  const proto::Welcome& welcome() const { return welcome_; }
  // The daemon's process.
  core::Result<ipc::Peer> Peer() const { return ipc::PeerOf(socket_.get()); }

  core::Result<proto::Stats> Stats();
  // Calls `take` with each tensor (of `client`, or of all when it is 0) until it returns false.
  core::Status List(uint32_t client, const std::function<bool(const proto::TensorInfo&)>& take);
  core::Result<std::vector<proto::ClientInfo>> Clients();
  // Named sets. Errors: also kInvalidArgument, of a daemon that has none.
  core::Result<std::vector<proto::SetRow>> Sets();
  // None from a daemon that knows no such jobs.
  core::Result<std::vector<proto::LegacyJob>> LegacyJobs();
  // What is known of a command of the caller's own, or of one with the same model.
  core::Result<proto::JobKnown> Known(const std::string& job, const std::string& model);
  // What commands took in earlier runs. None from a daemon that remembers none.
  core::Result<std::vector<proto::JobRecord>> JobRecords();
  // All four.
  core::Result<Snapshot> Look();
  core::Result<proto::LimitsSet> SetLimits(const proto::SetLimits& limits);
  // Answered when that is done or its time is over: by then this session's answers may take longer.
  core::Result<proto::HarvestReturned> ReturnHarvest(const proto::ReturnHarvest& wanted);
  // Answered when all have done it, or when it is undone: by then this session's answers may take
  // longer. Errors: also kNotFound.
  core::Result<proto::JobOrdered> OrderJob(const proto::OrderJob& order);
  // Errors: also kNotFound.
  core::Result<proto::TensorExplained> Explain(uint64_t tensor);
  // What is known of a legacy job. Errors: also kNotFound, and kInvalidArgument of a daemon that
  // explains no jobs.
  core::Result<std::vector<proto::JobExplained>> ExplainJob(uint32_t job);
  // Begins a recording of `client` (0: of all), and then takes what was recorded since. It ends
  // with this session. Errors: also kLimit, somebody else records.
  core::Result<proto::Recorded> Record(uint32_t client);

 private:
  Session(ipc::UniqueFd socket, core::Duration timeout)
      : socket_(std::move(socket)), timeout_(timeout) {}
  // Sends `packet` and returns the answer, which has the body `expected`.
  core::Result<proto::DaemonPacket> Ask(proto::ClientPacket packet,
                                        proto::DaemonPacket::BodyCase expected);
  core::Result<proto::DaemonPacket> Await(uint64_t request, core::Tick deadline);

  ipc::UniqueFd socket_;
  core::Duration timeout_;
  uint64_t last_request_ = 0;
  proto::Welcome welcome_;
};

// What a person can do about an error of Session::Open; empty when there is nothing to say.
std::string_view AdviceAbout(core::ErrorCode code);

}  // namespace ravenstore::client::ctl
