// Random clients that join, leave, call and wait on one device; moves end late, in any order, and
// fail.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/books/page_views.h"
#include "tests/core/plan/seeds.h"
#include "tests/core/schedule/schedule_world.h"

namespace ravenstore::core {
namespace {

constexpr uint64_t kSeeds = 200;
constexpr int kSteps = 3000;
constexpr uint32_t kRows = 12;

// A client's CPU: it repeats passes, or makes any call that it may.
struct Program {
  bool passes = false;
  uint32_t layers = 0;
  uint32_t next = 0;                      // of a pass
  std::map<TensorNumber, bool> in_use{};  // by live tensor
};

class RandomClients {
 public:
  explicit RandomClients(plan::Random* random)
      : random_(*random),
        pages_(static_cast<uint32_t>(6 + random->Below(20))),
        fails_(random->OneIn(3) ? 2 + random->Below(30) : 0),
        all_pass_(random->OneIn(2)),
        world_(pages_,
               random->OneIn(2) ? ScheduleWorld::Plans::kLate : ScheduleWorld::Plans::kImmediate) {
    if (random->OneIn(3)) SetTenants();
  }

  void Step() {
    const uint64_t what = random_.Below(100);
    if (what < 2 && programs_.size() < 4) return Join();
    if (what == 3 && limited_ && random_.OneIn(10)) SetTenants();
    if (what == 2 && random_.OneIn(all_pass_ ? 20 : 3) && !programs_.empty()) return Leave();
    if (what < 60 && !programs_.empty()) Call();
    if (what < 80 && !programs_.empty()) world_.RunStream(AnyClient());
    if (what < 98 && world_.under_way() > 0)
      world_.Complete(random_.Below(world_.under_way()), fails_ == 0 || !random_.OneIn(fails_));
    if (world_.plans_under_way() > 0 && random_.OneIn(10))
      world_.CompletePlan(random_.Below(world_.plans_under_way()));
    if (!random_.OneIn(4)) world_.Advance();
    if (what == 99 && random_.OneIn(2)) CheckSettled();
  }
  // All clients leave, and all memory is released.
  void Finish() {
    CheckSettled();
    while (!programs_.empty()) Leave();
    world_.Settle();
    EXPECT_EQ(world_.physical_pages(), 0u);
    for (uint32_t id = 1; id <= last_; ++id)
      EXPECT_FALSE(world_.scheduler().HasClient(ClientId{id}));
  }
  std::string Fault() const { return world_.Fault(); }
  uint64_t waits = 0;
  uint64_t stuck = 0;
  uint64_t settles = 0;
  // Clients that stop in the middle of a plan: units come and leave again in turn, and no call ends
  // that. A call that waits is then refused.
  uint64_t restless = 0;
  uint64_t shared = 0;  // settled with a common plan

 private:
  ClientId AnyClient() {
    auto found = programs_.begin();
    std::advance(found, static_cast<std::ptrdiff_t>(random_.Below(programs_.size())));
    return found->first;
  }
  void Join() {
    const ClientId id{++last_};
    world_.Join(id, Bytes(UINT64_MAX), TenantOf(id));
    programs_[id] = {.passes = all_pass_ || random_.OneIn(2),
                     .layers = static_cast<uint32_t>(4 + random_.Below(kRows - 4))};
  }
  static TenantId TenantOf(ClientId id) { return TenantId{ToInt(id) % 3}; }
  // Tenants have limits, whether they have clients or not.
  void SetTenants() {
    const bool ranks = random_.OneIn(2);
    for (uint32_t i = 0; i < tenants_.size(); ++i) {
      decide::TenantPages& tenant = tenants_[i];
      tenant = {};
      if (random_.OneIn(2)) tenant.most = static_cast<uint32_t>(1 + random_.Below(pages_));
      if (random_.OneIn(2)) tenant.guarantee = static_cast<uint32_t>(random_.Below(pages_ / 3));
      if (ranks) tenant.priority = static_cast<int>(random_.Below(3)) - 1;
      if (ranks && random_.OneIn(3)) tenant.weight = 1 + static_cast<double>(random_.Below(9));
      ranks_ |= tenant.priority != 0 || tenant.weight.has_value();
      world_.scheduler().tenants().Set(TenantId{i}, tenant);
    }
    limited_ = true;
  }
  // Pages that calls of the client's tenant may hold, by limits and by what others' calls hold.
  uint64_t MayHold(ClientId id) {
    std::vector<uint64_t> in_use(tenants_.size());
    for (const auto& [other, program] : programs_)
      in_use[ToInt(TenantOf(other))] += world_.InUse(other);
    uint64_t others = 0;
    for (uint32_t i = 0; i < tenants_.size(); ++i) {
      const TenantId tenant{i};
      if (tenant == TenantOf(id)) continue;
      others +=
          std::max<uint64_t>(in_use[i], world_.scheduler().tenants().GuaranteeOf(tenant, pages_));
    }
    return std::min<uint64_t>(tenants_[ToInt(TenantOf(id))].most,
                              others < pages_ ? pages_ - others : 0);
  }
  uint64_t HeldWith(ClientId id, uint32_t in_use) {
    uint64_t all = in_use;
    for (const auto& [other, program] : programs_) {
      if (other != id && TenantOf(other) == TenantOf(id)) all += world_.InUse(other);
    }
    return all;
  }
  void Leave() {
    const ClientId id = AnyClient();
    programs_.erase(id);
    world_.Leave(id);
  }
  void Call() {
    const ClientId id = AnyClient();
    Program& program = programs_.at(id);
    Sync(id, &program);
    if (program.passes) {
      CallOfPass(id, &program);
    } else {
      RandomCall(id, &program);
    }
  }
  // Calls that were refused have ended.
  void Sync(ClientId id, Program* program) {
    for (auto next = program->in_use.begin(); next != program->in_use.end();) {
      const auto& row = world_.scheduler().client(id).executor().tensors();
      const bool is_removed = row[next->first].life == PageTensors::Life::kNone;
      next->second = next->second && (row[next->first].pinned || world_.Waits(id, next->first));
      next = is_removed ? program->in_use.erase(next) : std::next(next);
    }
  }
  void Create(ClientId id, TensorNumber tensor, Bytes size, Program* program) {
    if (!world_.IsRowFree(id, tensor)) return;
    // The last one's frees give their places late.
    const StreamId stream{static_cast<uint32_t>(tensor) % 4};
    const CallResult result = world_.Create(id, tensor, size, stream);
    if (result == CallResult::kHeld || result == CallResult::kWaits) program->in_use[tensor] = true;
    waits += result == CallResult::kWaits ? 1 : 0;
  }
  void Get(ClientId id, TensorNumber tensor, Program* program) {
    const CallResult result = world_.Get(id, tensor);
    program->in_use[tensor] = result == CallResult::kHeld || result == CallResult::kWaits;
    waits += result == CallResult::kWaits ? 1 : 0;
  }
  void End(ClientId id, TensorNumber tensor, bool frees, Program* program) {
    if (frees) {
      world_.Free(id, tensor, StreamId{static_cast<uint32_t>(tensor) % 4 % 3});
      program->in_use.erase(tensor);
    } else {
      world_.Put(id, tensor, random_.OneIn(2));
      program->in_use[tensor] = false;
    }
  }
  // Tensors are created and put in order, then got and freed in reverse order. One is in use.
  void CallOfPass(ClientId id, Program* program) {
    for (const auto& [tensor, in_use] : program->in_use) {
      if (!in_use) continue;
      if (!world_.Waits(id, tensor)) End(id, tensor, program->next > program->layers, program);
      return;
    }
    const uint32_t layers = program->layers;
    if (program->next == 2 * layers) program->next = 0;
    const uint32_t n = program->next++;
    if (n < layers) {
      Create(id, n, KiB(700 + 900 * (n % 3)), program);
    } else if (program->in_use.count(2 * layers - 1 - n) > 0) {
      Get(id, 2 * layers - 1 - n, program);
    }
  }
  void RandomCall(ClientId id, Program* program) {
    const auto tensor = static_cast<TensorNumber>(random_.Below(kRows));
    const auto found = program->in_use.find(tensor);
    if (found == program->in_use.end())
      return Create(id, tensor, KiB(1 + random_.Below(9000)), program);
    if (world_.Waits(id, tensor)) {
      if (random_.OneIn(20)) world_.Refuse(id, tensor);
      return;
    }
    if (!found->second && !random_.OneIn(3)) return Get(id, tensor, program);
    End(id, tensor, !found->second || random_.OneIn(4), program);
  }

  std::string Describe(ClientId id, TensorNumber tensor) const {
    const PageBooks& books = world_.scheduler().client(id).executor().books();
    const auto number = [](const char* name, uint64_t value) {
      return std::string(", ") + name + " " + std::to_string(value);
    };
    return "client " + std::to_string(ToInt(id)) + number("tensor", tensor) +
           number("of the device", pages_) + number("clients", programs_.size()) +
           number("share", books.view().limits.pages) + number("has", books.memory().pages()) +
           number("expects", books.memory().expected()) + number("in use", PagesInUse(books)) +
           number("plan", books.view().plan.empty() ? 0 : 1) +
           number("physical", world_.physical_pages());
  }

  // Slots in use may keep more pages than their bytes fill: admission counts bytes.
  bool SlotsMayNeedMore() const {
    uint32_t all = 0;
    bool more = false;
    for (const auto& [id, program] : programs_) {
      const PageBooks& books = world_.scheduler().client(id).executor().books();
      uint32_t pages = 0;
      for (const plan::UnitState& unit : books.view().units) pages += unit.InUse() ? 1 : 0;
      more |= pages > books.view().limits.pages;
      all += pages;
    }
    return more || all > pages_;
  }

  // Where all that is under way has ended, a call waits only for room that calls hold.
  void CheckSettled() {
    const bool is_settled = world_.Settle();
    ++settles;
    restless += is_settled ? 0 : 1;
    ASSERT_EQ(Fault(), "");
    std::vector<std::pair<ClientId, TensorNumber>> waiting;
    const bool slots_need_more = SlotsMayNeedMore();
    uint32_t shares = 0;
    for (auto& [id, program] : programs_) {
      Sync(id, &program);
      const PageExecutor& executor = world_.scheduler().client(id).executor();
      shares += executor.books().view().limits.pages;
      for (const auto& [tensor, used] : program.in_use) {
        if (!executor.Waits(tensor)) continue;
        ASSERT_TRUE(slots_need_more || !is_settled) << Describe(id, tensor);
        waiting.emplace_back(id, tensor);
      }
      if (world_.WaitingForRoom(id).empty()) continue;
      const TensorNumber tensor = world_.WaitingForRoom(id).front();
      const auto call = CallIn(executor.books(), executor.tensors()[tensor].units);
      // Priorities and weights keep idle pages from others, too.
      if (is_settled && !ranks_) {
        ASSERT_GT(HeldWith(id, call.in_use), MayHold(id)) << Describe(id, tensor);
      }
      waiting.emplace_back(id, tensor);
    }
    if (limited_ && is_settled) CheckTenants();
    shared += shares > pages_ ? 1 : 0;
    stuck += waiting.size();
    for (const auto& [id, tensor] : waiting) world_.Refuse(id, tensor);
  }

  // A tenant has no more than it may, or than its clients' calls hold.
  void CheckTenants() {
    std::vector<uint64_t> has(tenants_.size());
    std::vector<uint64_t> in_use(tenants_.size());
    for (const auto& [id, program] : programs_) {
      const PageBooks& books = world_.scheduler().client(id).executor().books();
      has[ToInt(TenantOf(id))] += books.memory().pages() + books.memory().releasing();
      for (const plan::UnitState& unit : books.view().units)
        in_use[ToInt(TenantOf(id))] += unit.InUse() ? 1 : 0;
    }
    for (size_t i = 0; i < tenants_.size(); ++i)
      ASSERT_LE(has[i], std::max<uint64_t>(tenants_[i].most, in_use[i])) << "tenant " << i;
  }

  plan::Random& random_;
  const uint32_t pages_;
  const uint64_t fails_;  // one copy in this number; 0: none
  const bool all_pass_;   // all clients repeat passes, and few leave
  ScheduleWorld world_;
  std::map<ClientId, Program> programs_;
  std::vector<decide::TenantPages> tenants_ = std::vector<decide::TenantPages>(3);
  bool limited_ = false;
  bool ranks_ = false;
  uint32_t last_ = 0;
};

TEST(PageSchedulerFuzzTest, NoCallWaitsWhereThereIsRoomAndNoPageIsLost) {
  uint64_t waits = 0;
  uint64_t stuck = 0;
  uint64_t shared = 0;
  uint64_t settles = 0;
  uint64_t restless = 0;
  plan::ForSeeds(kSeeds, [&](plan::Random& random) {
    RandomClients clients(&random);
    for (int step = 0; step < kSteps && !testing::Test::HasFailure(); ++step) {
      clients.Step();
      ASSERT_EQ(clients.Fault(), "") << "step " << step;
    }
    if (!testing::Test::HasFailure()) clients.Finish();
    waits += clients.waits;
    stuck += clients.stuck;
    shared += clients.shared;
    settles += clients.settles;
    restless += clients.restless;
  });
  EXPECT_GT(waits, 100u);
  EXPECT_GT(stuck, 100u);
  EXPECT_GT(shared, 20u);
  EXPECT_LT(restless, settles / 100);
  std::printf("settled %lu times, %lu without end, %lu with a common plan; %lu calls were stuck\n",
              static_cast<unsigned long>(settles), static_cast<unsigned long>(restless),
              static_cast<unsigned long>(shared), static_cast<unsigned long>(stuck));
}

}  // namespace
}  // namespace ravenstore::core
