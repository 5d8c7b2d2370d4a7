// Membership through random faults, in virtual time. RAVENSTORE_FUZZ_SEED and RAVENSTORE_FUZZ_RUNS
// (--test_env) vary and prolong it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/cluster/members.h"

namespace ravenstore::cluster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kNodes = 6;
constexpr int kFaults = 60;
// After the last fault: a lease, a grace (twice: a restored store is doubted), a recheck, retries.
constexpr core::Duration kConverged = seconds(10 + 2 * 15 + 30 + 15);

uint64_t Number(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

class Trial {
 public:
  explicit Trial(uint64_t seed) : members_(seed), random_(seed + 1) {
    for (size_t i = 0; i < kNodes; ++i) {
      // The last is another of the first's name.
      const std::string id = "n" + std::to_string(i);
      members_.Add(id, i + 1 == kNodes ? "n0" : id);
    }
    backup_ = members_.store.Backup();
  }

  void BreakThings() {
    for (int i = 0; i < kFaults; ++i) {
      Fault();
      members_.RunFor(milliseconds(random_() % 12'000));
    }
  }

  void Repair() {
    members_.store.Start();
    members_.store.SetLosses(0);
    members_.store.SetDelay(milliseconds(1), {});
    for (const auto& member : members_.all) {
      members_.store.Heal(member->id);
      if (!member->lives()) members_.Start(member.get());
    }
    members_.RunFor(kConverged);
  }

  // Every node knows every other name's registered node, and nothing else.
  void ExpectConverged() {
    std::map<std::string, Incarnation> holders;
    for (const auto& member : members_.all) {
      if (!members_.Registered(*member)) continue;
      EXPECT_TRUE(holders.emplace(member->name, member->incarnations.back()).second)
          << "two believe to be " << member->name;
    }
    EXPECT_EQ(holders.size(), kNodes - 1);
    for (const auto& member : members_.all) {
      EXPECT_TRUE(member->membership->status().reachable);
      EXPECT_EQ(member->events->known.size(), kNodes - 2) << member->id;
      for (const auto& [name, record] : member->events->known) {
        EXPECT_EQ(record.incarnation, holders.at(name)) << member->id << " of " << name;
      }
    }
  }

  // A record was only ever replaced by its own node, or by a later start of the same folder.
  void ExpectEachNameHadOneHolder() {
    for (const FakeChange& change : members_.store.history()) {
      if (change.change.deleted || !change.before) continue;
      const auto before = ReadNodeRecord("x", *change.before);
      const auto now = ReadNodeRecord("x", change.change.now.value);
      ASSERT_TRUE(before.ok() && now.ok());
      if (before->incarnation == now->incarnation) continue;
      const auto& known = members_.predecessors.at(now->incarnation);
      EXPECT_NE(std::ranges::find(known, before->incarnation), known.end())
          << change.change.now.key << " was taken from a stranger";
    }
  }

  // Each start, end and cut of a node is reported at most twice; faults of the store are not. But
  // over a bad network a restored store may hold old records for longer than the grace.
  void ExpectNoStorm() {
    for (const auto& member : members_.all) {
      for (const auto& [name, count] : member->events->count) {
        EXPECT_LE(count, 2 * (members_.starts[name] + disturbances_[name] + bad_restores_) + 2)
            << member->id << " of " << name;
      }
    }
  }

 private:
  Member& Any() { return *members_.all[random_() % kNodes]; }

  void Fault() {
    FakeStore& store = members_.store;
    Member& member = Any();
    switch (random_() % 13) {
      case 0: return store.Stop();
      case 1:
      case 2: return store.Start();
      case 3: ++disturbances_[member.name]; return store.Cut(member.id);
      case 4:
      case 5: return store.Heal(member.id);
      case 6: ++disturbances_[member.name]; return members_.Stop(&member);
      case 7: members_.Stop(&member); return members_.Start(&member, random_() % 4 == 0);
      case 8: return store.Compact();
      case 9: return store.Silence();
      case 10: backup_ = store.Backup(); return;
      case 11:
        if (bad_network_) ++bad_restores_;
        return store.Restore(*backup_, random_() % 2 == 0);
      default:
        bad_network_ = true;
        store.SetLosses(random_() % 2 == 0 ? 0 : 0.2);
        return store.SetDelay(milliseconds(1 + random_() % 500), milliseconds(random_() % 1000));
    }
  }

  Members members_;
  std::mt19937_64 random_;
  std::shared_ptr<const FakeStore::Copy> backup_;
  std::map<std::string, size_t> disturbances_;
  bool bad_network_ = false;
  size_t bad_restores_ = 0;
};

TEST(MembershipFaultsTest, AfterFaultsAllKnowAllAndNoNameHadTwoHolders) {
  const uint64_t first = Number("RAVENSTORE_FUZZ_SEED", 33);
  const uint64_t runs = Number("RAVENSTORE_FUZZ_RUNS", 200);
  for (uint64_t seed = first; seed < first + runs && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Trial trial(seed);
    trial.BreakThings();
    trial.Repair();
    trial.ExpectConverged();
    trial.ExpectEachNameHadOneHolder();
    trial.ExpectNoStorm();
  }
}

}  // namespace
}  // namespace ravenstore::cluster
