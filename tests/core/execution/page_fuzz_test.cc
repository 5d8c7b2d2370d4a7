// Random clients on the executor on pages, with late reports, late and failing copies, and deaths;
// checked by tests/core/execution/page_world.h.
//
// RAVENSTORE_FUZZ_SECONDS=n goes on for that long, RAVENSTORE_FUZZ_FIRST=n begins with another seed
// than 1.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/core/execution/page_world.h"

namespace ravenstore::core {
namespace {

constexpr int kSteps = 2000;
constexpr uint64_t kSeeds = 300;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

PageWorld::Options OptionsOf(plan::Random* random) {
  PageWorld::Options options;
  options.pages = static_cast<uint32_t>(4 + random->Below(8));
  options.slots = random->OneIn(2);
  if (random->OneIn(2)) options.failures = 2 + random->Below(30);
  if (random->OneIn(3)) options.kills = 200 + random->Below(1500);
  const auto pages = [&](uint64_t most) {
    return kExtentAlignment * options.cells_per_page * (1 + random->Below(most));
  };
  if (random->OneIn(3)) options.pools = {pages(12)};
  if (random->OneIn(3)) options.pools.insert(options.pools.begin(), pages(6));
  if (random->OneIn(4)) options.pools.insert(options.pools.begin(), pages(3));
  if (random->OneIn(2)) options.slowness = 1 + random->Below(20);
  if (random->OneIn(2)) options.lateness = 1 + random->Below(20);
  options.plans = !random->OneIn(4);
  options.shares = random->OneIn(3);
  options.losses = random->OneIn(3);
  options.recomputes = random->OneIn(3);
  options.in_place = random->OneIn(2);
  options.maps = static_cast<uint32_t>(1 + random->Below(4));
  return options;
}

void Add(const PageWorld::Counts& of, PageWorld::Counts* counts) {
  counts->reads += of.reads;
  counts->failures += of.failures;
  counts->refused += of.refused;
  counts->kills += of.kills;
  counts->stuck += of.stuck;
  counts->in += of.in;
  counts->out += of.out;
  counts->not_revoked += of.not_revoked;
  counts->dropped_copies += of.dropped_copies;
  counts->released += of.released;
  counts->to_slots += of.to_slots;
  counts->lost += of.lost;
  counts->fetched += of.fetched;
  counts->moved += of.moved;
  counts->recomputed += of.recomputed;
  counts->granted_early += of.granted_early;
  counts->broken += of.broken;
  counts->in_place += of.in_place;
  counts->created_away += of.created_away;
}

TEST(PageFuzzTest, NoClientReadsWrongBytes) {
  const uint64_t first = FromEnvironment("RAVENSTORE_FUZZ_FIRST", 1);
  const uint64_t seconds = FromEnvironment("RAVENSTORE_FUZZ_SECONDS", 0);
  const auto begin = std::chrono::steady_clock::now();
  const auto goes_on = [&](uint64_t seed) {
    if (seconds == 0) return seed < first + kSeeds;
    return std::chrono::steady_clock::now() - begin < std::chrono::seconds(seconds);
  };
  PageWorld::Counts counts;
  uint64_t programs = 0;
  for (uint64_t seed = first; goes_on(seed); ++seed, ++programs) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    plan::Random random(seed);
    PageWorld world(OptionsOf(&random), &random);
    for (int step = 0; step < kSteps && world.fault().empty(); ++step) world.Step();
    if (world.fault().empty()) world.Finish();
    Add(world.counts(), &counts);
    ASSERT_EQ(world.fault(), "");
  }
  std::printf(
      "seeds from %lu: %lu programs, %lu reads checked, %lu copies failed, %lu calls refused, "
      "%lu deaths, %lu stuck; in %lu, out %lu cells, %lu units not revoked, %lu copies dropped, "
      "%lu pages released, %lu tensors moved to slots, %lu lost, %lu pages fetched, "
      "%lu copies moved, %lu recomputed, %lu granted early, %lu of them broken, %lu uses of copies "
      "in "
      "place, %lu tensors created there\n",
      first, programs, counts.reads, counts.failures, counts.refused, counts.kills, counts.stuck,
      counts.in.count() / 512, counts.out.count() / 512, counts.not_revoked, counts.dropped_copies,
      counts.released, counts.to_slots, counts.lost, counts.fetched, counts.moved,
      counts.recomputed, counts.granted_early, counts.broken, counts.in_place, counts.created_away);
  // Each kind of adversity was there.
  EXPECT_GT(counts.failures, 0u);
  EXPECT_GT(counts.kills, 0u);
  EXPECT_GT(counts.not_revoked, 0u);
  EXPECT_GT(counts.released, 0u);
  EXPECT_GT(counts.to_slots, 0u);
  EXPECT_GT(counts.lost, 0u);
  EXPECT_GT(counts.fetched, 0u);
  EXPECT_GT(counts.moved, 0u);
  EXPECT_GT(counts.recomputed, 0u);
  EXPECT_GT(counts.granted_early, 0u);
  EXPECT_GT(counts.broken, 0u);
  EXPECT_GT(counts.in_place, 0u);
  EXPECT_GT(counts.created_away, 0u);
}

// A page must not come while kernels use its copy. The ledger finds that.
TEST(PageFuzzTest, AUseInPlaceThatEndsTooEarlyIsFound) {
  for (const bool ends_early : {false, true}) {
    uint64_t found = 0;
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      plan::Random random(seed);
      PageWorld world({.lateness = 20, .in_place = true, .ends_early = ends_early}, &random);
      for (int step = 0; step < kSteps && world.fault().empty(); ++step) world.Step();
      found += world.fault().empty() ? 0 : 1;
    }
    EXPECT_EQ(found > 0, ends_early);
  }
}

// The same course ends at each of its steps, with whatever is under way then.
TEST(PageFuzzTest, AClientMayDieAtEachStep) {
  constexpr int kDeaths = 400;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    for (int death = 0; death < kDeaths; ++death) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", step " + std::to_string(death));
      plan::Random random(seed);
      PageWorld::Options options = OptionsOf(&random);
      options.kills = 0;
      PageWorld world(options, &random);
      for (int step = 0; step < death; ++step) world.Step();
      world.Kill();
      // The next client has the same memory.
      for (int step = 0; step < 50; ++step) world.Step();
      ASSERT_EQ(world.fault(), "");
    }
  }
}

}  // namespace
}  // namespace ravenstore::core
