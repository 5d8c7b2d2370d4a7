#include "daemon/legacy_waits.h"

#include <gtest/gtest.h>

#include <utility>

#include "device/device.h"
#include "ipc/clock.h"
#include "tests/daemon/fake_connections.h"
#include "tests/daemon/fake_device_memory.h"
#include "tests/daemon/ledger_page.h"

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::MiB;

constexpr Bytes kDevice = MiB(64);

class LegacyWaitsTest : public testing::Test {
 protected:
  LegacyWaitsTest() { memory_.usage.free = {kDevice}; }
  void Wait(const Caller& job, Bytes bytes) { waits_.Add(job, 9, 0, bytes); }
  void Look() {
    waits_.OnTime(waits_.due());
    memory_.Answer();
  }
  uint32_t Position(const Caller& job) {
    const proto::DaemonPacket answer = connections_.TakeOnlyPacket(job);
    EXPECT_TRUE(answer.has_legacy_turn());
    EXPECT_EQ(answer.request(), 9u);
    return answer.legacy_turn().position();
  }

  FakeConnections connections_;
  FakeDeviceMemory memory_{1};
  LegacyLedger ledger_{Bytes{0}, {"HOST-0"}};
  LogBudget log_;
  LegacyWaits waits_{{.devices = device::OpenHostDevices({.count = 1, .total = kDevice}),
                      .ledger = &ledger_,
                      .memory = &memory_,
                      .connections = &connections_,
                      .log = &log_}};
  const Caller first_ = connections_.Connect(1);
  const Caller second_ = connections_.Connect(2);
};

TEST_F(LegacyWaitsTest, EachIsNotifiedOfItsTurnOrItsPlace) {
  Wait(first_, MiB(40));
  Wait(second_, MiB(40));
  EXPECT_TRUE(connections_.SentNothing(first_));
  Look();
  EXPECT_EQ(Position(first_), 0u);
  EXPECT_EQ(Position(second_), 1u);
  EXPECT_EQ(waits_.queue().PlaceOf(2).position, 1u);
  waits_.Ended(first_.peer);
  Look();
  EXPECT_EQ(Position(second_), 0u);
}

TEST_F(LegacyWaitsTest, AJobThatHadItsTurnIsNotifiedImmediately) {
  Wait(first_, MiB(40));
  Look();
  Position(first_);
  const Caller again = connections_.Connect(1);
  Wait(again, MiB(40));
  EXPECT_EQ(Position(again), 0u);
}

TEST_F(LegacyWaitsTest, LooksEveryFiftyMillisecondsHoweverManyComeAndOnlyWhileAnybodyWaits) {
  EXPECT_EQ(waits_.due(), core::kNever);
  const core::Tick before = ipc::Now();
  Wait(first_, MiB(40));
  const core::Tick due = waits_.due();
  EXPECT_GE(due, before + LegacyWaits::kLookEvery);
  Wait(second_, MiB(40));
  EXPECT_EQ(waits_.due(), due);
  waits_.OnTime(due - core::Duration(1));
  EXPECT_EQ(memory_.questions(), 0u);
  waits_.OnTime(due);
  EXPECT_EQ(memory_.questions(), 1u);
  EXPECT_EQ(waits_.due(), core::kNever) << "until it is known what there is";
  memory_.Answer();
  EXPECT_NE(waits_.due(), core::kNever);
  waits_.Leave(second_.key);
  waits_.OnTime(waits_.due());
  EXPECT_EQ(memory_.questions(), 0u);
  EXPECT_EQ(waits_.due(), core::kNever);
}

// A job that did not wait says that it uses 30 MiB, but all that is not free and not the store's is
// 24 MiB.
TEST_F(LegacyWaitsTest, WhatTheStoreHoldsIsNotUsedByOthers) {
  LedgerPage page;
  page.Row(0, "HOST-0").used = MiB(30).count();
  LegacyLedger::Newcomer job;
  job.pid = 3;
  job.page = page.Descriptor();
  ASSERT_TRUE(ledger_.Add(3, std::move(job)).ok());
  memory_.usage = {.held = {MiB(40)}, .free = {Bytes{0}}};
  Wait(first_, MiB(40));
  Look();
  EXPECT_EQ(Position(first_), 0u);
}

TEST_F(LegacyWaitsTest, AJobThatDoesNotReadIsNotifiedOfItsTurnAlone) {
  Wait(first_, MiB(40));
  Wait(second_, MiB(40));
  connections_.Stall(second_);
  Look();
  Position(first_);
  EXPECT_TRUE(connections_.SentNothing(second_));
  waits_.Ended(first_.peer);
  Look();
  EXPECT_EQ(Position(second_), 0u);
}

}  // namespace
}  // namespace ravenstore::daemon
