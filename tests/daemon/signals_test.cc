#include "daemon/signals.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <initializer_list>

#include "ipc/clock.h"
#include "tests/ipc/child.h"

namespace ravenstore::daemon {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Processes that were to end end with these; an alarm ends those that hang.
constexpr int kNotEnded = 3;
constexpr int kLastWords = 4;
constexpr unsigned kTimeoutSeconds = 30;

// How a process ends that does `body`.
int EndOf(
    const std::function<int(Signals&)>& body, const std::function<void()>& last_words = [] {}) {
  ipc::Child child([&] {
    spdlog::set_default_logger(spdlog::null_logger_mt("null"));
    ::alarm(kTimeoutSeconds);
    Signals::Block();
    Signals signals(last_words);
    return body(signals);
  });
  return child.Wait();
}

[[noreturn]] void Hang() {
  for (;;) ::pause();
}

TEST(SignalsTest, BeforeAnyClientIsServedTheEndIsImmediate) {
  for (const int signal : {SIGTERM, SIGINT}) {
    EXPECT_EQ(EndOf([signal](Signals&) -> int {
                ::kill(::getpid(), signal);
                Hang();
              }),
              0);
  }
}

TEST(SignalsTest, TheLastWordsAreSaid) {
  const auto body = [](Signals&) -> int {
    ::kill(::getpid(), SIGTERM);
    Hang();
  };
  EXPECT_EQ(EndOf(body, [] { ::_exit(kLastWords); }), kLastWords);
}

TEST(SignalsTest, OnceServingTheyArePassedOnInOrder) {
  EXPECT_EQ(EndOf([](Signals& signals) {
              signals.Serve();
              signals.SetDrain(seconds(kTimeoutSeconds));
              for (const int signal : {SIGHUP, SIGXCPU}) {
                ::kill(::getpid(), signal);
                if (signals.Next() != signal) return 1;
              }
              return 0;
            }),
            0);
}

TEST(SignalsTest, AHangUpBeforeTheServiceWaitsForIt) {
  EXPECT_EQ(EndOf([](Signals& signals) {
              ::kill(::getpid(), SIGHUP);
              signals.Serve();
              return signals.Next() == SIGHUP ? 0 : 1;
            }),
            0);
}

TEST(SignalsTest, AnEndThatHangsIsCutOffAfterTheDrainAndItsGrace) {
  const core::Tick begun = ipc::Now();
  constexpr core::Duration kDrain = milliseconds(100);
  EXPECT_EQ(EndOf([&](Signals& signals) -> int {
              signals.Serve();
              signals.SetDrain(kDrain);
              ::kill(::getpid(), SIGTERM);
              if (signals.Next() != SIGTERM) return kNotEnded;
              signals.At("hanging");
              ::kill(::getpid(), SIGTERM);  // does not lengthen it
              Hang();
            }),
            Signals::kExitCutShort);
  EXPECT_GE(ipc::Now() - begun, kDrain + Signals::kGrace);
}

TEST(SignalsTest, SignalsWithoutAMeaningDoNothing) {
  EXPECT_EQ(EndOf([](Signals& signals) {
              for (const int signal : {SIGPIPE, SIGUSR1, SIGUSR2, SIGXFSZ})
                ::kill(::getpid(), signal);
              signals.Serve();
              ::kill(::getpid(), SIGHUP);
              return signals.Next() == SIGHUP ? 0 : 1;
            }),
            0);
}

}  // namespace
}  // namespace ravenstore::daemon
