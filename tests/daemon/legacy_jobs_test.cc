#include "daemon/legacy_jobs.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "ipc/clock.h"
#include "proto/elastic_page.h"
#include "proto/layout.h"
#include "proto/ledger_page.h"
#include "tests/daemon/fake_connections.h"
#include "tests/daemon/fake_device_memory.h"
#include "tests/daemon/ledger_page.h"

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::ErrorCode;
using core::MiB;
using proto::ClientPacket;

constexpr Bytes kDevice = MiB(64);
constexpr uint64_t kJobs = 64;
constexpr uint64_t kDescriptors = 1024;

class LegacyJobsTest : public testing::Test {
 protected:
  static ClientPacket Hello(const std::string& mode = "account") {
    ClientPacket packet;
    packet.set_request(9);
    packet.mutable_legacy_hello()->set_protocol_version(proto::kProtocolVersion);
    packet.mutable_legacy_hello()->set_mode(mode);
    return packet;
  }
  static ClientPacket Elastic() {
    ClientPacket packet;
    packet.mutable_legacy_elastic();
    return packet;
  }
  static ClientPacket Reclaim(const char* uuid) {
    ClientPacket packet;
    packet.mutable_legacy_reclaim()->set_uuid(uuid);
    packet.mutable_legacy_reclaim()->set_bytes(MiB(1).count());
    return packet;
  }
  static ClientPacket Wait(const char* uuid, Bytes bytes) {
    ClientPacket packet;
    packet.mutable_legacy_wait()->set_uuid(uuid);
    packet.mutable_legacy_wait()->set_bytes(bytes.count());
    return packet;
  }
  static ClientPacket Admit(Bytes bytes, Bytes margin = {}, const char* uuid = nullptr) {
    ClientPacket packet;
    packet.set_request(9);
    proto::AdmitJob& admit = *packet.mutable_admit_job();
    admit.set_bytes(bytes.count());
    admit.set_margin(margin.count());
    admit.set_source("history");
    admit.set_name("train.py");
    if (uuid != nullptr) admit.add_uuids(uuid);
    return packet;
  }
  void Look() {
    jobs_.OnTime(std::max(jobs_.due(), ipc::Now() + LegacyWaits::kLookEvery));
    memory_.Answer();
  }
  static ipc::UniqueFd ElasticPage() {
    ipc::UniqueFd page(::memfd_create("elastic", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(::ftruncate(page.get(), proto::kElasticPageBytes), 0);
    EXPECT_EQ(::fcntl(page.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    return page;
  }
  bool Say(Caller& caller, const ClientPacket& packet, ipc::UniqueFd descriptor = {}) {
    std::vector<ipc::UniqueFd> descriptors;
    if (descriptor) descriptors.push_back(std::move(descriptor));
    return jobs_.Handle(caller, packet, descriptors);
  }
  // A job's first connection, after its welcome.
  Caller Attach(pid_t pid, const std::string& mode = "account") {
    Caller job = connections_.Connect(pid);
    EXPECT_TRUE(Say(job, Hello(mode), LedgerPage().Descriptor()));
    EXPECT_TRUE(connections_.TakeOnlyPacket(job).has_legacy_welcome());
    return job;
  }
  // A process of run `run` of `command`, which took `peak` bytes of a device.
  Caller Run(pid_t pid, const std::string& command, uint32_t run, Bytes peak) {
    Caller job = connections_.Connect(pid);
    LedgerPage page;
    page.Row(0, "HOST-0").peak = peak.count();
    page.Row(0, "HOST-0").used = peak.count();
    ClientPacket hello = Hello();
    hello.mutable_legacy_hello()->set_job(command);
    hello.mutable_legacy_hello()->set_run(run);
    EXPECT_TRUE(Say(job, hello, page.Descriptor()));
    EXPECT_TRUE(connections_.TakeOnlyPacket(job).has_legacy_welcome());
    return job;
  }
  proto::JobKnown Ask(const Caller& caller, const std::string& command) {
    proto::JobQuery query;
    query.set_job(command);
    jobs_.HandleQuery(caller, 9, query);
    return connections_.TakeOnlyPacket(caller).job_known();
  }
  uint64_t Descriptors() const { return descriptors_.taken(); }
  proto::LegacyJobs List(const Caller& caller) {
    jobs_.HandleList(caller, 9, {});
    return connections_.TakeOnlyPacket(caller).legacy_jobs();
  }

  FakeConnections connections_;
  FakeDeviceMemory memory_{1};
  LegacyLedger ledger_{Bytes{0}, {"HOST-0"}};
  JobHistory history_;
  std::optional<double> compute_;
  core::Shares descriptors_{"descriptors", kDescriptors};
  TurnBudget turns_{32, 4};
  LogBudget log_;
  uint32_t next_client_ = 5;
  LegacyJobs jobs_{{.devices = device::OpenHostDevices({.count = 1, .total = kDevice}),
                    .capacities = {kDevice},
                    .jobs_max = kJobs,
                    .slowdown_most = 1.5,
                    .settle = std::chrono::seconds(60),
                    .compute = [this] { return std::vector{compute_}; },
                    .links = {{}},
                    .next_client = &next_client_,
                    .ledger = &ledger_,
                    .history = &history_,
                    .memory = &memory_,
                    .connections = &connections_,
                    .descriptors = &descriptors_,
                    .turns = &turns_,
                    .log = &log_}};
};

TEST_F(LegacyJobsTest, AJobIsWelcomedWithItsNumberAndThePageOfItsUser) {
  Caller job = connections_.Connect(1);
  EXPECT_TRUE(Say(job, Hello(), LedgerPage().Descriptor()));
  const proto::DaemonPacket answer = connections_.TakeOnlyPacket(job);
  EXPECT_EQ(answer.request(), 9u);
  EXPECT_EQ(answer.legacy_welcome().client(), 5u);
  EXPECT_EQ(next_client_, 6u);
  EXPECT_EQ(connections_.descriptors(), 1u);
  EXPECT_TRUE(job.greeted);
  EXPECT_EQ(List(job).jobs_size(), 1);
}

TEST_F(LegacyJobsTest, OtherMessagesAreNotIts) {
  Caller caller = connections_.Connect(1);
  ClientPacket hello;
  hello.mutable_hello();
  EXPECT_FALSE(Say(caller, hello));
  EXPECT_TRUE(connections_.SentNothing(caller));
}

TEST_F(LegacyJobsTest, HelloComesFirstWithOnePageInOneLanguage) {
  Caller job = Attach(1);
  Say(job, Hello(), LedgerPage().Descriptor());
  EXPECT_EQ(connections_.Refused(job), ErrorCode::kWrongState);
  Caller other = connections_.Connect(2);
  Say(other, Hello());
  EXPECT_EQ(connections_.Refused(other), ErrorCode::kWrongState);
  Say(other, Hello(), LedgerPage(0).Descriptor());
  EXPECT_EQ(connections_.Refused(other), ErrorCode::kInvalidArgument);
  ClientPacket old = Hello();
  old.mutable_legacy_hello()->set_protocol_version(proto::kProtocolVersion - 1);
  Say(other, old, LedgerPage().Descriptor());
  EXPECT_EQ(connections_.Refused(other), ErrorCode::kVersionMismatch);
  EXPECT_EQ(Descriptors(), 1u) << "that of the first job";
}

TEST_F(LegacyJobsTest, APlaceIsItsJobsUntilTheConnectionEnds) {
  std::vector<Caller> all;
  const uint64_t most = kJobs * 7 / 8;
  for (uint64_t i = 0; i < most; ++i) all.push_back(Attach(static_cast<pid_t>(i + 1)));
  Caller late = connections_.Connect(999);
  Say(late, Hello(), LedgerPage().Descriptor());
  EXPECT_EQ(connections_.Refused(late), ErrorCode::kLimit);
  EXPECT_EQ(Descriptors(), most);
  jobs_.Forget(all.back().key);
  EXPECT_EQ(Descriptors(), most - 1);
  Say(late, Hello(), LedgerPage().Descriptor());
  EXPECT_TRUE(connections_.TakeOnlyPacket(late).has_legacy_welcome());
  for (const Caller& job : all) jobs_.Forget(job.key);
  jobs_.Forget(late.key);
  EXPECT_EQ(Descriptors(), 0u);
}

TEST_F(LegacyJobsTest, AConnectionThatIsRefusedAgainAndAgainTakesOnePlace) {
  // Of processes that hung up: the user has no slot left.
  for (uint64_t key = 1000; key < 1000 + proto::kTenantSlots; ++key) {
    LegacyLedger::Newcomer job;
    job.pid = static_cast<pid_t>(key);
    job.uid = FakeConnections::kUser;
    job.page = LedgerPage().Descriptor();
    ASSERT_TRUE(ledger_.Add(key, std::move(job)).ok());
    ledger_.HangUp(key);
  }
  Caller late = connections_.Connect(1);
  for (int i = 0; i < 10; ++i) {
    Say(late, Hello(), LedgerPage().Descriptor());
    EXPECT_EQ(connections_.Refused(late), ErrorCode::kLimit);
    EXPECT_EQ(Descriptors(), 1u);
  }
  jobs_.Forget(late.key);
  EXPECT_EQ(Descriptors(), 0u);
}

TEST_F(LegacyJobsTest, AJobThatHungUpCountsUntilItsProcessComesAgainOrEnds) {
  const Caller first = Attach(1);
  EXPECT_TRUE(jobs_.HangUp(first.key));
  const Caller stranger = Attach(2);
  EXPECT_TRUE(connections_.forgotten().empty());
  Attach(1);
  EXPECT_EQ(connections_.forgotten(), std::vector<uint64_t>{first.key});
  const Caller never = connections_.Connect(3);
  EXPECT_FALSE(jobs_.HangUp(never.key)) << "it is none";
  EXPECT_TRUE(jobs_.HangUp(stranger.key));
}

TEST_F(LegacyJobsTest, WhatAJobAsksForComesOnAConnectionOfItsOwn) {
  Caller job = Attach(1, "elastic");
  Say(job, Reclaim("HOST-0"));
  EXPECT_EQ(connections_.Refused(job), ErrorCode::kWrongState);
  Say(job, Wait("HOST-0", MiB(1)));
  EXPECT_EQ(connections_.Refused(job), ErrorCode::kWrongState);
  Say(job, Elastic(), ElasticPage());
  EXPECT_EQ(connections_.Refused(job), ErrorCode::kWrongState);
  EXPECT_FALSE(job.asked);
}

TEST_F(LegacyJobsTest, OnlyAJobMayAsk) {
  for (const ClientPacket& packet : {Reclaim("HOST-0"), Wait("HOST-0", MiB(1))}) {
    Caller stranger = connections_.Connect(7);
    Say(stranger, packet);
    EXPECT_EQ(connections_.Refused(stranger), ErrorCode::kPermission);
    EXPECT_TRUE(stranger.asked);
  }
  Caller stranger = connections_.Connect(7);
  Say(stranger, Elastic(), ElasticPage());
  EXPECT_EQ(connections_.Refused(stranger), ErrorCode::kPermission);
}

TEST_F(LegacyJobsTest, AJobShowsItsEngineOnce) {
  const Caller job = Attach(1, "elastic");
  Caller engine = connections_.Connect(1);
  Say(engine, Elastic(), ElasticPage());
  EXPECT_TRUE(connections_.SentNothing(engine));
  EXPECT_EQ(Descriptors(), 2u);
  Caller again = connections_.Connect(1);
  Say(again, Elastic(), ElasticPage());
  EXPECT_EQ(connections_.Refused(again), ErrorCode::kPermission);
  jobs_.Forget(job.key);
  EXPECT_EQ(Descriptors(), 0u);
}

TEST_F(LegacyJobsTest, WhatIsNoElasticPageIsRefused) {
  Attach(1, "elastic");
  Caller engine = connections_.Connect(1);
  Say(engine, Elastic(), LedgerPage().Descriptor());
  EXPECT_EQ(connections_.Refused(engine), ErrorCode::kInvalidArgument);
  EXPECT_EQ(Descriptors(), 1u);
}

TEST_F(LegacyJobsTest, OfADeviceThatIsNotTheStoresNothingIsGivenAndNoJobWaits) {
  Attach(1);
  Caller asks = connections_.Connect(1);
  Say(asks, Reclaim("GPU-other"));
  const proto::DaemonPacket answer = connections_.TakeOnlyPacket(asks);
  EXPECT_TRUE(answer.has_legacy_reclaimed());
  EXPECT_EQ(answer.legacy_reclaimed().bytes(), 0u);
  Caller waits = connections_.Connect(1);
  Say(waits, Wait("GPU-other", MiB(1)));
  EXPECT_EQ(connections_.Refused(waits), ErrorCode::kNotFound);
}

TEST_F(LegacyJobsTest, AJobWaitsForNoMoreThanItMayHave) {
  ledger_.SetTenant(FakeConnections::kUser, MiB(16));
  memory_.usage.free = {kDevice};
  const Caller job = Attach(1);
  Caller waits = connections_.Connect(1);
  Say(waits, Wait("HOST-0", MiB(60)));
  EXPECT_EQ(List(job).jobs(0).waiting(), 1u);
  EXPECT_EQ(List(job).jobs(0).waiting_bytes(), MiB(16).count());
  jobs_.OnTime(jobs_.due());
  memory_.Answer();
  const proto::DaemonPacket answer = connections_.TakeOnlyPacket(waits);
  EXPECT_EQ(answer.legacy_turn().position(), 0u);
  EXPECT_EQ(answer.legacy_turn().bytes(), MiB(16).count());
}

TEST_F(LegacyJobsTest, AJobIsGivenNoMoreThanItMayHave) {
  ledger_.SetTenant(FakeConnections::kUser, MiB(1) - Bytes{1});
  memory_.usage.held = {kDevice};
  Attach(1);
  Caller asks = connections_.Connect(1);
  Say(asks, Reclaim("HOST-0"));
  memory_.Answer();
  memory_.Answer();
  EXPECT_EQ(connections_.TakeOnlyPacket(asks).legacy_reclaimed().bytes(), 0u);
  EXPECT_EQ(memory_.limits[0], Bytes{0});
}

TEST_F(LegacyJobsTest, WhatACommandTookIsKnownToItsUserWhileItRunsAndAfterwards) {
  const std::string command(32, 'a');
  const Caller caller = connections_.Connect(50);
  const Caller stranger = connections_.Connect(51, FakeConnections::kUser + 1);
  const Caller root = connections_.Connect(52, FakeConnections::kRoot);
  EXPECT_FALSE(Ask(caller, command).has_record());
  const Caller first = Run(1, command, 1, MiB(20));
  const Caller second = Run(2, command, 1, MiB(8));
  EXPECT_EQ(Ask(caller, command).running(), MiB(20).count());
  EXPECT_EQ(Ask(stranger, command).running(), 0u);
  EXPECT_TRUE(jobs_.HangUp(first.key));
  jobs_.Forget(first.key);
  jobs_.Forget(second.key);
  const proto::JobKnown known = Ask(caller, command);
  EXPECT_EQ(known.record().peak(), MiB(20).count());
  EXPECT_EQ(known.record().runs(), 1u);
  EXPECT_EQ(known.running(), 0u);
  for (const Caller* other : {&stranger, &root}) EXPECT_FALSE(Ask(*other, command).has_record());
  jobs_.HandleRecords(stranger, 9, {});
  EXPECT_EQ(connections_.TakeOnlyPacket(stranger).job_records().records_size(), 0);
  jobs_.HandleRecords(root, 9, {});
  EXPECT_EQ(connections_.TakeOnlyPacket(root).job_records().records_size(), 1);
}

TEST_F(LegacyJobsTest, AProcessOfNoCommandLeavesNothingInTheHistory) {
  jobs_.Forget(Run(1, "", 0, MiB(20)).key);
  jobs_.Forget(Run(2, "no key", 2, MiB(20)).key);
  EXPECT_EQ(history_.size(), 0u);
}

// Its engine says that it would have taken 40 MiB of a larger device.
TEST_F(LegacyJobsTest, AnElasticJobTookWhatItWouldHaveTakenOfALargerDevice) {
  const std::string command(32, 'a');
  const Caller job = Run(1, command, 1, MiB(20));
  ipc::UniqueFd page = ElasticPage();
  proto::ElasticPageRow row{};
  row.sequence = 2;
  row.written_ns = 1;
  row.enough = MiB(40).count();
  ASSERT_EQ(::pwrite(page.get(), &row, sizeof(row), 0), static_cast<ssize_t>(sizeof(row)));
  Caller engine = connections_.Connect(1);
  Say(engine, Elastic(), std::move(page));
  EXPECT_EQ(Ask(engine, command).running(), MiB(40).count());
}

TEST_F(LegacyJobsTest, AProcessIsAdmittedBecomesTheJobAndItsEstimateIsListedWithWhatItTook) {
  const std::string command(32, 'a');
  memory_.usage.free = {kDevice};
  Caller asks = connections_.Connect(1);
  Say(asks, Admit(MiB(30), MiB(2)));
  Look();
  const proto::LegacyTurn turn = connections_.TakeOnlyPacket(asks).legacy_turn();
  EXPECT_EQ(turn.position(), 0u);
  EXPECT_EQ(turn.bytes(), MiB(32).count());
  EXPECT_EQ(turn.uuid(), "HOST-0");
  EXPECT_EQ(turn.words(), "by memory alone: how busy the device is cannot be measured");
  EXPECT_TRUE(jobs_.HangUp(asks.key)) << "what is promised stays until the process ends";
  const Caller job = Run(1, command, 1, MiB(20));
  EXPECT_TRUE(connections_.forgotten().empty());
  const proto::LegacyJob shown = List(job).jobs(0);
  EXPECT_EQ(shown.peak(), MiB(20).count());
  EXPECT_EQ(shown.estimate().source(), "history");
  EXPECT_EQ(shown.estimate().bytes(), MiB(30).count());
  EXPECT_EQ(shown.estimate().reserved(), MiB(32).count());
  Caller next = connections_.Connect(2);
  Say(next, Admit(MiB(40)));
  Look();
  EXPECT_EQ(connections_.TakeOnlyPacket(next).legacy_turn().position(), 1u);
  EXPECT_EQ(List(job).jobs(1).waits_for(), "for memory");
  EXPECT_EQ(List(job).jobs(1).name(), "train.py");
  jobs_.Ended(job.peer);
  jobs_.Forget(asks.key);
  jobs_.Forget(job.key);
  Look();
  EXPECT_EQ(connections_.TakeOnlyPacket(next).legacy_turn().position(), 0u);
  const proto::JobKnown known = Ask(next, command);
  ASSERT_EQ(known.record().estimates_size(), 1);
  EXPECT_EQ(known.record().estimates(0).bytes(), MiB(30).count());
  EXPECT_EQ(known.record().estimates(0).actual(), MiB(20).count());
}

TEST_F(LegacyJobsTest, HowMuchAJobComputesAloneIsRememberedAndLetsOthersRunConcurrently) {
  const std::string command(32, 'a');
  compute_ = 0.8;
  memory_.usage.free = {kDevice - MiB(20)};
  Caller job = Run(1, command, 1, MiB(20));
  jobs_.OnTime(ipc::Now() + std::chrono::hours(1));
  ClientPacket admit = Admit(MiB(30));
  Caller unknown = connections_.Connect(2);
  Say(unknown, admit);
  Look();
  EXPECT_EQ(connections_.TakeOnlyPacket(unknown).legacy_turn().position(), 1u);
  jobs_.Forget(unknown.key);
  admit.mutable_admit_job()->set_compute(0.6);
  Caller light = connections_.Connect(3);
  Say(light, admit);
  Look();
  EXPECT_EQ(connections_.TakeOnlyPacket(light).legacy_turn().words(),
            "all jobs there may take 1.4 times as long");
  jobs_.Ended(job.peer);
  EXPECT_EQ(Ask(job, command).record().compute(), 0.8);
}

TEST_F(LegacyJobsTest, WhatNeverFitsIsRefusedImmediatelyWithTheReason) {
  Caller large = connections_.Connect(1);
  Say(large, Admit(MiB(64), Bytes{1}));
  EXPECT_EQ(connections_.Refused(large), ErrorCode::kOutOfMemory);
  ledger_.SetTenant(FakeConnections::kUser, MiB(16));
  Caller limited = connections_.Connect(2);
  Say(limited, Admit(MiB(17)));
  EXPECT_EQ(connections_.Refused(limited), ErrorCode::kOutOfMemory);
  Caller other = connections_.Connect(3);
  Say(other, Admit(MiB(1), {}, "GPU-other"));
  EXPECT_EQ(connections_.Refused(other), ErrorCode::kNotFound);
  Caller nothing = connections_.Connect(4);
  Say(nothing, Admit(Bytes{0}));
  EXPECT_EQ(connections_.Refused(nothing), ErrorCode::kInvalidArgument);
  EXPECT_EQ(Descriptors(), 0u);
}

TEST_F(LegacyJobsTest, AnEstimateOfNoKnownSourceIsRefused) {
  Caller asks = connections_.Connect(1);
  ClientPacket admit = Admit(MiB(1));
  admit.mutable_admit_job()->set_source("hearsay");
  Say(asks, admit);
  EXPECT_EQ(connections_.Refused(asks), ErrorCode::kInvalidArgument);
}

TEST_F(LegacyJobsTest, AProcessThatBecameAnotherUsersIsNotifiedOfItsReservation) {
  memory_.usage.free = {kDevice};
  Caller asks = connections_.Connect(1);
  Say(asks, Admit(MiB(30)));
  Look();
  EXPECT_EQ(connections_.TakeOnlyPacket(asks).legacy_turn().position(), 0u);
  Caller again = connections_.Connect(1, FakeConnections::kUser + 1);
  Say(again, Admit(MiB(10)));
  EXPECT_EQ(connections_.TakeOnlyPacket(again).legacy_turn().bytes(), MiB(30).count());
}

TEST_F(LegacyJobsTest, OneThatWaitsByItselfAndHungUpAsAJobIsNotListed) {
  const Caller job = Attach(1);
  Caller waits = connections_.Connect(1);
  Say(waits, Wait("HOST-0", MiB(60)));
  EXPECT_TRUE(jobs_.HangUp(job.key));
  EXPECT_EQ(List(job).jobs_size(), 0);
}

TEST_F(LegacyJobsTest, AJobThatHangsUpBeforeItIsAdmittedLeavesItsPlace) {
  memory_.usage.free = {kDevice};
  Caller asks = connections_.Connect(1);
  Say(asks, Admit(MiB(30)));
  EXPECT_FALSE(jobs_.HangUp(asks.key));
  jobs_.Forget(asks.key);
  EXPECT_EQ(List(asks).jobs_size(), 0);
  EXPECT_EQ(Descriptors(), 0u);
}

TEST_F(LegacyJobsTest, UsersSeeTheirOwnJobsAndRootAll) {
  const Caller job = Attach(1);
  const Caller stranger = connections_.Connect(8, FakeConnections::kUser + 1);
  const Caller root = connections_.Connect(9, FakeConnections::kRoot);
  EXPECT_EQ(List(stranger).jobs_size(), 0);
  EXPECT_EQ(List(root).jobs_size(), 1);
  proto::ExplainJob query;
  query.set_client(5);
  jobs_.HandleExplain(stranger, 9, query);
  EXPECT_EQ(connections_.Refused(stranger), ErrorCode::kNotFound);
  jobs_.HandleExplain(job, 9, query);
  EXPECT_EQ(connections_.TakeOnlyPacket(job).job_explained().job().client(), 5u);
}

}  // namespace
}  // namespace ravenstore::daemon
