// The handler of attaching clients, with all that it works with, over connections without sockets
// and a loop that no thread runs.
#pragma once

#include <gtest/gtest.h>

#include "daemon/clients.h"
#include "proto/layout.h"
#include "tests/daemon/fake_connections.h"
#include "tests/daemon/idle_loop.h"

namespace ravenstore::daemon {

class ClientsFixture : public testing::Test {
 protected:
  explicit ClientsFixture(bool single_user = false) : single_user_(single_user) {}
  static proto::Hello Hello() {
    proto::Hello hello;
    hello.set_protocol_version(proto::kProtocolVersion);
    return hello;
  }

  const bool single_user_;
  FakeConnections connections_;
  Mailbox mailbox_;
  IdleLoop loop_;
  LegacyLedger ledger_{core::Bytes{0}, {}};
  Limits limits_{
      {core::MiB(32), core::MiB(64), {}}, core::Bytes{0}, {}, &ledger_, loop_.get(), &connections_};
  core::Shares descriptors_{"descriptors", 1024};
  TurnBudget turns_{32, 4};
  LogBudget log_;
  uint32_t next_client_ = 5;
  Clients clients_{{.devices = loop_.devices(),
                    .backend = "host",
                    .arenas = {core::MiB(64)},
                    .links = {core::LinkModel{}},
                    .restart_timeout_ms = 7,
                    .clients_max = 8,
                    .single_user = single_user_,
                    .next_client = &next_client_,
                    .limits = &limits_,
                    .loop = loop_.get(),
                    .mailbox = &mailbox_,
                    .connections = &connections_,
                    .descriptors = &descriptors_,
                    .turns = &turns_,
                    .log = &log_}};
};

}  // namespace ravenstore::daemon
