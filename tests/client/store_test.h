// What the tests of the client library share: a mini daemon, a store attached to it, and patience.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/client.h"
#include "tests/client/mini_daemon.h"
#include "tests/client/test_stream.h"
#include "tests/timing/timing.h"

namespace ravenstore {

using client::MiniDaemon;

// What `call` failed with; `*words` are what a person would read.
template <typename Call>
ravenstore_code_t CodeOf(Call call, std::string* words = nullptr) {
  try {
    call();
    return RAVENSTORE_OK;
  } catch (const Error& error) {
    if (words != nullptr) *words = error.what();
    return error.code();
  }
}

inline void Fill(void* data, int value, uint64_t bytes) {
  std::memset(data, value, bytes);
}
inline bool Holds(const void* data, int value, uint64_t bytes) {
  const auto* begin = static_cast<const unsigned char*>(data);
  for (uint64_t i = 0; i < bytes; ++i) {
    if (begin[i] != static_cast<unsigned char>(value)) return false;
  }
  return true;
}

class StoreTest : public testing::Test {
 protected:
  explicit StoreTest(MiniDaemon::Options options = {})
      : daemon_(std::move(options)), store_(Connect()) {}

  Store Connect() { return Store::connect({.socket = daemon_.socket(), .name = "test"}); }
  // A tensor in Ravenspace that holds `value`.
  Tensor Idle(uint64_t bytes, int value) {
    Tensor tensor = store_.create(bytes);
    Fill(tensor.data(), value, bytes);
    store_.put(tensor, nullptr);
    return tensor;
  }
  Tensor Away(uint64_t bytes, int value) {
    Tensor tensor = Idle(bytes, value);
    EXPECT_TRUE(daemon_.Evict(tensor.id()));
    return tensor;
  }
  proto::LeaseWord LeaseOf(const Tensor& tensor) {
    return proto::UnpackLease(daemon_.Row(tensor.id()).word.load());
  }

  MiniDaemon daemon_;
  Store store_;
};

}  // namespace ravenstore
