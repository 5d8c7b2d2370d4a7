// Asks the daemon each time that its metrics are wanted.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "client/ctl/session.h"
#include "client/exporter/metrics.h"
#include "core/result.h"
#include "core/types.h"

namespace ravenstore::client::exporter {

// Owns: one connection to the daemon, which it opens again after the last one broke.
// Threads: one.
class Collector {
 public:
  struct Options {
    std::string socket;
    core::Duration timeout;  // of each of the daemon's answers
    std::function<void(const std::string&)> log;
  };

  explicit Collector(Options options) : options_(std::move(options)) {}

  // Nothing if the daemon does not answer. Why is reported to `log`, once until it answers again.
  std::optional<Seen> Look();

 private:
  core::Result<Seen> Query();
  core::Result<Seen> Ask(ctl::Session* session);

  const Options options_;
  std::optional<ctl::Session> session_;
  bool failed_ = false;
};

}  // namespace ravenstore::client::exporter
