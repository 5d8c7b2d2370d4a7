#include "daemon/job_orders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "ipc/clock.h"
#include "tests/daemon/fake_connections.h"
#include "tests/daemon/ledger_page.h"

namespace ravenstore::daemon {
namespace {

using core::ErrorCode;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr uid_t kUser = FakeConnections::kUser;
constexpr auto kLong = std::chrono::hours(2);  // than any order

class JobOrdersTest : public testing::Test {
 protected:
  // A client of the process `pid` that takes orders.
  Caller Rank(pid_t pid, const std::string& tag = "weights", const std::string& job = "train.py",
              uid_t uid = kUser, uint32_t run = 0) {
    Caller caller = connections_.Connect(pid, uid);
    caller.client = core::ClientId{++last_client_};
    proto::ClientPacket packet;
    packet.set_request(3);
    packet.mutable_take_orders()->set_tag(tag);
    packet.mutable_take_orders()->set_job(job);
    packet.mutable_take_orders()->set_run(run);
    EXPECT_TRUE(orders_.Handle(caller, packet));
    EXPECT_TRUE(connections_.TakeOnlyPacket(caller).has_orders_taken());
    return caller;
  }
  static proto::OrderJob Sleep(const std::string& job = "train.py",
                               const std::string& tag = "weights") {
    proto::OrderJob order;
    order.set_job(job);
    order.set_tag(tag);
    return order;
  }
  void Ask(const Caller& asker, proto::OrderJob order) {
    proto::ClientPacket packet;
    packet.set_request(9);
    *packet.mutable_order_job() = std::move(order);
    EXPECT_TRUE(orders_.Handle(asker, packet));
  }
  proto::SleepOrder Ordered(const Caller& rank) {
    const proto::DaemonPacket sent = connections_.TakeOnlyPacket(rank);
    EXPECT_TRUE(sent.has_sleep_order());
    EXPECT_EQ(sent.request(), 0u) << "it answers no request";
    return sent.sleep_order();
  }
  void Done(const Caller& rank, uint64_t order, uint64_t bytes = 0) {
    proto::ClientPacket packet;
    packet.mutable_order_done()->set_order(order);
    packet.mutable_order_done()->set_bytes(bytes);
    EXPECT_TRUE(orders_.Handle(rank, packet));
  }
  void Refuse(const Caller& rank, uint64_t order, ErrorCode code, const std::string& why) {
    proto::ClientPacket packet;
    packet.mutable_order_done()->set_order(order);
    packet.mutable_order_done()->set_code(static_cast<uint32_t>(code));
    packet.mutable_order_done()->set_message(why);
    EXPECT_TRUE(orders_.Handle(rank, packet));
  }
  proto::DaemonPacket AnswerTo(const Caller& asker) {
    proto::DaemonPacket answer = connections_.TakeOnlyPacket(asker);
    EXPECT_EQ(answer.request(), 9u);
    return answer;
  }
  // The message of the order's failure.
  std::string Failure(const Caller& asker, ErrorCode code) {
    const proto::DaemonPacket answer = AnswerTo(asker);
    EXPECT_EQ(static_cast<ErrorCode>(answer.failure().code()), code) << answer.failure().message();
    return answer.failure().message();
  }
  proto::JobOrdered Success(const Caller& asker) {
    const proto::DaemonPacket answer = AnswerTo(asker);
    EXPECT_TRUE(answer.has_job_ordered()) << answer.failure().message();
    return answer.job_ordered();
  }
  void AddLegacy(uint32_t client, const std::string& mode, const std::string& name = "train.py",
                 uint32_t run = 0) {
    LegacyLedger::Newcomer job;
    job.client = client;
    job.pid = static_cast<pid_t>(client);
    job.uid = kUser;
    job.name = name;
    job.mode = mode;
    job.run = run;
    job.page = LedgerPage().Descriptor();
    RAVEN_CHECK(ledger_.Add(client, std::move(job)).ok());
  }
  bool IsPaused(uint32_t client) {
    proto::LegacyJobs jobs;
    ledger_.Fill(std::nullopt, {}, &jobs);
    for (const auto& job : jobs.jobs()) {
      if (job.client() == client) return job.paused();
    }
    return false;
  }

  FakeConnections connections_;
  LegacyLedger ledger_{core::Bytes(0), {"HOST-0"}};
  JobOrders orders_{&ledger_, &connections_};
  uint32_t last_client_ = 0;
  const Caller asker_ = connections_.Connect(100);
};

TEST_F(JobOrdersTest, AllRanksSleepAndTheAnswerComesWithTheLast) {
  const Caller first = Rank(1);
  const Caller second = Rank(2);
  const Caller cache = Rank(2, "cache");
  const Caller other = Rank(3, "weights", "other.py");
  const Caller stranger = Rank(4, "weights", "train.py", kUser + 1);
  proto::OrderJob order = Sleep();
  order.set_keeps_nothing(true);
  Ask(asker_, order);
  const proto::SleepOrder ordered = Ordered(first);
  EXPECT_FALSE(ordered.wakes());
  EXPECT_TRUE(ordered.keeps_nothing());
  EXPECT_GT(ordered.deadline_ns(), static_cast<uint64_t>(ipc::Now().time_since_epoch().count()));
  EXPECT_EQ(Ordered(second).number(), ordered.number());
  for (const Caller* rank : {&cache, &other, &stranger})
    EXPECT_TRUE(connections_.SentNothing(*rank));
  Done(first, ordered.number(), 5);
  Done(first, ordered.number(), 5);
  Done(cache, ordered.number(), 5);
  EXPECT_TRUE(connections_.SentNothing(asker_)) << "one is to come, and was not asked twice";
  Done(second, ordered.number(), 7);
  const proto::JobOrdered success = Success(asker_);
  EXPECT_EQ(success.clients(), 2u);
  EXPECT_EQ(success.bytes(), 12u);
  EXPECT_EQ(orders_.due(), core::kNever);
}

TEST_F(JobOrdersTest, WithoutATagAllOfTheJobsAreMeant) {
  const Caller weights = Rank(1);
  const Caller cache = Rank(1, "cache");
  proto::OrderJob order = Sleep("train.py", "");
  order.set_wakes(true);
  Ask(asker_, order);
  EXPECT_TRUE(Ordered(weights).wakes());
  Done(weights, 1);
  Done(cache, Ordered(cache).number());
  EXPECT_EQ(Success(asker_).clients(), 2u);
}

TEST_F(JobOrdersTest, OneThatRefusesWakesTheOthers) {
  const Caller done = Rank(1);
  const Caller refuses = Rank(2);
  const Caller slow = Rank(3);
  Ask(asker_, Sleep());
  const uint64_t number = Ordered(done).number();
  Ordered(refuses);
  Ordered(slow);
  Done(done, number);
  Refuse(refuses, number, ErrorCode::kCapturing, "a graph\x1b is captured");
  for (const Caller* rank : {&done, &refuses, &slow}) {
    const proto::SleepOrder undo = Ordered(*rank);
    EXPECT_TRUE(undo.wakes());
    EXPECT_EQ(undo.undoes(), number);
    EXPECT_EQ(undo.number(), number + 1);
  }
  Done(slow, number);  // late: it is undone by what was sent
  Done(slow, number + 1);
  EXPECT_TRUE(connections_.SentNothing(asker_));
  Done(done, number + 1);
  EXPECT_EQ(Failure(asker_, ErrorCode::kCapturing),
            "process 2 (weights): a graph? is captured; the others are as before");
  Ask(asker_, Sleep());
  EXPECT_EQ(Ordered(refuses).number(), number + 2) << "it may be ordered again";
}

TEST_F(JobOrdersTest, AWakeThatFailsPutsTheOthersToSleepAgain) {
  const Caller woken = Rank(1);
  const Caller refuses = Rank(2);
  proto::OrderJob order = Sleep();
  order.set_wakes(true);
  Ask(asker_, order);
  const uint64_t number = Ordered(woken).number();
  Ordered(refuses);
  Done(woken, number);
  Refuse(refuses, number, ErrorCode::kOutOfMemory, "no room");
  const proto::SleepOrder undo = Ordered(woken);
  EXPECT_FALSE(undo.wakes());
  Refuse(woken, undo.number(), ErrorCode::kTimedOut, "too late");
  EXPECT_EQ(Failure(asker_, ErrorCode::kOutOfMemory),
            "process 2 (weights): no room; not asleep again; process 1 (weights): too late");
}

TEST_F(JobOrdersTest, OneThatEndsWakesTheOthers) {
  const Caller done = Rank(1);
  const Caller ends = Rank(2);
  const Caller ends_later = Rank(3);
  Ask(asker_, Sleep());
  const uint64_t number = Ordered(done).number();
  Ordered(ends);
  Ordered(ends_later);
  Done(done, number);
  orders_.Forget(ends.key);
  EXPECT_TRUE(connections_.SentNothing(ends));
  EXPECT_EQ(Ordered(done).undoes(), number);
  Done(done, number + 1);
  EXPECT_TRUE(connections_.SentNothing(asker_));
  orders_.Forget(ends_later.key);
  EXPECT_THAT(Failure(asker_, ErrorCode::kLost), HasSubstr("process 2 (weights): it ended"));
}

TEST_F(JobOrdersTest, AnOnlyOneThatEndsFailsTheOrder) {
  const Caller ends = Rank(1);
  Ask(asker_, Sleep());
  orders_.Forget(ends.key);
  EXPECT_EQ(Failure(asker_, ErrorCode::kLost), "process 1 (weights): it ended");
}

TEST_F(JobOrdersTest, OneThatIsLateWakesTheOthersAndIsNotAwaited) {
  const Caller done = Rank(1);
  const Caller late = Rank(2);
  proto::OrderJob order = Sleep();
  order.set_timeout_ns(1);
  Ask(asker_, order);
  const uint64_t number = Ordered(done).number();
  Ordered(late);
  Done(done, number);
  orders_.OnTime(ipc::Now());
  EXPECT_TRUE(connections_.SentNothing(late)) << "a grace goes on";
  ASSERT_NE(orders_.due(), core::kNever);
  orders_.OnTime(orders_.due());
  EXPECT_EQ(Ordered(late).undoes(), number);
  Done(done, Ordered(done).number());
  EXPECT_THAT(Failure(asker_, ErrorCode::kTimedOut),
              HasSubstr("process 2 (weights): it did not answer in time: it has come to no"));
  Done(late, number);
  Done(late, number + 1);
  EXPECT_TRUE(connections_.SentNothing(asker_));
}

TEST_F(JobOrdersTest, ThatOneIsNotUndoneEither) {
  const Caller done = Rank(1);
  const Caller refuses = Rank(2);
  Ask(asker_, Sleep());
  const uint64_t number = Ordered(done).number();
  Ordered(refuses);
  Refuse(refuses, number, ErrorCode::kWrongState, "not now");
  Ordered(done);
  orders_.OnTime(ipc::Now() + kLong);
  EXPECT_EQ(Failure(asker_, ErrorCode::kWrongState),
            "process 2 (weights): not now; not awake again; process 1 (weights): it did not answer "
            "in time");
  EXPECT_EQ(orders_.due(), core::kNever);
}

TEST_F(JobOrdersTest, AJobIsFoundByItsNameThenItsRunThenANumberOfItsProcess) {
  const Caller named = Rank(1, "weights", "4711");
  const Caller run = Rank(2, "weights", "train.py", kUser, 4711);
  const Caller tag = Rank(3, "cache", "serve.py");
  const Caller same_process = Rank(3, "weights", "serve.py");
  Ask(asker_, Sleep("4711"));
  Done(named, Ordered(named).number());
  EXPECT_EQ(Success(asker_).clients(), 1u);
  orders_.Forget(named.key);
  Ask(asker_, Sleep("4711"));
  Done(run, Ordered(run).number());
  EXPECT_EQ(Success(asker_).clients(), 1u);
  Ask(asker_, Sleep(std::to_string(core::ToInt(tag.client))));
  Done(same_process, Ordered(same_process).number());
  EXPECT_EQ(Success(asker_).clients(), 1u);
}

TEST_F(JobOrdersTest, AStrangersJobIsNotThere) {
  Rank(1, "weights", "secret.py", kUser + 1);
  Rank(2, "cache", "mine.py");
  Ask(asker_, Sleep("secret.py"));
  EXPECT_EQ(Failure(asker_, ErrorCode::kNotFound),
            "no job 'secret.py' has the tag 'weights'; there are: 'mine.py' with 'cache'");
  Ask(asker_, Sleep("mine.py"));
  Failure(asker_, ErrorCode::kNotFound);
  proto::OrderJob order = Sleep("secret.py");
  order.set_uid(kUser + 1);
  Ask(asker_, order);
  Failure(asker_, ErrorCode::kNotFound);
}

TEST_F(JobOrdersTest, AnAdministratorSaysWhoseJobIfSeveralHaveOne) {
  const Caller root = connections_.Connect(5, FakeConnections::kRoot);
  const Caller rank = Rank(1);
  const Caller other = Rank(2, "weights", "train.py", kUser + 1);
  Ask(root, Sleep());
  EXPECT_THAT(Failure(root, ErrorCode::kInvalidArgument), HasSubstr("2 users have a job"));
  proto::OrderJob order = Sleep();
  order.set_uid(kUser + 1);
  Ask(root, order);
  EXPECT_TRUE(connections_.SentNothing(rank));
  Done(other, Ordered(other).number());
  EXPECT_EQ(Success(root).clients(), 1u);
}

TEST_F(JobOrdersTest, WhileOneIsUnderWayAnotherIsRefused) {
  const Caller rank = Rank(1);
  Ask(asker_, Sleep());
  const uint64_t number = Ordered(rank).number();
  const Caller other = connections_.Connect(6);
  Ask(other, Sleep());
  EXPECT_THAT(Failure(other, ErrorCode::kWrongState), HasSubstr("already"));
  Rank(1, "cache");
  Done(rank, number);
  Success(asker_);
}

TEST_F(JobOrdersTest, OrdersAndClientsOfOneHaveABound) {
  for (size_t i = 0; i < JobOrders::kOrdersMost; ++i) {
    Rank(static_cast<pid_t>(i + 1), "weights", "job " + std::to_string(i));
    Ask(asker_, Sleep("job " + std::to_string(i)));
  }
  Rank(50, "weights", "last");
  Ask(asker_, Sleep("last"));
  Failure(asker_, ErrorCode::kLimit);
  orders_.OnTime(ipc::Now() + kLong);
  orders_.OnTime(ipc::Now() + kLong + kLong);
  for (size_t i = 0; i <= JobOrders::kClientsMost; ++i) Rank(60, "weights", "large");
  const Caller other = connections_.Connect(7);
  Ask(other, Sleep("large"));
  EXPECT_THAT(Failure(other, ErrorCode::kLimit), HasSubstr("257 clients"));
}

TEST_F(JobOrdersTest, ElasticJobsArePausedOnceAllClientsSleep) {
  AddLegacy(51, "elastic");
  AddLegacy(52, "account");
  AddLegacy(53, "elastic", "other.py", 9);
  const Caller rank = Rank(1);
  Ask(asker_, Sleep());
  Done(rank, Ordered(rank).number());
  EXPECT_EQ(Success(asker_).elastic_jobs_size(), 0) << "they have no tags";
  Ask(asker_, Sleep("train.py", ""));
  uint64_t number = Ordered(rank).number();
  EXPECT_FALSE(IsPaused(51));
  Refuse(rank, number, ErrorCode::kWrongState, "not now");
  Ordered(rank);
  Failure(asker_, ErrorCode::kWrongState);
  EXPECT_FALSE(IsPaused(51));
  Ask(asker_, Sleep("train.py", ""));
  Done(rank, Ordered(rank).number());
  EXPECT_THAT(Success(asker_).elastic_jobs(), ElementsAre(51));
  EXPECT_TRUE(IsPaused(51));
  EXPECT_FALSE(IsPaused(52) || IsPaused(53));
  proto::OrderJob order = Sleep("51", "");
  order.set_wakes(true);
  Ask(asker_, order);
  EXPECT_THAT(Success(asker_).elastic_jobs(), ElementsAre(51));
  EXPECT_FALSE(IsPaused(51));
  Ask(asker_, Sleep("9", ""));
  Success(asker_);
  EXPECT_TRUE(IsPaused(53)) << "by its run";
  Ask(asker_, Sleep("52", ""));
  EXPECT_THAT(Failure(asker_, ErrorCode::kInvalidArgument),
              HasSubstr("job 52 runs in mode account"));
}

TEST_F(JobOrdersTest, MessagesThatMakeNoSenseAreRefused) {
  proto::ClientPacket packet;
  packet.set_request(9);
  packet.mutable_take_orders()->set_job("x");
  EXPECT_TRUE(orders_.Handle(asker_, packet));
  Failure(asker_, ErrorCode::kWrongState);
  Caller client = connections_.Connect(1);
  client.client = core::ClientId{70};
  packet.mutable_take_orders()->set_job(std::string(256, 'x'));
  EXPECT_TRUE(orders_.Handle(client, packet));
  EXPECT_EQ(connections_.Refused(client), ErrorCode::kInvalidArgument);
  Ask(asker_, Sleep(""));
  Failure(asker_, ErrorCode::kInvalidArgument);
  Done(asker_, 0);
  Done(asker_, 7);
  EXPECT_TRUE(connections_.SentNothing(asker_));
  packet.mutable_trim();
  EXPECT_FALSE(orders_.Handle(client, packet));
}

}  // namespace
}  // namespace ravenstore::daemon
