#include "daemon/job_history.h"

#include <gtest/gtest.h>

#include <string>

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::ErrorCode;
using core::GiB;
using core::MiB;

constexpr uid_t kUser = 7;

std::string Key(uint64_t number) {
  std::string digits = std::to_string(number);
  return std::string(32 - digits.size(), '0') + digits;
}

class JobHistoryTest : public testing::Test {
 protected:
  void Ran(uint64_t job, uint32_t run, Bytes peak, uid_t uid = kUser) {
    history_.Add(Process(job, run, peak, uid));
  }
  JobHistory::Process Process(uint64_t job, uint32_t run, Bytes peak, uid_t uid = kUser) {
    return {.uid = uid,
            .job = Key(job),
            .run = run,
            .name = "python3",
            .peak = peak,
            .seen = std::chrono::system_clock::time_point(std::chrono::seconds(++now_))};
  }
  Bytes PeakOf(uint64_t job, uid_t uid = kUser) const {
    const proto::JobRecord* record = history_.Find(uid, Key(job), "");
    return Bytes(record == nullptr ? 0 : record->peak());
  }

  JobHistory history_;
  int64_t now_ = 0;
};

TEST_F(JobHistoryTest, TheLargestPeakOfSeveralRunsCountsAndThatTheyVaryIsKnown) {
  Ran(1, 10, GiB(4));
  EXPECT_FALSE(JobHistory::Varies(*history_.Find(kUser, Key(1), "")));
  Ran(1, 11, GiB(6));
  Ran(1, 12, GiB(5));
  const proto::JobRecord& record = *history_.Find(kUser, Key(1), "");
  EXPECT_EQ(Bytes(record.peak()), GiB(6));
  EXPECT_EQ(Bytes(record.last()), GiB(5));
  EXPECT_EQ(Bytes(record.least()), GiB(4));
  EXPECT_EQ(record.runs(), 3u);
  EXPECT_EQ(record.seen_s(), 3u);
  EXPECT_TRUE(JobHistory::Varies(record));
}

TEST_F(JobHistoryTest, TheProcessesOfOneRunAreOneRunOfTheLargest) {
  Ran(1, 10, GiB(4));
  Ran(1, 10, MiB(300));
  const proto::JobRecord& record = *history_.Find(kUser, Key(1), "");
  EXPECT_EQ(record.runs(), 1u);
  EXPECT_EQ(Bytes(record.last()), GiB(4));
  EXPECT_FALSE(JobHistory::Varies(record));
}

TEST_F(JobHistoryTest, AProcessThatTookNothingSaysNothing) {
  Ran(1, 10, Bytes{0});
  EXPECT_EQ(history_.size(), 0u);
  EXPECT_EQ(history_.version(), 0u);
}

TEST_F(JobHistoryTest, AUserKnowsItsOwnAlone) {
  Ran(1, 10, GiB(4));
  EXPECT_EQ(history_.Find(kUser + 1, Key(1), ""), nullptr);
  proto::JobRecords seen;
  history_.Fill(kUser + 1, {}, &seen);
  EXPECT_EQ(seen.records_size(), 0);
  history_.Fill(kUser, {}, &seen);
  EXPECT_EQ(seen.records_size(), 1);
}

TEST_F(JobHistoryTest, AModelIsKnownUnderAnotherCommandOfItsUser) {
  for (const auto& [job, peak] : {std::pair{1, GiB(3)}, std::pair{2, GiB(5)}}) {
    JobHistory::Process process = Process(static_cast<uint64_t>(job), 1, peak);
    process.model = Key(99);
    history_.Add(process);
  }
  ASSERT_NE(history_.Find(kUser, Key(3), Key(99)), nullptr);
  EXPECT_EQ(Bytes(history_.Find(kUser, Key(3), Key(99))->peak()), GiB(5));
  EXPECT_EQ(Bytes(history_.Find(kUser, Key(1), Key(99))->peak()), GiB(3)) << "its own comes first";
  EXPECT_EQ(history_.Find(kUser + 1, Key(3), Key(99)), nullptr);
  EXPECT_EQ(history_.Find(kUser, Key(3), ""), nullptr);
}

TEST_F(JobHistoryTest, OfEachSourceTheLastEstimateIsListedWithWhatTheRunTook) {
  JobHistory::Process process = Process(1, 10, GiB(4));
  process.estimate = JobHistory::Estimate{"formula", GiB(5), GiB(6)};
  history_.Add(process);
  process = Process(1, 11, GiB(3));
  process.estimate = JobHistory::Estimate{"history", GiB(4), GiB(4)};
  history_.Add(process);
  process = Process(1, 12, GiB(2));
  process.estimate = JobHistory::Estimate{"history", GiB(4), GiB(4)};
  history_.Add(process);
  const proto::JobRecord& record = *history_.Find(kUser, Key(1), "");
  ASSERT_EQ(record.estimates_size(), 2);
  EXPECT_EQ(record.estimates(0).source(), "formula");
  EXPECT_EQ(Bytes(record.estimates(0).bytes()), GiB(5));
  EXPECT_EQ(Bytes(record.estimates(0).reserved()), GiB(6));
  EXPECT_EQ(Bytes(record.estimates(0).actual()), GiB(4));
  EXPECT_EQ(Bytes(record.estimates(1).actual()), GiB(2));
}

TEST_F(JobHistoryTest, WhatItUsedStaysUntilItIsMeasuredAgain) {
  JobHistory::Process process = Process(1, 10, GiB(4));
  process.use = {.compute = 0.5, .link = 0.1};
  history_.Add(process);
  Ran(1, 11, GiB(4));
  EXPECT_EQ(history_.Find(kUser, Key(1), "")->compute(), 0.5);
  EXPECT_EQ(history_.Find(kUser, Key(1), "")->link(), 0.1);
}

TEST_F(JobHistoryTest, AUserWithManyCommandsForgetsItsOwnOldest) {
  Ran(1, 1, GiB(1), kUser + 1);
  for (uint64_t job = 0; job <= JobHistory::kJobsOfUser; ++job) Ran(job, 1, GiB(2));
  EXPECT_EQ(PeakOf(0), Bytes{0});
  EXPECT_EQ(PeakOf(1), GiB(2));
  EXPECT_EQ(PeakOf(1, kUser + 1), GiB(1));
  EXPECT_EQ(history_.size(), JobHistory::kJobsOfUser + 1);
}

TEST_F(JobHistoryTest, WhereAllAreTooManyThoseWhoHaveTheMostForget) {
  Ran(1, 1, GiB(1), 1);
  for (uid_t user = 100; user <= 100 + JobHistory::kJobs / JobHistory::kJobsOfUser; ++user) {
    for (uint64_t job = 0; job < JobHistory::kJobsOfUser; ++job) Ran(job, 1, GiB(2), user);
  }
  EXPECT_EQ(history_.size(), JobHistory::kJobs);
  EXPECT_EQ(PeakOf(1, 1), GiB(1));
}

TEST_F(JobHistoryTest, AListComesPageByPage) {
  for (uint64_t job = 0; job < 200; ++job) Ran(job, 1, GiB(2));
  size_t seen = 0;
  proto::ListJobRecords query;
  do {
    proto::JobRecords page;
    history_.Fill(std::nullopt, query, &page);
    for (const proto::JobRecord& record : page.records()) EXPECT_EQ(record.job(), Key(seen++));
    query.set_cursor(page.next_cursor());
  } while (query.cursor() != 0);
  EXPECT_EQ(seen, 200u);
}

TEST_F(JobHistoryTest, WhatIsWrittenIsReadAndWhatIsDamagedIsNot) {
  Ran(1, 10, GiB(4));
  Ran(2, 11, GiB(5), kUser + 1);
  const std::string text = history_.Serialize();
  const auto read = JobHistory::Parse(text);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->size(), 2u);
  EXPECT_EQ(Bytes(read->Find(kUser, Key(1), "")->peak()), GiB(4));
  for (size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    EXPECT_FALSE(JobHistory::Parse(damaged).ok()) << "byte " << i;
    EXPECT_FALSE(JobHistory::Parse(text.substr(0, i)).ok()) << "cut at " << i;
  }
}

TEST_F(JobHistoryTest, AKeyIs32HexadecimalDigits) {
  EXPECT_TRUE(JobHistory::IsKey("0123456789abcdef0123456789abcdef"));
  for (const char* text : {"", "0", "0123456789abcdef0123456789abcdeg",
                           "0123456789ABCDEF0123456789abcdef", "0123456789abcdef0123456789abcdef0"})
    EXPECT_FALSE(JobHistory::IsKey(text)) << text;
}

}  // namespace
}  // namespace ravenstore::daemon
