// This node among others: it lends what is idle of the machine's memory and has tensors in theirs.
//
// Two threads of its own: the node's, which moves bytes and runs all of cluster/node.h, and, where
// there is etcd, the discovery's (daemon/discovery.h). Neither waits for the planner loop.
//
// Owns: the node, its transport and the memory that it lends.
// Threads: Create, Start and the destructor one; the others any.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cluster/identity.h"
#include "cluster/lend_limit.h"
#include "cluster/lent_memory.h"
#include "cluster/node.h"
#include "core/result.h"
#include "core/types.h"
#include "daemon/config.h"
#include "daemon/discovery.h"
#include "daemon/mailbox.h"
#include "daemon/prepared_memory.h"
#include "daemon/rate_meter.h"
#include "daemon/remote_medium.h"
#include "transport/node_key.h"
#include "transport/transport.h"

namespace ravenstore::daemon {

class Cluster final : private cluster::Node::Listener {
 public:
  // Events of the remote pool, by offset in it. Called on the node's thread; must not block.
  struct Sinks {
    std::function<void(core::Bytes offset)> recalled;
    std::function<void(core::Bytes offset)> kept;
    std::function<void(core::Bytes offset)> lost;
    std::function<void(core::Bytes most)> limit;
    std::function<void(double bytes_per_second)> rate;
  };
  // As it was within the last second.
  struct View {
    std::string node;
    std::string address;
    core::Bytes size;                          // of the remote pool, at most
    core::Bytes held;                          // of other nodes
    core::Bytes lendable;                      // in all, now
    core::Bytes lent;                          // to other nodes
    std::string discovery;                     // how that goes, in words; empty: there is none
    std::map<std::string, std::string> peers;  // other known nodes: name, address
    std::vector<cluster::Loan::View> lenders;
    std::vector<cluster::Lender::HomeView> homes;
    double bytes_per_second = 0;  // as measured last; 0: not yet
    bool discovery_fails = false;
    // Since the start: pieces of this node's that were lost, that it asked back of others, and
    // those of them that were not given back in time. Loans of this node that were, in part or
    // whole, lost, and of others that were not heard for the lease.
    uint64_t lost = 0;
    uint64_t recalled = 0;
    uint64_t taken = 0;
    uint64_t loans_lost = 0;
    // The pieces that are held, in order; null: not looked at yet.
    std::shared_ptr<const std::vector<cluster::Home::PieceView>> pieces;
  };

  // Listens from here on. REQUIRES: config.cluster_node is not empty.
  // Errors, naming the key, what stands there and why it cannot be: kInvalidArgument; kUnavailable
  // (the address, or the state folder, now).
  static core::Result<std::unique_ptr<Cluster>> Create(const Config& config);
  // As Stop.
  ~Cluster() override;

  // The remote pool's memory, which this outlives; null where config.cluster_size is 0. Once.
  std::unique_ptr<RemoteMedium> MakeMedium();
  // Begins to talk to other nodes. `ending` is set before Stop or the destructor is called.
  void Start(Sinks sinks, const std::atomic<bool>& ending);

  // This node ends: lends no more, and asks back what it lent within `within`. Then Stop, once
  // handed_over() or that time has passed.
  void HandOver(core::Duration within);
  // Since HandOver: other nodes have nothing of this one any more, and lost nothing by it.
  bool handed_over() const { return handed_over_; }

  // Returns what this node has of others, and notifies the nodes that still have memory of it that
  // it is gone, which takes a moment at most. Then ends its threads: reads and writes that are not
  // done fail from now on. Twice is as good as once.
  void Stop();

  View view() const;

 private:
  explicit Cluster(const Config& config);
  core::Status Open();
  cluster::Node::Options MakeNodeOptions() const;
  core::Status OpenTransport(const transport::NodeKey& key);
  core::Status OpenDiscovery();
  void Run();
  // Once a second, on the node's thread: what may be lent, how fast bytes go, how things are.
  void Look(core::Tick now);
  void LookAtMemory(core::Tick now);
  void LookAtRate(core::Tick now);
  // Runs work with the node on its thread; immediately, with null, once the node has ended.
  void Post(std::function<void(cluster::Node*)> work);
  // Passes the other nodes to the node: the configured peers, and those found.
  void SetFound(const std::map<std::string, std::string>& found);

  void Count(const cluster::Event& event);

  void OnPieceRecalled(cluster::PieceId piece, core::Tick deadline) override;
  void OnPieceKept(cluster::PieceId piece) override;
  void OnPieceLost(cluster::PieceId piece, const core::Error& why) override;
  void OnPiecesMost(uint32_t pieces) override;
  void OnEvent(const cluster::Event& event) override;

  const Config config_;
  std::optional<cluster::NodeIdentity> identity_;
  std::optional<cluster::LendLimit> lend_limit_;
  Sinks sinks_;
  PreparedMemory memory_{std::make_unique<cluster::AnonymousMemory>()};
  std::unique_ptr<cluster::Node> node_;
  std::unique_ptr<transport::Transport> transport_;  // destroyed before the node, its service
  std::shared_ptr<RateMeter> meter_;                 // null: nothing is borrowed

  std::thread thread_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> handed_over_{false};
  Mailbox mailbox_;

  // The node's thread's.
  core::Tick look_at_{};
  bool memory_unknown_ = false;  // and that was said
  bool handing_over_ = false;
  bool took_ = false;  // since then, what was not emptied in time

  mutable std::mutex mutex_;
  // All guarded by mutex_.
  bool closed_ = false;
  View view_;

  std::unique_ptr<Discovery> discovery_;  // last: it calls the above; null: there is none
};

}  // namespace ravenstore::daemon
