// What every Transport of transport.h must do.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/transport/pairs.h"
#include "tests/transport/testing.h"
#include "transport/transport.h"

namespace ravenstore::transport {
namespace {

using core::ErrorCode;
using core::MiB;

constexpr size_t kMany = 40;

size_t EntriesOf(const char* folder) {
  const auto all = std::filesystem::directory_iterator(folder);
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

class TransportConformance : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const auto why = WhyNoPair(GetParam()); !why.empty()) GTEST_SKIP() << why;
    pair_ = OpenPair(GetParam());
    const auto connection = near().Connect("far", pair_->address(), core::kNever);
    ASSERT_TRUE(connection.ok());
    connection_ = *connection;
  }

  Transport& near() { return *pair_->near(); }
  Transport& far() { return *pair_->far(); }
  EchoService& far_service() { return pair_->far_service; }

  bool Connect() {
    return pair_->Eventually(
        [&] { return !pair_->near_service.connected.empty() && !far_service().connected.empty(); });
  }
  core::Tick In(core::Duration duration) { return pair_->Now() + duration; }
  CallId Call(Request request, Outcome* outcome) {
    request.done = outcome->Keep();
    const auto call = near().Call(connection_, std::move(request));
    EXPECT_TRUE(call.ok());
    return call.ok() ? *call : CallId{};
  }
  bool Completes(const Outcome& outcome) {
    return pair_->Eventually([&] { return outcome.completed(); });
  }
  // The only call that far has.
  EchoService::Call& Served() { return far_service().calls.begin()->second; }
  bool HasBegun(size_t calls = 1) {
    return pair_->Eventually([&] {
      const auto& all = far_service().calls;
      return all.size() == calls &&
             std::ranges::all_of(all, [](const auto& call) { return call.second.checks > 0; });
    });
  }
  // One that works shows that the connection does.
  bool Echoes() {
    Outcome outcome;
    Call({.header = "still there?"}, &outcome);
    return Completes(outcome) && outcome.ok();
  }

  std::unique_ptr<TestPair> pair_;
  ConnectionId connection_{};
};

TEST_P(TransportConformance, BothEndsLearnTheOthersName) {
  ASSERT_TRUE(Connect());
  EXPECT_EQ(pair_->near_service.connected.begin()->second, "far");
  EXPECT_EQ(far_service().connected.begin()->second, "near");
}

TEST_P(TransportConformance, BulkOfEverySizeArrivesAsItWasSent) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{511}, kChunk.count() - 1, kChunk.count(),
                             kChunk.count() + 1, MiB(3).count() + 7, MiB(64).count()}) {
    const Buffer sent = Pattern(bytes, bytes);
    Buffer received(bytes);
    Outcome outcome;
    Call({.header = std::string(bytes % 100, 'h'), .send = sent, .receive = received}, &outcome);
    ASSERT_TRUE(Completes(outcome));
    ASSERT_TRUE(outcome.ok()) << Describe(outcome.error());
    EXPECT_EQ(outcome.response().header, std::string(bytes % 100, 'h'));
    EXPECT_EQ(outcome.response().bulk.count(), bytes);
    EXPECT_EQ(received, sent) << bytes << " bytes";
    const auto& served = far_service().calls.rbegin()->second;
    const int chunks = static_cast<int>((bytes + kChunk.count() - 1) / kChunk.count());
    EXPECT_EQ(served.checks, 2 * chunks) << bytes << " bytes";
    ASSERT_TRUE(served.ended);
    EXPECT_TRUE(served.ended->ok());
  }
}

TEST_P(TransportConformance, ManyCallsGoBothWaysConcurrently) {
  ASSERT_TRUE(Connect());
  const ConnectionId back = far_service().connected.begin()->first;
  std::vector<Outcome> outcomes(2 * kMany);
  std::vector<Buffer> sent;
  std::vector<Buffer> received;
  for (size_t i = 0; i < 2 * kMany; ++i) {
    sent.push_back(Pattern(i * 20'000, i));
    received.emplace_back(i * 20'000);
  }
  for (size_t i = 0; i < 2 * kMany; ++i) {
    Transport& caller = i % 2 == 0 ? near() : far();
    const auto call = caller.Call(i % 2 == 0 ? connection_ : back, {.header = std::to_string(i),
                                                                    .send = sent[i],
                                                                    .receive = received[i],
                                                                    .done = outcomes[i].Keep()});
    ASSERT_TRUE(call.ok());
  }
  ASSERT_TRUE(
      pair_->Eventually([&] { return std::ranges::all_of(outcomes, &Outcome::completed); }));
  for (size_t i = 0; i < 2 * kMany; ++i) {
    ASSERT_TRUE(outcomes[i].ok()) << i;
    EXPECT_EQ(outcomes[i].response().header, std::to_string(i));
    EXPECT_EQ(received[i], sent[i]) << i;
  }
}

TEST_P(TransportConformance, ARefusedRequestHasTheReason) {
  far_service().refuse_requests = true;
  const Buffer sent(MiB(2).count());
  Outcome outcome;
  Call({.header = "x", .send = sent}, &outcome);
  ASSERT_TRUE(Completes(outcome));
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(outcome.error().message, "no such tensor");
  far_service().refuse_requests = false;
  EXPECT_TRUE(Echoes());
}

TEST_P(TransportConformance, BulkIsRefusedInTheMiddleAndWritesNothingMore) {
  far_service().refuse_chunk = 3;
  const Buffer sent(MiB(8).count(), std::byte{7});
  Outcome outcome;
  Call({.header = "put", .send = sent}, &outcome);
  ASSERT_TRUE(Completes(outcome));
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().code, ErrorCode::kLost);
  EXPECT_EQ(outcome.error().message, "the loan expired");
  ASSERT_TRUE(Served().ended);
  EXPECT_FALSE(Served().received);
  EXPECT_TRUE(Echoes());
  EXPECT_EQ(static_cast<size_t>(std::ranges::count(Served().bulk, std::byte{7})),
            2 * kChunk.count());
}

TEST_P(TransportConformance, AnAnswersBulkIsRefusedInTheMiddle) {
  far_service().refuse_chunk = 3;
  far_service().lent = Buffer(MiB(8).count());
  Buffer received(MiB(8).count());
  Outcome outcome;
  Call({.header = "get", .receive = received}, &outcome);
  ASSERT_TRUE(Completes(outcome));
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().message, "the loan expired");
  EXPECT_TRUE(Echoes());
}

TEST_P(TransportConformance, ADeadlinePassesAtBothEnds) {
  ASSERT_TRUE(Connect());
  far_service().answers = false;
  Outcome outcome;
  const core::Tick deadline = In(std::chrono::milliseconds(100));
  Call({.header = "slow", .deadline = deadline}, &outcome);
  ASSERT_TRUE(Completes(outcome));
  EXPECT_GE(pair_->Now(), deadline);
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().code, ErrorCode::kTimedOut);
  ASSERT_TRUE(pair_->Eventually([&] { return Served().ended.has_value(); }));
  EXPECT_FALSE(Served().ended->ok());
  EXPECT_EQ(far().Reply(far_service().calls.begin()->first, {}).error().code, ErrorCode::kNotFound);
  far_service().answers = true;
  EXPECT_TRUE(Echoes());
}

TEST_P(TransportConformance, ACancelledCallsBufferIsNotTouchedAgain) {
  far_service().lent = Buffer(MiB(32).count(), std::byte{7});
  Buffer received(MiB(32).count());
  Outcome outcome;
  const CallId call = Call({.header = "get", .receive = received}, &outcome);
  ASSERT_TRUE(HasBegun());
  near().Cancel(call);
  ASSERT_TRUE(outcome.completed());
  EXPECT_EQ(outcome.error().code, ErrorCode::kWrongState);
  std::ranges::fill(received, std::byte{1});
  ASSERT_TRUE(Echoes());
  EXPECT_EQ(std::ranges::count(received, std::byte{7}), 0);
  EXPECT_TRUE(pair_->Eventually([&] { return Served().ended.has_value(); }));
  near().Cancel(call);
}

TEST_P(TransportConformance, APeerThatDiesInTheMiddleEndsAllCalls) {
  const Buffer sent(MiB(32).count());
  std::vector<Outcome> outcomes(3);
  for (Outcome& outcome : outcomes) Call({.header = "put", .send = sent}, &outcome);
  ASSERT_TRUE(HasBegun(3));
  pair_->KillFar();
  const core::Tick killed = pair_->Now();
  ASSERT_TRUE(
      pair_->Eventually([&] { return std::ranges::all_of(outcomes, &Outcome::completed); }));
  EXPECT_LT(pair_->Now() - killed, Stretched(kTestSilence / 2)) << "silence alone is too late";
  for (const Outcome& outcome : outcomes) {
    ASSERT_FALSE(outcome.ok());
    EXPECT_EQ(outcome.error().code, ErrorCode::kUnavailable);
  }
  EXPECT_TRUE(pair_->near_service.lost.contains(connection_));
  for (const auto& [id, call] : far_service().calls) EXPECT_TRUE(call.ended) << id.number;
  EXPECT_EQ(near().Call(connection_, {.header = "x"}).error().code, ErrorCode::kUnavailable);
}

TEST_P(TransportConformance, ASilentCutIsNoticedByTheCallsDeadline) {
  ASSERT_TRUE(Connect());
  pair_->Cut();
  const Buffer sent(MiB(32).count());
  Outcome outcome;
  Call({.header = "put", .send = sent, .deadline = In(std::chrono::milliseconds(200))}, &outcome);
  ASSERT_TRUE(Completes(outcome));  // of silence it would be kUnavailable
  EXPECT_EQ(outcome.error().code, ErrorCode::kTimedOut);
}

TEST_P(TransportConformance, DamagedBytesNeverComplete) {
  ASSERT_TRUE(Connect());
  pair_->Damage();
  const Buffer sent = Pattern(MiB(2).count(), 1);
  Outcome outcome;
  Call({.header = "put", .send = sent}, &outcome);
  ASSERT_TRUE(Completes(outcome));
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(Served().received);
  ASSERT_TRUE(pair_->Eventually([&] { return !far_service().lost.empty(); }));
}

TEST_P(TransportConformance, WhatIsBeyondABoundIsRefusedImmediately) {
  Outcome never;
  const auto refused = [&](Request request) {
    request.done = never.Keep();
    return near().Call(connection_, std::move(request)).error().code;
  };
  EXPECT_EQ(refused({.header = std::string(kHeaderMax.count() + 1, 'x')}),
            ErrorCode::kInvalidArgument);
  std::vector<Outcome> outcomes(kCallsMax);
  for (Outcome& outcome : outcomes) Call({.header = "x"}, &outcome);
  EXPECT_EQ(refused({.header = "one too many"}), ErrorCode::kLimit);
  ASSERT_TRUE(pair_->Eventually([&] { return std::ranges::all_of(outcomes, &Outcome::ok); }));
  EXPECT_TRUE(Echoes());
  EXPECT_FALSE(never.completed());
}

TEST_P(TransportConformance, AnAnswerBeyondTheCallersRoomIsRefused) {
  far_service().answers = false;
  Buffer room(10);
  Outcome outcome;
  Call({.header = "get", .receive = room}, &outcome);
  ASSERT_TRUE(pair_->Eventually([&] { return !far_service().calls.empty(); }));
  const CallId id = far_service().calls.begin()->first;
  const Buffer much(11);
  EXPECT_EQ(far().Reply(id, {.header = "", .send = much}).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_TRUE(far().Refuse(id, {ErrorCode::kLimit, "too much"}).ok());
  ASSERT_TRUE(Completes(outcome));
  EXPECT_EQ(outcome.error().message, "too much");
}

TEST_P(TransportConformance, ClosingABusyConnectionEndsItsCallsImmediately) {
  const Buffer sent(MiB(32).count());
  std::vector<Outcome> outcomes(3);
  for (Outcome& outcome : outcomes) Call({.header = "put", .send = sent}, &outcome);
  ASSERT_TRUE(HasBegun(3));
  near().Close(connection_);
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.completed());
    EXPECT_EQ(outcome.error().code, ErrorCode::kUnavailable);
  }
  EXPECT_TRUE(pair_->near_service.lost.empty());
  ASSERT_TRUE(pair_->Eventually([&] { return !far_service().lost.empty(); }));
  for (const auto& [id, call] : far_service().calls) EXPECT_TRUE(call.ended) << id.number;
}

TEST_P(TransportConformance, ACallbackMayCloseItsConnection) {
  ASSERT_TRUE(Connect());
  bool completed = false;
  const auto done = [&](const core::Result<Response>& result) {
    EXPECT_TRUE(result.ok());
    near().Close(connection_);
    completed = true;
  };
  ASSERT_TRUE(near().Call(connection_, {.header = "last", .done = done}).ok());
  ASSERT_TRUE(pair_->Eventually([&] { return completed && !far_service().lost.empty(); }));
}

TEST_P(TransportConformance, AnotherNodeThanTheNamedOneIsNotSpokenTo) {
  const auto wrong = near().Connect("other", pair_->address(), core::kNever);
  ASSERT_TRUE(wrong.ok());
  Outcome outcome;
  ASSERT_TRUE(near().Call(*wrong, {.header = "x", .done = outcome.Keep()}).ok());
  ASSERT_TRUE(Completes(outcome));
  EXPECT_EQ(outcome.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(pair_->near_service.lost.at(*wrong).message,
            "the peer is the node far, not other as it should be");
  EXPECT_TRUE(far_service().calls.empty());
}

TEST_P(TransportConformance, NoThreadOrDescriptorIsLeftBehind) {
  pair_.reset();
  const auto count = [] { return EntriesOf("/proc/self/fd") + EntriesOf("/proc/self/task"); };
  const size_t before = count();
  for (int round = 0; round < 3; ++round) {
    SetUp();
    ASSERT_TRUE(Echoes());
    pair_.reset();
  }
  EXPECT_EQ(count(), before);
}

INSTANTIATE_TEST_SUITE_P(All, TransportConformance, testing::ValuesIn(PairNames()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace ravenstore::transport
