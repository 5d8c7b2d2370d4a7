// The fake driver's devices with their rows, as a process under the interceptor has them after its
// first call, and no daemon.
#pragma once

#include <gtest/gtest.h>

#include "interceptor/cuda_api.h"
#include "interceptor/devices.h"
#include "interceptor/settings.h"
#include "interceptor/tenant.h"

namespace ravenstore::interceptor {

// Nothing is held, and no budget set, when a test begins.
class FakeDevices : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ForgetDevicesInChild();
    tenant::ForgetInChild();
    ReadSettings();
    ASSERT_TRUE(FindDevices());
  }
  static proto::LedgerRow& Row(int row = 0) { return Page()->row[row]; }
  static uint64_t Used(int row = 0) { return Row(row).used.load(); }
  static uint64_t Kind(proto::LegacyKind kind) {
    return Row().kinds[static_cast<int>(kind)].load();
  }
};

}  // namespace ravenstore::interceptor
