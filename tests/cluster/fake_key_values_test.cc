// The faults of the simulated store. What every store does is in conformance_test.cc.
#include "cluster/fake_key_values.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ravenstore::cluster {
namespace {

using core::ErrorCode;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Words = std::vector<std::string>;

constexpr uint64_t kSeed = 33;

class FakeKeyValuesTest : public testing::Test {
 protected:
  void RunFor(core::Duration time) { store_.RunUntil(store_.Now() + time); }
  core::Tick Deadline() const { return store_.Now() + seconds(2); }
  // Runs the store until the answer is there.
  core::Result<WriteAnswer> Set(const std::string& key, const std::string& value,
                                StoreLease lease = kNoLease) {
    const KeyValue* found = store_.Find(key);
    std::optional<core::Result<WriteAnswer>> seen;
    client_->CompareAndSet({.key = key,
                            .expected = found ? std::optional(found->value) : std::nullopt,
                            .value = value,
                            .lease = lease},
                           Deadline(), [&](auto answer) { seen = std::move(answer); });
    RunFor(seconds(3));
    return *seen;
  }
  StoreLease Grant(core::Duration duration) {
    StoreLease lease{};
    client_->Grant(duration, Deadline(), [&](const auto& answer) { lease = answer->lease; });
    RunFor(milliseconds(10));
    return lease;
  }
  // Records what the watch reports: "." for no change and "!" for the end.
  void Watch(KeyValues* client, int64_t from, Words* seen) {
    client->Watch("/", from, Deadline(), [seen](const core::Result<Changes>& changes) {
      if (!changes.ok()) return seen->push_back("!");
      if (changes->changes.empty()) seen->push_back(".");
      for (const Change& change : changes->changes) {
        seen->push_back(change.now.key + (change.deleted ? "-" : "=" + change.now.value));
      }
    });
    RunFor(milliseconds(10));
  }

  FakeStore store_{kSeed};
  std::unique_ptr<KeyValues> client_ = store_.Connect("a");
  std::unique_ptr<KeyValues> other_ = store_.Connect("b");
};

TEST_F(FakeKeyValuesTest, AnAnswerTakesTheWayThereAndBack) {
  store_.SetDelay(milliseconds(70), {});
  std::optional<core::Tick> seen;
  const core::Tick begun = store_.Now();
  client_->Range("/", 1, core::kNever, [&](const auto& read) {
    EXPECT_TRUE(read.ok());
    seen = store_.Now();
  });
  RunFor(seconds(1));
  EXPECT_EQ(seen, begun + milliseconds(140));
}

TEST_F(FakeKeyValuesTest, WhatIsCutOffIsSilentAndTheOthersAreNot) {
  Words a;
  Words b;
  Watch(client_.get(), 1, &a);
  Watch(other_.get(), 1, &b);
  store_.Cut("b");
  ErrorCode code{};
  other_->Range("/", 1, Deadline(), [&](const auto& read) { code = read.error().code; });
  EXPECT_TRUE(Set("/k", "1")->written);
  EXPECT_EQ(code, ErrorCode::kTimedOut);
  store_.Heal("b");
  EXPECT_TRUE(Set("/k", "2")->written);
  EXPECT_EQ(a, (Words{".", "/k=1", "/k=2"}));
  // Lost changes are not made up for: the watch is broken, and nothing reports it.
  EXPECT_EQ(b, (Words{"."}));
}

TEST_F(FakeKeyValuesTest, APausedClientGetsAllOnceItRunsAgain) {
  size_t woken = 0;
  const auto paused = store_.Connect("paused", [&] { ++woken; });
  Words seen;
  Watch(paused.get(), store_.stamp().revision + 1, &seen);
  EXPECT_EQ(woken, 1u);
  store_.Pause("paused");
  ASSERT_TRUE(Set("/x", "1")->written);
  paused->Range("/", 9, Deadline(),
                [&](const auto& read) { seen.push_back(read.ok() ? "read" : "late"); });
  ASSERT_TRUE(Set("/y", "2")->written);
  EXPECT_EQ(seen, (Words{"."}));
  EXPECT_EQ(woken, 1u);
  store_.Resume("paused");
  RunFor(milliseconds(1));
  // The answer to what it had asked came in time, before its deadline passed.
  EXPECT_EQ(seen, (Words{".", "/x=1", "read", "/y=2"}));
  EXPECT_GE(woken, 4u);
}

TEST_F(FakeKeyValuesTest, AnAnswerThatIsLostMayHaveBeenDone) {
  store_.SetLosses(0.5);
  int seen = 0;
  int lost_and_done = 0;
  for (int i = 0; i < 200; ++i) {
    const std::string key = "/k" + std::to_string(i);
    const bool ok = Set(key, "1").ok();
    seen += ok ? 1 : 0;
    const bool done = store_.Find(key) != nullptr;
    EXPECT_TRUE(done || !ok);
    lost_and_done += done && !ok ? 1 : 0;
  }
  EXPECT_GT(seen, 20);
  EXPECT_LT(seen, 80);
  EXPECT_GT(lost_and_done, 20);
}

TEST_F(FakeKeyValuesTest, StoppedItRefusesAndStartedItHasAllAndLeasesRestart) {
  const StoreLease lease = Grant(seconds(10));
  ASSERT_TRUE(Set("/k", "1", lease)->written);
  Words seen;
  Watch(client_.get(), store_.stamp().revision + 1, &seen);
  const Stamp before = store_.stamp();
  store_.Stop();
  RunFor(seconds(60));
  EXPECT_EQ(seen, (Words{".", "!"}));
  EXPECT_EQ(Set("/k", "2").error().code, ErrorCode::kUnavailable);
  store_.Start();
  EXPECT_EQ(store_.stamp().store, before.store);
  EXPECT_EQ(store_.stamp().revision, before.revision);
  RunFor(seconds(9));
  ASSERT_NE(store_.Find("/k"), nullptr);
  EXPECT_EQ(store_.Find("/k")->value, "1");
  RunFor(seconds(1));
  EXPECT_EQ(store_.Find("/k"), nullptr);
}

TEST_F(FakeKeyValuesTest, RestoredItHasWhatTheCopyHadAndIsAnotherStoreOrSaysNotToBe) {
  ASSERT_TRUE(Set("/k", "1")->written);
  const auto copy = store_.Backup();
  const Stamp then = store_.stamp();
  ASSERT_TRUE(Set("/k", "2")->written);
  ASSERT_TRUE(Set("/l", "1")->written);
  Words seen;
  Watch(client_.get(), store_.stamp().revision + 1, &seen);
  for (const bool same_store : {true, false}) {
    const uint64_t before = store_.stamp().store;
    store_.Restore(*copy, same_store);
    EXPECT_EQ(store_.stamp().store == before, same_store);
    EXPECT_EQ(store_.stamp().revision, then.revision);
    EXPECT_EQ(store_.Find("/k")->value, "1");
    EXPECT_EQ(store_.Find("/l"), nullptr);
  }
  RunFor(seconds(1));
  EXPECT_EQ(seen, (Words{".", "!"}));
}

TEST_F(FakeKeyValuesTest, AWatchFromTheFutureOfARestoredStoreWaitsInSilence) {
  const auto copy = store_.Backup();
  for (const char* value : {"1", "2", "3"}) ASSERT_TRUE(Set("/k", value)->written);
  const int64_t from = store_.stamp().revision + 1;
  store_.Restore(*copy, true);
  Words seen;
  Watch(client_.get(), from, &seen);
  ASSERT_TRUE(Set("/k", "4")->written);
  EXPECT_EQ(seen, (Words{"."}));
}

TEST_F(FakeKeyValuesTest, WatchesOfWhatIsForgottenEndOrFallSilent) {
  for (const char* value : {"1", "2", "3"}) ASSERT_TRUE(Set("/k", value)->written);
  store_.Compact();
  int ended = 0;
  int silent = 0;
  for (int i = 0; i < 40; ++i) {
    Words seen;
    Watch(client_.get(), 2, &seen);
    ended += seen == Words{".", "!"} ? 1 : 0;
    silent += seen == Words{"."} ? 1 : 0;
  }
  EXPECT_EQ(ended + silent, 40);
  EXPECT_GT(ended, 5);
  EXPECT_GT(silent, 5);
}

TEST_F(FakeKeyValuesTest, SilencedWatchesStaySilentAndNewOnesReport) {
  Words old;
  Words fresh;
  Watch(client_.get(), 1, &old);
  store_.Silence();
  Watch(client_.get(), 1, &fresh);
  ASSERT_TRUE(Set("/k", "1")->written);
  store_.Stop();
  RunFor(seconds(1));
  EXPECT_EQ(old, (Words{"."}));
  EXPECT_EQ(fresh, (Words{".", "/k=1", "!"}));
}

TEST_F(FakeKeyValuesTest, KeepsAHistoryOfAllThatItWas) {
  const auto copy = store_.Backup();
  const StoreLease lease = Grant(seconds(10));
  ASSERT_TRUE(Set("/k", "1", lease)->written);
  ASSERT_TRUE(Set("/k", "2", lease)->written);
  RunFor(seconds(20));
  store_.Restore(*copy, false);
  ASSERT_TRUE(Set("/k", "3")->written);
  const std::vector<FakeChange>& all = store_.history();
  ASSERT_EQ(all.size(), 4u);
  EXPECT_FALSE(all[0].before);
  EXPECT_EQ(all[0].client, "a");
  EXPECT_EQ(all[1].before, "1");
  EXPECT_TRUE(all[2].change.deleted);
  EXPECT_EQ(all[2].client, "");
  EXPECT_FALSE(all[3].before);
}

// Callbacks of a destroyed client do not run, also not for the next client of its name.
TEST_F(FakeKeyValuesTest, AClientTakesWhatIsUnderWayWithIt) {
  client_->Range("/", 1, Deadline(), [](const auto&) { FAIL() << "called after the end"; });
  client_->Watch("/", 1, Deadline(), [](const auto&) { FAIL() << "called after the end"; });
  client_ = nullptr;
  client_ = store_.Connect("a");
  Words seen;
  Watch(client_.get(), 1, &seen);
  EXPECT_TRUE(Set("/k", "1")->written);
  EXPECT_EQ(seen, (Words{".", "/k=1"}));
}

TEST_F(FakeKeyValuesTest, ARunDependsOnItsSeedAlone) {
  const auto run = [](uint64_t seed) {
    FakeStore store(seed);
    store.SetDelay(milliseconds(1), milliseconds(50));
    store.SetLosses(0.2);
    const auto client = store.Connect("a");
    std::string text;
    for (int i = 0; i < 50; ++i) {
      client->CompareAndSet(
          {.key = "/k" + std::to_string(i % 7), .expected = {}, .value = std::to_string(i)},
          store.Now() + seconds(1), [&, i](const core::Result<WriteAnswer>& answer) {
            text += std::to_string(i) + (answer.ok() && answer->written ? "w" : "-") +
                    std::to_string(store.Now().time_since_epoch().count()) + " ";
          });
    }
    store.RunUntil(core::Tick(seconds(5)));
    return text;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

}  // namespace
}  // namespace ravenstore::cluster
