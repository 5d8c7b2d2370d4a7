// The daemon's answers as text for people and as JSON for programs. Pure.
//
// Names come from strangers: control characters in them are shown as '?', so that they cannot talk
// to the terminal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "client/ctl/doctor.h"
#include "core/result.h"
#include "proto/control.pb.h"

namespace ravenstore::client::ctl {

// "1.5 ms", "12 s", "3 h 04 min", "2 d 3 h".
std::string DurationText(uint64_t nanoseconds);
// `part` of `whole` as "98.1%"; "-" when there is no whole.
std::string PercentText(uint64_t part, uint64_t whole);
// `text` without control characters.
std::string Printable(std::string_view text);

std::string StatusText(const proto::Welcome& welcome, const proto::Stats& stats,
                       const std::vector<proto::ClientInfo>& clients);
std::string StatusJson(const proto::Welcome& welcome, const proto::Stats& stats,
                       const std::vector<proto::ClientInfo>& clients);

// `more`: there are others that were not asked for.
std::string TensorsText(const std::vector<proto::TensorInfo>& tensors, bool more);
std::string TensorsJson(const std::vector<proto::TensorInfo>& tensors, bool more);

std::string ClientsText(const std::vector<proto::ClientInfo>& clients,
                        const std::vector<proto::LegacyJob>& jobs = {});
std::string ClientsJson(const std::vector<proto::ClientInfo>& clients,
                        const std::vector<proto::LegacyJob>& jobs = {});

// `who`: "client 3" or "user alice".
std::string LimitsText(const std::string& who, const proto::LimitsSet& limits);
std::string LimitsJson(const std::string& who, const proto::LimitsSet& limits);

std::string ExplainedText(const proto::TensorExplained& explained);
std::string ExplainedJson(const proto::TensorExplained& explained);

std::string RecordedText(const std::string& file, const proto::Recorded& recorded);
std::string RecordedJson(const std::string& file, const proto::Recorded& recorded);

std::string FindingsText(const std::vector<Finding>& findings);
std::string FindingsJson(const std::vector<Finding>& findings);

// What --json prints when a command failed.
std::string ErrorJson(const core::Error& error);

}  // namespace ravenstore::client::ctl
