#include "elastic/driver.h"

#include "tests/elastic/testing.h"

namespace ravenstore::elastic {
namespace {

TEST(DriverTest, EachFunctionIsAskedForByItsExportedName) {
  static std::vector<std::string> asked;
  const auto driver = LoadDriver([](const char* symbol) -> void* {
    asked.emplace_back(symbol);
    return FakeFunction(symbol);
  });
  ASSERT_TRUE(driver.ok()) << core::Describe(driver.error());
  EXPECT_NE(std::find(asked.begin(), asked.end(), "cuEventDestroy_v2"), asked.end());
  EXPECT_EQ(driver->event_destroy, FakeFunction("cuEventDestroy_v2"));
}

TEST(DriverTest, WhatIsMissingIsNamed) {
  const auto driver = LoadDriver([](const char*) -> void* { return nullptr; });
  ASSERT_FALSE(driver.ok());
  EXPECT_EQ(driver.error().code, core::ErrorCode::kUnsupported);
  EXPECT_NE(driver.error().message.find("cuCtxGetCurrent"), std::string::npos);
}

TEST(DriverTest, OnlyWantOfMemoryIsOutOfMemory) {
  EXPECT_EQ(DriverError("cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY).code,
            core::ErrorCode::kOutOfMemory);
  const auto error = DriverError("cuMemMap", CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(error.code, core::ErrorCode::kDevice);
  EXPECT_EQ(error.message, "cuMemMap returned 1");
}

}  // namespace
}  // namespace ravenstore::elastic
