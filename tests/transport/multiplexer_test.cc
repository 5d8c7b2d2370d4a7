#include "transport/multiplexer.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/ipc/fuzz.h"
#include "tests/transport/testing.h"

namespace ravenstore::transport {
namespace {

using core::ErrorCode;
using core::Tick;

// Serves, and refuses what would take much memory.
class FrugalService : public Service {
 public:
  void OnConnected(ConnectionId, std::string_view) override {}
  void OnLost(ConnectionId, const core::Error&) override {}
  core::Result<Sink> OnRequest(const IncomingCall& call) override {
    if (call.bulk > core::KiB(64)) return core::Error{ErrorCode::kLimit, "too much"};
    ++accepted;
    return Sink{.bytes = std::span(memory_).first(call.bulk.count())};
  }
  void OnReceived(CallId call) override {
    EXPECT_TRUE(calls->Reply(call.number, {.header = "done"}).ok());
  }
  void OnEnded(CallId, const core::Status&) override { ++ended; }

  int accepted = 0;
  int ended = 0;
  Multiplexer* calls = nullptr;

 private:
  Buffer memory_ = Buffer(64 << 10);
};

// Reads `bytes` as a peer's stream, in pieces of at most `piece`. What Received says at last.
core::Status Feed(Multiplexer* calls, std::span<const std::byte> bytes, size_t piece) {
  while (!bytes.empty()) {
    const auto room = calls->Room();
    const size_t count = std::min({room.size(), bytes.size(), piece});
    if (count == 0) return core::Ok();
    std::memcpy(room.data(), bytes.data(), count);
    bytes = bytes.subspan(count);
    RAVEN_RETURN_IF_ERROR(calls->Received(count, Tick{}));
    const auto output = calls->Output();
    calls->Written(output.size());
  }
  return core::Ok();
}

Buffer Drain(Multiplexer* calls) {
  Buffer all;
  for (auto bytes = calls->Output(); !bytes.empty(); bytes = calls->Output()) {
    all.insert(all.end(), bytes.begin(), bytes.end());
    calls->Written(bytes.size());
  }
  return all;
}

// What a caller writes: a hello, and a few calls with bulk, one of them cancelled.
Buffer CallersStream() {
  EchoService service;
  Multiplexer calls(ConnectionId{1}, {.self = "a", .peer = ""}, &service, {}, Tick{});
  Multiplexer server(ConnectionId{1}, {.self = "b", .peer = ""}, &service, {}, Tick{});
  Buffer stream = Drain(&calls);
  const Buffer hello = Drain(&server);
  EXPECT_TRUE(Feed(&calls, hello, hello.size()).ok());
  const Buffer bulk = Pattern(5000, 3);
  for (int i = 0; i < 3; ++i) {
    const auto call = calls.Call({.header = "put", .send = bulk, .done = [](auto) {}}, Tick{});
    if (i == 1) calls.Cancel(call->number);
  }
  const Buffer rest = Drain(&calls);
  stream.insert(stream.end(), rest.begin(), rest.end());
  calls.Fail({ErrorCode::kUnavailable, "over"});
  return stream;
}

TEST(MultiplexerTest, TheStreamIsReadInPiecesOfAnySize) {
  const Buffer stream = CallersStream();
  for (const size_t piece : {1, 7, 32, 33, 1000, 100'000}) {
    FrugalService service;
    Multiplexer server(ConnectionId{2}, {.self = "b", .peer = ""}, &service, {}, Tick{});
    service.calls = &server;
    ASSERT_TRUE(Feed(&server, stream, piece).ok());
    EXPECT_EQ(server.peer(), "a");
    EXPECT_EQ(service.accepted, 3);
    EXPECT_EQ(service.ended, 3);
  }
}

TEST(MultiplexerTest, AnyFlippedBitIsNoticed) {
  const Buffer stream = CallersStream();
  std::mt19937_64 random(20261126);
  for (int run = 0; run < 500; ++run) {
    Buffer damaged = stream;
    damaged[random() % damaged.size()] ^= std::byte{1} << static_cast<int>(random() % 8);
    FrugalService service;
    Multiplexer server(ConnectionId{2}, {.self = "b", .peer = ""}, &service, {}, Tick{});
    service.calls = &server;
    EXPECT_FALSE(Feed(&server, damaged, 4096).ok()) << run;
    server.Fail({ErrorCode::kUnavailable, "over"});
    EXPECT_EQ(service.ended, service.accepted);
  }
}

TEST(MultiplexerTest, NothingIsSentBeforeThePeersHello) {
  EchoService service;
  Multiplexer calls(ConnectionId{1}, {.self = "a", .peer = "b"}, &service, {}, Tick{});
  calls.Written(calls.Output().size());
  ASSERT_TRUE(calls.Call({.header = "x", .done = [](auto) {}}, Tick{}).ok());
  EXPECT_TRUE(calls.Output().empty());
  EXPECT_FALSE(calls.ready());
  calls.Fail({ErrorCode::kUnavailable, "over"});
}

TEST(MultiplexerTest, APeerThatAsksAndDoesNotReadIsNotReadFrom) {
  FrugalService service;
  Multiplexer server(ConnectionId{2}, {.self = "b", .peer = ""}, &service, {}, Tick{});
  service.calls = &server;
  EchoService unused;
  Multiplexer caller(ConnectionId{1}, {.self = "a", .peer = ""}, &unused, {}, Tick{});
  const Buffer hello = Drain(&server);
  Buffer stream = Drain(&caller);
  ASSERT_TRUE(Feed(&caller, hello, hello.size()).ok());
  // Refusals of 36 bytes and more for each request; nobody writes them out.
  uint64_t requests = 0;
  while (!server.Room().empty() && requests < 1'000'000) {
    const auto call = caller.Call({.header = "x", .done = [](auto) {}}, Tick{});
    ASSERT_TRUE(call.ok());
    caller.Cancel(call->number);
    const Buffer more = Drain(&caller);
    stream.insert(stream.end(), more.begin(), more.end());
    while (!stream.empty() && !server.Room().empty()) {
      const auto room = server.Room();
      const size_t count = std::min(room.size(), stream.size());
      std::memcpy(room.data(), stream.data(), count);
      stream.erase(stream.begin(), stream.begin() + static_cast<ptrdiff_t>(count));
      ASSERT_TRUE(server.Received(count, Tick{}).ok());
    }
    ++requests;
  }
  EXPECT_LT(requests, 1'000'000u);
}

// Makes the checksums of all frames right, as a hostile peer does. A frame's length is what it
// says, or what is left.
void Seal(std::span<uint8_t> stream) {
  constexpr size_t kHeader = 32;
  while (stream.size() >= kHeader) {
    uint32_t length = 0;
    std::memcpy(&length, stream.data(), sizeof(length));
    const size_t end = kHeader + std::min<size_t>(length, stream.size() - kHeader);
    const uint64_t payload_sum = XXH3_64bits(stream.data() + kHeader, end - kHeader);
    std::memcpy(stream.data() + 16, &payload_sum, sizeof(payload_sum));
    const uint64_t header_sum = XXH3_64bits(stream.data(), 24);
    std::memcpy(stream.data() + 24, &header_sum, sizeof(header_sum));
    stream = stream.subspan(end);
  }
}

TEST(MultiplexerFuzz, HostileFramesNeverHarm) {
  const Buffer valid = CallersStream();
  const auto generate = [&](std::mt19937_64& random) {
    ipc::Input input(valid.size());
    std::memcpy(input.data(), valid.data(), valid.size());
    const size_t edits = random() % 4;
    for (size_t i = 0; i < edits; ++i) {
      input[random() % input.size()] = static_cast<uint8_t>(random());
    }
    if (random() % 2 == 0) input.resize(random() % (input.size() + 1));
    return input;
  };
  const auto check = [](std::span<const uint8_t> input) {
    FrugalService service;
    Multiplexer server(ConnectionId{2}, {.self = "b", .peer = ""}, &service, {}, Tick{});
    service.calls = &server;
    ipc::Input sealed(input.begin(), input.end());
    Seal(sealed);
    (void)Feed(&server, std::as_bytes(std::span(sealed)), 1 + sealed.size() / 3);
    server.Fail({ErrorCode::kUnavailable, "over"});
    EXPECT_EQ(service.ended, service.accepted);
  };
  ipc::Fuzz("tests/transport/corpus/frames", 20'000, generate, check);
}

}  // namespace
}  // namespace ravenstore::transport
