// The seam to other nodes: requests and responses, each with a short header and bulk bytes.
//
// A node that asks (the caller) never gets rights to another node's memory. The node that is asked
// (the server) executes every transfer itself: its Service says where a request's bulk goes and
// where a response's bulk comes from, and is asked again before each chunk. A Service may so refuse
// in the middle of a transfer, with a reason that the caller reads.
//
// Threads: all of a transport is used by one thread, on which Poll runs every callback. Wake alone
// may be called from any. Callbacks may call everything but Poll and the destructor.
//
// Owns: nothing of the caller's. Every buffer belongs to the transport from the call that names it
// until the callback that ends that call, and is never touched again after it, whatever is still
// under way on the wire.
//
// Errors: a call ends exactly once, with what the server refused with, or with
//   kTimedOut     its deadline passed; the server may have done it, or may be doing it
//   kWrongState   it was cancelled; likewise
//   kUnavailable  the connection was lost, or closed, before the end
// Bytes that were damaged, short or out of order end their connection; no call completes with them.
//
// Bounds: header, bulk and calls in flight have the limits below. What the other end sends is read
// only as fast as it is used, so that a connection holds a bounded number of bytes.
//
// Units: bytes; deadlines are instants of Now's clock.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "core/result.h"
#include "core/types.h"

namespace ravenstore::transport {

inline constexpr core::Bytes kHeaderMax = core::KiB(16);
inline constexpr core::Bytes kBulkMax = core::GiB(1);
// Bulk goes in chunks of this size, and what is left over.
inline constexpr core::Bytes kChunk = core::KiB(256);
// Calls in flight on one connection, of each end.
inline constexpr uint32_t kCallsMax = 256;
inline constexpr size_t kNodeNameMax = 64;

// Whether `name` may be a node's: letters, digits, '.', '-' and '_', 1 to kNodeNameMax of them.
bool IsNodeName(std::string_view name);

// Never used again by the same transport.
enum class ConnectionId : uint64_t {};

// A call, at the end that made it or at the end that serves it: the two have different ids for it.
struct CallId {
  ConnectionId connection{};
  uint64_t number = 0;
  auto operator<=>(const CallId&) const = default;
};

struct Response {
  std::string header;
  core::Bytes bulk;  // how much of Request::receive was filled, from its beginning
};

struct Request {
  std::string header;
  std::span<const std::byte> send = {};  // bulk for the server
  std::span<std::byte> receive = {};  // room for the response's bulk; undefined if the call fails
  core::Tick deadline = core::kNever;
  std::function<void(core::Result<Response>)> done = {};  // called once, never from within Call
};

// Go on, or why not. Asked before each chunk is written to, or read from, the server's memory. It
// calls nothing of the transport.
using ChunkCheck = std::function<core::Status()>;

// A request as it comes to its server.
struct IncomingCall {
  CallId id;
  std::string_view node;    // the caller
  std::string_view header;  // valid during OnRequest only
  core::Bytes bulk;         // will come with it
  core::Bytes room;         // the most that the response's bulk may be
  core::Tick deadline;      // the caller's, on this node's clock; later by the time on the way
};

// Where a request's bulk goes.
struct Sink {
  std::span<std::byte> bytes = {};  // REQUIRES: as long as the request's bulk
  ChunkCheck check = {};
};

struct Answer {
  std::string header;
  std::span<const std::byte> send = {};
  ChunkCheck check = {};
};

// What serves a transport's connections. It outlives the transport.
class Service {
 public:
  virtual ~Service() = default;

  // A connection is ready, of either end's making.
  virtual void OnConnected(ConnectionId connection, std::string_view node) = 0;
  // A connection ended, or could not be made or was refused, of either end's making; its calls have
  // been ended before. Not called for connections that Close ended.
  virtual void OnLost(ConnectionId connection, const core::Error& why) = 0;

  // Accepts a request, or refuses it. After a refusal nothing more is reported about it.
  virtual core::Result<Sink> OnRequest(const IncomingCall& call) = 0;
  // All of an accepted request's bulk is in its sink, which the transport is done with. Now, or
  // later, the service calls Reply or Refuse.
  virtual void OnReceived(CallId call) = 0;
  // An accepted request ended: its response is on its way (not more than that), it was refused
  // (also by a check), or `status` says what came between. No buffer of it is touched any more.
  virtual void OnEnded(CallId call, const core::Status& status) = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Begins to connect to the node `node` at `address` (as the transport writes addresses). Calls
  // may be made immediately; they wait for the connection. OnConnected or OnLost reports the
  // outcome, at `deadline` at the latest.
  // Errors: kInvalidArgument (no node's name, no address), kLimit, kSystem.
  virtual core::Result<ConnectionId> Connect(std::string_view node, std::string_view address,
                                             core::Tick deadline) = 0;
  // Ends the connection and, before it returns, its calls with kUnavailable. None of that name: ok.
  virtual void Close(ConnectionId connection) = 0;

  // Errors: kInvalidArgument (over a bound), kLimit (too many in flight), kUnavailable (no such
  // connection). After an error `done` is not called.
  virtual core::Result<CallId> Call(ConnectionId connection, Request request) = 0;
  // Ends a call of this end with kWrongState, before it returns. One that ended already: ok.
  virtual void Cancel(CallId call) = 0;

  // Answers an accepted request. Its buffer is the transport's until OnEnded.
  // Errors: kInvalidArgument (a bound, or more bulk than the caller has room for), kNotFound (it
  // ended meanwhile), kWrongState (not received yet, or answered).
  virtual core::Status Reply(CallId call, Answer answer) = 0;
  // Ends an accepted request with an error, at any time. Errors: kNotFound.
  virtual core::Status Refuse(CallId call, core::Error why) = 0;

  // Moves bytes and runs callbacks until `until`, or until some were moved, or Wake. A past `until`
  // never waits.
  virtual void Poll(core::Tick until) = 0;
  // Ends a Poll that waits, or the next one.
  virtual void Wake() = 0;
  virtual core::Tick Now() const = 0;
};

}  // namespace ravenstore::transport
