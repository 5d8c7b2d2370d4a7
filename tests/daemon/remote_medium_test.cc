#include "daemon/remote_medium.h"

#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::MiB;
using Work = std::function<void(cluster::Node*)>;

// A medium whose work waits until it is run. With a node it is tried by cluster_test.
class RemoteMediumTest : public testing::Test {
 protected:
  RemoteMedium::Options MakeOptions() {
    return {.size = MiB(256),
            .timeout = std::chrono::seconds(1),
            .post = [this](Work work) { posted_.push_back(std::move(work)); },
            .now = [this] { return now_; },
            .meter = meter_};
  }
  // As after the node has ended.
  void RunWithoutNode() {
    for (; !posted_.empty(); posted_.pop_front()) posted_.front()(nullptr);
  }

  core::Tick now_{};
  std::deque<Work> posted_;
  const std::shared_ptr<RateMeter> meter_ = std::make_shared<RateMeter>();
  std::array<std::byte, 4096> memory_{};
};

TEST_F(RemoteMediumTest, ItsPiecesAndGranulesAreTheClusters) {
  const RemoteMedium medium(MakeOptions());
  EXPECT_EQ(medium.piece(), MiB(64));
  EXPECT_EQ(medium.granularity(), core::KiB(256));
  EXPECT_EQ(medium.size(), MiB(256));
}

TEST_F(RemoteMediumTest, NothingIsDoneOnTheCallersThread) {
  RemoteMedium medium(MakeOptions());
  std::optional<core::Result<Bytes>> outcome;
  medium.Read(Bytes{}, memory_.data(), Bytes(memory_.size()), [&](auto moved) { outcome = moved; });
  EXPECT_FALSE(outcome);
  EXPECT_EQ(posted_.size(), 1u);
  RunWithoutNode();
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->error().code, core::ErrorCode::kUnavailable);
}

TEST_F(RemoteMediumTest, WithoutANodeEverythingFailsAndNothingHangs) {
  RemoteMedium medium(MakeOptions());
  std::optional<core::Result<Bytes>> outcome;
  medium.Write(MiB(64), memory_.data(), Bytes(memory_.size()),
               [&](auto moved) { outcome = moved; });
  RunWithoutNode();
  EXPECT_EQ(outcome->error().code, core::ErrorCode::kUnavailable);
  EXPECT_TRUE(medium.Destroy(MiB(64)).ok());
  RunWithoutNode();
  RemoteMedium::Options options = MakeOptions();
  options.post = [](const Work& work) { work(nullptr); };
  EXPECT_EQ(RemoteMedium(options).Make(MiB(64)).error().code, core::ErrorCode::kUnavailable);
}

TEST_F(RemoteMediumTest, ItEndsOnceItsTransfersHave) {
  auto medium = std::make_unique<RemoteMedium>(MakeOptions());
  bool done = false;
  medium->Read(Bytes{}, memory_.data(), Bytes(memory_.size()), [&](auto) { done = true; });
  std::thread node([this] { RunWithoutNode(); });
  medium.reset();
  EXPECT_TRUE(done);
  node.join();
}

}  // namespace
}  // namespace ravenstore::daemon
