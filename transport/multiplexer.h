// One end of one connection: its calls, made one stream of bytes each way. No I/O and no clock: a
// transport moves the bytes and passes the time. transport.h has the contracts of calls.
//
// The stream is frames: a header of 32 bytes with its own checksum (XXH3), and a payload. The first
// frame each way is a hello with version and node name; its form never changes.
//
// With sums payloads have a checksum as well: a chunk is verified whole before any of it is written
// to a sink, and copied before it is sent, so that a call's buffers are touched only inside
// Received, TakeInput, Output and TakeOutput. Without, for a transport that lets only bytes through
// that the peer sent, chunks are not copied: Room may lie in a call's buffer, and Output be one.
// Neither may then be touched once Received or Written, or what ends the call, has been called.
//
// Threads: one. Callbacks of the service may call everything here but Received, TakeInput, Output,
// Written, TakeOutput and Expire.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/result.h"
#include "core/types.h"
#include "transport/transport.h"

namespace ravenstore::transport {

inline constexpr uint32_t kProtocolVersion = 2;

// When a connection counts as lost.
struct Patience {
  core::Duration ping = std::chrono::seconds(2);     // after so long without a byte from the peer
  core::Duration silence = std::chrono::seconds(8);  // after so long it is lost
};

class Multiplexer {
 public:
  struct Options {
    std::string self;
    std::string peer;  // whose hello is accepted; empty: any node's
    bool sums = true;  // of payloads; the same at both ends
    Patience patience = {};
    uint32_t version = kProtocolVersion;
  };

  // `service` outlives this.
  Multiplexer(ConnectionId connection, Options options, Service* service, core::Tick now);
  Multiplexer(const Multiplexer&) = delete;
  Multiplexer& operator=(const Multiplexer&) = delete;

  // Where the next bytes of the peer's stream go; empty while answers to it wait to be written.
  std::span<std::byte> Room();
  // `count` bytes were put there. Errors: kCorrupt, kVersionMismatch, kPermission (another node
  // than was expected): Fail it then.
  core::Status Received(size_t count, core::Tick now);
  // Room and Received in one call, for bytes that came elsewhere. Takes a frame from their front:
  // without a copy if the frame is complete, else the part that is there. Returns how many bytes it
  // took: 0 if Room is empty. Errors: Received's. REQUIRES: sums; not empty; they stay until it
  // returns.
  core::Result<size_t> TakeInput(std::span<const std::byte> bytes, core::Tick now);

  // The next bytes to be written; empty when there are none. The same bytes until Written, though
  // not in the same place once anything else was called.
  std::span<const std::byte> Output();
  void Written(size_t count);
  // How many bytes there are before Output has to look for more.
  size_t OutputBytes() const { return output_.size() - written_ + chunk_out_.rest.size(); }
  // Output and Written in one call: fills `bytes` with at most `most` next bytes, or with none. The
  // memory that `bytes` held is used again. REQUIRES: sums.
  void TakeOutput(size_t most, std::string* bytes);

  core::Result<CallId> Call(Request request, core::Tick now);
  void Cancel(uint64_t number);
  core::Status Reply(uint64_t number, Answer answer);
  core::Status Refuse(uint64_t number, core::Error why);

  // Ends what is past its deadline. Errors: kUnavailable (the peer is silent): Fail it then.
  core::Status Expire(core::Tick now);
  // When Expire next has something to do.
  core::Tick NextTimer() const;

  // Ends all calls with kUnavailable and `why`, and takes no more.
  void Fail(const core::Error& why);

  // The peer's hello has come.
  bool ready() const { return ready_; }
  const std::string& peer() const { return peer_; }

 private:
  enum class Kind : uint8_t {
    kHello,
    kPing,
    kPong,
    kRequest,
    kRequestChunk,
    kResponse,
    kResponseChunk,
    kRefusal,
    kCancel
  };
  struct FrameHeader;
  // A call of this end.
  struct Outgoing {
    std::span<const std::byte> send;
    std::span<std::byte> receive;
    core::Tick deadline;
    std::function<void(core::Result<Response>)> done;
    size_t sent = 0;
    std::optional<Response> response = {};  // its header has come
    size_t received = 0;
  };
  // A call of the peer's.
  struct Serving {
    Sink sink;
    size_t room = 0;
    core::Tick deadline;
    size_t received = 0;
    std::optional<Answer> answer = {};
    size_t sent = 0;
  };
  // A call by the end that made it.
  struct Made {
    bool ours = false;
    uint64_t number = 0;  // from 1; 0: there is none
    bool operator==(const Made&) const = default;
  };
  // A chunk that comes or goes without a copy.
  template <typename Byte>
  struct Chunk {
    Made call;
    std::span<Byte> rest = {};  // of the call's buffer
  };

  core::Status OnFrame(std::span<const std::byte> frame, core::Tick now);
  core::Status OnHello(std::string_view payload);
  core::Status OnRequest(uint64_t number, std::string_view payload, core::Tick now);
  core::Status OnResponse(uint64_t number, std::string_view payload);
  core::Status OnChunk(Made call, std::string_view payload);
  core::Status OnRefusal(uint64_t number, std::string_view payload);

  // Where a chunk of `length` bytes goes that begins at `offset` of the call's bulk; nowhere if
  // the call has ended, or ends here.
  core::Result<std::span<std::byte>> PlaceFor(Made call, uint64_t offset, size_t length);
  core::Result<std::span<std::byte>> PlaceForRequest(uint64_t number, uint64_t offset,
                                                     size_t length);
  core::Result<std::span<std::byte>> PlaceForResponse(uint64_t number, uint64_t offset,
                                                      size_t length);
  // All of it has come.
  void OnChunkReceived(Made call, size_t length);
  core::Status BeginChunk(const FrameHeader& header);
  void EndChunk(const FrameHeader& header);
  // The call's buffers are not this end's any more.
  void ReleaseBuffers(Made call);

  // A call of ours that a frame names: null when it has ended; an error when it never was.
  core::Result<Outgoing*> Named(uint64_t number);
  void Complete(uint64_t number, core::Result<Response> result);
  void End(uint64_t number, const core::Status& status);
  void SendRefusal(uint64_t number, const core::Error& why);

  // `body` is the payload's end. If it is not copied, it is sent from where it is stored.
  void Append(Kind kind, uint64_t number, std::string_view head, std::string_view body = {},
              bool copied = true);
  // Both append the call's next chunk. They return true if more chunks follow it.
  bool AppendRequestChunk(uint64_t number);
  bool AppendResponseChunk(uint64_t number);
  size_t AppendChunk(Made call, std::span<const std::byte> bulk, size_t offset);
  // All of an answer's bulk has been copied or written.
  void AnswerSent(uint64_t number);

  const ConnectionId connection_;
  const Options options_;
  std::string peer_;
  Service* const service_;
  bool ready_ = false;
  bool failed_ = false;

  // Input: one frame, header and payload. Of a chunk that comes without a copy what its call does
  // not want (any more).
  std::vector<std::byte> frame_;
  size_t frame_bytes_ = 0;
  Chunk<std::byte> chunk_in_;
  core::Tick heard_;   // the peer's last byte
  core::Tick pinged_;  // our last ping, or heard_ if that is later

  // Output: frames without bulk wait in queue_, before chunks, which are made one at a time.
  std::string queue_;
  std::string output_;
  size_t written_ = 0;
  Chunk<const std::byte> chunk_out_;  // follows output_
  std::deque<Made> senders_;  // whose bulk goes in turns; those that have ended are passed over

  uint64_t last_call_ = 0;    // of ours
  uint64_t last_served_ = 0;  // of the peer's
  std::map<uint64_t, Outgoing> calls_;
  std::map<uint64_t, Serving> served_;
};

}  // namespace ravenstore::transport
