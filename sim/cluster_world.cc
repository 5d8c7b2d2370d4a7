#include "sim/cluster_world.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/cluster_client.h"
#include "sim/cluster_member.h"
#include "transport/event_queue.h"

namespace ravenstore::sim {
namespace {

using cluster::MachineId;
using core::Duration;
using core::Tick;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr Duration kLease = std::chrono::seconds(1);
constexpr Duration kKeepExpired = kLease * 3;
constexpr Duration kStoreDelay = milliseconds(1);
constexpr uint32_t kSlots = 6;           // of a lender, at most
constexpr uint32_t kAdvancesMax = 1000;  // of one node at one instant

// One that simulates has a client, which is gone with its process.
struct Player {
  Player(ClusterMember::Fixed fixed, ClusterPlace* place) : node(std::move(fixed), place) {}

  ClusterMember node;
  uint32_t limit = kSlots;
  bool leaves = false;  // it hands over what it lends, and then ends
  std::unique_ptr<ClusterClient> client = {};
  Tick resumed{};
  uint32_t advances = 0;  // at this instant
};

// Of every fourth run the network is as TLS is: chunks are not copied.
bool HasSums(uint64_t seed) {
  return seed % 4 != 2;
}

class World {
 public:
  explicit World(const ClusterRun& run);
  ~World();
  ClusterCounts Run();

 private:
  uint64_t Random(uint64_t below) { return random_() % below; }
  Duration Between(Duration least, Duration most) {
    return least + Duration(static_cast<int64_t>(
                       Random(static_cast<uint64_t>((most - least).count()) + 1)));
  }
  Tick Now() const { return place_.Now(); }
  Player& Any() { return *players_[Random(players_.size())]; }
  void After(Duration duration, std::function<void()> what) {
    later_.Add(Now() + duration, std::move(what));
  }

  void Start(Player* player);
  ClusterMember::Options Options();
  void Crash(Player* player);
  void Leave(Player* player);
  void ScheduleStart(Player* player);
  void Pause(Player* player, Duration duration);
  void PauseUntilExpiry(Player* player);
  void Resume(Player* player);
  void SetLimit(Player* player, uint32_t slots);
  Duration FaultLasts();
  void Fault();
  void SlowLink(const std::string& a, const std::string& b, Duration most, Duration lasts);
  void LinkFault(const std::string& a, const std::string& b);
  void WantBack(Player* player);
  void StoreFault();

  void Advance(Player* player);
  void StepTo(Tick until);
  void AtEnd();
  void Repair();
  void Found();
  std::set<std::pair<std::string, std::string>> Forgotten() const;
  void NoneForgotten();

  const ClusterRun run_;
  std::mt19937_64 random_;
  ClusterCounts counts_;
  ClusterPlace place_;
  std::shared_ptr<const cluster::FakeStore::Copy> backup_;
  std::vector<std::unique_ptr<Player>> players_;
  std::map<std::string, Player*> by_name_;
  transport::EventQueue later_;
  cluster::Sizes sizes_;
  uint32_t copies_ = 1;
  bool rots_ = false;
  transport::FakeLink link_;
};

World::World(const ClusterRun& run)
    : run_(run), random_(run.seed), place_(run.seed, HasSums(run.seed)) {
  const bool large = Random(12) == 0;  // pieces of more than one chunk
  sizes_ = large ? cluster::Sizes{.piece = core::KiB(512), .granule = core::KiB(64)}
                 : cluster::Sizes{.piece = core::KiB(8), .granule = core::KiB(1)};
  rots_ = Random(4) == 0;
  const auto count = static_cast<uint32_t>(2 + Random(run.nodes_max - 1));
  copies_ = count >= 4 && Random(2) == 0 ? 2 : 1;
  const Duration delays[] = {microseconds(50), milliseconds(2), milliseconds(15), milliseconds(50)};
  link_.delay = delays[Random(std::size(delays))];
  link_.jitter = Random(2) == 0 ? Duration{} : link_.delay;
  if (large) link_.bytes_per_second = 20e6;
  for (uint32_t i = 0; i < count; ++i) {
    ClusterMember::Fixed fixed{.name = "n" + std::to_string(i)};
    fixed.machine = {.high = 0, .low = i % 4 == 3 && Random(2) == 0 ? i - 1 : i};
    // Often as far apart as may be.
    const double apart =
        Random(2) == 0 ? static_cast<double>(Random(2)) * 1000 : static_cast<double>(Random(1001));
    fixed.clock_rate = 0.995 + apart / 1e5;
    fixed.key[0] = static_cast<std::byte>(i + 1);
    players_.push_back(std::make_unique<Player>(fixed, &place_));
    by_name_[fixed.name] = players_.back().get();
  }
  for (const auto& a : players_) {
    for (const auto& b : players_) {
      if (a != b) place_.network.SetLink(a->node.name(), b->node.name(), link_);
    }
  }
  backup_ = place_.store.Backup();
  for (const auto& player : players_) Start(player.get());
}

World::~World() {
  for (const auto& player : players_) {
    if (player->node.lives()) Crash(player.get());
  }
}

// ---- Nodes

ClusterMember::Options World::Options() {
  ClusterMember::Options options;
  options.incarnation = {.high = random_(), .low = random_()};
  options.patience = {.ping = kLease / 2, .silence = kLease * 3 / 2};
  options.violation = [this](uint64_t ClusterCounts::*which, const std::string& words) {
    if (counts_.first.empty()) counts_.first = words;
    ++(counts_.*which);
  };
  options.node.sizes = sizes_;
  options.node.random = [this] { return random_(); };
  cluster::Home::Options& home = options.node.home;
  home.copies = copies_;
  home.pieces_max = 4;
  home.repair_step = sizes_.granule * 3;
  home.repair_timeout = kLease * 4;
  home.loans.offer_period = kLease / 2;
  home.loans.loan.connect_timeout = kLease / 2;
  home.loans.loan.call_timeout = kLease / 2;
  home.loans.loan.revalidate_within = kLease / 4;
  home.loans.loan.backoff_most = kLease / 2;
  cluster::Lender::Options& lender = options.node.lender;
  lender.lease = kLease;
  lender.keep_expired = kKeepExpired;
  lender.home_slots_max = 4;
  lender.recall_least = kLease / 4;
  options.membership.lease = kLease * 2;
  options.membership.recheck = kLease * 3;
  options.membership.reread = kLease * 8;
  options.membership.patience = kLease / 2;
  options.membership.table.grace = kLease * 3 / 2;
  options.membership.table.spacing = kLease / 10;
  options.membership.seed = random_();
  return options;
}

void World::Start(Player* player) {
  ClusterMember& node = player->node;
  const ClusterMember::Options start = Options();
  node.Start(start);
  ClusterClient::Options options{
      .sizes = sizes_, .pieces = 4, .rots = rots_, .now = [this] { return Now(); }, .is_late = {}};
  options.is_late = [this, &node] {
    const auto lender = by_name_.find(node.serving());
    if (lender == by_name_.end() || !lender->second->node.lives()) return false;
    const LenderLedger& ledger = lender->second->node.ledger();
    return ledger.Opened(node.home()) && ledger.IsExpired(node.home());
  };
  player->client = std::make_unique<ClusterClient>(std::move(options), &node.node().home(),
                                                   &random_, start.violation, &counts_);
  node.SetUser(player->client.get());
  player->leaves = false;
  SetLimit(player, player->limit);
}

void World::Crash(Player* player) {
  Resume(player);
  player->client->Close();
  player->node.Crash();
  player->client.reset();
}

// As a service is stopped: it hands over, then reports that it ends, and is gone.
void World::Leave(Player* player) {
  if (!player->node.runs() || std::exchange(player->leaves, true)) return;
  const auto after = [this, player, start = player->node.home()](Duration time, auto what) {
    After(time, [player, start, what] {
      if (player->node.lives() && player->node.home() == start) what();
    });
  };
  const Duration within = FaultLasts();
  player->node.ledger().SetLimit(0);
  player->node.node().HandOver(within);
  player->node.SetDirty();
  after(within, [this, player] {
    Resume(player);
    player->client->Close();
    player->node.node().End();
    player->node.SetDirty();
  });
  after(within + cluster::kNoticeTimeout, [this, player] {
    Crash(player);
    ScheduleStart(player);
  });
}

void World::ScheduleStart(Player* player) {
  After(Random(2) == 0 ? Between({}, kLease / 10) : FaultLasts(), [this, player] {
    if (!player->node.lives()) Start(player);
  });
}

void World::Pause(Player* player, Duration duration) {
  if (!player->node.runs()) return;
  player->node.Pause();
  After(duration, [this, player] { Resume(player); });
}

// While it reads, and until a lease of it has just expired, or is about to.
void World::PauseUntilExpiry(Player* player) {
  if (!player->node.runs()) return;
  for (int i = 0; i < 16; ++i) player->client->Act();
  player->node.SetDirty();
  StepTo(Now() + link_.delay / 2);
  const ClusterMember& lender = Any().node;
  const Duration left =
      lender.lives() ? lender.ledger().LeaseLeft(player->node.home()) : Duration{};
  Pause(player, left + Between({}, kLease / 100));
}

void World::Resume(Player* player) {
  if (player->node.Resume()) player->resumed = Now();
}

void World::SetLimit(Player* player, uint32_t slots) {
  player->limit = slots;
  if (!player->node.lives() || player->leaves) return;
  player->node.ledger().SetLimit(slots);
  player->node.node().SetLendable(sizes_.piece * slots);
  player->node.SetDirty();
}

// ---- Faults

// What lasts about as long as a lease, or until its safe end, is what protocols get wrong.
Duration World::FaultLasts() {
  switch (Random(4)) {
    case 0: return Between(Duration{}, kLease / 4);
    case 1: return Between(kLease * 85 / 100, kLease * 105 / 100);
    case 2: return kLease * 2;
    default: return Between(Duration{}, kLease * 3);
  }
}

void World::SlowLink(const std::string& a, const std::string& b, Duration most, Duration lasts) {
  transport::FakeLink slow = link_;
  slow.delay = Between(milliseconds(1), most);
  slow.jitter = slow.delay;
  place_.network.SetLink(a, b, slow);
  After(lasts, [this, a, b] { place_.network.SetLink(a, b, link_); });
}

void World::LinkFault(const std::string& a, const std::string& b) {
  if (a == b) return;
  transport::FakeNetwork& network = place_.network;
  switch (Random(3)) {
    case 0: network.Cut(a, b); return After(FaultLasts(), [&network, a, b] { network.Heal(a, b); });
    case 1: return network.Drop(a, b);
    default: return SlowLink(a, b, kLease * 6 / 10, FaultLasts());
  }
}

// Often the memory is idle again soon after it was taken; and some of its homes are far away, and
// still use what is taken of them.
void World::WantBack(Player* player) {
  SetLimit(player, static_cast<uint32_t>(Random(kSlots + 1)));
  const Duration lasts = Random(2) == 0 ? Between(kLease / 4, kLease * 3 / 10) : FaultLasts();
  After(lasts, [this, player] {
    if (!player->node.paused()) SetLimit(player, kSlots);
  });
  const std::string& name = player->node.name();
  for (const auto& other : players_) {
    if (other.get() == player || Random(2) == 0) continue;
    SlowLink(name, other->node.name(), kLease / 10, lasts + kLease / 4);
  }
}

// Of the store by which nodes find each other.
void World::StoreFault() {
  cluster::FakeStore& store = place_.store;
  switch (Random(8)) {
    case 0: store.Stop(); return After(FaultLasts(), [&store] { store.Start(); });
    case 1: {
      const std::string name = Any().node.name();
      store.Cut(name);
      return After(FaultLasts() * 2, [&store, name] { store.Heal(name); });
    }
    case 2: backup_ = store.Backup(); return;
    case 3: return store.Restore(*backup_, Random(2) == 0);
    case 4: return store.Compact();
    case 5: return store.Silence();
    case 6: store.SetLosses(0.2); return After(FaultLasts(), [&store] { store.SetLosses(0); });
    default:
      store.SetDelay(Between({}, kLease / 4), Between(milliseconds(1), kLease / 2));
      return After(FaultLasts(), [&store] { store.SetDelay(kStoreDelay, {}); });
  }
}

void World::Fault() {
  Player& player = Any();
  switch (Random(10)) {
    case 0:
      if (!player.node.lives()) return;
      if (Random(2) == 0) return Leave(&player);
      Crash(&player);
      return ScheduleStart(&player);
    case 1: return Random(2) == 0 ? PauseUntilExpiry(&player) : Pause(&player, FaultLasts());
    case 2: return player.node.paused() ? void() : WantBack(&player);
    case 3:
      if (rots_ && player.node.lives()) player.node.ledger().CorruptByte(random_());
      return;
    case 4:
    case 5: return StoreFault();
    default: return LinkFault(player.node.name(), Any().node.name());
  }
}

// ---- Time

void World::Advance(Player* player) {
  player->node.Advance();
  player->advances = player->node.next() <= Now() ? player->advances + 1 : 0;
  if (player->advances > kAdvancesMax) {
    ++counts_.late_calls;
    counts_.first = "a node is never done";
  }
}

void World::StepTo(Tick until) {
  const auto due_at = [this](const Player& player) {
    if (!player.node.runs()) return core::kNever;
    return player.node.dirty() ? Now() : player.node.next();
  };
  while (counts_.Violations() == 0) {
    Tick due = until;
    for (const auto& player : players_) due = std::min(due, due_at(*player));
    place_.RunNext(std::max(due, Now()));
    bool any = false;
    for (const auto& player : players_) {
      if (due_at(*player) > Now()) continue;
      Advance(player.get());
      any = true;
    }
    if (!any && Now() >= until) return;
  }
}

void World::Repair() {
  cluster::FakeStore& store = place_.store;
  store.Start();
  store.SetLosses(0);
  store.SetDelay(kStoreDelay, {});
  for (const auto& player : players_) {
    const std::string& name = player->node.name();
    Resume(player.get());
    if (player->leaves && player->node.lives()) Crash(player.get());
    store.Heal(name);
    if (!player->node.lives()) Start(player.get());
    for (const auto& other : players_) {
      place_.network.Heal(name, other->node.name());
      place_.network.SetLink(name, other->node.name(), link_);
    }
    SetLimit(player.get(), kSlots);
    player->client->ReturnAll();
  }
}

// Each node knows all others, and is known as what it is.
void World::Found() {
  for (const auto& player : players_) {
    const bool all = player->node.known() + 1 == players_.size();
    if (counts_.Violations() > 0 || (all && player->node.membership().status().registered))
      continue;
    ++counts_.late_calls;
    counts_.first = "all is well again, and " + player->node.name() + " has not found the others";
  }
}

// Pairs of home and connected lender, where the lender keeps slots that the home does not have.
std::set<std::pair<std::string, std::string>> World::Forgotten() const {
  std::set<std::pair<std::string, std::string>> forgotten;
  for (const auto& player : players_) {
    for (const cluster::Loan::View& loan : player->node.node().home().Lenders()) {
      uint32_t kept = 0;
      for (const auto& home : by_name_.at(loan.lender)->node.node().Homes()) {
        if (home.home == player->node.name()) kept += home.slots;
      }
      if (loan.connected && kept > loan.slots) forgotten.emplace(player->node.name(), loan.lender);
    }
  }
  return forgotten;
}

// A slot that a lender keeps for a home is missing in its offer to that home, so it must be free
// before it expires. Checks twice, because a loan may just have been started again.
void World::NoneForgotten() {
  StepTo(Now() + kKeepExpired - kLease * 3 / 4);
  const auto before = Forgotten();
  StepTo(Now() + kLease / 2);
  for (const auto& [home, lender] : Forgotten()) {
    if (counts_.Violations() > 0 || !before.contains({home, lender})) continue;
    ++counts_.late_calls;
    counts_.first = "all is well again, and " + lender + " keeps what " + home + " has forgotten";
  }
}

void World::AtEnd() {
  Repair();
  NoneForgotten();
  StepTo(Now() + kLease * 20);
  Found();
  const Tick deadline = Now() + kLease * 5;
  std::vector<Player*> able;
  for (const auto& player : players_) {
    std::set<MachineId> machines;
    for (const auto& other : players_) {
      if (other != player) machines.insert(other->node.machine());
    }
    if (machines.size() < copies_) continue;
    able.push_back(player.get());
    player->client->ReturnAll();
  }
  while (Now() < deadline && counts_.Violations() == 0) {
    for (Player* const player : able) {
      player->client->BeginLast(deadline);
      player->node.SetDirty();
    }
    StepTo(Now() + kLease / 4);
  }
  StepTo(Now() + milliseconds(2));
  for (Player* const player : able) {
    if (counts_.Violations() > 0 || player->client->last_succeeded()) continue;
    ++counts_.late_calls;
    counts_.first = "all is well again, and a client still waits";
  }
}

ClusterCounts World::Run() {
  for (uint32_t event = 0; event < run_.events && counts_.Violations() == 0; ++event) {
    const double gap = -std::log(1 - static_cast<double>(Random(1 << 20)) / (1 << 20));
    const Tick at = Now() + core::FromSeconds(gap * 0.012);
    while (later_.Next() <= at && counts_.Violations() == 0) {
      StepTo(later_.Next());
      later_.Take(at)();
    }
    StepTo(at);
    if (Random(20) == 0) {
      Fault();
    } else if (Player& player = Any(); player.node.runs()) {
      player.client->Act();
      player.node.SetDirty();
    }
    for (const auto& player : players_) {
      if (player->node.runs() && player->resumed < Now()) player->client->CheckDeadlines(Now());
    }
  }
  if (counts_.Violations() == 0) {
    later_.Clear();
    AtEnd();
  }
  for (const auto& player : players_) counts_.pieces_moved += player->node.counts().moved;
  return counts_;
}

}  // namespace

ClusterCounts RunCluster(const ClusterRun& run) {
  World world(run);
  return world.Run();
}

}  // namespace ravenstore::sim
