#include "daemon/peers.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::Error;
using core::ErrorCode;
using core::Status;
using device::Channel;
using device::Direction;
using Clock = std::chrono::steady_clock;

// Of each pattern; and of the copies that are measured, several of them in a row.
constexpr Bytes kPattern = core::MiB(2);
constexpr Bytes kMeasured = core::MiB(64);
constexpr int kCopies = 8;
constexpr auto kTooLong = std::chrono::seconds(2);

// A channel whose copies are waited for.
class Way {
 public:
  explicit Way(std::unique_ptr<Channel> channel) : channel_(std::move(channel)) {}

  // Copies `times` times, and waits for the last: for each as long as one may take.
  Status Copy(device::Target to, device::Source from, Bytes bytes, int times = 1) {
    for (int i = 0; i < times; ++i) {
      RAVEN_RETURN_IF_ERROR(channel_->Copy(to, from, bytes));
      RAVEN_RETURN_IF_ERROR(channel_->Signal(done_.get(), ++signals_));
    }
    for (uint64_t seen = signals_ - times; seen != signals_; ++seen)
      RAVEN_RETURN_IF_ERROR(Await(seen + 1));
    return core::Ok();
  }

 private:
  Status Await(uint64_t signal) {
    const auto deadline = Clock::now() + kTooLong;
    while (done_->load(std::memory_order_acquire) < signal) {
      channel_->Poll();
      RAVEN_RETURN_IF_ERROR(channel_->Health());
      if (Clock::now() > deadline)
        return Error{ErrorCode::kTimedOut, "a copy took over two seconds"};
      std::this_thread::yield();
    }
    return core::Ok();
  }

  // Before the channel: whose end writes what is still to be signalled.
  std::unique_ptr<device::Word> done_ = std::make_unique<device::Word>(0);
  std::unique_ptr<Channel> channel_;
  uint64_t signals_ = 0;
};

core::Result<Way> Open(core::Result<std::unique_ptr<Channel>> channel) {
  if (!channel.ok()) return channel.error();
  return Way(std::move(*channel));
}

void Write(std::byte* to, uint64_t seed) {
  for (uint64_t i = 0; i < kPattern.count() / sizeof(uint64_t); ++i) {
    const uint64_t word = (i + seed) * 0x9e3779b97f4a7c15u;
    std::memcpy(to + i * sizeof(word), &word, sizeof(word));
  }
}

core::Result<double> RateOf(Way& way, std::byte* to, const std::byte* from, Bytes bytes) {
  RAVEN_RETURN_IF_ERROR(way.Copy(to, from, bytes));  // the first maps and warms
  const auto begin = Clock::now();
  RAVEN_RETURN_IF_ERROR(way.Copy(to, from, bytes, kCopies));
  const std::chrono::duration<double> took = Clock::now() - begin;
  return static_cast<double>((bytes * kCopies).count()) / took.count();
}

}  // namespace

core::Result<PeerRates> CheckPeer(device::Device& device, device::Device& peer,
                                  device::VaRange& share, Bytes bytes) {
  const Bytes measured = std::min(bytes, kMeasured);
  RAVEN_ASSIGN_OR_RETURN(const auto host, device.ReserveHostVaRange(kPattern * 2, -1));
  RAVEN_RETURN_IF_ERROR(host->Create(Bytes{}, kPattern * 2));
  RAVEN_ASSIGN_OR_RETURN(const auto own, device.ReserveVaRange(measured));
  RAVEN_RETURN_IF_ERROR(own->Create(Bytes{}, measured));
  RAVEN_ASSIGN_OR_RETURN(Way in, Open(device.OpenChannel(Direction::kHostToDevice)));
  RAVEN_ASSIGN_OR_RETURN(Way out, Open(device.OpenChannel(Direction::kDeviceToHost)));
  RAVEN_ASSIGN_OR_RETURN(Way peer_in, Open(peer.OpenChannel(Direction::kHostToDevice)));
  RAVEN_ASSIGN_OR_RETURN(Way peer_out, Open(peer.OpenChannel(Direction::kDeviceToHost)));
  RAVEN_ASSIGN_OR_RETURN(Way to_peer, Open(device.OpenPeerChannel()));
  RAVEN_ASSIGN_OR_RETURN(Way from_peer, Open(peer.OpenPeerChannel()));
  std::byte* const written = host->base();
  std::byte* const read = host->base() + kPattern.count();
  std::byte* const here = own->base();
  std::byte* const there = share.base();

  const auto pass = [&](uint64_t seed, Way& up, std::byte* first, Way& across, std::byte* second,
                        Way& down) -> Status {
    Write(written, seed);
    std::memset(read, 0, kPattern.count());
    RAVEN_RETURN_IF_ERROR(up.Copy(first, written, kPattern));
    RAVEN_RETURN_IF_ERROR(across.Copy(second, first, kPattern));
    RAVEN_RETURN_IF_ERROR(down.Copy(read, second, kPattern));
    if (std::memcmp(written, read, kPattern.count()) == 0) return core::Ok();
    return Error{ErrorCode::kCorrupt, "bytes came over wrong"};
  };
  RAVEN_RETURN_IF_ERROR(pass(1, in, here, to_peer, there, peer_out));
  RAVEN_RETURN_IF_ERROR(pass(2, peer_in, there, from_peer, here, out));
  PeerRates rates;
  RAVEN_ASSIGN_OR_RETURN(rates.out, RateOf(to_peer, there, here, measured));
  RAVEN_ASSIGN_OR_RETURN(rates.in, RateOf(from_peer, here, there, measured));
  return rates;
}

}  // namespace ravenstore::daemon
