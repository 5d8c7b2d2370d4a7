#include "daemon/peers.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

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

// Copies `times` times, and waits for the last.
Status Copy(Channel& channel, device::Target to, device::Source from, Bytes bytes, int times = 1) {
  // It stays until the channel is past it: a failed one never writes it.
  device::Word done{0};
  for (int i = 0; i < times; ++i) RAVEN_RETURN_IF_ERROR(channel.Copy(to, from, bytes));
  RAVEN_RETURN_IF_ERROR(channel.Signal(&done, 1));
  const auto deadline = Clock::now() + kTooLong;
  while (done.load(std::memory_order_acquire) == 0) {
    channel.Poll();
    RAVEN_RETURN_IF_ERROR(channel.Health());
    if (Clock::now() > deadline) return Error{ErrorCode::kTimedOut, "a copy took over two seconds"};
    std::this_thread::yield();
  }
  return core::Ok();
}

// One device's side: its channels, and memory of its own.
struct Side {
  std::unique_ptr<Channel> in;
  std::unique_ptr<Channel> out;

  static core::Result<Side> Open(device::Device& device) {
    Side side;
    RAVEN_ASSIGN_OR_RETURN(side.in, device.OpenChannel(Direction::kHostToDevice));
    RAVEN_ASSIGN_OR_RETURN(side.out, device.OpenChannel(Direction::kDeviceToHost));
    return side;
  }
};

void Write(std::byte* to, uint64_t seed) {
  for (uint64_t i = 0; i < kPattern.count() / sizeof(uint64_t); ++i) {
    const uint64_t word = (i + seed) * 0x9e3779b97f4a7c15u;
    std::memcpy(to + i * sizeof(word), &word, sizeof(word));
  }
}

core::Result<double> RateOf(Channel& channel, std::byte* to, const std::byte* from, Bytes bytes) {
  RAVEN_RETURN_IF_ERROR(Copy(channel, to, from, bytes));  // the first maps and warms
  const auto begin = Clock::now();
  RAVEN_RETURN_IF_ERROR(Copy(channel, to, from, bytes, kCopies));
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
  RAVEN_ASSIGN_OR_RETURN(Side near, Side::Open(device));
  RAVEN_ASSIGN_OR_RETURN(Side far, Side::Open(peer));
  RAVEN_ASSIGN_OR_RETURN(const auto to_peer, device.OpenPeerChannel());
  RAVEN_ASSIGN_OR_RETURN(const auto from_peer, peer.OpenPeerChannel());
  std::byte* const written = host->base();
  std::byte* const read = host->base() + kPattern.count();
  std::byte* const here = own->base();
  std::byte* const there = share.base();

  const auto pass = [&](uint64_t seed, Channel& up, std::byte* first, Channel& across,
                        std::byte* second, Channel& down) -> Status {
    Write(written, seed);
    std::memset(read, 0, kPattern.count());
    RAVEN_RETURN_IF_ERROR(Copy(up, first, written, kPattern));
    RAVEN_RETURN_IF_ERROR(Copy(across, second, first, kPattern));
    RAVEN_RETURN_IF_ERROR(Copy(down, read, second, kPattern));
    if (std::memcmp(written, read, kPattern.count()) == 0) return core::Ok();
    return Error{ErrorCode::kCorrupt, "bytes came over wrong"};
  };
  RAVEN_RETURN_IF_ERROR(pass(1, *near.in, here, *to_peer, there, *far.out));
  RAVEN_RETURN_IF_ERROR(pass(2, *far.in, there, *from_peer, here, *near.out));
  PeerRates rates;
  RAVEN_ASSIGN_OR_RETURN(rates.out, RateOf(*to_peer, there, here, measured));
  RAVEN_ASSIGN_OR_RETURN(rates.in, RateOf(*from_peer, here, there, measured));
  return rates;
}

}  // namespace ravenstore::daemon
