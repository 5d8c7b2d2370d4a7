#include "sim/answer.h"

#include <gtest/gtest.h>

namespace ravenstore::sim {
namespace {

using std::chrono::milliseconds;

Outcome Took(milliseconds compute, milliseconds stall) {
  Outcome outcome;
  outcome.compute = compute;
  outcome.stall = stall;
  outcome.time = compute + stall;
  return outcome;
}

RunReport Report() {
  RunReport report;
  report.trace = "job";
  report.policy = "hints";
  report.budget = core::GiB(12);
  report.percent = 60;
  report.outcome = Took(milliseconds(210), milliseconds(50));
  report.outcome.up = core::Bytes(1'000'000'000);
  report.outcome.down = core::Bytes(2'496'000'000);
  return report;
}

Hardware TenEach() {
  Hardware hardware = kHardware[0];
  hardware.up = hardware.down = 10e9;
  return hardware;
}

TEST(AnswerTest, SaysInWordsWhatTheTableSays) {
  EXPECT_EQ(
      Answer(Report(), TenEach(), {{core::GiB(18), Took(milliseconds(210), milliseconds(17))}}),
      "job with 12.0 GiB (60%), hints: 1.24 times as long (260 ms instead of 210); "
      "the link is busy 38% to the device and 96% from it; 1.08 with 18.0 GiB\n");
}

TEST(AnswerTest, ABudgetThatIsTooSmallIsAnsweredByOneThatIsNot) {
  RunReport report = Report();
  report.outcome.failure = "no room";
  Outcome failed;
  failed.failure = "no room";
  EXPECT_EQ(
      Answer(report, TenEach(),
             {{core::GiB(15), failed},
              {core::GiB(18), Took(milliseconds(100), milliseconds(10))},
              {core::GiB(20), Took(milliseconds(100), milliseconds(0))}}),
      "job with 12.0 GiB (60%), hints: does not run; 1.10 with 18.0 GiB, 1.00 with 20.0 GiB\n");
}

TEST(AnswerTest, LongTimesAreInSecondsAndSeveralClientsAreSummed) {
  RunReport report = Report();
  report.outcome = Took(milliseconds(20000), milliseconds(5000));
  report.outcome.client_stall.resize(2);
  EXPECT_NE(Answer(report, TenEach(), {})
                .find("1.25 times as long (25.0 s instead of 20.0, all clients together); the link "
                      "is busy 0% to the device and 0% from it\n"),
            std::string::npos);
}

TEST(AnswerTest, NoComputeIsNoDivisionByZero) {
  EXPECT_EQ(Slowdown(Took(milliseconds(0), milliseconds(5))), 1);
}

TEST(AnswerTest, FewLargerBudgetsUpToWhereNothingMoves) {
  EXPECT_EQ(LargerBudgets(core::GiB(12), core::GiB(18) + core::MiB(6)),
            (std::vector{core::GiB(15), core::GiB(17), core::GiB(18) + core::MiB(6)}));
  EXPECT_EQ(LargerBudgets(core::MiB(20), core::MiB(26)),
            (std::vector{core::MiB(22), core::MiB(24), core::MiB(26)}));
  EXPECT_EQ(LargerBudgets(core::MiB(24), core::MiB(26)), std::vector{core::MiB(26)});
  EXPECT_TRUE(LargerBudgets(core::MiB(26), core::MiB(26)).empty());
}

TEST(AnswerTest, AJobThatHardlyStallsIsNotOfferedMore) {
  EXPECT_FALSE(CouldGainFromMore(Took(milliseconds(100), milliseconds(1))));
  EXPECT_TRUE(CouldGainFromMore(Took(milliseconds(100), milliseconds(10))));
}

}  // namespace
}  // namespace ravenstore::sim
