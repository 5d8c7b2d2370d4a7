#include "daemon/session.h"

#include <algorithm>

#include "core/check.h"

namespace ravenstore::daemon {

namespace {
// A client asks for the words right after the failure, of a batch for the first one's; older ones
// may be forgotten.
constexpr size_t kFailuresRemembered = 4096;
// Those that its user has no memory left for.
constexpr size_t kFailuresUncharged = 16;
// A lane that never ends delays the others by this many entries.
constexpr uint32_t kLaneTurn = 64;
}  // namespace

ArrivalWords::ArrivalWords() {
  for (uint32_t i = proto::kArrivalWords; i > 0; --i) free_.push_back(static_cast<uint16_t>(i - 1));
}

std::optional<proto::WordValue> ArrivalWords::Take() {
  if (free_.empty()) return std::nullopt;
  const uint16_t index = free_.back();
  free_.pop_back();
  return proto::WordValue{index, ++last_value_};
}

Session::Session(std::shared_ptr<Attachment> attachment)
    : maps(&attachment->segment->maps),
      attachment_(std::move(attachment)),
      requests_(&attachment_->segment->requests) {}

Session::Row& Session::RowOf(core::SlotId slot) {
  const uint32_t index = core::ToInt(slot);
  RAVEN_CHECK(index < proto::kSlotCapacity);
  rows_ = std::max(rows_, index + 1);
  if (index / kRowsPerChunk >= table_.size()) table_.resize(index / kRowsPerChunk + 1);
  std::unique_ptr<Row[]>& chunk = table_[index / kRowsPerChunk];
  if (chunk == nullptr) chunk = std::make_unique<Row[]>(kRowsPerChunk);
  return chunk[index % kRowsPerChunk];
}

const Session::Row* Session::Find(core::SlotId slot) const {
  const uint32_t index = core::ToInt(slot);
  if (index >= rows_ || table_[index / kRowsPerChunk] == nullptr) return nullptr;
  return &table_[index / kRowsPerChunk][index % kRowsPerChunk];
}

core::TensorId Session::TensorAt(core::SlotId slot) const {
  const Row* row = Find(slot);
  return row != nullptr && row->has_tensor() ? row->tensor : core::kNoTensor;
}

bool Session::IsTaken(core::SlotId slot) const {
  const Row* row = Find(slot);
  return row != nullptr && row->tensor != core::kNoTensor;
}

uint64_t Session::GrowthFor(core::SlotId slot) const {
  const uint32_t index = core::ToInt(slot);
  const size_t chunk = index / kRowsPerChunk;
  const bool absent = chunk >= table_.size() || table_[chunk] == nullptr;
  const uint64_t rows = index < rows_ ? 0 : index + 1 - rows_;
  return (absent ? kRowsPerChunk * sizeof(Row) : 0) + rows * sizeof(uint32_t);
}

uint32_t Session::LanesUsed() {
  return std::min(segment()->header.log_lanes.load(std::memory_order_acquire), proto::kLogLanes);
}

bool Session::NextAccess(proto::Access* access) {
  if (sealed) return false;
  const uint32_t lanes = LanesUsed();
  const auto next = [&] {
    ++lane_;
    lane_taken_ = 0;
  };
  if (lane_taken_ >= kLaneTurn) next();
  for (uint32_t i = 0; i < lanes; ++i, next()) {
    const uint32_t lane = lane_ % lanes;
    if (log_dead_[lane]) continue;
    if (!log_[lane]) log_[lane].emplace(&segment()->log[lane]);
    const ipc::Take take = log_[lane]->Pop(access);
    if (take == ipc::Take::kEntry) {
      ++lane_taken_;
      return true;
    }
    // A corrupt lane shows nothing any more: the client hides its puts from us, to its own loss.
    log_dead_[lane] = take == ipc::Take::kCorrupt;
  }
  return false;
}

bool Session::HasWork() {
  if (faulty || sealed) return false;
  if (requests_.HasWork() || maps.HasWork()) return true;
  const uint32_t lanes = LanesUsed();
  for (uint32_t i = 0; i < lanes; ++i) {
    if (log_dead_[i]) continue;
    if (!log_[i] || log_[i]->HasWork()) return true;
  }
  return false;
}

bool Session::LogWasDropped() {
  if (sealed) return false;
  uint64_t dropped = 0;
  for (const auto& lane : log_) {
    if (lane) dropped += lane->dropped();
  }
  if (dropped == log_dropped_) return false;
  log_dropped_ = dropped;
  return true;
}

uint64_t Session::RememberFailure(core::SlotId slot, std::string message, bool charged) {
  const size_t most = charged ? kFailuresRemembered : kFailuresUncharged;
  uint64_t freed = 0;
  while (failures_.size() >= most) {
    if (failures_.front().charged) freed += CostOf(failures_.front().message);
    failures_.pop_front();
  }
  failures_.push_back({slot, std::move(message), charged});
  return freed;
}

std::string Session::Failure(core::SlotId slot) const {
  const auto last = std::find_if(failures_.rbegin(), failures_.rend(),
                                 [slot](const Failed& failure) { return failure.slot == slot; });
  return last == failures_.rend() ? std::string() : last->message;
}

}  // namespace ravenstore::daemon
