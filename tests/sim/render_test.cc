#include "sim/render.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/printable.h"

namespace ravenstore::sim {
namespace {

RunReport Report() {
  RunReport report;
  report.trace = "a \"quoted\" </script> name";
  report.hardware = "h200-pcie5";
  report.policy = "hints";
  report.budget = core::GiB(1);
  report.percent = 60;
  report.outcome.time = std::chrono::milliseconds(15);
  report.outcome.compute = std::chrono::milliseconds(10);
  report.outcome.stall = std::chrono::milliseconds(5);
  report.outcome.iteration_stall = {std::chrono::milliseconds(5)};
  report.bound = {.stall = std::chrono::milliseconds(2), .compute = std::chrono::milliseconds(10)};
  report.outcome.spans = {
      {Span::Kind::kCompute, 0, core::Duration(5000), core::Duration(9000), ~0u},
      {Span::Kind::kUp, 0, core::Duration(6000), core::Duration(8000), 0}};
  return report;
}

TEST(RenderTest, JsonIsOneLineWithTheFigures) {
  const std::string json = Json(Report());
  EXPECT_EQ(json.find('\n'), json.size() - 1);
  EXPECT_NE(json.find("\"stall_s\":0.005"), std::string::npos);
  EXPECT_NE(json.find("\"efficiency\":0.8"), std::string::npos);
  EXPECT_NE(json.find("a \\\"quoted\\\" \\u003c/script>"), std::string::npos);
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
  EXPECT_NE(page.find("[0,0,5.000,9.000,-1],[2,0,6.000,8.000,0]"), std::string::npos);
}

TEST(RenderTest, PageShowsIterationsAndMemoryOverTime) {
  RunReport report = Report();
  report.outcome.steps = {
      {0, core::Duration(5000)}, {1, core::Duration(6000)}, {0, core::Duration(7500)}};
  report.outcome.memory = {{core::Duration(4000), core::MiB(2), core::Bytes(0)},
                           {core::Duration(6000), core::MiB(2), core::KiB(4)}};
  Trace trace;
  trace.clients = 2;
  const std::string page = Page(report, trace);
  // Each client's iterations count from 1.
  EXPECT_NE(page.find("steps=[[5.000,0,1],[6.000,1,1],[7.500,0,2],]"), std::string::npos);
  EXPECT_NE(page.find("memory=[[4.000,2097152,0],[6.000,2097152,4096],]"), std::string::npos);
  EXPECT_NE(page.find("budget=1073741824"), std::string::npos);
}

TEST(RenderTest, PageLabelsStayInsideAndCountClientsFromOne) {
  const std::string page = Page(Report(), Trace());
  EXPECT_NE(page.find(R"(i == ticks ? "right")"), std::string::npos);
  EXPECT_NE(page.find(R"(for (let c = 1; c <= clients; c++) lanes.push("client " + c))"),
            std::string::npos);
}

TEST(RenderTest, ListsSayWhatJobsAreAndWhichHardwareIsNominal) {
  EXPECT_NE(TableOfJobs({{"job", "training, batch 8", core::GiB(2)}})
                .find("job    2.0 GiB  training, batch 8"),
            std::string::npos);
  const std::string hardware = TableOfHardware();
  EXPECT_NE(hardware.find("h200-pcie5       139.0 GiB            55.0          55.0  measured"),
            std::string::npos)
      << hardware;
  EXPECT_NE(hardware.find("t4-pcie3          16.0 GiB            12.5          12.5  nominal"),
            std::string::npos)
      << hardware;
}

TEST(RenderTest, LongAndStrangeNamesDoNotBreakTheTable) {
  RunReport report = Report();
  RunReport other = Report();
  report.trace = "\x1b[2J\u202e" + std::string(300, 'n');
  other.trace = "short";
  report.budget = core::GiB(2);
  const std::string text = Table({report, other});
  std::vector<size_t> widths;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    widths.push_back(core::DisplayWidth(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  ASSERT_EQ(widths.size(), 3u);
  EXPECT_EQ(widths[0], widths[1]);
  EXPECT_EQ(widths[1], widths[2]);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.find("\u202e"), std::string::npos);
  EXPECT_NE(Json(report).find(std::string(300, 'n')), std::string::npos) << "whole in JSON";
}

TEST(RenderTest, BoundsAreATableOrJson) {
  Trace trace;
  trace.name = "t";
  const BoundReport report = {
      {60, core::GiB(1)}, {.stall = std::chrono::milliseconds(2)}, std::nullopt};
  EXPECT_NE(TableOfBounds(trace, {report}).find("t         60%  1.0 GiB"), std::string::npos);
  EXPECT_NE(JsonOfBound(trace, report).find("\"bound_s\":0.002}"), std::string::npos);
  EXPECT_EQ(TableOfBounds(trace, {report}).find("do not name"), std::string::npos);
  EXPECT_FALSE(report.Loose().has_value()) << "nobody got through";
  BoundReport known = report;
  known.bound.compute = std::chrono::milliseconds(8);
  known.known = std::chrono::milliseconds(3);
  EXPECT_DOUBLE_EQ(known.Loose().value(), 1.1);
  EXPECT_NE(TableOfBounds(trace, {known}).find("3.00        1.100"), std::string::npos)
      << TableOfBounds(trace, {known});
  EXPECT_NE(JsonOfBound(trace, known).find("\"known_s\":0.003}"), std::string::npos);
  EXPECT_NE(JsonOfBound(trace, report).find("\"unknown_calls\":[],"), std::string::npos);
  Trace opaque = trace;
  opaque.calls = {"", "a\x1b[2J\"b"};
  opaque.ops.push_back({.kind = OpKind::kCompute, .call = 1, .unknown = true});
  opaque.ops.push_back({.kind = OpKind::kCompute, .unknown = true});
  const std::string text = TableOfBounds(opaque, {report});
  EXPECT_NE(text.find("  1 x a?[2J\"b\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  1 x calls without a name\n"), std::string::npos) << text;
  const std::string json = JsonOfBound(opaque, report);
  EXPECT_NE(json.find("[2J\\\"b\",\"calls\":1}"), std::string::npos) << json;
}

}  // namespace
}  // namespace ravenstore::sim
