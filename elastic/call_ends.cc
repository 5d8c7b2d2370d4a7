#include "elastic/call_ends.h"

#include <algorithm>
#include <utility>

namespace ravenstore::elastic {

void CallEnds::Add(const core::CallEnd& end, core::Bytes bytes, const Point& point,
                   std::vector<Point> others) {
  if (end.tensor >= open_.size()) open_.resize(end.tensor + 1);
  ++open_[end.tensor];
  ++count_;
  if (end.frees) freed_ += bytes;
  if (ends_.size() <= point.stream) ends_.resize(point.stream + 1);
  ends_[point.stream].push_back({end, bytes, point, std::move(others)});
}

bool CallEnds::HasPassed(Ended* ended) const {
  if (ended->end.frees && open_[ended->end.tensor] > 1) return false;
  return streams_->HavePassed(&ended->others) && streams_->Passed(ended->point);
}

void CallEnds::TakePassed(std::vector<core::CallEnd>* passed) {
  for (std::deque<Ended>& ends : ends_) {
    while (!ends.empty() && HasPassed(&ends.front())) {
      const Ended& first = ends.front();
      --count_;
      --open_[first.end.tensor];
      if (first.end.frees) freed_ -= first.bytes;
      passed->push_back(first.end);
      ends.pop_front();
    }
  }
}

}  // namespace ravenstore::elastic
