// The daemon's answers as text for people and as JSON for programs. Pure.
//
// Names come from strangers: what is unsafe in them (core/printable.h) is shown as '?', and escaped
// in JSON. Text fits `columns` by cutting names and breaking lines; JSON has all whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "client/ctl/doctor.h"
#include "client/ctl/json.h"
#include "core/result.h"
#include "proto/control.pb.h"

namespace ravenstore::client::ctl {

// "1.5 ms", "12 s", "3 h 04 min", "2 d 3 h".
std::string DurationText(uint64_t nanoseconds);
// `part` of `whole` as "98.1%"; "-" when there is no whole.
std::string PercentText(uint64_t part, uint64_t whole);

inline constexpr size_t kColumns = 80;  // of no terminal

std::string StatusText(const proto::Welcome& welcome, const proto::Stats& stats,
                       const std::vector<proto::ClientInfo>& clients, size_t columns = kColumns);
std::string StatusJson(const proto::Welcome& welcome, const proto::Stats& stats,
                       const std::vector<proto::ClientInfo>& clients);

// `more`: there are others that were not asked for.
std::string TensorsText(const std::vector<proto::TensorInfo>& tensors, bool more,
                        size_t columns = kColumns);
std::string SetsText(const std::vector<proto::SetRow>& sets, size_t columns);
std::string SetsJson(const std::vector<proto::SetRow>& sets);
std::string TensorsJson(const std::vector<proto::TensorInfo>& tensors, bool more);

// One table if it fits, else one of who they are and one of what they hold.
std::string ClientsText(const std::vector<proto::ClientInfo>& clients,
                        const std::vector<proto::LegacyJob>& jobs = {}, size_t columns = kColumns);
std::string ClientsJson(const std::vector<proto::ClientInfo>& clients,
                        const std::vector<proto::LegacyJob>& jobs = {});

// "device 6.0 GiB, context 512.0 MiB"; "-" when nothing is held.
std::string KindsText(const proto::LegacyDevice& device);
// A member `name` of what is written, or one of its array.
void AddClient(JsonWriter& json, std::string_view name, const proto::ClientInfo& client);
void AddLegacyJob(JsonWriter& json, std::string_view name, const proto::LegacyJob& job);

// `who`: "client 3" or "user alice".
// "low", "normal" or "high"; empty where the daemon says nothing.
const char* PriorityText(proto::TenantPriority priority);
std::string LimitsText(const std::string& subject, const proto::LimitsSet& limits);
std::string LimitsJson(const std::string& subject, const proto::LimitsSet& limits);
// Of an order that was carried out.
std::string OrderedText(const proto::OrderJob& order, const proto::JobOrdered& ordered);
std::string OrderedJson(const proto::OrderJob& order, const proto::JobOrdered& ordered);

std::string ExplainedText(const proto::TensorExplained& explained, size_t columns = kColumns);
std::string ExplainedJson(const proto::TensorExplained& explained);

std::string RecordedText(const std::string& file, const proto::Recorded& recorded);
std::string RecordedJson(const std::string& file, const proto::Recorded& recorded);

std::string FindingsText(const std::vector<Finding>& findings, size_t columns = kColumns);
std::string FindingsJson(const std::vector<Finding>& findings);

// What --json prints when a command failed.
std::string ErrorJson(const core::Error& error);

}  // namespace ravenstore::client::ctl
