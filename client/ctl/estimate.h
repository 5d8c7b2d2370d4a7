// What a command will take of a device: the best that is known of it.
//
// What earlier runs took comes first. Without any the Python package reckons from the script, in
// a subprocess of the caller's, which runs the script's own code: only when it is asked for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/result.h"
#include "core/types.h"
#include "proto/control.pb.h"

namespace ravenstore::client::ctl {

struct Estimate {
  std::string job{};    // the command's key
  std::string model{};  // what was captured of the model; empty: nothing
  std::string source{};
  core::Bytes bytes{};
  // Parts of the time in which earlier runs used a device's kernels and link; not set: not known.
  std::optional<double> compute{};
  std::optional<double> link{};
  core::Bytes margin{};  // beyond that, by how uncertain the source is
  std::vector<std::string> notes{};

  core::Bytes total() const { return bytes + margin; }
};

// From earlier runs and those that run now. Errors: kNotFound: there were none.
core::Result<Estimate> EstimateOf(const proto::JobKnown& known, uint64_t now_s);
// From what the package prints, the last line of `text`. Errors: kCorrupt: it is no estimate.
core::Result<Estimate> EstimateIn(const std::string& text);
// The words that have the package reckon, for "python train.py ..." or "./train.py ...".
// Errors: kUnsupported, with what to give instead.
core::Result<std::vector<std::string>> PackageCommand(const std::vector<std::string>& command);
// Runs the words and returns what they print; what they write to standard error goes to ours.
// Errors: kSystem: they cannot be run, or fail.
core::Result<std::string> OutputOf(const std::vector<std::string>& words);

std::string EstimateText(const Estimate& estimate);
std::string EstimateJson(const Estimate& estimate);

}  // namespace ravenstore::client::ctl
