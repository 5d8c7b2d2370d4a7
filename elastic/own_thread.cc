#include "elastic/own_thread.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace ravenstore::elastic {

namespace {

// The calling thread takes no signals while this lives, and what it starts takes none for good.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

std::thread OwnThread(const char* name, const Driver* driver, CUcontext context,
                      std::function<void()> run) {
  const NoSignals until_it_runs;
  return std::thread([name, driver, context, run = std::move(run)] {
    ::pthread_setname_np(::pthread_self(), name);
    driver->ctx_set_current(context);
    const RelaxedCapture relaxed(*driver);
    run();
  });
}

}  // namespace ravenstore::elastic
