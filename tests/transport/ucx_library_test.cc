#include "transport/ucx_library.h"

#include <gtest/gtest.h>

#include <csignal>

namespace ravenstore::transport {
namespace {

void OnCrash(int /*signal*/) {}

TEST(UcxLibraryTest, TheProcessKeepsItsHandlersOfCrashes) {
  struct sigaction before {};
  before.sa_handler = OnCrash;
  struct sigaction old {};
  ASSERT_EQ(::sigaction(SIGBUS, &before, &old), 0);
  const auto ucx = LoadUcx();
  struct sigaction after {};
  ASSERT_EQ(::sigaction(SIGBUS, &old, &after), 0);
  EXPECT_EQ(after.sa_handler, OnCrash);
  if (!ucx.ok()) GTEST_SKIP() << ucx.error().message;
  EXPECT_EQ(LoadUcx().value(), *ucx);
  EXPECT_STREQ((*ucx)->ucs_status_string(UCS_OK), "Success");
}

}  // namespace
}  // namespace ravenstore::transport
