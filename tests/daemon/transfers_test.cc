#include "daemon/transfers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/medium_channel.h"
#include "ipc/clock.h"
#include "tests/device/fake_medium.h"
#include "tests/timing/timing.h"

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::KiB;
using std::chrono::microseconds;
using Chunk = TransferLane::Chunk;

using JobId = uint64_t;
using Urgency = TransferLane::Urgency;

constexpr core::TurnOwner kWaiting{core::TenantId{1}, core::ClientId{7}};

// A lane of one simulated device, between two ranges of this process.
class Rig {
 public:
  explicit Rig(TransferLane::Options options, device::HostOptions host = {})
      : options_(options),
        lane_(
            "a lane",
            [device = device::OpenHostDevices(host).front()] {
              return device->OpenChannel(device::Direction::kHostToDevice);
            },
            options) {
    std::mt19937_64 random(20261121);
    for (auto& byte : from_) byte = static_cast<std::byte>(random());
  }

  // The job of `count` chunks of `size` bytes at `offset` of both ranges.
  std::vector<Chunk> Chunks(uint64_t offset, size_t count, Bytes size) {
    std::vector<Chunk> chunks;
    for (size_t i = 0; i < count; ++i) {
      chunks.push_back({&to_[offset], &from_[offset], size});
      offset += size.count();
    }
    return chunks;
  }
  // Returns the job's number.
  JobId Submit(std::vector<Chunk> chunks, core::TurnOwner owner, Urgency urgency) {
    const JobId job = ++jobs_;
    lane_.Submit(std::move(chunks), owner, urgency, [this, job](const core::Status& outcome) {
      finished_.emplace_back(job, outcome.ok());
      if (!outcome.ok()) why_ = outcome.error().message;
      if (when_finished_) when_finished_(job);
    });
    return job;
  }
  bool Same(uint64_t offset, Bytes size) const {
    return std::memcmp(&to_[offset], &from_[offset], size.count()) == 0;
  }
  // Pumps until every job is finished; false when that takes for ever.
  bool PumpAll() {
    return Eventually([&] {
      if (!lane_.idle()) lane_.Pump(ipc::Now());
      most_in_flight_ = std::max(most_in_flight_, lane_.in_flight());
      return lane_.idle();
    });
  }
  // Pumps at that time until all that was put in flight is copied; false when that takes for ever.
  bool PumpAt(core::Tick now) {
    return Eventually([&] {
      lane_.Pump(now);
      return lane_.in_flight() == Bytes{0};
    });
  }
  // Submits `count` jobs of one chunk each.
  std::vector<JobId> SubmitChunks(uint64_t count, Urgency urgency) {
    std::vector<JobId> jobs;
    for (uint64_t i = 0; i < count; ++i) {
      jobs.push_back(Submit(Chunks(submitted_, 1, KiB(16)), kWaiting, urgency));
      submitted_ += KiB(16).count();
    }
    return jobs;
  }
  void WhenFinished(std::function<void(JobId)> function) { when_finished_ = std::move(function); }

  TransferLane& lane() { return lane_; }
  const std::vector<std::pair<JobId, bool>>& finished() const { return finished_; }
  Bytes most_in_flight() const { return most_in_flight_; }
  // Of the last failure.
  const std::string& why() const { return why_; }

 private:
  std::vector<std::byte> from_ = std::vector<std::byte>(KiB(1024).count());
  std::vector<std::byte> to_ = std::vector<std::byte>(KiB(1024).count());
  TransferLane::Options options_;
  std::vector<std::pair<JobId, bool>> finished_;
  std::string why_;
  std::function<void(JobId)> when_finished_;
  JobId jobs_ = 0;
  uint64_t submitted_ = 0;
  Bytes most_in_flight_;
  TransferLane lane_;
};

using Finishes = std::vector<std::pair<JobId, bool>>;

TEST(TransfersTest, ALaneCopiesAndSaysSo) {
  Rig rig({});
  EXPECT_TRUE(rig.lane().idle());
  EXPECT_FALSE(rig.lane().Pump(ipc::Now()));
  const JobId job = rig.Submit(rig.Chunks(0, 4, KiB(16)), kWaiting, Urgency::kBackground);
  EXPECT_FALSE(rig.lane().idle());
  ASSERT_TRUE(rig.PumpAll());
  EXPECT_EQ(rig.finished(), (Finishes{{job, true}}));
  EXPECT_TRUE(rig.Same(0, KiB(64)));
  EXPECT_FALSE(rig.Same(KiB(64).count(), KiB(1)));
  EXPECT_EQ(rig.lane().in_flight(), Bytes{0});
}

// A lane from a medium to memory, over a channel that goes on behind what fails.
TEST(TransfersTest, ACopyThatFailsAloneFailsItsJobAndNoOther) {
  device::FakeMedium medium(KiB(256));
  std::memset(medium.bytes(), 7, KiB(256).count());
  medium.set_fault([](uint64_t transfer) {
    return transfer == 2 ? device::FakeMedium::Fault::kFails : device::FakeMedium::Fault::kNone;
  });
  std::vector<std::byte> to(KiB(256).count());
  Finishes finished;
  std::string why;
  TransferLane lane("a lane",
                    [] {
                      return device::OpenMediumChannel(device::MediumAccess::kRead,
                                                       {.chunk = KiB(16), .goes_on = true});
                    },
                    {.in_flight_copies = 2});
  const auto submit = [&](uint64_t first, uint64_t count) {
    std::vector<Chunk> chunks;
    for (uint64_t i = first; i < first + count; ++i)
      chunks.push_back({&to[i * KiB(16).count()], device::Source(medium, KiB(16) * i), KiB(16)});
    lane.Submit(std::move(chunks), kWaiting, Urgency::kDemand,
                [&, first](const core::Status& outcome) {
                  finished.emplace_back(first, outcome.ok());
                  if (!outcome.ok()) why = outcome.error().message;
                });
    return first;
  };
  const JobId fails = submit(0, 8);
  const JobId follows = submit(8, 4);
  while (!lane.idle()) lane.Pump(ipc::Now());
  EXPECT_EQ(finished, (Finishes{{fails, false}, {follows, true}}));
  EXPECT_EQ(why, "the fake: transfer 2 fails");
  for (uint64_t i = KiB(128).count(); i < KiB(192).count(); ++i) ASSERT_EQ(to[i], std::byte{7});
  EXPECT_LT(medium.transfers(), 12u) << "what failed in part is not copied further";
  const JobId after = submit(12, 2);
  while (!lane.idle()) lane.Pump(ipc::Now());
  EXPECT_EQ(finished.back(), (std::pair{after, true}));
}

TEST(TransfersTest, WhatIsInFlightIsBounded) {
  Rig rig({.chunk = KiB(16), .in_flight = KiB(48)}, {.latency = microseconds(100)});
  rig.Submit(rig.Chunks(0, 32, KiB(16)), kWaiting, Urgency::kBackground);
  rig.Submit(rig.Chunks(KiB(512).count(), 32, KiB(16)), kWaiting, Urgency::kDemand);
  ASSERT_TRUE(rig.PumpAll());
  EXPECT_EQ(rig.most_in_flight(), KiB(48));
  EXPECT_TRUE(rig.Same(0, KiB(1024)));
}

TEST(TransfersTest, WhatNoCallWaitsForFillsHalfOfIt) {
  Rig rig({.chunk = KiB(16), .in_flight = KiB(64)}, {.latency = microseconds(100)});
  rig.Submit(rig.Chunks(0, 32, KiB(8)), kWaiting, Urgency::kBackground);
  ASSERT_TRUE(rig.PumpAll());
  EXPECT_EQ(rig.most_in_flight(), KiB(32));
}

TEST(TransfersTest, CopiesInFlightAreBounded) {
  Rig rig({.chunk = KiB(16), .in_flight = KiB(1024), .in_flight_copies = 3},
          {.latency = microseconds(100)});
  rig.Submit(rig.Chunks(0, 64, KiB(1)), kWaiting, Urgency::kBackground);
  ASSERT_TRUE(rig.PumpAll());
  EXPECT_EQ(rig.most_in_flight(), KiB(3));
}

TEST(TransfersTest, APieceBeyondTheBoundGoesAlone) {
  Rig rig({.chunk = KiB(64), .in_flight = KiB(16)});
  rig.Submit(rig.Chunks(0, 3, KiB(64)), kWaiting, Urgency::kBackground);
  ASSERT_TRUE(rig.PumpAll());
  EXPECT_EQ(rig.most_in_flight(), KiB(64));
  EXPECT_TRUE(rig.Same(0, KiB(192)));
}

TEST(TransfersTest, ADemandOvertakesBetweenChunks) {
  Rig rig({.in_flight_copies = 1}, {.latency = microseconds(100)});
  const JobId background = rig.Submit(rig.Chunks(0, 8, KiB(16)), kWaiting, Urgency::kBackground);
  const JobId behind =
      rig.Submit(rig.Chunks(KiB(128).count(), 1, KiB(16)), kWaiting, Urgency::kBackground);
  rig.lane().Pump(ipc::Now());  // the first chunk is on its way
  const JobId demand =
      rig.Submit(rig.Chunks(KiB(256).count(), 2, KiB(16)), kWaiting, Urgency::kDemand);
  ASSERT_TRUE(rig.PumpAll());
  EXPECT_EQ(rig.finished(), (Finishes{{demand, true}, {background, true}, {behind, true}}));
}

TEST(TransfersTest, DemandsOfTwoClientsTakeTurns) {
  Rig rig({.in_flight_copies = 1, .turn = KiB(16)}, {.latency = microseconds(100)});
  const JobId large = rig.Submit(rig.Chunks(0, 8, KiB(16)), kWaiting, Urgency::kDemand);
  rig.lane().Pump(ipc::Now());
  const JobId own =
      rig.Submit(rig.Chunks(KiB(128).count(), 1, KiB(16)), kWaiting, Urgency::kDemand);
  const JobId small =
      rig.Submit(rig.Chunks(KiB(256).count(), 2, KiB(16)),
                 core::TurnOwner{core::TenantId{1}, core::ClientId{8}}, Urgency::kDemand);
  ASSERT_TRUE(rig.PumpAll());
  EXPECT_EQ(rig.finished(), (Finishes{{small, true}, {large, true}, {own, true}}));
}

TEST(TransfersTest, DemandsKeepTheirOrder) {
  Rig rig({.in_flight_copies = 1}, {.latency = microseconds(100)});
  const JobId first = rig.Submit(rig.Chunks(0, 4, KiB(16)), kWaiting, Urgency::kDemand);
  rig.lane().Pump(ipc::Now());
  const JobId second =
      rig.Submit(rig.Chunks(KiB(64).count(), 1, KiB(16)), kWaiting, Urgency::kDemand);
  ASSERT_TRUE(rig.PumpAll());
  EXPECT_EQ(rig.finished(), (Finishes{{first, true}, {second, true}}));
}

TEST(TransfersTest, AFailedCopyFailsWhatIsQueued) {
  Rig rig({.chunk = KiB(16), .in_flight_copies = 2},
          {.fail_copy = [](uint64_t n) { return n == 3; }});
  std::vector<JobId> jobs;
  for (size_t i = 0; i < 3; ++i) {
    jobs.push_back(rig.Submit(rig.Chunks(i * KiB(64).count(), 4, KiB(16)), kWaiting,
                              i == 2 ? Urgency::kDemand : Urgency::kBackground));
  }
  ASSERT_TRUE(rig.PumpAll());
  EXPECT_EQ(rig.finished(), (Finishes{{jobs[0], false}, {jobs[1], false}, {jobs[2], false}}));
  EXPECT_EQ(rig.lane().in_flight(), Bytes{0});
  EXPECT_EQ(rig.why(), "HOST-0: copy: injected fault");
}

TEST(TransfersTest, AnAbortedLaneFailsWhatIsQueuedAndServesAgain) {
  Rig rig({.chunk = KiB(16), .in_flight_copies = 1});
  rig.lane().Abort({core::ErrorCode::kDevice, "nothing is queued yet"});
  const JobId lost = rig.Submit(rig.Chunks(0, 4, KiB(16)), kWaiting, Urgency::kDemand);
  rig.lane().Pump(ipc::Now());
  rig.lane().Abort({core::ErrorCode::kDevice, "the pool is gone"});
  EXPECT_EQ(rig.finished(), (Finishes{{lost, false}}));
  EXPECT_EQ(rig.why(), "the pool is gone");
  const JobId good = rig.Submit(rig.Chunks(0, 4, KiB(16)), kWaiting, Urgency::kDemand);
  ASSERT_TRUE(rig.PumpAll());
  EXPECT_EQ(rig.finished(), (Finishes{{lost, false}, {good, true}}));
  EXPECT_TRUE(rig.Same(0, KiB(64)));
}

TEST(TransfersTest, ALaneThatFailedServesAgain) {
  auto broken = std::make_shared<std::atomic<bool>>(true);
  Rig rig({}, {.fail_copy = [broken](uint64_t) { return broken->load(); }});
  const JobId lost = rig.Submit(rig.Chunks(0, 2, KiB(16)), kWaiting, Urgency::kBackground);
  ASSERT_TRUE(rig.PumpAll());
  *broken = false;
  const JobId good = rig.Submit(rig.Chunks(0, 2, KiB(16)), kWaiting, Urgency::kBackground);
  ASSERT_TRUE(rig.PumpAll());
  EXPECT_EQ(rig.finished(), (Finishes{{lost, false}, {good, true}}));
  EXPECT_TRUE(rig.Same(0, KiB(32)));
}

TEST(SlabMapTest, KnowsWhatIsContiguous) {
  SlabMap map;
  map.Add(KiB(64), KiB(16));
  map.Add(KiB(0), KiB(64));
  map.Add(KiB(96), KiB(8));
  EXPECT_EQ(map.Contiguous(KiB(0)), KiB(64));
  EXPECT_EQ(map.Contiguous(KiB(63)), KiB(1));
  EXPECT_EQ(map.Contiguous(KiB(64)), KiB(16));
  EXPECT_EQ(map.Contiguous(KiB(100)), KiB(4));
  EXPECT_EQ(map.all().size(), 3u);
  map.Remove(KiB(64));
  EXPECT_EQ(map.all().size(), 2u);
}

TEST(SlabMapDeathTest, OutsideEveryChunkIsABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  SlabMap map;
  map.Add(KiB(64), KiB(16));
  EXPECT_DEATH(static_cast<void>(map.Contiguous(KiB(63))), "slabs_.begin");
  EXPECT_DEATH(static_cast<void>(map.Contiguous(KiB(80))), "begin \\+ bytes");
}

class CutTest : public testing::Test {
 protected:
  // The lengths of the chunks of [to, to + bytes) <- [from, from + bytes).
  std::vector<uint64_t> Lengths(Bytes to, Bytes from, Bytes bytes, Bytes chunk) {
    std::vector<uint64_t> lengths;
    uint64_t done = 0;
    for (const Chunk& chunk : Cut(to_, to, to_map_, from_, from, from_map_, bytes, chunk)) {
      EXPECT_EQ(chunk.to.address(), to_ + to.count() + done);
      EXPECT_EQ(chunk.from.address(), from_ + from.count() + done);
      lengths.push_back(chunk.bytes.count() >> 10);
      done += chunk.bytes.count();
    }
    EXPECT_EQ(done, bytes.count());
    return lengths;
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(KiB(512).count());
  std::byte* to_ = memory_.data();
  std::byte* from_ = memory_.data() + KiB(256).count();
  SlabMap to_map_;
  SlabMap from_map_;
};

TEST_F(CutTest, CutsAtChunks) {
  to_map_.Add(KiB(0), KiB(256));
  from_map_.Add(KiB(0), KiB(256));
  EXPECT_EQ(Lengths(KiB(3), KiB(5), KiB(40), KiB(16)), (std::vector<uint64_t>{16, 16, 8}));
  EXPECT_EQ(Lengths(KiB(0), KiB(0), KiB(32), KiB(16)), (std::vector<uint64_t>{16, 16}));
  EXPECT_EQ(Lengths(KiB(0), KiB(0), KiB(7), KiB(16)), (std::vector<uint64_t>{7}));
}

TEST_F(CutTest, CutsAtTheChunksOfBothSides) {
  to_map_.Add(KiB(0), KiB(64));
  to_map_.Add(KiB(64), KiB(64));
  from_map_.Add(KiB(0), KiB(100));
  from_map_.Add(KiB(100), KiB(100));
  // Of the target 64 end after 24, of the source 100 end after 30.
  EXPECT_EQ(Lengths(KiB(40), KiB(70), KiB(60), KiB(256)), (std::vector<uint64_t>{24, 6, 30}));
  EXPECT_EQ(Lengths(KiB(40), KiB(70), KiB(60), KiB(20)), (std::vector<uint64_t>{20, 4, 6, 20, 10}));
}

TEST_F(CutTest, EndsAtAPieceWithoutAnEmptyOne) {
  to_map_.Add(KiB(0), KiB(64));
  to_map_.Add(KiB(64), KiB(64));
  from_map_.Add(KiB(0), KiB(64));
  from_map_.Add(KiB(64), KiB(64));
  EXPECT_EQ(Lengths(KiB(0), KiB(0), KiB(128), KiB(64)), (std::vector<uint64_t>{64, 64}));
}

// Two chunks go immediately, then one each second.
class PacedLanesTest : public testing::Test {
 protected:
  PacedLanesTest() { pacer_.SetRate(static_cast<double>(kChunk.count())); }
  static core::Tick At(int64_t second) { return core::Tick(std::chrono::seconds(second)); }

  static constexpr Bytes kChunk = KiB(16);
  static constexpr TransferLane::Options kOptions{.chunk = kChunk, .in_flight = KiB(64)};
  core::Pacer pacer_{kChunk * 2};
};

TEST_F(PacedLanesTest, ALaneKeepsToTheRateAndSaysWhenItGoesOn) {
  const core::Tick kPoll = At(1000);
  Rig rig(kOptions);
  rig.lane().PaceBy(&pacer_);
  EXPECT_EQ(rig.lane().NextPump(kPoll), core::kNever);
  rig.Submit(rig.Chunks(0, 4, kChunk), kWaiting, Urgency::kDemand);
  EXPECT_EQ(rig.lane().NextPump(kPoll), kPoll);
  rig.lane().Pump(At(100));
  EXPECT_EQ(rig.lane().NextPump(kPoll), kPoll) << "two chunks are in flight";
  ASSERT_TRUE(rig.PumpAt(At(100)));
  EXPECT_TRUE(rig.Same(0, kChunk * 2));
  EXPECT_FALSE(rig.Same(kChunk.count() * 2, kChunk));
  EXPECT_EQ(rig.lane().NextPump(kPoll), At(101));
  EXPECT_FALSE(rig.lane().Pump(At(101) - core::Duration(1)));
  ASSERT_TRUE(rig.PumpAt(At(101)));
  EXPECT_TRUE(rig.Same(0, kChunk * 3));
  EXPECT_FALSE(rig.Same(kChunk.count() * 3, kChunk));
  EXPECT_EQ(rig.lane().NextPump(kPoll), At(102));
  ASSERT_TRUE(rig.PumpAt(At(102)));
  EXPECT_TRUE(rig.lane().idle());
  EXPECT_TRUE(rig.Same(0, kChunk * 4));
}

TEST_F(PacedLanesTest, LanesTakeTurnsAndNoneStarves) {
  Rig rigs[] = {Rig(kOptions), Rig(kOptions)};
  std::vector<int> order;
  for (int i = 0; i < 2; ++i) {
    rigs[i].lane().PaceBy(&pacer_);
    rigs[i].WhenFinished([&order, i](JobId) { order.push_back(i); });
    rigs[i].SubmitChunks(4, Urgency::kBackground);
  }
  for (int64_t second = 0; second < 7; ++second) {
    for (Rig& rig : rigs) ASSERT_TRUE(rig.PumpAt(At(100 + second)));
  }
  EXPECT_EQ(order, (std::vector{0, 0, 0, 1, 0, 1, 1, 1}));
}

TEST_F(PacedLanesTest, ADemandGoesBeforeWhatWaitsForItsTurn) {
  Rig rig(kOptions);
  rig.lane().PaceBy(&pacer_);
  std::vector<JobId> jobs = rig.SubmitChunks(3, Urgency::kBackground);
  ASSERT_TRUE(rig.PumpAt(At(100)));
  const JobId demand = rig.SubmitChunks(1, Urgency::kDemand).front();
  ASSERT_TRUE(rig.PumpAt(At(101)));
  ASSERT_TRUE(rig.PumpAt(At(102)));
  EXPECT_EQ(rig.finished(),
            (Finishes{{jobs[0], true}, {jobs[1], true}, {demand, true}, {jobs[2], true}}));
}

TEST_F(PacedLanesTest, ALaneWhoseCopiesAreAbortedDelaysNoOther) {
  ASSERT_TRUE(pacer_.MaySend(pacer_.Join(), kChunk * 2, At(100)));
  Rig first(kOptions);
  Rig second(kOptions);
  for (Rig* rig : {&first, &second}) {
    rig->lane().PaceBy(&pacer_);
    rig->SubmitChunks(2, Urgency::kDemand);
    ASSERT_TRUE(rig->PumpAt(At(100)));
  }
  first.lane().Abort({core::ErrorCode::kDevice, "its pool is gone"});
  EXPECT_EQ(second.lane().NextPump(At(1000)), At(101));
  ASSERT_TRUE(second.PumpAt(At(101)));
  EXPECT_EQ(second.finished().size(), 1u);
}

TEST_F(PacedLanesTest, WhenTheRateEndsWhatWaitsGoesImmediately) {
  Rig rig(kOptions);
  rig.lane().PaceBy(&pacer_);
  rig.SubmitChunks(8, Urgency::kDemand);
  ASSERT_TRUE(rig.PumpAt(At(100)));
  EXPECT_EQ(rig.finished().size(), 2u);
  pacer_.SetRate(0);
  EXPECT_LE(rig.lane().NextPump(At(1000)), At(100));
  ASSERT_TRUE(rig.PumpAt(At(100)));
  EXPECT_TRUE(rig.lane().idle());
}

// Evictions of a user who fills the link, and a copy that another's tensors wait for.
TEST(TransfersTest, OfWhatNoCallWaitsForEachUserHasItsTurn) {
  Rig rig({.chunk = KiB(16), .in_flight = KiB(32), .turn = KiB(32)});
  std::vector<JobId> flood;
  for (uint32_t i = 0; i < 16; ++i) {
    const core::TurnOwner owner{core::TenantId{1}, core::ClientId{i}};
    flood.push_back(
        rig.Submit(rig.Chunks(KiB(16).count() * i, 1, KiB(16)), owner, Urgency::kBackground));
  }
  const core::TurnOwner other{core::TenantId{2}, core::ClientId{99}};
  const JobId job =
      rig.Submit(rig.Chunks(KiB(512).count(), 1, KiB(16)), other, Urgency::kBackground);
  ASSERT_TRUE(rig.PumpAll());
  ASSERT_EQ(rig.finished().size(), 17u);
  const auto at = std::find(rig.finished().begin(), rig.finished().end(), std::pair(job, true));
  EXPECT_EQ(at - rig.finished().begin(), 2);
}

}  // namespace
}  // namespace ravenstore::daemon
