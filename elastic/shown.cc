#include "elastic/shown.h"

#include <algorithm>
#include <cstring>

namespace ravenstore::elastic {

using core::Duration;
using core::Tick;
using proto::ElasticPageCall;
using proto::ElasticPageRange;
using proto::ElasticPageRow;

namespace {

constexpr Duration kHot = std::chrono::seconds(1);
constexpr Duration kWarm = std::chrono::seconds(10);

uint64_t Since(Tick then, Tick now) {
  return static_cast<uint64_t>(std::max<int64_t>((now - then).count(), 0));
}

// The order of a heap whose front is the smallest range.
bool IsLarger(const ElasticPageRange& a, const ElasticPageRange& b) {
  return a.bytes > b.bytes;
}

// A reader accepts all that is written between two changes of the sequence, or none of it.
class Rewriting {
 public:
  explicit Rewriting(ElasticPageRow* row)
      : row_(row), before_(row->sequence.load(std::memory_order_relaxed) & ~uint64_t{1}) {
    row_->sequence.store(before_ + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
  }
  ~Rewriting() { row_->sequence.store(before_ + 2, std::memory_order_release); }

 private:
  ElasticPageRow* row_;
  uint64_t before_;
};

constexpr size_t kBody = offsetof(ElasticPageRow, written_ns);

char* BodyOf(ElasticPageRow* row) {
  return reinterpret_cast<char*>(row) + kBody;
}

}  // namespace

Shown::~Shown() {
  const Rewriting rewriting(row_);
  std::memset(BodyOf(row_), 0, sizeof(ElasticPageRow) - kBody);
}

void Shown::Note(uint64_t identity, const Caller& caller, const Event& event, Tick now) {
  auto found = std::find_if(calls_.begin(), calls_.end(), [&](const Call& call) {
    return call.last != Tick{} && call.identity == identity;
  });
  if (found == calls_.end()) {
    found = std::min_element(calls_.begin(), calls_.end(),
                             [](const Call& a, const Call& b) { return a.last < b.last; });
    *found = {identity};
    const std::string name = names_.Of(caller);
    found->shown.name[name.copy(found->shown.name, sizeof(found->shown.name) - 1)] = 0;
  }
  ElasticPageCall& shown = found->shown;
  found->last = now;
  shown.waits += event.waited > Duration{0} ? 1 : 0;
  shown.waited_ns += static_cast<uint64_t>(event.waited.count());
  shown.in_place += event.in_place > core::Bytes{0} ? 1 : 0;
  shown.in_place_bytes += event.in_place.count();
  shown.unknown += event.unknown ? 1 : 0;
}

Shown::View::View(Tick now) : now_(now) {
  row_.written_ns = static_cast<uint64_t>(now.time_since_epoch().count());
}

void Shown::View::Add(const Range& range) {
  const Duration unused = now_ - range.used;
  const size_t age = unused < kHot ? 0 : unused < kWarm ? 1 : 2;
  row_.on_device[age] += (range.size - range.away).count();
  row_.on_host[age] += range.away.count();
  ++row_.ranges_live;
  const ElasticPageRange shown{range.address,
                               range.size.count(),
                               range.away.count(),
                               range.calls,
                               Since(range.allocated, now_),
                               Since(range.used, now_),
                               range.pinned ? uint64_t{1} : 0};
  ElasticPageRange* const begin = row_.range;
  if (row_.ranges < proto::kElasticRanges) {
    begin[row_.ranges++] = shown;
    std::push_heap(begin, begin + row_.ranges, IsLarger);
  } else if (IsLarger(shown, *begin)) {
    std::pop_heap(begin, begin + row_.ranges, IsLarger);
    begin[row_.ranges - 1] = shown;
    std::push_heap(begin, begin + row_.ranges, IsLarger);
  }
}

void Shown::AddCalls(View* view) const {
  ElasticPageRow& row = view->row_;
  row.calls = 0;
  for (const Call& call : calls_) {
    if (call.last == Tick{}) continue;
    ElasticPageCall& shown = row.call[row.calls++];
    shown = call.shown;
    shown.ago_ns = Since(call.last, view->now_);
  }
  std::sort(row.call, row.call + row.calls,
            [](const ElasticPageCall& a, const ElasticPageCall& b) { return a.ago_ns < b.ago_ns; });
}

void Shown::Publish(const View& view) {
  const Rewriting rewriting(row_);
  std::memcpy(BodyOf(row_), reinterpret_cast<const char*>(&view.row_) + kBody,
              sizeof(ElasticPageRow) - kBody);
}

}  // namespace ravenstore::elastic
