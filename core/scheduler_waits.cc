// Where waiting for another client takes less than copying would.
#include <algorithm>
#include <limits>
#include <utility>

#include "core/scheduler.h"
#include "core/tuned.h"

namespace ravenstore::core {

double Scheduler::SecondsUntilFreed(const ClientArena& arena, Bytes missing, Limit binding) const {
  double least = std::numeric_limits<double>::infinity();
  for (const ClientArena* giver : GiversTo(arena, binding)) {
    // A client that creates, or waits for the store itself, frees nothing soon.
    if (giver->allocation_phase || requests_.Waiting(*giver) > 0 ||
        clients_.at(giver->client)->predictor.waits() > 0)
      continue;
    if (giver->live < missing) continue;
    // It is slabs that help: of the last one all must be freed.
    const auto bytes = static_cast<double>((missing + SlabSize(*giver)).count());
    least = std::min(least, bytes / giver->freed.PerSecond(now_));
  }
  return least;
}

double Scheduler::SecondsToEvict(const ClientArena& arena, Bytes need) const {
  const AwayLinks links = LinksOf(arena.device);
  const auto run = arena.index->FindRun(arena.space.map(), need, VirtualTime(arena), links, {});
  Duration copies{0};
  for (const uint32_t row : run) {
    const Duration both = BothCopies(links.Of(catalog_[row]), catalog_[row].size);
    copies += catalog_[row].dirty() ? both : both / 2;
  }
  const Duration all = BothCopies(links.For(need), need);
  return Seconds(run.empty() ? all : std::min(all, copies));
}

bool Scheduler::WaitsForFrees(ClientArena& arena, const Request& request) {
  if (request.fail_fast || clients_.size() < 2) return false;
  if (!Uses(Heuristic::kWaitForFrees)) return false;
  const bool waits = arena.budgeted_request == request.id;
  if (waits && now_ >= arena.wait_budget_until) return false;
  const Bytes need = request.size.RoundUp(kExtentAlignment);
  // No run counts for more: mostly that spares the search for one, and for small requests all.
  const double most = kWaitBudget * Seconds(BothCopies(LinksOf(arena.device).For(need), need));
  if (Seconds(kSlabMove) > most) return false;
  const auto lack = LackFor(arena, need);
  if (!lack || lack->binding == Limit::kClient) return false;
  const double wait = SecondsUntilFreed(arena, lack->bytes, lack->binding) + Seconds(kSlabMove);
  if (wait > most) return false;
  const double wait_budget = waits ? arena.wait_budget : kWaitBudget * SecondsToEvict(arena, need);
  if (wait > wait_budget) return false;
  if (!waits) {
    arena.budgeted_request = request.id;
    arena.wait_budget = wait_budget;
    arena.wait_budget_until = now_ + kOverdue * FromSeconds(wait);
  }
  TakeSlabsFor(arena, need, kOnlyEmpty);
  wakes_.ArmBy(arena, now_ + kRecheckPeriod);
  return true;
}

// Two whose iterations begin together are at their peaks together, in this iteration and in those
// that follow, since both wait alike. If one lets the other go ahead, its peak fits into the
// other's valley. Source: Lim et al., Zico, USENIX ATC 2021, which delays iterations for that.
Duration Scheduler::UntilPeaks(const ClientArena& arena, Limit binding) const {
  const auto& own = arena.cycle.last();
  if (!own) return Duration{0};
  const Bytes limit = quota_.LimitOf(arena.client, arena.pool(), binding);
  Bytes tops = own->top;
  Bytes alone = Minus(own->top, limit);  // what is copied in any case
  Bytes swings;
  Duration until{};
  bool far = false;
  for (const ClientArena* other : SharersWith(arena, binding)) {
    if (other->waits_for_peak) continue;
    const Duration others = other->cycle.UntilTop(VirtualTime(*other));
    if (others == Duration{0}) continue;
    const UsageCycle::Peak& peak = *other->cycle.last();
    if (other->live <= peak.bottom) continue;  // it has come down already
    tops += peak.top;
    alone += Minus(peak.top, limit);
    swings += peak.swing();
    until = std::max(until, others);
    far |= peak.IsFar(other->live);
  }
  // One that is half way up already is not caught up with.
  if (!far && !arena.waits_for_peak) return Duration{0};
  const Bytes saved = std::min({Minus(tops, limit + alone), own->swing(), swings});
  const double copying = static_cast<double>(saved.count()) /
                         LinksOf(arena.device).For(options_.slab).down_bytes_per_second;
  // What is copied while the client rises anyway costs it nothing.
  return copying > Seconds(until + own->rise) ? until : Duration{0};
}

bool Scheduler::MayWaitForPeak(const ClientArena& arena, const Request& request) const {
  if (!options_.learn || options_.policy != Policy::kValue || clients_.size() < 2) return false;
  if (!Uses(Heuristic::kWaitForPeak)) return false;
  if (request.is_fetch() || request.fail_fast) return false;
  // Nothing else of its client's waits behind it.
  if (requests_.Waiting(arena) > 1) return false;
  const bool overdue = arena.peak_until > Tick{} && now_ >= arena.peak_until;
  return !overdue && arena.cycle.Begins(arena.live, arena.lived);
}

bool Scheduler::WaitsForPeak(ClientArena& arena, const Request& request) {
  Duration until{};
  if (MayWaitForPeak(arena, request)) {
    for (const Limit binding : {Limit::kTenant, Limit::kPool})
      until = std::max(until, UntilPeaks(arena, binding));
  }
  const bool waited = std::exchange(arena.waits_for_peak, until > Duration{0});
  if (!arena.waits_for_peak) return false;
  // Half of its wait budget is left for what comes then.
  if (!waited)
    arena.peak_until = now_ + std::min(kPeakOverdue * until, (request.deadline - now_) / 2);
  wakes_.ArmBy(arena, now_ + kRecheckPeriod);
  return true;
}

}  // namespace ravenstore::core
