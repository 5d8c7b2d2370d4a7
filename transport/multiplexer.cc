#include "transport/multiplexer.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/check.h"
#include "core/printable.h"

namespace ravenstore::transport {
namespace {

using core::Error;
using core::ErrorCode;
using core::Ok;
using core::Result;
using core::Status;
using core::Tick;

static_assert(std::endian::native == std::endian::little, "frames are little-endian");

constexpr std::string_view kMagic = "ravenlnk";
constexpr size_t kOffsetBytes = sizeof(uint64_t);  // before a chunk's bytes
constexpr size_t kSwallowed = 16 << 10;            // per read, of a chunk that no call wants
constexpr size_t kPayloadMax = kOffsetBytes + kChunk.count();
// Of a peer's words about a refusal. Shorter cuts Ravenstore's own; longer lets a peer fill logs.
constexpr size_t kReasonMax = 1024;
// Frames that wait to be written: no peer that reads is ever so far behind.
constexpr size_t kQueueMax = 2 * kCallsMax * kHeaderMax.count();
constexpr core::Duration kForever = std::chrono::hours(24 * 365);

std::string_view Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <typename T>
void Put(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Takes a T from the front of `rest`, if it is that long.
template <typename T>
bool Take(std::string_view* rest, T* value) {
  if (rest->size() < sizeof(T)) return false;
  std::memcpy(value, rest->data(), sizeof(T));
  rest->remove_prefix(sizeof(T));
  return true;
}

Error Malformed(std::string_view what) {
  return {ErrorCode::kCorrupt, "the peer's bytes are no transport protocol: " + std::string(what)};
}

}  // namespace

struct Multiplexer::FrameHeader {
  uint32_t length = 0;  // of the payload
  Kind kind{};
  uint8_t zero[3] = {};
  uint64_t number = 0;       // of the call
  uint64_t payload_sum = 0;  // XXH3 of the payload; 0 without sums
  uint64_t header_sum = 0;   // XXH3 of what stands before it

  static FrameHeader Of(std::span<const std::byte> frame) {
    FrameHeader header;
    std::memcpy(&header, frame.data(), sizeof(header));
    return header;
  }
  uint64_t Sum() const { return XXH3_64bits(this, offsetof(FrameHeader, header_sum)); }
  Status Check() const {
    if (header_sum != Sum()) return Malformed("a damaged header");
    if (length > kPayloadMax) return Malformed("a frame that is too long");
    return Ok();
  }
  bool IsChunk() const { return kind == Kind::kRequestChunk || kind == Kind::kResponseChunk; }
};

Multiplexer::Multiplexer(ConnectionId connection, Options options, Service* service, Tick now)
    : connection_(connection),
      options_(std::move(options)),
      peer_(options_.peer),
      service_(service),
      frame_(sizeof(FrameHeader) + kOffsetBytes),
      heard_(now),
      pinged_(now) {
  static_assert(sizeof(FrameHeader) == 32);
  std::string hello(kMagic);
  Put(&hello, options_.version);
  hello += options_.self;
  Append(Kind::kHello, 0, hello);
  output_.swap(queue_);
}

// ---- Input

std::span<std::byte> Multiplexer::Room() {
  if (failed_ || queue_.size() > kQueueMax) return {};
  if (!chunk_in_.rest.empty()) return chunk_in_.rest;
  size_t end = sizeof(FrameHeader);
  size_t begin = frame_bytes_;
  if (frame_bytes_ >= end) {
    const FrameHeader header = FrameHeader::Of(frame_);
    end += header.length;
    if (!options_.sums && header.IsChunk()) {
      const size_t head = sizeof(header) + std::min<size_t>(header.length, kOffsetBytes);
      if (frame_bytes_ >= head) begin = head;  // each part of it over the last one
      end = frame_bytes_ < head ? head : head + std::min(end - frame_bytes_, kSwallowed);
    }
    // As long as the longest so far: most connections never carry bulk.
    if (frame_.size() < end) frame_.resize(end);
  }
  return std::span(frame_).subspan(begin, end - begin);
}

Status Multiplexer::Received(size_t count, Tick now) {
  heard_ = pinged_ = now;
  frame_bytes_ += count;
  if (frame_bytes_ < sizeof(FrameHeader)) return Ok();
  const FrameHeader header = FrameHeader::Of(frame_);
  if (frame_bytes_ == sizeof(header)) RAVEN_RETURN_IF_ERROR(header.Check());
  const size_t end = sizeof(header) + header.length;
  if (!options_.sums && header.IsChunk()) {
    if (!chunk_in_.rest.empty()) {
      chunk_in_.rest = chunk_in_.rest.subspan(count);
    } else if (frame_bytes_ == std::min(end, sizeof(header) + kOffsetBytes)) {
      RAVEN_RETURN_IF_ERROR(BeginChunk(header));
    }
    if (frame_bytes_ == end) EndChunk(header);
    return Ok();
  }
  if (frame_bytes_ < end) return Ok();
  return OnFrame(std::span(frame_).first(std::exchange(frame_bytes_, 0)), now);
}

Result<size_t> Multiplexer::TakeInput(std::span<const std::byte> bytes, Tick now) {
  RAVEN_CHECK(options_.sums);
  const auto room = Room();
  if (room.empty()) return size_t{0};
  if (frame_bytes_ == 0 && bytes.size() >= sizeof(FrameHeader)) {
    const FrameHeader header = FrameHeader::Of(bytes);
    RAVEN_RETURN_IF_ERROR(header.Check());
    if (const size_t whole = sizeof(header) + header.length; bytes.size() >= whole) {
      heard_ = pinged_ = now;
      RAVEN_RETURN_IF_ERROR(OnFrame(bytes.first(whole), now));
      return whole;
    }
  }
  const size_t count = std::min(room.size(), bytes.size());
  std::memcpy(room.data(), bytes.data(), count);
  RAVEN_RETURN_IF_ERROR(Received(count, now));
  return count;
}

Status Multiplexer::OnFrame(std::span<const std::byte> frame, Tick now) {
  const FrameHeader header = FrameHeader::Of(frame);
  const std::string_view payload = Text(frame.subspan(sizeof(header)));
  if (header.payload_sum != (options_.sums ? XXH3_64bits(payload.data(), payload.size()) : 0)) {
    return Malformed("a damaged payload");
  }
  if (ready_ == (header.kind == Kind::kHello)) return Malformed("a hello out of place, or none");
  switch (header.kind) {
    case Kind::kHello: return OnHello(payload);
    case Kind::kPing: Append(Kind::kPong, 0, {}); return Ok();
    case Kind::kPong: return Ok();
    case Kind::kRequest: return OnRequest(header.number, payload, now);
    case Kind::kRequestChunk: return OnChunk({.ours = false, .number = header.number}, payload);
    case Kind::kResponse: return OnResponse(header.number, payload);
    case Kind::kResponseChunk: return OnChunk({.ours = true, .number = header.number}, payload);
    case Kind::kRefusal: return OnRefusal(header.number, payload);
    case Kind::kCancel:
      if (served_.contains(header.number)) {
        End(header.number, Error{ErrorCode::kWrongState, "the caller cancelled it"});
      }
      return Ok();
  }
  return Malformed("an unknown kind of frame");
}

Status Multiplexer::OnHello(std::string_view payload) {
  uint32_t version = 0;
  if (!payload.starts_with(kMagic)) return Malformed("a strange hello");
  payload.remove_prefix(kMagic.size());
  if (!Take(&payload, &version)) return Malformed("a short hello");
  if (version != options_.version) {
    return Error{ErrorCode::kVersionMismatch, "the peer speaks version " + std::to_string(version) +
                                                  " of the transport protocol, this node version " +
                                                  std::to_string(options_.version)};
  }
  if (!IsNodeName(payload)) return Malformed("a node without a name");
  const std::string name(payload);
  if (!peer_.empty() && peer_ != name) {
    return Error{ErrorCode::kPermission,
                 "the peer is the node " + name + ", not " + peer_ + " as it should be"};
  }
  peer_ = name;
  ready_ = true;
  service_->OnConnected(connection_, peer_);
  return Ok();
}

Status Multiplexer::OnRequest(uint64_t number, std::string_view payload, Tick now) {
  int64_t remaining = 0;
  uint64_t bulk = 0;
  uint64_t room = 0;
  if (!Take(&payload, &remaining) || !Take(&payload, &bulk) || !Take(&payload, &room) ||
      payload.size() > kHeaderMax.count() || bulk > kBulkMax.count() || room > kBulkMax.count()) {
    return Malformed("a request beyond the bounds");
  }
  if (number <= last_served_) return Malformed("a request twice");
  if (served_.size() >= kCallsMax) return Malformed("too many requests at once");
  last_served_ = number;
  const core::Duration left(std::max<int64_t>(remaining, 0));
  const Tick deadline = left < kForever ? now + left : core::kNever;
  const CallId id{connection_, number};
  auto sink = service_->OnRequest({.id = id,
                                   .node = peer_,
                                   .header = payload,
                                   .bulk = core::Bytes(bulk),
                                   .room = core::Bytes(room),
                                   .deadline = deadline});
  if (!sink.ok()) {
    SendRefusal(number, sink.error());
    return Ok();
  }
  RAVEN_CHECK(sink->bytes.size() == bulk);
  if (failed_) {
    service_->OnEnded(id, Error{ErrorCode::kUnavailable, "the connection was closed"});
    return Ok();
  }
  served_.emplace(number, Serving{.sink = *std::move(sink), .room = room, .deadline = deadline});
  if (bulk == 0) service_->OnReceived(id);
  return Ok();
}

Result<Multiplexer::Outgoing*> Multiplexer::Named(uint64_t number) {
  if (number == 0 || number > last_call_) return Malformed("an answer to no call");
  const auto found = calls_.find(number);
  return found == calls_.end() ? nullptr : &found->second;
}

Status Multiplexer::OnResponse(uint64_t number, std::string_view payload) {
  RAVEN_ASSIGN_OR_RETURN(Outgoing * call, Named(number));
  if (call == nullptr) return Ok();
  uint64_t bulk = 0;
  if (!Take(&payload, &bulk) || payload.size() > kHeaderMax.count() ||
      bulk > call->receive.size() || call->response || call->sent < call->send.size()) {
    return Malformed("a response beyond the bounds");
  }
  call->response = Response{std::string(payload), core::Bytes(bulk)};
  if (bulk == 0) Complete(number, *std::move(call->response));
  return Ok();
}

Result<std::span<std::byte>> Multiplexer::PlaceForRequest(uint64_t number, uint64_t offset,
                                                          size_t length) {
  if (number > last_served_) return Malformed("bulk of no request");
  const auto found = served_.find(number);
  if (found == served_.end()) return std::span<std::byte>();  // refused while it was on its way
  const Serving& call = found->second;
  if (offset != call.received || length > call.sink.bytes.size() - call.received) {
    return Malformed("bulk out of order");
  }
  const auto place = call.sink.bytes.subspan(offset, length);
  if (call.sink.check) {
    if (auto status = call.sink.check(); !status.ok()) {
      RAVEN_RETURN_IF_ERROR(Refuse(number, status.error()));
      return std::span<std::byte>();
    }
  }
  return place;
}

Result<std::span<std::byte>> Multiplexer::PlaceForResponse(uint64_t number, uint64_t offset,
                                                           size_t length) {
  RAVEN_ASSIGN_OR_RETURN(const Outgoing* call, Named(number));
  if (call == nullptr) return std::span<std::byte>();
  if (!call->response || offset != call->received ||
      length > call->response->bulk.count() - call->received) {
    return Malformed("bulk out of order");
  }
  return call->receive.subspan(offset, length);
}

Result<std::span<std::byte>> Multiplexer::PlaceFor(Made call, uint64_t offset, size_t length) {
  if (length == 0) return Malformed("bulk out of order");
  return call.ours ? PlaceForResponse(call.number, offset, length)
                   : PlaceForRequest(call.number, offset, length);
}

void Multiplexer::OnChunkReceived(Made call, size_t length) {
  if (call.ours) {
    Outgoing& ours = calls_.at(call.number);
    ours.received += length;
    if (ours.received == ours.response->bulk.count()) {
      Complete(call.number, *std::move(ours.response));
    }
    return;
  }
  Serving& served = served_.at(call.number);
  served.received += length;
  if (served.received == served.sink.bytes.size()) {
    service_->OnReceived({connection_, call.number});
  }
}

Status Multiplexer::OnChunk(Made call, std::string_view payload) {
  uint64_t offset = 0;
  if (!Take(&payload, &offset)) return Malformed("bulk out of order");
  RAVEN_ASSIGN_OR_RETURN(const auto place, PlaceFor(call, offset, payload.size()));
  if (place.empty()) return Ok();
  std::memcpy(place.data(), payload.data(), payload.size());
  OnChunkReceived(call, payload.size());
  return Ok();
}

Status Multiplexer::BeginChunk(const FrameHeader& header) {
  if (!ready_) return Malformed("a hello out of place, or none");
  if (header.payload_sum != 0 || header.length <= kOffsetBytes) {
    return Malformed("bulk out of order");
  }
  uint64_t offset = 0;
  std::memcpy(&offset, frame_.data() + sizeof(header), sizeof(offset));
  const Made call{.ours = header.kind == Kind::kResponseChunk, .number = header.number};
  RAVEN_ASSIGN_OR_RETURN(const auto place, PlaceFor(call, offset, header.length - kOffsetBytes));
  if (!place.empty()) chunk_in_ = {.call = call, .rest = place};
  return Ok();
}

void Multiplexer::EndChunk(const FrameHeader& header) {
  frame_bytes_ = 0;
  const Made call = std::exchange(chunk_in_, {}).call;
  if (call.number != 0) OnChunkReceived(call, header.length - kOffsetBytes);
}

Status Multiplexer::OnRefusal(uint64_t number, std::string_view payload) {
  RAVEN_ASSIGN_OR_RETURN(const Outgoing* call, Named(number));
  uint16_t code = 0;
  if (!Take(&payload, &code) || payload.size() > kHeaderMax.count() ||
      core::Name(ErrorCode{code}) == "UNKNOWN") {
    return Malformed("a refusal without a reason");
  }
  // They go into logs, and to users with other errors.
  const std::string words = core::Printable(payload.substr(0, kReasonMax));
  if (call != nullptr) Complete(number, Error{ErrorCode{code}, words});
  return Ok();
}

// ---- Output

std::span<const std::byte> Multiplexer::Output() {
  if (failed_) return {};
  if (OutputBytes() == 0 && ready_) {
    output_.clear();
    written_ = 0;
    while (queue_.empty() && !senders_.empty()) {
      const Made sender = senders_.front();
      senders_.pop_front();
      const bool more =
          sender.ours ? AppendRequestChunk(sender.number) : AppendResponseChunk(sender.number);
      if (more && !failed_) senders_.push_back(sender);
    }
    output_.swap(queue_);
  }
  if (written_ == output_.size()) return chunk_out_.rest;
  return std::as_bytes(std::span(output_)).subspan(written_);
}

void Multiplexer::Written(size_t count) {
  const size_t framed = std::min(count, output_.size() - written_);
  written_ += framed;
  if (count == framed) return;
  chunk_out_.rest = chunk_out_.rest.subspan(count - framed);
  if (chunk_out_.rest.empty() && !chunk_out_.call.ours) AnswerSent(chunk_out_.call.number);
}

void Multiplexer::ReleaseBuffers(Made call) {
  if (chunk_in_.call == call) chunk_in_ = {};
  if (chunk_out_.call == call && !chunk_out_.rest.empty()) {
    // The chunk's header promised these bytes to the peer.
    output_ += Text(std::exchange(chunk_out_.rest, {}));
  }
}

void Multiplexer::TakeOutput(size_t most, std::string* bytes) {
  RAVEN_CHECK(options_.sums);
  const auto output = Output();
  if (written_ == 0 && output.size() == output_.size() && output.size() <= most) {
    bytes->clear();
    bytes->swap(output_);
    return;
  }
  bytes->assign(Text(output.first(std::min(most, output.size()))));
  Written(bytes->size());
}

void Multiplexer::Append(Kind kind, uint64_t number, std::string_view head, std::string_view body,
                         bool copied) {
  FrameHeader header{
      .length = static_cast<uint32_t>(head.size() + body.size()), .kind = kind, .number = number};
  const size_t begin = queue_.size();
  queue_.reserve(begin + sizeof(header) + head.size() + (copied ? body.size() : 0));
  Put(&queue_, header);
  queue_ += head;
  if (copied) queue_ += body;
  if (options_.sums) {
    header.payload_sum = XXH3_64bits(queue_.data() + begin + sizeof(header), header.length);
  }
  header.header_sum = header.Sum();
  std::memcpy(queue_.data() + begin, &header, sizeof(header));
}

bool Multiplexer::AppendRequestChunk(uint64_t number) {
  const auto found = calls_.find(number);
  if (found == calls_.end()) return false;
  Outgoing& call = found->second;
  call.sent += AppendChunk({.ours = true, .number = number}, call.send, call.sent);
  return call.sent < call.send.size();
}

bool Multiplexer::AppendResponseChunk(uint64_t number) {
  const auto found = served_.find(number);
  if (found == served_.end()) return false;
  Serving& call = found->second;
  if (call.answer->check) {
    if (auto status = call.answer->check(); !status.ok()) {
      RAVEN_CHECK(Refuse(number, status.error()).ok());
      return false;
    }
  }
  call.sent += AppendChunk({.ours = false, .number = number}, call.answer->send, call.sent);
  if (call.sent < call.answer->send.size()) return true;
  if (chunk_out_.rest.empty()) AnswerSent(number);
  return false;
}

void Multiplexer::AnswerSent(uint64_t number) {
  const auto found = served_.find(number);
  if (found == served_.end() || found->second.sent < found->second.answer->send.size()) return;
  End(number, Ok());
}

size_t Multiplexer::AppendChunk(Made call, std::span<const std::byte> bulk, size_t offset) {
  const auto bytes = bulk.subspan(offset, std::min(kChunk.count(), bulk.size() - offset));
  std::string head;
  Put(&head, uint64_t{offset});
  Append(call.ours ? Kind::kRequestChunk : Kind::kResponseChunk, call.number, head, Text(bytes),
         options_.sums);
  if (!options_.sums) chunk_out_ = {.call = call, .rest = bytes};
  return bytes.size();
}

// ---- Calls

Result<CallId> Multiplexer::Call(Request request, Tick now) {
  if (failed_) return Error{ErrorCode::kUnavailable, "the connection is lost"};
  if (request.header.size() > kHeaderMax.count() || request.send.size() > kBulkMax.count() ||
      request.receive.size() > kBulkMax.count()) {
    return Error{ErrorCode::kInvalidArgument, "the request's header or bulk is too long"};
  }
  if (calls_.size() >= kCallsMax || queue_.size() > kQueueMax) {
    return Error{ErrorCode::kLimit,
                 std::to_string(calls_.size()) + " calls to one node are in flight"};
  }
  const uint64_t number = ++last_call_;
  const bool forever = request.deadline == core::kNever;
  std::string payload;
  Put(&payload, int64_t{forever ? INT64_MAX : (request.deadline - now).count()});
  Put(&payload, uint64_t{request.send.size()});
  Put(&payload, uint64_t{request.receive.size()});
  payload += request.header;
  Append(Kind::kRequest, number, payload);
  if (!request.send.empty()) senders_.push_back({.ours = true, .number = number});
  calls_.emplace(number, Outgoing{.send = request.send,
                                  .receive = request.receive,
                                  .deadline = request.deadline,
                                  .done = std::move(request.done)});
  return CallId{connection_, number};
}

void Multiplexer::Cancel(uint64_t number) {
  if (!calls_.contains(number)) return;
  Append(Kind::kCancel, number, {});
  Complete(number, Error{ErrorCode::kWrongState, "the call was cancelled"});
}

Status Multiplexer::Reply(uint64_t number, Answer answer) {
  const auto found = served_.find(number);
  if (found == served_.end()) return Error{ErrorCode::kNotFound, "the request has ended"};
  Serving& call = found->second;
  if (call.answer || call.received < call.sink.bytes.size()) {
    return Error{ErrorCode::kWrongState, "the request was answered, or is not received yet"};
  }
  if (answer.header.size() > kHeaderMax.count() || answer.send.size() > call.room) {
    return Error{ErrorCode::kInvalidArgument, "the answer's header or bulk is too long"};
  }
  std::string payload;
  Put(&payload, uint64_t{answer.send.size()});
  payload += answer.header;
  Append(Kind::kResponse, number, payload);
  if (answer.send.empty()) {
    End(number, Ok());
  } else {
    call.answer = std::move(answer);
    senders_.push_back({.ours = false, .number = number});
  }
  return Ok();
}

Status Multiplexer::Refuse(uint64_t number, Error why) {
  if (!served_.contains(number)) return Error{ErrorCode::kNotFound, "the request has ended"};
  SendRefusal(number, why);
  End(number, std::move(why));
  return Ok();
}

void Multiplexer::SendRefusal(uint64_t number, const Error& why) {
  std::string payload;
  Put(&payload, static_cast<uint16_t>(why.code));
  payload += std::string_view(why.message).substr(0, kHeaderMax.count());
  Append(Kind::kRefusal, number, payload);
}

void Multiplexer::Complete(uint64_t number, Result<Response> result) {
  auto call = calls_.extract(number);
  ReleaseBuffers({.ours = true, .number = number});
  call.mapped().done(std::move(result));
}

void Multiplexer::End(uint64_t number, const Status& status) {
  served_.erase(number);
  ReleaseBuffers({.ours = false, .number = number});
  service_->OnEnded({connection_, number}, status);
}

// ---- Time and loss

Status Multiplexer::Expire(Tick now) {
  if (failed_) return Ok();
  if (now - heard_ >= options_.patience.silence) {
    const auto silence = std::chrono::ceil<std::chrono::milliseconds>(now - heard_).count();
    return Error{ErrorCode::kUnavailable, "nothing was heard from the node " + peer_ + " for " +
                                              std::to_string(silence) + " ms"};
  }
  if (ready_ && now - pinged_ >= options_.patience.ping) {
    pinged_ = now;
    Append(Kind::kPing, 0, {});
  }
  std::vector<Made> late;
  for (const auto& [number, call] : calls_) {
    if (call.deadline <= now) late.push_back({.ours = true, .number = number});
  }
  for (const auto& [number, call] : served_) {
    if (call.deadline <= now) late.push_back({.ours = false, .number = number});
  }
  const Error why{ErrorCode::kTimedOut, "the call's deadline passed"};
  for (const auto [ours, number] : late) {
    if (!ours) {
      (void)Refuse(number, why);  // unless a callback ended it meanwhile
    } else if (calls_.contains(number)) {
      Append(Kind::kCancel, number, {});
      Complete(number, why);
    }
  }
  return Ok();
}

Tick Multiplexer::NextTimer() const {
  if (failed_) return core::kNever;
  Tick next = heard_ + options_.patience.silence;
  if (ready_) next = std::min(next, pinged_ + options_.patience.ping);
  for (const auto& [number, call] : calls_) next = std::min(next, call.deadline);
  for (const auto& [number, call] : served_) next = std::min(next, call.deadline);
  return next;
}

void Multiplexer::Fail(const Error& why) {
  failed_ = true;
  senders_.clear();
  chunk_in_ = {};
  chunk_out_ = {};
  const Error lost{ErrorCode::kUnavailable, why.message};
  for (auto& [number, call] : std::exchange(calls_, {})) call.done(lost);
  for (const auto& [number, call] : std::exchange(served_, {})) {
    service_->OnEnded({connection_, number}, lost);
  }
}

}  // namespace ravenstore::transport
