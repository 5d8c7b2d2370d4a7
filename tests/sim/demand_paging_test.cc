#include "sim/demand_paging.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "core/types.h"
#include "sim/hardware.h"
#include "sim/trace.h"
#include "sim/trace_builder.h"

namespace ravenstore::sim {
namespace {

using core::Duration;
using core::MiB;
using std::chrono::milliseconds;

// A MiB takes a millisecond each way.
Hardware Link() {
  Hardware hardware;
  hardware.up = hardware.down = 0x1p20 * 1e3;
  hardware.latency = hardware.per_copy = Duration{0};
  return hardware;
}

Outcome Replayed(const Trace& trace, core::Bytes budget, const DemandPaging& options = {}) {
  return ReplayDemandPaging(trace, Link(), budget, options);
}

TEST(DemandPagingTest, ACallWaitsForTheCopyOutAndForTheCopyBack) {
  Builder builder("two in turn");
  const uint32_t first = builder.Make(MiB(2));
  builder.Make(MiB(2));  // the first is copied out
  builder.Get(first);    // the second is copied out, then the first comes back
  builder.Compute(1e-3);
  const Outcome outcome = Replayed(builder.Take(), MiB(3));
  EXPECT_EQ(outcome.failure, "");
  EXPECT_EQ(outcome.down, MiB(4));
  EXPECT_EQ(outcome.up, MiB(2));
  EXPECT_EQ(outcome.stall, milliseconds(6));
  EXPECT_EQ(outcome.create_stall, milliseconds(2));
  EXPECT_EQ(outcome.time, outcome.compute + outcome.stall);
}

TEST(DemandPagingTest, CopiesOutTakeNoTimeWhereTheyAreAssumedToBeAhead) {
  Builder builder("two in turn");
  const uint32_t first = builder.Make(MiB(2));
  builder.Make(MiB(2));
  builder.Get(first);
  builder.Compute(1e-3);
  const Outcome outcome = Replayed(builder.Take(), MiB(3), {.copies_out = false});
  EXPECT_EQ(outcome.stall, milliseconds(2));
}

// Reads of one tensor again and again, and once each of many others.
Trace OftenAndOnce() {
  Builder builder("often and once");
  const uint32_t often = builder.Make(MiB(1));
  std::vector<uint32_t> others;
  for (int i = 0; i < 6; ++i) others.push_back(builder.Make(MiB(1)));
  const auto use = [&builder](uint32_t tensor) {
    builder.Get(tensor);
    builder.Compute(1e-6);
    builder.Put(tensor, false);
  };
  for (int i = 0; i < 5; ++i) use(often);
  for (const uint32_t tensor : others) use(tensor);
  use(often);
  return builder.Take();
}

TEST(DemandPagingTest, FrequencyKeepsWhatIsUsedOften) {
  const Outcome lru = Replayed(OftenAndOnce(), MiB(3), {.order = EvictionOrder::kLru});
  const Outcome gdsf = Replayed(OftenAndOnce(), MiB(3), {.order = EvictionOrder::kGdsf});
  EXPECT_LT(gdsf.up, lru.up);
}

TEST(DemandPagingTest, MoreInUseThanTheBudgetFails) {
  Builder builder("too much");
  builder.Create(MiB(2));
  builder.Create(MiB(2));
  EXPECT_NE(Replayed(builder.Take(), MiB(3)).failure.find("at call 1"), std::string::npos);
}

TEST(DemandPagingTest, AClientGoesOnWhenAnotherLetsGo) {
  Trace trace;
  trace.clients = 2;
  trace.tensors = {{0, MiB(2), ""}, {1, MiB(2), ""}};
  trace.ops = {{.kind = OpKind::kCreate, .client = 0, .tensor = 0},
               {.kind = OpKind::kCompute, .client = 0, .time = milliseconds(10)},
               {.kind = OpKind::kFree, .client = 0, .tensor = 0},
               {.kind = OpKind::kCompute, .client = 1, .time = milliseconds(1)},
               {.kind = OpKind::kCreate, .client = 1, .tensor = 1}};
  const Outcome outcome = Replayed(trace, MiB(3));
  EXPECT_EQ(outcome.failure, "");
  EXPECT_EQ(outcome.client_stall[1], milliseconds(9));
  EXPECT_EQ(outcome.up, core::Bytes{});
}

}  // namespace
}  // namespace ravenstore::sim
