// The attached clients, and how closely the planner loop polls each of them.
//
// A client is hot while it sends: the loop polls it in every pass. Then it is cold, and rings its
// doorbell. For a second after it was active it is warm if it has tensors that are not on their
// device: its log is read often, because its puts may let the loop move tensors.
//
// Owns: the sessions, and the epoll descriptor that the loop sleeps on. Threads: the planner loop.
// Errors: kSystem from Open. Cost: O(1) a call, unless it says more.
#pragma once

#include <sys/epoll.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/result.h"
#include "core/types.h"
#include "daemon/attachment.h"
#include "daemon/loop_state.h"
#include "daemon/session.h"
#include "ipc/unique_fd.h"

namespace ravenstore::daemon {

class Sessions {
 public:
  using Map = std::unordered_map<core::ClientId, std::unique_ptr<Session>>;
  // Says goodbye to a client, for a reason. Must not block.
  using Goodbye = std::function<void(core::ClientId, std::string)>;

  // `state` outlives this.
  Sessions(LoopState* state, Goodbye goodbye) : state_(*state), goodbye_(std::move(goodbye)) {}
  // `mailbox`: another descriptor that ends a wait.
  core::Status Open(int mailbox);

  // ---- Clients.
  // Null: there is none. A session stays until Remove().
  Session* Find(core::ClientId client) const;
  // Null, too, once its client has left.
  Session* FindPresent(core::ClientId client) const;
  const Map& all() const { return sessions_; }
  // Log entries that clients dropped. O(clients).
  uint64_t log_dropped() const;
  void Add(std::shared_ptr<Attachment> attachment);
  // The client is dead or detached: it is polled no longer. O(clients).
  void Leave(Session& session);
  std::shared_ptr<Session> Remove(core::ClientId client);
  // The client broke the protocol: its requests are no longer read, and it is expelled.
  void Expel(Session& session, const std::string& why);
  void CountBadRequest() { ++bad_requests_; }
  uint64_t bad_requests() const { return bad_requests_; }

  // ---- Polling.
  // Calls poll(session) for the hot clients whose users have units left; it returns whether there
  // was work. A client without work for longer than `spin` becomes cold. Returns whether there was
  // work, or some is left.
  template <typename Poll>
  bool PollHot(core::Duration spin, Poll poll);
  // False if a client has sent something: that client stays hot.
  bool CoolDownAll();
  // Calls read(session), which returns whether its log had entries, for the cold clients that
  // `wants`. O(clients).
  template <typename Wants, typename Read>
  void ReadCold(Wants wants, Read read);
  // The same for those that are warm.
  template <typename Read>
  void ReadWarm(Read read);
  bool HasWarm() const;
  // Both make clients that rang their doorbells hot. Wait sleeps until one rings, something is in
  // the mailbox or `bound` is over, and updates LoopState::now.
  void PollDoorbells();
  void Wait(core::Duration bound);

 private:
  // How long after it was active a client may be warm.
  static constexpr core::Duration kWarmFor = std::chrono::seconds(1);

  void HandleEvents(std::span<const epoll_event> events);
  void MakeHot(Session& session);
  // The client rings from now on; false when it has sent something already.
  bool EndPolling(Session& session);
  void TrackRecent(Session& session);
  bool IsRecent(const Session& session) const {
    return state_.now - session.last_active < kWarmFor;
  }
  bool IsWarm(const Session& session) const;

  LoopState& state_;
  const Goodbye goodbye_;
  ipc::UniqueFd epoll_;
  Map sessions_;
  std::vector<Session*> hot_;
  size_t hot_begin_ = 0;          // the client that PollHot begins with
  std::vector<Session*> recent_;  // were hot in the last kWarmFor, or logged something since
  uint64_t bad_requests_ = 0;
};

template <typename Poll>
bool Sessions::PollHot(core::Duration spin, Poll poll) {
  bool busy = false;
  std::optional<core::ClientId> left_out;
  // By index: a request may change the list (a client that breaks the protocol leaves it). Not from
  // the first each time: the clients of a user who wants more than a pass has take turns.
  size_t looks = hot_.size();
  for (size_t i = hot_begin_; looks > 0 && !hot_.empty(); --looks) {
    if (i >= hot_.size()) i = 0;
    Session* session = hot_[i];
    if (state_.UnitsLeft(*session) == 0) {
      busy = true;
      if (!left_out) left_out = session->id();
    } else if (poll(*session)) {
      busy = true;
    } else if (state_.now - session->last_active > spin && EndPolling(*session)) {
      hot_[i] = hot_.back();
      hot_.pop_back();
      continue;
    }
    ++i;
  }
  if (left_out) {
    const auto next = std::find_if(hot_.begin(), hot_.end(), [&](const Session* session) {
      return session->id() == *left_out;
    });
    hot_begin_ = static_cast<size_t>(next - hot_.begin());
  }
  return busy;
}

template <typename Wants, typename Read>
void Sessions::ReadCold(Wants wants, Read read) {
  for (auto& [id, session] : sessions_) {
    if (session->hot || session->departed || !wants(*session) || !read(*session)) continue;
    session->last_active = state_.now;
    TrackRecent(*session);
  }
}

template <typename Read>
void Sessions::ReadWarm(Read read) {
  for (size_t i = 0; i < recent_.size();) {
    Session& session = *recent_[i];
    if (!session.hot && !IsRecent(session)) {
      session.recent = false;
      recent_[i] = recent_.back();
      recent_.pop_back();
      continue;
    }
    if (!session.hot && IsWarm(session) && read(session)) session.last_active = state_.now;
    ++i;
  }
}

}  // namespace ravenstore::daemon
