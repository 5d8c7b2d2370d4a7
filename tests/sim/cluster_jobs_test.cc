#include "sim/cluster_jobs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "sim/cluster_member.h"

namespace ravenstore::sim {
namespace {

using core::Bytes;
using core::Duration;
using core::MiB;
using core::Tick;
using std::chrono::seconds;

constexpr uint64_t kScale = 4096;
constexpr cluster::Sizes kSizes = {.piece = Bytes(MiB(64).count() / kScale),
                                   .granule = Bytes(core::KiB(256).count() / kScale)};
// In all 48 pages.
constexpr Bytes kDevice = MiB(256);
constexpr Bytes kHost = MiB(128);
constexpr Bytes kTensor = MiB(64);

// Node 0 has jobs; the others lend.
class ClusterJobsTest : public testing::Test {
 protected:
  static constexpr size_t kNodes = 3;

  ClusterJobsTest() {
    for (uint32_t i = 0; i < kNodes; ++i) {
      ClusterMember::Fixed fixed{.name = "n" + std::to_string(i)};
      fixed.machine = {.high = 1, .low = i};
      fixed.key[0] = static_cast<std::byte>(i);
      place_.network.SetPort(fixed.name, 1.25e9 / kScale);
      nodes_.push_back(std::make_unique<ClusterMember>(fixed, &place_));
      Start(i);
    }
    MakeJobs(seconds(1));
  }

  void MakeJobs(Duration between_uses) {
    jobs_.emplace(ClusterJobs::Options{.memory = {.sizes = kSizes,
                                                  .scale = kScale,
                                                  .device = kDevice,
                                                  .host = kHost,
                                                  .remote = MiB(1024),
                                                  .now = [this] { return place_.Now(); }},
                                       .between_uses = between_uses},
                  &nodes_[0]->node().home(), &random_);
    nodes_[0]->SetUser(&*jobs_);
  }
  void Start(size_t index) {
    ClusterMember::Options options;
    options.incarnation = {.high = random_(), .low = random_()};
    options.find_every = std::chrono::milliseconds(250);
    options.violation = [](uint64_t ClusterCounts::*, const std::string& words) {
      ADD_FAILURE() << words;
    };
    options.node.sizes = kSizes;
    options.node.random = [this] { return random_(); };
    options.node.home.pieces_max = 16;
    options.node.lender.lease = seconds(10);
    options.node.lender.recall_least = seconds(10);
    options.membership.seed = random_();
    nodes_[index]->Start(std::move(options));
  }
  void Lend(size_t index, uint64_t pieces) {
    nodes_[index]->ledger().SetLimit(pieces);
    nodes_[index]->node().SetLendable(kSizes.piece * pieces);
    nodes_[index]->SetDirty();
  }
  void BeginJob(size_t tensors, Duration runs) {
    jobs_->Begin(std::vector<Bytes>(tensors, kTensor), place_.Now() + runs);
    nodes_[0]->SetDirty();
  }
  void RunFor(Duration time) {
    const Tick until = place_.Now() + time;
    while (true) {
      Tick next = until;
      for (const auto& node : nodes_) {
        if (!node->lives()) continue;
        const bool has_jobs = node == nodes_.front();
        const auto due = [&] {
          return has_jobs ? std::min(node->next(), jobs_->Next()) : node->next();
        };
        while (node->dirty() || due() <= place_.Now()) {
          if (has_jobs) jobs_->Advance();
          node->Advance();
        }
        next = std::min(next, due());
      }
      const auto is_dirty = [](const auto& node) { return node->lives() && node->dirty(); };
      if (std::ranges::any_of(nodes_, is_dirty)) continue;
      if (place_.Now() >= until) return;
      place_.RunNext(next);
    }
  }

  std::mt19937_64 random_{1};
  ClusterPlace place_{1};
  std::vector<std::unique_ptr<ClusterMember>> nodes_;
  std::optional<ClusterJobs> jobs_;
};

TEST_F(ClusterJobsTest, WhatDoesNotFitTheNodeIsInOtherNodesMemory) {
  Lend(1, 8);
  Lend(2, 8);
  BeginJob(12, seconds(100));
  RunFor(seconds(20));
  EXPECT_EQ(jobs_->wanted(), kTensor * 12 - kDevice - kHost);
  EXPECT_EQ(jobs_->useful(), jobs_->wanted());
  EXPECT_GT(jobs_->RemoteTensors(), 0u);
  RunFor(seconds(60));
  EXPECT_EQ(jobs_->counts().created, 12u);
  EXPECT_GT(jobs_->counts().used, 50u);
  EXPECT_EQ(jobs_->counts().refused, 0u);
  EXPECT_EQ(jobs_->counts().lost, 0u);
  EXPECT_EQ(jobs_->counts().wrong, 0u);
  RunFor(seconds(30));
  EXPECT_TRUE(nodes_[0]->node().home().Pieces().size() <= 2);  // returned when the job ended
}

TEST_F(ClusterJobsTest, CreatesAreRefusedWhereNoNodeLends) {
  BeginJob(12, seconds(100));
  RunFor(seconds(90));
  EXPECT_EQ(jobs_->useful(), Bytes{});
  EXPECT_LT(jobs_->counts().created, 6u);  // less than device and host pool have
  EXPECT_GT(jobs_->counts().refused, 0u);
  EXPECT_EQ(jobs_->counts().wrong, 0u);
}

TEST_F(ClusterJobsTest, TensorsThatDieWithTheirLenderAreLostAndCreatedAgain) {
  Lend(1, 8);
  Lend(2, 8);
  BeginJob(12, seconds(1000));
  RunFor(seconds(30));
  EXPECT_EQ(jobs_->useful(), jobs_->wanted());
  for (const size_t node : {1u, 2u}) nodes_[node]->Crash();
  RunFor(seconds(60));
  EXPECT_GT(jobs_->counts().lost, 0u);
  EXPECT_EQ(jobs_->useful(), Bytes{});
  for (const size_t node : {1u, 2u}) {
    Start(node);
    Lend(node, 8);
  }
  RunFor(seconds(200));
  EXPECT_EQ(jobs_->useful(), jobs_->wanted());
  EXPECT_EQ(jobs_->counts().created, 12 + jobs_->counts().lost);
  EXPECT_EQ(jobs_->counts().wrong, 0u);
}

TEST_F(ClusterJobsTest, MemoryThatItsOwnerWantsBackIsEmptiedInTime) {
  MakeJobs(std::chrono::hours(1));  // no use brings a tensor
  Lend(1, 8);
  BeginJob(6, seconds(30));
  BeginJob(5, seconds(1000));
  RunFor(seconds(31));  // the rest fits the node
  EXPECT_GT(jobs_->RemoteTensors(), 0u);
  Lend(1, 0);
  RunFor(seconds(60));
  EXPECT_EQ(jobs_->RemoteTensors(), 0u);
  EXPECT_TRUE(nodes_[0]->node().home().Pieces().empty());
  EXPECT_EQ(nodes_[1]->counts().taken, 0u);
  EXPECT_EQ(jobs_->counts().lost, 0u);
  EXPECT_EQ(jobs_->counts().wrong, 0u);
}

}  // namespace
}  // namespace ravenstore::sim
