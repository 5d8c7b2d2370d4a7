#include "daemon/links.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "core/check.h"
#include "core/size_text.h"
#include "device/link_bounds.h"
#include "device/medium_channel.h"

namespace ravenstore::daemon {

std::vector<core::LinkModel> MeasureLinks(const device::Devices& devices,
                                          std::chrono::nanoseconds time_limit) {
  device::LinkBoundsOptions options;
  options.per_round = core::MiB(64);
  options.rounds = 2;
  options.window = core::MiB(32);
  options.one_way = true;
  options.time_limit = time_limit;
  std::vector<core::LinkModel> links;
  for (const auto& device : devices) {
    core::LinkModel& link = links.emplace_back();
    const auto bounds = device::MeasureLink(*device, options);
    if (!bounds.ok()) {
      spdlog::warn("the link of {} could not be measured, {:.1f} GB/s are assumed: {}",
                   device->info().uuid, link.up_bytes_per_second / 1e9,
                   core::Describe(bounds.error()));
      continue;
    }
    link.up_bytes_per_second = bounds->up;
    link.down_bytes_per_second = bounds->down;
    spdlog::info("the link of {}: {:.1f} GB/s to the device, {:.1f} GB/s from it",
                 device->info().uuid, bounds->up / 1e9, bounds->down / 1e9);
  }
  return links;
}

namespace {

constexpr core::Bytes kPiece = core::MiB(4);
constexpr uint64_t kPiecesAhead = 8;
constexpr core::Bytes kPage = core::KiB(4);

struct Freed {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<std::byte, Freed>;

// At which `piece` after `piece` of the medium goes over a channel from or to `memory`.
core::Result<double> RateOf(device::Medium& medium, device::MediumAccess access, std::byte* memory,
                            core::Bytes piece) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kLong = std::chrono::milliseconds(500);
  constexpr auto kTooLong = std::chrono::seconds(2);
  device::Word done{0};
  // Behind the word: its end waits for what is queued.
  const auto channel = device::OpenMediumChannel(access, {});
  const uint64_t pieces = medium.size().count() / piece.count();
  const auto begin = Clock::now();
  uint64_t queued = 0;
  while (true) {
    const auto taken = Clock::now() - begin;
    channel->Poll();
    const uint64_t moved = done.load(std::memory_order_acquire);
    if (taken > kLong && moved > 0 && moved == queued) {
      const std::chrono::duration<double> seconds = taken;
      return static_cast<double>((piece * moved).count()) / seconds.count();
    }
    if (taken > kTooLong && moved == 0)
      return core::Error{core::ErrorCode::kTimedOut,
                         medium.name() + ": " + core::SizeText(piece) + " took over two seconds"};
    RAVEN_RETURN_IF_ERROR(channel->Health());
    // Few at first: what is queued is waited for, however long that takes.
    for (; taken <= kLong && queued < moved + std::min(kPiecesAhead, moved + 1); ++queued) {
      const core::Bytes place = piece * (queued % pieces);
      std::byte* const at = memory + (piece * (queued % kPiecesAhead)).count();
      if (access == device::MediumAccess::kRead) {
        RAVEN_RETURN_IF_ERROR(channel->Copy(at, {medium, place}, piece));
      } else {
        RAVEN_RETURN_IF_ERROR(channel->Copy({medium, place}, at, piece));
      }
      RAVEN_RETURN_IF_ERROR(channel->Signal(&done, queued + 1));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace

core::Result<MediumRates> MeasureMedium(device::Medium& medium) {
  const core::Bytes piece = std::min(kPiece, medium.size());
  const size_t bytes = (kPiece * kPiecesAhead).count();
  const Buffer memory(static_cast<std::byte*>(std::aligned_alloc(kPage.count(), bytes)));
  RAVEN_CHECK(memory != nullptr);
  std::memset(memory.get(), 1, bytes);  // so that no rate includes the first touch
  MediumRates rates;
  RAVEN_ASSIGN_OR_RETURN(rates.write,
                         RateOf(medium, device::MediumAccess::kWrite, memory.get(), piece));
  RAVEN_ASSIGN_OR_RETURN(rates.read,
                         RateOf(medium, device::MediumAccess::kRead, memory.get(), piece));
  return rates;
}

}  // namespace ravenstore::daemon
