#include "daemon/elastic_page.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "proto/elastic_page.h"

namespace ravenstore::daemon {

using proto::ElasticPageCall;
using proto::ElasticPageRange;
using proto::ElasticPageRow;

namespace {

// A row is written within microseconds. Who writes it all the time is not read.
constexpr int kTries = 4;

// The bytes of a row, as they were written.
struct Row {
  alignas(ElasticPageRow) std::array<char, sizeof(ElasticPageRow)> bytes;

  uint64_t Word(size_t offset) const {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + offset, sizeof(word));
    return word;
  }
};

bool ReadOnce(int page, size_t row, Row* to) {
  const auto at = static_cast<off_t>(row * proto::kElasticRowBytes);
  const auto read = [&](void* bytes, size_t size) {
    return ::pread(page, bytes, size, at) == static_cast<ssize_t>(size);
  };
  uint64_t before = 0;
  uint64_t after = 0;
  return read(&before, sizeof(before)) && before != 0 && before % 2 == 0 &&
         read(to->bytes.data(), to->bytes.size()) && read(&after, sizeof(after)) && before == after;
}

std::string TextOf(const char* from, size_t room) {
  std::string text(from, strnlen(from, room));
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

void FillRanges(const Row& row, proto::ElasticDevice* to) {
  const uint64_t count =
      std::min<uint64_t>(row.Word(offsetof(ElasticPageRow, ranges)), proto::kElasticRanges);
  for (size_t i = 0; i < count; ++i) {
    ElasticPageRange range;
    std::memcpy(&range, row.bytes.data() + offsetof(ElasticPageRow, range) + i * sizeof(range),
                sizeof(range));
    proto::ElasticRange* shown = to->add_ranges();
    shown->set_address(range.address);
    shown->set_bytes(range.bytes);
    shown->set_away(std::min(range.away, range.bytes));
    shown->set_calls(range.calls);
    shown->set_age_ns(range.age_ns);
    shown->set_unused_ns(range.unused_ns);
    shown->set_pinned(range.pinned != 0);
  }
}

void FillCalls(const Row& row, proto::ElasticDevice* to) {
  const uint64_t count =
      std::min<uint64_t>(row.Word(offsetof(ElasticPageRow, calls)), proto::kElasticCalls);
  for (size_t i = 0; i < count; ++i) {
    ElasticPageCall call;
    std::memcpy(&call, row.bytes.data() + offsetof(ElasticPageRow, call) + i * sizeof(call),
                sizeof(call));
    proto::ElasticCall* shown = to->add_calls();
    shown->set_name(TextOf(call.name, sizeof(call.name)));
    shown->set_waits(call.waits);
    shown->set_waited_ns(call.waited_ns);
    shown->set_in_place(call.in_place);
    shown->set_in_place_bytes(call.in_place_bytes);
    shown->set_unknown(call.unknown);
    shown->set_ago_ns(call.ago_ns);
  }
}

// Up to the last word of ElasticTotals.
constexpr size_t kTotalsBytes = offsetof(ElasticPageRow, moved_out) + sizeof(uint64_t);

}  // namespace

ElasticTotals ReadElasticTotals(int page, size_t index) {
  if (index >= proto::kLedgerDevices) return {};
  Row row;
  const auto at = static_cast<off_t>(index * proto::kElasticRowBytes);
  const ssize_t size = ::pread(page, row.bytes.data(), kTotalsBytes, at);
  if (size != static_cast<ssize_t>(kTotalsBytes)) return {};
  if (row.Word(offsetof(ElasticPageRow, written_ns)) == 0) return {};  // its engine is gone
  return {.enough = row.Word(offsetof(ElasticPageRow, enough)),
          .moved_in = row.Word(offsetof(ElasticPageRow, moved_in)),
          .moved_out = row.Word(offsetof(ElasticPageRow, moved_out))};
}

std::optional<proto::ElasticDevice> ReadElasticRow(int page, size_t index, core::Tick now) {
  if (index >= proto::kLedgerDevices) return std::nullopt;
  Row row;
  int tries = 0;
  while (!ReadOnce(page, index, &row)) {
    if (++tries == kTries) return std::nullopt;
  }
  proto::ElasticDevice device;
#define RAVEN_FIELD(name) device.set_##name(row.Word(offsetof(ElasticPageRow, name)))
  RAVEN_FIELD(limit);
  RAVEN_FIELD(device);
  RAVEN_FIELD(host);
  RAVEN_FIELD(host_limit);
  RAVEN_FIELD(live);
  RAVEN_FIELD(away);
  RAVEN_FIELD(pinned);
  RAVEN_FIELD(peak);
  RAVEN_FIELD(enough);
  RAVEN_FIELD(moved_in);
  RAVEN_FIELD(moved_out);
  RAVEN_FIELD(dropped);
  RAVEN_FIELD(uses);
  RAVEN_FIELD(in_place);
  RAVEN_FIELD(in_place_bytes);
  RAVEN_FIELD(waits);
  RAVEN_FIELD(waited_ns);
  RAVEN_FIELD(room_waits);
  RAVEN_FIELD(room_waited_ns);
  RAVEN_FIELD(ranges_live);
#undef RAVEN_FIELD
  device.set_learned(row.Word(offsetof(ElasticPageRow, learned)) != 0);
  device.set_broken(row.Word(offsetof(ElasticPageRow, broken)) != 0);
  const uint64_t written = row.Word(offsetof(ElasticPageRow, written_ns));
  if (written == 0) return std::nullopt;  // its engine is gone
  const auto now_ns = static_cast<uint64_t>(now.time_since_epoch().count());
  device.set_age_ns(now_ns > written ? now_ns - written : 0);
  for (size_t age = 0; age < proto::kElasticAges; ++age) {
    device.add_on_device(row.Word(offsetof(ElasticPageRow, on_device) + age * sizeof(uint64_t)));
    device.add_on_host(row.Word(offsetof(ElasticPageRow, on_host) + age * sizeof(uint64_t)));
  }
  FillRanges(row, &device);
  FillCalls(row, &device);
  return device;
}

}  // namespace ravenstore::daemon
