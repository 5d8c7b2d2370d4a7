#include "elastic/job_share.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/decide/page_shares.h"

namespace ravenstore::elastic {

using core::Bytes;
using core::decide::PageDemand;

Bytes JobShare::Of(const std::optional<Device>& device, Bytes most, core::Duration now) {
  const size_t engines = device ? device->demands.size() : 1;
  if (std::exchange(engines_, engines) != engines) turn_.reset();
  if (engines < 2) return most;
  const auto pages_of = [this](Bytes bytes) {
    const uint64_t pages = bytes.count() / page_.count() + (bytes.count() % page_.count() > 0);
    return static_cast<uint32_t>(std::min<uint64_t>(pages, UINT32_MAX / 2));
  };
  std::vector<PageDemand> demands;
  for (const Demand& demand : device->demands)
    demands.push_back({.in_use = pages_of(demand.in_use),
                       .waits_for = pages_of(demand.waits_for),
                       .expected = pages_of(demand.expected),
                       .alive = pages_of(demand.alive),
                       .held = pages_of(demand.held)});
  const uint32_t pages = pages_of(device->together.RoundDown(page_));
  turn_ = core::decide::NextTurn(turn_, demands, pages, now);
  if (turn_) demands[turn_->client].has_turn = true;
  const uint32_t share = core::decide::SharePages(demands, pages)[device->own];
  return std::min({most, page_ * share, device->demands[device->own].held + device->room});
}

}  // namespace ravenstore::elastic
