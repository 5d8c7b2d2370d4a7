#include "client/ctl/render_top.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <utility>

#include "client/ctl/by_user.h"
#include "client/ctl/render.h"
#include "client/ctl/render_devices.h"
#include "client/ctl/render_nodes.h"
#include "core/printable.h"
#include "core/size_text.h"
#include "core/text_table.h"

namespace ravenstore::client::ctl {
namespace {

using core::Printable;
using core::TextTable;

constexpr size_t kBar = 20;  // characters

std::string Size(uint64_t bytes) {
  return core::SizeText(core::Bytes(bytes));
}

std::string Format(const char* format, double value) {
  char text[32];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

// A figure between two looks, a second.
class Rates {
 public:
  Rates(const Look* before, const Look& now) {
    if (before == nullptr || now.at <= before->at) return;
    if (now.seen.stats.uptime_ns() < before->seen.stats.uptime_ns()) return;
    seconds_ = core::Seconds(now.at - before->at);
    before_ = &before->seen.stats;
    now_ = &now.seen.stats;
  }

  // `counter` is of the figures of one look.
  std::optional<double> Of(const std::function<uint64_t(const proto::Stats&)>& counter) const {
    if (before_ == nullptr) return std::nullopt;
    const uint64_t begin = counter(*before_);
    const uint64_t end = counter(*now_);
    return static_cast<double>(end - std::min(begin, end)) / seconds_;
  }

 private:
  const proto::Stats* before_ = nullptr;  // null: there are no rates
  const proto::Stats* now_ = nullptr;
  double seconds_ = 0;
};

std::string PerSecond(const std::optional<double>& rate) {
  return rate ? Format("%.0f/s", *rate) : "-";
}

std::string BytesPerSecond(const std::optional<double>& rate) {
  return rate ? Format("%.2f GB/s", *rate / 1e9) : "-";
}

// Of all nodes.
auto SumOf(uint64_t (proto::NodeUse::*of_one)() const) {
  return [of_one](const proto::Stats& stats) {
    uint64_t sum = 0;
    for (const proto::NodeUse& node : stats.cluster().nodes()) sum += (node.*of_one)();
    return sum;
  };
}

// "[####====      ]": of the capacity, the part that tensors use, and the rest of what is held.
std::string Bar(const proto::TierStats& tier) {
  if (tier.capacity() == 0) return "";
  const auto part = [&](uint64_t bytes) {
    const double share = static_cast<double>(bytes) / static_cast<double>(tier.capacity());
    return std::min(kBar, static_cast<size_t>(std::lround(share * kBar)));
  };
  const size_t used = part(tier.used());
  const size_t held = std::max(used, part(tier.held()));
  std::string bar = "[";
  bar += std::string(used, '#');
  bar += std::string(held - used, '=');
  bar += std::string(kBar - held, ' ');
  return bar + "]";
}

std::string TiersText(const proto::Stats& stats, size_t columns) {
  TextTable table("<>>><");
  table.Row({"TIER", "USED", "HELD", "CAPACITY", ""});
  for (const proto::TierStats& tier : stats.tiers()) {
    table.Row({Printable(tier.name()), Size(tier.used()), Size(tier.held()),
               tier.capacity() == 0 ? "-" : Size(tier.capacity()), Bar(tier)});
  }
  return table.Text(columns);
}

std::string WorkText(const Rates& rates, const proto::Stats& stats, size_t columns) {
  TextTable table("<|");
  const auto hits = rates.Of(&proto::Stats::hits);
  const auto late = rates.Of(&proto::Stats::late_hits);
  const auto misses = rates.Of(&proto::Stats::misses);
  table.Row({"gets", PerSecond(hits) + " on the device, " + PerSecond(late) + " on the way, " +
                         PerSecond(misses) + " away"});
  table.Row({"moved", BytesPerSecond(rates.Of(&proto::Stats::bytes_in)) + " in, " +
                          BytesPerSecond(rates.Of(&proto::Stats::bytes_out)) + " out"});
  if (!stats.cluster().nodes().empty()) {
    table.Row({"of nodes", BytesPerSecond(rates.Of(SumOf(&proto::NodeUse::read))) + " in, " +
                               BytesPerSecond(rates.Of(SumOf(&proto::NodeUse::written))) + " out"});
  }
  table.Row({"prefetched", PerSecond(rates.Of(&proto::Stats::prefetches))});
  const auto stalled = rates.Of(&proto::Stats::stall_ns);
  table.Row({"stalled", (stalled ? Format("%.2f s a second", *stalled / 1e9) : "-") + ", " +
                            std::to_string(stats.waiting()) + " waiting"});
  return table.Text(columns);
}

// The greater comes first.
uint64_t RankOf(const UserSums& user, TopOrder order) {
  if (order == TopOrder::kClients) return user.clients + user.jobs;
  if (order == TopOrder::kWaiting) return user.waiting;
  return user.device + user.of_jobs;
}

std::string UsersText(const Snapshot& seen, const std::function<std::string(uid_t)>& name_of,
                      size_t columns, TopOrder order) {
  const auto users = ByUser(seen.clients, seen.jobs);
  std::vector<std::pair<uid_t, UserSums>> rows(users.begin(), users.end());
  std::stable_sort(rows.begin(), rows.end(), [&](const auto& a, const auto& b) {
    if (order == TopOrder::kName) return name_of(a.first) < name_of(b.first);
    return RankOf(a.second, order) > RankOf(b.second, order);
  });
  TextTable table("~>>>>>>>>");
  table.Row(
      {"USER", "CLIENTS", "DEVICE", "IN USE", "HOST", "PINNED", "JOBS", "THEIR OWN", "WAITING"});
  for (const auto& [uid, user] : rows) {
    table.Row({Printable(name_of(uid)), std::to_string(user.clients), Size(user.device),
               Size(user.in_use), Size(user.host), Size(user.pinned), std::to_string(user.jobs),
               Size(user.of_jobs), std::to_string(user.waiting)});
  }
  return table.Text(columns);
}

std::string Cut(const std::string& text, size_t rows) {
  if (rows == 0) return text;
  size_t lines = static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  if (lines <= rows) return text;
  size_t end = 0;
  for (size_t i = 0; i + 1 < rows; ++i) end = text.find('\n', end) + 1;
  return text.substr(0, end) + "and " + std::to_string(lines - rows + 1) + " lines more\n";
}

}  // namespace

bool TopView::Take(char key) {
  switch (key) {
    case 'q': ends = true; return true;
    case 'h':
    case '?': help = !help; return true;
    case 'm': order = TopOrder::kMemory; return true;
    case 'c': order = TopOrder::kClients; return true;
    case 'w': order = TopOrder::kWaiting; return true;
    case 'n': order = TopOrder::kName; return true;
    default: return false;
  }
}

std::string TopText(const proto::Welcome& welcome, const Look* before, const Look& now,
                    const std::function<std::string(uid_t)>& name_of, Screen screen) {
  const proto::Stats& stats = now.seen.stats;
  std::string text = "ravenstored " + Printable(welcome.daemon_version()) + ", backend " +
                     Printable(welcome.backend()) + ", up " + DurationText(stats.uptime_ns()) +
                     "; " + std::to_string(stats.tensors()) + " tensors of " +
                     std::to_string(stats.clients()) + " clients" +
                     (screen.has_keys ? "; h: keys" : "") + "\n\n";
  if (screen.view.help) {
    text +=
        "q ends, h hides this. Users by: m memory, c clients and jobs, w waiting calls, n name\n\n";
  }
  text += TiersText(stats, screen.columns) + "\n";
  if (stats.has_cluster()) text += ClusterLine(stats) + "\n";
  if (stats.devices_size() > 0) text += DeviceUsesTable(stats, screen.columns) + "\n";
  text += WorkText(Rates(before, now), stats, screen.columns) + "\n";
  text += UsersText(now.seen, name_of, screen.columns, screen.view.order);
  return Cut(text, screen.rows);
}

}  // namespace ravenstore::client::ctl
