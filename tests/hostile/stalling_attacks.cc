// Descriptors and pages that let who touches them wait for ever.
#include <fcntl.h>
#include <linux/fuse.h>
#include <linux/userfaultfd.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "client/client.h"
#include "tests/hostile/attacks.h"
#include "tests/hostile/raw.h"

namespace ravenstore::hostile {
namespace {

using std::chrono::milliseconds;

// A socket whose last close takes an hour: what it sent is never read, and it lingers for that.
struct Lingering {
  ipc::UniqueFd end;
  ipc::UniqueFd other;
};

Lingering MakeLingering() {
  Lingering made;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* name = reinterpret_cast<sockaddr*>(&address);
  const ipc::UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::bind(listener.get(), name, size) != 0 || ::listen(listener.get(), 1) != 0 ||
      ::getsockname(listener.get(), name, &size) != 0)
    return {};
  made.end.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(made.end.get(), name, size) != 0) return {};
  made.other.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const std::string bytes(KiB(64), 'x');
  while (::send(made.end.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
  }
  const linger hour{1, 3600};
  ::setsockopt(made.end.get(), SOL_SOCKET, SO_LINGER, &hour, sizeof(hour));
  return made;
}

// Sends one along on each connection, and leaves their last close to the daemon. Behind them comes
// connection after connection, with a descriptor that is closed as soon as its turn is.
void Linger(AttackContext& context) {
  std::vector<Lingering> jams;
  const uint64_t most = context.count(64);
  const ipc::UniqueFd harmless(::memfd_create("harmless", MFD_CLOEXEC));
  while (context.running()) {
    auto connection = Connection::Open(context.socket());
    if (!connection.ok()) {
      context.Refused(connection.error().message);
      context.Pause(milliseconds(1));
      continue;
    }
    if (jams.size() < most) {
      jams.push_back(MakeLingering());
      if (jams.back().end) connection->Send(HelloPacket(true), {jams.back().end.get()});
      jams.back().end.reset();
    } else {
      connection->Send(HelloPacket(true), {harmless.get()});
    }
    context.AddDone();
    if (context.done() == 8) context.Ready();
  }
}

// A page of this process that is never filled, also for the kernel. Owns: both.
struct NeverFilled {
  ipc::UniqueFd faults;
  void* page = MAP_FAILED;
};

NeverFilled MakeNeverFilled(std::string* why) {
  NeverFilled made;
  made.faults.reset(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC)));
  if (!made.faults) {
    *why = std::string("userfaultfd for the kernel's faults: ") + std::strerror(errno);
    return made;
  }
  uffdio_api api{.api = UFFD_API, .features = 0, .ioctls = 0};
  made.page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  uffdio_register range{};
  range.range = {reinterpret_cast<uint64_t>(made.page), 4096};
  range.mode = UFFDIO_REGISTER_MODE_MISSING;
  if (::ioctl(made.faults.get(), UFFDIO_API, &api) != 0 || made.page == MAP_FAILED ||
      ::ioctl(made.faults.get(), UFFDIO_REGISTER, &range) != 0)
    *why = std::string("userfaultfd: ") + std::strerror(errno);
  return made;
}

// Writes `file` from that page: the write holds the file's lock, and never ends.
void StallWrites(int file, const NeverFilled& source) {
  std::thread([file, page = source.page] {
    iovec from{page, 8};
    [[maybe_unused]] const auto written = ::pwritev(file, &from, 1, 2048);
  }).detach();
}

// Stalls writes to its own page and to its tenant's, while other jobs of the user come and go, and
// its visible memory is asked after.
void PageStalled(AttackContext& context) {
  std::string why;
  const NeverFilled source = MakeNeverFilled(&why);
  if (!why.empty()) return context.Impossible(why);
  const std::string uuid = FirstDevice(context.socket());
  const ipc::UniqueFd page = LedgerPage(uuid, 0);
  ipc::UniqueFd tenant_page;
  const auto job = AttachLegacy(context.socket(), page, &why, &tenant_page);
  if (!job) return context.Refused(why);
  StallWrites(page.get(), source);
  StallWrites(tenant_page.get(), source);
  context.Pause(milliseconds(50));  // until they are in the write
  context.Ready();
  while (context.running()) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::_exit(AttachLegacy(context.socket(), LedgerPage(uuid, 0), &why) ? 0 : 1);
    }
    int status = 0;
    while (context.running() && ::waitpid(child, &status, WNOHANG) == 0)
      context.Pause(milliseconds(1));
    if (!context.running()) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
    context.AddDone();
  }
}

// Answers what a mount needs to open its one file, and nothing else: each other touch of the file,
// its last close too, waits for ever.
void ServeStalling(int device) {
  std::array<char, 1 << 17> buffer;
  for (;;) {
    const auto size = ::read(device, buffer.data(), buffer.size());
    if (size < static_cast<ssize_t>(sizeof(fuse_in_header))) return;
    fuse_in_header in{};
    std::memcpy(&in, buffer.data(), sizeof(in));
    if (in.opcode != FUSE_INIT && in.opcode != FUSE_OPEN) continue;
    fuse_init_out init{};
    init.major = FUSE_KERNEL_VERSION;
    init.minor = 31;
    init.max_write = 4096;
    const fuse_open_out opened{};
    fuse_out_header out{};
    out.unique = in.unique;
    const bool greets = in.opcode == FUSE_INIT;
    iovec parts[] = {{&out, sizeof(out)},
                     {greets ? static_cast<void*>(&init) : const_cast<fuse_open_out*>(&opened),
                      greets ? sizeof(init) : sizeof(opened)}};
    out.len = static_cast<uint32_t>(parts[0].iov_len + parts[1].iov_len);
    if (::writev(device, parts, 2) < 0) return;
  }
}

// A file that stalls, in a mount that no other process sees.
constexpr const char* kStalling = "/media/stalling";

bool WriteFile(const char* path, const std::string& text) {
  const ipc::UniqueFd file(::open(path, O_WRONLY | O_CLOEXEC));
  return file && ::write(file.get(), text.data(), text.size()) > 0;
}

// Enters a mount namespace of its own, as its root there.
bool Unshare() {
  const uid_t uid = ::getuid();
  const gid_t gid = ::getgid();
  if (::unshare(uid == 0 ? CLONE_NEWNS : CLONE_NEWNS | CLONE_NEWUSER) != 0) return false;
  if (uid == 0) return true;
  return WriteFile("/proc/self/setgroups", "deny") &&
         WriteFile("/proc/self/uid_map", "0 " + std::to_string(uid) + " 1") &&
         WriteFile("/proc/self/gid_map", "0 " + std::to_string(gid) + " 1");
}

// False: `*why`.
bool MountStalling(std::string* why) {
  // The device is opened in the namespace that is to mount it.
  const bool apart = Unshare();
  const int device = ::open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (device < 0) {
    *why = std::string("/dev/fuse: ") + std::strerror(errno);
    return false;
  }
  const std::string options =
      "fd=" + std::to_string(device) + ",rootmode=100644,user_id=0,group_id=0";
  if (!apart || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("none", "/media", "tmpfs", 0, nullptr) != 0 ||
      ::mknod(kStalling, S_IFREG | 0644, 0) != 0 ||
      ::mount("stalling", kStalling, "fuse", MS_NOSUID | MS_NODEV, options.c_str()) != 0) {
    *why = std::string("a FUSE mount: ") + std::strerror(errno);
    return false;
  }
  // Another process serves the device, and this one closes it: a kill of both ends the mount, and
  // with it every wait for the file.
  if (::fork() == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ServeStalling(device);
    ::_exit(0);
  }
  ::close(device);
  return true;
}

// Sends a stalling file as a page and with other messages, too many at the same time.
void StallingFile(AttackContext& context) {
  std::string why;
  if (!MountStalling(&why)) return context.Impossible(why);
  const uint64_t most = context.count(64);
  while (context.running()) {
    auto connection = Connection::Open(context.socket());
    if (!connection.ok()) {
      context.Refused(connection.error().message);
      context.Pause(milliseconds(1));
      continue;
    }
    if (context.done() < most) {
      const int stalls = ::open(kStalling, O_RDWR | O_CLOEXEC);
      if (stalls < 0) return context.Impossible(std::string("open: ") + std::strerror(errno));
      connection->Send(context.done() % 2 == 0 ? LegacyHelloPacket() : HelloPacket(true), {stalls});
      // Its own close would wait, too.
      std::thread([stalls] { ::close(stalls); }).detach();
    } else {
      context.Pause(milliseconds(1));
    }
    context.AddDone();
    if (context.done() == 8) context.Ready();
  }
  ::umount2(kStalling, MNT_FORCE);  // whatever waits for it goes on
}

constexpr Attack kAttacks[] = {
    {"linger", Linger},
    {"page_stalled", PageStalled},
    {"stalling_file", StallingFile},
};

}  // namespace

std::span<const Attack> StallingAttacks() {
  return kAttacks;
}

}  // namespace ravenstore::hostile
