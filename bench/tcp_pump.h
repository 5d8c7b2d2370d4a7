// What a plain TCP stream moves over the loopback: what the remote pool is measured against.
#pragma once

#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include "bench/loopback_stream.h"

namespace ravenstore::bench {

// Threads: the caller's, and one of its own for the other end.
class TcpPump {
 public:
  // `bytes`: of the buffer of either end.
  explicit TcpPump(size_t bytes);
  ~TcpPump();
  TcpPump(const TcpPump&) = delete;
  TcpPump& operator=(const TcpPump&) = delete;

  // `count` buffers there, and as many back. How long both took, in seconds.
  double OutAndIn(size_t count);

 private:
  explicit TcpPump(size_t bytes, std::pair<LoopbackStream, LoopbackStream> ends);
  void Serve();

  std::vector<std::byte> buffer_;
  std::vector<std::byte> their_buffer_;
  LoopbackStream end_;
  LoopbackStream their_end_;
  std::thread thread_;
};

}  // namespace ravenstore::bench
