// Threads of the library run no signal handler of the program.
#pragma once

#include <signal.h>

namespace ravenstore::client {

// Blocks every signal for the calling thread, until its end. A thread that is started meanwhile
// begins with every signal blocked.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace ravenstore::client
