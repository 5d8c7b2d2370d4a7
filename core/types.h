// The units and names that every floor shares.
//
// Bytes and instants are types, so that a size is never added to a time, and ids are distinct
// types, so that a client is never passed where a tensor is meant. Nothing here reads a clock:
// functions take the time as an argument.
#pragma once

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace ravenstore::core {

// A number of bytes.
class Bytes {
 public:
  constexpr Bytes() = default;
  constexpr explicit Bytes(uint64_t count) : count_(count) {}

  constexpr uint64_t count() const { return count_; }
  constexpr auto operator<=>(const Bytes&) const = default;

  constexpr Bytes& operator+=(Bytes other) { return count_ += other.count_, *this; }
  constexpr Bytes& operator-=(Bytes other) { return count_ -= other.count_, *this; }
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return a += b; }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return a -= b; }
  friend constexpr Bytes operator*(Bytes a, uint64_t times) { return Bytes(a.count_ * times); }

  // The least multiple of `unit` (a power of two) that is not less than this.
  constexpr Bytes RoundUp(Bytes unit) const {
    return Bytes((count_ + unit.count_ - 1) & ~(unit.count_ - 1));
  }
  // The largest multiple of `unit` that is not more than this.
  constexpr Bytes RoundDown(Bytes unit) const { return Bytes(count_ / unit.count_ * unit.count_); }

 private:
  uint64_t count_ = 0;
};

// a - b, or 0 if b is larger.
constexpr Bytes Minus(Bytes a, Bytes b) {
  return a > b ? a - b : Bytes{};
}

constexpr Bytes KiB(uint64_t n) {
  return Bytes(n << 10);
}
constexpr Bytes MiB(uint64_t n) {
  return Bytes(n << 20);
}
constexpr Bytes GiB(uint64_t n) {
  return Bytes(n << 30);
}

// Every extent, on a device or in the host pool, starts and ends at a multiple of this.
inline constexpr Bytes kExtentAlignment{512};
// The most that an arena or the host pool may span: places in it are kept in 32 bits.
inline constexpr Bytes kRangeMax = GiB(2047);
static_assert(kRangeMax.count() / kExtentAlignment.count() <= UINT32_MAX);

using Duration = std::chrono::nanoseconds;

constexpr double Milliseconds(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}
constexpr double Seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}
constexpr Duration FromSeconds(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

// Time since an origin that its giver chooses (the daemon: CLOCK_MONOTONIC). It has no now() on
// purpose.
struct TickClock {
  using rep = Duration::rep;
  using period = Duration::period;
  using duration = Duration;
  using time_point = std::chrono::time_point<TickClock>;
  static constexpr bool is_steady = true;
};
using Tick = TickClock::time_point;
inline constexpr Tick kNever = Tick::max();

// A device of this node, as the daemon numbers it. On the wire devices go by UUID.
enum class DeviceId : uint16_t {};
// A pool: memory of one kind in one place, a device's or the pinned memory of the host.
enum class PoolId : uint16_t {};
enum class ClientId : uint32_t {};
enum class TenantId : uint32_t {};
// A tensor's row in its client's lease table.
enum class SlotId : uint32_t {};
// Unique as long as the store's state lives; never zero.
enum class TensorId : uint64_t {};
// A name that a client gave, interned by the daemon; 0 is "no name".
enum class NameId : uint32_t {};
// One of its client's streams of work on a device; 0 is "no stream".
enum class StreamId : uint32_t {};

inline constexpr TensorId kNoTensor{0};
inline constexpr NameId kNoName{0};
inline constexpr StreamId kNoStream{0};

template <typename Id>
constexpr auto ToInt(Id id) {
  return static_cast<std::underlying_type_t<Id>>(id);
}

inline constexpr PoolId kHostPool{0};
constexpr PoolId PoolOf(DeviceId device) {
  return PoolId{static_cast<uint16_t>(ToInt(device) + 1)};
}
// REQUIRES: the pool is a device's.
constexpr DeviceId DeviceOf(PoolId pool) {
  return DeviceId{static_cast<uint16_t>(ToInt(pool) - 1)};
}

}  // namespace ravenstore::core
