// Asks the daemon each time that somebody wants its metrics.
#pragma once

#include <prometheus/collectable.h>

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "client/ctl/session.h"
#include "client/exporter/metrics.h"
#include "core/result.h"
#include "core/types.h"

namespace ravenstore::client::exporter {

// Owns: one connection to the daemon, which it opens anew where the last one broke.
// Threads: any; one asks at a time.
// Errors: none. Why the daemon does not answer is told to `log`, once until it does.
class Collector final : public prometheus::Collectable {
 public:
  struct Options {
    std::string socket;
    core::Duration timeout;  // of each of the daemon's answers
    NameOfUser name_of;
    std::function<void(const std::string&)> log;
  };

  explicit Collector(Options options) : options_(std::move(options)) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  // REQUIRES: mutex_.
  core::Result<Seen> Look() const;
  core::Result<Seen> Ask(ctl::Session* session) const;

  const Options options_;
  mutable std::mutex mutex_;
  mutable std::optional<ctl::Session> session_;
  mutable bool failed_ = false;
};

}  // namespace ravenstore::client::exporter
