#include "core/away_pool.h"

#include <algorithm>

#include "core/check.h"

namespace ravenstore::core {

Range AwayPool::Grow(Bytes size) {
  RAVEN_CHECK(size > Bytes{0});
  RAVEN_CHECK(!IsGrowing());
  const auto absent = AbsentFrom(Bytes{0});
  RAVEN_CHECK(absent.has_value());
  coming_ = {absent->first, std::min(size, absent->second)};
  return coming_;
}

void AwayPool::Grown(const Range& chunk) {
  coming_ = {};
  AddChunk(chunk.first, chunk.second);
  chunks_.insert(std::lower_bound(chunks_.begin(), chunks_.end(), chunk), chunk);
  size_ += chunk.second;
}

std::optional<Range> AwayPool::OpenAt(Bytes offset) const {
  const auto chunk = std::lower_bound(chunks_.begin(), chunks_.end(), Range{offset, Bytes{0}});
  if (chunk == chunks_.end() || chunk->first != offset) return std::nullopt;
  return *chunk;
}

bool AwayPool::Has(Bytes offset) const {
  const auto is_there = [offset](const Range& chunk) { return chunk.first == offset; };
  return OpenAt(offset) || std::any_of(closed_.begin(), closed_.end(), is_there) ||
         (IsGrowing() && is_there(coming_));
}

void AwayPool::Close(const Range& chunk) {
  RAVEN_CHECK(std::erase(chunks_, chunk) == 1);
  size_ -= chunk.second;
  CloseChunk(chunk.first, chunk.second);
  closed_.push_back(chunk);
}

void AwayPool::Open(const Range& chunk) {
  RAVEN_CHECK(std::erase(closed_, chunk) == 1);
  OpenChunk(chunk.first, chunk.second);
  chunks_.insert(std::lower_bound(chunks_.begin(), chunks_.end(), chunk), chunk);
  size_ += chunk.second;
}

void AwayPool::LetGo(const Range& chunk) {
  RAVEN_CHECK(std::erase(closed_, chunk) == 1);
  leaving_ += chunk.second;
}

std::optional<Range> AwayPool::Shrink() {
  RAVEN_CHECK(!IsGrowing());
  if (chunks_.empty()) return std::nullopt;
  const Range chunk = chunks_.back();
  if (!IsFree(chunk.first, chunk.second)) return std::nullopt;
  Close(chunk);
  LetGo(chunk);
  return chunk;
}

void AwayPool::Shrunk(const Range& chunk) {
  RAVEN_CHECK(chunk.second <= leaving_);
  RemoveChunk(chunk.first, chunk.second);
  leaving_ -= chunk.second;
}

void AwayPool::ShrinkFailed(Bytes bytes) {
  RAVEN_CHECK(bytes <= leaving_);
  leaving_ -= bytes;
  stuck_ += bytes;
}

Bytes AwayPool::committed() const {
  Bytes all = size_ + leaving_ + stuck_ + coming_.second;
  for (const Range& chunk : closed_) all += chunk.second;
  return all;
}

void AwayPool::CheckInvariants() const {
  ExtentMap::CheckInvariants();
  Bytes open;
  for (const Range& chunk : chunks_) open += chunk.second;
  RAVEN_CHECK(open == size_);
  RAVEN_CHECK(std::is_sorted(chunks_.begin(), chunks_.end()));
  // Of closed chunks what lives there is held.
  RAVEN_CHECK(held() >= size_ && (!closed_.empty() || held() == size_));
}

}  // namespace ravenstore::core
