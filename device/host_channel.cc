#include "device/host_channel.h"

#include <string.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "device/host_stream.h"

#ifdef __SANITIZE_THREAD__
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);
#endif

namespace ravenstore::device {
namespace {

using Clock = std::chrono::steady_clock;

// A sleep may end late by about this much; the rest is spun.
constexpr auto kSleepSlack = std::chrono::microseconds(80);

void WaitUntil(HostLink::TimePoint deadline) {
  if (deadline - Clock::now() > 2 * kSleepSlack) {
    std::this_thread::sleep_until(deadline - kSleepSlack);
  }
  while (Clock::now() < deadline) std::this_thread::yield();
}

// What a fault leaves where bytes were to go.
constexpr int kWrongByte = 0xb5;

// A copy engine may read memory that changes meanwhile, as that of a tensor which is freed while it
// leaves. Nothing uses such a copy (core/books/page_life.h, kLeavingChanged).
void CopyAsAnEngine(std::byte* to, const std::byte* from, Bytes bytes) {
#ifdef __SANITIZE_THREAD__
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
#endif
  memcpy(to, from, bytes.count());
#ifdef __SANITIZE_THREAD__
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
#endif
}

class HostChannel : public Channel {
 public:
  HostChannel(std::string name, HostStep step, std::shared_ptr<HostLink> link,
              std::shared_ptr<HostFaults> faults)
      : name_(std::move(name)), step_(step), link_(std::move(link)), faults_(std::move(faults)) {}

  Status Copy(Target to, Source from, Bytes bytes) override {
    RAVEN_RETURN_IF_ERROR(CheckAddresses(to, from));
    RAVEN_RETURN_IF_ERROR(Health());
    const HostFault fault = faults_->OfCopy(step_);
    if (fault == HostFault::kRefused) return InjectedFault();
    const auto queued = link_->paced() ? Clock::now() : HostLink::TimePoint{};
    queue_.Run([this, to = to.address(), from = from.address(), bytes, fault, queued] {
      if (failed_.load(std::memory_order_relaxed)) return;
      if (fault == HostFault::kIsLate) HostFaults::Delay();
      if (fault == HostFault::kBreaksOff) {
        memset(to, kWrongByte, bytes.count() / 2);
        failed_.store(true, std::memory_order_release);
        return;
      }
      CopyAsAnEngine(to, from, bytes);
      if (fault == HostFault::kLies) to[bytes.count() / 2] ^= std::byte{1};
      if (link_->paced()) WaitUntil(link_->Occupy(queued, bytes));
    });
    return core::Ok();
  }

  Status Signal(Word* word, uint64_t value) override {
    RAVEN_RETURN_IF_ERROR(Health());
    queue_.Run([this, word, value] {
      if (!failed_.load(std::memory_order_relaxed)) word->store(value, std::memory_order_release);
    });
    return core::Ok();
  }

  Status Health() override {
    if (!failed_.load(std::memory_order_acquire)) return core::Ok();
    return InjectedFault();
  }

 private:
  core::Error InjectedFault() const {
    return {core::ErrorCode::kDevice, name_ + ": copy: injected fault"};
  }

  const std::string name_;
  const HostStep step_;
  const std::shared_ptr<HostLink> link_;
  const std::shared_ptr<HostFaults> faults_;
  std::atomic<bool> failed_{false};
  HostStream queue_;  // last: its thread uses the others until it ends
};

}  // namespace

HostLink::HostLink(double bytes_per_second, core::Duration latency)
    : bytes_per_second_(bytes_per_second), latency_(latency) {}

HostLink::TimePoint HostLink::Occupy(TimePoint queued, core::Bytes bytes) {
  core::Duration held = latency_;
  if (bytes_per_second_ > 0) {
    held += core::Duration(
        static_cast<int64_t>(static_cast<double>(bytes.count()) * 1e9 / bytes_per_second_));
  }
  std::lock_guard lock(mutex_);
  // Counted from the time the copy was queued, not from now: a thread that woke late would
  // otherwise slow the link down.
  free_at_ = std::max(free_at_, queued) + held;
  return free_at_;
}

HostFault HostFaults::OfCopy(HostStep step) {
  if (fail_copy_ && fail_copy_(++copies_)) return HostFault::kBreaksOff;
  return Of(step);
}

Status HostFaults::Pass(HostStep step) {
  const bool creates = step.kind == HostStep::Kind::kCreate || step.kind == HostStep::Kind::kPin;
  const bool fails = creates && fail_create_ && fail_create_(++creates_);
  const HostFault fault = fails ? HostFault::kRefused : Of(step);
  if (fault == HostFault::kIsLate) Delay();
  if (fault == HostFault::kNone || fault == HostFault::kIsLate) return core::Ok();
  constexpr const char* kNames[] = {"create", "map", "unmap", "pin", "unpin", "open"};
  return core::Error{core::ErrorCode::kDevice,
                     kNames[static_cast<size_t>(step.kind)] + std::string(": injected fault")};
}

void HostFaults::Delay() {
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

std::unique_ptr<Channel> OpenHostChannel(std::string name, HostStep step,
                                         std::shared_ptr<HostLink> link,
                                         std::shared_ptr<HostFaults> faults) {
  return std::make_unique<HostChannel>(std::move(name), step, std::move(link), std::move(faults));
}

}  // namespace ravenstore::device
