// What simulated clusters are made of: nodes (cluster/node.h) on a fake transport, with a ledger
// behind the memory that they lend, which find each other (cluster/membership.h) in a fake store,
// all in one virtual time.
//
// Threads: one. Owns: a place outlives its members.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/fake_key_values.h"
#include "cluster/membership.h"
#include "cluster/node.h"
#include "core/types.h"
#include "sim/cluster_ledger.h"
#include "transport/fake.h"

namespace ravenstore::sim {

// A network and a store with one clock.
struct ClusterPlace {
  explicit ClusterPlace(uint64_t seed, bool sums = true) : network(seed, sums), store(seed) {}
  core::Tick Now() const { return network.Now(); }
  // Runs what happens next in either, if that is not after `until`; else it is `until`.
  void RunNext(core::Tick until);

  transport::FakeNetwork network;
  cluster::FakeStore store;
};

// The user of a home's pieces, which has tensors in them.
class ClusterUser {
 public:
  virtual ~ClusterUser() = default;
  virtual void OnPieceRecalled(cluster::PieceId piece) = 0;
  virtual void OnPieceKept(cluster::PieceId piece) = 0;
  virtual void OnPieceLost(cluster::PieceId piece) = 0;
  virtual void OnPiecesMost(uint32_t pieces) = 0;
};

// A node, from start to start of its process. Its runner calls Advance when it is dirty, or
// its `next` has come, unless it is paused.
class ClusterMember final : public transport::Service, public cluster::Node::Listener {
 public:
  // What does not change from start to start.
  struct Fixed {
    std::string name;  // and address
    cluster::MachineId machine = {};
    cluster::PublicKey key{};
    double clock_rate = 1;
  };
  // Of one start. Name, identity, clock and record are put there.
  struct Options {
    cluster::Incarnation incarnation;
    cluster::Node::Options node;
    cluster::MembershipOptions membership = {.self = {}};
    transport::Patience patience = {};
    // The least time between two lists of nodes that the node gets.
    core::Duration find_every{};
    LenderLedger::Violation violation;
  };
  // In all starts.
  struct Counts {
    uint64_t control = 0;   // messages but reads, writes and their answers
    uint64_t moved = 0;     // pieces, to other lenders
    uint64_t recalled = 0;  // slots of what it lends
    uint64_t taken = 0;     // of these at the deadline
    uint64_t refused = 0;
  };

  // `dirtied` is called when it is dirty and was not.
  ClusterMember(
      Fixed fixed, ClusterPlace* place, std::function<void()> dirtied = [] {});
  ~ClusterMember() override;

  // REQUIRES: it does not live.
  void Start(Options options);
  // The process ends without a word. REQUIRES: it lives.
  void Crash();
  // The process stands still.
  void Pause();
  // Whether it was paused.
  bool Resume();
  void SetDirty();

  void Advance();
  core::Tick next() const { return next_; }
  bool dirty() const { return dirty_; }

  bool lives() const { return node_ != nullptr; }
  bool paused() const { return paused_; }
  bool runs() const { return lives() && !paused_; }
  core::Tick LeaseNow() const;

  const std::string& name() const { return fixed_.name; }
  const cluster::MachineId& machine() const { return fixed_.machine; }
  const Counts& counts() const { return counts_; }
  const HomeKey& home() const { return home_; }  // of this start
  // Whose answer to a read is being passed on now.
  const std::string& serving() const { return serving_; }
  // Of those that it found and that are not gone.
  size_t known() const;
  // REQUIRES, all: it lives.
  cluster::Node& node() { return *node_; }
  const cluster::Node& node() const { return *node_; }
  LenderLedger& ledger() { return *ledger_; }
  const LenderLedger& ledger() const { return *ledger_; }
  const cluster::Membership& membership() const { return *membership_; }
  // Notified of pieces from now on; outlives this start.
  void SetUser(ClusterUser* user) { user_ = user; }

  // transport::Service.
  void OnConnected(transport::ConnectionId connection, std::string_view peer) override;
  void OnLost(transport::ConnectionId connection, const core::Error& why) override;
  core::Result<transport::Sink> OnRequest(const transport::IncomingCall& call) override;
  void OnReceived(transport::CallId call) override;
  void OnEnded(transport::CallId call, const core::Status& status) override;
  // cluster::Node::Listener.
  void OnPieceRecalled(cluster::PieceId piece, core::Tick) override;
  void OnPieceKept(cluster::PieceId piece) override;
  void OnPieceLost(cluster::PieceId piece, const core::Error&) override;
  void OnPiecesMost(uint32_t pieces) override;
  void OnEvent(const cluster::Event& event) override;

 private:
  class Tap;
  class Peers;
  void Fill(Options* options);

  const Fixed fixed_;
  ClusterPlace& place_;
  const std::function<void()> dirtied_;
  Counts counts_;
  bool paused_ = false;
  bool dirty_ = false;
  core::Tick next_{};

  // The state folder: what it was before.
  std::vector<cluster::Incarnation> predecessors_;

  // Of this start.
  HomeKey home_;
  std::string serving_;
  ClusterUser* user_ = nullptr;
  std::unique_ptr<LenderLedger> ledger_;
  std::unique_ptr<Tap> tap_;
  std::unique_ptr<Peers> peers_;
  std::unique_ptr<cluster::Node> node_;
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<cluster::KeyValues> store_;
  std::unique_ptr<cluster::Membership> membership_;
};

}  // namespace ravenstore::sim
