// What every KeyValues of cluster/key_values.h must do.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "cluster/key_values.h"
#include "tests/cluster/stores.h"

namespace ravenstore::cluster {
namespace {

using core::ErrorCode;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kMost = 1000;

class KeyValuesConformance : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoStore(GetParam()); !why.empty()) GTEST_SKIP() << why;
    store_ = OpenStore(GetParam());
  }
  void TearDown() override {
    if (HasFailure() && store_) std::fprintf(stderr, "%s\n", store_->Log().c_str());
  }

  KeyValues& client(size_t i = 0) { return store_->client(i); }
  core::Tick Deadline() { return store_->In(seconds(10)); }

  core::Result<RangeRead> Range(const std::string& prefix, size_t most = kMost) {
    return store_->Wait<RangeRead>(
        [&](auto callback) { client().Range(prefix, most, Deadline(), callback); });
  }
  core::Result<WriteAnswer> Set(const Write& write) {
    return store_->Wait<WriteAnswer>(
        [&](auto callback) { client().CompareAndSet(write, Deadline(), callback); });
  }
  void Put(const std::string& key, const std::string& value, StoreLease lease = kNoLease) {
    const auto all = Range(key);
    ASSERT_TRUE(all.ok()) << Describe(all.error());
    // The key itself comes before those that it begins.
    const bool there = !all->values.empty() && all->values[0].key == key;
    const auto expected = there ? std::optional(all->values[0].value) : std::nullopt;
    const auto set = Set({.key = key, .expected = expected, .value = value, .lease = lease});
    ASSERT_TRUE(set.ok()) << Describe(set.error());
    ASSERT_TRUE(set->written);
  }
  StoreLease Grant(core::Duration duration) {
    const auto answer = store_->Wait<LeaseAnswer>(
        [&](auto callback) { client().Grant(duration, Deadline(), callback); });
    EXPECT_TRUE(answer.ok() && answer->lease != kNoLease && answer->duration >= duration);
    return answer.ok() ? answer->lease : kNoLease;
  }
  core::Result<LeaseAnswer> KeepAlive(StoreLease lease) {
    return store_->Wait<LeaseAnswer>(
        [&](auto callback) { client().KeepAlive(lease, Deadline(), callback); });
  }
  core::Result<core::Done> Revoke(StoreLease lease) {
    return store_->Wait<core::Done>(
        [&](auto callback) { client().Revoke(lease, Deadline(), callback); });
  }

  struct Watched {
    int began = 0;  // changes that say no change
    std::vector<std::string> reported = {};
    std::optional<core::Error> ended = {};
    int64_t last = 0;
  };
  WatchId Watch(const std::string& prefix, int64_t from, Watched* watched, size_t i = 0) {
    return client(i).Watch(prefix, from, Deadline(), [watched](core::Result<Changes> changes) {
      EXPECT_FALSE(watched->ended) << "called after its end";
      if (!changes.ok()) {
        watched->ended = changes.error();
        return;
      }
      if (changes->changes.empty()) ++watched->began;
      for (const Change& change : changes->changes) {
        EXPECT_GT(change.now.modified, watched->last);
        watched->last = change.now.modified;
        watched->reported.push_back(change.now.key +
                                    (change.deleted ? "-" : "=" + change.now.value));
      }
    });
  }
  bool Begins(const Watched& watched) {
    return store_->Eventually([&] { return watched.began > 0 || watched.ended; });
  }
  bool Reports(const Watched& watched, const std::vector<std::string>& all) {
    store_->Eventually([&] { return watched.reported.size() >= all.size() || watched.ended; });
    EXPECT_EQ(watched.reported, all);
    return watched.reported == all;
  }

  std::unique_ptr<TestStore> store_;
};

TEST_P(KeyValuesConformance, ARangeIsWhatBeginsWithThePrefixByKey) {
  for (const char* key : {"/r/b", "/r/a", "/r0", "/r", "/q/z"}) Put(key, std::string("of ") + key);
  const auto read = Range("/r/");
  ASSERT_TRUE(read.ok()) << Describe(read.error());
  ASSERT_EQ(read->values.size(), 2u);
  EXPECT_EQ(read->values[0].key, "/r/a");
  EXPECT_EQ(read->values[0].value, "of /r/a");
  EXPECT_GT(read->values[0].modified, read->values[1].modified);
  EXPECT_EQ(read->values[0].lease, kNoLease);
  EXPECT_FALSE(read->more);
  EXPECT_TRUE(Range("/none/")->values.empty());
  const auto first = Range("/r/", 1);
  ASSERT_EQ(first->values.size(), 1u);
  EXPECT_TRUE(first->more);
}

TEST_P(KeyValuesConformance, EveryByteComesBack) {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  for (const size_t length : {0, 1, 2, 3, 256}) Put("/x/" + bytes.substr(0, length), bytes);
  const auto read = Range("/x/" + bytes);
  ASSERT_TRUE(read.ok()) << Describe(read.error());
  ASSERT_EQ(read->values.size(), 1u);
  EXPECT_EQ(read->values[0].key, "/x/" + bytes);
  EXPECT_EQ(read->values[0].value, bytes);
  EXPECT_EQ(Range("/x/")->values.size(), 5u);
}

TEST_P(KeyValuesConformance, AKeyIsMadeOnceAndReplacedOnlyIfItsValueIsKnown) {
  const auto made = Set({.key = "/n", .expected = {}, .value = "a"});
  ASSERT_TRUE(made.ok()) << Describe(made.error());
  EXPECT_TRUE(made->written);
  const auto again = Set({.key = "/n", .expected = {}, .value = "b"});
  ASSERT_TRUE(again.ok()) << Describe(again.error());
  EXPECT_FALSE(again->written);
  ASSERT_TRUE(again->found);
  EXPECT_EQ(again->found->value, "a");
  EXPECT_EQ(again->found->modified, made->at.revision);
  EXPECT_FALSE(Set({.key = "/n", .expected = "A", .value = "c"})->written);
  EXPECT_FALSE(Set({.key = "/n", .expected = "", .value = "c"})->written);
  EXPECT_TRUE(Set({.key = "/n", .expected = "a", .value = "c"})->written);
  EXPECT_EQ(Range("/n")->values[0].value, "c");
  const auto none = Set({.key = "/m", .expected = "a", .value = "c"});
  ASSERT_TRUE(none.ok()) << Describe(none.error());
  EXPECT_FALSE(none->written);
  EXPECT_FALSE(none->found);
}

TEST_P(KeyValuesConformance, OfManyThatMakeAKeyOneDoes) {
  int written = 0;
  int ended = 0;
  for (int i = 0; i < 20; ++i) {
    client(i % 2).CompareAndSet({.key = "/n", .expected = {}, .value = std::to_string(i)},
                                Deadline(), [&](core::Result<WriteAnswer> answer) {
                                  ++ended;
                                  written += answer.ok() && answer->written ? 1 : 0;
                                });
  }
  ASSERT_TRUE(store_->Eventually([&] { return ended == 20; }));
  EXPECT_EQ(written, 1);
}

TEST_P(KeyValuesConformance, EachAnswerSaysOfWhichStoreItIsAndHowFarThatHasCome) {
  const Stamp before = Range("/")->at;
  EXPECT_NE(before.store, 0u);
  Put("/n", "a");
  const Stamp after = Range("/")->at;
  EXPECT_EQ(after.store, before.store);
  EXPECT_EQ(after.revision, before.revision + 1);
  const StoreLease lease = Grant(seconds(30));
  const auto kept = KeepAlive(lease);
  ASSERT_TRUE(kept.ok()) << Describe(kept.error());
  EXPECT_EQ(kept->at.store, before.store);
  EXPECT_EQ(kept->at.revision, after.revision);
}

TEST_P(KeyValuesConformance, AKeyGoesWithItsLeaseAndAWatchReportsIt) {
  const StoreLease lease = Grant(seconds(1));
  Put("/l/a", "1", lease);
  Put("/l/b", "2");
  const auto read = Range("/l/");
  EXPECT_EQ(read->values[0].lease, lease);
  Watched watched;
  Watch("/l/", read->at.revision + 1, &watched, 1);
  EXPECT_TRUE(Reports(watched, {"/l/a-"}));
  EXPECT_EQ(Range("/l/")->values.size(), 1u);
  EXPECT_EQ(KeepAlive(lease).error().code, ErrorCode::kNotFound);
  const auto late = Set({.key = "/l/c", .expected = {}, .value = "3", .lease = lease});
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().code, ErrorCode::kNotFound);
}

TEST_P(KeyValuesConformance, ALeaseThatIsKeptAliveLives) {
  const StoreLease lease = Grant(seconds(1));
  Put("/l/a", "1", lease);
  const core::Tick end = store_->In(seconds(4));
  while (store_->Now() < end) {
    const auto kept = KeepAlive(lease);
    ASSERT_TRUE(kept.ok()) << Describe(kept.error());
    EXPECT_GE(kept->duration, seconds(1));
    store_->RunFor(milliseconds(200));
  }
  EXPECT_EQ(Range("/l/")->values.size(), 1u);
}

TEST_P(KeyValuesConformance, ARevokedLeaseTakesItsKeys) {
  const StoreLease lease = Grant(seconds(30));
  for (const char* key : {"/l/a", "/l/b"}) Put(key, "1", lease);
  Put("/l/c", "1", Grant(seconds(30)));
  ASSERT_TRUE(Revoke(lease).ok());
  const auto left = Range("/l/");
  ASSERT_EQ(left->values.size(), 1u);
  EXPECT_EQ(left->values[0].key, "/l/c");
  EXPECT_EQ(Revoke(lease).error().code, ErrorCode::kNotFound);
}

TEST_P(KeyValuesConformance, AWatchReportsPastAndNewChangesInOrder) {
  const int64_t revision = Range("/w/")->at.revision;
  Put("/w/a", "1");
  Put("/other", "1");
  Put("/w/b", "2");
  Watched watched;
  Watch("/w/", revision + 1, &watched, 1);
  ASSERT_TRUE(Begins(watched));
  ASSERT_TRUE(Reports(watched, {"/w/a=1", "/w/b=2"}));
  Put("/w/a", "3");
  Put("/v/x", "1");
  Put("/w/c", "4");
  EXPECT_TRUE(Reports(watched, {"/w/a=1", "/w/b=2", "/w/a=3", "/w/c=4"}));
  EXPECT_FALSE(watched.ended);
}

TEST_P(KeyValuesConformance, AnEndedWatchReportsNothing) {
  Watched ended;
  Watched other;
  const int64_t from = Range("/w/")->at.revision + 1;
  const WatchId watch = Watch("/w/", from, &ended);
  Watch("/w/", from, &other);
  ASSERT_TRUE(Begins(ended) && Begins(other));
  client().Unwatch(watch);
  client().Unwatch(watch);
  Put("/w/a", "1");
  EXPECT_TRUE(Reports(other, {"/w/a=1"}));
  EXPECT_TRUE(ended.reported.empty());
  EXPECT_FALSE(ended.ended);
}

TEST_P(KeyValuesConformance, AWatchMayEndItselfWhileItReports) {
  int calls = 0;
  WatchId watch{};
  const int64_t from = Range("/w/")->at.revision + 1;
  watch = client().Watch("/w/", from, Deadline(), [&](core::Result<Changes> changes) {
    if (!changes.ok() || changes->changes.empty()) return;
    ++calls;
    client().Unwatch(watch);
  });
  Watched other;
  Watch("/w/", from, &other);
  Put("/w/a", "1");
  Put("/w/a", "2");
  EXPECT_TRUE(Reports(other, {"/w/a=1", "/w/a=2"}));
  EXPECT_EQ(calls, 1);
}

// Whether it ends or falls silent is the store's: it never goes on as if nothing were missing.
TEST_P(KeyValuesConformance, AWatchOfCompactedRevisionsReportsNoChange) {
  for (int i = 0; i < 4; ++i) Put("/w/a", std::to_string(i));
  const int64_t old = Range("/w/")->at.revision - 2;
  store_->Compact();
  std::vector<Watched> watched(4);
  for (Watched& each : watched) Watch("/w/", old, &each);
  Watched fresh;
  Watch("/w/", Range("/w/")->at.revision + 1, &fresh);
  ASSERT_TRUE(Begins(fresh));
  Put("/w/a", "new");
  EXPECT_TRUE(Reports(fresh, {"/w/a=new"}));
  for (const Watched& each : watched) EXPECT_TRUE(each.reported.empty());
}

TEST_P(KeyValuesConformance, AStoreThatDiesEndsWhatIsUnderWayAndKeepsWhatItHad) {
  Put("/n", "a");
  const Stamp before = Range("/n")->at;
  Watched watched;
  Watch("/n", before.revision + 1, &watched);
  ASSERT_TRUE(Begins(watched));
  store_->Stop();
  ASSERT_TRUE(store_->Eventually([&] { return watched.ended.has_value(); }));
  EXPECT_EQ(watched.ended->code, ErrorCode::kUnavailable);
  EXPECT_EQ(Range("/n").error().code, ErrorCode::kUnavailable);
  Watched none;
  Watch("/n", 1, &none);
  ASSERT_TRUE(store_->Eventually([&] { return none.ended.has_value(); }));
  store_->Start();
  const auto after = Range("/n");
  ASSERT_TRUE(after.ok()) << Describe(after.error());
  EXPECT_EQ(after->at.store, before.store);
  EXPECT_EQ(after->at.revision, before.revision);
  EXPECT_EQ(after->values[0].value, "a");
}

TEST_P(KeyValuesConformance, WithoutAnAnswerADeadlineHoldsAndLaterItWorksAgain) {
  Put("/n", "a");
  store_->Freeze();
  std::map<std::string, ErrorCode> errors;
  const core::Tick deadline = store_->In(milliseconds(300));
  const auto keep = [&](const std::string& what) {
    return [&errors, what](auto result) {
      EXPECT_FALSE(errors.contains(what));
      ASSERT_FALSE(result.ok());
      errors.emplace(what, result.error().code);
    };
  };
  client().Range("/n", kMost, deadline, keep("range"));
  client().CompareAndSet({.key = "/m", .expected = {}, .value = "b"}, deadline, keep("set"));
  client().Grant(seconds(5), deadline, keep("grant"));
  client().KeepAlive(StoreLease{1}, deadline, keep("keep alive"));
  client().Revoke(StoreLease{1}, deadline, keep("revoke"));
  client().Watch("/n", 1, deadline, keep("watch"));
  ASSERT_TRUE(store_->Eventually([&] { return errors.size() == 6; }));
  EXPECT_GE(store_->Now(), deadline);
  EXPECT_LT(store_->Now(), deadline + seconds(5));
  for (const auto& [what, code] : errors) EXPECT_EQ(code, ErrorCode::kTimedOut) << what;
  store_->Thaw();
  EXPECT_TRUE(store_->Eventually([&] { return Range("/n").ok(); }));
}

TEST_P(KeyValuesConformance, NoCallbackRunsWithinTheCall) {
  bool inside = true;
  int ended = 0;
  // Deadlines that are past; an answer may be quicker all the same.
  client().Range("/", kMost, core::Tick{}, [&](const core::Result<RangeRead>&) {
    EXPECT_FALSE(inside);
    ++ended;
  });
  client().Watch("/", 1, core::Tick{}, [&](const core::Result<Changes>&) {
    EXPECT_FALSE(inside);
    ++ended;
  });
  inside = false;
  EXPECT_TRUE(store_->Eventually([&] { return ended == 2; }));
}

INSTANTIATE_TEST_SUITE_P(All, KeyValuesConformance, testing::ValuesIn(StoreNames()),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace ravenstore::cluster
