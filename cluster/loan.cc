#include "cluster/loan.h"

#include <algorithm>
#include <utility>

#include "cluster/planted.h"
#include "core/check.h"

namespace ravenstore::cluster {
namespace {

using core::Duration;
using core::Error;
using core::ErrorCode;
using core::Result;
using core::Status;
using core::Tick;

constexpr int kRenewalsEachLease = 3;

Error LeaseEnded(const std::string& lender) {
  return {ErrorCode::kUnavailable, "the lease of the lender " + lender + " ended"};
}

// Whether another try on the same connection may end otherwise.
bool MayPass(const Error& why) {
  return why.code == ErrorCode::kTimedOut || why.code == ErrorCode::kUnavailable ||
         why.code == ErrorCode::kLimit;
}

OpenRequest SignedOpen(const Loan::Options& options, const std::string& lender,
                       const ChallengeAnswer& challenge) {
  const Identity& identity = options.identity;
  OpenRequest request{
      .home = identity.incarnation, .machine = identity.machine, .key = identity.key};
  request.signature = identity.sign(SignedMessage(lender, challenge, options.home, request));
  return request;
}

// One slot that is not in `held`, or none. Errors: kCorrupt.
Result<BorrowAnswer> ReadBorrow(const std::string& answer, const std::set<SlotRef>& held,
                                const std::string& lender) {
  RAVEN_ASSIGN_OR_RETURN(BorrowAnswer borrowed, DecodeBorrow(answer));
  if (borrowed.slots.size() > 1 ||
      (!borrowed.slots.empty() && held.contains(borrowed.slots.front()))) {
    return Error{
        ErrorCode::kCorrupt,
        "the lender " + lender + " lent a slot that this node has already, or more than one"};
  }
  return borrowed;
}

}  // namespace

Loan::Loan(const Options& options, std::string lender, Peer peer, transport::Transport* transport,
           Listener* listener)
    : options_(options),
      lender_(std::move(lender)),
      peer_(std::move(peer)),
      transport_(transport),
      listener_(listener),
      connect_at_(transport->Now()),
      backoff_(options.backoff_least) {}

Loan::~Loan() {
  refused_ = true;  // what ends now is of our making
  if (connection_) transport_->Close(*std::exchange(connection_, std::nullopt));
}

// ---- The connection

void Loan::Connect() {
  connect_at_ = Now() + backoff_;
  backoff_ = std::min(2 * backoff_, options_.backoff_most);
  const auto connection =
      transport_->Connect(lender_, peer_.address, Now() + options_.connect_timeout);
  if (!connection.ok()) return Refused(connection.error());
  connection_ = *connection;
}

void Loan::Disconnect(const Error& why) {
  open_ = false;
  // A lender that breaks the protocol would break it again immediately.
  const bool is_malformed = why.code == ErrorCode::kCorrupt;
  const Duration pause = is_malformed ? options_.backoff_most : options_.backoff_least;
  connect_at_ = std::max(connect_at_, Now() + pause);
  if (connection_) transport_->Close(*std::exchange(connection_, std::nullopt));
  Refused(why);
}

void Loan::Refused(const Error& why) {
  answered_ = true;
  if (!std::exchange(refused_, true)) listener_->OnRefused(this, why);
}

bool Loan::OnLost(transport::ConnectionId connection, const Error& why) {
  if (!IsOn(connection)) return false;
  connection_.reset();
  const bool was_open = std::exchange(open_, false);
  connect_at_ = was_open ? Now() : std::max(connect_at_, Now() + options_.backoff_least);
  if (!was_open) Refused(why);
  return true;
}

bool Loan::OnConnected(transport::ConnectionId connection) {
  if (!IsOn(connection)) return false;
  Ask(ChallengeRequest{}, Now() + options_.call_timeout, [this](const Result<std::string>& answer) {
    if (!answer.ok()) return Disconnect(answer.error());
    const auto challenge = DecodeChallenge(*answer);
    if (!challenge.ok()) return Disconnect(challenge.error());
    Ask(SignedOpen(options_, lender_, *challenge), Now() + options_.call_timeout,
        [this, lender = challenge->lender](const Result<std::string>& opened) {
          OnOpenAnswer(lender, opened);
        });
  });
  return true;
}

void Loan::OnOpenAnswer(const Incarnation& lender, const Result<std::string>& answer) {
  if (!answer.ok()) return Disconnect(answer.error());
  const auto opened = DecodeOpen(*answer);
  if (!opened.ok()) return Disconnect(opened.error());
  open_ = true;
  refused_ = false;
  backoff_ = options_.backoff_least;
  machine_ = opened->machine;
  if (incarnation_ != lender) {
    incarnation_ = lender;
    safe_until_ = Tick::min();
    reported_ = released_;  // of what an earlier start had lent
    Lose({slots_.begin(), slots_.end()},
         {ErrorCode::kLost, "the lender " + lender_ + " was restarted"});
  }
  // First: what the lender keeps for this home, which knows nothing of it, is no part of its offer.
  Renew();
  if (slots_.empty()) AskForOffer();
  if (!slots_.empty() && usable()) listener_->OnUsable(this);
}

void Loan::Ask(const AnyRequest& request, Tick deadline,
               std::function<void(Result<std::string>)> done) {
  if (!connection_) return done(Error{ErrorCode::kUnavailable, "no connection to " + lender_});
  const auto call =
      transport_->Call(*connection_, {.header = Encode(request),
                                      .deadline = deadline,
                                      .done = [done](Result<transport::Response> response) {
                                        if (!response.ok())
                                          return done(std::move(response).error());
                                        done(std::move(response->header));
                                      }});
  if (!call.ok()) done(call.error());
}

// ---- The lease

void Loan::Renew() {
  renewing_ = true;
  const uint64_t settled = borrowing_.empty() ? borrows_ : *borrowing_.begin() - 1;
  // Of borrows that failed behind one that is under way the lender cannot learn yet.
  const Renewal renewal{.sent = options_.lease_clock(),
                        .released = settled == borrows_ ? released_ : reported_,
                        .named = slots_};
  const Duration timeout = lease_.count() > 0 ? lease_ / kRenewalsEachLease : options_.call_timeout;
  Ask(RenewRequest{.settled = settled, .slots = {slots_.begin(), slots_.end()}}, Now() + timeout,
      [this, renewal](const Result<std::string>& answer) { OnRenewAnswer(renewal, answer); });
}

void Loan::OnRenewAnswer(const Renewal& renewal, const Result<std::string>& answer) {
  renewing_ = false;
  renew_at_ = Now() + options_.backoff_least;
  if (!answer.ok()) {
    if (!MayPass(answer.error())) Disconnect(answer.error());
    return;
  }
  const auto renewed = DecodeRenew(*answer);
  if (!renewed.ok()) return Disconnect(renewed.error());
  const bool was_usable = usable();
  reported_ = std::max(reported_, renewal.released);
  Extend(renewal.sent, renewed->lease);
  std::set<SlotRef> gone = renewal.named;
  for (const HeldSlot& held : renewed->slots) gone.erase(held.slot);
  std::erase_if(gone, [this](const SlotRef& slot) { return !slots_.contains(slot); });
  Lose({gone.begin(), gone.end()}, {ErrorCode::kLost, "the lender " + lender_ + " took it back"});
  OnRecall({renewed->slots});
  if (!was_usable && usable()) listener_->OnUsable(this);
}

void Loan::Extend(Tick sent, Duration lease) {
  if (Has(Planted::kLeaseFromAnswer)) sent = options_.lease_clock();
  safe_until_ = std::max(safe_until_, sent + (Has(Planted::kWholeLease) ? lease : lease * 9 / 10));
  lease_ = lease;
  if (HasUnreportedReleases()) {
    renew_at_ = std::min(renew_at_, Now() + options_.backoff_least);
  } else {
    renew_at_ = slots_.empty() ? core::kNever : Now() + lease / kRenewalsEachLease;
  }
  if (IsValid()) give_up_at_ = core::kNever;
}

void Loan::OnRecall(const RecallRequest& request) {
  std::vector<SlotRef> gone;
  for (const HeldSlot& held : request.slots) {
    if (held.left == kNotRecalled || !slots_.contains(held.slot)) continue;
    if (held.left <= Duration{}) {
      gone.push_back(held.slot);
      continue;
    }
    const Duration left = std::min<Duration>(held.left, std::chrono::hours(1));
    listener_->OnRecalled(this, held.slot, Now() + left * 9 / 10);
  }
  // The listener may have given some of them back.
  std::erase_if(gone, [this](const SlotRef& slot) { return !slots_.contains(slot); });
  Lose(std::move(gone), {ErrorCode::kLost, "the lender " + lender_ + " took it back"});
}

void Loan::Lose(std::vector<SlotRef> slots, const Error& why) {
  if (slots.empty()) return;
  for (const SlotRef& slot : slots) slots_.erase(slot);
  if (slots_.empty()) give_up_at_ = core::kNever;
  // Before the transfers end: their callbacks may go on with the slots that are left.
  listener_->OnSlotsLost(this, slots, why);
  EndTransfers([this](const Transfer& transfer) { return !slots_.contains(transfer.slot); });
}

// ---- Calls

void Loan::AskForOffer() {
  if (!open_) return;
  Ask(OfferRequest{}, Now() + options_.call_timeout, [this](const Result<std::string>& answer) {
    if (!answer.ok()) {
      if (!MayPass(answer.error())) Disconnect(answer.error());
      return;
    }
    const auto offer = DecodeOffer(*answer);
    if (!offer.ok()) return Disconnect(offer.error());
    offered_ = std::min(offer->slots, kSlotsMax);
    answered_ = true;
    listener_->OnUsable(this);
  });
}

void Loan::Borrow(Tick deadline, std::function<void(Result<SlotRef>)> done) {
  if (!open() || slots_.size() + borrowing_.size() >= kSlotsMax) {
    return done(Error{ErrorCode::kUnavailable, "the lender " + lender_ + " cannot be asked now"});
  }
  const uint64_t number = ++borrows_;
  borrowing_.insert(number);
  if (offered_ > 0) --offered_;
  const Tick sent = options_.lease_clock();
  Ask(BorrowRequest{.number = number, .count = 1},
      std::min(deadline, Now() + options_.call_timeout),
      [this, number, sent, done = std::move(done)](const Result<std::string>& answer) {
        borrowing_.erase(number);
        const Result<BorrowAnswer> borrowed =
            answer.ok() ? ReadBorrow(*answer, slots_, lender_) : answer.error();
        if (!borrowed.ok() || borrowed->slots.empty()) {
          offered_ = 0;
          // The lender may have reserved a slot. It frees the slot once it knows that this home did
          // not take it.
          if (!borrowed.ok()) ReportReleased();
          if (!borrowed.ok() && borrowed.error().code == ErrorCode::kCorrupt) {
            Disconnect(borrowed.error());
          }
          return done(borrowed.ok() ? Error{ErrorCode::kOutOfMemory, lender_ + " lends no more"}
                                    : borrowed.error());
        }
        const SlotRef slot = borrowed->slots.front();
        const bool is_first = slots_.empty();
        const bool was_usable = usable();
        slots_.insert(slot);
        Extend(sent, borrowed->lease);
        if (is_first) listener_->OnJoined(this);
        if (!was_usable && usable()) listener_->OnUsable(this);
        done(slot);
      });
}

void Loan::ReportReleased() {
  ++released_;
  renew_at_ = std::min(renew_at_, Now());
}

void Loan::Release(SlotRef slot) {
  slots_.erase(slot);
  if (slots_.empty()) give_up_at_ = core::kNever;
  ReportReleased();
  EndTransfers([slot](const Transfer& transfer) { return transfer.slot == slot; });
}

Status Loan::Write(SlotRef slot, uint64_t offset, std::span<const std::byte> bytes, Tick deadline,
                   Done done) {
  return Call({.header = Encode(WriteRequest{.slot = slot, .offset = offset}),
               .send = bytes,
               .deadline = deadline},
              slot, std::move(done));
}

Status Loan::Read(SlotRef slot, uint64_t offset, std::span<std::byte> bytes, Tick deadline,
                  Done done) {
  const ReadRequest request{.slot = slot, .offset = offset, .length = bytes.size()};
  return Call({.header = Encode(request), .receive = bytes, .deadline = deadline}, slot,
              std::move(done));
}

Status Loan::Call(transport::Request request, SlotRef slot, Done done) {
  RAVEN_CHECK(usable());
  RAVEN_CHECK(slots_.contains(slot));
  const uint64_t number = ++transfers_made_;
  const size_t sent = request.send.size();
  const size_t wanted = request.receive.size();
  request.done = [this, number, sent, wanted,
                  done = std::move(done)](const Result<transport::Response>& response) {
    transfers_.erase(number);
    if (!response.ok()) return done(response.error());
    if (!IsValid()) return done(LeaseEnded(lender_));
    if (response->bulk != core::Bytes(wanted)) {
      return done(Error{ErrorCode::kCorrupt, "the lender " + lender_ + " sent too little"});
    }
    written_ += core::Bytes(sent);
    read_ += core::Bytes(wanted);
    done(core::Ok());
  };
  RAVEN_ASSIGN_OR_RETURN(const transport::CallId call,
                         transport_->Call(*connection_, std::move(request)));
  transfers_.emplace(number, Transfer{.call = call, .slot = slot});
  return core::Ok();
}

void Loan::EndTransfers(const std::function<bool(const Transfer&)>& which) {
  std::vector<transport::CallId> ended;
  for (const auto& [number, transfer] : transfers_) {
    if (which(transfer)) ended.push_back(transfer.call);
  }
  for (const transport::CallId call : ended) transport_->Cancel(call);
}

// ---- Time

void Loan::Advance() {
  if (!slots_.empty() && !IsValid()) {
    if (give_up_at_ == core::kNever) {
      give_up_at_ = Now() + options_.revalidate_within;
      renew_at_ = std::min(renew_at_, Now());
      EndTransfers([](const Transfer&) { return true; });
    } else if (Now() >= give_up_at_) {
      // The lender may have heard of this home since, and keeps them for it.
      ReportReleased();
      Lose({slots_.begin(), slots_.end()},
           {ErrorCode::kLost, "nothing was heard of the lender " + lender_ + " in time"});
    }
  }
  if (!connection_ && Now() >= connect_at_) Connect();
  if (open_ && !renewing_ && Now() >= renew_at_) Renew();
}

core::Tick Loan::Next() const {
  core::Tick next = give_up_at_;
  if (!connection_) next = std::min(next, connect_at_);
  if (open_ && !renewing_) next = std::min(next, renew_at_);
  if (!slots_.empty() && give_up_at_ == core::kNever) {
    const Duration left = safe_until_ - options_.lease_clock();
    next = std::min(next, Now() + std::max(left, Duration{}));
  }
  return next;
}

Loan::View Loan::ToView() const {
  const Duration left = IsValid() ? safe_until_ - options_.lease_clock() : Duration{};
  return {.lender = lender_,
          .connected = open_,
          .slots = static_cast<uint32_t>(slots_.size()),
          .offered = offered_,
          .lease_left = left,
          .written = written_,
          .read = read_};
}

}  // namespace ravenstore::cluster
