#include "interceptor/driver.h"

#include <cuda.h>
#include <gtest/gtest.h>

#include <atomic>

namespace ravenstore::interceptor {
namespace {

TEST(DriverTest, FindsTheLoadedDriversFunctionsAndOfNoLibraryThatIsNotThere) {
  EXPECT_EQ(DriverFunction("cuInit"), reinterpret_cast<void*>(&cuInit));
  EXPECT_EQ(DriverFunction("cuNoSuchFunction"), nullptr);
  EXPECT_EQ(NvmlFunction("nvmlInit_v2"), nullptr);
}

TEST(DriverTest, WhatWasFoundIsRemembered) {
  std::atomic<decltype(cuInit)*> slot{nullptr};
  EXPECT_EQ(Cached(&slot, "cuInit"), &cuInit);
  EXPECT_EQ(Cached(&slot, "cuNoSuchFunction"), &cuInit);
}

}  // namespace
}  // namespace ravenstore::interceptor
