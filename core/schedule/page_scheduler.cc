#include "core/schedule/page_scheduler.h"

#include <algorithm>
#include <utility>

#include "core/books/page_views.h"
#include "core/check.h"
#include "core/schedule/learned_foresight.h"
#include "core/tuned.h"

namespace ravenstore::core {

using plan::CallKind;

namespace {

// Bytes that are mapped or queued to come ahead of their need: enough to keep the link busy while
// the next page is mapped. More would take memory earlier than it is needed.
constexpr Bytes kComingLeast = MiB(16);

// Of a tensor that has a row.
ClientCall CallOf(const ScheduledClient& client, CallKind kind, TensorNumber tensor, Duration at) {
  return {
      .kind = kind, .tensor = tensor, .size = client.executor().tensors()[tensor].size, .at = at};
}

}  // namespace

PageScheduler::PageScheduler(const Options& options, PageMaker* maker)
    : options_(options),
      pages_(options.pages),
      maker_(maker),
      free_pages_(options.pages),
      overdue_(options.patience),
      plans_({.id = options.device,
              .maker = maker,
              .clients = &clients_,
              .pages = &pages_,
              .tenants = &tenants_,
              .free_pages = &free_pages_}) {}

// ---- Clients.

void PageScheduler::Join(Client client) {
  RAVEN_CHECK(!HasClient(client.id));
  client.limits.pages = std::min(
      {client.limits.pages, free_pages_.unassigned(), tenants_.Growth(client.tenant, clients_)});
  free_pages_.Take(client.limits.pages);
  const Bytes coming = std::max(kComingLeast, client.limits.page * kComingPages);
  if (client.foresight == nullptr) {
    plan::PlanLimits expected = client.limits;
    expected.pages = std::max(
        {client.limits.pages, options_.pages / static_cast<uint32_t>(clients_.size() + 1), 1U});
    client.foresight = std::make_unique<LearnedForesight>(
        expected, LearnedForesight::Options{.has_slots = client.has_slots});
  }
  client.foresight->SetAddresses(client.addresses);
  auto joined = std::make_unique<ScheduledClient>(
      ScheduledClient::Options{.id = client.id,
                               .backend = client.backend,
                               .books = {.limits = client.limits, .coming_most = coming},
                               .foresight = std::move(client.foresight),
                               .waits_for_stream = client.waits_for_stream,
                               .tenant = client.tenant,
                               .most = client.most});
  clients_.push_back(joined.get());
  by_id_[client.id] = std::move(joined);
  demands_.SetClients(clients_);
  shared_.reset();
  if (plans_.are_shared()) plans_.Changed(nullptr);
}

void PageScheduler::SetMost(ClientId client, uint32_t pages, bool trims) {
  Touch(client)->SetMost(pages, trims);
  shared_.reset();
  if (plans_.are_shared()) plans_.Changed(nullptr);
}

// Pages beyond that are destroyed as clients release them, and none is made for others.
void PageScheduler::SetPages(uint32_t pages) {
  pages = std::min(pages, options_.pages);
  free_pages_.SetMost(pages);
  pages_ = pages;
  shared_.reset();
  if (plans_.are_shared()) plans_.Changed(nullptr);
}

void PageScheduler::EndCalls(ClientId client) {
  ScheduledClient& of = Of(client);
  if (of.has_ended()) return;
  of.EndCalls();
  demands_.Mark(client);
  if (plans_.are_shared()) plans_.Changed(nullptr);
}

void PageScheduler::Leave(ClientId client) {
  ScheduledClient* const left = Touch(client);
  const auto at = std::find(clients_.begin(), clients_.end(), left);
  RAVEN_CHECK(at != clients_.end());
  const auto number = static_cast<uint32_t>(at - clients_.begin());
  clients_.erase(at);
  if (turn_ && turn_->client == number) turn_.reset();
  if (turn_ && turn_->client > number) --turn_->client;
  free_pages_.Unassign(*left);
  left->Retire();
  removed_.push_back(client);
  demands_.SetClients(clients_);
  shared_.reset();
  plans_.Changed(nullptr);
}

// ---- Calls of a client's CPU.

void PageScheduler::See(ScheduledClient* client, const ClientCall& call) {
  Touch(client->id());
  demands_.Refresh();
  if (client->See(call, demands_.Fit(pages_))) plans_.Changed(client);
  demands_.Mark(client->id());
}

CallResult PageScheduler::Create(ClientId client, ClientCall create, Creates how) {
  ScheduledClient& of = Of(client);
  create.kind = CallKind::kCreate;
  const uint32_t most = std::min(pages_, of.most());
  if (!create.place && !of.CanPlace(create.size, most, create.stream))
    return CallResult::kNoAddresses;
  See(&of, create);
  of.Place(create, most);
  CallResult result = CallResult::kNoPlace;
  if (how == Creates::kInUse) {
    of.Use(create);
    result = CallResult::kHeld;
  } else if (how == Creates::kInPlace) {
    result = of.Hold(create, std::nullopt) ? CallResult::kHeld : CallResult::kWaits;
  } else if (demands_.HasPlace(of, of.executor().tensors()[create.tensor].units, pages_)) {
    result = HoldOrRefuse(&of, create);
  }
  const bool waits = result == CallResult::kWaits && how == Creates::kOnDevice;
  if (result != CallResult::kHeld && !waits) of.Forget(create.tensor);
  return result;
}

CallResult PageScheduler::Get(ClientId client, TensorNumber tensor, Duration at) {
  ScheduledClient& of = Of(client);
  const PageTensors::Row& row = of.executor().tensors()[tensor];
  if (row.life == PageTensors::Life::kEnded && !row.is_discarded()) return CallResult::kLost;
  // It lives again, as after a create.
  if (row.is_discarded() && !demands_.HasPlace(of, row.units, pages_)) return CallResult::kNoPlace;
  const ClientCall call = CallOf(of, CallKind::kGet, tensor, at);
  See(&of, call);
  return HoldOrRefuse(&of, call);
}

CallResult PageScheduler::HoldOrRefuse(ScheduledClient* client, const ClientCall& call) {
  const PageExecutor& executor = client->executor();
  const uint32_t own = CallIn(executor.books(), executor.tensors()[call.tensor].units).own;
  if (own > tenants_.Most(*client, pages_) && !executor.books().view().limits.in_place)
    return CallResult::kTooLarge;
  return client->Hold(call, demands_.MayHold(*client, pages_)) ? CallResult::kHeld
                                                               : CallResult::kWaits;
}

void PageScheduler::Use(ClientId client, TensorNumber tensor, Duration at) {
  ScheduledClient& of = Of(client);
  const ClientCall call = CallOf(of, CallKind::kGet, tensor, at);
  See(&of, call);
  of.Use(call);
}

CallResult PageScheduler::UseInPlace(ClientId client, TensorNumber tensor, Duration at) {
  ScheduledClient& of = Of(client);
  if (!CanUseInPlace(of.executor().books(), of.executor().tensors(), tensor))
    return CallResult::kWaits;
  const ClientCall call = CallOf(of, CallKind::kGet, tensor, at);
  See(&of, call);
  of.Hold(call, std::nullopt);
  return CallResult::kHeld;
}

CallEnd PageScheduler::Put(ClientId client, TensorNumber tensor, bool modifies,
                           const NextUse& next_use, Duration at, Priority priority) {
  ScheduledClient& of = Of(client);
  ClientCall call = CallOf(of, CallKind::kPut, tensor, at);
  call.modifies = modifies;
  call.next_use = next_use;
  call.priority = priority;
  See(&of, call);
  const CallEnd end = of.End(call);
  if (plans_.are_shared() && priority != Priority::kNormal) plans_.Changed(&of);
  return end;
}

CallEnd PageScheduler::Free(ClientId client, TensorNumber tensor, Duration at, StreamId stream) {
  ScheduledClient& of = Of(client);
  ClientCall call = CallOf(of, CallKind::kFree, tensor, at);
  call.stream = stream;
  See(&of, call);
  return of.End(call);
}

std::optional<TensorNumber> PageScheduler::HoldWaiting(ClientId client) {
  ScheduledClient* const of = Touch(client);
  return of->HoldWaiting(demands_.MayHold(*of, pages_));
}

bool PageScheduler::Refuse(ClientId client, TensorNumber tensor) {
  return Touch(client)->Refuse(tensor);
}

// ---- The client's stream.

void PageScheduler::BeginUse(ClientId client, TensorNumber tensor) {
  Touch(client)->BeginUse(tensor);
}

void PageScheduler::EndUse(ClientId client, const CallEnd& end) {
  Touch(client)->EndUse(end);
}

void PageScheduler::EndBytes(ClientId client, TensorNumber tensor) {
  Touch(client)->EndBytes(tensor);
}

// ---- Reports.

ScheduledClient* PageScheduler::Touch(ClientId client) {
  ScheduledClient& of = Of(client);
  if (of.Touch()) touched_.push_back(client);
  demands_.Mark(client);
  return &of;
}

void PageScheduler::Arrived(ClientId client, plan::Unit unit, Arrival how, bool ok) {
  ScheduledClient* const of = Touch(client);
  std::vector<TensorNumber> refused;
  if (how == Arrival::kMapped) {
    of->executor().Mapped(unit, ok, &refused);
  } else {
    of->executor().CopiedIn(unit, ok, &refused);
  }
  for (const TensorNumber tensor : refused) of->Refused(tensor);
}

void PageScheduler::PageReleased(ClientId client) {
  free_pages_.Add();
  if (HasClient(client)) Touch(client)->executor().books().memory().Destroyed();
}

void PageScheduler::PageMade(ClientId client) {
  free_pages_.Made();
  ++pages_made_;
  Touch(client)->executor().AddPage();
}

void PageScheduler::PlanMade(const std::shared_ptr<PlanWork>& work) {
  for (const PlanWork::Part& part : work->parts) {
    if (HasClient(part.client)) Touch(part.client);
  }
  plans_.Made(work);
}

// ---- Work.

void PageScheduler::Advance(Duration now) {
  started_.clear();
  StartTouched();
  if (tenants_.TakeChanged()) {
    shared_.reset();
    free_pages_.SharesChanged();
    if (plans_.are_shared()) plans_.Changed(nullptr);
    WakeWaiting();
  }
  if (clients_.size() == 1) {
    if (clients_.front()->SetShare(tenants_.MostExceptKept(*clients_.front(), pages_))) {
      free_pages_.SharesChanged();
      Start(clients_.front());
    }
  } else if (!clients_.empty()) {
    if (overdue_.Update(clients_, now)) shared_.reset();
    if (!plans_.are_shared()) DividePages(now);
    WakeWaiting();
  }
  plans_.Update();
  StartTouched();
  if (plans_.are_shared()) HandOver();
  if (const auto next = free_pages_.Next(clients_, tenants_)) maker_->MakePage(*next);
  EraseReleased();
}

// A plan may have come within a call of another client.
void PageScheduler::StartTouched() {
  for (const ClientId client : plans_.TakePlanned()) {
    if (HasClient(client)) Touch(client);
  }
  auto touched = std::exchange(touched_, {});
  std::sort(touched.begin(), touched.end());
  for (const ClientId client : touched) Start(&Of(client));
}

void PageScheduler::Start(ScheduledClient* client) {
  client->Start();
  if (client->executor().books().view().limits.in_place)
    client->WakeIfFits(demands_.MayHold(*client, pages_));
  started_.push_back(client->id());
  demands_.Mark(client->id());
}

void PageScheduler::WakeWaiting() {
  demands_.Refresh();
  if (!demands_.AnyWaits()) return;
  for (ScheduledClient* client : clients_) {
    if (client->WakeIfFits(demands_.MayHold(*client, pages_))) started_.push_back(client->id());
  }
}

// Where all fits, shares that suffice stay as they are.
void PageScheduler::DividePages(Duration now) {
  if (plans_.TakeEnded()) shared_.reset();
  demands_.Refresh();
  const bool divides = !shared_ || turn_ || demands_.AnyLacks() || !demands_.Fit(pages_);
  if (!turn_ && shared_ == demands_.version()) return;
  const bool is_first = !std::exchange(shared_, demands_.version());
  if (!divides) return;
  std::vector<decide::PageDemand> demands(demands_.demands().begin(), demands_.demands().end());
  turn_ = decide::NextTurn(turn_, demands, pages_, now);
  if (turn_) demands[turn_->client].has_turn = true;
  if (!is_first && demands == divided_) return;
  divided_ = std::move(demands);
  const auto shares = tenants_.Share(divided_, clients_, pages_ - std::min(pages_, overdue_.sum()));
  free_pages_.SharesChanged();
  for (size_t i = 0; i < clients_.size(); ++i) {
    if (clients_[i]->SetShare(shares[i])) Start(clients_[i]);
  }
}

// Free pages go to clients that need them sooner than their owners. Where a call waits and no
// page is free, an idle unit leaves.
void PageScheduler::HandOver() {
  for (;;) {
    needs_.clear();
    for (const ScheduledClient* client : clients_)
      needs_.push_back(decide::NeedOf(client->executor().books().view()));
    if (const auto transfer = decide::NextTransfer(needs_, options_.making)) {
      free_pages_.AssignAhead(&clients_[transfer->to]->executor());
      RAVEN_CHECK(clients_[transfer->from]->executor().ReleasePage());
      continue;
    }
    const auto leaves = decide::NextToLeave(needs_);
    if (!leaves) return;
    PageExecutor& executor = clients_[*leaves]->executor();
    if (!executor.Leave(executor.books().view().limits.page)) return;
    Start(clients_[*leaves]);
  }
}

void PageScheduler::EraseReleased() {
  std::erase_if(removed_, [this](ClientId id) {
    const PageExecutor& executor = Of(id).executor();
    if (!executor.IsQuiet() || free_pages_.making() == id || executor.books().memory().pages() > 0)
      return false;
    maker_->Discard(std::move(by_id_.extract(id).mapped()));
    std::erase(touched_, id);
    return true;
  });
}

}  // namespace ravenstore::core
