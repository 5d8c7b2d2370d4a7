#include "sim/render.h"

#include <gtest/gtest.h>

#include <string>

namespace ravenstore::sim {
namespace {

RunReport Report() {
  RunReport report;
  report.trace = "a \"quoted\" </script> name";
  report.hardware = "h200-pcie5";
  report.policy = "value";
  report.budget = core::GiB(1);
  report.percent = 60;
  report.outcome.time = std::chrono::milliseconds(15);
  report.outcome.compute = std::chrono::milliseconds(10);
  report.outcome.stall = std::chrono::milliseconds(5);
  report.outcome.iteration_stall = {std::chrono::milliseconds(5)};
  report.bound = {.stall = std::chrono::milliseconds(2), .compute = std::chrono::milliseconds(10)};
  report.outcome.spans = {
      {Span::Kind::kCompute, 0, core::Tick(core::Duration(5000)), core::Tick(core::Duration(9000)),
       ~0u},
      {Span::Kind::kUp, 0, core::Tick(core::Duration(6000)), core::Tick(core::Duration(8000)), 0}};
  return report;
}

TEST(RenderTest, JsonIsOneLineWithTheFigures) {
  const std::string json = Json(Report());
  EXPECT_EQ(json.find('\n'), json.size() - 1);
  EXPECT_NE(json.find("\"stall_s\":0.005"), std::string::npos);
  EXPECT_NE(json.find("\"efficiency\":0.8"), std::string::npos);
  EXPECT_NE(json.find("a \\u0022quoted\\u0022"), std::string::npos);
}

TEST(RenderTest, FailuresAreShown) {
  RunReport report = Report();
  report.outcome.failure = "no room";
  EXPECT_NE(Json(report).find("\"failure\":\"no room\""), std::string::npos);
  EXPECT_NE(Table({report}).find("failed: no room"), std::string::npos);
}

TEST(RenderTest, PageStandsAlone) {
  Trace trace;
  trace.tensors = {{0, core::MiB(1), "</script><b>"}};
  const std::string page = Page(Report(), trace);
  // One script, which names of tensors cannot end; and nothing is fetched.
  EXPECT_EQ(page.find("</script>"), page.rfind("</script>"));
  EXPECT_EQ(page.find("http"), std::string::npos);
  EXPECT_EQ(page.find("src="), std::string::npos);
  EXPECT_NE(page.find("[0,0,0.000,4.000,-1],[2,0,1.000,3.000,0]"), std::string::npos);
}

}  // namespace
}  // namespace ravenstore::sim
