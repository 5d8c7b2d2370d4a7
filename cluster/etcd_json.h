// What is said to etcd's JSON gateway, and what it says. Pure: no I/O, no clock.
//
// The gateway is etcd's own translation of its v3 calls: keys and values in base 64, 64-bit numbers
// as strings, fields that are zero left out. What comes may be anything, also of a server that is
// no etcd, and is then an error.
//
// Errors: key_values.h's.
#pragma once

#include <string>
#include <string_view>

#include "cluster/key_values.h"
#include "core/result.h"

namespace ravenstore::cluster::etcd_json {

std::string RangeBody(std::string_view prefix, size_t most);
std::string WriteBody(const Write& write);
std::string GrantBody(core::Duration duration);
std::string LeaseBody(StoreLease lease);
std::string WatchBody(std::string_view prefix, int64_t from);

core::Result<RangeRead> ReadRange(std::string_view text);
core::Result<WriteAnswer> ReadWrite(std::string_view text);
core::Result<LeaseAnswer> ReadGrant(std::string_view text);
core::Result<LeaseAnswer> ReadKeepAlive(std::string_view text);
core::Result<core::Done> ReadRevoke(std::string_view text);
// One line of a watch. A watch that the store ended is an error.
core::Result<Changes> ReadWatch(std::string_view line);

// "3.4.23". Errors: kVersionMismatch: no etcd, or one before 3.4, whose gateway is another.
core::Result<std::string> ReadVersion(std::string_view text);
// Of a version that is known to lose what it has accepted; else empty.
std::string_view Warning(std::string_view version);

// What an answer that is not 200 OK means.
core::Error Refusal(long http_status, std::string_view text);

}  // namespace ravenstore::cluster::etcd_json
