#include "core/decide/page_transfer.h"

#include "core/tuned.h"

namespace ravenstore::core::decide {

PageNeed NeedOf(const plan::MoveView& view) {
  const auto time = [&view](std::optional<plan::Position> need) {
    return need ? std::optional(view.plan.TimeFromNow(*need)) : std::nullopt;
  };
  PageNeed need{.spare = time(LastSpare(view)), .coming = view.expected + view.leaving};
  if (view.expected < kComingPages) {
    const auto lack = FirstLack(view);
    need.lacks = lack == plan::MoveQueues::kWaitedFor ? kHeldCall : time(lack);
  }
  if (const auto unit = NextEmergency(view)) need.idle = time(view.plan.NextNeed(*unit));
  return need;
}

std::optional<PageTransfer> NextTransfer(std::span<const PageNeed> clients, Duration making) {
  std::optional<PageTransfer> found;
  for (uint32_t to = 0; to < clients.size(); ++to) {
    const auto& lacks = clients[to].lacks;
    if (!lacks || (found && *clients[found->to].lacks <= *lacks)) continue;
    std::optional<uint32_t> from;
    for (uint32_t i = 0; i < clients.size(); ++i) {
      const auto& spare = clients[i].spare;
      if (i == to || !spare || *spare <= *lacks) continue;
      if (!clients[to].Waits() && *spare - *lacks <= making) continue;
      if (!from || *spare > *clients[*from].spare) from = i;
    }
    if (from) found = PageTransfer{*from, to};
  }
  return found;
}

std::optional<uint32_t> NextToLeave(std::span<const PageNeed> clients) {
  std::optional<uint32_t> found;
  bool waits = false;
  uint32_t coming = 0;
  for (uint32_t i = 0; i < clients.size(); ++i) {
    waits |= clients[i].Waits();
    coming += clients[i].coming;
    const auto& idle = clients[i].idle;
    if (idle && (!found || *idle > *clients[*found].idle)) found = i;
  }
  return waits && coming == 0 ? found : std::nullopt;
}

}  // namespace ravenstore::core::decide
