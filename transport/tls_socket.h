// The transport over TCP with TLS 1.3 and a pre-shared key: the default between nodes.
//
// A node proves that it has the cluster's key, and names itself by the key's identity; there are no
// certificates. Every node that has the key can so take every name (docs/SECURITY.md). Each
// connection agrees on new keys (ephemeral Diffie-Hellman), so that a key that leaks later opens no
// recorded traffic.
//
// OnLost reports a refused peer to the service, with the reason in words: another key, a name that
// is not allowed, another version, no TLS at all, silence.
//
// Threads, errors: transport.h's. The process ignores SIGPIPE.
//
// Addresses are numeric: "127.0.0.1:7000", "[::1]:7000". Names would have to be looked up, and Poll
// waits for no one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/result.h"
#include "core/types.h"
#include "transport/multiplexed.h"
#include "transport/node_key.h"
#include "transport/transport.h"

namespace ravenstore::transport {

struct TlsSocketOptions {
  std::string node;  // this node's name
  NodeKey key;
  std::string listen = {};              // an address; port 0: any free one; empty: does not listen
  std::vector<std::string> nodes = {};  // who may connect; empty: each node that has the key
  Patience patience = {};
  // Limits on connections that others began, until both hellos have come: their time, and their
  // number. Beyond them new ones wait in the kernel.
  core::Duration handshake = std::chrono::seconds(5);
  uint32_t handshakes_max = 64;
  uint32_t connections_max = 1024;  // in all
  uint32_t version = kProtocolVersion;
};

class TlsSocketTransport : public MultiplexedTransport {
 public:
  // Where it listens, with the port that it got; empty: nowhere.
  virtual const std::string& address() const = 0;
};

// `service` outlives what is returned.
// Errors: kInvalidArgument (a name or an address), kUnavailable (the address is taken, or is not
// this node's), kSystem.
core::Result<std::unique_ptr<TlsSocketTransport>> OpenTlsSocket(TlsSocketOptions options,
                                                                Service* service);

}  // namespace ravenstore::transport
