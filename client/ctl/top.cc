// `ravenctl top`.
#include <optional>
#include <ostream>
#include <thread>

#include "client/ctl/by_user.h"
#include "client/ctl/commands.h"
#include "client/ctl/render_top.h"
#include "client/ctl/session.h"
#include "ipc/clock.h"

namespace ravenstore::client::ctl {
namespace {

// An interrupt is seen within this.
constexpr core::Duration kNap = std::chrono::milliseconds(20);
constexpr const char* kClear = "\x1b[H\x1b[J";

// False: it was stopped.
bool Wait(core::Duration time, const std::atomic<bool>& stop) {
  const core::Tick until = ipc::Now() + time;
  while (!stop.load()) {
    const core::Duration left = until - ipc::Now();
    if (left <= core::Duration{0}) return true;
    std::this_thread::sleep_for(std::min(left, kNap));
  }
  return false;
}

}  // namespace

int RunTop(const Common& common, const TopOptions& options, const std::atomic<bool>& stop,
           Streams streams) {
  std::optional<Look> before;
  auto session = Session::Open(common.socket, common.timeout);
  for (uint64_t shown = 0; session.ok();) {
    auto seen = session->Look();
    if (!seen.ok()) {
      session = seen.error();
      break;
    }
    Look now{ipc::Now(), std::move(*seen)};
    if (common.json) {
      streams.out << StatusJson(session->welcome(), now.seen.stats, now.seen.clients);
    } else {
      if (options.in_place) streams.out << kClear;
      streams.out << TopText(session->welcome(), before ? &*before : nullptr, now, UserName,
                             {common.columns, options.rows});
      if (!options.in_place) streams.out << '\n';
    }
    streams.out.flush();
    before = std::move(now);
    if (++shown == options.count || !streams.out) return kExitOk;
    if (!Wait(options.interval, stop)) return kExitOk;
  }
  return ReportUnreachable(common, session.error(), streams);
}

}  // namespace ravenstore::client::ctl
