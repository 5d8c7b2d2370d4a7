// What signals mean to the daemon. A thread of its own takes them, so that they are heard whatever
// the other threads do.
//
// SIGTERM and SIGINT: until Serve is called they end the process immediately, as nothing can be
// lost yet. From then on they ask for an orderly end, for which there is time until the drain's
// bound and kGrace. What is not done by then is left to the kernel: the log says what that was, and
// the exit status is kExitCutShort. SIGXCPU (RLIMIT_CPU is reached) means the same as SIGTERM.
// SIGHUP is passed on. SIGPIPE, SIGUSR1, SIGUSR2 and SIGXFSZ are ignored: a write beyond
// RLIMIT_FSIZE fails as one to a full disk does.
//
// Owns: the thread, which lasts as long as the process.
// Threads: one, which called the constructor.
#pragma once

#include <functional>
#include <memory>

#include "core/types.h"

namespace ravenstore::daemon {

class Signals {
 public:
  // With the log's last words: the end is within two seconds of the drain's bound.
  static constexpr core::Duration kGrace{std::chrono::milliseconds(1400)};
  static constexpr int kExitCutShort = 70;  // EX_SOFTWARE of sysexits.h
  // For people.
  static const char* NameOf(int signal);

  // Threads that are started from here on are not interrupted.
  // REQUIRES: there is no other thread yet.
  static void Block();

  // `last_words` is called on the thread right before it ends the process. REQUIRES: Block was
  // called.
  explicit Signals(std::function<void()> last_words);
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  // From now on signals are for Next.
  void Serve();
  // How long an orderly end may take, before kGrace.
  void SetDrain(core::Duration drain);
  // Waits for the next signal: SIGHUP, SIGTERM, SIGINT or SIGXCPU. REQUIRES: Serve was called.
  int Next();
  // What is being done now, for the words about an end that took too long; lives for ever.
  void At(const char* stage);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace ravenstore::daemon
