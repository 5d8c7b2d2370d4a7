#include "client/examples/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ravenstore::examples {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Trial Finished(const char* name, std::vector<float> losses) {
  Trial run;
  run.name = name;
  run.result.finished = true;
  run.result.losses = std::move(losses);
  run.result.step_seconds = 0.5;
  return run;
}

Trial OutOfMemory(const char* name) {
  Trial run;
  run.name = name;
  run.result.out_of_memory = true;
  run.result.failed_step = 1;
  run.result.failure = "no \"room\"";
  return run;
}

TEST(ReportTest, LossesThatDifferInOneBitAreComplainedOf) {
  const std::vector<Trial> runs = {Finished("plain", {1.0f, 0.5f}), Finished("same", {1.0f, 0.5f}),
                                   Finished("other", {1.0f, 0.50000006f})};
  EXPECT_THAT(Failures(runs), ElementsAre(HasSubstr("other: its losses or weights differ")));
  EXPECT_THAT(Report("title", runs), HasSubstr("bit for bit        NO"));
}

TEST(ReportTest, WeightsThatDifferAreComplainedOf) {
  std::vector<Trial> runs = {Finished("plain", {1.0f}), Finished("other", {1.0f})};
  runs[1].result.weights = 1;
  EXPECT_THAT(Failures(runs), ElementsAre(HasSubstr("other")));
}

TEST(ReportTest, ARunThatMustFinishAndDoesNotIsComplainedOf) {
  std::vector<Trial> runs = {Finished("plain", {1.0f}), OutOfMemory("limited")};
  EXPECT_THAT(Failures(runs), ElementsAre("limited: out of memory at step 1: no \"room\""));
  runs[1].must_finish = false;
  EXPECT_THAT(Failures(runs), IsEmpty());
  runs[1].result.out_of_memory = false;  // it failed, but not of what it was to fail of
  EXPECT_THAT(Failures(runs), ElementsAre(HasSubstr("limited: failed at step 1")));
}

TEST(ReportTest, JsonIsOneLineWithItsTextsQuoted) {
  const Trial plain = Finished("plain", {1.25f, 0.5f});
  const std::string json = Json(plain, plain, "simulated device");
  EXPECT_THAT(json, HasSubstr("\"device\": \"simulated device\""));
  EXPECT_THAT(json, HasSubstr("\"losses\": [1.25, 0.5]"));
  EXPECT_THAT(json, HasSubstr("\"same_bits_as_plain\": true"));
  EXPECT_THAT(Json(OutOfMemory("x"), plain, "cuda"), HasSubstr("\"failure\": \"no \\\"room\\\"\""));
  EXPECT_EQ(json.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace ravenstore::examples
