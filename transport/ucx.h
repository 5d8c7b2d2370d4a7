// The transport over UCX: for fabrics with RDMA, between nodes that trust one another entirely.
//
// There is no encryption and no authentication. Any process that reaches its port, or alters what
// is on the fabric, owns the daemon: names are only claimed, and below UCX's messages a peer may be
// able to read and write any memory of the process. So it starts only with `trusted_fabric`.
//
// UCX carries the multiplexer's bytes in active messages, which are always eager: no rendezvous, no
// remote memory access, and no rkey is given out. What is passed to UCX are copies in buffers of
// the transport's own, which outlive a connection until UCX has closed its end: a request's or
// answer's buffer is never UCX's. A connection has at most eight messages under way each way.
//
// A cut link is noticed by `patience` and the calls' deadlines; UCX itself would report it late, or
// never.
//
// Threads, errors: transport.h's. UCX has a thread of its own for connecting, on which nothing of
// this is called.
//
// Addresses: as address.h has them. The port listened at is for connecting; UCX opens further ones.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/result.h"
#include "core/types.h"
#include "transport/multiplexed.h"
#include "transport/transport.h"
#include "transport/ucx_library.h"

namespace ravenstore::transport {

struct UcxOptions {
  std::string node;  // this node's name
  // Any process that reaches the port may do all that the daemon may.
  bool trusted_fabric = false;
  // UCX's names, several with commas between: "rc" or "tcp"; "mlx5_0:1" or "eth0". Only these are
  // used, and each must be there.
  std::string transports;
  std::string devices;
  std::string listen = {};  // an address; port 0: any free one; empty: does not listen
  Patience patience = {};
  // Limits on connections that others began, until both hellos have come: their time, and their
  // number. Beyond them new ones are refused.
  core::Duration handshake = std::chrono::seconds(5);
  uint32_t handshakes_max = 64;
  uint32_t connections_max = 1024;  // in all, with those that UCX is closing
  uint32_t version = kProtocolVersion;
};

class UcxTransport : public MultiplexedTransport {
 public:
  // Where it listens, with the port that it got; empty: nowhere.
  virtual const std::string& address() const = 0;
};

// `service` outlives what is returned.
// Errors: kPermission (no trusted fabric), kUnsupported (no UCX, or none with these transports and
// devices), kInvalidArgument (a name, an address, no transports or devices), kUnavailable (the
// address is taken, or is not this node's), kSystem.
core::Result<std::unique_ptr<UcxTransport>> OpenUcx(UcxOptions options, Service* service);

// The same with another table of functions, which outlives what is returned: for tests.
core::Result<std::unique_ptr<UcxTransport>> OpenUcx(UcxOptions options, Service* service,
                                                    const UcxLibrary& ucx);

}  // namespace ravenstore::transport
