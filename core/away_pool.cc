#include "core/away_pool.h"

#include "core/check.h"

namespace ravenstore::core {

Range AwayPool::Grow(Bytes size) {
  RAVEN_CHECK(size > Bytes{0});
  RAVEN_CHECK(!IsGrowing());
  RAVEN_CHECK(leaving_ == Bytes{0});
  coming_ = size;
  return {end_, size};
}

void AwayPool::Grown(const Range& chunk) {
  coming_ = Bytes{0};
  AddChunk(chunk.first, chunk.second);
  chunks_.push_back(chunk.first);
  end_ = chunk.first + chunk.second;
}

std::optional<Range> AwayPool::Shrink() {
  RAVEN_CHECK(!IsGrowing());
  if (chunks_.empty()) return std::nullopt;
  const Range chunk{chunks_.back(), end_ - chunks_.back()};
  if (!IsFree(chunk.first, chunk.second)) return std::nullopt;
  CloseChunk(chunk.first, chunk.second);
  chunks_.pop_back();
  end_ = chunk.first;
  leaving_ += chunk.second;
  return chunk;
}

void AwayPool::Shrunk(const Range& chunk) {
  RAVEN_CHECK(chunk.second <= leaving_);
  RemoveChunk(chunk.first, chunk.second);
  leaving_ -= chunk.second;
}

void AwayPool::CheckInvariants() const {
  ExtentMap::CheckInvariants();
  RAVEN_CHECK(held() == end_);
  for (size_t i = 0; i < chunks_.size(); ++i)
    RAVEN_CHECK(i == 0 ? chunks_[i] == Bytes{0} : chunks_[i] > chunks_[i - 1]);
  RAVEN_CHECK(chunks_.empty() ? end_ == Bytes{0} : end_ > chunks_.back());
}

}  // namespace ravenstore::core
