// Orders to sleep and to wake for all processes of a job (`ravenctl sleep TAG --job NAME`).
//
// A client says that it takes orders, with the tag of its memory and the job of its process. An
// order goes to all clients of the job that have the tag, and waits for their answers. All or none:
// if one fails, is late or ends, the others are ordered to undo what they did. Elastic jobs are
// paused once all clients have done it.
//
// A client that says it is asleep and is not harms its own job alone: the daemon gives its memory
// to others only once it has it back.
//
// Owns: the orders that are not answered. Threads: the control thread. Nothing here waits. Cost: an
// order looks at all clients that take orders, and at all legacy jobs.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/result.h"
#include "core/types.h"
#include "daemon/connections.h"
#include "daemon/legacy.h"
#include "proto/control.pb.h"

namespace ravenstore::daemon {

class JobOrders {
 public:
  static constexpr size_t kClientsMost = 256;  // of one order
  static constexpr size_t kOrdersMost = 16;    // of a user that are not answered

  // Both outlive this.
  JobOrders(LegacyLedger* ledger, Connections* connections)
      : ledger_(ledger), connections_(connections) {}

  // False when the message is none of TakeOrders, OrderDone and OrderJob: nothing was done.
  bool Handle(const Caller& caller, const proto::ClientPacket& packet);
  // The connection has ended. Does nothing if its client takes no orders.
  void Forget(uint64_t key);

  // When to call OnTime; kNever: not before the next message.
  core::Tick due() const { return due_; }
  // Ends the orders whose time is over.
  void OnTime(core::Tick now);

 private:
  // A client that takes orders.
  struct Member {
    uint32_t client = 0;
    pid_t pid = 0;
    uid_t uid = 0;
    std::string tag;
    std::string job;
    uint32_t run = 0;
    uint64_t order = 0;  // that it has not finished; 0: none
  };
  struct Order {
    uint64_t asker = 0;  // the connection
    uint64_t request = 0;
    core::TenantId user;
    proto::OrderJob wanted;
    core::Duration timeout{};
    core::Tick deadline{};
    std::set<uint64_t> members;     // by connection
    std::set<uint64_t> awaited;     // of them, those that have not answered
    std::vector<uint32_t> elastic;  // the numbers of the jobs to pause
    uint64_t bytes = 0;
    // Why it failed. From then on the order is the one that undoes it.
    std::optional<core::Error> failure;
    bool has_undone = false;  // there were others, which are as before
    std::string not_undone;   // which of them are not, and why
  };
  struct Found {
    std::set<uint64_t> members;
    std::vector<uint32_t> legacy;
    std::set<uid_t> users;
  };

  core::Status Take(const Caller& caller, const proto::TakeOrders& take);
  core::Status Begin(const Caller& caller, uint64_t request, const proto::OrderJob& wanted);
  void Done(const Caller& caller, const proto::OrderDone& done);

  Found Find(const Audience& audience, const proto::OrderJob& wanted) const;
  core::Error NothingFound(const Audience& audience, const proto::OrderJob& wanted) const;
  core::Status Check(const Caller& caller, const proto::OrderJob& wanted, const Found& found) const;
  // Of the legacy jobs that were found, those in elastic mode. Errors: kInvalidArgument: there are
  // only others, and no client.
  core::Result<std::vector<uint32_t>> ElasticOf(const Found& found) const;
  // To all members of the order. `undoes`: the one before; 0: none. Its answer waits for all but
  // `failed`.
  void Send(uint64_t number, uint64_t undoes, const std::set<uint64_t>& failed);
  // These members did not do it. The order has another number then, or is answered.
  void Fail(uint64_t number, const std::set<uint64_t>& failed, core::Error why);
  void AnswerIfComplete(uint64_t number);
  void Answer(const Order& order);
  void UpdateDue();

  LegacyLedger* const ledger_;
  Connections* const connections_;
  std::map<uint64_t, Member> members_;  // by connection
  std::map<uint64_t, Order> orders_;    // by number
  uint64_t last_number_ = 0;
  core::Tick due_ = core::kNever;
};

}  // namespace ravenstore::daemon
