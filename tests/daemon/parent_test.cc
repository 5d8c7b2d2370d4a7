#include "daemon/parent.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <csignal>

#include "core/result.h"
#include "daemon/signals.h"
#include "tests/ipc/child.h"

namespace ravenstore::daemon {
namespace {

// An alarm ends what hangs.
constexpr unsigned kTimeoutSeconds = 30;

TEST(ParentTest, TheEndOfTheParentIsASigterm) {
  int ended[2];
  ASSERT_EQ(::pipe(ended), 0);
  ipc::Child parent([&] {
    ::alarm(kTimeoutSeconds);
    int ready[2];
    if (::pipe(ready) != 0) return 1;
    const pid_t self = ::getpid();
    const pid_t daemon = ::fork();
    if (daemon == 0) {
      spdlog::set_default_logger(spdlog::null_logger_mt("null"));
      ::alarm(kTimeoutSeconds);
      Signals::Block();
      Signals signals([] {});
      signals.Serve();
      if (!EndWithAncestor(self).ok()) ::_exit(1);
      const char yes = 'y';
      if (::write(ready[1], &yes, 1) != 1) ::_exit(1);
      const char word = signals.Next() == SIGTERM ? 't' : 'f';
      ::_exit(::write(ended[1], &word, 1) == 1 ? 0 : 1);
    }
    char word = 0;
    if (::read(ready[0], &word, 1) != 1) return 1;
    return ::kill(self, SIGKILL);
  });
  EXPECT_EQ(parent.Wait(), -SIGKILL);
  ::close(ended[1]);
  char word = 0;
  EXPECT_EQ(::read(ended[0], &word, 1), 1);
  EXPECT_EQ(word, 't');
  ::close(ended[0]);
}

TEST(ParentTest, AnAncestorMayBeFurtherAway) {
  const pid_t self = ::getpid();
  ipc::Child child([self] {
    ipc::Child grandchild([self] { return EndWithAncestor(self).ok() ? 0 : 1; });
    return grandchild.Wait();
  });
  EXPECT_EQ(child.Wait(), 0);
}

TEST(ParentTest, AProcessThatIsNoAncestorIsRefused) {
  const core::Status own = EndWithAncestor(::getpid());
  ASSERT_FALSE(own.ok());
  EXPECT_EQ(own.error().code, core::ErrorCode::kUnavailable);
  ipc::Child child([] { return 0; });
  const pid_t child_pid = child.pid();
  child.Wait();
  EXPECT_FALSE(EndWithAncestor(child_pid).ok());
}

}  // namespace
}  // namespace ravenstore::daemon
