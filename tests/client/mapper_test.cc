#include "client/mapper.h"

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

class MapperTest : public testing::Test {
 protected:
  void Start() {
    ASSERT_TRUE(mapper_.Start([this] { failed_.set_value(); }).ok());
  }
  // The thread is in a task until the result is set.
  std::promise<void> Hold() {
    std::promise<void> go_on;
    auto begun = std::make_shared<std::promise<void>>();
    mapper_.Post([begun, held = go_on.get_future().share()] {
      begun->set_value();
      held.wait();
    });
    begun->get_future().wait();
    return go_on;
  }
  void Drain() {
    auto done = std::make_shared<std::promise<void>>();
    mapper_.Post([done] { done->set_value(); });
    done->get_future().wait();
  }

  std::promise<void> failed_;
  Mapper mapper_;
};

TEST_F(MapperTest, TasksRunInTheirOrderOnAThreadWithoutSignals) {
  std::vector<int> ran;
  mapper_.Post([&] { ran.push_back(0); });  // before the thread is there
  Start();
  bool blocked = false;
  mapper_.Post([&] {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    blocked = sigismember(&mask, SIGINT) == 1;
  });
  for (int i = 1; i < 100; ++i) mapper_.Post([&ran, i] { ran.push_back(i); });
  Drain();
  ASSERT_EQ(ran.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(ran[static_cast<size_t>(i)], i);
  EXPECT_TRUE(blocked);
}

TEST_F(MapperTest, AnotherThreadPostsWhileATaskIsHeldUp) {
  Start();
  std::promise<void> go_on = Hold();
  bool ran = false;
  mapper_.Post([&] { ran = true; });  // returns
  go_on.set_value();
  Drain();
  EXPECT_TRUE(ran);
}

TEST_F(MapperTest, StopDropsTasksThatHaveNotBegun) {
  Start();
  std::promise<void> go_on = Hold();
  bool ran = false;
  const auto owned = std::make_shared<int>();
  mapper_.Post([&ran, owned] { ran = true; });
  EXPECT_EQ(owned.use_count(), 2);
  std::thread stopper([this] { mapper_.Stop(); });
  while (owned.use_count() > 1) std::this_thread::yield();
  go_on.set_value();
  stopper.join();
  mapper_.Post([&ran, owned] { ran = true; });
  EXPECT_EQ(owned.use_count(), 1);
  EXPECT_FALSE(ran);
}

TEST_F(MapperTest, ATaskWithoutMemoryIsReportedAndEndsTheThread) {
  Start();
  mapper_.Post([] { throw std::bad_alloc(); });
  failed_.get_future().wait();
  const auto owned = std::make_shared<int>();
  mapper_.Post([owned] { FAIL(); });
  EXPECT_EQ(owned.use_count(), 1);
  mapper_.Stop();
}

TEST_F(MapperTest, AForkedChildClosesWhatTasksOwn) {
  Start();
  std::promise<void> go_on = Hold();
  const auto descriptor = std::make_shared<ipc::UniqueFd>(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int number = descriptor->get();
  mapper_.Post([owned = std::make_shared<ipc::UniqueFd>(fcntl(number, F_DUPFD_CLOEXEC, 100))] {});
  mapper_.LockForFork();
  const pid_t child = fork();
  if (child == 0) {
    mapper_.DropInChild();
    mapper_.UnlockAfterFork();
    _exit(fcntl(100, F_GETFD) == -1 ? 0 : 1);
  }
  mapper_.UnlockAfterFork();
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_NE(fcntl(100, F_GETFD), -1);
  go_on.set_value();
}

TEST_F(MapperTest, StoppedWithoutAStart) {
  mapper_.Stop();
}

}  // namespace
}  // namespace ravenstore::client
