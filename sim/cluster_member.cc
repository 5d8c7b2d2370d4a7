#include "sim/cluster_member.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>
#include <variant>

#include "core/check.h"

namespace ravenstore::sim {
namespace {

using cluster::Event;
using core::Error;
using core::Result;
using core::Tick;
using transport::CallId;
using transport::ConnectionId;

// Stands for a signature in a world without forgers.
cluster::Signature Sign(const cluster::PublicKey& key, std::string_view message) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const std::byte byte : key) hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001b3;
  for (const char c : message) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  cluster::Signature signature{};
  std::memcpy(signature.data(), &hash, sizeof(hash));
  return signature;
}

bool IsTransfer(const cluster::AnyRequest& request) {
  return std::holds_alternative<cluster::ReadRequest>(request) ||
         std::holds_alternative<cluster::WriteRequest>(request);
}

}  // namespace

void ClusterPlace::RunNext(Tick until) {
  const Tick next = std::min({network.Next(), store.Next(), until});
  if (network.Next() > next || !network.RunNext(next)) network.RunUntil(next);
  store.RunUntil(network.Now());
}

// The transport as a node sees it, with what goes by noted.
class ClusterMember::Tap final : public transport::Transport {
 public:
  Tap(ClusterMember* member, transport::FakeNetwork* network)
      : member_(*member), network_(*network) {}

  Result<ConnectionId> Connect(std::string_view node, std::string_view address,
                               Tick deadline) override {
    if (inner == nullptr) return ProcessDied();
    RAVEN_ASSIGN_OR_RETURN(const ConnectionId connection, inner->Connect(node, address, deadline));
    lenders_[connection] = node;
    return connection;
  }
  void Close(ConnectionId connection) override {
    if (inner != nullptr) inner->Close(connection);
  }
  Result<CallId> Call(ConnectionId connection, transport::Request request) override {
    if (inner == nullptr) return ProcessDied();
    const auto header = cluster::DecodeRequest(request.header).value();
    if (!IsTransfer(header)) ++member_.counts_.control;
    const bool reads = std::holds_alternative<cluster::ReadRequest>(header);
    request.done = [this, connection, reads,
                    done = std::move(request.done)](Result<transport::Response> response) {
      member_.SetDirty();
      if (reads) member_.serving_ = lenders_.at(connection);
      done(std::move(response));
      member_.serving_.clear();
    };
    return inner->Call(connection, std::move(request));
  }
  void Cancel(CallId call) override {
    if (inner != nullptr) inner->Cancel(call);
  }
  core::Status Reply(CallId call, transport::Answer answer) override {
    if (inner == nullptr) return ProcessDied();
    return inner->Reply(call, member_.ledger_->OnAnswered(call, std::move(answer)));
  }
  core::Status Refuse(CallId call, Error why) override {
    return inner == nullptr ? ProcessDied() : inner->Refuse(call, std::move(why));
  }
  void Poll(Tick) override { RAVEN_CHECK(false); }
  void Wake() override {}
  Tick Now() const override { return network_.Now(); }

  transport::Transport* inner = nullptr;  // null once the process has died

 private:
  static Error ProcessDied() { return {core::ErrorCode::kUnavailable, "the process has died"}; }

  ClusterMember& member_;
  transport::FakeNetwork& network_;
  std::map<ConnectionId, std::string> lenders_;
};

// The nodes that membership finds. The node is notified of changes at most once every `every`.
class ClusterMember::Peers final : public cluster::MembershipListener {
 public:
  Peers(core::Duration every, Tick now) : every_(every), report_at_(now) {}

  size_t count() const { return peers_.size(); }
  void Advance(Tick now, cluster::Node* node) {
    if (now < Next()) return;
    changed_ = false;
    report_at_ = now + every_;
    node->SetPeers(peers_);
  }
  Tick Next() const { return changed_ ? report_at_ : core::kNever; }

  void OnJoined(const cluster::NodeRecord& node) override {
    peers_[node.name] = {.address = node.address};
    changed_ = true;
  }
  void OnChanged(const cluster::NodeRecord&, const cluster::NodeRecord& now) override {
    OnJoined(now);
  }
  void OnLeft(const cluster::NodeRecord& node) override {
    peers_.erase(node.name);
    changed_ = true;
  }
  void OnRefused(std::string_view, const Error&) override {}
  void OnStatus(const cluster::MembershipStatus&) override {}

 private:
  const core::Duration every_;
  Tick report_at_;
  bool changed_ = false;
  std::map<std::string, cluster::Peer> peers_;
};

ClusterMember::ClusterMember(Fixed fixed, ClusterPlace* place, std::function<void()> dirtied)
    : fixed_(std::move(fixed)), place_(*place), dirtied_(std::move(dirtied)) {}

ClusterMember::~ClusterMember() {
  if (lives()) Crash();
}

Tick ClusterMember::LeaseNow() const {
  const auto now = static_cast<double>(place_.Now().time_since_epoch().count());
  return Tick(core::Duration(static_cast<int64_t>(now * fixed_.clock_rate))) +
         std::chrono::hours(1);
}

void ClusterMember::Fill(Options* options) {
  const auto lease_clock = [this] { return LeaseNow(); };
  options->node.name = fixed_.name;
  options->node.identity = {
      .incarnation = options->incarnation,
      .machine = fixed_.machine,
      .key = fixed_.key,
      .sign = [key = fixed_.key](std::string_view message) { return Sign(key, message); },
      .verify =
          [](const cluster::PublicKey& key, std::string_view message,
             const cluster::Signature& signature) { return Sign(key, message) == signature; }};
  options->node.lease_clock = lease_clock;
  options->membership.self = {.name = fixed_.name,
                              .address = fixed_.name,
                              .incarnation = options->incarnation,
                              .machine = fixed_.machine,
                              .public_key = fixed_.key};
  options->membership.predecessors = predecessors_;
}

void ClusterMember::Start(Options options) {
  RAVEN_CHECK(!lives());
  Fill(&options);
  predecessors_.push_back(options.incarnation);
  home_ = {fixed_.name, options.incarnation};
  peers_ = std::make_unique<Peers>(options.find_every, place_.Now());
  ledger_ = std::make_unique<LenderLedger>([this] { return LeaseNow(); }, options.node.lender.lease,
                                           options.violation);
  tap_ = std::make_unique<Tap>(this, &place_.network);
  node_ = std::make_unique<cluster::Node>(std::move(options.node), ledger_.get(), this);
  transport_ = place_.network.Add(fixed_.name, this, options.patience);
  tap_->inner = transport_.get();
  node_->Attach(tap_.get());
  store_ = place_.store.Connect(fixed_.name, [this] { SetDirty(); });
  membership_ = std::make_unique<cluster::Membership>(std::move(options.membership), store_.get(),
                                                      peers_.get());
  SetDirty();
}

void ClusterMember::Crash() {
  RAVEN_CHECK(lives());
  (void)Resume();
  user_ = nullptr;
  membership_.reset();
  store_.reset();
  peers_.reset();
  tap_->inner = nullptr;
  transport_.reset();
  node_.reset();
  tap_.reset();
  ledger_.reset();
}

void ClusterMember::Pause() {
  paused_ = true;
  place_.network.Pause(fixed_.name);
  place_.store.Pause(fixed_.name);
}

bool ClusterMember::Resume() {
  if (!std::exchange(paused_, false)) return false;
  place_.network.Resume(fixed_.name);
  place_.store.Resume(fixed_.name);
  SetDirty();
  return true;
}

size_t ClusterMember::known() const {
  return peers_ == nullptr ? 0 : peers_->count();
}

void ClusterMember::SetDirty() {
  if (!std::exchange(dirty_, true)) dirtied_();
}

void ClusterMember::Advance() {
  dirty_ = false;
  const Tick now = place_.Now();
  membership_->Tick(now);
  peers_->Advance(now, node_.get());
  node_->Advance();
  next_ = std::min({node_->Next(), membership_->NextTick(), peers_->Next()});
}

// ---- The transport's service

void ClusterMember::OnConnected(ConnectionId connection, std::string_view peer) {
  SetDirty();
  node_->OnConnected(connection, peer);
}

void ClusterMember::OnLost(ConnectionId connection, const Error& why) {
  SetDirty();
  node_->OnLost(connection, why);
}

Result<transport::Sink> ClusterMember::OnRequest(const transport::IncomingCall& call) {
  SetDirty();
  const auto request = cluster::DecodeRequest(call.header).value();
  if (!IsTransfer(request)) ++counts_.control;  // its answer
  RAVEN_ASSIGN_OR_RETURN(transport::Sink sink, node_->OnRequest(call));
  return ledger_->OnAccepted(call, request, std::move(sink));
}

void ClusterMember::OnReceived(CallId call) {
  SetDirty();
  node_->OnReceived(call);
}

void ClusterMember::OnEnded(CallId call, const core::Status& status) {
  SetDirty();
  ledger_->OnEnded(call);
  node_->OnEnded(call, status);
}

// ---- The node's callbacks

void ClusterMember::OnPieceRecalled(cluster::PieceId piece, Tick) {
  if (user_ != nullptr) user_->OnPieceRecalled(piece);
}

void ClusterMember::OnPieceKept(cluster::PieceId piece) {
  if (user_ != nullptr) user_->OnPieceKept(piece);
}

void ClusterMember::OnPieceLost(cluster::PieceId piece, const Error&) {
  if (user_ != nullptr) user_->OnPieceLost(piece);
}

void ClusterMember::OnPiecesMost(uint32_t pieces) {
  if (user_ != nullptr) user_->OnPiecesMost(pieces);
}

void ClusterMember::OnEvent(const Event& event) {
  switch (event.kind) {
    case Event::Kind::kPieceMoved: ++counts_.moved; break;
    case Event::Kind::kRecalled: counts_.recalled += event.count; break;
    case Event::Kind::kTaken: counts_.taken += event.count; break;
    case Event::Kind::kRefused: ++counts_.refused; break;
    default: break;
  }
}

}  // namespace ravenstore::sim
