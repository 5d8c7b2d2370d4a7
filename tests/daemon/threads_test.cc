#include "daemon/threads.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <functional>
#include <latch>
#include <stdexcept>
#include <utility>
#include <vector>

namespace ravenstore::daemon {
namespace {

constexpr core::TenantId kMine{1};
constexpr core::TenantId kYours{2};

TEST(ThreadsTest, ThePoolFinishesWhatItWasGiven) {
  std::atomic<int> done{0};
  {
    WorkerPool pool("pool", 2);
    for (int i = 0; i < 1000; ++i) pool.Run(kMine, [&done] { ++done; });
  }
  EXPECT_EQ(done, 1000);
}

TEST(ThreadsTest, OneWorkerKeepsTheOrder) {
  std::vector<int> order;
  {
    WorkerPool pool("pool", 1);
    for (int i = 0; i < 100; ++i) pool.Run(kMine, [&order, i] { order.push_back(i); });
  }
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
}

TEST(ThreadsTest, WhatIsToRunFirstRunsBeforeTheOwnersOtherWork) {
  std::vector<int> order;
  {
    WorkerPool pool("pool", 1);
    std::latch given(1);
    pool.Run(kMine, [&given] { given.wait(); });
    pool.Run(kMine, [&order] { order.push_back(2); });
    for (int i = 0; i < 2; ++i) pool.RunFirst(kMine, [&order, i] { order.push_back(i); });
    given.count_down();
  }
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
}

TEST(ThreadsTest, WorkersWorkAtTheSameTime) {
  std::latch both(2);
  WorkerPool pool("pool", 3);
  for (int i = 0; i < 2; ++i) pool.Run(kMine, [&both] { both.arrive_and_wait(); });
  both.wait();
}

TEST(ThreadsTest, OneOwnersWorkLeavesAWorkerToOthers) {
  std::latch yours(1);
  WorkerPool pool("pool", 3);
  // These end only once another's job was done.
  for (int i = 0; i < 8; ++i) pool.Run(kMine, [&yours] { yours.wait(); });
  pool.Run(kYours, [&yours] { yours.count_down(); });
  yours.wait();
}

TEST(ThreadsTest, OwnersAreServedInTurn) {
  std::vector<int> order;
  {
    WorkerPool pool("pool", 1);
    std::latch given(1);
    pool.Run(kMine, [&given] { given.wait(); });
    for (int i = 0; i < 3; ++i) pool.Run(kMine, [&order, i] { order.push_back(i); });
    for (int i = 0; i < 3; ++i) pool.Run(kYours, [&order, i] { order.push_back(10 + i); });
    given.count_down();
  }
  EXPECT_EQ(order, (std::vector<int>{10, 0, 11, 1, 12, 2}));
}

TEST(ThreadsTest, ThePoolFinishesMoreOfOneOwnerThanItRunsConcurrently) {
  std::atomic<int> done{0};
  {
    WorkerPool pool("pool", 2);
    std::latch given(1);
    pool.Run(kMine, [&given] { given.wait(); });
    for (int i = 0; i < 100; ++i) pool.Run(kMine, [&done] { ++done; });
    given.count_down();
  }
  EXPECT_EQ(done, 100);
}

TEST(ThreadsTest, WorkMayGiveMoreWork) {
  std::atomic<bool> done{false};
  {
    WorkerPool pool("pool", 1);
    pool.Run(kMine, [&] { pool.Run(kMine, [&] { done = true; }); });
  }
  EXPECT_TRUE(done);
}

TEST(ThreadsTest, ThreadsCarryTheirNames) {
  char name[16] = {};
  const std::atomic<bool> ending{true};
  Supervise("a-name-of-more-than-15-bytes", ending, [&] {
    pthread_getname_np(pthread_self(), name, sizeof(name));
  }).join();
  EXPECT_STREQ(name, "a-name-of-more-");
}

TEST(ThreadsTest, AThreadThatIsExpectedToEndMayEnd) {
  std::atomic<bool> ending{false};
  Supervise("thread", ending, [&] { ending = true; }).join();
}

class SuperviseDeathTest : public testing::Test {
 protected:
  SuperviseDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  static void Run(std::function<void()> body) {
    spdlog::set_default_logger(spdlog::stderr_color_mt("death"));
    const std::atomic<bool> ending{false};
    Supervise("raven-loop", ending, std::move(body)).join();
  }
};

TEST_F(SuperviseDeathTest, AThreadThatReturnsEndsTheDaemonInWords) {
  EXPECT_DEATH(Run([] {}), "raven-loop ended by itself");
}

TEST_F(SuperviseDeathTest, AThreadThatThrowsEndsTheDaemonInWords) {
  EXPECT_DEATH(Run([] { throw std::runtime_error("a broken pipe"); }),
               "raven-loop threw: a broken pipe");
}

TEST_F(SuperviseDeathTest, AThreadThatThrowsWhileEndingEndsTheDaemonAsWell) {
  EXPECT_DEATH(
      {
        spdlog::set_default_logger(spdlog::stderr_color_mt("death"));
        const std::atomic<bool> ending{true};
        Supervise("raven-loop", ending, [] { throw std::runtime_error("late"); }).join();
      },
      "raven-loop threw: late");
}

}  // namespace
}  // namespace ravenstore::daemon
