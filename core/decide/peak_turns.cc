#include "core/decide/peak_turns.h"

#include <algorithm>
#include <chrono>

namespace ravenstore::core::decide {

namespace {

// Shorter: a client that waits for copies loses its turn before its peak. Longer: a client that
// does not grow keeps the others waiting.
constexpr Duration kTurnPause = std::chrono::seconds(1);

}  // namespace

std::optional<PeakTurn> NextTurn(const std::optional<PeakTurn>& turn,
                                 std::span<const PageDemand> demands, uint32_t pages,
                                 Duration now) {
  uint64_t alive = 0;
  for (const PageDemand& demand : demands) alive += demand.alive;
  if (alive <= pages) return std::nullopt;
  const auto begin = [&](uint32_t client) { return PeakTurn{client, demands[client].alive, now}; };
  if (!turn) {
    const auto most = std::max_element(
        demands.begin(), demands.end(),
        [](const PageDemand& a, const PageDemand& b) { return a.alive < b.alive; });
    return begin(static_cast<uint32_t>(most - demands.begin()));
  }
  const uint32_t has = demands[turn->client].alive;
  if (has > turn->peak) return begin(turn->client);
  const bool ends = has < turn->peak / 2 || now - turn->grew > kTurnPause;
  if (!ends) return *turn;
  uint32_t next = turn->client;
  do {
    next = (next + 1) % static_cast<uint32_t>(demands.size());
  } while (demands[next].alive == 0);
  return begin(next);
}

}  // namespace ravenstore::core::decide
