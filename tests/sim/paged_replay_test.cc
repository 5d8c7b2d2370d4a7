#include "sim/paged_replay.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/plan/neighbour_use.h"
#include "core/plan/small_tensors.h"
#include "sim/demand_paging.h"
#include "sim/generators.h"
#include "sim/score.h"
#include "tests/core/plan/seeds.h"

namespace ravenstore::sim {
namespace {

using core::Bytes;
using core::Duration;
using core::MiB;
using core::plan::ForSeeds;
using core::plan::Random;
using std::chrono::microseconds;

constexpr Foresight kAll[] = {Foresight::kLives, Foresight::kCalls, Foresight::kHints,
                              Foresight::kLearned};

ReplaySetup SetupOf(Bytes budget, Foresight foresight) {
  return {.budget = budget, .page = MiB(2), .foresight = foresight, .mapping = {}, .check = true};
}

Op Call(OpKind kind, uint32_t tensor, bool modified = false) {
  Op op;
  op.kind = kind;
  op.tensor = tensor;
  op.modified = modified;
  return op;
}
Op Compute(Duration time) {
  Op op;
  op.time = time;
  return op;
}

// Two tensors of 4 MiB are used in turn; one fits.
Trace TwoInTurn(int rounds) {
  Trace trace;
  trace.name = "two";
  trace.tensors = {{0, MiB(4), ""}, {0, MiB(4), ""}};
  for (uint32_t tensor : {0u, 1u}) {
    trace.ops.push_back(Call(OpKind::kCreate, tensor));
    trace.ops.push_back(Compute(microseconds(100)));
    trace.ops.push_back(Call(OpKind::kPut, tensor, true));
  }
  for (int i = 0; i < rounds; ++i) {
    for (uint32_t tensor : {0u, 1u}) {
      trace.ops.push_back(Call(OpKind::kGet, tensor));
      trace.ops.push_back(Compute(microseconds(100)));
      trace.ops.push_back(Call(OpKind::kPut, tensor));
    }
  }
  return trace;
}

TEST(PagedReplayTest, NothingWaitsWhereAllFits) {
  for (const Foresight foresight : kAll) {
    const Outcome result = ReplayPaged(TwoInTurn(5), SetupOf(MiB(8), foresight));
    EXPECT_EQ(result.failure, "");
    EXPECT_EQ(result.stall, Duration{0});
    EXPECT_EQ(result.compute, microseconds(1200));
    EXPECT_EQ(result.up, Bytes{});
  }
}

TEST(PagedReplayTest, WhatDoesNotFitCrossesTheLink) {
  for (const Foresight foresight : kAll) {
    const Outcome result = ReplayPaged(TwoInTurn(5), SetupOf(MiB(4), foresight));
    EXPECT_EQ(result.failure, "");
    EXPECT_EQ(result.up, MiB(4) * 10);
    EXPECT_EQ(result.down, MiB(4) * 2);  // clean copies are dropped
    EXPECT_EQ(result.time, result.compute + result.stall);
    EXPECT_GT(result.stats.moves.maps, 0u);
  }
}

// One of the tensors has to be away at all times; the host has room for half of it.
TEST(PagedReplayTest, AFullHostNeedsAnotherPool) {
  for (const Foresight foresight : kAll) {
    ReplaySetup setup = SetupOf(MiB(4), foresight);
    setup.host = MiB(2);
    EXPECT_NE(ReplayPaged(TwoInTurn(5), setup).failure, "");
    setup.pools = {{.kind = core::PoolKind::kFile, .capacity = MiB(8), .in = 5e9, .out = 5e9}};
    const Outcome slow = ReplayPaged(TwoInTurn(5), setup);
    EXPECT_EQ(slow.failure, "");
    setup.pools = {{.kind = core::PoolKind::kPeer, .capacity = MiB(8), .in = 390e9, .out = 390e9}};
    const Outcome fast = ReplayPaged(TwoInTurn(5), setup);
    EXPECT_EQ(fast.failure, "");
    EXPECT_LT(fast.stall, slow.stall / 2);
  }
}

TEST(PagedReplayTest, MoreInUseThanTheBudgetFails) {
  const Outcome result = ReplayPaged(TwoInTurn(1), SetupOf(MiB(2), Foresight::kLearned));
  EXPECT_NE(result.failure.find("no room"), std::string::npos);
}

// Three tensors of two pages are created. Kernels then use all of them; four pages are there.
Trace MoreThanFits(int kernels) {
  Trace trace;
  trace.name = "more than fits";
  trace.tensors = {{0, MiB(4), ""}, {0, MiB(4), ""}, {0, MiB(4), ""}};
  for (uint32_t tensor : {0u, 1u, 2u}) {
    trace.ops.push_back(Call(OpKind::kCreate, tensor));
    trace.ops.push_back(Compute(microseconds(100)));
    trace.ops.push_back(Call(OpKind::kPut, tensor, true));
  }
  for (int i = 0; i < kernels; ++i) {
    for (uint32_t tensor : {0u, 1u, 2u}) trace.ops.push_back(Call(OpKind::kGet, tensor));
    trace.ops.push_back(Compute(microseconds(100)));
    for (uint32_t tensor : {0u, 1u, 2u}) trace.ops.push_back(Call(OpKind::kPut, tensor, true));
  }
  return trace;
}

TEST(PagedReplayTest, AKernelUsesOnTheHostWhatDoesNotFit) {
  for (const Foresight foresight : kAll) {
    ReplaySetup setup = SetupOf(MiB(8), foresight);
    EXPECT_NE(ReplayPaged(MoreThanFits(5), setup).failure, "");
    setup.hardware.duplex = 1;
    setup.hardware.per_copy = Duration{0};
    setup.in_place = 20e9;
    const Outcome five = ReplayPaged(MoreThanFits(5), setup);
    const Outcome ten = ReplayPaged(MoreThanFits(10), setup);
    EXPECT_EQ(ten.failure, "");
    EXPECT_EQ(ten.time, ten.compute + ten.stall);
    // Of each kernel four pages are on the device, and stay there.
    EXPECT_EQ(five.in_place, MiB(8) * 5);
    EXPECT_EQ(ten.in_place, MiB(8) * 10);
    EXPECT_EQ(ten.up, five.up);
    EXPECT_NEAR(core::Seconds(ten.stall - five.stall), 5 * 4 * 1048576 / 20e9, 1e-6);
  }
}

TEST(PagedReplayTest, ATensorThatDoesNotFitBeginsOnTheHost) {
  Trace trace;
  trace.name = "large";
  trace.tensors = {{0, MiB(12), ""}};
  trace.ops = {Call(OpKind::kCreate, 0), Compute(microseconds(100)), Call(OpKind::kPut, 0, true),
               Call(OpKind::kGet, 0),    Compute(microseconds(100)), Call(OpKind::kFree, 0)};
  for (const Foresight foresight : kAll) {
    ReplaySetup setup = SetupOf(MiB(8), foresight);
    EXPECT_NE(ReplayPaged(trace, setup).failure, "");
    setup.in_place = 20e9;
    const Outcome result = ReplayPaged(trace, setup);
    EXPECT_EQ(result.failure, "");
    EXPECT_GT(result.in_place, MiB(12));
  }
}

// Each client's part of the trace; all begin at the same time.
Trace Merge(const std::vector<Trace>& clients) {
  Trace all;
  all.name = "together";
  all.clients = static_cast<uint32_t>(clients.size());
  for (uint32_t client = 0; client < all.clients; ++client) {
    const auto first = static_cast<uint32_t>(all.tensors.size());
    for (TraceTensor tensor : clients[client].tensors) {
      tensor.client = client;
      all.tensors.push_back(std::move(tensor));
    }
    for (Op op : clients[client].ops) {
      op.client = client;
      op.tensor += first;
      op.call = 0;
      all.ops.push_back(op);
    }
  }
  return all;
}

TEST(PagedReplayTest, TwoElasticJobsAndAStoreClientHaveOnePlan) {
  const Trace job = Generate("lstm", kHardware[0], 6);
  const Trace store = Generate("gpt2-small", kHardware[0], 6);
  const Trace trace = Merge({job, job, store});
  ASSERT_TRUE(Validate(trace).ok());
  ReplaySetup setup = SetupOf(Bytes(trace.Footprint().count() / 2), Foresight::kLearned);
  setup.page = MiB(16);
  setup.addresses_stay = true;
  setup.in_place = 50e9;
  setup.in_place_clients = 2;
  const Outcome result = ReplayPaged(trace, setup);
  EXPECT_EQ(result.failure, "");
  EXPECT_EQ(result.compute, ComputeFrom(trace, 0));
  EXPECT_GT(result.stats.handed_over, 0u);
  EXPECT_GT(result.stats.shared_plans, 0u);
  EXPECT_GT(result.in_place, Bytes{});
  ASSERT_EQ(result.client_stall.size(), 3u);
  for (uint32_t client = 0; client < 3; ++client) {
    const Duration compute = ComputeFrom(trace.Only(client), 0);
    EXPECT_LT(result.client_stall[client], compute / 4 * 5) << client;
  }
  const Outcome lru = ReplayDemandPaging(trace, setup.hardware, setup.budget, {});
  EXPECT_LT(result.stall, lru.stall / 4 * 3);
}

TEST(PagedReplayTest, ClientsHaveSharesOrOnePlan) {
  const Trace trace = Generate(kTwoTenants, kHardware[0], 3);
  for (const uint64_t percent : {45, 80}) {
    for (const Foresight foresight : kAll) {
      ReplaySetup setup = SetupOf(Bytes(trace.Footprint().count() / 100 * percent), foresight);
      setup.page = MiB(16);
      const Outcome result = ReplayPaged(
          foresight == Foresight::kHints ? WithHints(trace, Hints::kTime) : trace, setup);
      EXPECT_EQ(result.failure, "");
      EXPECT_EQ(result.compute, ComputeFrom(trace, 0));
      ASSERT_EQ(result.client_stall.size(), 2u);
      EXPECT_EQ(result.client_stall[0] + result.client_stall[1], result.stall);
      EXPECT_GT(result.stats.handed_over, 0u);
    }
  }
}

// One client frees all before the other begins, which needs more than half of the device.
TEST(PagedReplayTest, APageThatOneClientDoesNotNeedGoesToTheOther) {
  Trace trace;
  trace.name = "one after the other";
  trace.clients = 2;
  trace.tensors = {{0, MiB(14), ""}, {1, MiB(14), ""}};
  for (uint32_t client : {0u, 1u}) {
    for (const OpKind kind : {OpKind::kCreate, OpKind::kCompute, OpKind::kFree}) {
      Op op = Call(kind, client);
      if (kind == OpKind::kCompute) op = Compute(microseconds(100));
      op.client = client;
      trace.ops.push_back(op);
    }
  }
  Op late = Compute(std::chrono::milliseconds(10));
  late.client = 1;
  trace.ops.insert(trace.ops.begin() + 3, late);
  for (const Foresight foresight : kAll) {
    const Outcome result = ReplayPaged(trace, SetupOf(MiB(16), foresight));
    EXPECT_EQ(result.failure, "");
    EXPECT_GE(result.stats.handed_over, 6u);
    EXPECT_EQ(result.up, Bytes{});
  }
}

// What a client that may hold 30% of the trace's footprint decides in the end.
bool PrefersSlots(const std::string& name) {
  const Trace trace = Generate(name, kHardware[0], 1);
  const core::plan::SmallTensorRule rule{.page = MiB(8)};
  core::plan::NeighbourUse use(rule.page, Bytes(trace.Footprint().count() / 10 * 3));
  for (const Op& op : trace.ops) {
    if (op.kind == OpKind::kCompute || op.kind == OpKind::kStep) continue;
    const Bytes size = trace.tensors[op.tensor].bytes;
    if (op.kind == OpKind::kCreate) use.Created(op.tensor, size, rule.IsSmall(size));
    if (op.kind == OpKind::kGet) use.Got(op.tensor, size);
    if (op.kind == OpKind::kFree) use.Freed(op.tensor);
  }
  return use.PreferSlots();
}

TEST(PagedReplayTest, SmallTensorsOfCachesHaveSlotsAndThoseOfTrainingSharePages) {
  EXPECT_TRUE(PrefersSlots("zipf"));
  EXPECT_TRUE(PrefersSlots("dlrm"));
  EXPECT_FALSE(PrefersSlots("lstm"));
}

// How many tensors moved to slots, of a client that may hold 30% and learns.
uint64_t MovedToSlots(const std::string& name) {
  const Trace trace = Generate(name, kHardware[0], 1);
  const Outcome out =
      ReplayPaged(trace, {.budget = Bytes(trace.Footprint().count() / 10 * 3), .mapping = {}});
  EXPECT_EQ(out.failure, "");
  return out.stats.moves.to_slots;
}

TEST(PagedReplayTest, TensorsOfACacheLeaveTheirAwayPagesForSlots) {
  EXPECT_GT(MovedToSlots("zipf"), 100u);
  EXPECT_EQ(MovedToSlots("lstm"), 0u);
}

TEST(PagedReplayTest, WhereAddressesStayNoTensorHasASlot) {
  const Trace trace = Generate("zipf", kHardware[0], 1);
  for (const Foresight foresight : {Foresight::kCalls, Foresight::kLearned}) {
    ReplaySetup setup = SetupOf(Bytes(trace.Footprint().count() / 2), foresight);
    const Outcome with_slots = ReplayPaged(trace, setup);
    setup.addresses_stay = true;
    const Outcome without = ReplayPaged(trace, setup);
    EXPECT_EQ(without.failure, "");
    EXPECT_EQ(without.stats.moves.to_slots, 0u);
    EXPECT_GT(without.up, with_slots.up);
  }
}

TEST(PagedReplayTest, TheSameReplayGivesTheSameResult) {
  const Trace trace = WithHints(Generate("gpt2-small", kHardware[0], 4), Hints::kTime);
  const Bytes budget(trace.Footprint().count() / 2);
  for (const Foresight foresight : kAll) {
    ReplaySetup setup = SetupOf(budget, foresight);
    setup.page = MiB(16);
    const Outcome one = ReplayPaged(trace, setup);
    const Outcome other = ReplayPaged(trace, setup);
    EXPECT_EQ(one.failure, "");
    EXPECT_EQ(one.iteration_stall, other.iteration_stall);
    EXPECT_EQ(one.up, other.up);
    EXPECT_EQ(one.stats.moves.maps, other.stats.moves.maps);
    EXPECT_EQ(one.stats.plans, other.stats.plans);
  }
}

TEST(PagedReplayTest, WhatIsLearnedIsAsGoodAsWhatIsKnown) {
  const Trace trace = Generate("resnet50", kHardware[0], 6);
  const Bytes budget(trace.Footprint().count() / 10 * 7);
  ReplaySetup setup{.budget = budget, .mapping = {}};
  const Duration learned = StallFrom(ReplayPaged(trace, setup), 2);
  setup.foresight = Foresight::kCalls;
  const Duration known = StallFrom(ReplayPaged(trace, setup), 2);
  EXPECT_LT(learned, known + known / 40);
}

// Without hints, and without a repetition to learn from, a plan has no calls.
TEST(PagedReplayTest, PlansAreRareWhereNothingIsExpected) {
  Trace trace;
  for (uint32_t tensor = 0; tensor < 200; ++tensor) {
    trace.tensors.push_back({0, MiB(2) * (1 + tensor % 7), ""});
    trace.ops.push_back(Call(OpKind::kCreate, tensor));
    trace.ops.push_back(Compute(microseconds(tensor)));
    trace.ops.push_back(Call(OpKind::kPut, tensor));
  }
  Random random(1);
  for (int i = 0; i < 2000; ++i) {
    const uint32_t tensor = static_cast<uint32_t>(random.Below(200));
    trace.ops.push_back(Call(OpKind::kGet, tensor));
    trace.ops.push_back(Compute(microseconds(100)));
    trace.ops.push_back(Call(OpKind::kPut, tensor));
  }
  const Outcome result = ReplayPaged(trace, SetupOf(MiB(600), Foresight::kHints));
  EXPECT_EQ(result.failure, "");
  EXPECT_LT(result.stats.plans, 1200u);  // of 4400 calls
}

// Two of eight experts are used in each of 32 layers, most often those of the step before. Once the
// experts are made the hints say all there is to know. Experts that are not used any more need no
// copy.
TEST(PagedReplayTest, HintsOfProgramsThatCreateNothingAreAsGoodAsAllCalls) {
  const Trace trace = WithHints(Generate("moe", kHardware[0], 6), Hints::kOrder);
  ReplaySetup setup{.budget = Bytes(trace.Footprint().count() / 2), .mapping = {}};
  setup.foresight = Foresight::kHints;
  const Outcome hinted = ReplayPaged(trace, setup);
  setup.foresight = Foresight::kCalls;
  const Outcome known = ReplayPaged(trace, setup);
  EXPECT_EQ(hinted.failure, "");
  EXPECT_LT(hinted.stall, known.stall + known.stall / 20);
}

// Next uses by chance. Where all calls are known all small tensors have slots; with hints the ones
// that are created first share pages.
TEST(PagedReplayTest, HintsWithoutASequenceCopyLittleMoreThanAllCalls) {
  const Trace trace = WithHints(Generate("zipf", kHardware[0], 1), Hints::kTime);
  ReplaySetup setup{.budget = Bytes(trace.Footprint().count() / 2), .mapping = {}};
  setup.foresight = Foresight::kHints;
  const Outcome hinted = ReplayPaged(trace, setup);
  setup.foresight = Foresight::kCalls;
  const Outcome known = ReplayPaged(trace, setup);
  EXPECT_EQ(hinted.failure, "");
  EXPECT_LT(hinted.time, known.time + known.time / 20);
  EXPECT_LT(hinted.up, known.up * 4);
}

// A program at random that repeats, with small and large tensors, tight and loose.
Trace RandomTrace(Random* random) {
  Trace trace;
  struct Live {
    uint32_t tensor;
    bool in_use;
  };
  const uint64_t seed = random->Below(1 << 20);
  const uint64_t largest = random->OneIn(3) ? 256 : 12'000;  // KiB
  for (int pass = 0; pass < 4; ++pass) {
    Random again(seed);
    std::vector<Live> live;
    for (int i = 0; i < 80; ++i) {
      const uint64_t choice = again.Below(6);
      if (live.empty() || (choice < 2 && live.size() < 12)) {
        live.push_back({static_cast<uint32_t>(trace.tensors.size()), true});
        trace.tensors.push_back({0, core::KiB(1 + again.Below(largest)), ""});
        trace.ops.push_back(Call(OpKind::kCreate, live.back().tensor));
      } else {
        Live& one = live[again.Below(live.size())];
        trace.ops.push_back(
            Call(one.in_use ? OpKind::kPut : OpKind::kGet, one.tensor, one.in_use && choice < 4));
        one.in_use = !one.in_use;
      }
      trace.ops.push_back(Compute(microseconds(again.Below(300))));
      if (random->OneIn(40)) trace.ops.push_back(Compute(microseconds(1)));
    }
    for (const Live& one : live) trace.ops.push_back(Call(OpKind::kFree, one.tensor));
    trace.ops.push_back(Call(OpKind::kStep, 0));
  }
  return trace;
}

// Physical pages are neither lost nor made, each use finds its units, and all replays end.
TEST(PagedReplayTest, RandomProgramsEndUnderEveryForesight) {
  ForSeeds(40, [](Random& random) {
    const Trace bare = RandomTrace(&random);
    ASSERT_TRUE(Validate(bare).ok());
    const Trace trace = WithHints(bare, random.OneIn(2) ? Hints::kTime : Hints::kOrder, 0.8);
    // Borders of tensors in use take up to a page more each.
    const Bytes least = trace.LargestStep() + MiB(2) * 14;
    const Bytes budget = least + Bytes(random.Below(trace.Footprint().count() / 2 + 1));
    for (const Foresight foresight : kAll) {
      const Outcome result = ReplayPaged(trace, SetupOf(budget, foresight));
      EXPECT_EQ(result.failure, "");
      EXPECT_EQ(result.time, result.compute + result.stall);
    }
  });
}

// Of one to three clients, on any memory from a page each on. Returns the bytes used in place.
Bytes EndWhereKernelsUseTheHost(Random* random) {
  std::vector<Trace> clients(1 + random->Below(3));
  for (Trace& one : clients) one = WithHints(RandomTrace(random), Hints::kOrder, 0.8);
  Trace trace = Merge(clients);
  for (Op& op : trace.ops) {
    if (op.kind != OpKind::kCompute) op.program = microseconds(random->Below(200));
  }
  const Bytes budget =
      MiB(2) * (clients.size() + random->Below(1 + trace.Footprint().count() / MiB(2).count()));
  Bytes in_place;
  for (const Foresight foresight : kAll) {
    ReplaySetup setup = SetupOf(budget, foresight);
    setup.in_place = 20e9;
    setup.addresses_stay = true;
    if (foresight == Foresight::kHints || foresight == Foresight::kLearned)
      setup.run_ahead = static_cast<RunAhead>(random->Below(3));
    const Outcome result = ReplayPaged(trace, setup);
    EXPECT_EQ(result.failure, "");
    in_place += result.in_place;
  }
  return in_place;
}

TEST(PagedReplayTest, RandomProgramsEndOnEachBudgetWhereKernelsUseTheHost) {
  Bytes in_place;
  ForSeeds(40, [&in_place](Random& random) { in_place += EndWhereKernelsUseTheHost(&random); });
  EXPECT_GT(in_place, Bytes{});
}

// Its clients once waited for each other: a plan of all of them that was made within one's call
// started nothing for the others.
TEST(PagedReplayTest, AProgramEndsThatNeedsAPlanToStartAllClients) {
  Random random(491);
  EndWhereKernelsUseTheHost(&random);
}

TEST(PagedReplayTest, RandomProgramsEndHoweverFarTheCpuRunsAhead) {
  ForSeeds(40, [](Random& random) {
    Trace trace = WithHints(RandomTrace(&random), Hints::kOrder, 0.8);
    for (Op& op : trace.ops) {
      if (op.kind != OpKind::kCompute) op.program = microseconds(random.Below(200));
    }
    const Bytes least = trace.LargestStep() + MiB(2) * 14;
    const Bytes budget = least + Bytes(random.Below(trace.Footprint().count() / 2 + 1));
    for (const RunAhead run_ahead : {RunAhead::kCreatesBlock, RunAhead::kStreamWaits}) {
      ReplaySetup setup =
          SetupOf(budget, random.OneIn(2) ? Foresight::kHints : Foresight::kLearned);
      setup.run_ahead = run_ahead;
      const Outcome result = ReplayPaged(trace, setup);
      EXPECT_EQ(result.failure, "");
      EXPECT_EQ(result.time, result.compute + result.stall);
    }
  });
}

// A tensor must leave before the second is created; the program then takes half a millisecond.
TEST(PagedReplayTest, ACreateThatBlocksHoldsUpTheProgram) {
  Trace trace = TwoInTurn(0);
  trace.ops.back().program = microseconds(500);
  const auto time_of = [&](RunAhead run_ahead) {
    ReplaySetup setup = SetupOf(MiB(4), Foresight::kLearned);
    setup.run_ahead = run_ahead;
    const Outcome result = ReplayPaged(trace, setup);
    EXPECT_EQ(result.failure, "");
    EXPECT_EQ(result.down, MiB(4));
    return result.time;
  };
  // The copy out begins when the stream has come to the put.
  const Duration room = time_of(RunAhead::kNone) - microseconds(100);
  EXPECT_GT(room, microseconds(170));
  EXPECT_EQ(time_of(RunAhead::kCreatesBlock), room + microseconds(500));
  // The budget lets no second tensor be in use before the first one's put is reached.
  EXPECT_EQ(time_of(RunAhead::kStreamWaits), microseconds(100 + 500));
}

TEST(PagedReplayTest, ProgramAndStreamComputeAtTheSameTime) {
  Trace trace = TwoInTurn(5);
  for (Op& op : trace.ops) {
    if (op.kind == OpKind::kGet) op.program = microseconds(60);
  }
  for (const RunAhead run_ahead : {RunAhead::kCreatesBlock, RunAhead::kStreamWaits}) {
    ReplaySetup setup = SetupOf(MiB(8), Foresight::kLearned);
    setup.run_ahead = run_ahead;
    EXPECT_EQ(ReplayPaged(trace, setup).stall, Duration{0}) << "the stream has work";
    for (Op& op : trace.ops) op.program *= 3;
    const Outcome late = ReplayPaged(trace, setup);
    for (Op& op : trace.ops) op.program /= 3;
    EXPECT_EQ(late.time, late.compute + late.stall);
    EXPECT_GE(late.time, microseconds(180 * 10));
  }
}

TEST(PagedReplayTest, TheTimelineHasTheWholeTimeAndAllCopies) {
  ReplaySetup setup = SetupOf(MiB(4), Foresight::kLearned);
  setup.timeline = true;
  const Outcome outcome = ReplayPaged(TwoInTurn(5), setup);
  ASSERT_EQ(outcome.failure, "");
  Duration client{0};
  Duration last{0};
  for (const Span& span : outcome.spans) {
    EXPECT_LE(span.begin, span.end);
    last = std::max(last, span.end);
    if (span.kind == Span::Kind::kCompute || span.kind == Span::Kind::kStall)
      client += span.end - span.begin;
  }
  EXPECT_EQ(client, outcome.time);
  EXPECT_LE(last, outcome.time);
  const auto ups = std::count_if(outcome.spans.begin(), outcome.spans.end(),
                                 [](const Span& span) { return span.kind == Span::Kind::kUp; });
  EXPECT_GE(ups, 10) << "each tensor comes back in each pass";
  ASSERT_FALSE(outcome.memory.empty());
  for (const MemoryPoint& point : outcome.memory) EXPECT_LE(point.held, MiB(4));
  EXPECT_EQ(outcome.memory.back().held, MiB(4));
  setup.timeline = false;
  EXPECT_TRUE(ReplayPaged(TwoInTurn(5), setup).spans.empty());
}

}  // namespace
}  // namespace ravenstore::sim
