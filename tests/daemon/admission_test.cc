#include "daemon/admission.h"

#include <gtest/gtest.h>

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::GiB;

constexpr double kMost = 1.5;

DeviceRoom Room(Bytes committed, std::optional<double> compute = std::nullopt) {
  return {.total = GiB(100), .committed = committed, .measured = {.compute = compute}};
}
JobNeed Need(Bytes bytes, std::optional<double> compute = std::nullopt) {
  return {.bytes = bytes, .use = {.compute = compute}};
}

TEST(AdmissionTest, WhatFitsToTheByteMayStart) {
  EXPECT_EQ(Judge(Room(GiB(60)), Need(GiB(40)), kMost).verdict, Verdict::kMayStart);
  EXPECT_EQ(Judge(Room(GiB(60)), Need(GiB(40) + Bytes{1}), kMost).verdict, Verdict::kNoMemory);
}

TEST(AdmissionTest, AUsersLimitHoldsWhereThereIsMemory) {
  DeviceRoom room = Room(GiB(60));
  room.own = GiB(30);
  JobNeed need = Need(GiB(11));
  need.limit = GiB(40);
  EXPECT_EQ(Judge(room, need, kMost).verdict, Verdict::kUserIsAtLimit);
  need.bytes = GiB(10);
  EXPECT_EQ(Judge(room, need, kMost).verdict, Verdict::kMayStart);
}

TEST(AdmissionTest, SlowdownIsTheSumOfWhatJobsUse) {
  const Judgement busy = Judge(Room(GiB(1), 0.9), Need(GiB(1), 0.5), kMost);
  EXPECT_EQ(busy.verdict, Verdict::kMayStart);
  EXPECT_DOUBLE_EQ(busy.slowdown, 1.4);
  const Judgement idle = Judge(Room(GiB(1), 0.2), Need(GiB(1), 0.3), kMost);
  EXPECT_DOUBLE_EQ(idle.slowdown, 1);
  const Judgement full = Judge(Room(GiB(1), 0.9), Need(GiB(1), 0.7), kMost);
  EXPECT_EQ(full.verdict, Verdict::kTooSlow);
  EXPECT_DOUBLE_EQ(full.slowdown, 1.6);
}

TEST(AdmissionTest, AJobOfUnknownUseCountsAsOneThatComputesAllTheTime) {
  EXPECT_EQ(Judge(Room(GiB(1), 0.5), Need(GiB(1)), kMost).verdict, Verdict::kMayStart);
  EXPECT_EQ(Judge(Room(GiB(1), 0.6), Need(GiB(1)), kMost).verdict, Verdict::kTooSlow);
}

TEST(AdmissionTest, JobsThatWereJustAdmittedCountBeforeTheyAreMeasured) {
  DeviceRoom room = Room(GiB(1), 0.0);
  room.unmeasured = 1;
  EXPECT_EQ(Judge(room, Need(GiB(1)), kMost).verdict, Verdict::kTooSlow);
  EXPECT_DOUBLE_EQ(Judge(room, Need(GiB(1), 0.25), kMost).slowdown, 1.25);
}

TEST(AdmissionTest, TheLinkCountsWhereItIsTheNarrowerOne) {
  DeviceRoom room = Room(GiB(1), 0.1);
  room.measured.link = 0.9;
  JobNeed need = Need(GiB(1), 0.1);
  need.use.link = 0.4;
  EXPECT_DOUBLE_EQ(Judge(room, need, kMost).slowdown, 1.3);
  need.use.link.reset();
  EXPECT_DOUBLE_EQ(Judge(room, need, kMost).slowdown, 1) << "most jobs hardly use it";
}

TEST(AdmissionTest, WithoutAMeasurementMemoryAloneCountsAndThatIsSaid) {
  const Judgement judgement = Judge(Room(GiB(1)), Need(GiB(1)), kMost);
  EXPECT_EQ(judgement.verdict, Verdict::kMayStart);
  EXPECT_FALSE(judgement.is_measured);
  EXPECT_EQ(WordsOf(judgement, kMost),
            "by memory alone: how busy the device is cannot be measured");
}

TEST(AdmissionTest, WhatTheStoreHasIsNoHindranceAndItsWayBackIsSaid) {
  DeviceRoom room = Room(GiB(50), 0.1);
  room.held = GiB(30);
  room.return_bytes_per_s = 20e9;
  const Judgement fits = Judge(room, Need(GiB(20), 0.1), kMost);
  EXPECT_EQ(fits.to_return, Bytes{0});
  EXPECT_EQ(WordsOf(fits, kMost), "");
  Judgement judgement = Judge(room, Need(GiB(40), 0.1), kMost);
  EXPECT_EQ(judgement.verdict, Verdict::kMayStart);
  EXPECT_EQ(judgement.to_return, GiB(20));
  EXPECT_EQ(WordsOf(judgement, kMost),
            "20.0 GiB of it is the store's until the job allocates, and is given back then, in "
            "some 1.1 s");
  judgement.slowdown = 1.2;
  EXPECT_EQ(WordsOf(judgement, kMost),
            "all jobs there may take 1.2 times as long; 20.0 GiB of it is the store's until the "
            "job allocates, and is given back then, in some 1.1 s");
  room.return_bytes_per_s = 0;
  EXPECT_EQ(WordsOf(Judge(room, Need(GiB(40), 0.1), kMost), kMost),
            "20.0 GiB of it is the store's until the job allocates, and is given back then");
}

TEST(AdmissionTest, WithoutACapMemoryAloneCountsAsConfigured) {
  const Judgement judgement = Judge(Room(GiB(1), 1.0), Need(GiB(1)), 0);
  EXPECT_EQ(judgement.verdict, Verdict::kMayStart);
  EXPECT_EQ(WordsOf(judgement, 0), "");
}

TEST(AdmissionTest, WordsNameWhatAJobWaitsFor) {
  EXPECT_EQ(WordsOf({.verdict = Verdict::kNoMemory}, kMost), "for memory");
  EXPECT_EQ(WordsOf({.verdict = Verdict::kTooSlow, .slowdown = 1.8}, kMost),
            "for the jobs there to compute less: all would take 1.8 times as long, and at most 1.5 "
            "is allowed");
  EXPECT_EQ(WordsOf({.slowdown = 1.3, .is_measured = true}, kMost),
            "all jobs there may take 1.3 times as long");
}

}  // namespace
}  // namespace ravenstore::daemon
