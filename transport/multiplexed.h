// What all transports have in common whose connections are multiplexers: how a call finds its own.
#pragma once

#include <utility>

#include "transport/multiplexer.h"
#include "transport/transport.h"

namespace ravenstore::transport {

class MultiplexedTransport : public Transport {
 public:
  core::Result<CallId> Call(ConnectionId connection, Request request) final {
    Multiplexer* const found = Find(connection);
    if (found == nullptr) {
      return core::Error{core::ErrorCode::kUnavailable, "there is no such connection"};
    }
    auto call = found->Call(std::move(request), Now());
    HasOutput(connection);
    return call;
  }
  void Cancel(CallId call) final {
    Multiplexer* const found = Find(call.connection);
    if (found == nullptr) return;
    found->Cancel(call.number);
    HasOutput(call.connection);
  }
  core::Status Reply(CallId call, Answer answer) final {
    Multiplexer* const found = Find(call.connection);
    if (found == nullptr) return Ended();
    auto status = found->Reply(call.number, std::move(answer));
    HasOutput(call.connection);
    return status;
  }
  core::Status Refuse(CallId call, core::Error why) final {
    Multiplexer* const found = Find(call.connection);
    if (found == nullptr) return Ended();
    auto status = found->Refuse(call.number, std::move(why));
    HasOutput(call.connection);
    return status;
  }

 protected:
  // Null when it has ended. It lives until the callback that runs now is over.
  virtual Multiplexer* Find(ConnectionId connection) = 0;
  // Its Output may have something, and its NextTimer may be sooner. Not written from within.
  virtual void HasOutput(ConnectionId connection) = 0;

 private:
  static core::Status Ended() {
    return core::Error{core::ErrorCode::kNotFound, "the request has ended"};
  }
};

}  // namespace ravenstore::transport
