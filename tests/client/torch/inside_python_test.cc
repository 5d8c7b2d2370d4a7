// OffloadScope where libtorch's engine is not its own: this program stands in for a Python process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/engine.h>

#include "client/torch.h"
#include "tests/client/torch/fake_store.h"

namespace {
int python_is_initialized = 0;
}

extern "C" __attribute__((visibility("default"))) int Py_IsInitialized() {
  return python_is_initialized;
}

namespace ravenstore::torch {
namespace {

using ::torch::autograd::Engine;

class OtherEngine : public Engine {};
Engine& OtherStub() {
  static auto* engine = new OtherEngine;
  return *engine;
}

void ExpectRefused() {
  try {
    OffloadScope scope(fake::Connect(), {});
    FAIL() << "the scope replaced an engine that is not libtorch's own";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), RAVENSTORE_UNSUPPORTED);
    EXPECT_THAT(error.what(), testing::HasSubstr("saved_tensors_hooks"));
  }
}

// One story, because an engine once installed stays.
TEST(InsidePythonTest, TheScopeIsRefusedWherePythonOrAnotherEngineRules) {
  python_is_initialized = 1;
  ExpectRefused();
  EXPECT_EQ(&Engine::get_default_engine(), &Engine::get_base_engine());

  python_is_initialized = 0;
  ::torch::autograd::set_default_engine_stub(&OtherStub);
  ExpectRefused();
  EXPECT_EQ(&Engine::get_default_engine(), &OtherStub());

  ::torch::autograd::set_default_engine_stub(&Engine::get_base_engine);
  { OffloadScope scope(fake::Connect(), {}); }
  EXPECT_NE(&Engine::get_default_engine(), &Engine::get_base_engine());
}

}  // namespace
}  // namespace ravenstore::torch
