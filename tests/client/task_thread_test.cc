#include "client/task_thread.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <new>
#include <vector>

#include "ipc/unique_fd.h"

namespace ravenstore::client {
namespace {

class TaskThreadTest : public testing::Test {
 protected:
  // The thread is in a task until the result is set.
  std::promise<void> Hold() {
    std::promise<void> go_on;
    auto begun = std::make_shared<std::promise<void>>();
    thread_.Post([begun, held = go_on.get_future().share()] {
      begun->set_value();
      held.wait();
    });
    begun->get_future().wait();
    return go_on;
  }
  void Drain() {
    auto done = std::make_shared<std::promise<void>>();
    thread_.Post([done] { done->set_value(); });
    done->get_future().wait();
  }

  std::promise<void> failed_;
  TaskThread thread_{"raven-test", [this] { failed_.set_value(); }};
};

TEST_F(TaskThreadTest, TasksRunInTheirOrderOnAThreadWithoutSignals) {
  std::vector<int> ran;
  bool blocked = false;
  thread_.Post([&] {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    blocked = sigismember(&mask, SIGINT) == 1;
  });
  for (int i = 0; i < 100; ++i) thread_.Post([&ran, i] { ran.push_back(i); });
  Drain();
  ASSERT_EQ(ran.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(ran[static_cast<size_t>(i)], i);
  EXPECT_TRUE(blocked);
}

TEST_F(TaskThreadTest, AnotherThreadPostsWhileATaskIsHeldUp) {
  std::promise<void> go_on = Hold();
  bool ran = false;
  thread_.Post([&] { ran = true; });  // returns
  go_on.set_value();
  Drain();
  EXPECT_TRUE(ran);
}

TEST_F(TaskThreadTest, StopDropsTasksThatHaveNotBegun) {
  std::promise<void> go_on = Hold();
  bool ran = false;
  const auto owned = std::make_shared<int>();
  thread_.Post([&ran, owned] { ran = true; });
  EXPECT_EQ(owned.use_count(), 2);
  std::thread stopper([this] { thread_.Stop(); });
  while (owned.use_count() > 1) std::this_thread::yield();
  go_on.set_value();
  stopper.join();
  thread_.Post([&ran, owned] { ran = true; });
  EXPECT_EQ(owned.use_count(), 1);
  EXPECT_FALSE(ran);
}

TEST_F(TaskThreadTest, ATaskWithoutMemoryIsReportedAndEndsTheThread) {
  thread_.Post([] { throw std::bad_alloc(); });
  failed_.get_future().wait();
  const auto owned = std::make_shared<int>();
  thread_.Post([owned] { FAIL(); });
  EXPECT_EQ(owned.use_count(), 1);
  thread_.Stop();
}

TEST_F(TaskThreadTest, AForkedChildClosesWhatTasksOwn) {
  std::promise<void> go_on = Hold();
  const auto descriptor = std::make_shared<ipc::UniqueFd>(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int number = descriptor->get();
  thread_.Post([owned = std::make_shared<ipc::UniqueFd>(fcntl(number, F_DUPFD_CLOEXEC, 100))] {});
  thread_.LockForFork();
  const pid_t child = fork();
  if (child == 0) {
    thread_.DropInChild();
    thread_.UnlockAfterFork();
    _exit(fcntl(100, F_GETFD) == -1 ? 0 : 1);
  }
  thread_.UnlockAfterFork();
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_NE(fcntl(100, F_GETFD), -1);
  go_on.set_value();
}

TEST_F(TaskThreadTest, StoppedWithoutATask) {
  thread_.Stop();
}

}  // namespace
}  // namespace ravenstore::client
