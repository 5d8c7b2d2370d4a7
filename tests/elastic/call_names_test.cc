#include "elastic/call_names.h"

#include <string>

#include "tests/elastic/testing.h"

namespace ravenstore::elastic {
namespace {

const char* told = nullptr;

void* Find(const char* symbol) {
  if (std::string(symbol) != "cuKernelGetName") return nullptr;
  return reinterpret_cast<void*>(+[](const char** name, CUkernel) {
    *name = told;
    return told == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
  });
}

const CUfunction kFunction = reinterpret_cast<CUfunction>(8);

TEST(CallNamesTest, AKernelHasItsNameAndAnythingElseTheFunctionOfTheDriver) {
  const CallNames names(&Find);
  told = "add";
  EXPECT_EQ(names.Of({"kernel", kFunction}), "add");
  EXPECT_EQ(names.Of({"cuMemcpyAsync", nullptr}), "cuMemcpyAsync");
  EXPECT_EQ(names.Of({nullptr, nullptr}), "call");
  told = nullptr;
  EXPECT_EQ(names.Of({"kernel", kFunction}), "kernel") << "of a driver that does not say";
  EXPECT_EQ(CallNames().Of({"kernel", kFunction}), "kernel");
}

TEST(CallNamesTest, WhatIsShownIsShortAndPrintable) {
  const CallNames names(&Find);
  told = "a\x1b[2J\xff";
  EXPECT_EQ(names.Of({nullptr, kFunction}), "a?[2J?");
  const std::string longer(1000, 'x');
  told = longer.c_str();
  EXPECT_EQ(names.Of({nullptr, kFunction}), std::string(CallNames::kLongest, 'x'));
}

TEST(CallNamesTest, TheFakeDriverIsAsked) {
  const FakeContext context;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(Fake<decltype(cuModuleLoadData)>("cuModuleLoadData")(&module, "opaque"), CUDA_SUCCESS);
  ASSERT_EQ(Fake<decltype(cuModuleGetFunction)>("cuModuleGetFunction")(&function, module, "opaque"),
            CUDA_SUCCESS);
  EXPECT_EQ(CallNames(&FakeFunction).Of({nullptr, function}), "opaque");
}

}  // namespace
}  // namespace ravenstore::elastic
