#include "core/check.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

namespace {

TEST(CheckTest, EvaluatesItsConditionOnce) {
  int evaluated = 0;
  RAVEN_CHECK(++evaluated == 1);
  EXPECT_EQ(evaluated, 1);
}

TEST(CheckDeathTest, SaysWhatBrokeAndWhere) {
  const int apples = 2;
  EXPECT_DEATH(RAVEN_CHECK(apples == 3), "apples == 3.*|check_test");
}

// Standard error is a full pipe.
void BreakUnread() {
  int pipe[2];
  if (::pipe2(pipe, O_NONBLOCK) != 0) return;
  while (::write(pipe[1], "x", 1) > 0) {
  }
  ::fcntl(pipe[1], F_SETFL, 0);
  ::dup2(pipe[1], STDERR_FILENO);
  ::alarm(20);
  RAVEN_CHECK(!"nobody reads this");
}

TEST(CheckDeathTest, DoesNotWaitForAReaderThatDoesNotRead) {
  EXPECT_EXIT(BreakUnread(), testing::KilledBySignal(SIGABRT), "");
}

}  // namespace
