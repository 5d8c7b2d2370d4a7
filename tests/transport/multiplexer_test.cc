#include "transport/multiplexer.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <functional>
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

  std::span<const std::byte> memory() const { return memory_; }

  int accepted = 0;
  int ended = 0;
  Multiplexer* calls = nullptr;

 private:
  Buffer memory_ = Buffer(64 << 10);
};

// An end of a connection that is joined to nothing.
struct End {
  explicit End(const std::string& name, bool sums, Service* service)
      : calls(ConnectionId{1}, {.self = name, .peer = "", .sums = sums}, service, Tick{}) {}
  ~End() { calls.Fail({ErrorCode::kUnavailable, "over"}); }
  Multiplexer calls;
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

// Gives each end all that the other one wrote, until there is no more.
void Exchange(Multiplexer* one, Multiplexer* other) {
  for (bool any = true; any;) {
    const Buffer there = Drain(one);
    ASSERT_TRUE(Feed(other, there, there.size()).ok());
    const Buffer back = Drain(other);
    ASSERT_TRUE(Feed(one, back, back.size()).ok());
    any = !there.empty() || !back.empty();
  }
}

// What a caller writes: a hello, and a few calls with bulk, one of them cancelled.
Buffer CallersStream(bool sums) {
  EchoService service;
  End caller("a", sums, &service);
  Multiplexer& calls = caller.calls;
  End server("b", sums, &service);
  Buffer stream = Drain(&calls);
  const Buffer hello = Drain(&server.calls);
  EXPECT_TRUE(Feed(&calls, hello, hello.size()).ok());
  const Buffer bulk = Pattern(5000, 3);
  for (int i = 0; i < 3; ++i) {
    const auto call = calls.Call({.header = "put", .send = bulk, .done = [](auto) {}}, Tick{});
    if (i == 1) calls.Cancel(call->number);
  }
  const Buffer rest = Drain(&calls);
  stream.insert(stream.end(), rest.begin(), rest.end());
  return stream;
}

// One that has called three times for bulk, and what a server writes to it: a hello, and answers.
struct Asking {
  explicit Asking(bool sums) : caller("a", sums, &service) {}

  void Ask() {
    for (Buffer& room : rooms) {
      ASSERT_TRUE(
          caller.calls
              .Call({.header = "", .receive = room, .done = [this](auto) { ++done_calls; }}, Tick{})
              .ok());
    }
  }
  // REQUIRES: nothing was asked. What is returned fits one that asks afterwards as well.
  static Buffer ServersStream(bool sums) {
    EchoService service;
    Asking asking(sums);
    End server("b", sums, &service);
    service.lent = Pattern(5000, 4);
    Buffer stream = Drain(&server.calls);
    EXPECT_TRUE(Feed(&asking.caller.calls, stream, stream.size()).ok());
    asking.Ask();
    const Buffer calls = Drain(&asking.caller.calls);
    // Answered by hand: the service knows transports only.
    service.answers = false;
    EXPECT_TRUE(Feed(&server.calls, calls, calls.size()).ok());
    for (const auto& [id, call] : service.calls) {
      EXPECT_TRUE(server.calls.Reply(id.number, {.header = "", .send = service.lent}).ok());
    }
    const Buffer rest = Drain(&server.calls);
    stream.insert(stream.end(), rest.begin(), rest.end());
    return stream;
  }

  EchoService service;
  std::vector<Buffer> rooms = std::vector<Buffer>(3, Buffer(5000));
  int done_calls = 0;
  End caller;  // last: its callbacks use the above
};

class MultiplexerSumsTest : public testing::TestWithParam<bool> {
 protected:
  bool sums() const { return GetParam(); }
};

// Two ends that know each other.
class MultiplexerPairTest : public MultiplexerSumsTest {
 protected:
  MultiplexerPairTest() : server_("b", sums(), &service_), caller_("a", sums(), &unused_) {
    service_.calls = &server_.calls;
  }
  void SetUp() override { Exchange(&caller_.calls, &server_.calls); }

  FrugalService service_;
  EchoService unused_;
  End server_;
  End caller_;
};

TEST_P(MultiplexerSumsTest, TheStreamIsReadInPiecesOfAnySize) {
  const Buffer stream = CallersStream(sums());
  for (const size_t piece : {1, 7, 32, 33, 1000, 100'000}) {
    FrugalService service;
    End server("b", sums(), &service);
    service.calls = &server.calls;
    ASSERT_TRUE(Feed(&server.calls, stream, piece).ok());
    EXPECT_EQ(server.calls.peer(), "a");
    EXPECT_EQ(service.accepted, 3);
    EXPECT_EQ(service.ended, 3);
    EXPECT_TRUE(std::ranges::equal(service.memory().first(5000), Pattern(5000, 3)));
  }
}

TEST_P(MultiplexerSumsTest, AnswersAreReadInPiecesOfAnySize) {
  const Buffer stream = Asking::ServersStream(sums());
  for (const size_t piece : {1, 7, 39, 40, 41, 1000, 100'000}) {
    Asking asking(sums());
    asking.Ask();
    ASSERT_TRUE(Feed(&asking.caller.calls, stream, piece).ok());
    EXPECT_EQ(asking.done_calls, 3);
    for (const Buffer& room : asking.rooms) EXPECT_EQ(room, Pattern(5000, 4));
  }
}

TEST_P(MultiplexerPairTest, WhatIsCancelledInTheMiddleOfAChunkIsNotReadFromAgain) {
  Multiplexer& calls = caller_.calls;
  Buffer bulk = Pattern(40'000, 5);
  const auto put = calls.Call({.header = "put", .send = bulk, .done = [](auto) {}}, Tick{});
  Buffer sent;
  while (sent.size() < 10'000) {
    const auto output = calls.Output();
    const auto some = output.first(std::min<size_t>(output.size(), 100));
    sent.insert(sent.end(), some.begin(), some.end());
    calls.Written(some.size());
  }
  calls.Cancel(put->number);
  std::ranges::fill(bulk, std::byte{0xee});
  const Buffer rest = Drain(&calls);
  sent.insert(sent.end(), rest.begin(), rest.end());
  ASSERT_TRUE(Feed(&server_.calls, sent, 4096).ok());
  EXPECT_TRUE(std::ranges::equal(service_.memory().first(40'000), Pattern(40'000, 5)));
  EXPECT_EQ(service_.ended, 1);
  int done_calls = 0;
  const auto done = [&](const core::Result<Response>& result) { done_calls += result.ok(); };
  ASSERT_TRUE(calls.Call({.header = "put", .send = bulk, .done = done}, Tick{}).ok());
  Exchange(&calls, &server_.calls);
  EXPECT_EQ(done_calls, 1);
  EXPECT_TRUE(std::ranges::equal(service_.memory().first(40'000), bulk));
}

TEST_P(MultiplexerPairTest, WhatEndsInTheMiddleOfAChunkIsNotWrittenToAgain) {
  const Buffer bulk(40'000, std::byte{7});
  const Tick deadline = Tick{} + std::chrono::seconds(1);
  int done_calls = 0;
  const auto done = [&](const core::Result<Response>& result) { done_calls += result.ok(); };
  const Request put{.header = "put", .send = bulk, .deadline = deadline, .done = done};
  ASSERT_TRUE(caller_.calls.Call(put, Tick{}).ok());
  const Buffer stream = Drain(&caller_.calls);
  ASSERT_TRUE(Feed(&server_.calls, std::span(stream).first(20'000), 4096).ok());
  ASSERT_TRUE(server_.calls.Expire(deadline).ok());
  EXPECT_EQ(service_.ended, 1);
  const Buffer before(service_.memory().begin(), service_.memory().end());
  ASSERT_TRUE(Feed(&server_.calls, std::span(stream).subspan(20'000), 4096).ok());
  EXPECT_TRUE(std::ranges::equal(service_.memory(), before));
  // The connection goes on.
  Exchange(&caller_.calls, &server_.calls);
  ASSERT_TRUE(caller_.calls.Call({.header = "put", .send = bulk, .done = done}, Tick{}).ok());
  Exchange(&caller_.calls, &server_.calls);
  EXPECT_EQ(done_calls, 1);
}

std::string NameOf(const testing::TestParamInfo<bool>& sums) {
  return sums.param ? "WithSums" : "WithoutCopies";
}
INSTANTIATE_TEST_SUITE_P(All, MultiplexerSumsTest, testing::Bool(), NameOf);
INSTANTIATE_TEST_SUITE_P(All, MultiplexerPairTest, testing::Bool(), NameOf);

TEST(MultiplexerTest, WithoutCopiesAnAnswerEndsWhenItIsWritten) {
  EchoService unused;
  EchoService service;
  service.answers = false;
  service.lent = Pattern(2 * kChunk.count(), 6);
  End server("b", false, &service);
  End caller("a", false, &unused);
  Exchange(&caller.calls, &server.calls);
  Buffer room(service.lent.size());
  ASSERT_TRUE(caller.calls.Call({.header = "", .receive = room, .done = [](auto) {}}, Tick{}).ok());
  Exchange(&caller.calls, &server.calls);
  const auto& [id, call] = *service.calls.begin();
  ASSERT_TRUE(server.calls.Reply(id.number, {.header = "", .send = service.lent}).ok());
  size_t written = 0;
  while (written < service.lent.size()) {
    EXPECT_FALSE(call.ended);
    const auto output = server.calls.Output();
    ASSERT_FALSE(output.empty());
    if (output.data() >= service.lent.data() &&
        output.data() < service.lent.data() + service.lent.size()) {
      written += output.size();
    }
    server.calls.Written(output.size());
  }
  EXPECT_TRUE(call.ended);
}

// A peer's words go into logs, and to users.
TEST(MultiplexerTest, ThePeersWordsOfARefusalArePrintableAndShort) {
  EchoService service;
  End caller("a", true, &service);
  EchoService refusing;
  refusing.answers = false;
  End server("b", true, &refusing);
  Exchange(&caller.calls, &server.calls);
  std::string words;
  const auto call = caller.calls.Call(
      {.header = "", .done = [&](const auto& response) { words = response.error().message; }},
      Tick{});
  ASSERT_TRUE(call.ok());
  Exchange(&caller.calls, &server.calls);
  const std::string said = "no\x1b[2J\n\xff" + std::string(10'000, 'x');
  ASSERT_TRUE(server.calls.Refuse(call->number, {ErrorCode::kLimit, said}).ok());
  Exchange(&caller.calls, &server.calls);
  EXPECT_EQ(words.substr(0, 9), "no?[2J??x");
  EXPECT_LE(words.size(), 1024u);
}

TEST(MultiplexerTest, AnyFlippedBitIsNoticed) {
  const Buffer stream = CallersStream(true);
  std::mt19937_64 random(20261126);
  for (int run = 0; run < 500; ++run) {
    Buffer damaged = stream;
    damaged[random() % damaged.size()] ^= std::byte{1} << static_cast<int>(random() % 8);
    FrugalService service;
    End server("b", true, &service);
    service.calls = &server.calls;
    EXPECT_FALSE(Feed(&server.calls, damaged, 4096).ok()) << run;
    server.calls.Fail({ErrorCode::kUnavailable, "over"});
    EXPECT_EQ(service.ended, service.accepted);
  }
}

TEST(MultiplexerTest, NothingIsSentBeforeThePeersHello) {
  EchoService service;
  Multiplexer calls(ConnectionId{1}, {.self = "a", .peer = "b"}, &service, Tick{});
  calls.Written(calls.Output().size());
  ASSERT_TRUE(calls.Call({.header = "x", .done = [](auto) {}}, Tick{}).ok());
  EXPECT_TRUE(calls.Output().empty());
  EXPECT_FALSE(calls.ready());
  calls.Fail({ErrorCode::kUnavailable, "over"});
}

TEST(MultiplexerTest, APeerThatAsksAndDoesNotReadIsNotReadFrom) {
  FrugalService service;
  Multiplexer server(ConnectionId{2}, {.self = "b", .peer = ""}, &service, Tick{});
  service.calls = &server;
  EchoService unused;
  Multiplexer caller(ConnectionId{1}, {.self = "a", .peer = ""}, &unused, Tick{});
  const Buffer hello = Drain(&server);
  Buffer stream = Drain(&caller);
  ASSERT_TRUE(Feed(&caller, hello, hello.size()).ok());
  // Refusals of 36 bytes and more for each request; the test never writes them out.
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
void Seal(std::span<uint8_t> stream, bool sums) {
  constexpr size_t kHeader = 32;
  while (stream.size() >= kHeader) {
    uint32_t length = 0;
    std::memcpy(&length, stream.data(), sizeof(length));
    const size_t end = kHeader + std::min<size_t>(length, stream.size() - kHeader);
    const uint64_t payload_sum =
        sums ? XXH3_64bits(stream.data() + kHeader, end - kHeader) : uint64_t{0};
    std::memcpy(stream.data() + 16, &payload_sum, sizeof(payload_sum));
    const uint64_t header_sum = XXH3_64bits(stream.data(), 24);
    std::memcpy(stream.data() + 24, &header_sum, sizeof(header_sum));
    stream = stream.subspan(end);
  }
}

class MultiplexerFuzz : public testing::TestWithParam<bool> {
 protected:
  // `read` is given what is `valid` but for a few bytes, or its beginning.
  void Run(const Buffer& valid, const std::function<void(std::span<const std::byte>)>& read) {
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
    const auto check = [&](std::span<const uint8_t> input) {
      ipc::Input sealed(input.begin(), input.end());
      Seal(sealed, GetParam());
      read(std::as_bytes(std::span(sealed)));
    };
    ipc::Fuzz("tests/transport/corpus/frames", 10'000, generate, check);
  }
};

TEST_P(MultiplexerFuzz, HostileFramesNeverHarm) {
  Run(CallersStream(GetParam()), [](std::span<const std::byte> bytes) {
    FrugalService service;
    End server("b", GetParam(), &service);
    service.calls = &server.calls;
    (void)Feed(&server.calls, bytes, 1 + bytes.size() / 3);
    server.calls.Fail({ErrorCode::kUnavailable, "over"});
    EXPECT_EQ(service.ended, service.accepted);
  });
}

TEST_P(MultiplexerFuzz, HostileAnswersNeverHarm) {
  Run(Asking::ServersStream(GetParam()), [](std::span<const std::byte> bytes) {
    Asking asking(GetParam());
    asking.Ask();
    (void)Feed(&asking.caller.calls, bytes, 1 + bytes.size() / 3);
    asking.caller.calls.Fail({ErrorCode::kUnavailable, "over"});
    EXPECT_EQ(asking.done_calls, 3);
  });
}

INSTANTIATE_TEST_SUITE_P(All, MultiplexerFuzz, testing::Bool(), NameOf);

}  // namespace
}  // namespace ravenstore::transport
