#include "client/ctl/render_estimates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/types.h"

namespace ravenstore::client::ctl {
namespace {

using core::GiB;
using testing::HasSubstr;
using testing::Not;

void Fill(proto::JobEstimate* estimate) {
  estimate->set_source("history");
  estimate->set_bytes(GiB(10).count());
  estimate->set_reserved(GiB(11).count());
  estimate->set_actual(GiB(8).count());
}

std::vector<proto::LegacyJob> Jobs() {
  std::vector<proto::LegacyJob> jobs(2);
  jobs[0].set_client(3);
  jobs[0].set_pid(100);
  jobs[0].set_name("python3");
  jobs[0].set_peak(GiB(8).count());
  Fill(jobs[0].mutable_estimate());
  jobs[1].set_pid(101);
  jobs[1].set_name("train");
  jobs[1].set_waiting(1);
  jobs[1].set_waits_for("for memory");
  return jobs;
}

std::vector<proto::JobRecord> Records() {
  std::vector<proto::JobRecord> records(1);
  records[0].set_job("ab");
  records[0].set_name("<b>");
  records[0].set_runs(2);
  records[0].set_peak(GiB(9).count());
  records[0].set_last(GiB(8).count());
  records[0].set_seen_s(1000);
  Fill(records[0].add_estimates());
  return records;
}

TEST(RenderEstimatesTest, JobsShowWhatWasExpectedAndWhatTheyTook) {
  EXPECT_EQ(JobsText(Jobs(), 120),
            "JOB  PID  NAME     SOURCE   EXPECTED  RESERVED     TOOK  ERROR  STATE\n"
            "  3  100  python3  history  10.0 GiB  11.0 GiB  8.0 GiB   +25%  runs\n"
            "  -  101  train    -               -         -        -      -  "
            "waits as number 1: for memory\n");
  EXPECT_EQ(JobsText({}), "no job runs under ravenrun\n");
  EXPECT_THAT(JobsJson(Jobs()),
              HasSubstr("\"estimate\":{\"source\":\"history\",\"bytes\":10737418240,"
                        "\"reserved\":11811160064,\"actual\":8589934592,\"error\":0.25}"));
}

TEST(RenderEstimatesTest, CommandsShowTheirRunsAndHowRightEachSourceWas) {
  EXPECT_EQ(EstimatesText(Records(), 1060, 120),
            "NAME  RUNS  LARGEST     LAST         AGO  EXPECTED\n"
            "<b>      2  9.0 GiB  8.0 GiB  1 min 00 s  history 10.0 GiB (+25%)\n"
            "\n"
            "SOURCE   ESTIMATES  MEAN ERROR  RESERVED/USED  UNDERESTIMATES\n"
            "history          1       25.0%           1.38            0.0%\n");
  EXPECT_EQ(EstimatesText({}, 0), "no command ran under ravenrun yet\n");
  EXPECT_THAT(EstimatesJson(Records()),
              HasSubstr("\"sources\":[{\"source\":\"history\",\"estimates\":1,"
                        "\"underestimates\":0,\"mean_error\":0.25,\"reserved_over_used\":1.375}]"));
}

TEST(RenderEstimatesTest, ThePageHasAPointForEachEstimateAndNothingOfOthersMarkup) {
  const std::string page = EstimatesHtml(Records());
  // The axes reach from 8 GiB, which the job took, to 16; 10 of them were expected.
  EXPECT_THAT(page, HasSubstr(">8.0 GiB</text>"));
  EXPECT_THAT(page, HasSubstr(">16.0 GiB</text>"));
  EXPECT_THAT(page, HasSubstr("<circle cx=\"60.0\" cy=\"412.6\""));
  EXPECT_THAT(page, HasSubstr("<title>&lt;b&gt;: expected 10.0 GiB, took 8.0 GiB</title>"));
  EXPECT_THAT(page, Not(HasSubstr("<b>")));
  EXPECT_THAT(page, Not(HasSubstr("http-equiv")));
  EXPECT_THAT(EstimatesHtml({}), HasSubstr("No job was admitted by an estimate yet"));
}

}  // namespace
}  // namespace ravenstore::client::ctl
