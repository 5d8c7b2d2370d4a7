#include "sim/paged_device.h"

#include <map>
#include <utility>

#include "core/check.h"

namespace ravenstore::sim {

using core::ClientId;
using core::Duration;
using core::plan::PoolNumber;
using core::plan::Unit;

namespace {

// Of the bytes that a kernel uses on the host.
constexpr Unit kNoUnit = ~Unit{0};

}  // namespace

// A client's port.
class PagedDevice::Client : public core::PageBackend {
 public:
  Client(PagedDevice* device, uint32_t number)
      : device_(device), number_(number), links_(device->lanes_.size()) {}

  // A link has copied all bytes of the unit. Returns the pool of the copy if that ends it.
  std::optional<PoolNumber> EndPart(Unit unit) {
    const auto found = parts_.find(unit);
    if (--found->second.left > 0) return std::nullopt;
    const PoolNumber pool = found->second.pool;
    parts_.erase(found);
    return pool;
  }
  void EndIn(PoolNumber pool, Unit unit) {
    --links_[pool].in;
    if (links_[pool].demanded == unit) links_[pool].demanded = std::nullopt;
  }
  void EndOut(PoolNumber pool) { --links_[pool].out; }

  void UseInPlace(core::Bytes in, core::Bytes out) {
    PagedDevice::Lane& host = device_->lanes_[device_->host_];
    for (const auto& [link, bytes] : {std::pair(&host.in, in), std::pair(&host.out, out)}) {
      if (bytes == core::Bytes{}) continue;
      ++in_place_;
      link->Submit({core::TensorId{}, kNoUnit, bytes, ClientId{number_}}, Link::Urgency::kDemand);
    }
  }
  void EndInPlace() { --in_place_; }
  bool UsesInPlace() const { return in_place_ > 0; }

  bool Revoke(core::TensorNumber, uint32_t) override { return true; }
  void Publish(core::TensorNumber) override {}
  void Grant(core::TensorNumber) override {}
  void Refuse(core::TensorNumber) override {}
  bool Map(const MapOrder& order) override {
    const MappingCosts& costs = device_->costs_;
    const Duration takes = (order.steps.map ? costs.map + costs.access : Duration{0}) +
                           (order.steps.unmap ? costs.unmap : Duration{0});
    if (takes == Duration{0}) return true;
    device_->mapping_ += takes;
    device_->Schedule(takes, Kind::kMapped, number_, order.unit);
    return false;
  }
  void Unmap(core::plan::PhysicalPage page) override {
    device_->mapping_ += device_->costs_.unmap;
    device_->Schedule(device_->costs_.unmap, Kind::kUnmapped, number_, page);
  }
  void Release(const core::plan::PageSupply::Released& page) override {
    const Duration takes = page.mapped ? device_->costs_.unmap : Duration{0};
    device_->Schedule(takes, Kind::kReleased, number_, page.page);
  }
  void CopyIn(const CopyOrder& order) override {
    ++links_[order.pool].in;
    if (order.demanded) links_[order.pool].demanded = order.unit;
    for (const PoolNumber pool : PathOf(order))
      device_->lanes_[pool].in.Submit(
          JobOf(order), order.demanded ? Link::Urgency::kDemand : Link::Urgency::kBackground);
  }
  void CopyOut(const CopyOrder& order) override {
    ++links_[order.pool].out;
    for (const PoolNumber pool : PathOf(order))
      device_->lanes_[pool].out.Submit(JobOf(order), Link::Urgency::kBackground);
  }
  void FreeCopy(Unit, PoolNumber) override {}
  void MoveSlot(const core::PageMemory::SlotMove&, core::Bytes) override {}
  bool MoveCopy(const CopyMove&) override { return true; }
  bool CanCopyIn(PoolNumber pool, bool demanded) const override {
    return links_[pool].in == 0 || (demanded && !links_[pool].demanded);
  }
  bool CanCopyOut(PoolNumber pool) const override { return links_[pool].out == 0; }

 private:
  // Copies on a link, and of those in the one that a call waits for.
  struct Copies {
    uint32_t in = 0;
    uint32_t out = 0;
    std::optional<Unit> demanded;
  };
  // Links that copy the bytes of a unit, and have not ended.
  struct Parts {
    uint32_t left = 0;
    PoolNumber pool = 0;
  };

  std::vector<PoolNumber> PathOf(const CopyOrder& order) {
    std::vector<PoolNumber> path{order.pool};
    if (device_->lanes_[order.pool].of.behind_host) path.push_back(device_->host_);
    parts_[order.unit] = {static_cast<uint32_t>(path.size()), order.pool};
    return path;
  }
  Link::Job JobOf(const CopyOrder& order) const {
    return {core::TensorId{uint64_t{order.unit} + 1}, order.unit, order.bytes, ClientId{number_}};
  }

  PagedDevice* const device_;
  const uint32_t number_;
  std::vector<Copies> links_;  // by pool
  std::map<Unit, Parts> parts_;
  uint32_t in_place_ = 0;  // links that copy for its kernel
};

PagedDevice::PagedDevice(const Hardware& hardware, const MappingCosts& costs,
                         const std::vector<PagedPool>& pools, bool timeline)
    : costs_(costs), timeline_(timeline) {
  for (const PagedPool& of : pools) {
    if (of.is_host) host_ = static_cast<PoolNumber>(lanes_.size());
    lanes_.push_back({of, Link(of.pool.in_rate, of.duplex, hardware.per_copy),
                      Link(of.pool.out_rate, of.duplex, hardware.per_copy)});
  }
}

PagedDevice::~PagedDevice() = default;

core::PageBackend* PagedDevice::AddClient(ClientId id) {
  RAVEN_CHECK(core::ToInt(id) == clients_.size());
  clients_.push_back(std::make_unique<Client>(this, core::ToInt(id)));
  return clients_.back().get();
}

void PagedDevice::UseInPlace(ClientId client, core::Bytes in, core::Bytes out) {
  RAVEN_CHECK(!UsesInPlace(client));
  clients_[core::ToInt(client)]->UseInPlace(in, out);
}

bool PagedDevice::UsesInPlace(ClientId client) const {
  return clients_[core::ToInt(client)]->UsesInPlace();
}

std::optional<Duration> PagedDevice::NextEvent() const {
  return events_.empty() ? std::nullopt : std::optional(events_.top().at);
}

void PagedDevice::Schedule(Duration after, Kind kind, uint32_t client, uint32_t number) {
  events_.push({now_ + after, ++sequence_, kind, client, number});
}

void PagedDevice::SetTime(Duration now) {
  RAVEN_CHECK(now >= now_);
  now_ = now;
}

ClientId PagedDevice::Advance(core::PageScheduler* scheduler) {
  const Event event = events_.top();
  events_.pop();
  SetTime(event.at);
  const ClientId client{event.client};
  switch (event.kind) {
    case Kind::kUnmapped: scheduler->Moved(client).Unmapped(event.number); break;
    case Kind::kMapped: scheduler->Moved(client).Mapped(event.number); break;
    case Kind::kPieceIn:
      return EndPiece(static_cast<PoolNumber>(event.number), Kind::kIn, scheduler);
    case Kind::kIn:
      scheduler->Arrived(client, event.number, core::PageScheduler::Arrival::kCopiedIn, true);
      break;
    case Kind::kPieceOut:
      return EndPiece(static_cast<PoolNumber>(event.number), Kind::kOut, scheduler);
    case Kind::kOut: scheduler->Moved(client).CopiedOut(event.number, true); break;
    case Kind::kReleased: scheduler->PageReleased(client); break;
    case Kind::kMade: scheduler->PageMade(client); break;
  }
  return client;
}

ClientId PagedDevice::EndPiece(PoolNumber pool, Kind kind, core::PageScheduler* scheduler) {
  Lane& lane = lanes_[pool];
  const auto [job, bytes] = (kind == Kind::kIn ? lane.in : lane.out).End();
  const uint32_t number = core::ToInt(job.owner);
  scheduler->Moved(job.owner);
  if (job.left > core::Bytes{}) return job.owner;
  Client& client = *clients_[number];
  if (job.row == kNoUnit) {
    client.EndInPlace();
    return job.owner;
  }
  const auto ended = client.EndPart(job.row);
  if (!ended) return job.owner;
  if (kind == Kind::kIn) {
    client.EndIn(*ended, job.row);
  } else {
    client.EndOut(*ended);
  }
  Schedule(lanes_[*ended].of.latency, kind, number, job.row);
  return job.owner;
}

void PagedDevice::BeginPiece(Duration takes, Kind kind, PoolNumber pool) {
  Schedule(takes, kind, 0, pool);
  if (!timeline_) return;
  const Span::Kind shown = kind == Kind::kPieceIn ? Span::Kind::kUp : Span::Kind::kDown;
  spans_.push_back({shown, 0, now_, now_ + takes, ~uint32_t{0}});
}

void PagedDevice::Start() {
  for (PoolNumber pool = 0; pool < lanes_.size(); ++pool) {
    Lane& lane = lanes_[pool];
    if (const auto takes = lane.out.Begin(lane.in.busy()))
      BeginPiece(*takes, Kind::kPieceOut, pool);
    if (const auto takes = lane.in.Begin(lane.out.busy())) BeginPiece(*takes, Kind::kPieceIn, pool);
  }
  if (to_make_) Schedule(costs_.make, Kind::kMade, core::ToInt(*to_make_), 0);
  to_make_.reset();
}

}  // namespace ravenstore::sim
