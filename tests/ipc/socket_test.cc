#include "ipc/socket.h"

#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>

#include "ipc/clock.h"
#include "proto/packet.h"
#include "tests/ipc/child.h"
#include "tests/ipc/short_directory.h"

namespace ravenstore::ipc {
namespace {

using core::ErrorCode;
using proto::kControlDescriptorsMax;
using proto::kControlPacketMax;
using std::chrono::seconds;

struct Ends {
  UniqueFd a;
  UniqueFd b;
};

Ends Pair() {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

size_t OpenDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

// Sends as a peer would that keeps no bound.
void SendRaw(int socket, size_t bytes, size_t descriptors) {
  std::string body(bytes, 'x');
  iovec vector{body.data(), body.size()};
  std::vector<int> numbers(descriptors, 0);
  std::vector<char> control(CMSG_SPACE(sizeof(int) * descriptors));
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  if (descriptors > 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int) * descriptors);
    std::memcpy(CMSG_DATA(part), numbers.data(), sizeof(int) * descriptors);
  }
  ASSERT_EQ(sendmsg(socket, &message, 0), static_cast<ssize_t>(bytes));
}

template <typename T>
ErrorCode CodeOf(const core::Result<T>& result) {
  EXPECT_FALSE(result.ok());
  return result.ok() ? ErrorCode{} : result.error().code;
}

bool SameFile(int a, int b) {
  struct stat left {};
  struct stat right {};
  EXPECT_EQ(fstat(a, &left), 0);
  EXPECT_EQ(fstat(b, &right), 0);
  return left.st_ino == right.st_ino && left.st_dev == right.st_dev;
}

TEST(PacketTest, KeepsBoundariesAndCarriesDescriptors) {
  const Ends ends = Pair();
  const UniqueFd memory(memfd_create("one", MFD_CLOEXEC));
  const UniqueFd other(memfd_create("two", MFD_CLOEXEC));
  const int descriptors[] = {memory.get(), other.get()};
  ASSERT_TRUE(Send(ends.a.get(), "first").ok());
  ASSERT_TRUE(Send(ends.a.get(), std::string_view("sec\0nd", 6), descriptors).ok());
  auto first = Receive(ends.b.get(), true);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ((*first)->bytes, "first");
  EXPECT_TRUE((*first)->descriptors.empty());
  auto second = Receive(ends.b.get(), true);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ((*second)->bytes, std::string("sec\0nd", 6));
  ASSERT_EQ((*second)->descriptors.size(), 2u);
  EXPECT_TRUE(SameFile((*second)->descriptors[0].get(), memory.get()));
  EXPECT_TRUE(SameFile((*second)->descriptors[1].get(), other.get()));
  EXPECT_NE(fcntl((*second)->descriptors[0].get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(PacketTest, TakesTheLargestPacket) {
  const Ends ends = Pair();
  const std::string bytes(kControlPacketMax, 'y');
  const int descriptors[kControlDescriptorsMax] = {};
  ASSERT_TRUE(Send(ends.a.get(), bytes, descriptors).ok());
  auto packet = Receive(ends.b.get(), true);
  ASSERT_TRUE(packet.ok());
  EXPECT_EQ((*packet)->bytes, bytes);
  EXPECT_EQ((*packet)->descriptors.size(), kControlDescriptorsMax);
}

TEST(PacketTest, RefusesToSendOutOfBounds) {
  const Ends ends = Pair();
  const std::vector<int> many(kControlDescriptorsMax + 1, 0);
  EXPECT_EQ(CodeOf(Send(ends.a.get(), "")), ErrorCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(Send(ends.a.get(), std::string(kControlPacketMax + 1, 'x'))),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(Send(ends.a.get(), "x", many)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(Receive(ends.b.get(), false)), ErrorCode::kTimedOut);
}

TEST(PacketTest, AnOversizedPacketIsCorruptAndTheNextOneGood) {
  const Ends ends = Pair();
  const size_t before = OpenDescriptors();
  SendRaw(ends.a.get(), kControlPacketMax + 1, 2);
  ASSERT_TRUE(Send(ends.a.get(), "next").ok());
  EXPECT_EQ(CodeOf(Receive(ends.b.get(), true)), ErrorCode::kCorrupt);
  EXPECT_EQ(OpenDescriptors(), before);
  auto next = Receive(ends.b.get(), true);
  ASSERT_TRUE(next.ok());
  EXPECT_EQ((*next)->bytes, "next");
}

TEST(PacketTest, AClientMaySendFewerDescriptors) {
  const Ends ends = Pair();
  for (const size_t count : {proto::kClientDescriptorsMax, proto::kClientDescriptorsMax + 1}) {
    SendRaw(ends.a.get(), 1, count);
    std::vector<UniqueFd> descriptors;
    EXPECT_EQ(Receive(ends.b.get(), &descriptors).ok(), count == proto::kClientDescriptorsMax);
    EXPECT_EQ(descriptors.size(), count);
  }
}

TEST(PacketTest, TooManyDescriptorsAreCorruptAndClosed) {
  const Ends ends = Pair();
  const size_t before = OpenDescriptors();
  for (const size_t count : {kControlDescriptorsMax + 1, size_t{100}, size_t{253}}) {
    SendRaw(ends.a.get(), 1, count);
    EXPECT_EQ(CodeOf(Receive(ends.b.get(), true)), ErrorCode::kCorrupt) << count;
    EXPECT_EQ(OpenDescriptors(), before) << count;
  }
}

TEST(PacketTest, DescriptorsThatDoNotFitTheProcessAreCorruptAndClosed) {
  Child receiver([] {
    const Ends ends = Pair();
    SendRaw(ends.a.get(), 1, 4);
    const int next = dup(0);
    close(next);
    const rlimit limit{static_cast<rlim_t>(next) + 2, static_cast<rlim_t>(next) + 2};
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
    auto packet = Receive(ends.b.get(), true);
    if (packet.ok() || packet.error().code != ErrorCode::kCorrupt) return 2;
    return dup(0) == next ? 0 : 3;
  });
  EXPECT_EQ(receiver.Wait(), 0);
}

TEST(PacketTest, SaysWhenThePeerHungUp) {
  Ends ends = Pair();
  ASSERT_TRUE(Send(ends.a.get(), "last words").ok());
  ends.a.reset();
  auto last = Receive(ends.b.get(), true);
  ASSERT_TRUE(last.ok());
  EXPECT_EQ((*last)->bytes, "last words");
  auto end = Receive(ends.b.get(), true);
  ASSERT_TRUE(end.ok());
  EXPECT_FALSE(end->has_value());
  EXPECT_EQ(CodeOf(Send(ends.b.get(), "hello?")), ErrorCode::kUnavailable);
}

TEST(PacketTest, ReadsWhatAPeerSentThatLeftWithoutReading) {
  Ends ends = Pair();
  ASSERT_TRUE(Send(ends.b.get(), "unread").ok());
  ASSERT_TRUE(Send(ends.a.get(), "last words").ok());
  ends.a.reset();  // resets the connection
  auto last = Receive(ends.b.get(), false);
  ASSERT_TRUE(last.ok()) << core::Describe(last.error());
  EXPECT_EQ((*last)->bytes, "last words");
  auto end = Receive(ends.b.get(), false);
  ASSERT_TRUE(end.ok()) << core::Describe(end.error());
  EXPECT_FALSE(end->has_value());
}

TEST(PacketTest, AnEmptyPacketCountsAsHangingUpAndLeaksNothing) {
  const Ends ends = Pair();
  const size_t before = OpenDescriptors();
  SendRaw(ends.a.get(), 0, 2);
  auto packet = Receive(ends.b.get(), true);
  ASSERT_TRUE(packet.ok());
  EXPECT_FALSE(packet->has_value());
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(PacketTest, AFullQueueIsReportedNotWaitedFor) {
  const Ends ends = Pair();
  core::Status sent = core::Ok();
  for (int i = 0; i < 100'000 && sent.ok(); ++i) sent = Send(ends.a.get(), std::string(4096, 'x'));
  EXPECT_EQ(CodeOf(sent), ErrorCode::kTimedOut);
  EXPECT_EQ(CodeOf(WaitWritable(ends.a.get(), Now())), ErrorCode::kTimedOut);
  while (Receive(ends.b.get(), false).ok()) {
  }
  EXPECT_TRUE(WaitWritable(ends.a.get(), Now() + seconds(60)).ok());
  EXPECT_TRUE(Send(ends.a.get(), "x").ok());
}

TEST(PacketTest, WaitsForAPacketUntilTheDeadline) {
  Ends ends = Pair();
  EXPECT_EQ(CodeOf(WaitReadable(ends.b.get(), Now() + std::chrono::milliseconds(2))),
            ErrorCode::kTimedOut);
  Child sender([&] { return Send(ends.a.get(), "x").ok() ? 0 : 1; });
  EXPECT_TRUE(WaitReadable(ends.b.get(), Now() + seconds(60)).ok());
  EXPECT_EQ(sender.Wait(), 0);
  ends.a.reset();
  EXPECT_TRUE(WaitReadable(ends.b.get(), core::kNever).ok());
}

// What a daemon that was killed leaves behind.
void LeaveStale(const std::string& path) {
  Child killed([&] {
    auto dead = Listen(path, 0600, "");
    _exit(dead.ok() ? 0 : 1);
    return 0;
  });
  RAVEN_CHECK(killed.Wait() == 0);
}

TEST(ListenTest, ConnectsAcrossProcesses) {
  const ShortDirectory directory;
  const std::string path = directory / "s";
  auto listener = Listen(path, 0600, "");
  ASSERT_TRUE(listener.ok()) << core::Describe(listener.error());
  EXPECT_EQ(CodeOf(Accept(listener->get())), ErrorCode::kTimedOut);
  Child client([&] {
    auto socket = Connect(path, Now() + seconds(60));
    if (!socket.ok() || !Send(socket->get(), "hello").ok()) return 1;
    auto answer = Receive(socket->get(), true);
    return answer.ok() && *answer && (*answer)->bytes == "welcome" ? 0 : 2;
  });
  ASSERT_TRUE(WaitReadable(listener->get(), Now() + seconds(60)).ok());
  auto accepted = Accept(listener->get());
  ASSERT_TRUE(accepted.ok());
  auto hello = Receive(accepted->get(), true);
  ASSERT_TRUE(hello.ok());
  EXPECT_EQ((*hello)->bytes, "hello");
  EXPECT_TRUE(Send(accepted->get(), "welcome").ok());
  EXPECT_EQ(client.Wait(), 0);
}

TEST(ConnectTest, AUserOutsideTheGroupLearnsWhichItIs) {
  ShortDirectory directory;
  const std::string path = directory / "socket";
  const auto listener = Listen(path, 0, "");
  ASSERT_TRUE(listener.ok());
  const group* own = getgrgid(getegid());
  const std::string name = own != nullptr ? own->gr_name : std::to_string(getegid());
  Child stranger([&] {
    // Without its capabilities root obeys a file's mode as others do.
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[2] = {};
    if (syscall(SYS_capset, &header, none) != 0) return 1;
    const auto refused = Connect(path, Now() + seconds(10));
    if (refused.ok() || refused.error().code != ErrorCode::kPermission) return 2;
    const std::string& words = refused.error().message;
    if (words.find("the group " + name) == std::string::npos) return 3;
    // Into root's group no user is to be put.
    const bool advised = words.find("usermod -aG") != std::string::npos;
    return advised == (getegid() != 0) ? 0 : 4;
  });
  EXPECT_EQ(stranger.Wait(), 0);
}

TEST(ListenTest, GivesTheSocketItsModeAndGroup) {
  const ShortDirectory directory;
  const group* own = getgrgid(getgid());
  const std::string name = own ? own->gr_name : "";
  auto listener = Listen(directory / "s", 0620, name);
  ASSERT_TRUE(listener.ok()) << core::Describe(listener.error());
  struct stat status {};
  ASSERT_EQ(stat((directory / "s").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0620u);
  EXPECT_EQ(status.st_gid, getgid());
}

TEST(ListenTest, ReplacesAStaleSocketOnly) {
  const ShortDirectory directory;
  const std::string path = directory / "s";
  LeaveStale(path);
  ASSERT_TRUE(std::filesystem::exists(path));
  EXPECT_EQ(CodeOf(Connect(path, Now() + seconds(1))), ErrorCode::kUnavailable);
  auto alive = Listen(path, 0600, "");
  ASSERT_TRUE(alive.ok()) << core::Describe(alive.error());
  EXPECT_EQ(CodeOf(Listen(path, 0600, "")), ErrorCode::kUnavailable);
  EXPECT_TRUE(Connect(path, Now() + seconds(1)).ok());
}

TEST(ListenTest, LeavesNothingBehind) {
  const ShortDirectory directory;
  {
    auto listener = Listen(directory / "s", 0600, "");
    ASSERT_TRUE(listener.ok());
    EXPECT_TRUE(std::filesystem::exists(directory / "s.lock"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory / ""));
}

TEST(ListenTest, AClosedListenerStillKeepsOthersFromThePath) {
  const ShortDirectory directory;
  const std::string path = directory / "s";
  std::optional<Listener> first = std::move(*Listen(path, 0600, ""));
  first->Close();
  EXPECT_FALSE(*first);
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(CodeOf(Listen(path, 0600, "")), ErrorCode::kUnavailable);
  first.reset();
  EXPECT_TRUE(Listen(path, 0600, "").ok());
}

TEST(ListenTest, AnothersSocketAtThePathIsNotRemoved) {
  const ShortDirectory directory;
  const std::string path = directory / "s";
  auto first = Listen(path, 0600, "");
  ASSERT_TRUE(first.ok());
  std::filesystem::remove(path);
  std::filesystem::rename(directory / "s.lock", directory / "taken.lock");
  auto second = Listen(path, 0600, "");
  ASSERT_TRUE(second.ok()) << core::Describe(second.error());
  first->Close();
  EXPECT_TRUE(Connect(path, Now() + seconds(1)).ok());
}

TEST(ListenTest, ALockOnTheFolderIsNoHindrance) {
  const ShortDirectory directory;
  const UniqueFd folder(open((directory / "").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(flock(folder.get(), LOCK_EX), 0);
  EXPECT_TRUE(Listen(directory / "s", 0600, "").ok());
}

TEST(ListenTest, TheLockIsForThisUserAlone) {
  const ShortDirectory directory;
  const std::string lock = directory / "s.lock";
  std::ofstream(lock) << "";
  std::filesystem::permissions(lock, std::filesystem::perms::all);
  auto listener = Listen(directory / "s", 0600, "");
  ASSERT_TRUE(listener.ok());
  struct stat status {};
  ASSERT_EQ(stat(lock.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
}

TEST(ListenTest, ALockThatIsNotItsOwnFileIsNamed) {
  const ShortDirectory directory;
  std::ofstream(directory / "other") << "precious";
  std::filesystem::create_symlink(directory / "other", directory / "s.lock");
  auto refused = Listen(directory / "s", 0600, "");
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("s.lock"), std::string::npos) << refused.error().message;
  std::filesystem::remove(directory / "s.lock");
  ASSERT_EQ(mkfifo((directory / "s.lock").c_str(), 0600), 0);
  EXPECT_EQ(CodeOf(Listen(directory / "s", 0600, "")), ErrorCode::kPermission);
  std::filesystem::remove(directory / "s.lock");
  std::ofstream(directory / "s.lock") << "";
  if (chown((directory / "s.lock").c_str(), 12345, 12345) != 0) return;  // only root can say so
  refused = Listen(directory / "s", 0600, "");
  ASSERT_EQ(CodeOf(refused), ErrorCode::kPermission);
  EXPECT_NE(refused.error().message.find("user 12345"), std::string::npos);
}

TEST(ListenTest, LeavesWhatIsNoSocketAlone) {
  const ShortDirectory directory;
  std::ofstream(directory / "s") << "precious";
  EXPECT_EQ(CodeOf(Listen(directory / "s", 0600, "")), ErrorCode::kInvalidArgument);
  EXPECT_EQ(std::filesystem::file_size(directory / "s"), 8u);
}

TEST(ListenTest, LeavesAStreamSocketOfOthersAlone) {
  const ShortDirectory directory;
  const std::string path = directory / "s";
  const UniqueFd other(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(other.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(other.get(), 1), 0);
  EXPECT_EQ(CodeOf(Listen(path, 0600, "")), ErrorCode::kUnavailable);
}

TEST(ListenTest, ExplainsBadArguments) {
  const ShortDirectory directory;
  EXPECT_EQ(CodeOf(Listen("", 0600, "")), ErrorCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(Listen(directory / std::string(108, 'x'), 0600, "")),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(Listen(directory / "s", 0600, "no-such-group-here")),
            ErrorCode::kInvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(directory / "s"));
  EXPECT_EQ(CodeOf(Listen(directory / "missing/s", 0600, "")), ErrorCode::kSystem);
  EXPECT_EQ(CodeOf(Connect(directory / "s", core::kNever)), ErrorCode::kUnavailable);
}

TEST(ListenTest, OfTwoThatStartConcurrentlyOneWins) {
  const ShortDirectory directory;
  const std::string path = directory / "s";
  LeaveStale(path);
  for (int round = 0; round < 50; ++round) {
    core::Result<Listener> one = core::Error{ErrorCode::kSystem, ""};
    core::Result<Listener> two = one.error();
    std::thread first([&] { one = Listen(path, 0600, ""); });
    std::thread second([&] { two = Listen(path, 0600, ""); });
    first.join();
    second.join();
    EXPECT_EQ(one.ok() + two.ok(), 1);
    for (const auto* result : {&one, &two}) {
      if (!result->ok()) {
        EXPECT_EQ(result->error().code, ErrorCode::kUnavailable) << result->error().message;
      }
    }
    EXPECT_TRUE(Connect(path, Now() + seconds(1)).ok());
  }
}

TEST(ConnectTest, WaitsForABusyListenerUntilTheDeadlineOnly) {
  const ShortDirectory directory;
  auto listener = Listen(directory / "s", 0600, "");
  ASSERT_TRUE(listener.ok());
  std::vector<UniqueFd> queued;
  core::Result<UniqueFd> next = core::Error{ErrorCode::kSystem, ""};
  for (int i = 0; i < 10'000; ++i) {
    next = Connect(directory / "s", Now() + std::chrono::milliseconds(20));
    if (!next.ok()) break;
    queued.push_back(std::move(*next));
  }
  EXPECT_EQ(CodeOf(next), ErrorCode::kTimedOut);
}

TEST(PacketTest, SaysWhetherTheNextBringsDescriptorsAndTakesNone) {
  const Ends ends = Pair();
  EXPECT_FALSE(BringsDescriptors(ends.b.get())) << "nothing is there";
  const std::array<int, 1> descriptors{ends.a.get()};
  ASSERT_TRUE(Send(ends.a.get(), "plain").ok());
  ASSERT_TRUE(Send(ends.a.get(), "with one", descriptors).ok());
  EXPECT_FALSE(BringsDescriptors(ends.b.get()));
  ASSERT_TRUE(Receive(ends.b.get(), false).ok());
  EXPECT_TRUE(BringsDescriptors(ends.b.get()));
  EXPECT_TRUE(BringsDescriptors(ends.b.get()));
  const auto packet = Receive(ends.b.get(), false);
  ASSERT_TRUE(packet.ok() && packet->has_value());
  EXPECT_EQ((*packet)->descriptors.size(), 1u);
}

TEST(PacketTest, SaysWhetherThePeerHasReadEverything) {
  const Ends ends = Pair();
  EXPECT_TRUE(IsDrained(ends.a.get()));
  ASSERT_TRUE(Send(ends.a.get(), "one").ok());
  EXPECT_FALSE(IsDrained(ends.a.get()));
  ASSERT_TRUE(Receive(ends.b.get(), false).ok());
  EXPECT_TRUE(IsDrained(ends.a.get()));
}

TEST(PacketTest, SaysWhetherThePeerHasLeft) {
  Ends ends = Pair();
  EXPECT_FALSE(HasLeft(ends.b.get()));
  ASSERT_TRUE(Send(ends.a.get(), "last words").ok());
  ends.a.reset();
  EXPECT_FALSE(HasLeft(ends.b.get())) << "they are to be read first";
  ASSERT_TRUE(Receive(ends.b.get(), false).ok());
  EXPECT_TRUE(HasLeft(ends.b.get()));
}

TEST(PeerTest, NamesTheProcessThatConnected) {
  const ShortDirectory directory;
  auto listener = Listen(directory / "s", 0600, "");
  ASSERT_TRUE(listener.ok());
  Child client([&] {
    auto socket = Connect(directory / "s", Now() + seconds(60));
    if (!socket.ok()) return 1;
    return Receive(socket->get(), true).ok() ? 0 : 2;  // until the test hangs up
  });
  ASSERT_TRUE(WaitReadable(listener->get(), Now() + seconds(60)).ok());
  auto accepted = Accept(listener->get());
  ASSERT_TRUE(accepted.ok());
  auto peer = PeerOf(accepted->get());
  ASSERT_TRUE(peer.ok()) << core::Describe(peer.error());
  EXPECT_EQ(peer->pid, client.pid());
  EXPECT_EQ(peer->uid, getuid());
  EXPECT_EQ(peer->gid, getgid());
  auto started = StartTimeOf(client.pid());
  ASSERT_TRUE(started.ok());
  EXPECT_EQ(peer->start_time, *started);
  EXPECT_GE(*started, *StartTimeOf(getpid()));
  EXPECT_EQ(*ParentOf(client.pid()), getpid());
  EXPECT_EQ(CodeOf(WaitReadable(peer->pidfd.get(), Now())), ErrorCode::kTimedOut);
  accepted->reset();
  EXPECT_EQ(client.Wait(), 0);
  EXPECT_TRUE(WaitReadable(peer->pidfd.get(), Now() + seconds(60)).ok());
}

TEST(PeerTest, ADeadPeerIsSaidToBeDeadEvenIfItsForkHoldsTheSocket) {
  const ShortDirectory directory;
  auto listener = Listen(directory / "s", 0600, "");
  ASSERT_TRUE(listener.ok());
  const Ends life = Pair();
  Child client([&] {
    auto socket = Connect(directory / "s", Now() + seconds(60));
    if (!socket.ok()) return 1;
    if (fork() == 0) {
      // Holds the connection until the test is done.
      static_cast<void>(WaitReadable(life.b.get(), Now() + seconds(60)));
      _exit(0);
    }
    return 0;
  });
  ASSERT_TRUE(WaitReadable(listener->get(), Now() + seconds(60)).ok());
  auto accepted = Accept(listener->get());
  ASSERT_TRUE(accepted.ok());
  EXPECT_EQ(client.Wait(), 0);
  EXPECT_EQ(CodeOf(PeerOf(accepted->get())), ErrorCode::kUnavailable);
  EXPECT_TRUE(Send(life.a.get(), "done").ok());
}

// Makes SO_PEERPIDFD unknown to this process, as on a kernel before 6.5.
bool ForgetPeerPidfd() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getsockopt, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 77, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOPROTOOPT),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(filter), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(PeerTest, OlderKernelsReportTheSame) {
  const ShortDirectory directory;
  auto listener = Listen(directory / "s", 0600, "");
  ASSERT_TRUE(listener.ok());
  auto socket = Connect(directory / "s", Now() + seconds(60));
  ASSERT_TRUE(socket.ok());
  auto accepted = Accept(listener->get());
  ASSERT_TRUE(accepted.ok());
  const pid_t test = getpid();
  Child old_kernel([&] {
    if (!ForgetPeerPidfd()) return 77;
    auto peer = PeerOf(accepted->get());
    if (!peer.ok()) return 1;
    return peer->pid == test && peer->pidfd && peer->start_time == *StartTimeOf(test) ? 0 : 2;
  });
  const int status = old_kernel.Wait();
  if (status == 77) GTEST_SKIP() << "seccomp filters are not allowed here";
  EXPECT_EQ(status, 0);
  // Once the connection is down the number may be somebody else's.
  socket->reset();
  Child hung_up([&] {
    if (!ForgetPeerPidfd()) return 77;
    auto peer = PeerOf(accepted->get());
    return !peer.ok() && peer.error().code == ErrorCode::kUnavailable ? 0 : 1;
  });
  EXPECT_EQ(hung_up.Wait(), 0);
}

TEST(PeerTest, StartTimesAreReadPastStrangeNames) {
  Child named([] {
    const auto before = StartTimeOf(getpid());
    if (prctl(PR_SET_NAME, "a) R 1 2) (3") != 0) return 1;
    const auto after = StartTimeOf(getpid());
    return before.ok() && after.ok() && *before == *after && *before > 0 ? 0 : 2;
  });
  EXPECT_EQ(named.Wait(), 0);
  EXPECT_EQ(CodeOf(StartTimeOf(0x7ffffff0)), ErrorCode::kNotFound);
}

TEST(PeerTest, WhatIsNoSocketHasNoPeer) {
  EXPECT_EQ(CodeOf(PeerOf(-1)), ErrorCode::kSystem);
  const UniqueFd memory(memfd_create("x", MFD_CLOEXEC));
  EXPECT_EQ(CodeOf(PeerOf(memory.get())), ErrorCode::kSystem);
}

}  // namespace
}  // namespace ravenstore::ipc
