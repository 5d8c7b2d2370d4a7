#include "cluster/loans.h"

#include <algorithm>
#include <utility>

namespace ravenstore::cluster {

using core::Error;
using core::ErrorCode;

Loans::Loans(Options options, Listener* listener)
    : options_(std::move(options)), listener_(listener), random_(options_.seed) {}

void Loans::SetPeers(std::map<std::string, Peer> peers) {
  const bool any_new =
      std::ranges::any_of(peers, [this](const auto& peer) { return !peers_.contains(peer.first); });
  peers_ = std::move(peers);
  std::erase_if(refused_, [this](const auto& node) { return !peers_.contains(node.first); });
  for (const auto& [name, loan] : loans_) {
    if (const auto peer = peers_.find(name); peer != peers_.end()) loan->SetPeer(peer->second);
  }
  if (any_new && transport_ != nullptr && !ended_) ask_at_ = std::min(ask_at_, transport_->Now());
}

uint32_t Loans::Partners() const {
  return static_cast<uint32_t>(std::ranges::count_if(
      loans_, [](const auto& loan) { return !loan.second->slots().empty(); }));
}

std::vector<std::string> Loans::Idle() {
  std::vector<std::string> idle;
  for (const auto& [name, loan] : loans_) {
    if (loan->idle()) idle.push_back(name);
  }
  std::ranges::shuffle(idle, random_);
  return idle;
}

std::vector<std::string> Loans::UnaskedPeers() {
  std::vector<std::string> unasked;
  for (const auto& [name, peer] : peers_) {
    if (!loans_.contains(name)) unasked.push_back(name);
  }
  std::ranges::shuffle(unasked, random_);
  return unasked;
}

void Loans::Replace(const std::vector<std::string>& removed,
                    const std::vector<std::string>& unasked) {
  for (const std::string& name : removed) loans_.erase(name);
  size_t idle = Idle().size();
  for (const std::string& name : unasked) {
    if (idle++ >= options_.asked) break;
    Loan::Listener* const listener = this;
    loans_.emplace(
        name, std::make_unique<Loan>(options_.loan, name, peers_.at(name), transport_, listener));
  }
}

// Those without a slot make room for others that were not asked lately.
void Loans::RefreshOffers() {
  const std::vector<std::string> unasked = UnaskedPeers();
  // One is replaced each time, and all that no one names any more.
  const size_t keep = options_.asked - (unasked.empty() || options_.asked == 0 ? 0 : 1);
  size_t kept = 0;
  std::vector<std::string> removed = Idle();
  std::erase_if(removed, [&](const auto& name) { return peers_.contains(name) && kept++ < keep; });
  Replace(removed, unasked);
  for (const auto& [name, loan] : loans_) loan->AskForOffer();
  listener_->OnOffers();
}

// Those that have nothing to lend make room, all of them.
void Loans::Search() {
  const std::vector<std::string> unasked = UnaskedPeers();
  std::vector<std::string> removed = Idle();
  std::erase_if(removed, [&](const auto& name) {
    const Loan& loan = *loans_.at(name);
    return !loan.answered() || loan.offered() > 0;
  });
  removed.resize(std::min(removed.size(), unasked.size()));
  Replace(removed, unasked);
  listener_->OnOffers();
}

// A node that refuses again and again for the same reason is reported once.
void Loans::OnRefused(Loan* loan, const Error& why) {
  if (std::exchange(refused_[loan->lender()], why.message) == why.message) return;
  listener_->OnRefused(loan, why);
}

void Loans::OnUsable(Loan* loan) {
  refused_.erase(loan->lender());
  listener_->OnUsable(loan);
  listener_->OnOffers();
}

void Loans::End() {
  ended_ = true;
  ask_at_ = search_at_ = core::kNever;
}

// Who is asked as it ends would have others asked.
void Loans::Close() {
  End();
  std::exchange(loans_, {}).clear();
}

bool Loans::HasUnreportedReleases() const {
  return std::ranges::any_of(
      loans_, [](const auto& loan) { return loan.second->has_unreported_releases(); });
}

void Loans::Acquire(Excluded excluded, core::Tick deadline,
                    std::function<void(core::Result<Lent>)> done) {
  if (ended_) return done(Error{ErrorCode::kUnavailable, "this node leaves the cluster"});
  if (transport_->Now() >= deadline) {
    return done(Error{ErrorCode::kTimedOut, "no slot was lent in time"});
  }
  const bool more_partners = Partners() < options_.partners_max;
  Loan* best = nullptr;
  for (const auto& [name, loan] : loans_) {
    const bool fits = loan->open() && loan->offered() > 0 && !excluded.lenders.contains(name) &&
                      !excluded.machines.contains(*loan->machine()) &&
                      (more_partners || !loan->slots().empty());
    if (fits && (best == nullptr || loan->offered() > best->offered())) best = loan.get();
  }
  if (best == nullptr) {
    if (search_at_ == core::kNever) search_at_ = transport_->Now() + options_.search_period;
    return done(Error{ErrorCode::kOutOfMemory, "no node of the cluster lends memory that fits"});
  }
  best->Borrow(deadline, [this, best, excluded = std::move(excluded), deadline,
                          done = std::move(done)](const core::Result<SlotRef>& slot) mutable {
    if (slot.ok()) return done(Lent{.loan = best, .slot = *slot});
    excluded.lenders.insert(best->lender());
    Acquire(std::move(excluded), deadline, std::move(done));
  });
}

std::vector<uint32_t> Loans::OffersByMachine() const {
  const bool more_partners = Partners() < options_.partners_max;
  std::map<MachineId, uint32_t> offers;
  for (const auto& [name, loan] : loans_) {
    if (loan->open() && (more_partners || !loan->slots().empty())) {
      offers[*loan->machine()] += loan->offered();
    }
  }
  std::vector<uint32_t> counts;
  for (const auto& [machine, count] : offers) counts.push_back(count);
  return counts;
}

bool Loans::OnConnected(transport::ConnectionId connection) {
  return std::ranges::any_of(
      loans_, [&](const auto& loan) { return loan.second->OnConnected(connection); });
}

bool Loans::OnLost(transport::ConnectionId connection, const Error& why) {
  return std::ranges::any_of(
      loans_, [&](const auto& loan) { return loan.second->OnLost(connection, why); });
}

core::Status Loans::OnRecall(transport::ConnectionId connection, const RecallRequest& request) {
  for (const auto& [name, loan] : loans_) {
    if (!loan->IsOn(connection)) continue;
    loan->OnRecall(request);
    return core::Ok();
  }
  return Error{ErrorCode::kWrongState, "this node has no loan by that connection"};
}

void Loans::Advance() {
  if (transport_->Now() >= ask_at_) {
    ask_at_ = transport_->Now() + options_.offer_period;
    RefreshOffers();
  }
  if (transport_->Now() >= search_at_) {
    search_at_ = core::kNever;
    Search();
  }
  for (const auto& [name, loan] : loans_) loan->Advance();
}

core::Tick Loans::Next() const {
  core::Tick next = std::min(ask_at_, search_at_);
  for (const auto& [name, loan] : loans_) next = std::min(next, loan->Next());
  return next;
}

std::vector<Loan::View> Loans::Views() const {
  std::vector<Loan::View> views;
  for (const auto& [name, loan] : loans_) views.push_back(loan->ToView());
  return views;
}

}  // namespace ravenstore::cluster
