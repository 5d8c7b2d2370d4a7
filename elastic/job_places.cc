#include "elastic/job_places.h"

namespace ravenstore::elastic {

using core::Bytes;
using core::StreamId;
using core::TensorNumber;
using core::plan::Place;

std::optional<Place> JobPlaces::Allocate(TensorNumber range, Bytes size, uint32_t most,
                                         StreamId stream) {
  const core::plan::AddressRange::Request request{
      .size = size, .most = most, .others = &in_use_, .stream = stream};
  if (!places_.CanAllocate(request, end_)) return std::nullopt;
  places_.SetMost(most);
  if (range >= rows_.size()) rows_.resize(range + 1);
  rows_[range] = {
      .place = places_.Allocate(size, &in_use_, stream), .size = size, .stream = stream};
  return rows_[range].place;
}

void JobPlaces::Free(TensorNumber range, StreamId stream) {
  Row& row = rows_[range];
  row.is_free = stream != core::kNoStream && stream == row.stream && in_use_.HasRoomFor(stream);
  if (!row.is_free) return;
  in_use_.Add(Bytes(row.place.at), row.size, stream);
  places_.Free(row.place, row.size);
}

void JobPlaces::EndFree(TensorNumber range) {
  const Row& row = rows_[range];
  if (row.is_free) {
    in_use_.Remove(Bytes(row.place.at), row.size, row.stream);
  } else {
    places_.Free(row.place, row.size);
  }
}

void JobPlaces::Forget(TensorNumber range) {
  places_.Free(rows_[range].place, rows_[range].size);
}

}  // namespace ravenstore::elastic
