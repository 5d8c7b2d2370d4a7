// A node of the cluster: home of its own tensors' pieces and lender of its idle memory, over one
// transport. It finds nobody itself: SetPeers says who there is.
//
// The daemon has a thread for it, which runs
//   while (...) { transport->Poll(node->Next()); node->Tick(); }
//
// Threads: one, the transport's, on which all callbacks are told; they may call everything here.
// Owns: what it lends. Errors: home.h's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
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
    kPieceRecalled,  // nobody else lends: the piece `piece` is to be emptied
    kPieceMoved,     // the piece `piece` is at `peer` now
    kPieceLost,      // the piece `piece` is gone
    kHomeJoined,     // `peer` may borrow of this node now
    kHomeRefused,    // and may not
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
    uint32_t copies = 1;
    uint32_t pieces_max = 0;  // that the home's range has
    // As a home and as a lender, beside what is above; `lease_clock` and `seed` hold for both.
    Home::Options home = {};
    Lender::Options lender = {};
    std::function<core::Tick()> lease_clock;
    uint64_t seed = 0;
  };
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void OnPieceRecalled(PieceId piece, core::Tick deadline) = 0;
    virtual void OnPieceLost(PieceId piece, const core::Error& why) = 0;
    virtual void OnPiecesMost(uint32_t pieces) = 0;
    virtual void OnEvent(const Event& event) = 0;
  };

  // All outlive this. `memory` may be null for a node that lends nothing.
  Node(Options options, LentMemory* memory, Listener* listener);
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  // Before anything else: the transport whose service this is. It is destroyed before this.
  void Attach(transport::Transport* transport);

  // Who there is, without this node.
  void SetPeers(std::map<std::string, Peer> peers);
  // So much may be lent in all from now on (cluster/lend_limit.h has the rules).
  void SetLendable(core::Bytes bytes);

  // Home::Grow and so on.
  void Grow(PieceId piece, core::Tick deadline, Home::DoneCallback done);
  void Shrink(PieceId piece);
  void Write(core::Bytes offset, std::span<const std::byte> bytes, core::Tick deadline,
             Home::DoneCallback done);
  void Read(core::Bytes offset, std::span<std::byte> bytes, core::Tick deadline,
            Home::DoneCallback done);

  // Does what is due: after each Poll.
  void Tick();
  core::Tick Next() const;

  core::Bytes lent() const;
  std::vector<Home::PieceView> Pieces() const { return home_.Pieces(); }
  std::vector<Loan::View> Lenders() const { return home_.Lenders(); }
  std::vector<Lender::HomeView> Homes() const { return lender_.Views(); }
};

}  // namespace ravenstore::cluster
