#include "ipc/spin.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "core/check.h"
#include "ipc/clock.h"

namespace ravenstore::ipc {
namespace {

// Pauses until that answers `wanted`; false when it never did.
bool Answers(Spinner* spinner, bool wanted) {
  const core::Tick deadline = Now() + std::chrono::seconds(20);
  while (spinner->Pause() != wanted) {
    if (Now() >= deadline) return false;
  }
  return true;
}

// Every thread of the test is on one core.
class SpinTest : public testing::Test {
 protected:
  SpinTest() {
    RAVEN_CHECK(::sched_getaffinity(0, sizeof(before_), &before_) == 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(::sched_getcpu(), &one);
    RAVEN_CHECK(::sched_setaffinity(0, sizeof(one), &one) == 0);
  }
  ~SpinTest() override { ::sched_setaffinity(0, sizeof(before_), &before_); }

  // Calls `body` while a thread computes on the core.
  void WithAThirdSpinner(const std::function<void()>& body) {
    std::atomic<bool> ends{false};
    std::thread third([&ends] {
      while (!ends.load(std::memory_order_relaxed)) {
      }
    });
    body();
    ends.store(true);
    third.join();
  }

 private:
  cpu_set_t before_;
};

TEST_F(SpinTest, TheCoresThatMayBeUsedAreCounted) {
  EXPECT_EQ(UsableCores(), 1);
}

TEST_F(SpinTest, AThirdThatWantsTheCoreEndsTheSpinningUntilItLeaves) {
  Spinner spinner;
  WithAThirdSpinner([&] { EXPECT_TRUE(Answers(&spinner, false)); });
  EXPECT_TRUE(Answers(&spinner, true));
}

TEST_F(SpinTest, WithManyCoresNoThreadIsYieldedTo) {
  Spinner spinner(16);
  WithAThirdSpinner([&] {
    for (int i = 0; i < 1000; ++i) ASSERT_TRUE(spinner.Pause());
  });
}

}  // namespace
}  // namespace ravenstore::ipc
