#include "core/plan/places_in_use.h"

#include <algorithm>

#include "core/check.h"

namespace ravenstore::core::plan {

void PlacesInUse::Add(Bytes offset, Bytes size, StreamId stream) {
  RAVEN_CHECK(stream != kNoStream);
  of_[stream].push_back({offset, size});
  ++size_;
}

void PlacesInUse::Remove(Bytes offset, Bytes size, StreamId stream) {
  const auto of = of_.find(stream);
  RAVEN_CHECK(of != of_.end());
  auto& places = of->second;
  const auto place = std::find(places.begin(), places.end(), Place{offset, size});
  RAVEN_CHECK(place != places.end());
  places.erase(place);
  if (places.empty()) of_.erase(of);
  --size_;
}

bool PlacesInUse::HasOthers(Bytes offset, Bytes size, StreamId stream) const {
  const auto overlaps = [&](const Place& place) {
    return place.offset < offset + size && offset < place.offset + place.size;
  };
  return std::any_of(of_.begin(), of_.end(), [&](const auto& of) {
    return of.first != stream && std::any_of(of.second.begin(), of.second.end(), overlaps);
  });
}

}  // namespace ravenstore::core::plan
