// What tests of transports share: a service that records its calls, and calls that record their
// results.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "transport/transport.h"

namespace ravenstore::transport {

using Buffer = std::vector<std::byte>;

inline Buffer Pattern(size_t bytes, uint64_t seed) {
  Buffer buffer(bytes);
  std::mt19937_64 random(seed);
  for (size_t i = 0; i < bytes; i += 64) buffer[i] = static_cast<std::byte>(random());
  return buffer;
}

// Echoes: the answer has the request's header, and as much of its bulk as the caller has room for.
class EchoService : public Service {
 public:
  struct Call {
    std::string header;
    Buffer bulk;
    size_t room = 0;
    int checks = 0;
    bool received = false;
    std::optional<core::Status> ended = {};
  };

  void OnConnected(ConnectionId connection, std::string_view node) override {
    connected[connection] = node;
  }
  void OnLost(ConnectionId connection, const core::Error& why) override {
    lost.emplace(connection, why);
  }
  core::Result<Sink> OnRequest(const IncomingCall& call) override {
    if (refuse_requests) return core::Error{core::ErrorCode::kNotFound, "no such tensor"};
    Call& kept = calls[call.id];
    kept.header = call.header;
    kept.bulk.resize(call.bulk.count());
    kept.room = call.room.count();
    return Sink{.bytes = kept.bulk, .check = Check(&kept)};
  }
  void OnReceived(CallId id) override {
    Call& call = calls[id];
    call.received = true;
    if (!answers) return;
    const std::span<const std::byte> source = lent.empty() ? call.bulk : lent;
    const auto bulk = source.first(std::min(source.size(), call.room));
    EXPECT_TRUE(transport->Reply(id, {call.header, bulk, Check(&call)}).ok());
  }
  void OnEnded(CallId id, const core::Status& status) override {
    EXPECT_FALSE(calls.at(id).ended) << "completed twice";
    calls.at(id).ended = status;
  }

  // The chunk that is refused, from 1; 0: none.
  int refuse_chunk = 0;
  bool refuse_requests = false;
  bool answers = true;
  Buffer lent;  // what is answered with, instead of the request's bulk
  Transport* transport = nullptr;
  std::map<CallId, Call> calls;
  std::map<ConnectionId, std::string> connected;
  std::map<ConnectionId, core::Error> lost;

 private:
  ChunkCheck Check(Call* call) {
    return [this, call]() -> core::Status {
      if (++call->checks != refuse_chunk) return core::Ok();
      return core::Error{core::ErrorCode::kLost, "the loan expired"};
    };
  }
};

// A call's end, reported once.
class Outcome {
 public:
  std::function<void(core::Result<Response>)> Keep() {
    return [this](core::Result<Response> result) {
      EXPECT_FALSE(result_) << "completed twice";
      result_ = std::move(result);
    };
  }
  bool completed() const { return result_.has_value(); }
  bool ok() const { return completed() && result_->ok(); }
  const Response& response() const { return result_->value(); }
  const core::Error& error() const { return result_->error(); }

 private:
  std::optional<core::Result<Response>> result_;
};

}  // namespace ravenstore::transport
