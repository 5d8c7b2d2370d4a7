// Records what clients do as a trace (docs/TRACES.md), for `ravenctl record`.
//
// The loop passes it every call as it sees it; the control thread's closures take the encoded ops
// away. What does not fit its bounded buffer is dropped and counted, in such a way that the others
// still is a valid trace: an op is only taken to have happened when it was written. Tensors that
// were there before the recording are created in it when they are first seen.
//
// Times are those at which the loop saw the calls, less the time in which the client waited for an
// answer: what is left between two calls of a client counts as its compute.
//
// Threads: the planner loop.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>

#include "core/events.h"
#include "core/store_views.h"
#include "core/types.h"
#include "proto/trace.pb.h"

namespace ravenstore::daemon {

class Recorder {
 public:
  struct Options {
    std::optional<core::ClientId> client;  // none: all of them
    std::optional<uid_t> user;             // none: everybody's
    std::function<std::string(core::ClientId, core::NameId)> name;
    size_t bytes_max = size_t{8} << 20;
  };

  explicit Recorder(Options options) : options_(std::move(options)) {}

  bool Wants(core::ClientId client, uid_t user) const {
    return (!options_.client || *options_.client == client) &&
           (!options_.user || *options_.user == user);
  }

  // REQUIRES, for all that follows: Wants(the client).
  void Created(const core::TensorView& tensor, core::Tick now);
  void Got(const core::TensorView& tensor, core::Tick now);
  void Put(const core::TensorView& tensor, const core::PutSeen& put, core::Tick now);
  void Freed(const core::TensorView& tensor, core::Tick now);
  void Stepped(core::ClientId client, core::Tick now);
  // The client asks for something, and then: it has waited for it until now.
  void Asked(core::ClientId client, core::Tick now);
  void Answered(core::ClientId client, core::Tick now);

  // Whole length-delimited messages, at most kChunk bytes; empty when there is nothing new.
  std::string Take();
  static constexpr size_t kChunk = 48 << 10;

  uint32_t clients() const { return static_cast<uint32_t>(clients_.size()); }
  uint64_t ops() const { return ops_; }
  uint64_t dropped() const { return dropped_; }

 private:
  struct Known {
    bool in_use = false;
    uint32_t writes = 0;
  };
  struct Client {
    uint32_t index = 0;
    core::Tick last{};  // what came before is in the trace
  };

  Client& ClientOf(core::ClientId client, core::Tick now);
  // Null when the trace has no room for the tensor's creation.
  Known* KnownOf(const core::TensorView& tensor, core::Tick now);
  proto::TraceOp Op(proto::TraceOp::Kind kind, core::ClientId client, core::TensorId tensor,
                    core::Tick now);
  bool Append(const proto::TraceOp& op);

  const Options options_;
  std::unordered_map<core::ClientId, Client> clients_;
  std::unordered_map<core::TensorId, Known> known_;
  std::deque<std::string> chunks_;
  size_t bytes_ = 0;  // of chunks_
  uint64_t ops_ = 0;
  uint64_t dropped_ = 0;
};

}  // namespace ravenstore::daemon
