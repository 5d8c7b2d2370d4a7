#include "elastic/job_pages.h"

#include <algorithm>
#include <utility>

#include "core/books/page_views.h"
#include "core/check.h"
#include "core/plan/move_chooser.h"

namespace ravenstore::elastic {

using Arrival = core::PageScheduler::Arrival;
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
    : options_(std::move(options)),
      parts_(parts),
      maps_(parts, options_.page),
      scheduler_(scheduler) {}

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
  const auto held = std::count_if(memory_.begin(), memory_.end(),
                                  [](const auto& memory) { return memory.second->has_part; });
  return options_.page * static_cast<uint64_t>(held);
}

void JobPages::GiveHostPart(Part* part) {
  if (spare_ == nullptr) {
    spare_ = part;
  } else {
    parts_->Give(part);
  }
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
    if (!ok && (!failure_ || failure_->code == core::ErrorCode::kOutOfMemory))
      failure_ = order->status.error();
    if (order->report) order->report(ok);
  }
  return !ended.empty();
}

// ---- Physical pages.

uint32_t JobPages::MapsMost() const {
  return kMoves;
}

// The page's part is taken from it.
void JobPages::NoteDropped(const Page* page) {
  if (page == nullptr) return;
  const auto unit = static_cast<Unit>(2 * ((page->begin - options_.begin) / options_.page.count()));
  if (StateOf(unit).live == 0) stats_.dropped += options_.page;
}

bool JobPages::Map(const MapOrder& order) {
  Page* const page = &PageOf(order.unit);
  std::unique_ptr<Memory>& of = memory_[order.page];
  if (of == nullptr) of = std::make_unique<Memory>();
  Memory* const memory = of.get();
  const bool is_empty = StateOf(order.unit).live == 0;
  Page* const from = std::exchange(memory->expected, is_empty ? page : nullptr);
  if (is_empty && page->changing == 0 && page->of == memory) {
    options_.open->OpenPage(order.unit);
    return true;
  }
  if (from != page) NoteDropped(from);
  Begin({.changes = {page, from == page ? nullptr : from},
         .work =
             [=, this](const Status&, bool) {
               const Status moved = maps_.MoveTo(is_empty ? page : nullptr, memory);
               memory->was_at = memory->at;
               return moved;
             },
         .report =
             [=, this, unit = order.unit](bool ok) {
               if (!ok) memory->expected = memory->was_at;
               memory->has_part |= ok;
               if (ok && is_empty) options_.open->OpenPage(unit);
               scheduler_->Arrived(options_.client, unit, Arrival::kMapped, ok);
             }});
  return false;
}

void JobPages::Unmap(PhysicalPage number) {
  Memory* const memory = memory_.at(number).get();
  Begin({.changes = {std::exchange(memory->expected, nullptr)},
         .work =
             [=, this](const Status&, bool) {
               const Status left = memory->at == nullptr ? core::Ok() : maps_.Detach(memory->at);
               memory->was_at = memory->at;
               return left;
             },
         .report =
             [=, this](bool ok) {
               if (!ok) memory->expected = memory->was_at;
               scheduler_->Moved(options_.client).Unmapped(number);
             }});
}

void JobPages::Release(const core::plan::PageSupply::Released& page) {
  const auto report = [this](bool) { scheduler_->PageReleased(options_.client); };
  const auto found = memory_.extract(page.page);
  const std::shared_ptr<Memory> memory = found ? std::move(found.mapped()) : nullptr;
  if (memory != nullptr) NoteDropped(memory->expected);
  Begin({.changes = {memory == nullptr ? nullptr : memory->expected},
         .work = [=, this](const Status&, bool) -> Status {
           if (memory == nullptr || memory->part == nullptr) return core::Ok();
           // A part that is still mapped must not be taken by another page.
           if (memory->at != nullptr) RAVEN_RETURN_IF_ERROR(maps_.Detach(memory->at));
           parts_->Give(memory->part);
           return core::Ok();
         },
         .report = report});
}

void JobPages::Left(std::span<const Unit> units) {
  for (const Unit unit : units) {
    Page* const page = &PageOf(unit);
    const core::PageState life = StateOf(unit).life;
    // One that waits for a copy to begin may wait for calls that reach it where it is.
    const bool waits = life == core::PageState::kQueued || life == core::PageState::kMapping;
    if (life != core::PageState::kAway && !(waits && mode_.maps_away)) continue;
    Part* host = mode_.maps_away ? page->host : nullptr;
    Begin({.changes = {page}, .work = [=, this](const Status&, bool) mutable {
             return host != nullptr ? maps_.MapHost(page, &host) : maps_.Detach(page);
           }});
  }
}

// ---- Copies.

bool JobPages::CanCopyIn(PoolNumber /*pool*/, bool /*demanded*/) const {
  return !mode_.frozen && copies_[Index(Place::kDevice)] < kMoves;
}

bool JobPages::AnyLeaves() const {
  return mode_.copies_out && !mode_.frozen && copies_[Index(Place::kHost)] < kMoves &&
         core::plan::NextOut(executor().books().view(), 0).has_value();
}

bool JobPages::CanCopyOut(PoolNumber /*pool*/) const {
  if (!AnyLeaves()) return false;
  if (spare_ == nullptr) spare_ = parts_->TakeFree(Place::kHost, options_.page);
  return spare_ != nullptr;
}

bool JobPages::WantsHostPart() const {
  return spare_ == nullptr && AnyLeaves();
}

void JobPages::CopyIn(const CopyOrder& order) {
  Page* const page = &PageOf(order.unit);
  Memory* const memory = memory_.at(order.memory.page).get();
  ++copies_[Index(Place::kDevice)];
  Begin({.changes = {page},
         .work = [=, this](const Status& copied, bool is_written) -> Status {
           // Another page must not have a part that a copy may still write to.
           if (is_written) memory->part = nullptr;
           const Status moved = copied.ok() ? maps_.MoveTo(page, memory) : copied;
           memory->was_at = memory->at;
           return moved;
         },
         .report =
             [=, this, unit = order.unit](bool ok) {
               --copies_[Index(Place::kDevice)];
               memory->expected = memory->was_at;
               if (ok) stats_.moved_in += options_.page;
               if (ok) options_.open->OpenPage(unit);
               scheduler_->Arrived(options_.client, unit, Arrival::kCopiedIn, ok);
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
           if (page->mapped == host) RAVEN_RETURN_IF_ERROR(maps_.Detach(page));
           parts_->Give(host);
           return core::Ok();
         }});
}

void JobPages::MoveSlot(const core::PageMemory::SlotMove& /*move*/, Bytes /*bytes*/) {
  RAVEN_CHECK(false);  // no tensor has a slot
}

// ---- Calls.

bool JobPages::IsChanging(Unit unit) const {
  return unit / 2 < pages_.size() && pages_[unit / 2].changing > 0;
}

bool JobPages::CanReach(Unit unit) const {
  if (unit / 2 >= pages_.size() || IsChanging(unit)) return false;
  const Page& page = pages_[unit / 2];
  // A part of the device that is mapped there is that of the resident unit: others have left.
  if (StateOf(unit).IsResident()) return page.of != nullptr;
  return page.mapped != nullptr && page.mapped == page.host;
}

JobPages::Reach JobPages::BeginReach(Unit unit) {
  Page& page = PageOf(unit);
  ++page.changing;
  return {&page, StateOf(unit).IsResident() ? MemoryOf(unit) : nullptr, page.host};
}

Status JobPages::FinishReach(Reach* reach) {
  if (reach->memory != nullptr) return maps_.MoveTo(reach->page, reach->memory);
  return maps_.MapHost(reach->page, &reach->host);
}

void JobPages::EndReach(const Reach& reach) {
  --reach.page->changing;
  if (reach.memory == nullptr) reach.page->host = reach.host;
  if (reach.memory != nullptr) reach.memory->expected = reach.memory->at;
}

}  // namespace ravenstore::elastic
