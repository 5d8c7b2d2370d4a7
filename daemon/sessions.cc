#include "daemon/sessions.h"

#include <spdlog/spdlog.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "ipc/clock.h"
#include "ipc/wake.h"

namespace ravenstore::daemon {

using core::ClientId;
using core::Duration;
using core::ToInt;
using std::chrono::seconds;

namespace {

constexpr int kEpollEvents = 64;
constexpr uint64_t kMailboxKey = 0;  // client ids begin at 1

}  // namespace

core::Status Sessions::Open(int mailbox) {
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return core::Error{core::ErrorCode::kSystem, "epoll_create1 failed"};
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kMailboxKey;
  RAVEN_CHECK(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, mailbox, &event) == 0);
  return core::Ok();
}

Session* Sessions::Find(ClientId client) const {
  const auto found = sessions_.find(client);
  return found == sessions_.end() ? nullptr : found->second.get();
}

Session* Sessions::FindPresent(ClientId client) const {
  Session* session = Find(client);
  return session == nullptr || session->departed ? nullptr : session;
}

uint64_t Sessions::log_dropped() const {
  uint64_t dropped = 0;
  for (const auto& [id, session] : sessions_) dropped += session->log_dropped();
  return dropped;
}

void Sessions::Add(std::shared_ptr<Attachment> attachment) {
  const ClientId id = attachment->id;
  auto session = std::make_unique<Session>(std::move(attachment));
  epoll_event poll{};
  poll.events = EPOLLIN | EPOLLET;
  poll.data.u64 = ToInt(id);
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, session->attachment().doorbell.fd(), &poll) != 0) {
    // The loop would not notice its doorbell. The system limits the watches of a user.
    const int error = errno;
    spdlog::warn("client {} cannot be watched: {}", ToInt(id), std::strerror(error));
    goodbye_(id, std::string("the daemon cannot watch one more client (") + std::strerror(error) +
                     "): end some jobs, or raise fs.epoll.max_user_watches");
  }
  session->last_active = state_.now;
  MakeHot(*session);
  sessions_.emplace(id, std::move(session));
}

void Sessions::Leave(Session& session) {
  session.departed = true;
  session.hot = false;
  std::erase(hot_, &session);
  std::erase(recent_, &session);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, session.attachment().doorbell.fd(), nullptr);
}

std::shared_ptr<Session> Sessions::Remove(ClientId client) {
  return std::move(sessions_.extract(client).mapped());
}

void Sessions::Expel(Session& session, const std::string& why) {
  if (std::exchange(session.faulty, true)) return;
  ++bad_requests_;
  spdlog::warn("client {}: {}; its requests are no longer read", ToInt(session.id()), why);
  goodbye_(session.id(), why);
}

bool Sessions::CoolDownAll() {
  for (; !hot_.empty(); hot_.pop_back()) {
    if (!EndPolling(*hot_.back())) return false;
  }
  return true;
}

bool Sessions::HasWarm() const {
  return std::ranges::any_of(recent_, [this](const Session* session) { return IsWarm(*session); });
}

void Sessions::PollDoorbells() {
  std::array<epoll_event, kEpollEvents> events;
  const int n = ::epoll_wait(epoll_.get(), events.data(), kEpollEvents, 0);
  HandleEvents({events.data(), static_cast<size_t>(std::max(n, 0))});
}

void Sessions::Wait(Duration bound) {
  timespec timeout{};
  timeout.tv_sec = std::chrono::duration_cast<seconds>(bound).count();
  timeout.tv_nsec = (bound % seconds(1)).count();
  std::array<epoll_event, kEpollEvents> events;
  // Its wrapper is in glibc 2.35 and newer.
  int n = static_cast<int>(::syscall(SYS_epoll_pwait2, epoll_.get(), events.data(), kEpollEvents,
                                     bound == Duration::max() ? nullptr : &timeout, nullptr, 0));
  if (n < 0 && errno == ENOSYS) {
    // Before Linux 5.11: whole milliseconds.
    const auto milliseconds =
        bound == Duration::max()
            ? -1
            : std::chrono::ceil<std::chrono::milliseconds>(std::min<Duration>(bound, seconds(60)))
                  .count();
    n = ::epoll_wait(epoll_.get(), events.data(), kEpollEvents, static_cast<int>(milliseconds));
  }
  state_.now = ipc::Now();
  HandleEvents({events.data(), static_cast<size_t>(std::max(n, 0))});
}

// Doorbells are edge-triggered: each ring shows once, and nothing need be read to silence it.
void Sessions::HandleEvents(std::span<const epoll_event> events) {
  for (const epoll_event& event : events) {
    if (event.data.u64 == kMailboxKey) continue;
    if (Session* session = Find(ClientId{static_cast<uint32_t>(event.data.u64)})) MakeHot(*session);
  }
}

void Sessions::MakeHot(Session& session) {
  if (session.hot || session.departed) return;
  ipc::StayAwake(&session.segment()->header.daemon_asleep);
  session.last_active = state_.now;
  session.hot = true;
  hot_.push_back(&session);
}

bool Sessions::EndPolling(Session& session) {
  if (!ipc::GoToSleep(&session.segment()->header.daemon_asleep,
                      [&session] { return session.HasWork(); })) {
    return false;
  }
  session.hot = false;
  TrackRecent(session);
  return true;
}

void Sessions::TrackRecent(Session& session) {
  if (!session.recent) recent_.push_back(&session);
  session.recent = true;
}

bool Sessions::IsWarm(const Session& session) const {
  return !session.departed && IsRecent(session) &&
         state_.views().View(session.id()).away_used() > core::Bytes{0};
}

}  // namespace ravenstore::daemon
