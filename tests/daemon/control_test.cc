// The control socket of a running daemon.
#include "daemon/control.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "client/client.h"
#include "client/ctl/session.h"
#include "proto/control.pb.h"
#include "proto/layout.h"
#include "proto/ledger_page.h"
#include "proto/packet.h"
#include "tests/daemon/daemon_process.h"

namespace ravenstore::daemon {
namespace {

using client::ctl::Session;
using core::ErrorCode;
using proto::ClientPacket;
using std::chrono::seconds;

Store Connect(const DaemonProcess& daemon, uint64_t device_budget = 0) {
  return Store::connect(
      {.socket = daemon.socket(), .name = "control_test", .device_budget = device_budget});
}

Session Open(const DaemonProcess& daemon) {
  auto session = Session::Open(daemon.socket(), seconds(30));
  RAVEN_CHECK(session.ok());
  return std::move(*session);
}

// A legacy job's page, as the daemon takes it.
ipc::UniqueFd LedgerPage() {
  ipc::UniqueFd page(::memfd_create("ledger", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  RAVEN_CHECK(::ftruncate(page.get(), proto::kLedgerBytes) == 0);
  RAVEN_CHECK(::fcntl(page.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  return page;
}

// A connection that says what a client library would not.
class Raw {
 public:
  explicit Raw(const DaemonProcess& daemon)
      : socket_(std::move(*ipc::Connect(daemon.socket(), ipc::Now() + seconds(30)))) {}

  proto::DaemonPacket Ask(ClientPacket packet, std::span<const int> descriptors = {}) {
    packet.set_request(++request_);
    RAVEN_CHECK(ipc::Send(socket_.get(), packet.SerializeAsString(), descriptors).ok());
    proto::DaemonPacket answer = Next();
    EXPECT_EQ(answer.request(), request_);
    return answer;
  }
  proto::DaemonPacket Next() {
    RAVEN_CHECK(ipc::WaitReadable(socket_.get(), ipc::Now() + seconds(30)).ok());
    auto received = ipc::Receive(socket_.get(), true);
    RAVEN_CHECK(received.ok() && received->has_value());
    proto::DaemonPacket answer;
    RAVEN_CHECK(answer.ParseFromString((*received)->bytes));
    return answer;
  }
  proto::DaemonPacket Greet() { return Ask(Hello()); }
  // The answer to a Hello, or what the daemon says in place of one.
  proto::DaemonPacket First() {
    // It may have hung up already.
    static_cast<void>(ipc::Send(socket_.get(), Hello().SerializeAsString()).ok());
    return Next();
  }
  static ClientPacket Hello() {
    ClientPacket hello;
    hello.mutable_hello()->set_protocol_version(proto::kProtocolVersion);
    hello.mutable_hello()->set_control_only(true);
    return hello;
  }
  // What the daemon says to a legacy job with that page.
  proto::DaemonPacket BeLegacy(const ipc::UniqueFd& page) {
    const int descriptors[] = {page.get()};
    ClientPacket hello;
    hello.mutable_legacy_hello()->set_protocol_version(proto::kProtocolVersion);
    return Ask(hello, descriptors);
  }
  proto::DaemonPacket Intern(const std::string& name) {
    ClientPacket packet;
    packet.mutable_intern_name()->set_name(name);
    return Ask(packet);
  }

 private:
  ipc::UniqueFd socket_;
  uint64_t request_ = 0;
};

ErrorCode CodeOf(const proto::DaemonPacket& answer) {
  return static_cast<ErrorCode>(answer.failure().code());
}

// Waits until the daemon has closed all of the connections that it had, DaemonProcess's own first
// of all: it does that on a thread of its own, and may after it took others, whose descriptors are
// then above a hole.
void AwaitNoConnection(const DaemonProcess& daemon) {
  Raw(daemon).Greet();  // behind those that wait to be accepted
  const std::string directory = "/proc/" + std::to_string(daemon.pid()) + "/fd";
  const bool none = Eventually([&] {
    size_t of_connections = 0;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      std::error_code error;
      const std::string file = std::filesystem::read_symlink(entry.path(), error);
      if (file.starts_with("socket:") || file.find("pidfd") != std::string::npos) ++of_connections;
    }
    return of_connections == 1;  // the listening socket
  });
  RAVEN_CHECK(none);
}

// More than a connection, a client and what is made ahead take together.
constexpr int kEnoughDescriptors = 32;

// Leaves the daemon `left` descriptors more than it has. Its other threads may take some at any
// moment: memory that they make ahead has one each.
void LeaveDescriptors(const DaemonProcess& daemon, int left) {
  std::set<int> used;
  const std::string directory = "/proc/" + std::to_string(daemon.pid()) + "/fd";
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    used.insert(std::stoi(entry.path().filename()));
  }
  int limit = 0;
  for (int free = 0; used.contains(limit) || free++ < left; ++limit) {
  }
  rlimit now{};
  RAVEN_CHECK(::prlimit(daemon.pid(), RLIMIT_NOFILE, nullptr, &now) == 0);
  now.rlim_cur = static_cast<rlim_t>(limit);
  RAVEN_CHECK(::prlimit(daemon.pid(), RLIMIT_NOFILE, &now, nullptr) == 0);
}

size_t Mentions(const std::string& text, const std::string& word) {
  size_t mentions = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    ++mentions;
  }
  return mentions;
}

// The user who runs the tests is the daemon's own, for whom 16 connections are kept.
TEST(ControlTest, OneUserHasOnlySoManyConnectionsAndSomeAreKeptForTools) {
  DaemonProcess daemon({"--clients-max", "1"});
  AwaitNoConnection(daemon);
  std::vector<Raw> mine;
  for (int i = 0; i < 132 * 7 / 8; ++i) {
    mine.emplace_back(daemon);
    ASSERT_TRUE(mine.back().Greet().has_welcome()) << i;
  }
  try {
    Connect(daemon);
    FAIL() << "one more was attached";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), RAVENSTORE_LIMIT) << error.what();
  }
  // That one may not have ended yet.
  std::vector<Raw> tools;
  for (int i = 0; i < 15; ++i) {
    tools.emplace_back(daemon);
    ASSERT_TRUE(tools.back().Greet().has_welcome()) << i;
  }
  std::string words;
  EXPECT_TRUE(Eventually([&] {
    tools.emplace_back(daemon);
    const proto::DaemonPacket answer = tools.back().First();
    words = answer.failure().message();
    return CodeOf(answer) == ErrorCode::kLimit;
  }));
  EXPECT_NE(words.find("connections ran out: 115 of 132 are taken"), std::string::npos) << words;
  mine.clear();
  EXPECT_TRUE(Eventually([&] {
    try {
      Connect(daemon);
      return true;
    } catch (const Error&) {
      return false;
    }
  }));
}

TEST(ControlTest, AConnectionThatSaysNothingIsClosed) {
  DaemonProcess daemon;
  Raw silent(daemon);
  Raw tool(daemon);
  ASSERT_TRUE(tool.Greet().has_welcome());
  const proto::DaemonPacket last = silent.Next();
  EXPECT_EQ(CodeOf(last), ErrorCode::kTimedOut);
  EXPECT_NE(last.failure().message().find("says nothing"), std::string::npos);
  ClientPacket question;
  question.mutable_stats()->set_whole_store(true);
  EXPECT_TRUE(tool.Ask(question).has_stats()) << "it said Hello, and may be silent";
}

TEST(ControlTest, EachUserMayRecordAndOnlyOnce) {
  DaemonProcess daemon;
  ClientPacket record;
  record.mutable_record();
  Raw first(daemon);
  first.Greet();
  EXPECT_TRUE(first.Ask(record).has_recorded());
  EXPECT_TRUE(first.Ask(record).has_recorded());
  Raw second(daemon);
  second.Greet();
  const proto::DaemonPacket refusal = second.Ask(record);
  EXPECT_EQ(CodeOf(refusal), ErrorCode::kLimit);
  EXPECT_NE(refusal.failure().message().find("records already"), std::string::npos);
  { const Raw ends = std::move(first); }
  EXPECT_TRUE(Eventually([&] { return second.Ask(record).has_recorded(); }));
}

TEST(ControlTest, OutOfDescriptorsItSaysSoOnceAndAcceptsLater) {
  DaemonProcess daemon;
  AwaitNoConnection(daemon);
  std::vector<Raw> some;
  for (int i = 0; i < 3; ++i) {
    some.emplace_back(daemon);
    some.back().Greet();
    some.back().Intern("name");
  }
  LeaveDescriptors(daemon, 0);
  Raw waiting(daemon);
  EXPECT_TRUE(Eventually([&] { return Mentions(daemon.Log(), "accepted") > 0; }));
  for (int i = 0; i < 200; ++i) some.front().Intern("name");
  EXPECT_EQ(Mentions(daemon.Log(), "accepted"), 1u) << daemon.Log();
  some.erase(some.begin() + 1, some.end());
  EXPECT_TRUE(waiting.Greet().has_welcome());
}

// The one descriptor is for its socket: who it is of takes another, and no other connection comes
// to wake the thread.
TEST(ControlTest, AConnectionWhoseProcessCannotBeWatchedIsTakenUpLater) {
  DaemonProcess daemon;
  AwaitNoConnection(daemon);
  std::optional<Raw> first(daemon);
  first->Greet();
  LeaveDescriptors(daemon, 1);
  Raw waiting(daemon);
  EXPECT_TRUE(Eventually([&] { return Mentions(daemon.Log(), "accepted") > 0; }));
  first.reset();
  LeaveDescriptors(daemon, kEnoughDescriptors);
  EXPECT_TRUE(waiting.Greet().has_welcome());
}

TEST(ControlTest, AClientThatCannotBeWelcomedIsRefusedAndNotAttached) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the undefined-behaviour sanitizer beside it looks at memory through a pipe, for "
                  "which a daemon without descriptors has none";
#endif
  DaemonProcess daemon;
  AwaitNoConnection(daemon);
  Session admin = Open(daemon);
  Raw raw(daemon);
  ClientPacket hello;
  hello.mutable_hello()->set_protocol_version(proto::kProtocolVersion);
  raw.Intern("accepted and waiting");
  LeaveDescriptors(daemon, 3);  // for the segment, the doorbell, and one of the Welcome's two
  const proto::DaemonPacket answer = raw.Ask(hello);
  EXPECT_EQ(CodeOf(answer), ErrorCode::kLimit);
  EXPECT_NE(answer.failure().message().find("descriptors"), std::string::npos);
  EXPECT_EQ(admin.Stats()->clients(), 0u);
  LeaveDescriptors(daemon, kEnoughDescriptors);
  EXPECT_TRUE(raw.Ask(hello).has_welcome());
  EXPECT_EQ(admin.Stats()->clients(), 1u);
}

TEST(ControlTest, TheFirstMessageMustBeHello) {
  DaemonProcess daemon;
  Raw raw(daemon);
  ClientPacket stats;
  stats.mutable_stats();
  EXPECT_EQ(CodeOf(raw.Ask(stats)), ErrorCode::kWrongState);
  EXPECT_TRUE(raw.Greet().has_welcome());
  EXPECT_EQ(CodeOf(raw.Greet()), ErrorCode::kWrongState);
  EXPECT_TRUE(raw.Ask(stats).has_stats());
}

TEST(ControlTest, AToolIsNoClient) {
  DaemonProcess daemon;
  Raw raw(daemon);
  const proto::DaemonPacket welcome = raw.Greet();
  EXPECT_EQ(welcome.welcome().client(), 0u);
  EXPECT_EQ(welcome.welcome().devices_size(), 1);
  ClientPacket detach;
  detach.mutable_detach();
  EXPECT_EQ(CodeOf(raw.Ask(detach)), ErrorCode::kWrongState);
  EXPECT_EQ(Open(daemon).Stats()->clients(), 0u);
}

TEST(ControlTest, UnknownMessagesAreRefused) {
  DaemonProcess daemon;
  Raw raw(daemon);
  raw.Greet();
  EXPECT_EQ(CodeOf(raw.Ask(ClientPacket())), ErrorCode::kInvalidArgument);
}

TEST(ControlTest, NamesAreNumberedOnceForAll) {
  DaemonProcess daemon;
  Raw one(daemon);
  Raw other(daemon);
  one.Greet();
  other.Greet();
  const uint32_t id = one.Intern("layer0").name_interned().id();
  EXPECT_NE(id, 0u);
  EXPECT_EQ(other.Intern("layer0").name_interned().id(), id);
  EXPECT_NE(other.Intern("layer1").name_interned().id(), id);
  EXPECT_EQ(CodeOf(one.Intern(std::string(256, 'x'))), ErrorCode::kLimit);
}

TEST(ControlTest, ClientsBeyondTheLimitWaitTheirTurn) {
  DaemonProcess daemon({"--clients-max", "1"});
  std::optional<Store> first(Connect(daemon));
  try {
    Connect(daemon);
    FAIL() << "a second client was attached";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), RAVENSTORE_LIMIT);
    EXPECT_NE(std::string(error.what()).find("clients_max"), std::string::npos) << error.what();
  }
  first.reset();
  Store second = Connect(daemon);
  EXPECT_NE(second.create(MiB(1)).data(), nullptr);
}

TEST(ControlTest, AClientsLowerLimitGivesItsSlabsBack) {
  DaemonProcess daemon;
  Store store = Connect(daemon, MiB(32));
  Session admin = Open(daemon);
  std::vector<Tensor> tensors;
  for (int i = 0; i < 7; ++i) {
    tensors.push_back(store.create(MiB(4)));
    std::memset(tensors.back().data(), i, MiB(4));
    store.put(tensors.back(), nullptr);
  }
  const auto before = admin.Clients();
  ASSERT_TRUE(before.ok());
  ASSERT_EQ(before->size(), 1u);
  EXPECT_GE(before->front().device_bytes(), MiB(28));

  proto::SetLimits limits;
  limits.set_client(before->front().client());
  limits.set_device_budget(MiB(8));
  const auto set = admin.SetLimits(limits);
  ASSERT_TRUE(set.ok()) << core::Describe(set.error());
  EXPECT_EQ(set->device_budget(), MiB(8));
  EXPECT_EQ(set->host_budget(), before->front().host_budget());
  EXPECT_TRUE(Eventually([&] { return admin.Clients()->front().device_bytes() <= MiB(8); }));
  EXPECT_LE(admin.Stats()->tiers(0).held(), MiB(8));

  for (int i = 0; i < 7; ++i) {
    const auto* data = static_cast<const char*>(store.get(tensors[i], nullptr));
    EXPECT_EQ(data[0], i);
    EXPECT_EQ(data[MiB(4) - 1], i);
    store.put(tensors[i], nullptr, {.not_modified = true});
  }
  EXPECT_LE(admin.Clients()->front().device_bytes(), MiB(8));
}

TEST(ControlTest, AHigherLimitLetsAWaitingClientGoOn) {
  DaemonProcess daemon;
  Store store = Connect(daemon, MiB(8));
  Session admin = Open(daemon);
  Tensor held = store.create(MiB(8));
  std::thread client([&] { EXPECT_NE(store.create(MiB(8)).data(), nullptr); });
  EXPECT_TRUE(Eventually([&] { return admin.Stats()->waiting() == 1; }));
  proto::SetLimits limits;
  limits.set_client(admin.Clients()->front().client());
  limits.set_device_budget(MiB(16));
  EXPECT_TRUE(admin.SetLimits(limits).ok());
  client.join();
}

TEST(ControlTest, AGuaranteeIsATenantsAndTakenBackAsOtherLimitsAre) {
  DaemonProcess daemon({"--device-guarantee", "8MiB"});
  Store store = Connect(daemon);
  Session admin = Open(daemon);
  proto::SetLimits limits;
  limits.set_uid(::geteuid());
  EXPECT_EQ(admin.SetLimits(limits)->device_guarantee(), MiB(8));
  limits.set_device_guarantee(MiB(32));
  EXPECT_EQ(admin.SetLimits(limits)->device_guarantee(), MiB(32));
  limits.clear_device_guarantee();
  EXPECT_EQ(admin.SetLimits(limits)->device_guarantee(), MiB(32));
  limits.set_device_guarantee(0);
  EXPECT_EQ(admin.SetLimits(limits)->device_guarantee(), 0u);
  limits.set_device_guarantee(proto::kLimitNotSet);
  EXPECT_EQ(admin.SetLimits(limits)->device_guarantee(), MiB(8));
  limits.set_client(admin.Clients()->front().client());
  const auto refused = admin.SetLimits(limits);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, core::ErrorCode::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("a guarantee is a user's"), std::string::npos);
}

TEST(ControlTest, AUsersWeightAndPriorityAreShownForItsClients) {
  DaemonProcess daemon;
  Store store = Connect(daemon);
  Session admin = Open(daemon);
  EXPECT_EQ(admin.Clients()->front().weight(), 0u);
  EXPECT_EQ(admin.Clients()->front().priority(), proto::PRIORITY_NORMAL);
  proto::SetLimits limits;
  limits.set_uid(::geteuid());
  limits.set_weight(3);
  limits.set_priority(proto::PRIORITY_LOW);
  ASSERT_TRUE(admin.SetLimits(limits).ok());
  EXPECT_EQ(admin.Clients()->front().weight(), 3u);
  EXPECT_EQ(admin.Clients()->front().priority(), proto::PRIORITY_LOW);
}

TEST(ControlTest, ATenantsLimitHoldsForItsNextClient) {
  DaemonProcess daemon;
  Session admin = Open(daemon);
  proto::SetLimits limits;
  limits.set_uid(::geteuid());
  limits.set_device_budget(MiB(16));
  limits.set_host_budget(MiB(24));
  ASSERT_TRUE(admin.SetLimits(limits).ok());
  Store store = Connect(daemon, MiB(64));
  EXPECT_EQ(store.stats().device_budget, MiB(16));
  EXPECT_EQ(store.stats().host_budget, MiB(24));
  EXPECT_THROW(store.create(MiB(17)), OutOfMemory);
}

TEST(ControlTest, ALimitThatWasSetIsTakenBack) {
  DaemonProcess daemon({"--device-budget", "40MiB", "--host-budget", "48MiB"});
  Session admin = Open(daemon);
  Store store = Connect(daemon, MiB(32));
  const auto change = [&](uint32_t client, uint64_t device, uint64_t host) {
    proto::SetLimits limits;
    limits.set_uid(::geteuid());
    limits.set_client(client);
    limits.set_device_budget(device);
    limits.set_host_budget(host);
    return *admin.SetLimits(limits);
  };
  const uint32_t client = admin.Clients()->front().client();
  for (const auto& [holder, before] : {std::pair(0u, MiB(40)), {client, MiB(32)}}) {
    EXPECT_EQ(change(holder, MiB(16), MiB(24)).device_budget(), MiB(16));
    const auto after = change(holder, proto::kLimitNotSet, 0);
    EXPECT_EQ(after.device_budget(), before);
    EXPECT_EQ(after.host_budget(), MiB(24)) << "left alone";
    EXPECT_EQ(change(holder, 0, proto::kLimitNotSet).host_budget(), MiB(48));
  }
  EXPECT_EQ(store.stats().device_budget, MiB(32));
}

TEST(ControlTest, LimitsOfAClientThatIsNotThereAreRefused) {
  DaemonProcess daemon;
  Session admin = Open(daemon);
  proto::SetLimits limits;
  limits.set_client(77);
  limits.set_device_budget(MiB(16));
  const auto set = admin.SetLimits(limits);
  ASSERT_FALSE(set.ok());
  EXPECT_EQ(set.error().code, ErrorCode::kNotFound);
  EXPECT_NE(set.error().message.find("77"), std::string::npos) << set.error().message;
}

TEST(ControlTest, AJobThatWantsMoreThanTheDeviceHasEmptiesNothing) {
  DaemonProcess daemon({"--device-total", "64MiB"});
  Store store = Connect(daemon);
  Tensor tensor = store.create(MiB(8));
  std::memset(tensor.data(), 5, MiB(8));
  store.put(tensor, nullptr);
  Session admin = Open(daemon);
  const uint64_t held = admin.Stats()->tiers(0).held();

  Raw job(daemon);
  ASSERT_TRUE(job.BeLegacy(LedgerPage()).has_legacy_welcome());

  ClientPacket packet;
  packet.mutable_legacy_reclaim()->set_uuid("HOST-0");
  packet.mutable_legacy_reclaim()->set_bytes(GiB(1024));
  const proto::DaemonPacket refusal = Raw(daemon).Ask(packet);
  ASSERT_TRUE(refusal.has_legacy_reclaimed());
  EXPECT_EQ(refusal.legacy_reclaimed().bytes(), 0u);
  EXPECT_GE(admin.Stats()->tiers(0).held(), held);

  // A request ends after a second without progress, and on a busy machine a copy takes longer.
  packet.mutable_legacy_reclaim()->set_bytes(MiB(64));
  EXPECT_TRUE(
      Eventually([&] { return Raw(daemon).Ask(packet).legacy_reclaimed().bytes() >= held; }));
}

// Each message takes several threads of the daemon some time. After a burst of 256 the daemon reads
// at most 500 per second. It refuses none, and the user's other messages do not wait.
TEST(ControlTest, MessagesWithADescriptorAreReadAtABoundedPace) {
  DaemonProcess daemon;
  const ipc::UniqueFd page = LedgerPage();
  const core::Tick began = ipc::Now();
  for (int i = 0; i < 512; ++i) {
    ASSERT_TRUE(Raw(daemon).BeLegacy(page).has_legacy_welcome());
    if (i == 400) {
      EXPECT_TRUE(Raw(daemon).Greet().has_welcome());
    }
  }
  EXPECT_GE(ipc::Now() - began, std::chrono::milliseconds(2 * (512 - 256)));
}

TEST(ControlTest, OnlyALegacyJobWaitsForADeviceAndForNoMoreThanItMayHave) {
  DaemonProcess daemon({"--device-total", "64MiB", "--visible-memory", "48MiB"});
  ClientPacket wait;
  wait.mutable_legacy_wait()->set_uuid("HOST-0");
  wait.mutable_legacy_wait()->set_bytes(GiB(1024));
  const auto code = [](const proto::DaemonPacket& answer) {
    return static_cast<ErrorCode>(answer.failure().code());
  };
  EXPECT_EQ(code(Raw(daemon).Ask(wait)), ErrorCode::kPermission);

  Raw job(daemon);
  ASSERT_TRUE(job.BeLegacy(LedgerPage()).has_legacy_welcome());
  EXPECT_EQ(code(job.Ask(wait)), ErrorCode::kWrongState) << "not on that connection";

  ClientPacket elsewhere = wait;
  elsewhere.mutable_legacy_wait()->set_uuid("HOST-77");
  EXPECT_EQ(code(Raw(daemon).Ask(elsewhere)), ErrorCode::kNotFound);

  Raw first(daemon);
  const proto::DaemonPacket turn = first.Ask(wait);
  ASSERT_TRUE(turn.has_legacy_turn()) << turn.DebugString();
  EXPECT_EQ(turn.legacy_turn().position(), 0u);
  EXPECT_EQ(turn.legacy_turn().bytes(), MiB(48));
  EXPECT_EQ(code(first.Ask(wait)), ErrorCode::kWrongState) << "once on a connection";
  EXPECT_EQ(Raw(daemon).Ask(wait).legacy_turn().bytes(), MiB(48)) << "and it is told so again";
}

TEST(ControlTest, AnEndingDaemonTurnsNewClientsAwayAndLetsTheOldFinish) {
  DaemonProcess daemon;
  Store store = Connect(daemon);
  Tensor tensor = store.create(MiB(1));
  ::kill(daemon.pid(), SIGTERM);
  EXPECT_TRUE(Eventually([&] { return ::access(daemon.socket().c_str(), F_OK) != 0; }))
      << daemon.Log();
  EXPECT_THROW(Store::connect({.socket = daemon.socket(), .timeout = std::chrono::milliseconds(1)}),
               Error);
  std::memset(tensor.data(), 5, MiB(1));
  store.put(tensor, nullptr);
  EXPECT_EQ(static_cast<char*>(store.get(tensor, nullptr))[7], 5);
  store.free(std::move(tensor), nullptr);
  store = Store();
  EXPECT_EQ(daemon.Kill(0), 0);
  EXPECT_NE(daemon.Log().find("nothing was lost"), std::string::npos) << daemon.Log();
}

}  // namespace
}  // namespace ravenstore::daemon
