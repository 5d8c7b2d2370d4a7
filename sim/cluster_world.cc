#include "sim/cluster_world.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cluster/node.h"
#include "core/check.h"
#include "sim/cluster_client.h"
#include "transport/fake.h"

namespace ravenstore::sim {
namespace {

using cluster::MachineId;
using core::Duration;
using core::Tick;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using transport::CallId;
using transport::ConnectionId;

constexpr Duration kLease = std::chrono::seconds(1);
constexpr uint32_t kSlots = 6;           // of a lender, at most
constexpr uint32_t kAdvancesMax = 1000;  // of one node at one instant

// Stands for a signature in a world where nobody forges one.
cluster::Signature Sign(const cluster::PublicKey& key, std::string_view message) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const std::byte byte : key) hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001b3;
  for (const char c : message) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  cluster::Signature signature{};
  std::memcpy(signature.data(), &hash, sizeof(hash));
  return signature;
}

class Member;

// The transport as a node sees it, with what goes by noted.
class Tap final : public transport::Transport {
 public:
  Tap(Member* member, transport::FakeNetwork* network) : member_(*member), network_(*network) {}

  core::Result<ConnectionId> Connect(std::string_view node, std::string_view address,
                                     Tick deadline) override;
  void Close(ConnectionId connection) override {
    if (inner != nullptr) inner->Close(connection);
  }
  core::Result<CallId> Call(ConnectionId connection, transport::Request request) override;
  void Cancel(CallId call) override {
    if (inner != nullptr) inner->Cancel(call);
  }
  core::Status Reply(CallId call, transport::Answer answer) override;
  core::Status Refuse(CallId call, core::Error why) override {
    return inner == nullptr ? Gone() : inner->Refuse(call, std::move(why));
  }
  void Poll(Tick) override { RAVEN_CHECK(false); }
  void Wake() override {}
  Tick Now() const override { return network_.Now(); }

  transport::Transport* inner = nullptr;  // null once the process has died

 private:
  static core::Error Gone() { return {core::ErrorCode::kUnavailable, "the process has died"}; }

  Member& member_;
  transport::FakeNetwork& network_;
  std::map<ConnectionId, std::string> lenders_;
};

// A node of the world, from start to start.
class Member final : public transport::Service, public cluster::Node::Listener {
 public:
  // transport::Service.
  void OnConnected(ConnectionId connection, std::string_view peer) override {
    dirty = true;
    node->OnConnected(connection, peer);
  }
  void OnLost(ConnectionId connection, const core::Error& why) override {
    dirty = true;
    node->OnLost(connection, why);
  }
  core::Result<transport::Sink> OnRequest(const transport::IncomingCall& call) override {
    dirty = true;
    RAVEN_ASSIGN_OR_RETURN(transport::Sink sink, node->OnRequest(call));
    return ledger->OnAccepted(call, cluster::DecodeRequest(call.header).value(), std::move(sink));
  }
  void OnReceived(CallId call) override {
    dirty = true;
    node->OnReceived(call);
  }
  void OnEnded(CallId call, const core::Status& status) override {
    dirty = true;
    ledger->OnEnded(call);
    node->OnEnded(call, status);
  }
  // cluster::Node::Listener.
  void OnPieceRecalled(cluster::PieceId piece, Tick) override { client->OnPieceRecalled(piece); }
  void OnPieceLost(cluster::PieceId piece, const core::Error&) override {
    client->OnPieceLost(piece);
  }
  void OnPiecesMost(uint32_t) override {}
  void OnEvent(const cluster::Event& event) override {
    moved += event.kind == cluster::Event::Kind::kPieceMoved ? 1 : 0;
  }

  bool lives() const { return node != nullptr; }
  bool runs() const { return lives() && !paused; }
  Tick LeaseNow(Tick now) const {
    return Tick(Duration(
               static_cast<int64_t>(static_cast<double>(now.time_since_epoch().count()) * rate))) +
           std::chrono::hours(1);
  }

  std::string name;
  MachineId machine;
  double rate = 1;  // of its clock
  cluster::PublicKey key{};
  uint32_t limit = kSlots;

  HomeKey home;  // of this start
  std::unique_ptr<LenderLedger> ledger;
  std::unique_ptr<Tap> tap;
  std::unique_ptr<cluster::Node> node;
  std::unique_ptr<ClusterClient> client;
  std::unique_ptr<transport::Transport> transport;
  std::map<std::string, cluster::Peer> known;

  bool paused = false;
  Tick resumed{};
  bool dirty = false;  // something came: it advances
  Tick next{};
  uint32_t advances = 0;  // at this instant
  std::string serving;    // whose answer to a read is told just now
  uint64_t moved = 0;
};

core::Result<ConnectionId> Tap::Connect(std::string_view node, std::string_view address,
                                        Tick deadline) {
  if (inner == nullptr) return Gone();
  RAVEN_ASSIGN_OR_RETURN(const ConnectionId connection, inner->Connect(node, address, deadline));
  lenders_[connection] = node;
  return connection;
}

core::Result<CallId> Tap::Call(ConnectionId connection, transport::Request request) {
  if (inner == nullptr) return Gone();
  const auto header = cluster::DecodeRequest(request.header);
  const bool reads = std::holds_alternative<cluster::ReadRequest>(*header);
  request.done = [this, connection, reads,
                  done = std::move(request.done)](core::Result<transport::Response> response) {
    member_.dirty = true;
    if (reads) member_.serving = lenders_.at(connection);
    done(std::move(response));
    member_.serving.clear();
  };
  return inner->Call(connection, std::move(request));
}

core::Status Tap::Reply(CallId call, transport::Answer answer) {
  if (inner == nullptr) return Gone();
  return inner->Reply(call, member_.ledger->OnAnswered(call, std::move(answer)));
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
  Tick Now() const { return network_.Now(); }
  Member& Any() { return *members_[Random(members_.size())]; }
  void After(Duration duration, std::function<void()> what) {
    later_.emplace(Now() + duration, std::move(what));
  }

  void Start(Member* member);
  cluster::Node::Options Options(Member* member);
  void Crash(Member* member);
  void Pause(Member* member, Duration duration);
  void PauseUntilExpiry(Member* member);
  void Resume(Member* member);
  void Know(Member* member, const std::string& peer, bool known);
  void SetLimit(Member* member, uint32_t slots);
  Duration FaultLasts();
  void Fault();
  void LinkFault(const std::string& a, const std::string& b);

  void Advance(Member* member);
  void StepTo(Tick until);
  void AtEnd();

  const ClusterRun run_;
  std::mt19937_64 random_;
  ClusterCounts counts_;
  transport::FakeNetwork network_;
  std::vector<std::unique_ptr<Member>> members_;
  std::map<std::string, Member*> by_name_;
  std::multimap<Tick, std::function<void()>> later_;
  cluster::Sizes sizes_;
  uint32_t copies_ = 1;
  bool rots_ = false;
  transport::FakeLink link_;
};

World::World(const ClusterRun& run) : run_(run), random_(run.seed), network_(run.seed) {
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
    Member& member = *members_.emplace_back(std::make_unique<Member>());
    member.name = "n" + std::to_string(i);
    member.machine = {.high = 0, .low = i % 4 == 3 && Random(2) == 0 ? i - 1 : i};
    // Often as far apart as may be.
    const double apart =
        Random(2) == 0 ? static_cast<double>(Random(2)) * 1000 : static_cast<double>(Random(1001));
    member.rate = 0.995 + apart / 1e5;
    member.key[0] = static_cast<std::byte>(i + 1);
    by_name_[member.name] = &member;
  }
  for (const auto& a : members_) {
    for (const auto& b : members_) {
      if (a == b) continue;
      a->known[b->name] = {.address = b->name};
      network_.SetLink(a->name, b->name, link_);
    }
  }
  for (const auto& member : members_) Start(member.get());
}

World::~World() {
  for (const auto& member : members_) {
    if (member->lives()) Crash(member.get());
  }
}

// ---- Nodes

cluster::Node::Options World::Options(Member* member) {
  cluster::Node::Options options{
      .name = member->name,
      .identity = {.incarnation = member->home.second,
                   .machine = member->machine,
                   .key = member->key,
                   .sign =
                       [key = member->key](std::string_view message) { return Sign(key, message); },
                   .verify =
                       [](const cluster::PublicKey& key, std::string_view message,
                          const cluster::Signature& signature) {
                         return Sign(key, message) == signature;
                       }},
      .sizes = sizes_,
      .lease_clock = [this, member] { return member->LeaseNow(Now()); },
      .random = [this] { return random_(); }};
  options.home.copies = copies_;
  options.home.pieces_max = 4;
  options.home.repair_step = sizes_.granule * 3;
  options.home.repair_timeout = kLease * 4;
  options.home.loans.offer_period = kLease / 2;
  options.home.loans.loan.connect_timeout = kLease / 2;
  options.home.loans.loan.call_timeout = kLease / 2;
  options.home.loans.loan.revalidate_within = kLease / 4;
  options.home.loans.loan.backoff_most = kLease / 2;
  options.lender.lease = kLease;
  options.lender.keep_expired = kLease * 3;
  options.lender.home_slots_max = 4;
  options.lender.recall_least = kLease / 4;
  return options;
}

void World::Start(Member* member) {
  member->home = {member->name, {.high = random_(), .low = random_()}};
  const auto violation = [this](uint64_t ClusterCounts::*which, const std::string& words) {
    if (counts_.first.empty()) counts_.first = words;
    ++(counts_.*which);
  };
  member->ledger = std::make_unique<LenderLedger>(
      [this, member] { return member->LeaseNow(Now()); }, kLease, violation);
  member->tap = std::make_unique<Tap>(member, &network_);
  member->node = std::make_unique<cluster::Node>(Options(member), member->ledger.get(), member);
  ClusterClient::Options options{
      .sizes = sizes_, .pieces = 4, .rots = rots_, .now = [this] { return Now(); }, .is_late = {}};
  options.is_late = [this, member] {
    const auto lender = by_name_.find(member->serving);
    return lender != by_name_.end() && lender->second->lives() &&
           lender->second->ledger->Opened(member->home) &&
           lender->second->ledger->IsExpired(member->home);
  };
  member->client = std::make_unique<ClusterClient>(std::move(options), &member->node->home(),
                                                   &random_, violation, &counts_);
  member->transport =
      network_.Add(member->name, member, {.ping = kLease / 2, .silence = kLease * 3 / 2});
  member->tap->inner = member->transport.get();
  member->node->Attach(member->tap.get());
  member->node->SetPeers(member->known);
  SetLimit(member, member->limit);
  member->dirty = true;
}

void World::Crash(Member* member) {
  Resume(member);
  member->client->Close();
  member->tap->inner = nullptr;
  member->transport.reset();
  member->node.reset();
  member->tap.reset();
  member->client.reset();
  member->ledger.reset();
}

void World::Pause(Member* member, Duration duration) {
  if (!member->runs()) return;
  member->paused = true;
  network_.Pause(member->name);
  After(duration, [this, member] { Resume(member); });
}

// While it reads, and until a lease of it has just expired, or is about to.
void World::PauseUntilExpiry(Member* member) {
  if (!member->runs()) return;
  for (int i = 0; i < 16; ++i) member->client->Act();
  member->dirty = true;
  StepTo(Now() + link_.delay / 2);
  const Member& lender = Any();
  const Duration left = lender.lives() ? lender.ledger->LeaseLeft(member->home) : Duration{};
  Pause(member, left + Between({}, kLease / 100));
}

void World::Resume(Member* member) {
  if (!std::exchange(member->paused, false)) return;
  network_.Resume(member->name);
  member->resumed = Now();
  member->next = Now();
}

void World::Know(Member* member, const std::string& peer, bool known) {
  if (peer == member->name) return;
  if (known) {
    member->known[peer] = {.address = peer};
  } else {
    member->known.erase(peer);
  }
  if (!member->runs()) return;
  member->node->SetPeers(member->known);
  member->dirty = true;
}

void World::SetLimit(Member* member, uint32_t slots) {
  member->limit = slots;
  if (!member->lives()) return;
  member->ledger->SetLimit(slots);
  member->node->SetLendable(sizes_.piece * slots);
  member->dirty = true;
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

void World::LinkFault(const std::string& a, const std::string& b) {
  if (a == b) return;
  switch (Random(3)) {
    case 0: network_.Cut(a, b); return After(FaultLasts(), [this, a, b] { network_.Heal(a, b); });
    case 1: return network_.Drop(a, b);
    default: {
      transport::FakeLink slow = link_;
      slow.delay = Between(milliseconds(1), kLease * 6 / 10);
      slow.jitter = slow.delay;
      network_.SetLink(a, b, slow);
      After(FaultLasts(), [this, a, b] { network_.SetLink(a, b, link_); });
    }
  }
}

void World::Fault() {
  Member& member = Any();
  switch (Random(8)) {
    case 0: {
      if (!member.lives()) return;
      Crash(&member);
      After(Random(2) == 0 ? Between({}, kLease / 10) : FaultLasts(), [this, &member] {
        if (!member.lives()) Start(&member);
      });
      return;
    }
    case 1: return Random(2) == 0 ? PauseUntilExpiry(&member) : Pause(&member, FaultLasts());
    case 2:
      if (member.paused) return;
      SetLimit(&member, static_cast<uint32_t>(Random(kSlots + 1)));
      // Often the memory is idle again soon after it was taken.
      return After(Random(2) == 0 ? Between(kLease / 4, kLease / 2) : FaultLasts(),
                   [this, &member] {
                     if (!member.paused) SetLimit(&member, kSlots);
                   });
    case 3: {
      const std::string peer = Any().name;
      Know(&member, peer, false);
      return After(FaultLasts(), [this, &member, peer] { Know(&member, peer, true); });
    }
    case 4:
      if (rots_ && member.lives()) member.ledger->Rot(random_());
      return;
    default: return LinkFault(member.name, Any().name);
  }
}

// ---- Time

void World::Advance(Member* member) {
  member->dirty = false;
  member->node->Advance();
  const Tick next = member->node->Next();
  member->advances = next <= Now() ? member->advances + 1 : 0;
  if (member->advances > kAdvancesMax) {
    ++counts_.late_calls;
    counts_.first = "a node is never done";
  }
  member->next = next;
}

void World::StepTo(Tick until) {
  while (counts_.Violations() == 0) {
    Tick due = until;
    for (const auto& member : members_) {
      if (member->runs()) due = std::min(due, member->dirty ? Now() : member->next);
    }
    due = std::max(due, Now());
    if (!network_.RunNext(due)) network_.RunUntil(due);
    bool any = false;
    for (const auto& member : members_) {
      if (!member->runs() || (!member->dirty && member->next > Now())) continue;
      Advance(member.get());
      any = true;
    }
    if (!any && Now() >= until) return;
  }
}

void World::AtEnd() {
  for (const auto& member : members_) {
    Resume(member.get());
    if (!member->lives()) Start(member.get());
    for (const auto& other : members_) {
      network_.Heal(member->name, other->name);
      network_.SetLink(member->name, other->name, link_);
      Know(member.get(), other->name, true);
    }
    SetLimit(member.get(), kSlots);
    member->client->GiveAllBack();
    member->dirty = true;
  }
  StepTo(Now() + kLease * 20);
  const Tick deadline = Now() + kLease * 5;
  std::vector<Member*> able;
  for (const auto& member : members_) {
    std::set<MachineId> machines;
    for (const auto& other : members_) {
      if (other != member) machines.insert(other->machine);
    }
    if (machines.size() < copies_) continue;
    able.push_back(member.get());
    member->client->GiveAllBack();
  }
  while (Now() < deadline && counts_.Violations() == 0) {
    for (Member* const member : able) {
      member->client->BeginLast(deadline);
      member->dirty = true;
    }
    StepTo(Now() + kLease / 4);
  }
  StepTo(Now() + milliseconds(2));
  for (Member* const member : able) {
    if (counts_.Violations() > 0 || member->client->last_succeeded()) continue;
    ++counts_.late_calls;
    counts_.first = "all is well again, and a client still waits";
  }
}

ClusterCounts World::Run() {
  for (uint32_t event = 0; event < run_.events && counts_.Violations() == 0; ++event) {
    const double gap = -std::log(1 - static_cast<double>(Random(1 << 20)) / (1 << 20));
    const Tick at = Now() + core::FromSeconds(gap * 0.012);
    while (!later_.empty() && later_.begin()->first <= at && counts_.Violations() == 0) {
      StepTo(later_.begin()->first);
      const auto what = later_.extract(later_.begin());
      what.mapped()();
    }
    StepTo(at);
    if (Random(20) == 0) {
      Fault();
    } else if (Member& member = Any(); member.runs()) {
      member.client->Act();
      member.dirty = true;
    }
    for (const auto& member : members_) {
      if (member->runs() && member->resumed < Now()) member->client->CheckDeadlines(Now());
    }
  }
  if (counts_.Violations() == 0) {
    later_.clear();
    AtEnd();
  }
  for (const auto& member : members_) counts_.pieces_moved += member->moved;
  return counts_;
}

}  // namespace

ClusterCounts RunCluster(const ClusterRun& run) {
  World world(run);
  return world.Run();
}

}  // namespace ravenstore::sim
