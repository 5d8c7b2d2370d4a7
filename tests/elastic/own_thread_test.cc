#include "elastic/own_thread.h"

#include <pthread.h>
#include <signal.h>

#include <string>

#include "tests/elastic/testing.h"

namespace ravenstore::elastic {
namespace {

TEST(OwnThreadTest, ItHasItsNameAndTheContextAndNoneOfTheJobsSignals) {
  const FakeContext context;
  const Driver driver = *LoadDriver(&FakeFunction);
  CUcontext current = nullptr;
  ASSERT_EQ(driver.ctx_get_current(&current), CUDA_SUCCESS);
  ASSERT_NE(current, nullptr);

  sigset_t before;
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, nullptr, &before), 0);
  CUcontext its_context = nullptr;
  CUstreamCaptureMode its_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  sigset_t its_signals;
  char its_name[16] = "";
  std::thread thread = OwnThread("raven-test", &driver, current, [&] {
    driver.ctx_get_current(&its_context);
    driver.exchange_mode(&its_mode);
    ::pthread_sigmask(SIG_SETMASK, nullptr, &its_signals);
    ::pthread_getname_np(::pthread_self(), its_name, sizeof(its_name));
  });
  thread.join();
  EXPECT_EQ(its_context, current);
  EXPECT_EQ(its_mode, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(std::string(its_name), "raven-test");
  sigset_t after;
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, nullptr, &after), 0);
  for (const int signal : {SIGINT, SIGALRM, SIGTERM, SIGUSR1}) {
    EXPECT_EQ(::sigismember(&its_signals, signal), 1) << signal;
    EXPECT_EQ(::sigismember(&after, signal), ::sigismember(&before, signal)) << signal;
  }
}

}  // namespace
}  // namespace ravenstore::elastic
