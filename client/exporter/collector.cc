#include "client/exporter/collector.h"

#include <utility>

namespace ravenstore::client::exporter {

using core::Result;

std::optional<Seen> Collector::Look() {
  Result<Seen> seen = Query();
  if (!seen.ok()) {
    session_.reset();
    if (!std::exchange(failed_, true)) options_.log(core::Describe(seen.error()));
    return std::nullopt;
  }
  if (std::exchange(failed_, false)) options_.log("the daemon answers again");
  return std::move(*seen);
}

Result<Seen> Collector::Query() {
  if (session_) {
    Result<Seen> seen = Ask(&*session_);
    if (seen.ok()) return seen;
    // The daemon may have been started again since.
    session_.reset();
  }
  RAVEN_ASSIGN_OR_RETURN(ctl::Session session,
                         ctl::Session::Open(options_.socket, options_.timeout));
  session_.emplace(std::move(session));
  return Ask(&*session_);
}

Result<Seen> Collector::Ask(ctl::Session* session) {
  RAVEN_ASSIGN_OR_RETURN(ctl::Snapshot now, session->Look());
  return Seen{session->welcome(), std::move(now)};
}

}  // namespace ravenstore::client::exporter
