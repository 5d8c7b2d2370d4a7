#include "client/session.h"

#include <pthread.h>
#include <stdlib.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "client/call_recorder.h"
#include "client/lease.h"
#include "client/program_name.h"
#include "client/ravenstore.h"
#include "device/open.h"
#include "ipc/clock.h"
#include "ipc/wake.h"
#include "proto/packet.h"

namespace ravenstore::client {
namespace {

using core::Bytes;
using core::Error;
using core::ErrorCode;
using core::Result;
using core::Status;
using core::Tick;

constexpr auto kDetachTimeout = std::chrono::seconds(10);
// For the marks of a recording behind the last ticket.
constexpr auto kFinishTimeout = std::chrono::seconds(1);

// The sessions of this process, for the fork handlers. Never destroyed: a fork may come at any
// time.
struct Registry {
  std::mutex mutex;
  std::vector<Session*> sessions;
  // Sessions that ended while streams may still have used their memory.
  std::vector<Session*> kept;
};
Registry& TheRegistry() {
  static auto* registry = new Registry;
  return *registry;
}

void BeforeFork() {
  TheRegistry().mutex.lock();
  for (Session* session : TheRegistry().sessions) session->LockForFork();
}
void AfterForkInParent() {
  for (Session* session : TheRegistry().sessions) session->UnlockAfterFork();
  TheRegistry().mutex.unlock();
}
void AfterForkInChild() {
  for (Session* session : TheRegistry().sessions) {
    session->BecomeForked();
    session->UnlockAfterFork();
  }
  TheRegistry().mutex.unlock();
}

void Register(Session* session) {
  static const int handlers = pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild);
  static_cast<void>(handlers);
  std::lock_guard lock(TheRegistry().mutex);
  TheRegistry().sessions.push_back(session);
}
void Unregister(Session* session, bool keep) {
  std::lock_guard lock(TheRegistry().mutex);
  std::erase(TheRegistry().sessions, session);
  if (keep) TheRegistry().kept.push_back(session);
}

// $RAVENSTORE_DEBUG is a list of words.
bool DebugAsksFor(std::string_view word) {
  const char* value = getenv("RAVENSTORE_DEBUG");
  std::string_view rest = value != nullptr ? value : "";
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(','), rest.size());
    if (rest.substr(0, end) == word) return true;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return false;
}

}  // namespace

std::string ChosenSocket(const std::string& given) {
  if (!given.empty()) return given;
  const char* chosen = getenv(proto::kSocketPathVariable);
  return chosen != nullptr && *chosen != '\0' ? chosen : proto::kDefaultSocketPath;
}

Session::Session() : tensors_(this) {}
Session::~Session() = default;

Result<Session*> Session::Connect(const ConnectOptions& options) {
  std::unique_ptr<Session, void (*)(Session*)> session(new Session, [](Session* failed) {
    // The daemon has made room for this client: one that tries again and again must not fill it.
    if (failed->control_ != nullptr) failed->control_->Withdraw();
    delete failed;
  });
  RAVEN_RETURN_IF_ERROR(session->Attach(options));
  Session* attached = session.get();
  Register(attached);
  Status started = attached->mapper_->Start();
  if (started.ok()) {
    started = attached->control_->Start({
        .on_packet = [attached](Incoming incoming) { attached->OnPacket(std::move(incoming)); },
        .on_missed = [attached](const Error& why) { attached->OnMissed(why); },
        .on_hangup = [attached] { attached->OnHangup(); },
    });
  }
  if (!started.ok()) {
    Unregister(attached, /*keep=*/false);
    return started.error();
  }
  return session.release();
}

Status Session::Attach(const ConnectOptions& options) {
  timeout_ = options.timeout;
  const Tick deadline = DeadlineAfter(ipc::Now(), timeout_);
  // Names are for people: what cannot be sent is left out.
  const std::string name = options.name.empty() ? ProgramName() : options.name;
  const bool sendable = name.size() <= ControlCalls::kNameBytesMax && wire::IsUtf8(name);
  const wire::ClientPacket packet{
      .request = 1,
      .body = wire::Hello{.protocol_version = proto::kProtocolVersion,
                          .name = sendable ? name : "?",
                          .device_budget = options.device_budget.count(),
                          .host_budget = options.host_budget.count(),
                          .library_version = RAVENSTORE_VERSION,
                          .fixed_addresses = options.fixed_addresses}};
  Incoming welcome;
  RAVEN_ASSIGN_OR_RETURN(
      control_, ControlLink::Connect(ChosenSocket(options.socket), packet, deadline, &welcome));
  calls_.emplace(control_.get(), &phase_, timeout_);
  RAVEN_RETURN_IF_ERROR(
      TakeWelcome(std::get<wire::Welcome>(welcome.packet.body), std::move(welcome.descriptors)));
  if (DebugAsksFor("poison")) poison_ = std::make_unique<PoisonKeeper>();
  if (const char* record = getenv("RAVENSTORE_RECORD"); record != nullptr && *record != '\0') {
    RAVEN_ASSIGN_OR_RETURN(recorder_, CallRecorder::Open(record, name));
  }
  return core::Ok();
}

Status Session::TakeWelcome(const wire::Welcome& welcome, std::vector<ipc::UniqueFd> descriptors) {
  if (welcome.protocol_version != proto::kProtocolVersion) {
    return Error{ErrorCode::kVersionMismatch,
                 "the daemon (" + welcome.daemon_version + ") speaks protocol " +
                     std::to_string(welcome.protocol_version) + ", this library " +
                     std::to_string(proto::kProtocolVersion)};
  }
  if (descriptors.size() != 2) {
    return Error{ErrorCode::kCorrupt, "the daemon's welcome came with " +
                                          std::to_string(descriptors.size()) +
                                          " descriptors instead of 2"};
  }
  RAVEN_ASSIGN_OR_RETURN(segment_, ipc::ControlSegment::Map(std::move(descriptors[0])));
  device::HostOptions host;
  host.count = static_cast<int>(welcome.devices.size());
  std::vector<DaemonDevice> devices;
  for (const wire::Device& device : welcome.devices) {
    devices.push_back({device.uuid, Bytes(device.arena_bytes)});
  }
  backend_ = welcome.backend;
  RAVEN_ASSIGN_OR_RETURN(const device::Devices local, device::OpenDevices(backend_, host));
  proto::Segment* segment = segment_->get();
  RAVEN_ASSIGN_OR_RETURN(devices_, DeviceSet::Match(devices, local, segment));
  rows_ = segment->slots;
  streams_.emplace(segment, &phase_);
  log_.emplace(segment);
  requests_.emplace(segment, std::move(descriptors[1]), &phase_);
  mapper_.emplace(&segment->maps, &*devices_,
                  Mapper::Hooks{.acknowledged = [this] { requests_->Wake(); },
                                .failed = [this] { OnHangup(); }});
  device_budget_ = welcome.device_budget;
  host_budget_ = welcome.host_budget;
  restart_timeout_ = std::chrono::milliseconds(welcome.restart_timeout_ms);
  return core::Ok();
}

void Session::OnPacket(Incoming incoming) {
  if (const auto* memory = std::get_if<wire::MemoryReady>(&incoming.packet.body)) {
    return mapper_->Offer(memory->first, std::move(incoming.descriptors));
  }
  pinned_thread_.Post([this, packet = std::make_shared<Incoming>(std::move(incoming))] {
    HandlePosted(std::move(*packet));
  });
}

void Session::HandlePosted(Incoming incoming) {
  if (const auto* slab = std::get_if<wire::PinnedSlab>(&incoming.packet.body)) {
    if (incoming.descriptors.size() != 1) return;
    static_cast<void>(pinned_.Offer(*slab, std::move(incoming.descriptors[0])));
  } else if (const auto* slab = std::get_if<wire::ReleasePinnedSlab>(&incoming.packet.body)) {
    if (!pinned_.Release(*slab).ok()) return;
    const wire::ClientPacket answer{
        .request = 0, .body = wire::PinnedSlabReleased{.pool = slab->pool, .offset = slab->offset}};
    static_cast<void>(control_->Send(answer, DeadlineAfter(ipc::Now(), timeout_)));
  } else if (const auto* order = std::get_if<wire::SleepOrder>(&incoming.packet.body)) {
    calls_->orders().Offer(*order);
  }
}

void Session::OnMissed(const Error& why) {
  mapper_->NoteMissedPacket(why);
  for (const auto& device : devices_->all()) device->NoteMissedPacket(why);
  // Its lock is held while the driver unmaps.
  pinned_thread_.Post([this, why] { pinned_.NoteMissedPacket(why); });
}

void Session::OnHangup() {
  if (!control_->WaitForStop(restart_timeout_)) MarkLost();
}

void Session::MarkLost() {
  Phase attached = Phase::kAttached;
  if (!phase_.compare_exchange_strong(attached, Phase::kLost)) return;
  // Streams that wait for bytes go on, on undefined ones: check() and every later call say so.
  ReleaseArrivals();
  for (uint32_t row = 0; row < requests_->rows(); ++row) {
    if (rows_[row].waiters.load(std::memory_order_seq_cst) != 0) ipc::WakeLowHalf(&rows_[row].word);
  }
  control_->WakeCallers();
  for (const auto& device : devices_->all()) device->WakeWaiters();
  pinned_.WakeWaiters();
  calls_->orders().Drop();
}

void Session::HandOver() {
  phase_.store(Phase::kHandedOver, std::memory_order_release);
  // What stays mapped here would take memory of the device when the set has left it.
  mapper_->Stop();
  for (const auto& device : devices_->all()) device->UnmapAll();
}

void Session::ReleaseArrivals() {
  for (std::atomic<uint64_t>& arrival : segment_->get()->arrivals) {
    arrival.store(proto::kWordValueMask, std::memory_order_release);
  }
}

bool Session::AnyInUse() const {
  for (uint32_t row = 0; row < requests_->rows(); ++row) {
    const uint64_t word = rows_[row].word.load(std::memory_order_acquire);
    if (proto::UnpackLease(word).state == proto::LeaseState::kInUse) return true;
  }
  return false;
}

void Session::Disconnect() {
  // A fork has neither the segment nor the watcher: what is left is the parent's business.
  if (phase_.load(std::memory_order_acquire) == Phase::kForked) return;
  const bool ordered = EndPinned(*this);
  const bool complete = streams_->AwaitTickets(DeadlineAfter(ipc::Now(), timeout_)) && ordered;
  if (recorder_ != nullptr) recorder_->Finish(kFinishTimeout);
  // Whether streams still use what was not put is not known: on a GPU it stays mapped then.
  const bool may_run = backend_ != "host" || streams_->AnyAsynchronous();
  const bool is_set = phase_.load(std::memory_order_acquire) == Phase::kHandedOver;
  const bool keep = !complete || (may_run && !is_set && AnyInUse());
  if (phase_.load(std::memory_order_acquire) == Phase::kAttached) {
    const Tick deadline =
        DeadlineAfter(ipc::Now(), std::min<core::Duration>(timeout_, kDetachTimeout));
    // A daemon that does not answer learns the same from the hang-up.
    static_cast<void>(control_->Call({.request = 0, .body = wire::Detach{}}, deadline, phase_));
  } else if (complete) {
    // It may be there still: it was this process that could not go on.
    control_->Withdraw();
  }
  control_->Stop();
  // A daemon that answered has written all of them; for one that did not, nothing watches any more.
  ReleaseArrivals();
  mapper_->Stop();
  pinned_thread_.Stop();
  calls_->orders().Drop();
  phase_.store(Phase::kClosed, std::memory_order_release);
  Unregister(this, keep);
  control_.reset();
  if (keep) return;
  poison_.reset();
  pinned_.Unmap();
  streams_.reset();
  devices_.reset();
  log_.reset();
  requests_.reset();
  rows_ = nullptr;
  segment_.reset();
  Unref();
}

void Session::Unref() {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

Result<SessionStats> Session::Stats() {
  SessionStats stats;
  RAVEN_ASSIGN_OR_RETURN(stats.daemon_stats, calls_->Stats());
  for (const wire::TierStats& tier : stats.daemon_stats.tiers) {
    (tier.name.starts_with("device") ? stats.device_bytes : stats.host_bytes) += tier.used;
  }
  stats.device_budget = device_budget_;
  stats.host_budget = host_budget_;
  stats.stall_ns = stall_ns_.load(std::memory_order_relaxed);
  return stats;
}

Status Session::Step() {
  proto::Request step{};
  step.op = static_cast<uint32_t>(proto::RequestOp::kStep);
  size_t sent = 0;
  return requests_->Send({&step, 1}, DeadlineAfter(ipc::Now(), timeout_), &sent);
}

void Session::LockForFork() {
  control_->LockForFork();
  mapper_->LockForFork();
  pinned_thread_.LockForFork();
  pinned_.LockForFork();
  for (const auto& device : devices_->all()) device->LockForFork();
  requests_->LockForFork();
}

void Session::UnlockAfterFork() {
  requests_->UnlockAfterFork();
  for (const auto& device : devices_->all()) device->UnlockAfterFork();
  pinned_.UnlockAfterFork();
  pinned_thread_.UnlockAfterFork();
  mapper_->UnlockAfterFork();
  control_->UnlockAfterFork();
}

void Session::BecomeForked() {
  phase_.store(Phase::kForked, std::memory_order_release);
  control_->DropInChild();
  mapper_->DropInChild();
  pinned_thread_.DropInChild();
  requests_->DropInChild();
  pinned_.DropDescriptors();
  segment_.reset();  // its descriptor; the mapping was never inherited
}

}  // namespace ravenstore::client
