#include "daemon/discovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "cluster/fake_key_values.h"
#include "ipc/clock.h"
#include "tests/timing/timing.h"

namespace ravenstore::daemon {
namespace {

using testing::HasSubstr;
using Found = std::map<std::string, std::string>;

// Of a start of its own.
cluster::NodeRecord Record(const std::string& name) {
  static uint64_t starts = 0;
  return {.name = name, .address = name + ":1", .incarnation = {1, ++starts}};
}

// A store in virtual time, which goes as fast as it is polled.
class DiscoveryTest : public testing::Test {
 protected:
  std::unique_ptr<Discovery> Discover(const std::string& name) {
    Discovery::Options options;
    options.membership.self = Record(name);
    options.found = [this](const Found& found) {
      std::lock_guard lock(mutex_);
      found_ = found;
    };
    options.status = [this](std::string words, bool) {
      std::lock_guard lock(mutex_);
      status_ = std::move(words);
    };
    return std::make_unique<Discovery>(std::move(options), store_.Connect(name));
  }
  void Register(const std::string& name) {
    const auto other = store_.Connect("other");
    other->CompareAndSet({.key = "/ravenstore/nodes/" + name,
                          .expected = std::nullopt,
                          .value = cluster::ToText(Record(name))},
                         core::kNever, [](const auto& written) { ASSERT_TRUE(written.ok()); });
    store_.RunUntil(store_.Now() + std::chrono::seconds(1));
  }
  bool Sees(const Found& found) {
    return Eventually([&] {
      std::lock_guard lock(mutex_);
      return found_ == found;
    });
  }

  cluster::FakeStore store_{1};
  std::atomic<bool> ending_{true};
  std::mutex mutex_;
  Found found_;         // guarded by mutex_
  std::string status_;  // likewise
};

TEST_F(DiscoveryTest, PresentNodesAreReportedWithTheirAddress) {
  Register("b");
  const auto discovery = Discover("a");
  discovery->Start(ending_);
  EXPECT_TRUE(Sees({{"b", "b:1"}}));
  discovery->Stop();
  EXPECT_EQ(store_.Find("/ravenstore/nodes/a"), nullptr) << "who ends gives the name back";
}

TEST_F(DiscoveryTest, AStoreThatIsAwayDelaysNoCall) {
  store_.Stop();
  const auto discovery = Discover("a");
  discovery->Start(ending_);
  discovery->Stop();
  EXPECT_FALSE(status_.empty());
}

TEST_F(DiscoveryTest, ATakenNameIsSaid) {
  Register("a");
  const auto discovery = Discover("a");
  discovery->Start(ending_);
  const auto said = [this] {
    std::lock_guard lock(mutex_);
    return status_.find("another node") != std::string::npos;
  };
  EXPECT_TRUE(Eventually(said));
  discovery->Stop();
  EXPECT_NE(store_.Find("/ravenstore/nodes/a"), nullptr);
}

}  // namespace
}  // namespace ravenstore::daemon
