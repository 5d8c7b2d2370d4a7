// What jobs were expected to take and took, as text for people, as JSON for programs, and as a
// self-contained page of HTML. Pure.
//
// Names come from strangers, as in client/ctl/render.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "client/ctl/render.h"
#include "proto/control.pb.h"

namespace ravenstore::client::ctl {

// Jobs under the interceptor, and those that wait to become one.
std::string JobsText(const std::vector<proto::LegacyJob>& jobs, size_t columns = kColumns);
std::string JobsJson(const std::vector<proto::LegacyJob>& jobs);

// What the daemon remembers of commands, and how right estimates were, by source.
std::string EstimatesText(const std::vector<proto::JobRecord>& records, uint64_t now_s,
                          size_t columns = kColumns);
std::string EstimatesJson(const std::vector<proto::JobRecord>& records);
// With a plot of each estimate over what its job took.
std::string EstimatesHtml(const std::vector<proto::JobRecord>& records);

}  // namespace ravenstore::client::ctl
