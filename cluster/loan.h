// A home's side of one loan: the connection to one lender, the lease, and the slots that it has of
// this home.
//
// It connects, opens and renews by itself. The lease counts from before the renewal was sent, less
// 10%, because the lender's clock may run faster. Once the lease has passed, nothing is read or
// written, and what is under way ends, until a renewal is answered (revalidated). If that takes
// longer than `revalidate_within`, the slots are lost, and the loan notifies the lender once it
// can.
//
// Threads: one, the transport's. Errors: of calls, what the lender refused with, or kUnavailable
// (no connection, or the lease ended), kTimedOut, kCorrupt (the answer is none).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/ids.h"
#include "cluster/protocol.h"
#include "core/result.h"
#include "core/types.h"
#include "transport/transport.h"

namespace ravenstore::cluster {

// Where a node is.
struct Peer {
  std::string address;  // as the transport writes addresses
  auto operator<=>(const Peer&) const = default;
};

class Loan {
 public:
  struct Options {
    std::string home;  // this node's name
    Identity identity;
    std::function<core::Tick()> lease_clock;  // CLOCK_BOOTTIME
    core::Duration connect_timeout = std::chrono::seconds(2);
    core::Duration call_timeout = std::chrono::seconds(2);
    core::Duration revalidate_within = std::chrono::seconds(1);
    // Between attempts to connect: doubled from the one to the other.
    core::Duration backoff_least = std::chrono::milliseconds(50);
    core::Duration backoff_most = std::chrono::seconds(2);
  };
  // Called after all else that the loan has to do at that moment; may call everything here.
  class Listener {
   public:
    virtual ~Listener() = default;
    // The first slot was lent.
    virtual void OnJoined(Loan* loan) = 0;
    virtual void OnRefused(Loan* loan, const core::Error& why) = 0;
    // Calls may be made (again).
    virtual void OnUsable(Loan* loan) = 0;
    virtual void OnRecalled(Loan* loan, SlotRef slot, core::Tick deadline) = 0;
    // The lender has them no more, or nothing was heard of it for too long.
    virtual void OnSlotsLost(Loan* loan, const std::vector<SlotRef>& slots,
                             const core::Error& why) = 0;
  };
  struct View {
    std::string lender;
    bool connected = false;
    uint32_t slots = 0;
    uint32_t offered = 0;
    core::Duration lease_left{};  // 0: expired, or none
    core::Bytes written;          // in all
    core::Bytes read;
  };
  using Done = std::function<void(const core::Status&)>;

  // `listener` and `transport` outlive this.
  Loan(const Options& options, std::string lender, Peer peer, transport::Transport* transport,
       Listener* listener);
  ~Loan();
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

  const std::string& lender() const { return lender_; }
  const std::optional<MachineId>& machine() const { return machine_; }
  void SetPeer(Peer peer) { peer_ = std::move(peer); }

  // Whether this is its connection.
  bool OnConnected(transport::ConnectionId connection);
  bool OnLost(transport::ConnectionId connection, const core::Error& why);
  bool IsOn(transport::ConnectionId connection) const { return connection_ == connection; }
  void OnRecall(const RecallRequest& request);

  // Slots can be read and written.
  bool usable() const { return open_ && IsValid(); }
  // It can be asked for slots.
  bool open() const { return open_ && (slots_.empty() || IsValid()); }
  const std::set<SlotRef>& slots() const { return slots_; }
  uint32_t offered() const { return offered_; }
  // It has said what it offers, or refused.
  bool answered() const { return answered_; }
  // The lender can be notified, and does not know yet of all that was returned.
  bool has_unreported_releases() const { return open_ && HasUnreportedReleases(); }
  // It has nothing of the lender, and the lender knows, or will learn by the lease.
  bool idle() const { return slots_.empty() && borrowing_.empty() && !has_unreported_releases(); }

  // Asks how many slots the lender would lend. OnUsable reports that the number is known.
  void AskForOffer();
  // `done` has the slot, which is then among slots().
  void Borrow(core::Tick deadline, std::function<void(core::Result<SlotRef>)> done);
  // Ends the transfers under way on it. Notifies the lender again and again until it has answered.
  void Release(SlotRef slot);
  // REQUIRES: usable(), and the slot is among slots(). The buffer is the transport's until `done`.
  core::Status Write(SlotRef slot, uint64_t offset, std::span<const std::byte> bytes,
                     core::Tick deadline, Done done);
  core::Status Read(SlotRef slot, uint64_t offset, std::span<std::byte> bytes, core::Tick deadline,
                    Done done);

  void Advance();
  core::Tick Next() const;
  View ToView() const;

 private:
  struct Transfer {
    transport::CallId call;
    SlotRef slot;
  };
  struct Renewal {
    core::Tick sent{};  // on the lease's clock
    uint64_t released = 0;
    std::set<SlotRef> named;
  };

  bool IsValid() const { return options_.lease_clock() < safe_until_; }
  core::Tick Now() const { return transport_->Now(); }
  void Connect();
  void Disconnect(const core::Error& why);
  void Refused(const core::Error& why);
  // Makes a call whose answer `parse` reads. It is not called if the connection was replaced since.
  void Ask(const AnyRequest& request, core::Tick deadline,
           std::function<void(core::Result<std::string>)> done);
  void OnOpenAnswer(const Incarnation& lender, const core::Result<std::string>& answer);
  void Renew();
  void OnRenewAnswer(const Renewal& renewal, const core::Result<std::string>& answer);
  // Slots are not the home's any more, or may be reserved for it and never were.
  void ReportReleased();
  bool HasUnreportedReleases() const { return reported_ != released_; }
  void Extend(core::Tick sent, core::Duration lease);
  core::Status Call(transport::Request request, SlotRef slot, Done done);
  void EndTransfers(const std::function<bool(const Transfer&)>& which);
  void Lose(std::vector<SlotRef> slots, const core::Error& why);

  const Options& options_;
  const std::string lender_;
  Peer peer_;
  transport::Transport* const transport_;
  Listener* const listener_;

  // The connection.
  std::optional<transport::ConnectionId> connection_;
  bool open_ = false;
  core::Tick connect_at_{};
  core::Duration backoff_;
  bool refused_ = false;  // and reported
  std::optional<Incarnation> incarnation_;
  std::optional<MachineId> machine_;

  // The lease. safe_until_ is of the lease's clock, the others of the transport's.
  core::Tick safe_until_{};
  core::Duration lease_{};
  core::Tick renew_at_ = core::kNever;
  bool renewing_ = false;
  core::Tick give_up_at_ = core::kNever;  // since it lapsed

  std::set<SlotRef> slots_;
  // How often slots were given back, and how many of these times the lender knows of: a renewal
  // that was sent later, with no borrow under way, and was answered did not name them.
  uint64_t released_ = 0;
  uint64_t reported_ = 0;
  uint32_t offered_ = 0;
  bool answered_ = false;
  uint64_t borrows_ = 0;
  std::set<uint64_t> borrowing_;
  uint64_t transfers_made_ = 0;
  std::map<uint64_t, Transfer> transfers_;
  core::Bytes written_;
  core::Bytes read_;
};

}  // namespace ravenstore::cluster
