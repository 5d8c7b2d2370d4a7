#include "transport/fake.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <vector>

#include "core/check.h"
#include "transport/multiplexed.h"

namespace ravenstore::transport {
namespace {

using core::Error;
using core::ErrorCode;
using core::Tick;

constexpr size_t kSegment = 64 << 10;
// On their way or not read yet, of one direction.
constexpr size_t kWindow = 1 << 20;
// No frame without bulk is so long in tests of damage.
constexpr size_t kBulkSegment = 4 << 10;
constexpr size_t kBareFrame = 32;

}  // namespace

struct FakeNetwork::End {
  struct Segment {
    std::string bytes;
    bool damaged = false;
  };
  FakeTransport* node = nullptr;  // null before it is established and after it is lost
  ConnectionId id{};
  std::unique_ptr<Multiplexer> calls = {};
  std::deque<Segment> arrived = {};
  size_t in_flight = 0;       // that this end sent
  Tick last_sent{};           // when the last of that arrives
  Tick timer = core::kNever;  // the earliest event that will look at NextTimer
  bool pump_scheduled = false;
};

// A connection: the first end made it.
struct FakeNetwork::Wire {
  Nodes from_to;
  std::array<End, 2> ends;
  bool established = false;

  End& at(bool first) { return ends[first ? 0 : 1]; }
  Nodes between() const { return Between(from_to.first, from_to.second); }
};

class FakeTransport final : public MultiplexedTransport {
 public:
  FakeTransport(FakeNetwork* network, std::string name, Service* service, Patience patience,
                uint32_t version)
      : network_(*network),
        name_(std::move(name)),
        service_(service),
        patience_(patience),
        version_(version) {
    RAVEN_CHECK(network_.nodes_.emplace(name_, this).second);
  }
  ~FakeTransport() override {
    network_.nodes_.erase(name_);
    while (!connections_.empty()) {
      Lose(connections_.begin()->first, {ErrorCode::kUnavailable, "the transport is closed"});
    }
  }

  core::Result<ConnectionId> Connect(std::string_view node, std::string_view address,
                                     Tick deadline) override {
    if (!IsNodeName(node) || !IsNodeName(address)) {
      return Error{ErrorCode::kInvalidArgument, "no name of a node, or no address of one"};
    }
    auto wire = std::make_shared<FakeNetwork::Wire>();
    wire->from_to = {name_, std::string(address)};
    const ConnectionId id = Join(wire, true, std::string(node));
    network_.Send(wire->between(), 0, &wire->at(true).last_sent,
                  [network = &network_, wire] { network->Establish(wire); });
    network_.events_.Add(std::max(deadline, network_.now_), [wire] {
      FakeNetwork::End& end = wire->at(true);
      if (end.node == nullptr || end.calls->ready()) return;
      end.node->network_.Lose(wire, true, {ErrorCode::kTimedOut, "no answer in time"}, true);
    });
    return id;
  }
  void Close(ConnectionId connection) override {
    Lose(connection, {ErrorCode::kUnavailable, "the connection was closed"});
  }
  void Poll(Tick until) override { network_.RunUntil(std::max(until, network_.now_)); }
  void Wake() override {}  // Poll waits for nothing
  Tick Now() const override { return network_.now_; }

  // Makes this node the first or second end of the wire.
  ConnectionId Join(const std::shared_ptr<FakeNetwork::Wire>& wire, bool first, std::string peer) {
    FakeNetwork::End& end = wire->at(first);
    end.node = this;
    end.id = ConnectionId{++last_connection_};
    end.calls = std::make_unique<Multiplexer>(end.id,
                                              Multiplexer::Options{.self = name_,
                                                                   .peer = std::move(peer),
                                                                   .sums = network_.sums_,
                                                                   .patience = patience_,
                                                                   .version = version_},
                                              service_, network_.now_);
    connections_.emplace(end.id, std::pair(wire, first));
    network_.SchedulePump(wire, first);
    return end.id;
  }

 protected:
  Multiplexer* Find(ConnectionId connection) override {
    const auto found = connections_.find(connection);
    if (found == connections_.end()) return nullptr;
    const auto& [wire, first] = found->second;
    return wire->at(first).calls.get();
  }
  void HasOutput(ConnectionId connection) override {
    const auto found = connections_.find(connection);
    if (found == connections_.end()) return;
    network_.SchedulePump(found->second.first, found->second.second);
  }

 private:
  friend class FakeNetwork;
  void Lose(ConnectionId connection, const Error& why) {
    const auto found = connections_.find(connection);
    if (found == connections_.end()) return;
    const auto [wire, first] = found->second;
    network_.Lose(wire, first, why, false);
  }

  FakeNetwork& network_;
  const std::string name_;
  Service* const service_;
  const Patience patience_;
  const uint32_t version_;
  uint64_t last_connection_ = 0;
  std::map<ConnectionId, std::pair<std::shared_ptr<FakeNetwork::Wire>, bool>> connections_;
};

FakeNetwork::~FakeNetwork() {
  RAVEN_CHECK(nodes_.empty());
}

std::unique_ptr<Transport> FakeNetwork::Add(const std::string& node, Service* service,
                                            Patience patience, uint32_t version) {
  return std::make_unique<FakeTransport>(this, node, service, patience, version);
}

// ---- Time

bool FakeNetwork::RunNext(Tick until) {
  const Tick next = Next();
  const auto action = events_.Take(until);
  if (!action) return false;
  now_ = std::max(now_, next);
  action();
  return true;
}

void FakeNetwork::RunUntil(Tick until) {
  while (RunNext(until)) {
  }
  now_ = std::max(now_, until);
}

// ---- Faults

void FakeNetwork::SetLink(const std::string& a, const std::string& b, FakeLink link) {
  links_[Between(a, b)] = link;
}

void FakeNetwork::SetPort(const std::string& node, double bytes_per_second) {
  ports_[node].bytes_per_second = bytes_per_second;
}

Tick FakeNetwork::ReservePorts(const std::string& from, const std::string& to, size_t bytes) {
  Tick passed = now_;
  const auto pass = [&](const std::string& node, Tick Port::*way) {
    const auto found = ports_.find(node);
    if (found == ports_.end() || found->second.bytes_per_second <= 0) return;
    const auto takes =
        core::FromSeconds(static_cast<double>(bytes) / found->second.bytes_per_second);
    // The second port has the first byte when the first has sent it.
    passed = std::max(passed, found->second.*way + takes);
    passed = std::max(passed, now_ + takes);
    found->second.*way = passed;
  };
  if (ports_.empty()) return passed;
  pass(from, &Port::out);
  pass(to, &Port::in);
  return passed;
}

void FakeNetwork::Cut(const std::string& a, const std::string& b) {
  cut_.try_emplace(Between(a, b));
}

void FakeNetwork::Heal(const std::string& a, const std::string& b) {
  auto waiting = cut_.extract(Between(a, b));
  if (waiting.empty()) return;
  for (const auto& send : waiting.mapped()) send();
}

void FakeNetwork::Drop(const std::string& a, const std::string& b) {
  const auto found = nodes_.find(a);
  if (found == nodes_.end()) return;
  const Error why{ErrorCode::kUnavailable, "the connection broke"};
  for (const auto& [id, connection] : std::map(found->second->connections_)) {
    const auto& [wire, first] = connection;
    if (wire->between() != Between(a, b)) continue;
    for (const bool end : {true, false}) Lose(wire, end, why, true);
  }
}

void FakeNetwork::Pause(const std::string& node) {
  paused_.try_emplace(node);
}

void FakeNetwork::Resume(const std::string& node) {
  auto waiting = paused_.extract(node);
  if (waiting.empty()) return;
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) return;
  for (const auto& [id, connection] : found->second->connections_) {
    SchedulePump(connection.first, connection.second);
  }
  for (auto& notify : waiting.mapped()) events_.Add(now_, std::move(notify));
}

void FakeNetwork::DamageNext(const std::string& from, const std::string& to, Damage damage) {
  damages_[{from, to}] = damage;
}

bool FakeNetwork::ApplyDamage(const std::string& from, const std::string& to, std::string* bytes) {
  const auto found = damages_.find({from, to});
  if (found == damages_.end() || bytes->size() < kBulkSegment) return false;
  const size_t where = random_() % (bytes->size() - 1);
  if (found->second == Damage::kFlippedBit) {
    (*bytes)[where] = static_cast<char>((*bytes)[where] ^ (1 << random_() % 8));
  } else {
    bytes->erase(where, 1 + random_() % (bytes->size() - where));
  }
  damages_.erase(found);
  return true;
}

// ---- Connections

void FakeNetwork::Send(const Nodes& nodes, size_t bytes, Tick* last, std::function<void()> what) {
  if (const auto cut = cut_.find(nodes); cut != cut_.end()) {
    cut->second.push_back(
        [this, nodes, bytes, last, what = std::move(what)] { Send(nodes, bytes, last, what); });
    return;
  }
  const FakeLink& link = links_[nodes];
  core::Duration delay = link.delay;
  if (link.jitter.count() > 0) {
    delay += core::Duration(random_() % static_cast<uint64_t>(link.jitter.count()));
  }
  *last = std::max(*last, now_ + delay);
  if (link.bytes_per_second > 0) {
    *last += core::FromSeconds(static_cast<double>(bytes) / link.bytes_per_second);
  }
  events_.Add(*last, std::move(what));
}

void FakeNetwork::Establish(const std::shared_ptr<Wire>& wire) {
  if (wire->at(true).node == nullptr) return;
  const auto found = nodes_.find(wire->from_to.second);
  if (found == nodes_.end()) {
    const std::string words = "no node listens at " + wire->from_to.second;
    Lose(wire, true, {ErrorCode::kUnavailable, words}, true);
    return;
  }
  wire->established = true;
  found->second->Join(wire, false, "");
  SchedulePump(wire, true);
}

void FakeNetwork::SchedulePump(const std::shared_ptr<Wire>& wire, bool first) {
  if (std::exchange(wire->at(first).pump_scheduled, true)) return;
  events_.Add(now_, [this, wire, first] {
    wire->at(first).pump_scheduled = false;
    Pump(wire, first);
  });
}

void FakeNetwork::Pump(const std::shared_ptr<Wire>& wire, bool first) {
  End& end = wire->at(first);
  if (end.node == nullptr || paused_.contains(end.node->name_)) return;
  bool moved = true;
  while (moved && end.node != nullptr) {
    moved = Read(wire, first);
    if (end.node == nullptr) return;
    if (const auto status = end.calls->Expire(now_); !status.ok()) {
      return Lose(wire, first, status.error(), true);
    }
    moved |= Write(wire, first);
  }
  if (end.node == nullptr) return;
  const Tick next = std::max(end.calls->NextTimer(), now_);
  if (next >= end.timer) return;
  end.timer = next;
  events_.Add(next, [this, wire, first, next] {
    End& late = wire->at(first);
    if (late.timer != next) return;
    late.timer = core::kNever;
    Pump(wire, first);
  });
}

bool FakeNetwork::Write(const std::shared_ptr<Wire>& wire, bool first) {
  End& end = wire->at(first);
  bool moved = false;
  while (end.node != nullptr && wire->established && end.in_flight < kWindow) {
    const auto output = end.calls->Output();
    if (output.empty() || end.node == nullptr) break;
    std::string bytes(reinterpret_cast<const char*>(output.data()),
                      std::min(output.size(), kSegment));
    end.calls->Written(bytes.size());
    end.in_flight += bytes.size();
    const auto& [one, other] = wire->from_to;
    const std::string& from = first ? one : other;
    const std::string& to = first ? other : one;
    const size_t sent = bytes.size();
    bare_frames_ += sent == kBareFrame ? 1 : 0;
    const bool damaged = ApplyDamage(from, to, &bytes);
    end.last_sent = std::max(end.last_sent, ReservePorts(from, to, sent));
    Send(wire->between(), sent, &end.last_sent,
         [this, wire, first, sent, damaged, bytes = std::move(bytes)]() mutable {
           wire->at(!first).arrived.push_back({std::move(bytes), damaged});
           wire->at(first).in_flight -= sent;
           Pump(wire, !first);
           SchedulePump(wire, first);
         });
    moved = true;
  }
  return moved;
}

bool FakeNetwork::Read(const std::shared_ptr<Wire>& wire, bool first) {
  End& end = wire->at(first);
  bool moved = false;
  while (end.node != nullptr && !end.arrived.empty()) {
    if (end.arrived.front().damaged && !sums_) {
      Lose(wire, first, {ErrorCode::kCorrupt, "damaged bytes came from the peer"}, true);
      return true;
    }
    std::string& bytes = end.arrived.front().bytes;
    size_t taken = 0;
    while (end.node != nullptr && taken < bytes.size()) {
      const auto room = end.calls->Room();
      const size_t count = std::min(room.size(), bytes.size() - taken);
      if (count == 0) break;
      std::memcpy(room.data(), bytes.data() + taken, count);
      taken += count;
      if (const auto status = end.calls->Received(count, now_); !status.ok()) {
        Lose(wire, first, status.error(), true);
      }
    }
    if (end.node == nullptr) return true;
    moved |= taken > 0;
    bytes.erase(0, taken);
    if (!bytes.empty()) break;
    end.arrived.pop_front();
  }
  return moved;
}

void FakeNetwork::Lose(const std::shared_ptr<Wire>& wire, bool first, const Error& why,
                       bool notify) {
  End& end = wire->at(first);
  if (end.node == nullptr) return;
  if (const auto paused = paused_.find(end.node->name_); notify && paused != paused_.end()) {
    return paused->second.push_back([this, wire, first, why] { Lose(wire, first, why, true); });
  }
  FakeTransport* const node = std::exchange(end.node, nullptr);
  node->connections_.erase(end.id);
  end.calls->Fail(why);
  if (notify) node->service_->OnLost(end.id, why);
  if (!wire->established) return;
  Send(wire->between(), 0, &end.last_sent, [this, wire, first] {
    Lose(wire, !first, {ErrorCode::kUnavailable, "the peer ended the connection"}, true);
  });
}

}  // namespace ravenstore::transport
