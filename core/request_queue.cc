#include "core/request_queue.h"

#include <utility>

#include "core/check.h"

namespace ravenstore::core {

const Request& RequestQueue::Push(Request request) {
  request.id = ++last_id_;
  Line& line = lines_[request];
  line.ids.insert(request.id);
  if (request.fail_fast) line.failing_fast.insert(request.id);
  deadlines_.Arm(request.id, request.deadline);
  if (request.is_fetch()) RAVEN_CHECK(fetches_.emplace(request.tensor, request.id).second);
  return requests_.emplace(request.id, request).first->second;
}

Request RequestQueue::Pop(uint64_t id) {
  const Request request = requests_.at(id);
  requests_.erase(id);
  deadlines_.Disarm(id);
  if (request.is_fetch()) fetches_.erase(request.tensor);
  const auto line = lines_.find(request);
  if (line == lines_.end()) return request;  // it was abandoned
  line->second.ids.erase(id);
  line->second.failing_fast.erase(id);
  if (line->second.ids.empty()) lines_.erase(line);
  return request;
}

size_t RequestQueue::Waiting(const ArenaId& arena) const {
  const auto line = lines_.find(arena);
  return line == lines_.end() ? 0 : line->second.ids.size();
}

const Request& RequestQueue::First(const ArenaId& arena) const {
  return requests_.at(*lines_.at(arena).ids.begin());
}

const Request* RequestQueue::FirstFailingFast(const ArenaId& arena) const {
  const auto line = lines_.find(arena);
  if (line == lines_.end() || line->second.failing_fast.empty()) return nullptr;
  return &requests_.at(*line->second.failing_fast.begin());
}

bool RequestQueue::IsOlder(const ArenaId& arena, const ArenaId& other) const {
  const auto line = lines_.find(other);
  return line == lines_.end() || *lines_.at(arena).ids.begin() < *line->second.ids.begin();
}

const Request& RequestQueue::FetchOf(TensorId tensor) const {
  return requests_.at(fetches_.at(tensor));
}

const Request* RequestQueue::Overdue(Tick now) const {
  const auto id = deadlines_.Due(now);
  return id ? &requests_.at(*id) : nullptr;
}

void RequestQueue::Abandon(const ArenaId& arena) {
  const auto line = lines_.find(arena);
  if (line == lines_.end()) return;
  abandoned_.push_back(std::move(line->second.ids));
  lines_.erase(line);
}

std::vector<Request> RequestQueue::PopAbandoned(uint32_t most) {
  std::vector<Request> out;
  for (uint32_t i = 0; i < most && !abandoned_.empty(); ++i) {
    std::set<uint64_t>& ids = abandoned_.front();
    if (ids.empty()) {
      abandoned_.pop_front();
      continue;
    }
    const uint64_t id = ids.extract(ids.begin()).value();
    if (requests_.contains(id)) out.push_back(Pop(id));
  }
  return out;
}

void RequestQueue::CheckInvariants() const {
  size_t standing = 0;
  for (const auto& [arena, line] : lines_) {
    RAVEN_CHECK(!line.ids.empty());
    standing += line.ids.size();
    for (const uint64_t id : line.ids) {
      const Request& request = requests_.at(id);
      RAVEN_CHECK(ArenaId(request) == arena);
      RAVEN_CHECK(request.fail_fast == line.failing_fast.contains(id));
    }
  }
  for (const auto& ids : abandoned_) {
    for (const uint64_t id : ids) standing += requests_.contains(id) ? 1 : 0;
  }
  RAVEN_CHECK(standing == requests_.size());
  RAVEN_CHECK(deadlines_.size() == requests_.size());
  size_t fetches = 0;
  for (const auto& [id, request] : requests_) {
    if (!request.is_fetch()) continue;
    ++fetches;
    RAVEN_CHECK(fetches_.at(request.tensor) == id);
  }
  RAVEN_CHECK(fetches == fetches_.size());
}

}  // namespace ravenstore::core
