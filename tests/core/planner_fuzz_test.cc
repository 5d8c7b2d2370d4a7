// Random lives of a small node, checked at every step by tests/core/world.h.
//
// They run in a child process. When one ends it, that life is shrunk and printed as a test for
// planner_program_test.cc. RAVENSTORE_FUZZ_RUNS=n sets how many seeds are run,
// RAVENSTORE_FUZZ_SECONDS=n goes on for so long instead, RAVENSTORE_FUZZ_FIRST=n begins with
// another seed than 1; RAVENSTORE_FUZZ_SEED=n runs one seed alone and prints every instruction and
// every action of the planner.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/check.h"
#include "tests/core/exit_outcome.h"
#include "tests/core/fuzz_program.h"
#include "tests/core/shrink.h"

namespace ravenstore::core {
namespace {

using proto::LeaseState;

constexpr Bytes kUnit = kExtentAlignment;
constexpr int kStepsPerRun = 2000;
constexpr size_t kReplays = 1500;
constexpr unsigned kSecondsPerProgram = 60;

int64_t ToOperand(Bytes size) {
  return static_cast<int64_t>(size.count());
}

// Thinks up a life: what kind of node it is, and then one instruction after another, looking at
// what has become of those before.
class ProgramGenerator {
 public:
  explicit ProgramGenerator(uint32_t seed) : random_(seed) { DescribeNode(); }

  const Program& prologue() const { return prologue_; }

  std::optional<Instruction> Next(const FuzzProgram& fuzz) {
    fuzz_ = &fuzz;
    const uint32_t dice = Below(1000);
    if (dice < 2 || fuzz.world().Clients().empty()) return Attach();
    if (dice < 3) return OfRandomClient(Op::kKill);
    if (dice < 6) return ChangeLimits();
    if (dice < 12) return OfRandomClient(Op::kStep);
    if (lent_ && dice < 24) return Instruction{Op::kChunkGoes, {0, Below(3), Below(3)}};
    if (dice < 300) return MachineStep();
    if (lazy_ ? dice < 330 : dice < 560) return DaemonStep();
    if (dice < 600) return Instruction{Op::kPass, {1 + Below(dice % 3 == 0 ? 20000 : 200)}};
    return ClientStep();
  }

 private:
  void DescribeNode() {
    prologue_.push_back({Op::kSlabs, {ToOperand(kUnit * (8u << Below(3)))}});
    devices_ = 1 + Below(2);
    for (uint32_t i = 0; i < devices_; ++i) {
      const int64_t capacity = ToOperand(kUnit * (16 + 4 * Below(28)));
      most_ = std::max(most_, capacity);
      prologue_.push_back({Op::kDevice, {capacity, ToOperand(kUnit * (64 + 4 * Below(40)))}});
    }
    roomy_ = Chance(70);
    // In some lives most of what leaves has no other place than with other nodes.
    lent_ = Chance(25);
    const uint32_t least = lent_ ? 16 : roomy_ ? 400 : 32;
    const int64_t host = ToOperand(kUnit * (least + Below(lent_ ? 40 : 300)));
    prologue_.push_back(
        {Op::kHost, {host, ToOperand(kUnit * 16), ToOperand(kUnit * (16 * Below(3)))}});
    const int64_t in_flight = ToOperand(kUnit * (4 + Below(60)));
    prologue_.push_back({Op::kInFlight, {in_flight, 1 + Below(8)}});
    // Where copying takes long, clients wait for one another instead.
    constexpr int64_t kSpeeds[] = {100'000'000, 1'000'000, 10'000};
    prologue_.push_back({Op::kLink, {kSpeeds[Below(3)]}});
    pools_ = lent_ ? 1 : Chance(50) ? 1 + Below(2) : 0;
    for (uint32_t more = pools_; more > 0; --more) {
      const int64_t kind = lent_ ? 3 : Below(4);
      chunked_ += kind >= 2 ? 1 : 0;
      const int64_t room =
          ToOperand(kUnit * ((lent_ ? 100 : 16) + Below(roomy_ || lent_ ? 300 : 60)));
      const int64_t in = kSpeeds[Below(3)] * 4;
      prologue_.push_back({Op::kPool, {kind, room, in, kSpeeds[Below(3)] / 4}});
    }
    const int64_t prefetch = Below(4) != 0 ? 1 : 0;
    const int64_t preclean = Below(4) != 0 ? 1 : 0;
    const int64_t learn = Below(4) != 0 ? 1 : 0;
    constexpr Policy kPolicies[] = {Policy::kValue, Policy::kValue, Policy::kLru, Policy::kGdsf};
    const auto policy = static_cast<int64_t>(kPolicies[Below(4)]);
    // None, as the daemon sets it, or more.
    const int64_t guaranteed_part = Chance(60) ? 0 : Chance(50) ? 8 : 2 + Below(6);
    prologue_.push_back({Op::kHabits, {prefetch, preclean, learn, policy, guaranteed_part}});
    prologue_.push_back({Op::kLanes, {2 + Below(40)}});
    lazy_ = Chance(35);
    hints_ = Chance(40) ? 0 : (Chance(60) ? 7 : 2);
    fail_percent_ = Below(2) == 0 ? 0 : Below(30);
    recompute_percent_ = Chance(60) ? 0 : 10 + Below(60);
    priority_percent_ = Chance(60) ? 0 : 10 + Below(60);
    copy_percent_ = 20 + Below(60);
    requests_each_ = 1 + Below(10);
    tensors_each_ = 4 + Below(22);
    cycles_ = Chance(50);
    tenants_ = 1 + Below(3);
    guarantees_ = Chance(30);
    weights_ = Chance(40);
    priorities_ = Chance(20);
    for (uint32_t id = 1; id <= tenants_; ++id) prologue_.push_back(Tenant(id));
    if (lent_) prologue_.push_back({Op::kPoolLimit, {0, ToOperand(kUnit * 300)}});
    const uint32_t clients = 1 + Below(3);
    for (uint32_t i = 0; i < clients; ++i) prologue_.push_back(*Attach());
  }

  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>(random_() % bound); }
  bool Chance(uint32_t percent) { return Below(100) < percent; }
  int64_t RandomDevice() { return Below(devices_); }
  // Device and host. One by one: the order in which arguments are evaluated is the compiler's
  // choice.
  std::pair<int64_t, int64_t> RandomBudgets(uint32_t most) {
    const Bytes device = kUnit * ((roomy_ ? 32 : 4) + Below(most));
    const Bytes host = kUnit * (roomy_ ? 300 + Below(300) : Below(2 * most));
    return {ToOperand(device), ToOperand(host)};
  }
  int64_t RandomTimeout() { return 1000 * int64_t{Chance(50) ? 50 : Below(10)}; }
  int64_t RandomSize() {
    switch (Below(4)) {
      case 0: return 1 + Below(1024);
      case 1: return ToOperand(kUnit * (1 + Below(30)));
      default: return ToOperand(kUnit * (1 + Below(8)));
    }
  }
  // Kind and value.
  std::pair<int64_t, int64_t> RandomHint() {
    const auto pair = [](NextUse::Kind kind, int64_t value) {
      return std::pair(static_cast<int64_t>(kind), value);
    };
    // Some lives mix everything, in others all hints are of one kind, as a real client's are.
    const uint32_t kind = hints_ == 0 || Chance(10) ? Below(8) : hints_;
    // A guest may say what it likes: the farthest that the wire carries, here and there.
    if (kind >= 2 && kind != 4 && Chance(1)) {
      if (kind < 4) return pair(NextUse::Kind::kAt, int64_t{1} << 51);
      return pair(NextUse::Kind::kOrder, (Chance(50) ? 1 : -1) * (int64_t{1} << 55));
    }
    switch (kind) {
      case 0:
      case 1: return pair(NextUse::Kind::kUnknown, 0);
      case 2:
      case 3: return pair(NextUse::Kind::kAt, int64_t{Below(3000)} - 300);
      case 4: return pair(NextUse::Kind::kNever, 0);
      default: return pair(NextUse::Kind::kOrder, int64_t{Below(40)} - 20);
    }
  }
  int64_t RandomPriority() { return Chance(priority_percent_) ? 1 + Below(2) : 0; }
  // Some less than copying, some more; most tensors cannot be recomputed.
  int64_t RandomRecompute() { return Chance(recompute_percent_) ? 1 + Below(200) : 0; }

  std::optional<ClientId> RandomClient() {
    const auto clients = fuzz_->world().Clients();
    if (clients.empty()) return std::nullopt;
    return clients[Below(static_cast<uint32_t>(clients.size()))];
  }
  // Of the client's tensors those that wait for no answer.
  std::vector<Handle> AnsweredOf(ClientId client) {
    auto handles = fuzz_->world().Handles(client);
    std::erase_if(handles, [this](Handle handle) {
      const LeaseState state = fuzz_->world().StateOf(handle);
      return state == LeaseState::kRequested || state == LeaseState::kFetching;
    });
    return handles;
  }
  std::optional<Handle> OneOf(const std::vector<Handle>& handles) {
    if (handles.empty()) return std::nullopt;
    return handles[Below(static_cast<uint32_t>(handles.size()))];
  }
  // Where the races are.
  std::optional<Handle> HandleUnderCopy() {
    const auto& copies = fuzz_->world().copies();
    if (copies.empty()) return std::nullopt;
    const Handle handle = copies[Below(static_cast<uint32_t>(copies.size()))].handle;
    const auto clients = fuzz_->world().Clients();
    const bool gone = std::find(clients.begin(), clients.end(), handle.client) == clients.end();
    return gone ? std::nullopt : std::optional(handle);
  }

  Instruction Tenant(uint32_t id) {
    const auto [device, host] = RandomBudgets(200);
    const Bytes guarantee = guarantees_ && Chance(60) ? kUnit * Below(120) : Bytes(0);
    const int64_t weight = weights_ && Chance(70) ? 1 + Below(6) : 0;
    const int64_t priority = priorities_ ? Below(3) : 0;
    return {Op::kTenant, {id, device, host, ToOperand(guarantee), weight, priority}};
  }
  std::optional<Instruction> Attach() {
    if (fuzz_ != nullptr && fuzz_->world().Clients().size() >= 5) return std::nullopt;
    const uint32_t tenant = 1 + Below(tenants_);
    const auto [device, host] = RandomBudgets(120);
    return Instruction{Op::kAttach, {++clients_, tenant, device, host}};
  }
  std::optional<Instruction> OfRandomClient(Op op, int64_t operand = 0) {
    const auto client = RandomClient();
    if (!client) return std::nullopt;
    return Instruction{op, {fuzz_->LabelOf(*client), operand}};
  }
  std::optional<Instruction> ChangeLimits() {
    if (chunked_ > 0 && Chance(30)) {
      return Instruction{Op::kPoolLimit, {Below(chunked_), ToOperand(kUnit * Below(300))}};
    }
    if (chunked_ > 0 && Chance(40))
      return Instruction{Op::kChunkGoes, {Below(chunked_), Below(8), Below(3)}};
    if (pools_ > 0 && Chance(5)) {
      return Instruction{Op::kPoolRate, {Below(pools_), Chance(50) ? 0 : 10'000 + Below(100'000)}};
    }
    if (pools_ > 0 && Chance(2)) return Instruction{Op::kPoolFails, {Below(pools_)}};
    const uint32_t dice = Below(100);
    if (dice < 40) return Tenant(1 + Below(tenants_));
    if (dice < 55) {
      const int64_t device = RandomDevice();
      // More than it has lifts the limit.
      return Instruction{Op::kDeviceLimit, {device, int64_t{Below(300)} * most_ / 100}};
    }
    if (dice < 65) return OfRandomClient(Op::kTrim);
    if (dice < 80) {
      const auto [device, host] = RandomBudgets(60);
      return OfRandomClient(Op::kPin, Chance(40) ? 0 : host);
    }
    const auto client = RandomClient();
    if (!client) return std::nullopt;
    const auto [device, host] = RandomBudgets(120);
    return Instruction{Op::kLimits, {fuzz_->LabelOf(*client), device, host}};
  }

  std::optional<Instruction> MachineStep() {
    const auto& copies = fuzz_->world().copies();
    if (Chance(copy_percent_) && !copies.empty()) {
      const Handle handle = copies[Below(static_cast<uint32_t>(copies.size()))].handle;
      return Instruction{Op::kCopyEnds, {fuzz_->LabelOf(handle), !Chance(fail_percent_)}};
    }
    const auto& jobs = fuzz_->world().slab_jobs();
    if (Chance(80) && !jobs.empty()) {
      const uint32_t index = Below(static_cast<uint32_t>(jobs.size()));
      return Instruction{Op::kSlabEnds, {index, !Chance(fail_percent_)}};
    }
    const auto client = RandomClient();
    if (!client) return std::nullopt;
    const auto handle = OneOf(AnsweredOf(*client));
    if (!handle) return std::nullopt;
    return Instruction{Op::kRun, {fuzz_->LabelOf(*handle)}};
  }

  std::optional<Instruction> DaemonStep() {
    // A daemon that comes round seldom finds much at once, and acts on it only afterwards.
    switch (Below(4)) {
      case 0: return OfRandomClient(Op::kReadLog, lazy_ ? 100 : 1 + Below(6));
      case 1: return Instruction{Op::kReadTickets, {}};
      default: return OfRandomClient(Op::kReadRequests, 1 + Below(3));
    }
  }

  std::optional<Instruction> ClientStep() {
    const auto client = RandomClient();
    if (!client) return std::nullopt;
    const auto answered = AnsweredOf(*client);
    // Clients do not ask for more and more without an answer.
    const size_t waiting = fuzz_->world().Handles(*client).size() - answered.size();
    const bool asks = waiting < requests_each_;
    const bool falls = Falls(*client, answered.size());
    if (falls && Chance(50)) {
      const auto handle = OneOf(answered);
      if (!handle) return std::nullopt;
      return Instruction{Op::kFree, {fuzz_->LabelOf(*handle)}};
    }
    if (!falls && asks && answered.size() < tensors_each_ && Chance(25)) {
      const int64_t size = RandomSize();
      const int64_t device = RandomDevice();
      const int64_t timeout = RandomTimeout();
      return Instruction{Op::kCreate,
                         {++tensors_, fuzz_->LabelOf(*client), size, device, timeout,
                          Chance(15)   ? 1
                          : Chance(15) ? 2
                                       : 0}};
    }
    const auto handle = Chance(20) ? HandleUnderCopy() : OneOf(answered);
    if (!handle) return std::nullopt;
    const bool in_use = fuzz_->world().StateOf(*handle) == LeaseState::kInUse;
    return in_use || asks ? Use(*handle) : std::nullopt;
  }

  // In some lives clients rise and fall, as training does: they make tensors until they have many,
  // and free them until none is left.
  bool Falls(ClientId client, size_t tensors) {
    if (!cycles_) return false;
    if (tensors >= tensors_each_) falling_.insert(client);
    if (tensors == 0) falling_.erase(client);
    return falling_.contains(client);
  }

  std::optional<Instruction> Use(Handle handle) {
    const int64_t tensor = fuzz_->LabelOf(handle);
    switch (fuzz_->world().StateOf(handle)) {
      case LeaseState::kInUse: {
        if (Chance(25)) return Instruction{Op::kWrite, {tensor}};
        if (Chance(10)) return Instruction{Op::kRun, {tensor}};
        if (!Chance(96)) return Instruction{Op::kFree, {tensor}};
        const auto [kind, value] = RandomHint();
        return Instruction{Op::kPut, {tensor, kind, value, RandomRecompute(), RandomPriority()}};
      }
      case LeaseState::kIdle:
      case LeaseState::kLeaving:
      case LeaseState::kAway: {
        if (Chance(6)) return Instruction{Op::kFree, {tensor}};
        if (!Chance(80)) return std::nullopt;
        const int64_t device = Chance(90) ? ToInt(fuzz_->world().DeviceOf(handle)) : RandomDevice();
        return Instruction{Op::kGet, {tensor, device, RandomTimeout()}};
      }
      case LeaseState::kLost: return Instruction{Op::kFree, {tensor}};
      default: return std::nullopt;
    }
  }

  std::mt19937_64 random_;
  Program prologue_;
  const FuzzProgram* fuzz_ = nullptr;
  uint32_t devices_ = 1;
  int64_t most_ = 0;      // capacity of any device
  uint32_t pools_ = 0;    // beside devices and host
  uint32_t chunked_ = 0;  // of those that come and go
  uint32_t tenants_ = 1;
  uint32_t fail_percent_ = 0;
  uint32_t hints_ = 0;
  uint32_t recompute_percent_ = 0;
  uint32_t priority_percent_ = 0;
  bool guarantees_ = false;
  bool weights_ = false;
  bool priorities_ = false;
  uint32_t copy_percent_ = 0;  // of the machine's steps
  uint32_t requests_each_ = 1;
  uint32_t tensors_each_ = 1;
  bool cycles_ = false;
  std::set<ClientId> falling_;
  bool roomy_ = true;
  bool lent_ = false;
  bool lazy_ = false;
  int64_t clients_ = 0;  // labels given
  int64_t tensors_ = 0;
};

// What the child has got to, in memory that it shares with the parent.
struct Tape {
  static constexpr size_t kMost = kStepsPerRun + 100;
  uint32_t seed = 0;
  uint32_t programs = 0;
  size_t size = 0;
  Instruction program[kMost];
  // What the lives have seen, so that a fuzzer that only scratches the surface is noticed.
  struct {
    uint64_t hits = 0, late_hits = 0, misses = 0, prefetches = 0, rescues = 0, drops = 0;
    uint64_t discarded = 0, recomputes = 0, predictions = 0;
    uint64_t moved_on = 0, lost_with_chunks = 0;
  } seen;

  void Add(const World& world) {
    const PlannerStats& stats = world.planner().stats();
    seen.moved_on += world.moved_on();
    seen.lost_with_chunks += world.lost_with_chunks();
    seen.hits += stats.hits;
    seen.late_hits += stats.late_hits;
    seen.misses += stats.misses;
    seen.prefetches += stats.prefetches;
    seen.rescues += stats.rescues;
    seen.drops += stats.drops_clean;
    seen.discarded += stats.discarded;
    seen.recomputes += stats.recomputes;
    seen.predictions += stats.predictions_right + stats.predictions_wrong;
  }
};

Tape* NewTape() {
  void* memory =
      mmap(nullptr, sizeof(Tape), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  RAVEN_CHECK(memory != MAP_FAILED);
  return new (memory) Tape;
}

void Live(uint32_t seed, Tape* tape, bool verbose) {
  tape->seed = seed;
  tape->size = 0;
  const auto say = [](const std::string& text) {
    std::fprintf(stderr, "      %s\n", text.c_str());
  };
  ProgramGenerator generator(seed);
  FuzzProgram fuzz(generator.prologue(), verbose ? say : std::function<void(const std::string&)>{});
  const auto act = [&](const Instruction& instruction) {
    RAVEN_CHECK(tape->size < Tape::kMost);
    tape->program[tape->size++] = instruction;
    if (verbose) std::fprintf(stderr, "%4zu  %s\n", tape->size, Describe(instruction).c_str());
    fuzz.Do(instruction);
  };
  for (const Instruction& instruction : generator.prologue()) act(instruction);
  for (int step = 1; step <= kStepsPerRun; ++step) {
    if (const auto instruction = generator.Next(fuzz)) act(*instruction);
  }
  act({Op::kQuiesce, {}});
  tape->Add(fuzz.world());
  ++tape->programs;
}

// The life on the tape, which ended for `cause`, as a test that is as small as it gets.
std::string ShrunkTest(const Tape& tape, const std::string& cause) {
  const Program whole(tape.program, tape.program + tape.size);
  const auto fails = [&cause](const Program& program) {
    return ExitOutcomeOf([&program] { Play(program); }, kSecondsPerProgram).cause == cause;
  };
  if (!fails(whole)) return "the life does not end so when it is replayed: it is not shrunk\n";
  Shrinker<Instruction> shrinker({fails, Simpler, kReplays}, whole);
  const Program small = Relabelled(shrinker.Run());
  return "after " + std::to_string(shrinker.replays()) + " replays " +
         std::to_string(small.size()) + " of " + std::to_string(whole.size()) +
         " instructions are left:\n\n// " + cause + "\nTEST(PlannerProgramTest, Seed" +
         std::to_string(tape.seed) + ") {\n  Play(" + Describe(small) + ");\n}\n";
}

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(PlannerFuzzTest, KeepsItsPromisesInRandomPrograms) {
  using Clock = std::chrono::steady_clock;
  const auto tape = NewTape();
  if (const auto seed = static_cast<uint32_t>(FromEnvironment("RAVENSTORE_FUZZ_SEED", 0))) {
    return Live(seed, tape, true);
  }
  const auto first = static_cast<uint32_t>(FromEnvironment("RAVENSTORE_FUZZ_FIRST", 1));
  const uint64_t seconds = FromEnvironment("RAVENSTORE_FUZZ_SECONDS", 0);
  const uint64_t runs = seconds != 0 ? UINT32_MAX : FromEnvironment("RAVENSTORE_FUZZ_RUNS", 400);
  const auto deadline = Clock::now() + std::chrono::seconds(seconds);
  std::printf("seeds from %u on, %d steps each\n", first, kStepsPerRun);
  const ExitOutcome outcome = ExitOutcomeOf(
      [&] {
        for (uint32_t i = 0; i < runs && (seconds == 0 || Clock::now() < deadline); ++i) {
          alarm(kSecondsPerProgram);
          Live(first + i, tape, false);
        }
        std::exit(0);  // not at once, so that leaks are found
      },
      kSecondsPerProgram);
  std::printf("%u lives\n", tape->programs);
  if (!outcome.good) {
    FAIL() << outcome.errors << "seed " << tape->seed << ", instruction " << tape->size << ": "
           << outcome.cause << "\n"
           << ShrunkTest(*tape, outcome.cause);
  }
  const auto& seen = tape->seen;
  std::printf("hits %lu, late %lu, misses %lu, prefetches %lu, rescues %lu, clean drops %lu\n",
              seen.hits, seen.late_hits, seen.misses, seen.prefetches, seen.rescues, seen.drops);
  std::printf(
      "discarded %lu, recomputed %lu, predictions %lu, moved on %lu, lost with chunks %lu\n",
      seen.discarded, seen.recomputes, seen.predictions, seen.moved_on, seen.lost_with_chunks);
  if (tape->programs < 300) return;
  EXPECT_GT(seen.late_hits, 0u);
  EXPECT_GT(seen.misses, 100u);
  EXPECT_GT(seen.prefetches, 100u);
  EXPECT_GT(seen.rescues, 100u);
  EXPECT_GT(seen.drops, 100u);
  EXPECT_GT(seen.discarded, 100u);
  EXPECT_GT(seen.recomputes, 100u);
  EXPECT_GT(seen.predictions, 100u);
  EXPECT_GT(seen.moved_on, 5u);
  EXPECT_GT(seen.lost_with_chunks, 20u);
}

}  // namespace
}  // namespace ravenstore::core
