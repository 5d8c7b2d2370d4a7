// What is known of a legacy job, as text for people and as JSON for programs. Pure.
//
// All of it is what the job said: figures may be any, names have what is unsafe in them shown as
// '?'.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "client/ctl/render.h"
#include "proto/control.pb.h"

namespace ravenstore::client::ctl {

struct JobView {
  proto::LegacyJob job;
  std::vector<proto::ElasticDevice> devices;  // whose engines showed themselves
};

std::string JobText(const JobView& view, size_t columns = kColumns);
std::string JobJson(const JobView& view);
// For a job that was just paused: of each device how much leaves, and what stays and why, a line
// each.
std::string PausedText(const JobView& view);
// What would make the job faster, a sentence each; never empty.
std::vector<std::string> AdviceForJob(const JobView& view);

}  // namespace ravenstore::client::ctl
