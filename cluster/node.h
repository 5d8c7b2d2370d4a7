// A node of the cluster: home of its own tensors' pieces and lender of its idle memory, over one
// transport. It does not find peers itself: SetPeers lists them.
//
// The daemon has a thread for it, which runs
//   while (...) { transport->Poll(node->Next()); node->Advance(); }
//
// Threads: one, the transport's, which runs all callbacks; they may call everything here.
// Owns: what it lends. Errors: home.h's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cluster/home.h"
#include "cluster/ids.h"
#include "cluster/lender.h"
#include "core/result.h"
#include "core/types.h"
#include "transport/transport.h"

namespace ravenstore::cluster {

// What happened, for the log. The names (Name) are a stable list.
struct Event {
  enum class Kind : uint8_t {
    kJoined,         // this node may borrow of `peer` now
    kRefused,        // `peer` does not let this node borrow, or could not be reached as it should
    kLost,           // the loan of `peer` with `count` slots is gone
    kPieceRecalled,  // no other node lends: the piece `piece` is to be emptied
    kPieceKept,      // others lend again: the piece `piece` stays
    kPieceCorrupt,   // `peer` gave other bytes of the piece `piece` than were written there
    kPieceMoved,     // the piece `piece` is at `peer` now
    kPieceLost,      // the piece `piece` is gone
    kHomeJoined,     // `peer` may borrow of this node now
    kHomeRefused,    // it may not; no name: refused by the transport, logged once a minute
    kHomeExpired,    // the lease of `peer` expired; its `count` slots are kept for a while
    kHomeGone,       // the loan of `peer` ended; its `count` slots are free
    kRecalled,       // `count` slots were asked back of `peer`
    kTaken,          // `count` slots were not given back by `peer` in time, and were taken
  };
  Kind kind;
  std::string peer = {};
  uint32_t count = 0;
  uint32_t piece = 0;
  std::string why = {};
};
// "cluster.joined" and so on.
std::string_view Name(Event::Kind kind);

class Node final : public transport::Service, private Home::Listener, private Lender::Listener {
 public:
  struct Options {
    std::string name;
    Identity identity;
    Sizes sizes = {};
    // CLOCK_BOOTTIME, and numbers that are not to be guessed.
    std::function<core::Tick()> lease_clock;
    std::function<uint64_t()> random;
    // As a home and as a lender; what is above is put there as well.
    Home::Options home = {};
    Lender::Options lender = {};
  };
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void OnPieceRecalled(PieceId piece, core::Tick deadline) = 0;
    virtual void OnPieceKept(PieceId piece) = 0;
    virtual void OnPieceLost(PieceId piece, const core::Error& why) = 0;
    virtual void OnPiecesMost(uint32_t pieces) = 0;
    virtual void OnEvent(const Event& event) = 0;
  };

  // All outlive this.
  Node(Options options, LentMemory* memory, Listener* listener);
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  // Before anything else: the transport whose service this is. It is destroyed before this.
  void Attach(transport::Transport* transport);
  // Ends everything, with kUnavailable, and closes the connections that it made. Before the
  // transport is destroyed; nothing else is called after it.
  void Close() { home_.Close(); }

  // Who there is, without this node.
  void SetPeers(std::map<std::string, Peer> peers) { home_.SetPeers(std::move(peers)); }
  // At most `bytes` may be lent from now on (cluster/lend_limit.h has the rules).
  void SetLendable(core::Bytes bytes);
  // This node ends, and has so long for it: lends no more, and asks back what it lent. What homes
  // do not empty until then is lost to them.
  void HandOver(core::Duration within) { lender_.HandOver(within); }
  // This node ends now: it takes what is still lent, returns what it borrowed, and notifies homes
  // and lenders immediately. Poll and Advance while HasPendingNotices, which is a moment at most.
  void End();
  bool HasPendingNotices() const;

  // Pieces, as home.h says.
  Home& home() { return home_; }

  // Does what is due: after each Poll.
  void Advance();
  core::Tick Next() const;

  // Memory that is lent, or was and is still in use.
  core::Bytes lent() const { return sizes_.piece * lender_.held(); }
  // What it has in memory to know by what it has borrowed and what it lends.
  Home::Footprint footprint() const;
  std::vector<Home::PieceView> Pieces() const { return home_.Pieces(); }
  std::vector<Loan::View> Lenders() const { return home_.Lenders(); }
  std::vector<Lender::HomeView> Homes() const { return lender_.Views(); }

  // transport::Service.
  void OnConnected(transport::ConnectionId connection, std::string_view node) override;
  void OnLost(transport::ConnectionId connection, const core::Error& why) override;
  core::Result<transport::Sink> OnRequest(const transport::IncomingCall& call) override;
  void OnReceived(transport::CallId call) override;
  void OnEnded(transport::CallId call, const core::Status& status) override;

 private:
  void Report(Event event) { listener_->OnEvent(event); }
  void OnPieceRecalled(PieceId piece, core::Tick deadline) override;
  void OnPieceKept(PieceId piece) override;
  void OnPieceLost(PieceId piece, const core::Error& why) override;
  void OnPieceCorrupt(PieceId piece, std::string_view lender) override;
  void OnPieceMoved(PieceId piece, std::string_view lender) override;
  void OnPiecesMost(uint32_t pieces) override { listener_->OnPiecesMost(pieces); }
  void OnLenderJoined(std::string_view lender) override;
  void OnLenderRefused(std::string_view lender, const core::Error& why) override;
  void OnLenderLost(std::string_view lender, uint32_t slots, const core::Error& why) override;
  void OnHomeJoined(std::string_view home) override;
  void OnHomeRefused(std::string_view home, const core::Error& why) override;
  void OnHomeExpired(std::string_view home, uint32_t slots) override;
  void OnHomeGone(std::string_view home, uint32_t slots) override;
  void OnSlotsRecalled(std::string_view home, uint32_t slots) override;
  void OnSlotsTaken(std::string_view home, uint32_t slots) override;

  const Sizes sizes_;
  Listener* const listener_;
  transport::Transport* transport_ = nullptr;
  Home home_;
  Lender lender_;
  std::map<transport::CallId, RecallRequest> recalls_;  // that were accepted
  core::Tick next_refusal_report_{};
  core::Tick notices_until_{};  // since End
};

}  // namespace ravenstore::cluster
