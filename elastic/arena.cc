#include "elastic/arena.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace ravenstore::elastic {

using core::Bytes;

namespace {

bool SameStreams(const std::vector<Point>& a, const std::vector<Point>& b) {
  return a.size() == b.size() && std::all_of(a.begin(), a.end(), [&](const Point& point) {
           return std::any_of(b.begin(), b.end(),
                              [&](const Point& other) { return other.stream == point.stream; });
         });
}

void Join(std::vector<Point>* points, const std::vector<Point>& more) {
  for (const Point& point : more) {
    const auto same = std::find_if(points->begin(), points->end(), [&](const Point& other) {
      return other.stream == point.stream;
    });
    if (same == points->end()) {
      points->push_back(point);
    } else {
      same->call = std::max(same->call, point.call);
    }
  }
}

}  // namespace

Arena::Arena(CUdeviceptr begin, Bytes size, Passed passed)
    : begin_(begin), size_(size), passed_(std::move(passed)), fresh_(begin) {
  Insert(begin, {size, {}});
}

std::optional<CUdeviceptr> Arena::Take(Bytes size, uint32_t stream) {
  auto found = by_size_.lower_bound({size, 0});
  while (found != by_size_.end() && !Serves(holes_.at(found->second), stream)) ++found;
  CUdeviceptr begin = 0;
  if (found != by_size_.end()) {
    begin = found->second;
  } else if (!holes_.empty() && end() - fresh_ >= size.count()) {
    // The last hole reaches to the end, and where nothing ever was nobody waits for anything.
    auto last = std::prev(holes_.end());
    Hole hole = Remove(last);
    const CUdeviceptr from = end() - hole.size.count();
    begin = std::max(from, fresh_);
    if (from < begin) Insert(from, {Bytes(begin - from), hole.points});
    Insert(begin, {Bytes(end() - begin), {}});
  } else {
    return std::nullopt;
  }
  Hole hole = Remove(holes_.find(begin));
  fresh_ = std::max(fresh_, begin + size.count());
  if (hole.size > size) Insert(begin + size.count(), {hole.size - size, std::move(hole.points)});
  return begin;
}

void Arena::Give(CUdeviceptr begin, Bytes size, std::vector<Point> points) {
  Hole hole{size, std::move(points)};
  auto after = holes_.lower_bound(begin);
  if (after != holes_.end() && after->first == begin + size.count() &&
      CanJoin(hole, after->second)) {
    const auto next = std::next(after);
    const Hole joined = Remove(after);
    hole.size += joined.size;
    Join(&hole.points, joined.points);
    after = next;
  }
  if (after != holes_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second.size.count() == begin && CanJoin(before->second, hole)) {
      begin = before->first;
      const Hole joined = Remove(before);
      hole.size += joined.size;
      Join(&hole.points, joined.points);
    }
  }
  Insert(begin, std::move(hole));
}

bool Arena::Serves(Hole& hole, uint32_t stream) {
  if (hole.points.empty()) return true;
  if (stream != 0 && hole.points.size() == 1 && hole.points[0].stream == stream) return true;
  Prune(hole.points);
  return hole.points.empty() ||
         (stream != 0 && hole.points.size() == 1 && hole.points[0].stream == stream);
}

bool Arena::CanJoin(Hole& one, Hole& other) {
  if (one.points.empty() || other.points.empty() || SameStreams(one.points, other.points))
    return true;
  Prune(one.points);
  Prune(other.points);
  return one.points.empty() || other.points.empty() || SameStreams(one.points, other.points);
}

void Arena::Prune(std::vector<Point>& points) {
  std::erase_if(points, passed_);
}

void Arena::Insert(CUdeviceptr begin, Hole hole) {
  by_size_.emplace(hole.size, begin);
  holes_.emplace(begin, std::move(hole));
}

Arena::Hole Arena::Remove(Holes::iterator hole) {
  by_size_.erase({hole->second.size, hole->first});
  return std::move(holes_.extract(hole).mapped());
}

}  // namespace ravenstore::elastic
