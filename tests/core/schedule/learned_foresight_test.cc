#include "core/schedule/learned_foresight.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/schedule/scheduled_client.h"
#include "tests/core/execution/word_backend.h"
#include "tests/core/plan/seeds.h"

namespace ravenstore::core {
namespace {

using plan::CallKind;

constexpr plan::CopyPool kPool{.in_rate = 50e9, .out_rate = 50e9};

// A client that has room for all, with its rows.
class Client {
 public:
  // `reuses`: a create has the lowest row that is free.
  Client(bool reuses, LearnedForesight::Options options)
      : reuses_(reuses),
        client_({.backend = &backend_,
                 .books = {.limits = limits_, .coming_most = MiB(16)},
                 .foresight = std::make_unique<LearnedForesight>(limits_, options)}) {}

  TensorNumber Create(Bytes size) {
    TensorNumber row = next_;
    if (reuses_ && !free_.empty()) {
      row = free_.extract(free_.begin()).value();
    } else {
      ++next_;
    }
    const ClientCall call{.kind = CallKind::kCreate, .tensor = row, .size = size, .at = at_};
    See(call);
    client_.Place(call, UINT32_MAX);
    const auto& units = client_.executor().tensors()[row].units;
    log_ += " at " + std::to_string(units.first) + "+" + std::to_string(units.count);
    Hold(call);
    return row;
  }
  void Get(TensorNumber row) {
    const ClientCall call{.kind = CallKind::kGet, .tensor = row, .size = SizeOf(row), .at = at_};
    See(call);
    Hold(call);
  }
  void Put(TensorNumber row, const NextUse& next_use = {}) {
    const ClientCall call{.kind = CallKind::kPut,
                          .tensor = row,
                          .size = SizeOf(row),
                          .modifies = true,
                          .next_use = next_use,
                          .at = at_};
    See(call);
    last_end_ = client_.End(call);
    client_.EndUse(last_end_);
  }
  void Free(TensorNumber row) {
    const ClientCall call{.kind = CallKind::kFree, .tensor = row, .size = SizeOf(row), .at = at_};
    See(call);
    client_.EndUse(client_.End(call));
    free_.insert(row);
  }
  // Tensors are created and put in order, then got and freed in an order of the seed's.
  void Pass(uint32_t layers, uint64_t seed) {
    plan::Random random(seed);
    std::vector<TensorNumber> rows;
    for (uint32_t i = 0; i < layers; ++i) {
      rows.push_back(Create(KiB(300 + 1100 * (i % 4))));
      Put(rows.back());
    }
    while (!rows.empty()) {
      std::swap(rows[random.Below(rows.size())], rows.back());
      Get(rows.back());
      Free(rows.back());
      rows.pop_back();
    }
  }
  const ScheduledClient& client() const { return client_; }
  const CallEnd& last_end() const { return last_end_; }
  // Places and plans so far.
  std::string TakeLog() { return std::exchange(log_, ""); }

 private:
  Bytes SizeOf(TensorNumber row) const { return client_.executor().tensors()[row].size; }
  void See(const ClientCall& call) {
    at_ += std::chrono::microseconds(100);
    if (client_.See(call, false) && client_.foresight().has_plan()) {
      PlanWork work{.limits = limits_, .parts = {client_.BeginPlan()}};
      work.Make();
      client_.SetPlan(std::move(work.parts.front().plan), limits_.pages);
    }
    const plan::ResidencyPlan& plan = client_.executor().books().view().plan;
    log_ += "\n" + std::to_string(plan.position()) + " of";
    if (plan.position() > 0) return;
    for (const plan::PlannedCall& of : plan.calls()) {
      log_ += " " + std::to_string(static_cast<int>(of.kind)) + std::to_string(of.unpins) +
              std::to_string(of.dies) + std::to_string(of.modifies) + "," +
              std::to_string(of.units.first) + "+" + std::to_string(of.units.count) + "@" +
              std::to_string(of.at.count());
    }
  }
  void Hold(const ClientCall& call) {
    EXPECT_TRUE(client_.Hold(call, limits_.pages));
    client_.Start();
    client_.BeginUse(call.tensor);
  }

  const bool reuses_;
  const plan::PlanLimits limits_{.page = MiB(2), .pages = 1000, .pools = {kPool}};
  WordBackend backend_;
  ScheduledClient client_;
  std::set<TensorNumber> free_;
  TensorNumber next_ = 0;
  Duration at_{0};
  CallEnd last_end_;
  std::string log_;
};

TEST(LearnedForesightTest, PlansAreTheSameWhetherRowsAreReused) {
  for (const bool hints : {false, true}) {
    Client reuses(true, {.uses_hints = hints});
    Client numbers(false, {.uses_hints = hints});
    for (uint64_t pass = 0; pass < 8; ++pass) {
      for (Client* client : {&reuses, &numbers}) client->Pass(40, pass < 5 ? 1 : pass);
      ASSERT_EQ(reuses.TakeLog(), numbers.TakeLog()) << "pass " << pass;
    }
    EXPECT_TRUE(reuses.client().foresight().has_plan());
    EXPECT_GT(reuses.client().foresight().stats().creates, 50u);
    EXPECT_EQ(reuses.client().foresight().stats().elsewhere, 0u);
  }
}

TEST(LearnedForesightTest, PlansStayTheSameWhenTheHistoryForgetsTensors) {
  Client reuses(true, {});
  Client numbers(false, {});
  constexpr uint32_t kLayers = 500;
  for (uint64_t calls = 0; calls < plan::CallHistory::kCallsMax * 3 / 2; calls += 4 * kLayers) {
    for (Client* client : {&reuses, &numbers}) client->Pass(kLayers, 1);
    ASSERT_EQ(reuses.TakeLog(), numbers.TakeLog()) << "call " << calls;
  }
  EXPECT_TRUE(reuses.client().foresight().has_plan());
}

// Small tensors are used without their neighbours, until gets have used all of the device's bytes.
TEST(LearnedForesightTest, WithoutSlotsSmallTensorsKeepTheirAddresses) {
  for (const bool has_slots : {true, false}) {
    Client client(true, {.has_slots = has_slots});
    std::vector<TensorNumber> rows;
    const auto create = [&] {
      rows.push_back(client.Create(KiB(512)));
      client.Put(rows.back());
    };
    for (int i = 0; i < 64; ++i) create();
    for (size_t i = 0; i < 8000; ++i) {
      client.Get(rows[i * 4 % 64]);
      client.Put(rows[i * 4 % 64]);
    }
    create();
    EXPECT_EQ(client.client().executor().tensors()[rows.back()].units.is_slot(), has_slots);
  }
}

TEST(LearnedForesightTest, APutWithoutANextUseEndsTheBytesOnlyIfThatIsSaid) {
  const NextUse never{.kind = NextUse::Kind::kNever};
  for (const bool ends : {false, true}) {
    Client client(true, {.ends_at_never = ends});
    const TensorNumber row = client.Create(MiB(3));
    client.Put(row, never);
    EXPECT_EQ(client.last_end().dies, ends);
    EXPECT_EQ(client.client().executor().tensors()[row].lives(), !ends);
  }
}

}  // namespace
}  // namespace ravenstore::core
