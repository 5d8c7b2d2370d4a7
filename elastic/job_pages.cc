#include "elastic/job_pages.h"

#include <utility>

#include "core/books/page_views.h"
#include "core/check.h"
#include "core/plan/move_chooser.h"

namespace ravenstore::elastic {

using core::Bytes;
using core::Status;
using core::plan::PhysicalPage;
using core::plan::PoolNumber;
using core::plan::Unit;

namespace {

// Moves under way in each direction: one is copied, the next is there when that ends, and one is
// mapped.
constexpr size_t kMoves = 3;

}  // namespace

JobPages::JobPages(Options options, Parts* parts, core::PageScheduler* scheduler)
    : options_(std::move(options)), parts_(parts), scheduler_(scheduler) {}

JobPages::~JobPages() {
  if (spare_ != nullptr) parts_->Give(spare_);
}

JobPages::Page& JobPages::PageOf(Unit unit) {
  while (pages_.size() <= unit / 2) {
    pages_.emplace_back();
    pages_.back().begin = options_.begin + (options_.page * (pages_.size() - 1)).count();
  }
  return pages_[unit / 2];
}

JobPages::Memory* JobPages::MemoryOf(Unit unit) const {
  return memory_.at(core::PlaceOf(executor().books(), unit).page).get();
}

Bytes JobPages::held() const {
  return options_.page * memory_.size();
}

// ---- Orders.

void JobPages::Begin(Order order, Part* from, Part* to) {
  ++orders_;
  for (Page* page : order.changes) {
    if (page != nullptr) ++page->changing;
  }
  const auto begun = std::make_shared<Order>(std::move(order));
  mover_->Begin({.page = {},
                 .at = 0,
                 .there = {from, false},
                 .to = to,
                 .maps = false,
                 .copies = to != nullptr,
                 .then = [this, begun](const Status& copied, bool is_written) {
                   begun->status = begun->work(copied, is_written);
                   End(begun);
                 }});
}

void JobPages::End(const std::shared_ptr<Order>& order) {
  {
    const std::lock_guard lock(mutex_);
    ended_.push_back(order);
  }
  options_.ended();
}

bool JobPages::Report() {
  std::vector<std::shared_ptr<Order>> ended;
  {
    const std::lock_guard lock(mutex_);
    ended.swap(ended_);
  }
  for (const auto& order : ended) {
    --orders_;
    for (Page* page : order->changes) {
      if (page != nullptr) --page->changing;
    }
    const bool ok = order->status.ok();
    if (!ok) {
      const bool is_short = order->status.error().code == core::ErrorCode::kOutOfMemory;
      is_short_ |= is_short;
      if (!is_short) failure_ = order->status;
    }
    if (order->report) order->report(ok);
  }
  return !ended.empty();
}

// ---- Mappings, by the thread that changes the pages.

Status JobPages::Detach(Page* page) {
  if (page->mapped == nullptr) return core::Ok();
  RAVEN_RETURN_IF_ERROR(parts_->Unmap(page->begin, *page->mapped));
  page->mapped = nullptr;
  if (page->of != nullptr) page->of->at = nullptr;
  page->of = nullptr;
  return core::Ok();
}

Status JobPages::MoveTo(Page* page, Memory* memory) {
  if (memory->part == nullptr) {
    RAVEN_ASSIGN_OR_RETURN(memory->part, parts_->Take(Place::kDevice, options_.page));
  }
  if (memory->at == page && page != nullptr) return core::Ok();
  if (memory->at != nullptr) RAVEN_RETURN_IF_ERROR(Detach(memory->at));
  if (page == nullptr) return core::Ok();
  RAVEN_RETURN_IF_ERROR(Detach(page));
  RAVEN_RETURN_IF_ERROR(parts_->Map(page->begin, *memory->part));
  page->mapped = memory->part;
  page->of = memory;
  memory->at = page;
  return core::Ok();
}

Status JobPages::MapHost(Page* page, const Part* host) {
  if (page->mapped == host) return core::Ok();
  RAVEN_RETURN_IF_ERROR(Detach(page));
  RAVEN_RETURN_IF_ERROR(parts_->Map(page->begin, *host));
  page->mapped = host;
  return core::Ok();
}

// ---- Physical pages.

uint32_t JobPages::MapsMost() const {
  return kMoves;
}

bool JobPages::Map(const MapOrder& order) {
  Page* const page = &PageOf(order.unit);
  std::unique_ptr<Memory>& of = memory_[order.page];
  if (of == nullptr) of = std::make_unique<Memory>();
  Memory* const memory = of.get();
  const bool is_empty = StateOf(order.unit).live == 0;
  Page* const from = std::exchange(memory->expected, is_empty ? page : nullptr);
  if (from != nullptr && from != page) {
    const auto unit =
        static_cast<Unit>(2 * ((from->begin - options_.begin) / options_.page.count()));
    if (StateOf(unit).live == 0) stats_.dropped += options_.page;
  }
  Begin(
      {.changes = {page, from == page ? nullptr : from},
       .work = [=, this](const Status&, bool) { return MoveTo(is_empty ? page : nullptr, memory); },
       .report =
           [=, this, unit = order.unit](bool ok) {
             if (!ok) memory->expected = memory->at;
             scheduler_->Mapped(options_.client, unit, ok);
           }});
  return false;
}

void JobPages::Unmap(PhysicalPage number) {
  Memory* const memory = memory_.at(number).get();
  Begin(
      {.changes = {std::exchange(memory->expected, nullptr)},
       .work = [=, this](const Status&,
                         bool) { return memory->at == nullptr ? core::Ok() : Detach(memory->at); },
       .report =
           [=, this](bool ok) {
             if (!ok) memory->expected = memory->at;
             scheduler_->Moved(options_.client).Unmapped(number);
           }});
}

void JobPages::Release(const core::plan::PageSupply::Released& page) {
  const auto report = [this](bool) { scheduler_->PageReleased(options_.client); };
  const auto found = memory_.extract(page.page);
  const std::shared_ptr<Memory> memory = found ? std::move(found.mapped()) : nullptr;
  Begin({.changes = {memory == nullptr ? nullptr : memory->expected},
         .work = [=, this](const Status&, bool) -> Status {
           if (memory == nullptr || memory->part == nullptr) return core::Ok();
           // A part that is mapped still is nobody's.
           if (memory->at != nullptr) RAVEN_RETURN_IF_ERROR(Detach(memory->at));
           parts_->Give(memory->part);
           return core::Ok();
         },
         .report = report});
}

void JobPages::Left(std::span<const Unit> units) {
  for (const Unit unit : units) {
    Page* const page = &PageOf(unit);
    if (StateOf(unit).life != core::PageState::kAway) continue;
    Part* const host = maps_away_ ? page->host : nullptr;
    Begin({.changes = {page}, .work = [=, this](const Status&, bool) {
             return host != nullptr ? MapHost(page, host) : Detach(page);
           }});
  }
}

// ---- Copies.

bool JobPages::CanCopyIn(PoolNumber /*pool*/, bool /*demanded*/) const {
  return copies_[Index(Place::kDevice)] < kMoves;
}

bool JobPages::CanCopyOut(PoolNumber /*pool*/) const {
  if (!copies_out_ || copies_[Index(Place::kHost)] >= kMoves) return false;
  if (spare_ == nullptr) spare_ = parts_->TakeFree(Place::kHost, options_.page);
  return spare_ != nullptr;
}

bool JobPages::WantsHostPart() const {
  return copies_out_ && spare_ == nullptr && copies_[Index(Place::kHost)] < kMoves &&
         core::plan::NextOut(executor().books().view(), 0).has_value();
}

void JobPages::CopyIn(const CopyOrder& order) {
  Page* const page = &PageOf(order.unit);
  Memory* const memory = memory_.at(order.memory.page).get();
  ++copies_[Index(Place::kDevice)];
  Begin({.changes = {page},
         .work = [=, this](const Status& copied, bool is_written) -> Status {
           if (copied.ok()) return MoveTo(page, memory);
           // Another page must not have a part that a copy may still write to.
           if (is_written) memory->part = nullptr;
           return copied;
         },
         .report =
             [=, this, unit = order.unit](bool ok) {
               --copies_[Index(Place::kDevice)];
               memory->expected = memory->at;
               if (ok) stats_.moved_in += options_.page;
               scheduler_->CopiedIn(options_.client, unit, ok);
             }},
        page->host, memory->part);
}

void JobPages::CopyOut(const CopyOrder& order) {
  Page* const page = &PageOf(order.unit);
  Part* const host = std::exchange(spare_, nullptr);
  ++copies_[Index(Place::kHost)];
  Begin({.changes = {},
         .work = [=, this](const Status& copied, bool is_written) -> Status {
           if (!copied.ok() && !is_written) parts_->Give(host);
           return copied;
         },
         .report =
             [=, this, unit = order.unit](bool ok) {
               --copies_[Index(Place::kHost)];
               if (ok) stats_.moved_out += options_.page;
               if (ok) page->host = host;
               scheduler_->Moved(options_.client).CopiedOut(unit, ok);
             }},
        memory_.at(order.memory.page)->part, host);
}

void JobPages::FreeCopy(Unit unit, PoolNumber /*pool*/) {
  Page* const page = &PageOf(unit);
  Part* const host = std::exchange(page->host, nullptr);
  if (host == nullptr) return;
  if (page->changing == 0 && page->mapped != host) return parts_->Give(host);
  Begin({.changes = {page}, .work = [=, this](const Status&, bool) -> Status {
           if (page->mapped == host) RAVEN_RETURN_IF_ERROR(Detach(page));
           parts_->Give(host);
           return core::Ok();
         }});
}

void JobPages::MoveSlot(const core::PageMemory::SlotMove& /*move*/, Bytes /*bytes*/) {
  RAVEN_CHECK(false);  // no tensor has a slot
}

bool JobPages::MoveCopy(const CopyMove& /*move*/) {
  RAVEN_CHECK(false);
  return false;
}

// ---- Calls.

const Part* JobPages::PartOf(Unit unit) const {
  if (StateOf(unit).IsResident()) return MemoryOf(unit)->part;
  return unit / 2 < pages_.size() ? pages_[unit / 2].host : nullptr;
}

bool JobPages::IsChanging(Unit unit) const {
  return unit / 2 < pages_.size() && pages_[unit / 2].changing > 0;
}

bool JobPages::CanReach(Unit unit) const {
  if (unit / 2 >= pages_.size() || IsChanging(unit)) return false;
  const Page& page = pages_[unit / 2];
  return page.mapped != nullptr && page.mapped == PartOf(unit);
}

JobPages::Reach JobPages::BeginReach(Unit unit) {
  Page& page = PageOf(unit);
  ++page.changing;
  return {&page, StateOf(unit).IsResident() ? MemoryOf(unit) : nullptr, page.host};
}

Status JobPages::FinishReach(Reach* reach) {
  if (reach->memory != nullptr) return MoveTo(reach->page, reach->memory);
  if (reach->host == nullptr) {
    RAVEN_ASSIGN_OR_RETURN(reach->host, parts_->Take(Place::kHost, options_.page));
  }
  return MapHost(reach->page, reach->host);
}

void JobPages::EndReach(const Reach& reach) {
  --reach.page->changing;
  if (reach.memory == nullptr) reach.page->host = reach.host;
  if (reach.memory != nullptr) reach.memory->expected = reach.memory->at;
}

}  // namespace ravenstore::elastic
