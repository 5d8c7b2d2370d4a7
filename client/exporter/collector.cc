#include "client/exporter/collector.h"

#include <utility>

namespace ravenstore::client::exporter {

using core::Result;

std::vector<prometheus::MetricFamily> Collector::Collect() const {
  std::lock_guard lock(mutex_);
  Result<Seen> seen = Look();
  if (!seen.ok()) {
    session_.reset();
    if (!std::exchange(failed_, true)) options_.log(core::Describe(seen.error()));
    return MetricsOf(std::nullopt, options_.name_of);
  }
  if (std::exchange(failed_, false)) options_.log("the daemon answers again");
  return MetricsOf(std::move(*seen), options_.name_of);
}

Result<Seen> Collector::Look() const {
  if (session_) {
    Result<Seen> seen = Ask(&*session_);
    if (seen.ok()) return seen;
    // The daemon may have been started anew since.
    session_.reset();
  }
  RAVEN_ASSIGN_OR_RETURN(ctl::Session session,
                         ctl::Session::Open(options_.socket, options_.timeout));
  session_.emplace(std::move(session));
  return Ask(&*session_);
}

Result<Seen> Collector::Ask(ctl::Session* session) const {
  RAVEN_ASSIGN_OR_RETURN(ctl::Snapshot now, session->Look());
  return Seen{session->welcome(), std::move(now)};
}

}  // namespace ravenstore::client::exporter
