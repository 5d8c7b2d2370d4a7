#include "daemon/discovery.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/printable.h"
#include "daemon/threads.h"

namespace ravenstore::daemon {
namespace {

// What Stop waits for is looked at so often: nothing wakes a store's Poll.
constexpr core::Duration kLookEvery = std::chrono::milliseconds(250);
constexpr core::Duration kLeaveWithin = std::chrono::seconds(1);

std::string WordsOf(const cluster::MembershipStatus& status) {
  return status.registration + "; " + status.store;
}

bool IsWell(const cluster::MembershipStatus& status) {
  return status.registered && status.reachable;
}

}  // namespace

Discovery::Discovery(Options options, std::unique_ptr<cluster::KeyValues> store)
    : options_(std::move(options)),
      store_(std::move(store)),
      membership_(options_.membership, store_.get(), this) {}

Discovery::~Discovery() {
  Stop();
}

void Discovery::Start(const std::atomic<bool>& ending) {
  OnStatus(membership_.status());
  thread_ = Supervise("raven-discover", ending, [this] { Run(); });
}

void Discovery::Stop() {
  if (!thread_.joinable()) return;
  stopping_ = true;
  thread_.join();
}

void Discovery::Run() {
  while (!stopping_) {
    RunUntil(store_->Now() + kLookEvery);
    ReportStatus(membership_.status());  // which also says since when
  }
  membership_.Leave();
  const core::Tick leave_by = store_->Now() + kLeaveWithin;
  while (!membership_.HasLeft() && store_->Now() < leave_by) RunUntil(leave_by);
}

void Discovery::RunUntil(core::Tick until) {
  membership_.Tick(store_->Now());
  store_->Poll(std::min(until, membership_.NextTick()));
}

void Discovery::ReportFound() {
  std::map<std::string, std::string> found;
  for (const cluster::NodeRecord* node : membership_.nodes().Nodes())
    found.emplace(node->name, node->address);
  options_.found(found);
}

void Discovery::OnJoined(const cluster::NodeRecord& node) {
  spdlog::info("cluster.found peer={} address={}", node.name, core::Printable(node.address));
  ReportFound();
}

void Discovery::OnChanged(const cluster::NodeRecord&, const cluster::NodeRecord& now) {
  spdlog::info("cluster.changed peer={} address={}", now.name, core::Printable(now.address));
  ReportFound();
}

void Discovery::OnLeft(const cluster::NodeRecord& node) {
  spdlog::info("cluster.left peer={}", node.name);
  ReportFound();
}

void Discovery::OnRefused(std::string_view name, const core::Error& why) {
  spdlog::warn("cluster.not_let_in peer={}: {}", core::Printable(name), core::Describe(why));
}

void Discovery::OnStatus(const cluster::MembershipStatus& status) {
  spdlog::log(IsWell(status) ? spdlog::level::info : spdlog::level::warn, "cluster.discovery: {}",
              core::Printable(WordsOf(status)));
  ReportStatus(status);
}

void Discovery::ReportStatus(const cluster::MembershipStatus& status) {
  options_.status(WordsOf(status), IsWell(status));
}

}  // namespace ravenstore::daemon
