#include "client/control.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <system_error>
#include <utility>
#include <variant>

#include "client/no_signals.h"
#include "ipc/clock.h"
#include "ipc/socket.h"

namespace ravenstore::client {
namespace {

using core::Error;
using core::ErrorCode;
using core::Result;
using core::Status;
using core::Tick;

// How often a packet that the process has no descriptors for is tried again.
constexpr int kDescriptorPollMs = 20;
constexpr auto kSlice = std::chrono::milliseconds(50);
// A daemon that is alive makes room in its socket immediately.
constexpr auto kSendTimeout = std::chrono::seconds(5);

Error FromDaemon(const wire::Failure& failure) {
  const auto code = static_cast<ErrorCode>(failure.code);
  if (failure.code < static_cast<uint32_t>(ErrorCode::kInvalidArgument) ||
      failure.code > static_cast<uint32_t>(ErrorCode::kUnsupported)) {
    return {ErrorCode::kCorrupt, "the daemon failed with an unknown code: " + failure.message};
  }
  return {code, failure.message};
}

Status Parse(ipc::Packet packet, Incoming* incoming) {
  std::optional<wire::DaemonPacket> decoded = wire::Decode(packet.bytes);
  if (!decoded) return Error{ErrorCode::kCorrupt, "the daemon sent a malformed packet"};
  incoming->packet = *std::move(decoded);
  incoming->descriptors = std::move(packet.descriptors);
  return core::Ok();
}

}  // namespace

ControlLink::ControlLink(ipc::UniqueFd socket) : socket_(std::move(socket)) {}

ControlLink::~ControlLink() {
  Stop();
}

Result<std::unique_ptr<ControlLink>> ControlLink::Connect(const std::string& path,
                                                          const wire::ClientPacket& hello,
                                                          Tick deadline, Incoming* welcome) {
  RAVEN_ASSIGN_OR_RETURN(ipc::UniqueFd socket, ipc::ConnectToDaemon(path, deadline));
  std::unique_ptr<ControlLink> link(new ControlLink(std::move(socket)));
  // A daemon that has no room for us says so and hangs up without having read anything.
  if (Status sent = link->Send(hello, deadline);
      !sent.ok() && sent.error().code != ErrorCode::kUnavailable) {
    return std::move(sent).error();
  }
  if (Status greeted = link->AwaitWelcome(path, deadline, welcome); !greeted.ok()) {
    link->Withdraw();
    return std::move(greeted).error();
  }
  return link;
}

Status ControlLink::AwaitWelcome(const std::string& path, Tick deadline, Incoming* welcome) {
  if (auto readable = ipc::WaitReadable(socket_.get(), deadline); !readable.ok()) {
    if (readable.error().code != ErrorCode::kTimedOut) return std::move(readable).error();
    return Error{ErrorCode::kTimedOut, "the daemon at " + path + " did not answer in time"};
  }
  RAVEN_ASSIGN_OR_RETURN(auto packet, ipc::Receive(socket_.get(), /*wait=*/false));
  if (!packet) return Error{ErrorCode::kUnavailable, "the daemon at " + path + " hung up"};
  RAVEN_RETURN_IF_ERROR(Parse(*std::move(packet), welcome));
  if (const auto* failure = std::get_if<wire::Failure>(&welcome->packet.body)) {
    return FromDaemon(*failure);
  }
  if (!std::holds_alternative<wire::Welcome>(welcome->packet.body)) {
    return Error{ErrorCode::kCorrupt, "the daemon at " + path + " did not say welcome"};
  }
  return core::Ok();
}

void ControlLink::Withdraw() {
  // Without room in the socket the daemon reads nothing, and would not read this.
  static_cast<void>(Send({.request = 0, .body = wire::Detach{}}, ipc::Now()));
}

Status ControlLink::Start(Callbacks callbacks) {
  stop_event_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_event_) return Error{ErrorCode::kSystem, std::string("eventfd: ") + strerror(errno)};
  callbacks_ = std::move(callbacks);
  try {
    // Host programs' handlers must not run on a thread of ours: it starts with every signal
    // blocked.
    const NoSignals blocked;
    watcher_ = std::thread([this] { Watch(); });
  } catch (const std::system_error& error) {
    return Error{ErrorCode::kSystem, std::string("starting the watcher: ") + error.what()};
  }
  return core::Ok();
}

void ControlLink::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (!watcher_.joinable()) return;
  const uint64_t one = 1;
  // An eventfd takes a write of 1 unless 2^64 - 2 are pending.
  [[maybe_unused]] const ssize_t written = write(stop_event_.get(), &one, sizeof(one));
  watcher_.join();
}

bool ControlLink::WaitForStop(core::Duration bound) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, bound, [this] { return stopping_; });
}

void ControlLink::DropInChild() {
  socket_.reset();
  stop_event_.reset();
}

Status ControlLink::Send(const wire::ClientPacket& packet, Tick deadline) {
  const std::string bytes = wire::Encode(packet);
  while (true) {
    Status sent = ipc::Send(socket_.get(), bytes);
    if (sent.ok() || sent.error().code != ErrorCode::kTimedOut) return sent;
    if (auto room = ipc::WaitWritable(socket_.get(), deadline); !room.ok()) {
      return Error{ErrorCode::kTimedOut, "the daemon does not read its socket"};
    }
  }
}

Result<Incoming> ControlLink::Call(wire::ClientPacket request, Tick deadline,
                                   const PhaseWord& phase) {
  {
    std::lock_guard lock(mutex_);
    request.request = ++last_request_;
    calls_[request.request];
  }
  Status sent = Send(request, std::min(deadline, ipc::Now() + kSendTimeout));
  std::unique_lock lock(mutex_);
  const auto call = calls_.find(request.request);
  // A daemon that is gone may come back until the session is lost; then that is what is said.
  while (sent.ok() && !call->second && !stopping_ &&
         phase.load(std::memory_order_acquire) == Phase::kAttached && ipc::Now() < deadline) {
    changed_.wait_for(lock, kSlice);
  }
  std::optional<Incoming> answer = std::move(call->second);
  calls_.erase(call);
  lock.unlock();
  if (answer) {
    if (const auto* failure = std::get_if<wire::Failure>(&answer->packet.body)) {
      return FromDaemon(*failure);
    }
    return *std::move(answer);
  }
  const Phase now = phase.load(std::memory_order_acquire);
  if (now != Phase::kAttached) return RefusalOf(now);
  if (!sent.ok()) return std::move(sent).error();
  return Error{ErrorCode::kTimedOut, "the daemon did not answer in time"};
}

void ControlLink::WakeCallers() {
  std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void ControlLink::Watch() {
  pthread_setname_np(pthread_self(), "raven-watcher");
  bool stopped = false;
  try {
    stopped = ReadUntilStopped();
  } catch (const std::exception&) {
    // No memory for a packet: what it said is missing for good. The store is lost then, and not the
    // process that it is a guest in.
  }
  if (!stopped) callbacks_.on_hangup();
}

bool ControlLink::ReadUntilStopped() {
  while (true) {
    pollfd events[2] = {{socket_.get(), POLLIN, 0}, {stop_event_.get(), POLLIN, 0}};
    if (poll(events, 2, -1) < 0 && errno != EINTR) return false;
    if (events[1].revents != 0) return true;
    if (events[0].revents != 0 && !ReadAll()) return false;
  }
}

bool ControlLink::ReadAll() {
  while (true) {
    Result<std::optional<ipc::Packet>> packet = ipc::ReceiveOrLeave(socket_.get());
    if (!packet.ok()) {
      if (packet.error().code == ErrorCode::kTimedOut) return true;
      if (packet.error().code == ErrorCode::kLimit) {
        // It waits there until the program closes something.
        callbacks_.on_missed(packet.error());
        pollfd stop{stop_event_.get(), POLLIN, 0};
        poll(&stop, 1, kDescriptorPollMs);
        return true;
      }
      // A packet over a bound was consumed; what can be read after it still counts.
      if (packet.error().code != ErrorCode::kCorrupt) return false;
      callbacks_.on_missed(packet.error());
      continue;
    }
    if (!packet->has_value()) return false;
    // A malformed packet is dropped: which request it answered is not known.
    if (Incoming incoming; Parse(**std::move(packet), &incoming).ok()) {
      Dispatch(std::move(incoming));
    }
  }
}

void ControlLink::Dispatch(Incoming incoming) {
  const uint64_t id = incoming.packet.request;
  if (id == 0) return callbacks_.on_packet(std::move(incoming));
  std::lock_guard lock(mutex_);
  const auto call = calls_.find(id);
  if (call == calls_.end()) return;  // its caller gave up
  call->second = std::move(incoming);
  changed_.notify_all();
}

}  // namespace ravenstore::client
