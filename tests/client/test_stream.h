// A stream of the host backend for a test.
#pragma once

#include <atomic>
#include <thread>

#include "client/client.h"

namespace ravenstore {

// Declared before the tensors that are freed in its order.
class TestStream {
 public:
  TestStream() : stream_(ravenstore_host_stream_create()) {}
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  ~TestStream() { ravenstore_host_stream_destroy(stream_); }

  operator Stream() const { return stream_; }
  void Synchronize() const { ravenstore_host_stream_synchronize(stream_); }
  // Work that holds the stream until Open().
  void Block() {
    ravenstore_host_stream_run(
        stream_,
        [](void* self) {
          while (!static_cast<TestStream*>(self)->open_.load()) std::this_thread::yield();
        },
        this);
  }
  void Open() { open_.store(true); }

 private:
  ravenstore_host_stream_t stream_;
  std::atomic<bool> open_{false};
};

}  // namespace ravenstore
