#include "sim/paged_device.h"

#include "core/check.h"

namespace ravenstore::sim {

using core::Duration;
using core::plan::Unit;

// A client's port, with its executor.
class PagedDevice::Client : public core::PageBackend {
 public:
  Client(PagedDevice* device, uint32_t number, const core::PageBooks::Options& options)
      : device_(device), number_(number), executor_(options, this) {}

  core::PageExecutor& executor() { return executor_; }
  void EndIn(Unit unit) {
    --copies_in_;
    if (demanded_ == unit) demanded_ = std::nullopt;
  }
  void EndOut() { --copies_out_; }

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
    ++copies_in_;
    if (order.demanded) demanded_ = order.unit;
    device_->in_.Submit(JobOf(order),
                        order.demanded ? Link::Urgency::kDemand : Link::Urgency::kBackground);
  }
  void CopyOut(const CopyOrder& order) override {
    ++copies_out_;
    device_->out_.Submit(JobOf(order), Link::Urgency::kBackground);
  }
  void MoveSlot(const core::PageBooks::SlotMove&, core::Bytes) override {}
  bool CanCopyIn(bool demanded) const override {
    return copies_in_ == 0 || (demanded && !demanded_);
  }
  bool CanCopyOut() const override { return copies_out_ == 0; }

 private:
  Link::Job JobOf(const CopyOrder& order) const {
    return {core::TensorId{uint64_t{order.unit} + 1}, order.unit, order.bytes,
            core::ClientId{number_}};
  }

  PagedDevice* const device_;
  const uint32_t number_;
  core::PageExecutor executor_;
  // On the link, and of those in the copy that a call waits for.
  uint32_t copies_in_ = 0;
  uint32_t copies_out_ = 0;
  std::optional<Unit> demanded_;
};

PagedDevice::PagedDevice(const Hardware& hardware, const MappingCosts& costs)
    : hardware_(hardware),
      costs_(costs),
      in_(hardware.up, hardware.duplex, hardware.per_copy),
      out_(hardware.down, hardware.duplex, hardware.per_copy) {}

PagedDevice::~PagedDevice() = default;

core::PageExecutor* PagedDevice::AddClient(const core::PageBooks::Options& options) {
  const auto number = static_cast<uint32_t>(clients_.size());
  clients_.push_back(std::make_unique<Client>(this, number, options));
  return &clients_.back()->executor();
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

uint32_t PagedDevice::Advance() {
  const Event event = events_.top();
  events_.pop();
  SetTime(event.at);
  core::PageExecutor& executor = clients_[event.client]->executor();
  switch (event.kind) {
    case Kind::kUnmapped: executor.Unmapped(event.number); break;
    case Kind::kMapped: executor.Mapped(event.number); break;
    case Kind::kPieceIn: return EndPiece(&in_, Kind::kIn);
    case Kind::kIn: executor.CopiedIn(event.number, true); break;
    case Kind::kPieceOut: return EndPiece(&out_, Kind::kOut);
    case Kind::kOut: executor.CopiedOut(event.number, true); break;
    case Kind::kReleased:
      ++free_pages_;
      if (handed_ahead_ > 0) {
        --handed_ahead_;
      } else {
        ++unassigned_;
      }
      break;
    case Kind::kMade:
      making_ = false;
      ++handed_over_;
      executor.AddPage();
      break;
  }
  return event.client;
}

uint32_t PagedDevice::EndPiece(Link* link, Kind kind) {
  const auto [job, bytes] = link->End();
  const uint32_t number = core::ToInt(job.owner);
  if (job.left > core::Bytes{}) return number;
  if (kind == Kind::kIn) {
    clients_[number]->EndIn(job.row);
  } else {
    clients_[number]->EndOut();
  }
  Schedule(hardware_.latency, kind, number, job.row);
  return number;
}

void PagedDevice::Start() {
  if (const auto takes = out_.Begin(in_.busy())) Schedule(*takes, Kind::kPieceOut, 0, 0);
  if (const auto takes = in_.Begin(out_.busy())) Schedule(*takes, Kind::kPieceIn, 0, 0);
  StartMaking();
}

void PagedDevice::HandOver(uint32_t from, uint32_t to) {
  ++handed_ahead_;
  clients_[to]->executor().ExpectPage();
  RAVEN_CHECK(clients_[from]->executor().ReleasePage());
}

void PagedDevice::AssignPages() {
  while (unassigned_ > 0) {
    uint32_t most = 0;  // that a client lacks
    core::PageExecutor* found = nullptr;
    for (const auto& client : clients_) {
      const core::PageBooks& books = client->executor().books();
      const uint32_t has = books.pages() + books.expected();
      if (books.limits().pages <= has || books.limits().pages - has <= most) continue;
      most = books.limits().pages - has;
      found = &client->executor();
    }
    if (found == nullptr) return;
    --unassigned_;
    found->ExpectPage();
  }
}

void PagedDevice::StartMaking() {
  AssignPages();
  if (making_ || free_pages_ == unassigned_) return;
  uint32_t number = 0;
  uint32_t most = 0;
  for (uint32_t i = 0; i < clients_.size(); ++i) {
    const uint32_t expected = clients_[i]->executor().books().expected();
    if (expected <= most) continue;
    most = expected;
    number = i;
  }
  making_ = true;
  --free_pages_;
  Schedule(costs_.make, Kind::kMade, number, 0);
}

}  // namespace ravenstore::sim
