// A stream of the host backend for a test.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <thread>
#include <utility>

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
  void Run(std::function<void()> work) {
    ravenstore_host_stream_run(
        stream_, [](void* of) { (*static_cast<std::function<void()>*>(of))(); },
        &work_.emplace_back(std::move(work)));
  }
  // Work that holds the stream until Open().
  void Block() {
    Run([this] {
      while (!open_.load()) std::this_thread::yield();
    });
  }
  void Open() { open_.store(true); }

 private:
  ravenstore_host_stream_t stream_;
  std::deque<std::function<void()>> work_;
  std::atomic<bool> open_{false};
};

}  // namespace ravenstore
