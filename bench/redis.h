// A Redis server of a measurement's own, over the loopback: one value that is set and got.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "bench/loopback_stream.h"
#include "core/result.h"

namespace ravenstore::bench {

// Owns the server, a process that keeps nothing in files.
class Redis {
 public:
  // `bytes`: of the value. Errors: kNotFound, there is no redis-server in PATH; kUnavailable, it
  // does not serve.
  static core::Result<std::unique_ptr<Redis>> Start(size_t bytes);
  ~Redis();
  Redis(const Redis&) = delete;
  Redis& operator=(const Redis&) = delete;

  // Sets the value and gets it, `count` times. How long that took, in seconds.
  double SetAndGet(size_t count);

 private:
  Redis(pid_t server, LoopbackStream stream, size_t bytes)
      : server_(server), stream_(std::move(stream)), value_(bytes) {}

  pid_t server_;
  LoopbackStream stream_;
  std::vector<std::byte> value_;
};

}  // namespace ravenstore::bench
