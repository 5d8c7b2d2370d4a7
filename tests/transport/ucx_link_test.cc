// A link that is cut beneath UCX: two nodes in network namespaces of their own, and `ip link`.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "ipc/clock.h"
#include "tests/timing/timing.h"
#include "tests/transport/testing.h"
#include "transport/ucx.h"

namespace ravenstore::transport {
namespace {

using core::ErrorCode;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr const char* kFar = "192.0.2.2:7000";
constexpr Patience kPatience{.ping = milliseconds(500), .silence = seconds(2)};

bool Shell(const std::string& command) {
  return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}

std::unique_ptr<UcxTransport> Open(const std::string& node, const std::string& listen,
                                   EchoService* service) {
  auto opened = OpenUcx({.node = node,
                         .trusted_fabric = true,
                         .transports = "tcp",
                         .devices = node + "0",
                         .listen = listen,
                         .patience = kPatience},
                        service);
  if (!opened.ok()) {
    std::fprintf(stderr, "%s\n", Describe(opened.error()).c_str());
    return nullptr;
  }
  service->transport = opened->get();
  return *std::move(opened);
}

// A network namespace, and the /sys that shows it: UCX looks for devices there.
bool EnterNamespace() {
  return ::unshare(CLONE_NEWNET | CLONE_NEWNS) == 0 &&
         ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("none", "/sys", "sysfs", 0, nullptr) == 0;
}

// The kernel says only a little later that a link has its carrier.
bool HasCarrier(const std::string& device) {
  return Eventually([&] {
    return Shell("ip -o link show dev " + device + " | grep -q LOWER_UP") &&
           Shell("grep -q up /sys/class/net/" + device + "/operstate");
  });
}

void Send(int pipe, char what) {
  [[maybe_unused]] const ssize_t count = ::write(pipe, &what, 1);
}

char Hear(int pipe) {
  char what = 0;
  return ::read(pipe, &what, 1) == 1 ? what : 0;
}

// The far node, in a process of its own: its namespace, then the link's far end, then service.
[[noreturn]] void BeFar(int hears, int sends) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (!EnterNamespace()) ::_exit(1);
  Send(sends, 'n');
  if (Hear(hears) != 'l') ::_exit(1);
  EchoService service;
  const bool up = Shell("ip addr add 192.0.2.2/24 dev far0") && Shell("ip link set far0 up") &&
                  HasCarrier("far0");
  const auto far = up ? Open("far", kFar, &service) : nullptr;
  if (far == nullptr) ::_exit(1);
  Send(sends, 'r');
  for (;;) far->Poll(core::kNever);
}

class UcxLinkTest : public testing::Test {
 protected:
  // Before UCX makes sockets or threads: they would be the old namespace's.
  void SetUp() override {
    if (const auto ucx = LoadUcx(); !ucx.ok()) GTEST_SKIP() << ucx.error().message;
    if (!EnterNamespace()) GTEST_SKIP() << "network namespaces need root";
    int to_far[2];
    int from_far[2];
    ASSERT_EQ(::pipe(to_far), 0);
    ASSERT_EQ(::pipe(from_far), 0);
    far_ = ::fork();
    if (far_ == 0) {
      ::close(to_far[1]);
      ::close(from_far[0]);
      BeFar(to_far[0], from_far[1]);
    }
    ::close(to_far[0]);
    ::close(from_far[1]);
    ASSERT_EQ(Hear(from_far[0]), 'n');
    if (!Shell("ip link add near0 type veth peer name far0 netns " + std::to_string(far_))) {
      GTEST_SKIP() << "no veth can be made here";
    }
    ASSERT_TRUE(Shell("ip addr add 192.0.2.1/24 dev near0") && Shell("ip link set near0 up"));
    Send(to_far[1], 'l');
    ASSERT_EQ(Hear(from_far[0]), 'r');
    ASSERT_TRUE(HasCarrier("near0"));
    near_ = Open("near", "", &service_);
    ASSERT_NE(near_, nullptr);
  }
  void TearDown() override {
    near_.reset();
    if (far_ > 0) {
      ::kill(far_, SIGKILL);
      ::waitpid(far_, nullptr, 0);
    }
  }
  bool Completes(const Outcome& outcome) {
    return EventuallyWith([&] { return outcome.completed(); },
                          [&] { near_->Poll(ipc::Now() + seconds(1)); }, kTestPatience);
  }

  pid_t far_ = -1;
  EchoService service_;
  std::unique_ptr<UcxTransport> near_;
};

TEST_F(UcxLinkTest, CallsEndInTimeWhenTheLinkIsCut) {
  const ConnectionId connection = near_->Connect("far", kFar, core::kNever).value();
  const Buffer sent = Pattern(core::MiB(8).count(), 1);
  Buffer received(sent.size());
  Outcome before;
  ASSERT_TRUE(near_
                  ->Call(connection,
                         {.header = "x", .send = sent, .receive = received, .done = before.Keep()})
                  .ok());
  ASSERT_TRUE(Completes(before));
  ASSERT_TRUE(before.ok()) << Describe(before.error());
  EXPECT_EQ(received, sent);

  ASSERT_TRUE(Shell("ip link set near0 down"));
  const core::Tick cut = ipc::Now();
  TimeLimit limit(kPatience.silence + seconds(3));
  Outcome bounded;
  Outcome unbounded;
  ASSERT_TRUE(near_
                  ->Call(connection, {.header = "x",
                                      .send = sent,
                                      .deadline = cut + milliseconds(300),
                                      .done = bounded.Keep()})
                  .ok());
  ASSERT_TRUE(
      near_->Call(connection, {.header = "x", .send = sent, .done = unbounded.Keep()}).ok());
  ASSERT_TRUE(Completes(bounded));
  EXPECT_EQ(bounded.error().code, ErrorCode::kTimedOut);
  ASSERT_TRUE(Completes(unbounded));
  EXPECT_EQ(unbounded.error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(limit.IsOver());
  EXPECT_TRUE(service_.lost.contains(connection));
  TimeLimit closing(seconds(5));
  near_.reset();  // UCX still has unacknowledged messages
  EXPECT_FALSE(closing.IsOver());
}

}  // namespace
}  // namespace ravenstore::transport
