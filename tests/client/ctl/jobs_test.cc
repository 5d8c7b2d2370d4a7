#include "client/ctl/jobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "tests/client/ctl/scripted_daemon.h"

namespace ravenstore::client::ctl {
namespace {

using core::ErrorCode;
using core::GiB;
using testing::HasSubstr;

// Remembers one command, of 4 GiB, and admits no job.
class JobsTest : public testing::Test {
 protected:
  JobsTest()
      : daemon_([this](const proto::ClientPacket& question) {
          proto::DaemonPacket answer;
          switch (question.body_case()) {
            case proto::ClientPacket::kHello: *answer.mutable_welcome() = good_.welcome; break;
            case proto::ClientPacket::kJobQuery:
              answer.mutable_job_known();
              if (question.job_query().job() == known_)
                answer.mutable_job_known()->set_running(GiB(4).count());
              break;
            case proto::ClientPacket::kListLegacy:
              answer.mutable_legacy_jobs()->add_jobs()->set_name("train");
              break;
            case proto::ClientPacket::kListJobRecords:
              answer.mutable_job_records()->add_records()->set_name("train");
              break;
            default: return Refuse(question, ErrorCode::kOutOfMemory, "it never fits");
          }
          return Answer(question, std::move(answer));
        }) {}
  Streams streams() { return {out_, err_}; }

  GoodDaemon good_;
  std::string known_;
  ScriptedDaemon daemon_;
  std::ostringstream out_;
  std::ostringstream err_;
  Common common_{.socket = daemon_.path(), .timeout = std::chrono::seconds(60)};
};

TEST_F(JobsTest, AnEstimateIsWhatTheDaemonKnowsOfTheCommand) {
  RunKey({"sh", "x"}, streams());
  known_ = out_.str().substr(0, 32);
  EXPECT_EQ(RunEstimate(common_, {"sh", "x"}, streams()), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("4.2 GiB: 4.0 GiB by running"));
  EXPECT_EQ(RunEstimate(common_, {"sh", "y"}, streams()), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr("only a Python script can be captured"));
}

TEST_F(JobsTest, WhatIsNotKnownOrNeverFitsDoesNotRun) {
  EXPECT_EQ(RunAdmit(common_, {.command = {"sh", "y"}}, streams()), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr("run it once under ravenrun"));
  EXPECT_EQ(RunAdmit(common_, {.size = "9GiB", .command = {"sh", "y"}}, streams()), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr("it never fits"));
}

TEST_F(JobsTest, JobsAndCommandsAreListed) {
  EXPECT_EQ(RunJobs(common_, streams()), kExitOk);
  EXPECT_EQ(RunEstimates(common_, "", streams()), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("train"));
  EXPECT_EQ(RunEstimates(common_, "/no/such/folder/page", streams()), kExitFailed);
}

}  // namespace
}  // namespace ravenstore::client::ctl
