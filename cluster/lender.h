// What this node lends: slots of its memory, each to one home, under one lease for each home.
//
// A home never gets rights to the memory. It asks, and before each chunk that is read or written
// the lender looks again whether the connection is the home's newest, the lease has not expired and
// the slot is still lent under that generation.
//
// A lease that expired makes the lender refuse. The bytes stay until their room is needed or
// `keep_expired` has passed. A renewal by the same incarnation makes them valid again. A new
// incarnation that proves the same key frees its predecessor's slots immediately.
//
// Owns: the slots' memory. Threads: one, the transport's. Knows no clock but the one it is given.
// Errors: what a home reads as a refusal, kWrongState (no loan, or it expired), kNotFound (the slot
// is not lent under that generation), kPermission, kLimit, kCorrupt (not this protocol).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/ids.h"
#include "cluster/lent_memory.h"
#include "cluster/protocol.h"
#include "cluster/slot_table.h"
#include "core/result.h"
#include "core/types.h"
#include "transport/transport.h"

namespace ravenstore::cluster {

// A home's loan, as its lender knows it.
struct HomeLoan {
  PublicKey key{};
  transport::ConnectionId connection{};
  bool connected = false;
  uint64_t opened_by = 0;  // the number of the challenge
  core::Tick expires{};    // on the lease's clock
  bool expiry_reported = false;
  uint64_t settled = 0;  // borrows up to this number have ended at the home
  std::set<uint32_t> slots = {};
  core::Bytes written = {};
  core::Bytes read = {};

  bool IsExpired(core::Tick now) const { return now >= expires; }
};

class Lender {
 public:
  struct Options {
    std::string name;  // of this node
    Identity identity;
    Sizes sizes = {};
    core::Duration lease = std::chrono::seconds(5);
    core::Duration keep_expired = std::chrono::minutes(1);
    uint32_t home_slots_max = kSlotsMax;  // of one home, by its name
    uint32_t homes_max = 64;              // by name
    // How long a home has to empty recalled slots: so long for each GiB, and at least so long.
    core::Duration recall_each_gib = std::chrono::seconds(1);
    core::Duration recall_least = std::chrono::seconds(1);
    // Whether that node may borrow; none: every one that has the cluster's key.
    std::function<bool(std::string_view home)> allows = {};
    // CLOCK_BOOTTIME, on which leases expire: it goes on while the machine sleeps.
    std::function<core::Tick()> lease_clock;
    // Of challenges and generations: in a daemon not to be guessed.
    std::function<uint64_t()> random;
  };
  // Called as things happen. Calls nothing of the lender.
  class Listener {
   public:
    virtual ~Listener() = default;
    // The first slot was lent to it.
    virtual void OnHomeJoined(std::string_view home) = 0;
    virtual void OnHomeRefused(std::string_view home, const core::Error& why) = 0;
    virtual void OnHomeExpired(std::string_view home, uint32_t slots) = 0;
    virtual void OnHomeGone(std::string_view home, uint32_t slots) = 0;
    virtual void OnSlotsRecalled(std::string_view home, uint32_t slots) = 0;
    // Recalled, and not given back by the deadline.
    virtual void OnSlotsTaken(std::string_view home, uint32_t slots) = 0;
  };
  // As it is shown.
  struct HomeView {
    std::string home;
    uint32_t slots = 0;
    uint32_t recalled = 0;        // of them
    core::Duration lease_left{};  // below 0: expired for so long
    core::Bytes written;          // in all, as it was asked for
    core::Bytes read;
  };

  // All outlive this.
  Lender(Options options, LentMemory* memory, Listener* listener);
  // Before anything else. The transport must live until the last call here.
  void Attach(transport::Transport* transport) { transport_ = transport; }

  // At most `slots` slots may be lent from now on. Slots over the limit are taken from expired
  // loans, and then recalled. Until then nothing is lent.
  void SetLimit(uint32_t slots);
  // This node is about to end: lends nothing from now on, and asks all back within `within`.
  void HandOver(core::Duration within);
  // It ends now: it takes what is still lent, and notifies the homes. It waits for them for at most
  // kNoticeTimeout.
  void End();
  // Whether homes may not have heard yet that slots of theirs were taken.
  bool HasPendingNotices() const { return pending_notices_ > 0; }

  // A request of a home: transport::Service's contract.
  core::Result<transport::Sink> OnRequest(const transport::IncomingCall& call,
                                          const HomeRequest& request);
  void OnReceived(transport::CallId call);
  void OnEnded(transport::CallId call);
  // Whether a call is one of those that OnRequest accepted and that has not ended.
  bool Serves(transport::CallId call) const { return calls_.contains(call); }
  void OnLost(transport::ConnectionId connection);

  // Does what is due.
  void Advance();
  // When there is something, on the transport's clock.
  core::Tick Next() const;

  // Lent, or leaving: memory that is not the machine's.
  uint32_t held() const { return slots_.held(); }
  std::vector<HomeView> Views() const;
  // What it has in memory to know lent slots by.
  core::Bytes footprint() const;

 private:
  // A request that was accepted.
  struct Serving {
    std::string node;
    HomeRequest request;
  };
  // A connection of a home.
  struct Opening {
    std::optional<Challenge> challenge = {};  // which the next Open answers
    uint64_t number = 0;                      // of that challenge, among all
    std::optional<LoanKey> loan = {};         // once it is open
  };

  struct Open {
    const LoanKey* key;
    HomeLoan* loan;
  };
  // The loan that the connection opened, if none newer did.
  core::Result<Open> OpenBy(transport::ConnectionId connection);
  void EndOlderTransfers(const HomeLoan& loan);
  bool IsExpired(const HomeLoan& loan) const { return loan.IsExpired(options_.lease_clock()); }
  // The slot, if a transfer on it may begin or go on.
  core::Result<SlotTable::Slot*> Check(transport::ConnectionId connection, SlotRef slot);
  transport::ChunkCheck Checks(transport::ConnectionId connection, SlotRef slot);
  core::Result<transport::Sink> Begin(const transport::IncomingCall& call,
                                      const WriteRequest& request);
  core::Result<transport::Sink> Begin(const transport::IncomingCall& call,
                                      const ReadRequest& request);
  core::Result<transport::Sink> Begin(const transport::IncomingCall& call, const auto& request);

  core::Result<transport::Answer> Answer(transport::CallId call, const ChallengeRequest& request);
  core::Result<transport::Answer> Answer(transport::CallId call, const OpenRequest& request);
  core::Result<transport::Answer> Answer(transport::CallId call, const OfferRequest& request);
  core::Result<transport::Answer> Answer(transport::CallId call, const BorrowRequest& request);
  core::Result<transport::Answer> Answer(transport::CallId call, const RenewRequest& request);
  core::Result<transport::Answer> Answer(transport::CallId call, const WriteRequest& request);
  core::Result<transport::Answer> Answer(transport::CallId call, const ReadRequest& request);

  uint32_t MayLend(const LoanKey& key) const;
  core::Result<SlotRef> Lend(const LoanKey& key, HomeLoan* loan, uint64_t borrow);
  // Takes slots of expired loans until no more than `most` are held. `but` is spared.
  void TakeExpired(uint32_t most, const LoanKey* but);
  void NotifyRecalled(const SlotTable::ByLoan& recalled);
  // The slot leaves its loan, and the transfers on it end.
  void Take(uint32_t slot);
  uint32_t TakeAll(const LoanKey& key);
  void TakeOverdue();
  void NotifyTaken(const HomeLoan& loan, const std::vector<HeldSlot>& slots);
  void AdvanceLoan(const LoanKey& key);

  const Options options_;
  Listener* const listener_;
  transport::Transport* transport_ = nullptr;
  bool ending_ = false;
  uint32_t pending_notices_ = 0;  // homes, of slots that were taken
  uint32_t limit_ = 0;
  SlotTable slots_;
  std::map<LoanKey, HomeLoan> loans_;
  std::map<transport::ConnectionId, Opening> openings_;
  uint64_t challenges_ = 0;  // that were given
  std::map<transport::CallId, Serving> calls_;
};

}  // namespace ravenstore::cluster
