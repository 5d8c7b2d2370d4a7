// All loans of a home: to whom it connects, whom it asks for offers, and of whom a slot is
// borrowed.
//
// No central component knows which nodes have room. Every `offer_period` a few nodes, again chosen
// at random, are asked what they would lend. Others are asked sooner if these lend nothing. Nodes
// that lent something are partners, at most `partners_max`. Leases are renewed with partners only.
//
// Threads: one, the transport's. Owns: the loans.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cluster/loan.h"
#include "core/result.h"
#include "core/types.h"
#include "transport/transport.h"

namespace ravenstore::cluster {

class Loans final : private Loan::Listener {
 public:
  struct Options {
    Loan::Options loan = {};
    uint32_t partners_max = 16;
    uint32_t asked = 3;  // in addition to the partners
    core::Duration offer_period = std::chrono::seconds(5);
    // Others are asked this long after no slot was found.
    core::Duration search_period = std::chrono::milliseconds(500);
    uint64_t seed = 0;
  };
  class Listener : public Loan::Listener {
   public:
    // Offers changed, or who may be asked.
    virtual void OnOffers() = 0;
  };
  struct Lent {
    Loan* loan = nullptr;
    SlotRef slot;
  };
  // Whose slots do not do.
  struct Excluded {
    std::set<std::string> lenders = {};
    std::set<MachineId> machines = {};
  };

  // `listener` outlives this.
  Loans(Options options, Listener* listener);
  void Attach(transport::Transport* transport) { transport_ = transport; }
  // From now on no node is asked, and requests end with kUnavailable.
  void End();
  // Whether a lender that can be notified does not know yet of all that was returned.
  bool HasUnreportedReleases() const;
  // Before the transport goes. What is asked for ends with kUnavailable, before this returns.
  void Close();

  void SetPeers(std::map<std::string, Peer> peers);

  // `done` gets one slot of the node that offers most, or kOutOfMemory (no node lends one),
  // kTimedOut, kUnavailable (closed). `done` may be called from within the call.
  void Acquire(Excluded excluded, core::Tick deadline,
               std::function<void(core::Result<Lent>)> done);
  // How many slots each machine would lend in addition to those that are lent.
  std::vector<uint32_t> OffersByMachine() const;

  bool OnConnected(transport::ConnectionId connection);
  bool OnLost(transport::ConnectionId connection, const core::Error& why);
  core::Status OnRecall(transport::ConnectionId connection, const RecallRequest& request);

  void Advance();
  core::Tick Next() const;
  std::vector<Loan::View> Views() const;

 private:
  void OnJoined(Loan* loan) override { listener_->OnJoined(loan); }
  void OnRefused(Loan* loan, const core::Error& why) override;
  void OnUsable(Loan* loan) override;
  void OnRecalled(Loan* loan, SlotRef slot, core::Tick deadline) override {
    listener_->OnRecalled(loan, slot, deadline);
  }
  void OnSlotsLost(Loan* loan, const std::vector<SlotRef>& slots, const core::Error& why) override {
    listener_->OnSlotsLost(loan, slots, why);
  }

  uint32_t Partners() const;
  // Of whom this home has nothing; and who is not asked. In random order.
  std::vector<std::string> Idle();
  std::vector<std::string> UnaskedPeers();
  // Nodes that are not asked take the place of those, and the places that are free.
  void Replace(const std::vector<std::string>& removed, const std::vector<std::string>& unasked);
  void RefreshOffers();
  void Search();

  const Options options_;
  Listener* const listener_;
  transport::Transport* transport_ = nullptr;
  std::mt19937_64 random_;
  std::map<std::string, Peer> peers_;
  std::map<std::string, std::unique_ptr<Loan>> loans_;
  bool ended_ = false;
  std::map<std::string, std::string> refused_;  // the last reported reason, by peer
  core::Tick ask_at_{};
  core::Tick search_at_ = core::kNever;  // kNever: no request failed to find a slot
};

}  // namespace ravenstore::cluster
