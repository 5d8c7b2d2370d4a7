#include "elastic/call_ends.h"

#include <algorithm>
#include <utility>

namespace ravenstore::elastic {

void CallEnds::Add(const core::CallEnd& end, core::Bytes bytes, std::vector<Point> points) {
  if (end.tensor >= open_.size()) open_.resize(end.tensor + 1);
  ++open_[end.tensor];
  ++count_;
  if (end.frees) freed_ += bytes;
  Point last;
  if (!points.empty()) {
    last = points.back();
    points.pop_back();
  }
  if (ends_.size() <= last.stream) ends_.resize(last.stream + 1);
  ends_[last.stream].push_back({end, bytes, last, std::move(points)});
}

bool CallEnds::HasPassed(Ended* ended) const {
  if (ended->end.frees && open_[ended->end.tensor] > 1) return false;
  std::erase_if(ended->others, [this](const Point& point) { return streams_->Passed(point); });
  return ended->others.empty() && streams_->Passed(ended->point);
}

bool CallEnds::Pass(const std::function<void(const core::CallEnd&)>& pass) {
  const size_t before = count_;
  for (std::deque<Ended>& ends : ends_) {
    while (!ends.empty() && HasPassed(&ends.front())) {
      const Ended& first = ends.front();
      --count_;
      --open_[first.end.tensor];
      if (first.end.frees) freed_ -= first.bytes;
      pass(first.end);
      ends.pop_front();
    }
  }
  return count_ != before;
}

}  // namespace ravenstore::elastic
