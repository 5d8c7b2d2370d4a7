#include "sim/demand_paging.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace ravenstore::sim {

using core::Bytes;
using core::Duration;

namespace {

class Replay {
 public:
  Replay(const Trace& trace, const Hardware& hardware, Bytes budget, const DemandPaging& options)
      : trace_(trace),
        hardware_(hardware),
        options_(options),
        free_(budget),
        tensors_(trace.tensors.size()),
        clients_(trace.clients) {
    outcome_.client_stall.resize(trace.clients);
    for (const Op& op : trace.ops) clients_[op.client].program.push_back(&op);
  }

  Outcome Run() {
    while (Client* const client = Next()) {
      if (client->clock > kReplayMax) {
        outcome_.failure = kTooLong;
        break;
      }
      if (Make(*client, *client->program[client->next])) {
        ++client->next;
        if (!std::exchange(released_, false)) continue;
        for (Client& other : clients_) other.waits = false;
      } else {
        client->waits = true;
      }
    }
    for (const Client& client : clients_) {
      outcome_.time = std::max(outcome_.time, client.clock);
      if (outcome_.failure.empty() && client.next < client.program.size())
        outcome_.failure = "no room for what is in use at call " + std::to_string(client.next);
    }
    return std::move(outcome_);
  }

 private:
  struct Tensor {
    bool resident = false;
    bool dirty = false;
    double rank = 0;  // the lowest leaves first
    uint64_t uses = 0;
  };
  struct Client {
    std::vector<const Op*> program;
    size_t next = 0;
    Duration clock{0};
    size_t iteration = 0;
    bool waits = false;  // until another client puts or frees
  };

  // The client whose call is the next; null: all have ended, or wait.
  Client* Next() {
    Client* next = nullptr;
    for (Client& client : clients_) {
      if (client.waits || client.next == client.program.size()) continue;
      if (next == nullptr || client.clock < next->clock) next = &client;
    }
    return next;
  }

  // Returns false if there is no room.
  bool Make(Client& client, const Op& op) {
    switch (op.kind) {
      case OpKind::kCompute:
        client.clock += op.time;
        outcome_.compute += op.time;
        return true;
      case OpKind::kStep: ++client.iteration; return true;
      case OpKind::kPut: Put(client, op); return true;
      case OpKind::kFree: Free(op.tensor, client.clock); return true;
      default: return Use(client, op);
    }
  }

  bool Use(Client& client, const Op& op) {
    Tensor& tensor = tensors_[op.tensor];
    const Bytes bytes = trace_.tensors[op.tensor].bytes;
    if (tensor.resident) {
      idle_.erase({tensor.rank, op.tensor});
      return true;
    }
    // A client that waited for another's put goes on at the time of that put.
    const auto ready = MakeRoom(bytes, std::max(client.clock, given_at_));
    if (!ready) return false;
    Duration until = *ready;
    if (op.kind == OpKind::kGet) {
      until = Copy(bytes, hardware_.up, until, &up_free_) + hardware_.latency;
      outcome_.up += bytes;
    }
    tensor.resident = true;
    tensor.dirty = op.kind == OpKind::kCreate;
    free_ -= bytes;
    Stall(client, op, until);
    return true;
  }

  void Stall(Client& client, const Op& op, Duration until) {
    const Duration stall = until - std::exchange(client.clock, until);
    auto& stalls = outcome_.iteration_stall;
    stalls.resize(std::max(stalls.size(), client.iteration + 1));
    stalls[client.iteration] += stall;
    outcome_.stall += stall;
    outcome_.client_stall[op.client] += stall;
    if (op.kind == OpKind::kCreate) outcome_.create_stall += stall;
  }

  void Put(const Client& client, const Op& op) {
    Tensor& tensor = tensors_[op.tensor];
    tensor.dirty |= op.modified;
    ++tensor.uses;
    tensor.rank = RankOf(op.tensor);
    idle_.insert({tensor.rank, op.tensor});
    Released(client.clock);
  }

  void Free(uint32_t number, Duration at) {
    Tensor& tensor = tensors_[number];
    idle_.erase({tensor.rank, number});
    if (std::exchange(tensor.resident, false)) free_ += trace_.tensors[number].bytes;
    Released(at);
  }

  void Released(Duration at) {
    released_ = true;
    given_at_ = at;
  }

  double RankOf(uint32_t number) {
    if (options_.order == EvictionOrder::kLru) return static_cast<double>(++puts_);
    const auto bytes = static_cast<double>(trace_.tensors[number].bytes.count());
    const double seconds = bytes / hardware_.up + core::Seconds(hardware_.per_copy);
    return inflation_ + static_cast<double>(tensors_[number].uses) * seconds / bytes;
  }

  // When the room is there; nullopt: what is idle is not enough.
  std::optional<Duration> MakeRoom(Bytes bytes, Duration now) {
    Bytes room = free_;
    auto end = idle_.begin();
    for (; room < bytes && end != idle_.end(); ++end) room += trace_.tensors[end->second].bytes;
    if (room < bytes) return std::nullopt;
    Duration ready = now;
    for (auto victim = idle_.begin(); victim != end; ++victim) {
      Tensor& tensor = tensors_[victim->second];
      const Bytes leaves = trace_.tensors[victim->second].bytes;
      inflation_ = victim->first;
      tensor.resident = false;
      free_ += leaves;
      if (!std::exchange(tensor.dirty, false)) continue;
      outcome_.down += leaves;
      if (options_.copies_out)
        ready = Copy(leaves, hardware_.down, now, &down_free_) + hardware_.latency;
    }
    idle_.erase(idle_.begin(), end);
    return ready;
  }

  // When the copy ends.
  Duration Copy(Bytes bytes, double rate, Duration now, Duration* link_free) const {
    const double seconds = static_cast<double>(bytes.count()) / rate;
    return *link_free = std::max(now, *link_free) + hardware_.per_copy + core::FromSeconds(seconds);
  }

  const Trace& trace_;
  const Hardware& hardware_;
  const DemandPaging options_;
  Bytes free_;
  std::vector<Tensor> tensors_;
  std::vector<Client> clients_;
  std::set<std::pair<double, uint32_t>> idle_;  // by rank
  Duration up_free_{0};
  Duration down_free_{0};
  Duration given_at_{0};
  bool released_ = false;
  uint64_t puts_ = 0;
  double inflation_ = 0;
  Outcome outcome_;
};

}  // namespace

Outcome ReplayDemandPaging(const Trace& trace, const Hardware& hardware, Bytes budget,
                           const DemandPaging& options) {
  return Replay(trace, hardware, budget, options).Run();
}

}  // namespace ravenstore::sim
