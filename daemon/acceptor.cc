#include "daemon/acceptor.h"

#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "daemon/connections.h"
#include "daemon/packets.h"
#include "ipc/clock.h"

namespace ravenstore::daemon {

using core::Error;
using core::ErrorCode;

namespace {

// Of one turn: an operation of a client takes about ten turns of the thread, so one that others
// fill must be short.
constexpr int kAcceptsPerTurn = 6;
constexpr uint32_t kUnitsOfConnection = 4;
// A job may be a client and a legacy job at the same time.
constexpr uint64_t kConnectionsOfClient = 4;
// Tools, and clients that did not say Hello yet.
constexpr uint64_t kToolsMax = 128;
// Connections beyond what all users may have together, half of them root's and half of the daemon's
// own user's.
constexpr uint64_t kReserved = 16;
// Sockets that were turned away and are not closed yet: more are not accepted meanwhile.
constexpr uint32_t kTurnedAwayMax = 256;
// Its socket and its process.
constexpr size_t kDescriptorsOfConnection = 2;
// Descriptors also come free where no connection ends: with slabs.
constexpr std::chrono::milliseconds kPause(100);

}  // namespace

Acceptor::Acceptor(ipc::Listener listener, Options options)
    : listener_(std::move(listener)),
      options_(std::move(options)),
      places_("connections", kConnectionsOfClient * options_.clients + kToolsMax) {}

core::Status Acceptor::Begin() {
  if (Watch()) return core::Ok();
  return Error{ErrorCode::kSystem, "epoll_ctl failed (fs.epoll.max_user_watches)"};
}

bool Acceptor::Watch() {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = options_.key;
  return ::epoll_ctl(options_.epoll, EPOLL_CTL_ADD, listener_.get(), &event) == 0;
}

void Acceptor::Stop() {
  ::epoll_ctl(options_.epoll, EPOLL_CTL_DEL, listener_.get(), nullptr);
  listener_.Close();
  options_.ending->Close(std::move(accepted_), kUnknownUid);
}

void Acceptor::AcceptSome() {
  for (int i = 0; i < kAcceptsPerTurn && listener_ && !paused_until_; ++i) {
    if (rejected_ >= kTurnedAwayMax)
      return Pause({ErrorCode::kLimit, "too many that were turned away are not closed yet"});
    if (!accepted_) {
      auto socket = ipc::Accept(listener_.get());
      if (!socket.ok()) {
        if (socket.error().code != ErrorCode::kTimedOut) Pause(socket.error());
        return;
      }
      accepted_ = std::move(socket).value();
    }
    if (ipc::HasLeft(accepted_.get())) {
      // Already over: not worth finding out whose it was.
      ++rejected_;
      options_.ending->Close(std::move(accepted_), kUnknownUid, [this] { --rejected_; });
      continue;
    }
    auto peer = ipc::PeerOf(accepted_.get());
    if (!peer.ok() && peer.error().code == ErrorCode::kLimit) return Pause(peer.error());
    ipc::UniqueFd socket = std::move(accepted_);
    if (peer.ok()) {
      Admit(std::move(socket), std::move(*peer));
    } else {
      spdlog::debug("a connection was turned away: {}", core::Describe(peer.error()));
      Reject(std::move(socket), kUnknownUid, peer.error());
    }
  }
}

void Acceptor::Admit(ipc::UniqueFd socket, ipc::Peer peer) {
  const uid_t uid = peer.uid;
  bool reserved = false;
  if (const auto place = TakePlace(uid, &reserved); !place.ok())
    return Reject(std::move(socket), uid, place.error());
  pause_was_logged_ = false;
  const auto admitted = options_.admit(socket, peer, reserved);
  if (admitted.ok()) return;
  GivePlace(core::TenantId{uid}, reserved);
  Reject(std::move(socket), uid, admitted.error());
}

core::Status Acceptor::TakePlace(uid_t uid, bool* reserved) {
  const core::TenantId user{uid};
  options_.turns->Spend(user, kUnitsOfConnection);
  core::Status place = options_.may_connect(uid);
  if (place.ok()) place = places_.Take(user);
  if (place.ok()) {
    place = options_.descriptors->Take(user, kDescriptorsOfConnection);
    if (!place.ok()) places_.Give(user);
  }
  if (place.ok() || !IsAdmin(uid)) return place;
  const uint64_t most = ::geteuid() == 0 ? kReserved : kReserved / 2;
  *reserved = reserved_[user] < most;
  if (!*reserved) return place;
  ++reserved_[user];
  return core::Ok();
}

void Acceptor::GivePlace(core::TenantId user, bool reserved) {
  closed_one_ = true;
  if (reserved) {
    --reserved_[user];
    return;
  }
  places_.Give(user);
  options_.descriptors->Give(user, kDescriptorsOfConnection);
}

// The last word to a connection that is not served. If it does not get that, it sees the hang-up.
void Acceptor::Reject(ipc::UniqueFd socket, uid_t uid, const Error& why) {
  [[maybe_unused]] const core::Status sent =
      ipc::Send(socket.get(), FailureOf(0, why).SerializeAsString());
  ++rejected_;
  options_.ending->Close(std::move(socket), uid, [this] { --rejected_; });
}

void Acceptor::Pause(const Error& why) {
  if (!pause_was_logged_)
    spdlog::warn("no more connections are accepted for now: {}", core::Describe(why));
  pause_was_logged_ = true;
  closed_one_ = false;
  paused_until_ = ipc::Now() + kPause;
  // It stays readable: looking for that would keep this thread busy.
  ::epoll_ctl(options_.epoll, EPOLL_CTL_DEL, listener_.get(), nullptr);
}

void Acceptor::Resume() {
  if (!paused_until_ || (!closed_one_ && ipc::Now() < *paused_until_)) return;
  paused_until_.reset();
  if (listener_ && !Watch())
    return Pause({ErrorCode::kLimit, "epoll_ctl failed (fs.epoll.max_user_watches)"});
  // One that was accepted and not admitted yet: the listener may have no other to tell of.
  if (accepted_) AcceptSome();
}

}  // namespace ravenstore::daemon
