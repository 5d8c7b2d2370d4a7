#include "tests/core/execution/page_world.h"

#include <algorithm>
#include <utility>

#include "core/plan/residency_plan.h"

namespace ravenstore::core {

using plan::Unit;
using plan::UnitSpan;

namespace {
constexpr Bytes kCell = kExtentAlignment;
constexpr size_t kTensorsMost = 40;
constexpr uint64_t kGarbage = ~uint64_t{0};
}  // namespace

PageWorld::PageWorld(const Options& options, plan::Random* random)
    : options_(options), random_(random), page_(kCell * options.cells_per_page) {
  Begin();
}

void PageWorld::Begin() {
  std::vector<plan::CopyPool> pools;
  for (const Bytes capacity : options_.pools)
    pools.push_back({.capacity = capacity, .in_rate = 1e9, .out_rate = 1e9});
  const PageBooks::Options books{.limits = {.page = page_, .pages = options_.pages, .pools = pools},
                                 .coming_most = page_ * 3};
  executor_ = std::make_unique<PageExecutor>(books, this);
  places_ = std::make_unique<plan::Places>(
      plan::SmallTensorRule{.page = page_, .largest_slot = options_.slots ? page_ : Bytes{}});
  physical_.resize(options_.pages, Cells(options_.cells_per_page, kGarbage));
  mapped_.clear();
  copies_.clear();
  copies_in_.assign(options_.pools.size(), 0);
  copies_out_.assign(options_.pools.size(), 0);
  tensors_.clear();
  live_.clear();
  kept_.clear();
  enqueued_ = executed_ = 0;
  position_ = 0;
}

void PageWorld::Fail(const std::string& what) {
  if (fault_.empty()) fault_ = what;
}

std::string PageWorld::Describe() const {
  const PageBooks& books = executor_->books();
  std::string text =
      "copies " + std::to_string(books.copies().pools().used().count() / page_.count()) + " pages";
  for (Unit unit = 0; unit < books.view().units.size(); ++unit) {
    const auto& state = books[unit];
    if (state.live == 0 && !state.InUse() && state.life == PageState::kAway) continue;
    text += "; unit " + std::to_string(unit) + " " + std::to_string(static_cast<int>(state.life)) +
            (state.InUse() ? " in use" : "") + (state.forced ? " forced" : "") +
            (state.contested ? " contested" : "") + " live " + std::to_string(state.live);
  }
  for (const TensorNumber tensor : live_) {
    const Tensor& of = tensors_[tensor];
    text += "; tensor " + std::to_string(tensor) + " word " +
            std::to_string(static_cast<int>(of.word)) + (of.has_request ? " waits" : "") +
            " units " + std::to_string(of.units.first) + "+" + std::to_string(of.units.count);
  }
  text += "; pages " + std::to_string(options_.pages) + ", pools of";
  for (const Bytes pool : options_.pools)
    text += " " + std::to_string(pool.count() / page_.count());
  return text;
}

// ---- What happens.

void PageWorld::Step() {
  if (options_.kills > 0 && random_->OneIn(options_.kills)) return Kill();
  const uint64_t choice = random_->Below(17);
  if (choice < 5) {
    Client();
  } else if (choice < 8) {
    if (random_->OneIn(options_.lateness)) RunKernel();
  } else if (choice < 10) {
    HandleReports(1 + random_->Below(4));
  } else if (choice < 11) {
    HandleTickets();
  } else if (choice < 14) {
    if (random_->OneIn(options_.slowness)) CompleteOne();
  } else if (choice < 15 && options_.plans && random_->OneIn(4)) {
    ChangePlan();
  } else if (choice < 15 && options_.shares && random_->OneIn(4)) {
    ChangeShare(static_cast<uint32_t>(1 + random_->Below(options_.pages)));
  } else if (choice < 15 && options_.losses) {
    ChangePools();
  } else if (choice < 16) {
    executor_->Start();
    HandleGrants();
    RefuseIfStuck();
  } else {
    MoveToSlots();
  }
  CheckBooks(executor_->books());
  for (const auto& [unit, page] : kept_) {
    if (mapped_.count(unit) == 0 || mapped_[unit] != page) Fail("memory kept in place was moved");
  }
}

bool PageWorld::IsIdle() const {
  return reports_.empty() && stream_.empty() && pending_.empty() && under_way_.empty();
}

void PageWorld::RefuseIfStuck() {
  if (!IsIdle()) return;
  const std::vector<TensorNumber> tensors = live_;
  for (const TensorNumber tensor : tensors) {
    if (!executor_->Waits(tensor)) continue;
    executor_->Refuse(tensor);
    ++counts_.stuck;
  }
}

void PageWorld::Finish() {
  EndKeeps();
  ChangeShare(options_.pages);
  for (plan::PoolNumber pool = 0; pool < options_.pools.size(); ++pool)
    SetPoolCapacity(pool, options_.pools[pool]);
  for (const TensorNumber tensor : std::vector<TensorNumber>(live_)) {
    for (int i = 0; i < 2000 && fault_.empty(); ++i) {
      if (tensors_[tensor].word == Word::kInUse && !tensors_[tensor].has_request) break;
      if (!tensors_[tensor].has_request) Get(tensor);
      // What others use gives way.
      TensorNumber other = 0;
      if (Find(Word::kInUse, &other) && other != tensor) End(other);
      while (RunKernel()) continue;
      HandleReports(100);
      HandleTickets();
      CompleteOne();
      executor_->Start();
      HandleGrants();
      RefuseIfStuck();
    }
    if (!fault_.empty()) return;
    const Tensor& last = tensors_[tensor];
    if (last.word == Word::kFreed) continue;
    // Since it was discarded, others have its place.
    const bool is_discarded = executor_->tensors()[tensor].is_discarded();
    if (is_discarded && !executor_->CanCreate(last.units)) continue;
    if (last.word != Word::kInUse)
      return Fail("tensor " + std::to_string(tensor) + " did not come back: " + Describe());
    stream_.push_back({Kernel::Kind::kRead, tensor, last.in_place});
    ++enqueued_;
    RunKernels();
    if (tensors_[tensor].word == Word::kInUse) End(tensor);
  }
  Kill();
}

void PageWorld::Kill() {
  ++counts_.kills;
  reports_.clear();
  stream_.clear();
  pending_.clear();
  granted_.clear();
  granted_early_.clear();
  executor_->Retire();
  executor_->Start();
  while (!under_way_.empty()) {
    CompleteOne();
    executor_->Start();
  }
  if (!executor_->IsQuiet()) Fail("a retired client's executor is not quiet");
  CheckBooks(executor_->books());
  if (executor_->books().copies().pools().used() > Bytes{}) Fail("a retired client left copies");
  if (!copies_.empty()) Fail("the memory of a copy is not freed");
  counts_.in += executor_->stats().in;
  counts_.out += executor_->stats().out;
  counts_.not_revoked += executor_->stats().not_revoked;
  counts_.dropped_copies += executor_->stats().dropped_copies;
  counts_.to_slots += executor_->stats().to_slots;
  Begin();
}

// ---- The client.

bool PageWorld::Find(Word word, TensorNumber* tensor) {
  if (live_.empty()) return false;
  const size_t first = random_->Below(live_.size());
  for (size_t i = 0; i < live_.size(); ++i) {
    *tensor = live_[(first + i) % live_.size()];
    if (tensors_[*tensor].word == word && !tensors_[*tensor].has_request) return true;
  }
  return false;
}

void PageWorld::Client() {
  TensorNumber tensor = 0;
  const uint64_t choice = random_->Below(12);
  if (choice < 2) {
    if (live_.size() < kTensorsMost) Create();
  } else if (choice < 4) {
    if (Find(Word::kIdle, &tensor)) Get(tensor);
  } else if (choice < 6) {
    if (Find(Word::kAway, &tensor)) Get(tensor);
  } else if (choice < 9) {
    if (!Find(Word::kInUse, &tensor)) return;
    const bool writes = random_->OneIn(3);
    tensors_[tensor].writes |= writes;
    const auto kind = writes ? Kernel::Kind::kWrite : Kernel::Kind::kRead;
    stream_.push_back({kind, tensor, tensors_[tensor].in_place});
    ++enqueued_;
  } else if (choice < 11) {
    if (Find(Word::kInUse, &tensor)) End(tensor);
  } else if (random_->OneIn(2)) {
    if (Find(Word::kInUse, &tensor)) Keep(tensor);
  } else if (random_->OneIn(4) && Find(random_->OneIn(2) ? Word::kIdle : Word::kAway, &tensor)) {
    tensors_[tensor].word = Word::kFreed;
    live_.erase(std::find(live_.begin(), live_.end(), tensor));
    reports_.push_back({Report::Kind::kFreeIdle, tensor, false, enqueued_});
  }
}

void PageWorld::Create() {
  const uint64_t most = random_->OneIn(4) ? 3 * options_.cells_per_page : 6;
  const uint64_t cells = 1 + random_->Below(most);
  const auto tensor = static_cast<TensorNumber>(tensors_.size());
  tensors_.push_back({.size = kCell * cells, .expected = Cells(cells, 0), .has_request = true});
  live_.push_back(tensor);
  reports_.push_back({Report::Kind::kCreate, tensor});
}

void PageWorld::Get(TensorNumber tensor) {
  Tensor& of = tensors_[tensor];
  of.writes = false;
  if (of.word == Word::kIdle) {
    of.word = Word::kInUse;
    ++of.uses;
    reports_.push_back({Report::Kind::kGet, tensor});
  } else if (of.word == Word::kAway) {
    of.has_request = true;
    reports_.push_back({Report::Kind::kGetAsked, tensor});
  }
}

// A put, or a free.
void PageWorld::End(TensorNumber tensor) {
  Tensor& of = tensors_[tensor];
  const bool frees = of.broken || random_->OneIn(16);
  of.word = frees ? Word::kFreed : of.in_place.empty() ? Word::kIdle : Word::kAway;
  if (frees) live_.erase(std::find(live_.begin(), live_.end(), tensor));
  reports_.push_back(
      {frees ? Report::Kind::kFree : Report::Kind::kPut, tensor, of.writes, enqueued_});
}

// The executor handles it immediately, as a call that waits for its answer.
void PageWorld::Keep(TensorNumber tensor) {
  HandleReports(reports_.size());
  const UnitSpan& units = tensors_[tensor].units;
  if (!kept_.empty()) {
    EndKeeps();
  } else if (!units.is_slot() && tensors_[tensor].in_place.empty()) {
    executor_->KeepInPlace(units);
    for (uint32_t i = 0; i < units.count; ++i) kept_[units[i]] = mapped_[units[i]];
  }
}

void PageWorld::EndKeeps() {
  for (const auto& [unit, page] : kept_) executor_->EndKeepInPlace({unit, 1});
  kept_.clear();
}

// ---- The stream.

void PageWorld::SetSlot(Tensor* tensor) const {
  const Unit slot = tensor->units.first;
  if (!tensor->units.is_slot() || tensor->in_place.count(slot) > 0) return;
  tensor->slot = PlaceOf(executor_->books(), slot);
}

uint64_t* PageWorld::CellAt(const Tensor& tensor, const Copies& in_place, uint64_t cell) {
  const auto copy_cell = [&](Unit unit, uint64_t i) -> uint64_t* {
    const auto copy = copies_.find({in_place.at(unit), unit});
    return copy == copies_.end() ? nullptr : &copy->second[i];
  };
  if (in_place.count(tensor.units.first) > 0 && tensor.units.is_slot())
    return copy_cell(tensor.units.first, cell);
  if (tensor.units.is_slot()) {
    return &physical_[tensor.slot.page][tensor.slot.offset.count() / kCell.count() + cell];
  }
  const uint64_t at = tensor.place.at / kCell.count() + cell;
  const Unit page = static_cast<Unit>(at / options_.cells_per_page) * 2;
  if (in_place.count(page) > 0) return copy_cell(page, at % options_.cells_per_page);
  const auto found = mapped_.find(page);
  if (found == mapped_.end()) return nullptr;
  return &physical_[found->second][at % options_.cells_per_page];
}

bool PageWorld::RunKernel() {
  if (stream_.empty()) return false;
  const Kernel kernel = stream_.front();
  if (kernel.kind == Kernel::Kind::kAwait && granted_early_.count(kernel.tensor) > 0) return false;
  stream_.pop_front();
  ++executed_;
  if (kernel.kind == Kernel::Kind::kAwait) return true;
  Tensor& tensor = tensors_[kernel.tensor];
  const bool fills = kernel.kind == Kernel::Kind::kFill;
  const bool writes = fills || kernel.kind == Kernel::Kind::kWrite;
  if (writes) ++stamp_;
  counts_.reads += writes ? 0 : 1;
  for (uint64_t i = 0; i < tensor.expected.size() && fault_.empty(); ++i) {
    uint64_t* cell = CellAt(tensor, kernel.in_place, i);
    if (cell == nullptr) {
      Fail("a kernel used unmapped memory");
    } else if (fills || (writes && !random_->OneIn(4))) {
      *cell = tensor.expected[i] = stamp_;
    } else if (*cell != tensor.expected[i] && !tensor.broken) {
      Fail("tensor " + std::to_string(kernel.tensor) + " has wrong bytes");
    }
  }
  return true;
}

void PageWorld::RunKernels() {
  while (!stream_.empty() && fault_.empty()) {
    if (RunKernel()) continue;
    CompleteOne();
    executor_->Start();
    HandleGrants();
  }
}

// ---- The executor's side of the client.

void PageWorld::HandleReports(uint64_t most) {
  for (; most > 0 && !reports_.empty(); --most) {
    const Report report = reports_.front();
    reports_.pop_front();
    HandleReport(report);
  }
}

void PageWorld::HandleReport(const Report& report) {
  using Kind = Report::Kind;
  Tensor& tensor = tensors_[report.tensor];
  // The client did not know of the loss yet.
  if (tensor.broken && (report.kind == Kind::kGet || report.kind == Kind::kPut)) return;
  if (report.kind == Kind::kCreate) {
    places_->SetLargestSlot(options_.slots && random_->OneIn(2) ? page_ : Bytes{});
    tensor.place = places_->Allocate(tensor.size);
    tensor.units = places_->UnitsOf(tensor.place, tensor.size);
    if (!executor_->CanCreate(tensor.units)) return RefuseCreate(report.tensor);
    executor_->Place(report.tensor, tensor.units, places_->OffsetOf(tensor.place), tensor.size);
  }
  if (report.kind == Kind::kGetAsked && tensor.lost) {
    tensor.has_request = false;
    tensor.word = Word::kFreed;
    live_.erase(std::find(live_.begin(), live_.end(), report.tensor));
    if (!tensor.units.is_slot()) places_->Free(tensor.place, tensor.size);
    RemoveTensor(report.tensor);
  } else if (report.kind == Kind::kCreate || report.kind == Kind::kGetAsked) {
    if (UseInPlace(report.tensor)) return HandleGrants();
    if (decide::Admit(CallIn(executor_->books(), tensor.units)) != decide::Admission::kNow)
      return Refuse(report.tensor);
    // It lives again, which needs a place as a create does.
    const bool begins = executor_->tensors()[report.tensor].is_discarded();
    if (begins && !executor_->CanCreate(tensor.units)) return Refuse(report.tensor);
    if (executor_->Pin(report.tensor)) granted_.push_back(report.tensor);
    HandleGrants();
  } else if (report.kind == Kind::kGet) {
    const bool resides = executor_->Pin(report.tensor);
    if (!resides && granted_early_.count(report.tensor) == 0 && !tensor.broken)
      Fail("a tensor that was in use had left");
  } else {
    Report ends = report;
    ends.unpins = executor_->tensors()[report.tensor].pinned;
    ends.in_place = executor_->tensors()[report.tensor].in_place;
    if (ends.in_place && options_.ends_early) ends.ticket = 0;
    if (ends.unpins) executor_->Unpin(report.tensor);
    const bool recomputes = options_.recomputes && random_->OneIn(2);
    if (report.kind == Kind::kPut) executor_->SetRecomputes(report.tensor, recomputes);
    // The stream's own order lets a later create have the addresses immediately.
    const bool frees = report.kind != Kind::kPut;
    if (frees && !tensor.units.is_slot()) places_->Free(tensor.place, tensor.size);
    pending_.push_back(ends);
  }
}

void PageWorld::HandleTickets() {
  using Kind = Report::Kind;
  while (!pending_.empty() && pending_.front().ticket <= executed_) {
    const Report report = pending_.front();
    pending_.erase(pending_.begin());
    const bool frees = report.kind != Kind::kPut;
    const bool lives = executor_->tensors()[report.tensor].lives();
    const bool modifies = lives && !frees && report.modified;
    if (report.in_place) {
      executor_->in_place().End(report.tensor, modifies);
    } else if (modifies) {
      executor_->Modify(report.tensor);
    }
    if (lives && frees) executor_->End(report.tensor);
    if (report.unpins && !report.in_place) executor_->Reach(report.tensor);
    // Since its bytes did not come, it has held its pages until now.
    if (frees && executor_->tensors()[report.tensor].pinned) {
      executor_->Unpin(report.tensor);
      executor_->Reach(report.tensor);
    }
    if (frees) RemoveTensor(report.tensor);
  }
}

void PageWorld::RemoveTensor(TensorNumber tensor) {
  const Tensor& of = tensors_[tensor];
  if (of.units.is_slot()) places_->Free(of.place, of.size);
  executor_->Remove(tensor);
}

void PageWorld::HandleGrants() {
  for (const TensorNumber number : std::exchange(granted_, {})) {
    Tensor& tensor = tensors_[number];
    if (!tensor.has_request) continue;  // a use of a tensor granted early, without a request
    if (!executor_->tensors()[number].in_place) tensor.in_place.clear();
    const bool lives = executor_->tensors()[number].lives();
    if (!lives || !tensor.created) {
      counts_.recomputed += tensor.created ? 1 : 0;
      tensor.created = true;
      if (!lives) executor_->Begin(number);
      SetSlot(&tensor);
      for (uint64_t i = 0; i < tensor.expected.size(); ++i) {
        uint64_t* cell = CellAt(tensor, tensor.in_place, i);
        if (cell == nullptr) return Fail("a created tensor has no memory");
      }
      // Its first kernel writes all of it.
      stream_.push_back({Kernel::Kind::kFill, number, tensor.in_place});
      ++enqueued_;
      tensor.writes = true;
    }
    tensor.word = Word::kInUse;
    tensor.uses = executor_->tensors()[number].uses;
    tensor.has_request = false;
    SetSlot(&tensor);
  }
}

bool PageWorld::UseInPlace(TensorNumber number) {
  if (!options_.in_place || random_->OneIn(2)) return false;
  if (!CanUseInPlace(executor_->books(), executor_->tensors(), number)) return false;
  Tensor& tensor = tensors_[number];
  const auto call = CallIn(executor_->books(), tensor.units, true);
  if (decide::Admit(call) != decide::Admission::kNow) return false;
  executor_->in_place().Begin(number);
  tensor.in_place.clear();
  for (uint32_t i = 0; i < tensor.units.count; ++i) {
    const Unit unit = tensor.units[i];
    const plan::UnitState& state = executor_->books()[unit];
    if (state.IsResident()) continue;
    if (tensor.in_place.empty()) ++(tensor.created ? counts_.in_place : counts_.created_away);
    tensor.in_place[unit] = state.pool;
  }
  granted_.push_back(number);
  return true;
}

bool PageWorld::Revoke(TensorNumber tensor, uint32_t uses) {
  Tensor& of = tensors_[tensor];
  if (of.word != Word::kIdle || of.uses != uses) return false;
  of.word = Word::kAway;
  return true;
}

void PageWorld::Publish(TensorNumber tensor) {
  Tensor& of = tensors_[tensor];
  if (of.word == Word::kAway) of.word = Word::kIdle;
  of.in_place.clear();
  SetSlot(&of);
}

void PageWorld::Grant(TensorNumber tensor) {
  granted_.push_back(tensor);
}

void PageWorld::Refuse(TensorNumber tensor) {
  ++counts_.refused;
  Tensor& of = tensors_[tensor];
  of.has_request = false;
  if (of.created) return;
  RefuseCreate(tensor);
  executor_->Remove(tensor);
}

bool PageWorld::GrantEarly(TensorNumber tensor) {
  Tensor& of = tensors_[tensor];
  if (!of.has_request || random_->OneIn(3)) return false;
  ++counts_.granted_early;
  of.in_place.clear();
  of.word = Word::kInUse;
  of.uses = executor_->tensors()[tensor].uses;
  of.has_request = false;
  SetSlot(&of);
  granted_early_.insert(tensor);
  stream_.push_back({Kernel::Kind::kAwait, tensor});
  ++enqueued_;
  return true;
}

// The client frees a tensor that is lost when it sees that.
void PageWorld::Break(TensorNumber tensor) {
  ++counts_.broken;
  Tensor& of = tensors_[tensor];
  granted_early_.erase(tensor);
  of.broken = true;
  if (of.word != Word::kIdle) return;
  of.word = Word::kFreed;
  live_.erase(std::find(live_.begin(), live_.end(), tensor));
  reports_.push_back({Report::Kind::kFreeIdle, tensor, false, enqueued_});
}

void PageWorld::RefuseCreate(TensorNumber tensor) {
  Tensor& of = tensors_[tensor];
  of.has_request = false;
  of.word = Word::kFreed;
  live_.erase(std::find(live_.begin(), live_.end(), tensor));
  places_->Free(of.place, of.size);
}

// ---- The device.

uint64_t PageWorld::CellsOf(Unit unit) const {
  return WeightOf(executor_->books(), unit).count() / kCell.count();
}

bool PageWorld::Map(const MapOrder& order) {
  // The old mapping is gone from the moment the mapper begins.
  if (order.steps.unmap) {
    std::erase_if(mapped_, [&](const auto& of) { return of.second == order.page; });
  }
  under_way_.push_back({.kind = UnderWay::Kind::kMap, .map = order});
  return false;
}

void PageWorld::Unmap(plan::PhysicalPage page) {
  std::erase_if(mapped_, [&](const auto& of) { return of.second == page; });
  under_way_.push_back({.kind = UnderWay::Kind::kUnmap, .page = page});
}

// Another client writes there.
void PageWorld::Release(const plan::PageSupply::Released& page) {
  ++counts_.released;
  const size_t mappings =
      std::erase_if(mapped_, [&](const auto& of) { return of.second == page.page; });
  if (mappings > 0 && !page.mapped) Fail("a page is released with its mapping");
  physical_[page.page].assign(options_.cells_per_page, kGarbage);
}

bool PageWorld::CanCopyIn(plan::PoolNumber pool, bool demanded) const {
  return copies_in_[pool] < 1 || (demanded && copies_in_[pool] < 2);
}

void PageWorld::CopyIn(const CopyOrder& order) {
  ++copies_in_[order.pool];
  under_way_.push_back({.kind = UnderWay::Kind::kIn, .copy = order});
}

void PageWorld::CopyOut(const CopyOrder& order) {
  ++copies_out_[order.pool];
  UnderWay of{.kind = UnderWay::Kind::kOut, .copy = order};
  const uint64_t first = order.memory.offset.count() / kCell.count();
  for (uint64_t i = 0; i < CellsOf(order.unit); ++i)
    of.cells.push_back(physical_[order.memory.page][first + i]);
  under_way_.push_back(of);
}

void PageWorld::FreeCopy(Unit unit, plan::PoolNumber pool) {
  for (const UnderWay& of : under_way_) {
    const bool is_copy = of.kind == UnderWay::Kind::kIn || of.kind == UnderWay::Kind::kOut;
    if (is_copy && of.copy.unit == unit) Fail("a copy is freed that is under way");
  }
  if (copies_.erase({pool, unit}) == 0) Fail("a copy is freed that is not there");
}

void PageWorld::MakeCopy(Unit unit, plan::PoolNumber pool) {
  if (HasCopy(unit)) Fail("a unit has two copies");
  copies_[{pool, unit}].assign(CellsOf(unit), kGarbage);
}

void PageWorld::MoveSlot(const PageMemory::SlotMove& move, Bytes bytes) {
  for (uint64_t i = 0; i < bytes.count() / kCell.count(); ++i) {
    physical_[move.to.page][move.to.offset.count() / kCell.count() + i] =
        physical_[move.from.page][move.from.offset.count() / kCell.count() + i];
  }
}

// What is copied before a failure is useless.
bool PageWorld::MoveCopy(const CopyMove& move) {
  const bool fails = options_.failures > 0 && random_->OneIn(options_.failures);
  const auto page = copies_.find({move.pool, move.page});
  if (page == copies_.end()) {
    Fail("a tensor moves from a pool without the copy of its page");
    return false;
  }
  const Cells from = page->second;
  const auto first =
      from.begin() + static_cast<ptrdiff_t>(move.page_offset.count() / kCell.count());
  const auto cells = static_cast<ptrdiff_t>(move.bytes.count() / kCell.count());
  if (move.slot_offset == Bytes{} && HasCopy(move.slot)) Fail("a slot has two copies");
  Cells& to = copies_[{move.pool, move.slot}];
  to.resize(move.slot_offset.count() / kCell.count());
  to.insert(to.end(), first, first + cells);
  if (fails) copies_.erase({move.pool, move.slot});
  return !fails;
}

void PageWorld::MoveToSlots() {
  std::vector<Unit> pages;
  executor_->TakeLeft(&pages);
  places_->SetLargestSlot(options_.slots ? page_ : Bytes{});
  for (const Unit page : pages) {
    const auto in_page = executor_->tensors().In(page);
    const std::vector<TensorNumber> tensors(in_page.begin(), in_page.end());
    for (const TensorNumber number : tensors) {
      Tensor& tensor = tensors_[number];
      const bool has_place = std::none_of(pending_.begin(), pending_.end(), [&](const Report& of) {
        return of.tensor == number && of.kind != Report::Kind::kPut;
      });
      if (!has_place || places_->rule().SlotsPerPage(tensor.size) == 0) continue;
      const plan::Place slot = places_->Allocate(tensor.size);
      const UnitSpan units = places_->UnitsOf(slot, tensor.size);
      if (executor_->MoveToSlot(number, units)) {
        places_->Free(std::exchange(tensor.place, slot), tensor.size);
        tensor.units = units;
      } else {
        places_->Free(slot, tensor.size);
      }
    }
  }
}

void PageWorld::CompleteOne() {
  if (under_way_.empty()) return;
  const size_t which = random_->Below(under_way_.size());
  const UnderWay of = under_way_[which];
  under_way_.erase(under_way_.begin() + static_cast<ptrdiff_t>(which));
  const bool is_copy = of.kind == UnderWay::Kind::kIn || of.kind == UnderWay::Kind::kOut;
  const bool fails =
      of.lost || (is_copy && options_.failures > 0 && random_->OneIn(options_.failures));
  counts_.failures += fails ? 1 : 0;
  switch (of.kind) {
    case UnderWay::Kind::kMap:
      if (!plan::IsSlot(of.map.unit)) mapped_[of.map.unit] = of.map.page;
      executor_->Mapped(of.map.unit);
      break;
    case UnderWay::Kind::kUnmap: executor_->Unmapped(of.page); break;
    case UnderWay::Kind::kIn: EndCopyIn(of, fails); break;
    case UnderWay::Kind::kOut: EndCopyOut(of, fails); break;
  }
}

void PageWorld::EndCopyIn(const UnderWay& of, bool fails) {
  --copies_in_[of.copy.pool];
  const Cells& copy = copies_[{of.copy.pool, of.copy.unit}];
  if (copy.empty()) Fail("a unit is copied in from a pool without its copy");
  const uint64_t first = of.copy.memory.offset.count() / kCell.count();
  for (uint64_t i = 0; i < copy.size(); ++i)
    physical_[of.copy.memory.page][first + i] = fails && i % 2 == 1 ? kGarbage : copy[i];
  executor_->CopiedIn(of.copy.unit, !fails);
}

bool PageWorld::HasCopy(Unit unit) const {
  return std::any_of(copies_.begin(), copies_.end(),
                     [unit](const auto& held) { return held.first.second == unit; });
}

void PageWorld::EndCopyOut(const UnderWay& of, bool fails) {
  --copies_out_[of.copy.pool];
  Cells copy = of.cells;
  const uint64_t first = of.copy.memory.offset.count() / kCell.count();
  for (uint64_t i = 0; i < copy.size(); ++i) {
    if (i % 2 == 1) copy[i] = physical_[of.copy.memory.page][first + i];
    if (fails) copy[i] = kGarbage;
  }
  if (HasCopy(of.copy.unit)) Fail("a unit has two copies");
  copies_[{of.copy.pool, of.copy.unit}] = copy;
  executor_->CopiedOut(of.copy.unit, !fails);
}

void PageWorld::SetPoolCapacity(plan::PoolNumber pool, Bytes capacity) {
  plan::CopyPool as = executor_->books().view().limits.pools[pool];
  as.capacity = capacity;
  executor_->books().SetPool(pool, as);
}

void PageWorld::ChangePools() {
  const auto pool = static_cast<plan::PoolNumber>(random_->Below(options_.pools.size()));
  const uint64_t choice = random_->Below(6);
  if (choice == 4) {
    MoveACopy();
  } else if (choice == 5) {
    const Bytes dropped = executor_->DropCopies(pool, page_ * random_->Below(3));
    if (dropped > Bytes{}) ++counts_.dropped_copies;
  } else if (choice < 2) {
    // Never more than in the end: creates that such a pool admits would find no place then.
    const Bytes all = options_.pools[pool];
    const Bytes less = std::min(all, page_ * random_->Below(2 * options_.pages));
    SetPoolCapacity(pool, choice == 0 ? all : less);
  } else if (choice < 3) {
    LoseCopy();
  } else if (executor_->books().view().units.size() > 0) {
    const auto unit = static_cast<Unit>(random_->Below(executor_->books().view().units.size()));
    if (executor_->books()[unit].live == 0) return;
    executor_->books().Demand(unit);
    counts_.fetched += executor_->books()[unit].demanded ? 1 : 0;
  }
}

// Also one that is being copied out or in; that then fails. A copy may be of a unit that has
// another by now, or needs none.
void PageWorld::LoseCopy() {
  if (copies_.empty()) return;
  const auto which =
      std::next(copies_.begin(), static_cast<ptrdiff_t>(random_->Below(copies_.size())));
  const Unit unit = which->first.second;
  if (executor_->books()[unit].pool != which->first.first) return;
  if (executor_->books()[unit].in_place > 0) return;  // the pool keeps what kernels use
  std::vector<TensorNumber> lost;
  executor_->Lose(unit, &lost);
  for (UnderWay& of : under_way_) {
    const bool is_copy = of.kind == UnderWay::Kind::kIn || of.kind == UnderWay::Kind::kOut;
    of.lost |= is_copy && of.copy.unit == unit;
  }
  which->second.assign(which->second.size(), kGarbage);
  counts_.lost += lost.size();
  for (const TensorNumber number : lost) {
    if (tensors_[number].broken) continue;
    if (tensors_[number].word == Word::kInUse) Fail("a tensor in use is lost");
    tensors_[number].lost = true;
  }
}

// Also where the other pool has no room.
void PageWorld::MoveACopy() {
  if (copies_.empty()) return;
  const auto which =
      std::next(copies_.begin(), static_cast<ptrdiff_t>(random_->Below(copies_.size())));
  const auto [from, unit] = which->first;
  const auto to = static_cast<plan::PoolNumber>(random_->Below(options_.pools.size()));
  const plan::UnitState& state = executor_->books()[unit];
  if (!CanMoveOn(state) || state.pool != from || to == from) return;
  copies_[{to, unit}] = std::move(which->second);
  copies_.erase(which);
  executor_->books().MoveCopy(unit, to);
  ++counts_.moved;
}

// Between the change and the release or creation of pages anything may happen.
void PageWorld::ChangeShare(uint32_t pages) {
  executor_->SetShare(pages);
  const uint32_t held = executor_->books().memory().pages();
  if (held >= pages) return;
  for (uint32_t i = held; i < pages; ++i) executor_->AddPage();
  physical_.resize(physical_.size() + pages - held, Cells(options_.cells_per_page, kGarbage));
}

// ---- The plan, or needs without one: what they say is never what the client does.

void PageWorld::AnnounceNeeds() {
  PageBooks& books = executor_->books();
  books.SetPlan({});
  for (Unit unit = 0; unit < books.view().units.size(); ++unit) {
    const auto need = static_cast<plan::Position>(random_->Below(1000));
    books.Announce(unit, random_->OneIn(4) ? plan::kNoPosition : need);
  }
  books.SetGrowth({.bytes = page_ * random_->Below(options_.pages), .from = 0, .until = 500});
}

void PageWorld::ChangePlan() {
  PageBooks& books = executor_->books();
  const auto horizon = static_cast<uint64_t>(books.view().plan.horizon());
  if (horizon > 0 && !random_->OneIn(4)) {
    position_ += static_cast<plan::Position>(random_->Below(4));
    return books.MoveTo(std::min(position_, static_cast<plan::Position>(horizon)));
  }
  if (random_->OneIn(2)) return AnnounceNeeds();
  std::vector<plan::PlannedCall> calls;
  for (uint64_t i = 0; i < random_->Below(40); ++i) {
    plan::PlannedCall call{.at = Duration(1000 * i)};
    if (!live_.empty() && !random_->OneIn(4)) {
      call.units = tensors_[live_[random_->Below(live_.size())]].units;
    } else {
      call.units = {static_cast<Unit>(2 * random_->Below(2 * options_.pages)), 1};
    }
    calls.push_back(call);
    call.kind = plan::CallKind::kPut;
    call.unpins = true;
    call.modifies = random_->OneIn(2);
    calls.push_back(call);
  }
  books.SetPlan(plan::ResidencyPlan::Make(calls, executor_->Snapshot(), books.view().limits));
  position_ = 0;
}

}  // namespace ravenstore::core
