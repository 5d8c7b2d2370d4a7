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

TEST(ThreadsTest, ThePoolFinishesWhatItWasGiven) {
  std::atomic<int> done{0};
  {
    WorkerPool pool("pool", 2);
    for (int i = 0; i < 1000; ++i) pool.Run([&done] { ++done; });
  }
  EXPECT_EQ(done, 1000);
}

TEST(ThreadsTest, OneWorkerKeepsTheOrder) {
  std::vector<int> order;
  {
    WorkerPool pool("pool", 1);
    for (int i = 0; i < 100; ++i) pool.Run([&order, i] { order.push_back(i); });
  }
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
}

TEST(ThreadsTest, WorkersWorkAtTheSameTime) {
  std::latch both(2);
  WorkerPool pool("pool", 2);
  for (int i = 0; i < 2; ++i) pool.Run([&both] { both.arrive_and_wait(); });
  both.wait();
}

TEST(ThreadsTest, WorkMayGiveMoreWork) {
  std::atomic<bool> done{false};
  {
    WorkerPool pool("pool", 1);
    pool.Run([&] { pool.Run([&] { done = true; }); });
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
