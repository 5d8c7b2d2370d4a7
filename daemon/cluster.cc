#include "daemon/cluster.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <set>
#include <string_view>
#include <utility>

#include "cluster/etcd.h"
#include "core/check.h"
#include "core/printable.h"
#include "core/size_text.h"
#include "daemon/machine_memory.h"
#include "daemon/threads.h"
#include "ipc/clock.h"
#include "transport/node_key.h"
#include "transport/tls_socket.h"
#include "transport/ucx.h"

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::Error;
using core::ErrorCode;

constexpr core::Duration kLookEvery = std::chrono::seconds(1);
// Of the machine's memory what stays free, unless configured.
constexpr uint64_t kReservePart = 8;
// Before any byte went, ten gigabit a second; and faster than that what a link may turn out to be.
constexpr double kAssumedRate = 1.1e9;
constexpr size_t kPostsPerRun = 256;
// A measured rate is reported again once it differs from the last one by this factor.
constexpr double kRateMoved = 1.25;

// An error that may pass (an address that is not there yet, a predecessor that still ends) is no
// fault of the configuration: the daemon may be started again.
ErrorCode CodeOf(const Error& why) {
  const bool may_pass = why.code == ErrorCode::kUnavailable || why.code == ErrorCode::kWrongState;
  return may_pass ? ErrorCode::kUnavailable : ErrorCode::kInvalidArgument;
}

Error Refused(const char* key, const std::string& value, const Error& why) {
  return {CodeOf(why), "\"" + std::string(key) + "\" is " + value + ", but " + why.message};
}

uint64_t Random() {
  uint64_t number = 0;
  RAVEN_CHECK(::getentropy(&number, sizeof(number)) == 0);
  return number;
}

bool IsOfAPiece(cluster::Event::Kind kind) {
  using Kind = cluster::Event::Kind;
  return kind == Kind::kPieceRecalled || kind == Kind::kPieceKept || kind == Kind::kPieceCorrupt ||
         kind == Kind::kPieceMoved || kind == Kind::kPieceLost;
}

// "cluster.joined peer=b": a name that stays, and what goes with it.
std::string TextOf(const cluster::Event& event) {
  std::string text(cluster::Name(event.kind));
  if (!event.peer.empty()) text += " peer=" + event.peer;
  if (event.count > 0) text += " slots=" + std::to_string(event.count);
  if (IsOfAPiece(event.kind)) text += " piece=" + std::to_string(event.piece);
  if (!event.why.empty()) text += ": " + core::Printable(event.why);
  return text;
}

Bytes OffsetOf(cluster::PieceId piece) {
  return kClusterPiece * static_cast<uint32_t>(piece);
}

// Later than the lease that a node lost is noticed by.
core::Duration TimeoutOf(const Config& config) {
  return config.cluster_lease + std::chrono::seconds(5);
}

}  // namespace

Cluster::Cluster(const Config& config) : config_(config) {
  view_.node = config.cluster_node;
  view_.size = config.cluster_size;
}

core::Result<std::unique_ptr<Cluster>> Cluster::Create(const Config& config) {
  std::unique_ptr<Cluster> cluster(new Cluster(config));
  RAVEN_RETURN_IF_ERROR(cluster->Open());
  return cluster;
}

core::Status Cluster::Open() {
  // A peer that goes while it is written to is an error of that write, not this process's end.
  std::signal(SIGPIPE, SIG_IGN);
  auto key = transport::ReadNodeKey(config_.cluster_key);
  if (!key.ok()) return Refused("cluster.key", config_.cluster_key, key.error());
  auto identity = cluster::NodeIdentity::Open(
      {.folder = config_.cluster_state, .machine = config_.cluster_machine});
  if (!identity.ok()) return Refused("cluster.state", config_.cluster_state, identity.error());
  identity_ = *std::move(identity);
  RAVEN_ASSIGN_OR_RETURN(const MachineMemory memory, ReadMachineMemory());
  const Bytes part(memory.total.count() / kReservePart);
  const Bytes reserve = config_.cluster_reserve.value_or(part);
  auto limit = cluster::LendLimit::Make(
      {.reserve = reserve, .rise_time = config_.harvest_rise, .step = kClusterPiece},
      config_.cluster_lend, memory.total);
  if (!limit.ok()) return Refused("cluster.reserve", core::SizeText(reserve), limit.error());
  lend_limit_ = *limit;
  node_ = std::make_unique<cluster::Node>(MakeNodeOptions(), &memory_,
                                          static_cast<cluster::Node::Listener*>(this));
  RAVEN_RETURN_IF_ERROR(OpenTransport(*key));
  node_->Attach(transport_.get());
  return config_.cluster_etcd.empty() ? core::Ok() : OpenDiscovery();
}

core::Status Cluster::OpenTransport(const transport::NodeKey& key) {
  const auto take = [this](auto opened, const char* what, const std::string& value) {
    if (!opened.ok()) return core::Status(Refused(what, value, opened.error()));
    view_.address = (*opened)->address();
    transport_ = *std::move(opened);
    return core::Ok();
  };
  if (config_.cluster_transport == "ucx") {
    return take(transport::OpenUcx({.node = config_.cluster_node,
                                    .trusted_fabric = config_.cluster_trusted_fabric,
                                    .transports = config_.cluster_ucx_transports,
                                    .devices = config_.cluster_ucx_devices,
                                    .listen = config_.cluster_listen},
                                   node_.get()),
                "cluster.transport", "\"ucx\"");
  }
  return take(transport::OpenTlsSocket({.node = config_.cluster_node,
                                        .key = key,
                                        .listen = config_.cluster_listen,
                                        .nodes = config_.cluster_nodes},
                                       node_.get()),
              "cluster.listen", config_.cluster_listen);
}

core::Status Cluster::OpenDiscovery() {
  auto store = cluster::OpenEtcd({.endpoints = config_.cluster_etcd,
                                  .authority = config_.cluster_etcd_ca,
                                  .certificate = config_.cluster_etcd_certificate,
                                  .key = config_.cluster_etcd_key});
  if (!store.ok()) {
    return Error{ErrorCode::kInvalidArgument, "\"cluster.etcd\": " + store.error().message};
  }
  Discovery::Options options;
  options.membership.self = {.name = config_.cluster_node,
                             .address = view_.address,
                             .incarnation = identity_->incarnation(),
                             .machine = identity_->machine(),
                             .public_key = identity_->public_key()};
  options.membership.predecessors = identity_->predecessors();
  options.membership.table.allowed = {config_.cluster_nodes.begin(), config_.cluster_nodes.end()};
  options.membership.seed = Random();
  options.found = [this](const auto& found) { SetFound(found); };
  options.status = [this](std::string words, bool well) {
    std::lock_guard lock(mutex_);
    view_.discovery = std::move(words);
    view_.discovery_fails = !well;
  };
  discovery_ = std::make_unique<Discovery>(std::move(options), *std::move(store));
  return core::Ok();
}

cluster::Node::Options Cluster::MakeNodeOptions() const {
  cluster::Node::Options options;
  options.name = config_.cluster_node;
  options.identity = identity_->identity();
  options.sizes.piece = kClusterPiece;
  options.lease_clock = ipc::BootNow;
  options.random = Random;
  options.home.copies = static_cast<uint32_t>(config_.cluster_copies);
  options.home.pieces_max =
      static_cast<uint32_t>(config_.cluster_size.count() / kClusterPiece.count());
  options.lender.lease = config_.cluster_lease;
  options.lender.recall_least = config_.cluster_recall;
  const Bytes each =
      config_.cluster_lend_each > Bytes{} ? config_.cluster_lend_each : config_.cluster_lend;
  options.lender.home_slots_max = static_cast<uint32_t>(
      std::min<uint64_t>(each.count() / kClusterPiece.count(), options.lender.home_slots_max));
  if (!config_.cluster_nodes.empty()) {
    options.lender.allows = [names = std::set(config_.cluster_nodes.begin(),
                                              config_.cluster_nodes.end())](std::string_view home) {
      return names.contains(std::string(home));
    };
  }
  return options;
}

Cluster::~Cluster() {
  Stop();
}

void Cluster::Stop() {
  if (discovery_ != nullptr) discovery_->Stop();
  if (thread_.joinable()) {
    stopping_ = true;
    transport_->Wake();
    thread_.join();
  }
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) return;
  }
  if (transport_ != nullptr) {
    node_->Close();
    transport_.reset();
  }
  while (mailbox_.RunSome(kPostsPerRun) > 0) {
  }
}

std::unique_ptr<RemoteMedium> Cluster::MakeMedium() {
  if (config_.cluster_size == Bytes{}) return nullptr;
  meter_ = std::make_shared<RateMeter>();
  return std::make_unique<RemoteMedium>(
      RemoteMedium::Options{.size = config_.cluster_size,
                            .sizes = {.piece = kClusterPiece},
                            .timeout = TimeoutOf(config_),
                            .post = [this](auto work) { Post(std::move(work)); },
                            .now = ipc::Now,
                            .meter = meter_});
}

void Cluster::Start(Sinks sinks, const std::atomic<bool>& ending) {
  sinks_ = std::move(sinks);
  if (meter_ != nullptr) sinks_.rate(kAssumedRate);
  SetFound({});
  memory_.Start(ending);
  thread_ = Supervise("raven-node", ending, [this] { Run(); });
  if (discovery_ != nullptr) discovery_->Start(ending);
}

void Cluster::Run() {
  while (!stopping_) {
    transport_->Poll(std::min(node_->Next(), look_at_));
    mailbox_.RunSome(kPostsPerRun);
    node_->Advance();
    const core::Tick now = ipc::Now();
    if (now >= look_at_) Look(now);
    if (handing_over_ && !took_ && node_->lent() == Bytes{}) handed_over_ = true;
  }
  node_->End();
  // Next before HasPendingNotices: were its time over between the two, Next would not end with it.
  for (core::Tick next = node_->Next(); node_->HasPendingNotices(); next = node_->Next()) {
    transport_->Poll(next);
    node_->Advance();
  }
}

void Cluster::HandOver(core::Duration within) {
  Post([this, within](cluster::Node* node) {
    if (node == nullptr) return;
    node->HandOver(within);
    handing_over_ = true;
  });
}

void Cluster::Post(std::function<void(cluster::Node*)> work) {
  {
    std::lock_guard lock(mutex_);
    if (!closed_) {
      // Run after Stop it finds the node closed.
      mailbox_.Post([this, work] { work(transport_ == nullptr ? nullptr : node_.get()); });
      return transport_->Wake();
    }
  }
  work(nullptr);
}

void Cluster::SetFound(const std::map<std::string, std::string>& found) {
  auto known = config_.cluster_peers;
  known.insert(found.begin(), found.end());
  known.erase(config_.cluster_node);
  std::map<std::string, cluster::Peer> peers;
  for (const auto& [name, address] : known) peers.emplace(name, cluster::Peer{address});
  {
    std::lock_guard lock(mutex_);
    view_.peers = std::move(known);
  }
  if (meter_ == nullptr) return;  // a node that borrows nothing contacts no peers
  Post([peers = std::move(peers)](cluster::Node* node) {
    if (node != nullptr) node->SetPeers(peers);
  });
}

Cluster::View Cluster::view() const {
  std::lock_guard lock(mutex_);
  return view_;
}

void Cluster::Look(core::Tick now) {
  look_at_ = now + kLookEvery;
  LookAtMemory(now);
  LookAtRate(now);
  auto lenders = node_->Lenders();
  auto homes = node_->Homes();
  auto pieces = std::make_shared<const std::vector<cluster::Home::PieceView>>(node_->Pieces());
  std::lock_guard lock(mutex_);
  view_.held = kClusterPiece * pieces->size();
  view_.pieces = std::move(pieces);
  view_.lent = node_->lent();
  view_.lenders = std::move(lenders);
  view_.homes = std::move(homes);
}

void Cluster::LookAtMemory(core::Tick now) {
  if (config_.cluster_lend == Bytes{}) return;
  const auto memory = ReadMachineMemory();
  if (!memory.ok()) {
    if (!std::exchange(memory_unknown_, true))
      spdlog::warn("what may be lent stays as it is: {}", core::Describe(memory.error()));
    return;
  }
  memory_unknown_ = false;
  const Bytes lendable = lend_limit_->Look(now, memory->available, node_->lent());
  node_->SetLendable(lendable);
  std::lock_guard lock(mutex_);
  view_.lendable = lendable;
}

void Cluster::LookAtRate(core::Tick now) {
  const double rate = meter_ == nullptr ? 0 : meter_->Take(now);
  if (rate == 0) return;
  {
    std::lock_guard lock(mutex_);
    const double last = view_.bytes_per_second;
    if (rate < last * kRateMoved && last < rate * kRateMoved) return;
    view_.bytes_per_second = rate;
  }
  sinks_.rate(rate);
}

void Cluster::OnPieceRecalled(cluster::PieceId piece, core::Tick) {
  sinks_.recalled(OffsetOf(piece));
}

void Cluster::OnPieceKept(cluster::PieceId piece) {
  sinks_.kept(OffsetOf(piece));
}

void Cluster::OnPieceLost(cluster::PieceId piece, const core::Error&) {
  sinks_.lost(OffsetOf(piece));
}

void Cluster::OnPiecesMost(uint32_t pieces) {
  if (meter_ != nullptr) sinks_.limit(kClusterPiece * pieces);
}

void Cluster::OnEvent(const cluster::Event& event) {
  using Kind = cluster::Event::Kind;
  const bool bad = event.kind == Kind::kLost || event.kind == Kind::kRefused ||
                   event.kind == Kind::kPieceLost || event.kind == Kind::kPieceCorrupt ||
                   event.kind == Kind::kHomeRefused || event.kind == Kind::kTaken;
  spdlog::log(bad ? spdlog::level::warn : spdlog::level::info, "{}", TextOf(event));
  Count(event);
}

void Cluster::Count(const cluster::Event& event) {
  using Kind = cluster::Event::Kind;
  std::lock_guard lock(mutex_);
  switch (event.kind) {
    case Kind::kPieceLost: ++view_.lost; break;
    case Kind::kRecalled: view_.recalled += event.count; break;
    case Kind::kTaken:
      view_.taken += event.count;
      took_ |= handing_over_;
      break;
    case Kind::kLost:
    case Kind::kHomeExpired: ++view_.loans_lost; break;
    default: break;
  }
}

}  // namespace ravenstore::daemon
