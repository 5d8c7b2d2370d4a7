#include "sim/oracle.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <queue>
#include <set>
#include <utility>
#include <vector>

#include "sim/link.h"

namespace ravenstore::sim {

using core::Bytes;
using core::Duration;
using core::Tick;

namespace {

constexpr Bytes kInFlight = core::MiB(32);
constexpr size_t kCopiesInFlight = 64;
constexpr size_t kNeverUsed = std::numeric_limits<size_t>::max();

class Oracle {
 public:
  Oracle(const Trace& trace, const Hardware& hardware, Bytes budget, Duration lookahead)
      : trace_(trace),
        hardware_(hardware),
        lookahead_(lookahead),
        free_(static_cast<int64_t>(budget.count())),
        up_(hardware.up, hardware.duplex, hardware.per_copy),
        down_(hardware.down, hardware.duplex, hardware.per_copy),
        tensors_(trace.tensors.size()),
        clients_(trace.clients) {
    outcome_.client_stall.resize(trace.clients);
    LookAhead();
  }

  Outcome Run();

 private:
  enum class State : uint8_t { kNone, kInUse, kIdle, kAway, kArriving, kFreed };
  enum class EventKind : uint8_t { kClient, kUpEnd, kDownEnd, kUpKnown, kDownKnown };
  // Which of a client's gets is a tensor's next, and which tensor.
  using Need = std::pair<size_t, uint32_t>;
  using Needs = std::set<Need>;

  struct Tensor {
    State state = State::kNone;
    bool clean = false;
    bool cleaning = false;
    uint32_t writes = 0;
    uint32_t cleaned_writes = 0;  // when the copy began that makes it clean
    std::vector<size_t> gets;     // places in its client's program, last first
  };
  struct Client {
    std::vector<const Op*> program;
    std::vector<Duration> clock;  // compute before each call
    std::vector<int64_t> grown;   // bytes created less bytes freed before each call
    size_t next = 0;
    bool waiting = false;
    bool done = false;
    Tick since{};
    size_t iteration = 0;
    Needs away;
    Needs clean;
    Needs dirty;
  };
  struct Event {
    Tick at;
    uint64_t sequence;
    EventKind kind;
    uint32_t client;
    bool operator>(const Event& other) const {
      return std::pair(at, sequence) > std::pair(other.at, other.sequence);
    }
  };

  void LookAhead() {
    for (const Op& op : trace_.ops) {
      Client& client = clients_[op.client];
      if (client.program.empty()) {
        client.clock.push_back(Duration{0});
        client.grown.push_back(0);
      }
      int64_t grows = 0;
      if (op.kind == OpKind::kCreate) grows = SizeOf(op.tensor);
      if (op.kind == OpKind::kFree) grows = -SizeOf(op.tensor);
      if (op.kind == OpKind::kGet) tensors_[op.tensor].gets.push_back(client.program.size());
      // No replay goes on beyond kReplayMax, so all that follows counts as equally far away.
      const Duration compute = op.kind == OpKind::kCompute ? op.time : Duration{0};
      client.clock.push_back(
          std::min(client.clock.back() + std::min(compute, kReplayMax), kReplayMax));
      client.grown.push_back(client.grown.back() + grows);
      client.program.push_back(&op);
    }
    for (Tensor& tensor : tensors_) std::reverse(tensor.gets.begin(), tensor.gets.end());
  }
  int64_t SizeOf(uint32_t tensor) const {
    return static_cast<int64_t>(trace_.tensors[tensor].bytes.count());
  }
  Client& ClientOf(uint32_t tensor) { return clients_[trace_.tensors[tensor].client]; }
  Need NeedOf(uint32_t tensor) const {
    const auto& gets = tensors_[tensor].gets;
    return {gets.empty() ? kNeverUsed : gets.back(), tensor};
  }
  // How much its client computes before it is needed.
  Duration Distance(const Client& client, const Need& need) const {
    if (need.first == kNeverUsed) return Duration::max();
    return client.clock[need.first] - client.clock[client.next];
  }
  void Schedule(Tick at, EventKind kind, uint32_t client = 0) {
    queue_.push({at, ++sequence_, kind, client});
  }

  void List(uint32_t tensor) {
    Client& client = ClientOf(tensor);
    if (tensors_[tensor].state == State::kAway) client.away.insert(NeedOf(tensor));
    if (tensors_[tensor].state != State::kIdle) return;
    (tensors_[tensor].clean ? client.clean : client.dirty).insert(NeedOf(tensor));
  }
  void Unlist(uint32_t tensor) {
    Client& client = ClientOf(tensor);
    for (Needs* needs : {&client.away, &client.clean, &client.dirty}) needs->erase(NeedOf(tensor));
  }
  void Set(uint32_t tensor, State state) {
    Unlist(tensor);
    tensors_[tensor].state = state;
    List(tensor);
  }

  // Drops what is clean and needed later than `beyond` until `bytes` are free, or nothing at all.
  bool MakeRoom(int64_t bytes, Duration beyond);
  bool Serve(Client& client);
  void Resume(uint32_t index);
  void Bring(uint32_t tensor, bool demand);
  void Prefetch();
  void Clean();
  void Pump();
  void Advance(uint32_t index);
  bool Perform(Client& client, const Op& op);
  void EndOfPiece(Link& link, bool up);
  void Known(const Link::Job& job, bool up);

  const Trace& trace_;
  const Hardware& hardware_;
  const Duration lookahead_;
  int64_t free_;
  Link up_;
  Link down_;
  Bytes up_bytes_;  // in flight
  Bytes down_bytes_;
  size_t ups_ = 0;
  size_t downs_ = 0;
  std::deque<Link::Job> known_[2];
  std::vector<Tensor> tensors_;
  std::vector<Client> clients_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> queue_;
  uint64_t sequence_ = 0;
  Tick now_{};
  Outcome outcome_;
};

bool Oracle::MakeRoom(int64_t bytes, Duration beyond) {
  if (free_ >= bytes) return true;
  std::vector<uint32_t> victims;
  int64_t room = free_;
  std::vector<Needs::reverse_iterator> last;
  for (Client& client : clients_) last.push_back(client.clean.rbegin());
  while (room < bytes) {
    size_t best = clients_.size();
    Duration furthest = beyond;
    for (size_t c = 0; c < clients_.size(); ++c) {
      if (last[c] == clients_[c].clean.rend()) continue;
      const Duration distance = Distance(clients_[c], *last[c]);
      if (distance > furthest) std::tie(best, furthest) = std::pair(c, distance);
    }
    if (best == clients_.size()) return false;
    victims.push_back(last[best]->second);
    room += SizeOf(last[best]->second);
    ++last[best];
  }
  // What the last ones made unnecessary stays: no large one leaves for a small one.
  for (const uint32_t victim : victims) {
    if (room - SizeOf(victim) >= bytes) {
      room -= SizeOf(victim);
      continue;
    }
    Set(victim, State::kAway);
    free_ += SizeOf(victim);
  }
  return true;
}

void Oracle::Resume(uint32_t index) {
  Client& client = clients_[index];
  client.waiting = false;
  outcome_.stall += now_ - client.since;
  if (outcome_.iteration_stall.size() <= client.iteration)
    outcome_.iteration_stall.resize(client.iteration + 1);
  outcome_.iteration_stall[client.iteration] += now_ - client.since;
  outcome_.client_stall[index] += now_ - client.since;
  ++client.next;
  Schedule(now_, EventKind::kClient, index);
}

// A waiting client's create or get, if there is room now; true when that changed something.
bool Oracle::Serve(Client& client) {
  const Op& op = *client.program[client.next];
  const State state = tensors_[op.tensor].state;
  if (state == State::kIdle) {
    Set(op.tensor, State::kInUse);
    tensors_[op.tensor].gets.pop_back();
    Resume(op.client);
    return true;
  }
  if (state == State::kArriving) {
    up_.Promote(core::TensorId{op.tensor + 1}, core::ClientId{op.client + 1});
    return false;
  }
  if (state != State::kNone && state != State::kAway) return false;
  if (!MakeRoom(SizeOf(op.tensor), Duration{-1})) return false;
  if (state == State::kAway) {
    Bring(op.tensor, true);
    return false;
  }
  free_ -= SizeOf(op.tensor);
  Set(op.tensor, State::kInUse);
  Resume(op.client);
  return true;
}

void Oracle::Bring(uint32_t tensor, bool demand) {
  free_ -= SizeOf(tensor);
  Set(tensor, State::kArriving);
  const Bytes bytes = trace_.tensors[tensor].bytes;
  up_bytes_ += bytes;
  ++ups_;
  up_.Submit({core::TensorId{tensor + 1}, tensor, bytes},
             demand ? Link::Urgency::kDemand : Link::Urgency::kBackground);
}

void Oracle::Prefetch() {
  while (up_bytes_ < kInFlight && ups_ < kCopiesInFlight) {
    Client* soonest = nullptr;
    Duration least = Duration::max();
    for (Client& client : clients_) {
      if (client.away.empty() || client.away.begin()->first == kNeverUsed) continue;
      const Duration distance = Distance(client, *client.away.begin());
      if (distance < least) std::tie(soonest, least) = std::pair(&client, distance);
    }
    if (soonest == nullptr || least > lookahead_) return;
    const auto [at, tensor] = *soonest->away.begin();
    // What is created before, less what is freed before, has its room first.
    const int64_t reserve =
        std::max<int64_t>(0, soonest->grown[at] - soonest->grown[soonest->next]);
    if (!MakeRoom(SizeOf(tensor) + reserve, least)) return;
    Bring(tensor, false);
  }
}

void Oracle::Clean() {
  while (down_bytes_ < kInFlight && downs_ < kCopiesInFlight) {
    Client* latest = nullptr;
    Needs::reverse_iterator which;
    Duration most{-1};
    for (Client& client : clients_) {
      auto last = client.dirty.rbegin();
      while (last != client.dirty.rend() && tensors_[last->second].cleaning) ++last;
      if (last == client.dirty.rend() || Distance(client, *last) <= most) continue;
      most = Distance(client, *last);
      std::tie(latest, which) = std::pair(&client, last);
    }
    if (latest == nullptr) return;
    const uint32_t tensor = which->second;
    const Bytes bytes = trace_.tensors[tensor].bytes;
    tensors_[tensor].cleaning = true;
    down_bytes_ += bytes;
    ++downs_;
    tensors_[tensor].cleaned_writes = tensors_[tensor].writes;
    down_.Submit({core::TensorId{tensor + 1}, tensor, bytes}, Link::Urgency::kBackground);
  }
}

void Oracle::Pump() {
  for (Client& client : clients_) {
    if (client.waiting) Serve(client);
  }
  Prefetch();
  Clean();
  if (const auto took = up_.Begin(down_.busy())) Schedule(now_ + *took, EventKind::kUpEnd);
  if (const auto took = down_.Begin(up_.busy())) Schedule(now_ + *took, EventKind::kDownEnd);
}

bool Oracle::Perform(Client& client, const Op& op) {
  switch (op.kind) {
    case OpKind::kCreate:
    case OpKind::kGet:
      client.waiting = true;
      client.since = now_;
      return false;
    case OpKind::kPut: {
      Tensor& tensor = tensors_[op.tensor];
      if (op.modified) {
        tensor.clean = false;
        ++tensor.writes;
      }
      // What is never read again needs no copy.
      tensor.clean |= tensor.gets.empty();
      Set(op.tensor, State::kIdle);
      return true;
    }
    case OpKind::kFree:
      if (tensors_[op.tensor].state != State::kAway) free_ += SizeOf(op.tensor);
      Set(op.tensor, State::kFreed);
      return true;
    case OpKind::kCompute: outcome_.compute += op.time; return true;
    case OpKind::kStep: ++client.iteration; return true;
  }
  return true;
}

void Oracle::Advance(uint32_t index) {
  Client& client = clients_[index];
  while (client.next < client.program.size()) {
    const Op& op = *client.program[client.next];
    if (!Perform(client, op)) {
      Serve(client);
      return;
    }
    ++client.next;
    if (op.kind == OpKind::kCompute && op.time > Duration{0}) {
      Schedule(now_ + op.time, EventKind::kClient, index);
      return;
    }
  }
  client.done = true;
}

void Oracle::EndOfPiece(Link& link, bool up) {
  const Link::Job job = link.End().first;
  if (job.left > Bytes{0}) return;
  known_[up ? 0 : 1].push_back(job);
  Schedule(now_ + hardware_.latency, up ? EventKind::kUpKnown : EventKind::kDownKnown);
}

void Oracle::Known(const Link::Job& job, bool up) {
  Tensor& tensor = tensors_[job.row];
  const Bytes bytes = trace_.tensors[job.row].bytes;
  if (up) {
    up_bytes_ -= bytes;
    --ups_;
    if (tensor.state == State::kArriving) Set(job.row, State::kIdle);
    return;
  }
  down_bytes_ -= bytes;
  --downs_;
  tensor.cleaning = false;
  if (tensor.state == State::kFreed || tensor.writes != tensor.cleaned_writes) return;
  Unlist(job.row);
  tensor.clean = true;
  List(job.row);
}

Outcome Oracle::Run() {
  for (uint32_t i = 0; i < clients_.size(); ++i) Schedule(now_, EventKind::kClient, i);
  Tick last{};
  while (!queue_.empty()) {
    const Event event = queue_.top();
    queue_.pop();
    if (event.at > Tick{} + kReplayMax) {
      outcome_.failure = kTooLong;
      break;
    }
    now_ = event.at;
    switch (event.kind) {
      case EventKind::kClient:
        Advance(event.client);
        last = now_;
        break;
      case EventKind::kUpEnd: EndOfPiece(up_, true); break;
      case EventKind::kDownEnd: EndOfPiece(down_, false); break;
      case EventKind::kUpKnown:
      case EventKind::kDownKnown: {
        const bool up = event.kind == EventKind::kUpKnown;
        auto& known = known_[up ? 0 : 1];
        const Link::Job job = known.front();
        known.pop_front();
        Known(job, up);
        break;
      }
    }
    if (std::all_of(clients_.begin(), clients_.end(), [](const Client& c) { return c.done; }))
      break;
    Pump();
  }
  for (const Client& client : clients_) {
    if (!client.done && outcome_.failure.empty()) outcome_.failure = "a client waits for ever";
  }
  outcome_.time = last - Tick{};
  outcome_.up = up_.bytes();
  outcome_.down = down_.bytes();
  return std::move(outcome_);
}

}  // namespace

Outcome SimulateOracle(const Trace& trace, const Hardware& hardware, Bytes budget,
                       Duration lookahead) {
  return Oracle(trace, hardware, budget, lookahead).Run();
}

}  // namespace ravenstore::sim
