#include "cluster/membership.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/cluster/members.h"

namespace ravenstore::cluster {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using Words = std::vector<std::string>;

constexpr uint64_t kSeed = 33;

class MembershipTest : public testing::Test {
 protected:
  static std::string Key(const std::string& name) { return "/ravenstore/nodes/" + name; }
  bool Holds(const Member& member) const {
    const KeyValue* value = members_.store.Find(Key(member.name));
    if (value == nullptr) return false;
    const auto record = ReadNodeRecord(member.name, value->value);
    return record.ok() && record->incarnation == member.incarnations.back();
  }
  // Three that know each other.
  void StartThree() {
    for (const char* name : {"a", "b", "c"}) members_.Add(name);
    members_.RunFor(seconds(5));
    for (const auto& member : members_.all) {
      ASSERT_TRUE(members_.Registered(*member));
      ASSERT_EQ(member->events->known.size(), 2u);
      member->events->Take();
      member->events->statuses.clear();
    }
  }
  void ExpectNoEvent() {
    for (const auto& member : members_.all) {
      EXPECT_EQ(member->events->Take(), Words{}) << member->name;
      EXPECT_TRUE(members_.Registered(*member));
      EXPECT_TRUE(Holds(*member));
    }
  }
  Member& at(size_t i) { return *members_.all[i]; }
  MembershipStatus StatusOf(const Member& member) { return member.membership->status(); }
  void WriteForeign(const std::string& name, const std::string& text) {
    const auto client = members_.store.Connect("foreign");
    bool written = false;
    client->CompareAndSet(
        {.key = Key(name), .expected = {}, .value = text}, core::kNever,
        [&](const core::Result<WriteAnswer>& answer) { written = answer.ok() && answer->written; });
    members_.RunFor(seconds(1));
    EXPECT_TRUE(written);
  }

  Members members_{kSeed};
};

TEST_F(MembershipTest, NodesFindEachOtherAndNotThemselves) {
  StartThree();
  Member& a = at(0);
  const NodeRecord* b = a.membership->nodes().Find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->incarnation, at(1).incarnations.back());
  EXPECT_EQ(a.membership->nodes().Find("a"), nullptr);
  EXPECT_EQ(StatusOf(a).registration, "registered as a");
  EXPECT_EQ(StatusOf(a).store, "the simulated store answers");
}

TEST_F(MembershipTest, ANodeThatLeavesIsReportedAfterTheGrace) {
  StartThree();
  at(0).membership->Leave();
  members_.RunFor(seconds(1));
  EXPECT_TRUE(at(0).membership->HasLeft());
  EXPECT_FALSE(Holds(at(0)));
  EXPECT_FALSE(members_.Registered(at(0)));
  members_.RunFor(seconds(13));
  EXPECT_EQ(at(1).events->Take(), Words{});
  members_.RunFor(seconds(6));
  EXPECT_EQ(at(1).events->Take(), (Words{"-a"}));
  // It stays away, and still sees the others.
  members_.Stop(&at(1));
  members_.RunFor(minutes(1));
  EXPECT_EQ(at(0).events->Take(), (Words{"-b"}));
  EXPECT_FALSE(Holds(at(0)));
}

TEST_F(MembershipTest, ANodeThatDiesIsReportedAfterItsLeaseAndTheGrace) {
  StartThree();
  members_.Stop(&at(0));
  members_.RunFor(seconds(20));
  EXPECT_EQ(at(1).events->Take(), Words{});
  members_.RunFor(seconds(10));
  EXPECT_EQ(at(1).events->Take(), (Words{"-a"}));
}

// The watch reported that the node left, and fell silent before it reported the return.
TEST_F(MembershipTest, AMissingNodeIsReadAgainBeforeItIsReported) {
  StartThree();
  members_.Stop(&at(0));
  members_.RunFor(seconds(12));
  ASSERT_FALSE(Holds(at(0)));
  members_.store.Silence();
  members_.Start(&at(0));
  members_.RunFor(minutes(2));
  EXPECT_EQ(at(1).events->Take(), (Words{"~a"}));
  EXPECT_EQ(at(2).events->Take(), (Words{"~a"}));
}

TEST_F(MembershipTest, ANewStartOfAStateFolderReplacesTheLastOneImmediately) {
  StartThree();
  members_.Stop(&at(0));
  members_.Start(&at(0));
  members_.RunFor(seconds(1));
  EXPECT_TRUE(members_.Registered(at(0)));
  EXPECT_TRUE(Holds(at(0)));
  members_.RunFor(seconds(1));
  EXPECT_EQ(at(1).events->Take(), (Words{"~a"}));
  EXPECT_EQ(at(1).events->known.at("a").incarnation, at(0).incarnations.back());
  for (const auto& member : members_.all) member->events->Take();
  // The lease of the last one ends, and takes nothing along.
  members_.RunFor(minutes(1));
  ExpectNoEvent();
}

TEST_F(MembershipTest, OneThatLostItsStateFolderWaitsForTheLeaseAndSaysSo) {
  StartThree();
  members_.Stop(&at(0));
  const std::string address = at(1).events->known.at("a").address;
  members_.Start(&at(0), true);
  members_.RunFor(seconds(2));
  EXPECT_FALSE(members_.Registered(at(0)));
  const std::string words = StatusOf(at(0)).registration;
  EXPECT_NE(words.find("another node of this name is alive"), std::string::npos) << words;
  EXPECT_NE(words.find(address), std::string::npos) << words;
  members_.RunFor(seconds(10));
  EXPECT_TRUE(members_.Registered(at(0)));
  members_.RunFor(seconds(2));
  EXPECT_EQ(at(1).events->Take(), (Words{"~a"}));
}

TEST_F(MembershipTest, OfTwoOfOneNameTheSecondWaitsUntilTheFirstHasLeft) {
  StartThree();
  Member& second = members_.Add("second a", "a");
  members_.RunFor(minutes(10));
  EXPECT_TRUE(Holds(at(0)));
  EXPECT_TRUE(members_.Registered(at(0)));
  EXPECT_FALSE(members_.Registered(second));
  EXPECT_EQ(at(1).events->Take(), Words{});
  EXPECT_EQ(second.events->known.size(), 2u) << "it sees the others all the same";
  // Its listener is notified of the store, and once of its name.
  EXPECT_LE(second.events->statuses.size(), 2u);
  at(0).membership->Leave();
  members_.RunFor(seconds(2));
  EXPECT_TRUE(Holds(second));
  EXPECT_EQ(at(1).events->Take(), (Words{"~a"}));
}

TEST_F(MembershipTest, ACopiedStateFolderTakesTheNameOnceAndTheOtherDoesNotFightBack) {
  StartThree();
  members_.all.push_back(std::make_unique<Member>(
      Member{.id = "copy", .name = "a", .incarnations = at(0).incarnations}));
  Member& copy = at(3);
  members_.Start(&copy);
  members_.RunFor(minutes(10));
  EXPECT_TRUE(Holds(copy));
  EXPECT_FALSE(members_.Registered(at(0)));
  EXPECT_NE(StatusOf(at(0)).registration.find("another node of this name"), std::string::npos);
  EXPECT_EQ(at(1).events->Take(), (Words{"~a"}));
}

TEST_F(MembershipTest, WhatIsNoRecordUnderItsNameIsNamed) {
  WriteForeign("a", "rubbish");
  Member& a = members_.Add("a");
  members_.RunFor(minutes(1));
  EXPECT_FALSE(members_.Registered(a));
  EXPECT_NE(StatusOf(a).registration.find("delete that key"), std::string::npos);
  EXPECT_EQ(members_.store.Find(Key("a"))->value, "rubbish");
}

TEST_F(MembershipTest, WhileTheStoreIsAwayWhatIsKnownStaysKnown) {
  StartThree();
  members_.store.Stop();
  members_.RunFor(minutes(30));
  for (const auto& member : members_.all) {
    const MembershipStatus status = StatusOf(*member);
    EXPECT_FALSE(status.reachable);
    EXPECT_FALSE(status.registered);
    EXPECT_NE(status.store.find("does not answer since 1799 s (nothing listens there)"),
              std::string::npos)
        << status.store;
    EXPECT_EQ(member->membership->nodes().Nodes().size(), 2u);
    EXPECT_LE(member->events->statuses.size(), 2u);
  }
  members_.store.Start();
  members_.RunFor(minutes(2));
  ExpectNoEvent();
}

TEST_F(MembershipTest, AStoreThatWasNeverHeardIsSaidOnce) {
  members_.store.Stop();
  Member& a = members_.Add("a");
  members_.RunFor(minutes(5));
  ASSERT_EQ(a.events->statuses.size(), 1u);
  EXPECT_FALSE(a.events->statuses[0].reachable);
  EXPECT_NE(a.events->statuses[0].store.find("does not answer since 3 s"), std::string::npos)
      << a.events->statuses[0].store;
  EXPECT_NE(StatusOf(a).store.find("does not answer since 299 s"), std::string::npos)
      << StatusOf(a).store;
  members_.store.Start();
  members_.RunFor(minutes(1));
  EXPECT_TRUE(members_.Registered(a));
}

TEST_F(MembershipTest, AStoreThatIsAwayIsAskedEverFewSecondsOnly) {
  StartThree();
  members_.store.Stop();
  members_.RunFor(minutes(1));
  const uint64_t before = members_.store.requests();
  members_.RunFor(minutes(10));
  // A read and a keep-alive, each every five seconds or more.
  EXPECT_LE(members_.store.requests() - before, 3u * 2 * 600 / 4);
  EXPECT_GE(members_.store.requests() - before, 3u * 600 / 8);
}

TEST_F(MembershipTest, ASilentStoreIsNoticedAndForgiven) {
  StartThree();
  members_.store.Cut("a");
  members_.RunFor(seconds(15));
  EXPECT_FALSE(StatusOf(at(0)).reachable);
  EXPECT_TRUE(StatusOf(at(1)).reachable);
  // Its lease has ended by now, and its grace has not.
  EXPECT_EQ(members_.store.Find(Key("a")), nullptr);
  members_.store.Heal("a");
  members_.RunFor(minutes(2));
  ExpectNoEvent();
  EXPECT_TRUE(StatusOf(at(0)).reachable);
}

TEST_F(MembershipTest, OneThatIsCutOffForLongHasLeftForOthersAndNotTheyForIt) {
  StartThree();
  members_.store.Cut("a");
  members_.RunFor(minutes(5));
  EXPECT_EQ(at(0).events->Take(), Words{});
  EXPECT_EQ(at(1).events->Take(), (Words{"-a"}));
  members_.store.Heal("a");
  members_.RunFor(minutes(1));
  EXPECT_EQ(at(1).events->Take(), (Words{"+a"}));
  for (const auto& member : members_.all) member->events->Take();
  ExpectNoEvent();
}

TEST_F(MembershipTest, ARestoredStoreIsFilledAgainWithoutAnEvent) {
  for (const bool same_store : {false, true}) {
    SCOPED_TRACE(same_store);
    Members members(kSeed + same_store);
    std::swap(members.base, members_.base);
    const auto empty = members.store.Backup();
    for (const char* name : {"a", "b", "c"}) members.Add(name);
    members.RunFor(seconds(5));
    const auto first = members.store.Backup();
    members.Stop(members.all[0].get());
    members.Start(members.all[0].get());
    members.RunFor(seconds(20));
    for (const auto& member : members.all) member->events->Take();
    for (const auto& copy : {empty, first}) {
      members.store.Restore(*copy, same_store);
      members.RunFor(minutes(2));
      for (const auto& member : members.all) {
        EXPECT_EQ(member->events->Take(), Words{}) << member->name;
        EXPECT_TRUE(members.Registered(*member));
        EXPECT_EQ(member->events->known.at(member->name == "a" ? "b" : "a").incarnation,
                  members.all[member->name == "a" ? 1 : 0]->incarnations.back());
      }
    }
  }
}

TEST_F(MembershipTest, WhatASilentWatchMissesIsFoundBySomethingElse) {
  StartThree();
  members_.store.Silence();
  members_.Add("d");
  members_.RunFor(seconds(35));
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(at(i).events->Take(), (Words{"+d"}));
}

// The store is restored while the watches are silent, and grows again to exactly the revision that
// they had reported: no stamp shows it.
TEST_F(MembershipTest, AStoreThatBecameAnotherAtTheSameRevisionIsReadInTime) {
  StartThree();
  const auto copy = members_.store.Backup();
  members_.Stop(&at(0));
  members_.RunFor(seconds(12));
  ASSERT_FALSE(Holds(at(0)));
  members_.store.Silence();
  members_.store.Restore(*copy, true);
  members_.Start(&at(0));
  members_.RunFor(minutes(1));
  ASSERT_TRUE(Holds(at(0)));
  EXPECT_EQ(at(1).events->Take(), (Words{"-a"}));
  members_.RunFor(minutes(5));
  EXPECT_EQ(at(1).events->Take(), (Words{"+a"}));
  EXPECT_EQ(at(2).events->known.at("a").incarnation, at(0).incarnations.back());
}

// The same for a node that has to register: the record under its name contradicts what it knows.
TEST_F(MembershipTest, ANodeWithAnotherRecordAtTheSameRevisionRegistersPromptly) {
  StartThree();
  const auto copy = members_.store.Backup();
  members_.Stop(&at(0));
  members_.Start(&at(0));
  members_.RunFor(seconds(1));
  ASSERT_TRUE(Holds(at(0)));
  members_.store.Silence();
  members_.store.Restore(*copy, true);
  members_.Add("d");
  members_.RunFor(milliseconds(100));
  ASSERT_FALSE(Holds(at(0)));
  members_.RunFor(seconds(10));
  EXPECT_TRUE(Holds(at(0)));
  EXPECT_TRUE(members_.Registered(at(0)));
}

TEST_F(MembershipTest, WhatWasForgottenWhileOneWasCutOffIsReadAgain) {
  StartThree();
  members_.store.Cut("a");
  members_.Add("d");
  members_.RunFor(seconds(2));
  members_.Stop(&at(3));
  members_.Stop(&at(1));
  members_.Add("e");
  members_.RunFor(seconds(12));
  members_.store.Compact();
  members_.store.Heal("a");
  members_.RunFor(minutes(2));
  std::map<std::string, NodeRecord>& known = at(0).events->known;
  EXPECT_TRUE(known.contains("e"));
  EXPECT_FALSE(known.contains("d"));
  EXPECT_FALSE(known.contains("b"));
}

TEST_F(MembershipTest, ANodeThatCouldNotRegisterWhileTheStoreWasAwayHasNotLeft) {
  for (uint64_t seed = kSeed; seed < kSeed + 10; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Members members(seed);
    for (const char* name : {"a", "b"}) members.Add(name);
    members.RunFor(seconds(5));
    members.store.Cut("b");
    members.RunFor(seconds(12));
    ASSERT_EQ(members.store.Find(Key("b")), nullptr);
    members.store.Stop();
    members.store.Heal("b");
    members.RunFor(minutes(1));
    members.store.Start();
    members.RunFor(minutes(2));
    EXPECT_EQ(members.all[0]->events->all, (Words{"+b"}));
    EXPECT_TRUE(members.Registered(*members.all[1]));
  }
}

// A keep-alive reports the end of its lease first. The watch reports it later, when the node has
// long registered again.
TEST_F(MembershipTest, LateNewsOfItsOwnNameAreNoNews) {
  constexpr size_t kTimes = 20;
  Member& a = members_.Add("a");
  members_.RunFor(seconds(5));
  ASSERT_TRUE(members_.Registered(a));
  const auto client = members_.store.Connect("operator");
  for (size_t i = 0; i < kTimes; ++i) {
    const KeyValue* value = members_.store.Find(Key("a"));
    ASSERT_NE(value, nullptr);
    client->Revoke(value->lease, core::kNever, [](const auto&) {});
    // The watch alone is slow.
    members_.store.SetDelay(milliseconds(1), seconds(12));
    members_.RunFor(milliseconds(2));
    members_.store.SetDelay(milliseconds(1), {});
    members_.RunFor(seconds(60));
    ASSERT_TRUE(members_.Registered(a));
  }
  const auto ends = std::ranges::count_if(
      a.events->statuses, [](const MembershipStatus& status) { return !status.registered; });
  EXPECT_LE(static_cast<size_t>(ends), kTimes + 1);  // and as it began
}

TEST_F(MembershipTest, LostAnswersDelayAndHarmNothing) {
  members_.store.SetLosses(0.3);
  for (const char* name : {"a", "b", "c"}) members_.Add(name);
  members_.RunFor(minutes(10));
  members_.store.SetLosses(0);
  members_.RunFor(minutes(1));
  for (const auto& member : members_.all) {
    EXPECT_TRUE(members_.Registered(*member));
    EXPECT_EQ(member->events->known.size(), 2u);
  }
}

TEST_F(MembershipTest, IdleANodeAsksEveryThirdOfItsLease) {
  StartThree();
  const uint64_t before = members_.store.requests();
  members_.RunFor(minutes(10));
  // Keep-alives, and two to four reads with their watches.
  const uint64_t asked = members_.store.requests() - before;
  EXPECT_GE(asked, 3u * (180 + 2 * 2));
  EXPECT_LE(asked, 3u * (180 + 2 * 4));
  ExpectNoEvent();
}

TEST_F(MembershipTest, BesideOthersInTheStoreItReadsEveryHalfMinute) {
  StartThree();
  const auto client = members_.store.Connect("other");
  const uint64_t before = members_.store.requests();
  for (int minute = 0; minute < 60; ++minute) {
    client->CompareAndSet({.key = "/other/" + std::to_string(minute), .expected = {}, .value = "x"},
                          core::kNever, [](const auto&) {});
    members_.RunFor(seconds(10));
  }
  // Keep-alives, the other's writes, and a read with its watch every half minute.
  EXPECT_LE(members_.store.requests() - before, 3u * 180 + 60 + 3 * 2 * 21);
  ExpectNoEvent();
}

TEST_F(MembershipTest, StrangersAreRefused) {
  members_.base.table.allowed = {"a", "b"};
  for (const char* name : {"a", "b", "s"}) members_.Add(name);
  members_.RunFor(minutes(2));
  EXPECT_EQ(at(0).events->known.size(), 1u);
  EXPECT_EQ(at(0).events->count["s"], 1u);
  EXPECT_EQ(at(0).membership->nodes().refused(), 1u);
}

TEST_F(MembershipTest, MoreNodesThanItLooksAtAreSaid) {
  members_.base.table.nodes_max = 3;
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) members_.Add(name);
  members_.RunFor(minutes(1));
  for (const auto& member : members_.all) {
    EXPECT_TRUE(members_.Registered(*member));
    EXPECT_EQ(member->events->known.size(), 3u);
    EXPECT_NE(StatusOf(*member).store.find("than the 3 that are looked at"), std::string::npos);
  }
}

TEST_F(MembershipTest, ForeignKeysAreNoNodes) {
  WriteForeign("no/node", "x");
  WriteForeign("", "x");
  StartThree();
  members_.RunFor(minutes(1));
  ExpectNoEvent();
}

// A store that adds unrequested keys to its answers, among them one that is shorter than the
// prefix.
class StrangeKeys final : public KeyValues {
 public:
  explicit StrangeKeys(std::unique_ptr<KeyValues> store) : store_(std::move(store)) {}

  void Range(std::string prefix, size_t most, core::Tick deadline,
             Callback<RangeRead> callback) override {
    store_->Range(std::move(prefix), most, deadline,
                  [callback = std::move(callback)](core::Result<RangeRead> read) {
                    if (read.ok()) {
                      for (const char* key : kKeys) read->values.push_back({.key = key});
                    }
                    callback(std::move(read));
                  });
  }
  void CompareAndSet(Write write, core::Tick deadline, Callback<WriteAnswer> callback) override {
    store_->CompareAndSet(std::move(write), deadline, std::move(callback));
  }
  void Grant(core::Duration duration, core::Tick deadline,
             Callback<LeaseAnswer> callback) override {
    store_->Grant(duration, deadline, std::move(callback));
  }
  void KeepAlive(StoreLease lease, core::Tick deadline, Callback<LeaseAnswer> callback) override {
    store_->KeepAlive(lease, deadline, std::move(callback));
  }
  void Revoke(StoreLease lease, core::Tick deadline, Callback<core::Done> callback) override {
    store_->Revoke(lease, deadline, std::move(callback));
  }
  WatchId Watch(std::string prefix, int64_t from, core::Tick deadline,
                Callback<Changes> callback) override {
    return store_->Watch(
        std::move(prefix), from, deadline,
        [callback = std::move(callback)](core::Result<Changes> changes) {
          if (changes.ok() && !changes->changes.empty()) {
            for (const char* key : kKeys) {
              changes->changes.push_back({.now = {.key = key, .modified = changes->at.revision}});
            }
          }
          callback(std::move(changes));
        });
  }
  void Unwatch(WatchId watch) override { store_->Unwatch(watch); }
  void Poll(core::Tick until) override { store_->Poll(until); }
  core::Tick Now() const override { return store_->Now(); }
  std::string Describe() const override { return store_->Describe(); }

 private:
  static constexpr std::array kKeys = {"", "/", "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz"};
  std::unique_ptr<KeyValues> store_;
};

TEST_F(MembershipTest, KeysThatWereNotAskedForAreIgnoredAndSaidOnce) {
  members_.wrap = [](std::unique_ptr<KeyValues> store) {
    return std::make_unique<StrangeKeys>(std::move(store));
  };
  StartThree();
  members_.RunFor(minutes(1));
  ExpectNoEvent();
  for (const auto& member : members_.all) {
    EXPECT_NE(StatusOf(*member).store.find("keys that were not asked for"), std::string::npos);
    EXPECT_LE(member->events->statuses.size(), 1u);
  }
}

// One that goes while its requests are under way is not called any more.
TEST_F(MembershipTest, MayGoAtAnyTime) {
  for (int i = 0; i < 40; ++i) {
    Member& member = members_.Add("a" + std::to_string(i));
    members_.RunFor(std::chrono::microseconds(370 * i));
    member.membership.reset();
    members_.RunFor(seconds(1));
    members_.Stop(&member);
  }
}

}  // namespace
}  // namespace ravenstore::cluster
