// etcd as a store of keys and values, by its JSON gateway. Tested with etcd 3.4, as Debian has it.
//
// Endpoints are tried in turn: an operation that could not be sent to one goes to the next, and
// what comes later begins with the one that answered. One that was sent is not sent to another.
//
// Threads: key_values.h's, and one of libcurl's while it looks up a host's name: the destructor may
// wait for that. The process ignores SIGPIPE.
//
// Owns: connections, of which each watch has one of its own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cluster/key_values.h"
#include "core/result.h"

namespace ravenstore::cluster {

struct EtcdOptions {
  std::vector<std::string> endpoints;  // "http://127.0.0.1:2379", "https://etcd1:2379"
  // Files in PEM, for https. Without an authority's certificate those of the system count.
  std::string authority = {};
  std::string certificate = {};  // this client's, and its key
  std::string key = {};
};

// Checks the options, and reaches for nothing.
// Errors: kInvalidArgument, kNotFound and kPermission (a file), kUnsupported (no libcurl).
core::Result<std::unique_ptr<KeyValues>> OpenEtcd(EtcdOptions options);

}  // namespace ravenstore::cluster
