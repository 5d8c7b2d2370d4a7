// `ravenctl top`.
#include <errno.h>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <ostream>

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

// Each key as it is pressed and without an echo, while this is there. An interrupt stays one.
class Keys {
 public:
  // -1, or what is no terminal: there are no keys, or they are read as they are.
  explicit Keys(int descriptor)
      : descriptor_(descriptor),
        terminal_(descriptor >= 0 && ::tcgetattr(descriptor, &before_) == 0 ? descriptor : -1) {
    if (terminal_ < 0) return;
    termios now = before_;
    now.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    ::tcsetattr(terminal_, TCSANOW, &now);
  }
  Keys(const Keys&) = delete;
  Keys& operator=(const Keys&) = delete;
  ~Keys() {
    if (terminal_ >= 0) ::tcsetattr(terminal_, TCSANOW, &before_);
  }

  bool are_read() const { return descriptor_ >= 0; }

  // Waits for `time` at most for a key. Nullopt: there was none.
  std::optional<char> Next(core::Duration time) {
    const auto whole = std::chrono::ceil<std::chrono::milliseconds>(time);
    pollfd wait{descriptor_, POLLIN, 0};
    char key = 0;
    if (::poll(&wait, 1, static_cast<int>(whole.count())) <= 0) return std::nullopt;
    const ssize_t got = ::read(descriptor_, &key, 1);
    if (got == 1) return key;
    if (got == 0 || (errno != EINTR && errno != EAGAIN)) descriptor_ = -1;  // it ended
    return std::nullopt;
  }

 private:
  termios before_{};
  int descriptor_;  // -1: there are no more
  int terminal_;    // -1: it is none
};

// Until then, a stop, or a key that means something; true: there was one.
bool WaitForKey(core::Tick until, const std::atomic<bool>& stop, Keys* keys, TopView* view) {
  while (!stop.load()) {
    const core::Duration left = until - ipc::Now();
    if (left <= core::Duration{0}) return false;
    const auto key = keys->Next(std::min(left, kNap));
    if (key && view->Take(*key)) return true;
  }
  return false;
}

}  // namespace

int RunTop(const Common& common, const TopOptions& options, const std::atomic<bool>& stop,
           Streams streams) {
  std::optional<Look> before;
  Keys keys(common.json ? -1 : options.keys);
  TopView view;
  auto session = Session::Open(common.socket, common.timeout);
  for (uint64_t shown = 0; session.ok();) {
    auto seen = session->Look();
    if (!seen.ok()) {
      session = seen.error();
      break;
    }
    Look now{ipc::Now(), std::move(*seen)};
    const auto show = [&] {
      if (common.json) {
        streams.out << StatusJson(session->welcome(), now.seen.stats, now.seen.clients);
      } else {
        if (options.in_place) streams.out << kClear;
        streams.out << TopText(session->welcome(), before ? &*before : nullptr, now, UserName,
                               {common.columns, options.rows, view, keys.are_read()});
        if (!options.in_place) streams.out << '\n';
      }
      streams.out.flush();
    };
    show();
    if (++shown == options.count || !streams.out) return kExitOk;
    while (WaitForKey(now.at + options.interval, stop, &keys, &view) && !view.ends) show();
    if (stop.load() || view.ends) return kExitOk;
    before = std::move(now);
  }
  return ReportUnreachable(common, session.error(), streams);
}

}  // namespace ravenstore::client::ctl
