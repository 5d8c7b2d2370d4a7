// Connections without sockets: what is sent on them is kept, and what is for the planner loop runs
// when the test says so.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "core/check.h"
#include "daemon/connections.h"
#include "daemon/mailbox.h"

namespace ravenstore::daemon {

class FakeConnections final : public Connections {
 public:
  // No user of this machine, so that its callers administer nothing.
  static constexpr uid_t kUser = 4'000'000'000;
  static constexpr uid_t kRoot = 0;

  // A process that has just connected. Processes of the same number are the same.
  Caller Connect(pid_t pid, uid_t uid = kUser) {
    Caller caller;
    caller.key = ++last_key_;
    caller.peer.pid = pid;
    caller.peer.uid = uid;
    caller.peer.start_time = 1;
    open_.insert(caller.key);
    return caller;
  }
  // What was sent since this was asked last, which is one packet.
  proto::DaemonPacket TakeOnlyPacket(const Caller& caller) {
    std::vector<proto::DaemonPacket> packets = std::exchange(sent_[caller.key], {});
    RAVEN_CHECK(packets.size() == 1);
    return std::move(packets.front());
  }
  core::ErrorCode Refused(const Caller& caller) {
    return static_cast<core::ErrorCode>(TakeOnlyPacket(caller).failure().code());
  }
  bool SentNothing(const Caller& caller) { return sent_[caller.key].empty(); }
  // Of all packets.
  size_t descriptors() const { return descriptors_; }
  // As the loop would, in order; and sends the answers.
  void RunPosts() {
    for (auto& work : std::exchange(posts_, {})) work();
    answers_.RunSome(answers_.size());
  }
  // Sends the answers, at least one, which another thread may be about to give.
  void AwaitAnswer() {
    pollfd bell{answers_.descriptor(), POLLIN, 0};
    RAVEN_CHECK(::poll(&bell, 1, 20'000) == 1);
    answers_.RunSome(answers_.size());
  }
  size_t posts() const { return posts_.size(); }
  const std::vector<uint64_t>& forgotten() const { return forgotten_; }
  // Its peer does not read.
  void Stall(const Caller& caller) { stalled_.insert(caller.key); }
  void Close(const Caller& caller) { open_.erase(caller.key); }

  // One for all that are open.
  Caller* FindCaller(uint64_t key) const override {
    return open_.contains(key) ? &caller_ : nullptr;
  }
  void Send(uint64_t key, const proto::DaemonPacket& packet,
            std::vector<ipc::UniqueFd> descriptors) override {
    if (!IsOpen(key)) return;
    sent_[key].push_back(packet);
    descriptors_ += descriptors.size();
  }
  void PostAnswer(uint64_t key, proto::DaemonPacket packet) override {
    answers_.Post([this, key, packet = std::move(packet)] { Send(key, packet, {}); });
  }
  bool HasUnsent(uint64_t key) const override { return stalled_.contains(key); }
  void PostToLoop(uint64_t key, uint32_t, std::function<void()> work) override {
    RAVEN_CHECK(IsOpen(key));
    posts_.push_back(std::move(work));
  }
  void Forget(uint64_t key) override {
    open_.erase(key);
    forgotten_.push_back(key);
  }

 private:
  mutable Caller caller_;
  uint64_t last_key_ = 0;
  std::set<uint64_t> open_;
  std::set<uint64_t> stalled_;
  std::map<uint64_t, std::vector<proto::DaemonPacket>> sent_;
  size_t descriptors_ = 0;
  std::vector<std::function<void()>> posts_;
  std::vector<uint64_t> forgotten_;
  Mailbox answers_;
};

}  // namespace ravenstore::daemon
