#include "cluster/lender.h"

#include <algorithm>
#include <cstring>

#include "cluster/footprint.h"
#include "cluster/planted.h"

namespace ravenstore::cluster {
namespace {

using core::Duration;
using core::Error;
using core::ErrorCode;
using core::Result;
using core::Status;
using transport::CallId;
using transport::ConnectionId;
using transport::IncomingCall;
using transport::Sink;

// Simultaneous loans of one home's name, each with its own key: a node that lost its key may start
// again before its lease expires.
constexpr size_t kStartsMax = 2;

using SlotState = SlotTable::State;
using Loans = std::map<LoanKey, HomeLoan>;

Error NoLoan() {
  return {ErrorCode::kWrongState, "no loan is open on this connection"};
}
Error Malformed() {
  return {ErrorCode::kCorrupt, "a request whose bulk does not fit"};
}
Error NotLent() {
  return {ErrorCode::kNotFound, "the slot is not lent to this home any more"};
}

// That home has opened by a later challenge. A start of a home, and a connection of it, answers
// challenges in the order of their numbers. What it sent may come after the next has opened.
bool IsLate(const Loans& loans, const std::string& home, const PublicKey& key, uint64_t number) {
  return std::ranges::any_of(loans, [&](const auto& other) {
    return other.first.home == home && other.second.key == key && other.second.opened_by > number;
  });
}

// `most` other nodes, by name, have loans.
bool IsFull(const Loans& loans, const std::string& home, uint32_t most) {
  std::set<std::string_view> homes;
  for (const auto& [key, loan] : loans) homes.insert(key.home);
  return homes.size() >= most && !homes.contains(home);
}

// Loans of the home under other keys than `but` whose leases have not expired at `now`.
size_t StartsOf(const Loans& loans, const std::string& home, const PublicKey& but, core::Tick now) {
  return static_cast<size_t>(std::ranges::count_if(loans, [&](const auto& other) {
    return other.first.home == home && other.second.key != but && !other.second.IsExpired(now);
  }));
}

}  // namespace

Lender::Lender(Options options, LentMemory* memory, Listener* listener)
    : options_(std::move(options)),
      listener_(listener),
      // Generations of another start begin elsewhere, and none reaches the largest number.
      slots_(options_.sizes.piece, options_.random() >> 1, memory) {}

// ---- Requests

Result<Lender::Open> Lender::OpenBy(ConnectionId connection) {
  const auto opening = openings_.find(connection);
  if (opening == openings_.end() || !opening->second.loan) return NoLoan();
  const auto loan = loans_.find(*opening->second.loan);
  if (loan == loans_.end()) return NoLoan();
  const bool newest = loan->second.connected && loan->second.connection == connection;
  if (!newest && !Has(Planted::kOldConnectionServed)) return NoLoan();
  return Open{.key = &loan->first, .loan = &loan->second};
}

Result<SlotTable::Slot*> Lender::Check(ConnectionId connection, SlotRef ref) {
  RAVEN_ASSIGN_OR_RETURN(const Open open, OpenBy(connection));
  if (IsExpired(*open.loan) && !Has(Planted::kExpiredServed)) {
    return Error{ErrorCode::kWrongState, "the lease expired"};
  }
  SlotTable::Slot* const slot = slots_.Find(ref);
  if (slot == nullptr || !slot->IsLent() || slot->loan != *open.key) return NotLent();
  return slot;
}

transport::ChunkCheck Lender::Checks(ConnectionId connection, SlotRef slot) {
  return [this, connection, slot]() -> Status {
    auto checked = Check(connection, slot);
    if (!checked.ok()) return std::move(checked).error();
    return core::Ok();
  };
}

Result<Sink> Lender::Begin(const IncomingCall& call, const WriteRequest& request) {
  RAVEN_ASSIGN_OR_RETURN(SlotTable::Slot* const slot, Check(call.id.connection, request.slot));
  const uint64_t piece = options_.sizes.piece.count();
  if (call.bulk.count() == 0 || request.offset > piece ||
      call.bulk.count() > piece - request.offset) {
    return Malformed();
  }
  slot->transfers.insert(call.id);
  loans_.at(slot->loan).written += call.bulk;
  return Sink{.bytes = slot->memory.subspan(request.offset, call.bulk.count()),
              .check = Checks(call.id.connection, request.slot)};
}

Result<Sink> Lender::Begin(const IncomingCall& call, const ReadRequest& request) {
  RAVEN_ASSIGN_OR_RETURN(SlotTable::Slot* const slot, Check(call.id.connection, request.slot));
  const uint64_t piece = options_.sizes.piece.count();
  if (call.bulk.count() != 0 || request.offset > piece || request.length > piece - request.offset ||
      request.length > call.room.count()) {
    return Malformed();
  }
  slot->transfers.insert(call.id);
  loans_.at(slot->loan).read += core::Bytes(request.length);
  return Sink{};
}

Result<Sink> Lender::Begin(const IncomingCall& call, const auto&) {
  if (call.bulk.count() != 0) return Malformed();
  return Sink{};
}

Result<Sink> Lender::OnRequest(const IncomingCall& call, const HomeRequest& request) {
  auto sink = std::visit([&](const auto& one) { return Begin(call, one); }, request);
  if (sink.ok()) {
    calls_.emplace(call.id, Serving{.node = std::string(call.node), .request = request});
  }
  return sink;
}

void Lender::OnReceived(CallId call) {
  const HomeRequest request = calls_.at(call).request;
  auto answer = std::visit([&](const auto& one) { return Answer(call, one); }, request);
  if (answer.ok()) {
    (void)transport_->Reply(call, *std::move(answer));  // unless it ended meanwhile
  } else {
    (void)transport_->Refuse(call, answer.error());
  }
}

void Lender::OnEnded(CallId call) {
  const auto serving = calls_.extract(call);
  if (serving.empty()) return;
  const HomeRequest& request = serving.mapped().request;
  const auto* const write = std::get_if<WriteRequest>(&request);
  const auto* const read = std::get_if<ReadRequest>(&request);
  if (write == nullptr && read == nullptr) return;
  slots_.EndTransfer(write != nullptr ? write->slot.slot : read->slot.slot, call);
}

void Lender::OnLost(ConnectionId connection) {
  const auto opening = openings_.extract(connection);
  if (opening.empty() || !opening.mapped().loan) return;
  const auto loan = loans_.find(*opening.mapped().loan);
  if (loan != loans_.end() && loan->second.connection == connection) loan->second.connected = false;
}

// ---- Answers

Result<transport::Answer> Lender::Answer(CallId call, const ChallengeRequest&) {
  ChallengeAnswer answer{.lender = options_.identity.incarnation};
  for (size_t i = 0; i < answer.challenge.size(); i += sizeof(uint64_t)) {
    const uint64_t word = options_.random();
    std::memcpy(answer.challenge.data() + i, &word, sizeof(word));
  }
  Opening& opening = openings_[call.connection];
  opening.challenge = answer.challenge;
  opening.number = ++challenges_;
  return transport::Answer{.header = Encode(answer)};
}

// Their checks would refuse their next chunk, but the rest of one may still come, after what the
// home writes there by its newest connection.
void Lender::EndOlderTransfers(const HomeLoan& loan) {
  if (Has(Planted::kOldConnectionServed)) return;
  for (const uint32_t slot : loan.slots) {
    for (const CallId call : std::set(slots_[slot].transfers)) {
      if (call.connection != loan.connection) (void)transport_->Refuse(call, NoLoan());
    }
  }
}

Result<transport::Answer> Lender::Answer(CallId call, const OpenRequest& request) {
  const std::string home = calls_.at(call).node;
  Opening& opening = openings_[call.connection];
  const auto challenge = std::exchange(opening.challenge, std::nullopt);
  const auto refuse = [&](ErrorCode code, const std::string& words) {
    Error why{code, "the node " + options_.name + " " + words};
    listener_->OnHomeRefused(home, why);
    return why;
  };
  if (!challenge || opening.loan) return NoLoan();
  if (options_.allows && !options_.allows(home)) {
    return refuse(ErrorCode::kPermission, "lends nothing to " + home + ", which it does not know");
  }
  const std::string message = SignedMessage(
      options_.name, {.lender = options_.identity.incarnation, .challenge = *challenge}, home,
      request);
  if (!options_.identity.verify(request.key, message, request.signature)) {
    return refuse(ErrorCode::kPermission, "got no valid proof of the key of " + home);
  }
  if (IsLate(loans_, home, request.key, opening.number)) {
    return Error{ErrorCode::kWrongState, "the home has opened another connection since"};
  }
  const LoanKey key{.home = home, .incarnation = request.home};
  if (const auto found = loans_.find(key);
      found != loans_.end() && found->second.key != request.key) {
    return refuse(ErrorCode::kPermission, "knows " + home + " by another key");
  }
  if (!loans_.contains(key)) {
    if (IsFull(loans_, home, options_.homes_max))
      return refuse(ErrorCode::kLimit, "lends to as many nodes as it may");
    if (StartsOf(loans_, home, request.key, options_.lease_clock()) >= kStartsMax) {
      return refuse(ErrorCode::kLimit, "lends to other starts of " + home +
                                           ", with other keys, whose leases have not expired");
    }
  }
  std::vector<LoanKey> predecessors;
  for (const auto& [other, loan] : loans_) {
    if (other.home == home && other != key && loan.key == request.key) {
      predecessors.push_back(other);
    }
  }
  for (const LoanKey& predecessor : predecessors) {
    const uint32_t slots = TakeAll(predecessor);
    loans_.erase(predecessor);
    if (slots > 0) listener_->OnHomeGone(home, slots);
  }
  const auto [loan, is_new] = loans_.try_emplace(key);
  if (is_new) {
    loan->second.key = request.key;
    loan->second.expires = options_.lease_clock() + options_.lease;
  }
  loan->second.connection = call.connection;
  loan->second.connected = true;
  EndOlderTransfers(loan->second);
  loan->second.opened_by = opening.number;
  // Restarts the count of borrows. The borrows of earlier connections have ended, because those
  // connections are no longer served.
  loan->second.settled = 0;
  for (const uint32_t slot : loan->second.slots) slots_[slot].borrow = 0;
  opening.loan = key;
  return transport::Answer{.header = Encode(OpenAnswer{options_.identity.machine})};
}

Result<transport::Answer> Lender::Answer(CallId call, const OfferRequest&) {
  RAVEN_ASSIGN_OR_RETURN(const Open open, OpenBy(call.connection));
  return transport::Answer{.header = Encode(OfferAnswer{MayLend(*open.key)})};
}

Result<transport::Answer> Lender::Answer(CallId call, const BorrowRequest& request) {
  RAVEN_ASSIGN_OR_RETURN(const Open open, OpenBy(call.connection));
  HomeLoan& loan = *open.loan;
  if (request.number <= loan.settled) return NoLoan();
  if (IsExpired(loan) && !loan.slots.empty()) {
    return Error{ErrorCode::kWrongState, "the lease expired"};
  }
  BorrowAnswer answer{.lease = options_.lease};
  const bool is_first = loan.slots.empty();
  uint32_t count = std::min(request.count, MayLend(*open.key));
  loan.expires = options_.lease_clock() + options_.lease;
  loan.expiry_reported = false;
  for (; count > 0; --count) {
    auto slot = Lend(*open.key, &loan, request.number);
    if (!slot.ok()) break;
    answer.slots.push_back(*slot);
  }
  if (is_first && !loan.slots.empty()) listener_->OnHomeJoined(open.key->home);
  return transport::Answer{.header = Encode(answer)};
}

Result<transport::Answer> Lender::Answer(CallId call, const RenewRequest& request) {
  RAVEN_ASSIGN_OR_RETURN(const Open open, OpenBy(call.connection));
  HomeLoan& loan = *open.loan;
  loan.expires = options_.lease_clock() + options_.lease;
  loan.expiry_reported = false;
  loan.settled = std::max(loan.settled, request.settled);
  RenewAnswer answer{.lease = options_.lease};
  std::set<uint32_t> named;
  for (const SlotRef& ref : request.slots) {
    const SlotTable::Slot* const slot = slots_.Find(ref);
    if (slot == nullptr || !loan.slots.contains(ref.slot)) continue;
    if (!named.insert(ref.slot).second) continue;
    const Duration left =
        slot->IsRecalled() ? slot->recalled_until - transport_->Now() : kNotRecalled;
    answer.slots.push_back({.slot = ref, .left = std::max(left, Duration{})});
  }
  std::vector<uint32_t> unnamed;
  for (const uint32_t slot : loan.slots) {
    if (!named.contains(slot) && slots_[slot].borrow <= loan.settled) unnamed.push_back(slot);
  }
  for (const uint32_t slot : unnamed) Take(slot);
  return transport::Answer{.header = Encode(answer)};
}

Result<transport::Answer> Lender::Answer(CallId call, const WriteRequest& request) {
  RAVEN_ASSIGN_OR_RETURN(SlotTable::Slot* const slot, Check(call.connection, request.slot));
  slot->state = SlotState::kValid;
  return transport::Answer{};
}

Result<transport::Answer> Lender::Answer(CallId call, const ReadRequest& request) {
  RAVEN_ASSIGN_OR_RETURN(SlotTable::Slot* const slot, Check(call.connection, request.slot));
  return transport::Answer{.header = {},
                           .send = slot->memory.subspan(request.offset, request.length),
                           .check = Checks(call.connection, request.slot)};
}

// ---- Slots

uint32_t Lender::MayLend(const LoanKey& key) const {
  // All that go by the home's name, with whatever key: else a node would have a share for each key.
  uint32_t has = 0;
  for (const auto& [other, loan] : loans_) {
    if (other == key || (other.home == key.home && !IsExpired(loan))) {
      has += static_cast<uint32_t>(loan.slots.size());
    }
  }
  const uint32_t cap = std::min(options_.home_slots_max, kSlotsMax);
  const uint32_t rest = cap > has ? cap - has : 0;
  if (Has(Planted::kLendsDuringRecall)) return rest;
  uint32_t expired = 0;
  for (const auto& [other, loan] : loans_) {
    if (other != key && IsExpired(loan)) expired += static_cast<uint32_t>(loan.slots.size());
  }
  const uint32_t taken = held() - expired;
  return slots_.AnyRecalled() || taken >= limit_ ? 0 : std::min(rest, limit_ - taken);
}

Result<SlotRef> Lender::Lend(const LoanKey& key, HomeLoan* loan, uint64_t borrow) {
  if (!Has(Planted::kLendsDuringRecall)) {
    TakeExpired(limit_ - 1, &key);
    if (held() >= limit_) return Error{ErrorCode::kOutOfMemory, "what leaves has not left yet"};
  }
  auto slot = slots_.Lend(key, borrow);
  if (slot.ok()) loan->slots.insert(slot->slot);
  return slot;
}

void Lender::Take(uint32_t index) {
  if (const auto loan = loans_.find(slots_[index].loan); loan != loans_.end()) {
    loan->second.slots.erase(index);
  }
  // The last one's OnEnded returns the slot's memory, from within Refuse or later.
  for (const CallId call : slots_.Take(index)) (void)transport_->Refuse(call, NotLent());
}

uint32_t Lender::TakeAll(const LoanKey& key) {
  const std::set<uint32_t> slots = loans_.at(key).slots;
  for (const uint32_t slot : slots) Take(slot);
  return static_cast<uint32_t>(slots.size());
}

void Lender::TakeExpired(uint32_t most, const LoanKey* but) {
  for (auto& [key, loan] : loans_) {
    if (!IsExpired(loan) || (but != nullptr && key == *but)) continue;
    while (held() > most && !loan.slots.empty()) Take(*loan.slots.begin());
  }
}

void Lender::SetLimit(uint32_t slots) {
  if (ending_) return;
  limit_ = slots;
  if (held() > limit_) TakeExpired(limit_, nullptr);
  const uint32_t stays = slots_.Staying();
  if (stays <= limit_) return;
  const uint32_t count = stays - limit_;
  const double gib = static_cast<double>(count * options_.sizes.piece.count()) /
                     static_cast<double>(core::GiB(1).count());
  const Duration within = std::max(
      options_.recall_least, core::FromSeconds(core::Seconds(options_.recall_each_gib) * gib));
  NotifyRecalled(slots_.Recall(count, transport_->Now(), within));
}

void Lender::HandOver(Duration within) {
  ending_ = true;
  limit_ = 0;
  TakeExpired(0, nullptr);
  const core::Tick now = transport_->Now();
  NotifyRecalled(slots_.RecallAll(now + within, now));
}

void Lender::End() {
  ending_ = true;
  limit_ = 0;
  (void)slots_.RecallAll(transport_->Now(), transport_->Now());
  TakeOverdue();
}

// The call may not arrive; the answer to the next renewal repeats it.
void Lender::NotifyRecalled(const SlotTable::ByLoan& recalled) {
  for (const auto& [key, slots] : recalled) {
    const HomeLoan& loan = loans_.at(key);
    listener_->OnSlotsRecalled(key.home, static_cast<uint32_t>(slots.size()));
    if (!loan.connected) continue;
    (void)transport_->Call(loan.connection, {.header = Encode(RecallRequest{slots}),
                                             .deadline = transport_->Now() + slots.front().left,
                                             .done = [](const auto&) {}});
  }
}

// ---- Time

void Lender::TakeOverdue() {
  for (const auto& [key, slots] : slots_.Overdue(transport_->Now())) {
    NotifyTaken(loans_.at(key), slots);
    for (const HeldSlot& held : slots) Take(held.slot.slot);
    listener_->OnSlotsTaken(key.home, static_cast<uint32_t>(slots.size()));
  }
}

// Else it would learn so by what it reads there next, or by its next renewal.
void Lender::NotifyTaken(const HomeLoan& loan, const std::vector<HeldSlot>& slots) {
  if (!loan.connected) return;
  const auto call =
      transport_->Call(loan.connection, {.header = Encode(RecallRequest{slots}),
                                         .deadline = transport_->Now() + kNoticeTimeout,
                                         .done = [this](const auto&) { --pending_notices_; }});
  pending_notices_ += call.ok() ? 1 : 0;
}

void Lender::AdvanceLoan(const LoanKey& key) {
  HomeLoan& loan = loans_.at(key);
  if (!IsExpired(loan)) return;
  const auto slots = static_cast<uint32_t>(loan.slots.size());
  if (!std::exchange(loan.expiry_reported, true) && slots > 0) {
    listener_->OnHomeExpired(key.home, slots);
  }
  if (slots > 0 && options_.lease_clock() < loan.expires + options_.keep_expired) return;
  TakeAll(key);
  if (slots > 0) listener_->OnHomeGone(key.home, slots);
  if (!loan.connected) loans_.erase(key);
}

void Lender::Advance() {
  TakeOverdue();
  std::vector<LoanKey> keys;
  for (const auto& [key, loan] : loans_) keys.push_back(key);
  for (const LoanKey& key : keys) AdvanceLoan(key);
}

core::Tick Lender::Next() const {
  core::Tick next = slots_.NextOverdue();
  const core::Tick now = options_.lease_clock();
  for (const auto& [key, loan] : loans_) {
    if (loan.expiry_reported && loan.slots.empty()) continue;
    const core::Tick due =
        loan.expiry_reported ? loan.expires + options_.keep_expired : loan.expires;
    next = std::min(next, transport_->Now() + std::max(due - now, Duration{}));
  }
  return next;
}

core::Bytes Lender::footprint() const {
  return slots_.footprint() + TreeEntry<uint32_t>() * held() +
         TreeEntry<std::pair<const LoanKey, HomeLoan>>() * loans_.size();
}

std::vector<Lender::HomeView> Lender::Views() const {
  std::vector<HomeView> views;
  for (const auto& [key, loan] : loans_) {
    HomeView& view =
        views.emplace_back(HomeView{.home = key.home, .written = loan.written, .read = loan.read});
    view.slots = static_cast<uint32_t>(loan.slots.size());
    view.recalled = static_cast<uint32_t>(std::ranges::count_if(
        loan.slots, [this](uint32_t slot) { return slots_[slot].IsRecalled(); }));
    view.lease_left = loan.expires - options_.lease_clock();
  }
  return views;
}

}  // namespace ravenstore::cluster
