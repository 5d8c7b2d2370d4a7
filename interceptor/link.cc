#include "interceptor/link.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "interceptor/devices.h"
#include "interceptor/settings.h"
#include "interceptor/tenant.h"
#include "ipc/daemon_user.h"
#include "ipc/program_name.h"
#include "proto/layout.h"
#include "proto/packet.h"
#include "proto/version.h"

namespace ravenstore::interceptor::link {
namespace {

constexpr int kAttachTimeoutMs = 2000;
constexpr int kReclaimTimeoutMs = 15000;
constexpr int kRetryMs = 250;
constexpr size_t kPacketMax = 512;

// Field numbers of proto/control.proto.
constexpr uint32_t kRequestField = 1;
constexpr uint32_t kHelloField = 30;
constexpr uint32_t kReclaimField = 31;
constexpr uint32_t kElasticField = 33;
constexpr uint32_t kWaitField = 35;
constexpr uint32_t kFailureField = 2;
constexpr uint32_t kWelcomeField = 30;
constexpr uint32_t kReclaimedField = 31;
constexpr uint32_t kTurnField = 35;

constinit pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
constinit std::atomic<int> socket_descriptor{-1};
constinit std::atomic<bool> thread_runs{false};
// Which socket it was: a job that closes every descriptor may have another under its number.
constinit ino_t socket_inode = 0;
constinit bool said_absent = false;
constinit std::atomic<bool> said_stranger{false};

// Messages of protobuf's wire format in a buffer on the stack; no library of it may be here.
struct Writer {
  char bytes[kPacketMax];
  size_t size = 0;

  void Byte(uint64_t value) {
    if (size < sizeof(bytes)) bytes[size++] = static_cast<char>(value);
  }
  void Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) Byte(value | 0x80);
    Byte(value);
  }
  void Number(uint32_t field, uint64_t value) {
    Varint(field << 3);
    Varint(value);
  }
  void Text(uint32_t field, const char* text, size_t length) {
    Varint(field << 3 | 2);
    Varint(length);
    for (size_t i = 0; i < length; ++i) Byte(static_cast<unsigned char>(text[i]));
  }
};

bool ReadVarint(const char** at, const char* end, uint64_t* value) {
  *value = 0;
  for (int shift = 0; shift < 64 && *at < end; shift += 7) {
    const auto byte = static_cast<unsigned char>(*(*at)++);
    *value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

// The first field `wanted` among [begin, end): its number, or its bytes.
bool FindField(const char* begin, const char* end, uint32_t wanted, uint64_t* number,
               const char** bytes, const char** bytes_end) {
  while (begin < end) {
    uint64_t tag = 0;
    uint64_t value = 0;
    if (!ReadVarint(&begin, end, &tag)) return false;
    const auto type = static_cast<uint32_t>(tag & 7);
    if (type != 0 && type != 2) return false;
    if (!ReadVarint(&begin, end, &value)) return false;
    if (type == 2 && value > static_cast<uint64_t>(end - begin)) return false;
    if (tag >> 3 == wanted) {
      *number = type == 0 ? value : 0;
      *bytes = begin;
      *bytes_end = type == 2 ? begin + value : begin;
      return true;
    }
    if (type == 2) begin += value;
  }
  return false;
}

int Connect() {
  const char* path = Asked().socket;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (*path == 0 || strlen(path) >= sizeof(address.sun_path)) return -1;
  strcpy(address.sun_path, path);
  const int made = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (made < 0) return -1;
  char why[512] = {};
  if (connect(made, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    if (ipc::TrustsListener(made, path, why, sizeof(why))) return made;
    if (!said_stranger.exchange(true)) Log("no daemon: %s", why);
  }
  close(made);
  return -1;
}

bool Send(int to, const Writer& packet, int descriptor) {
  iovec bytes{const_cast<char*>(packet.bytes), packet.size};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  return sendmsg(to, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(packet.size);
}

int64_t NowMs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

// recv with the descriptor that came along, or -1; others are closed.
ssize_t ReceiveOnce(int from, char* bytes, size_t room, int* descriptor) {
  iovec into{bytes, room};
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &into;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t size = recvmsg(from, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  *descriptor = -1;
  cmsghdr* header = size < 0 ? nullptr : CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return size;
  const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
  for (size_t i = 0; i < count; ++i) {
    int one = -1;
    memcpy(&one, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
    if (i == 0) {
      *descriptor = one;
    } else {
      close(one);
    }
  }
  return size;
}

// The next packet, by `deadline` of NowMs; its length, or 0. The descriptor is the caller's to
// close.
size_t Receive(int from, char* bytes, size_t room, int64_t deadline, int* descriptor) {
  for (;;) {
    const int64_t left = deadline - NowMs();
    pollfd wait{from, POLLIN, 0};
    const int ready = left <= 0 ? 0 : poll(&wait, 1, static_cast<int>(left));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return 0;
    const ssize_t size = ReceiveOnce(from, bytes, room, descriptor);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    return size > 0 ? static_cast<size_t>(size) : 0;
  }
}

ino_t InodeOf(int descriptor) {
  struct stat status {};
  return fstat(descriptor, &status) == 0 && S_ISSOCK(status.st_mode) ? status.st_ino : 0;
}

void WriteHello(Writer* packet) {
  Writer hello;
  hello.Number(1, proto::kProtocolVersion);
  char name[200];
  hello.Text(2, name, ipc::ProgramName(name, sizeof(name)));
  const char* mode = NameOf(Asked().mode);
  hello.Text(3, mode, strlen(mode));
  hello.Text(4, proto::kVersion, strlen(proto::kVersion));
  hello.Text(5, Asked().job, strlen(Asked().job));
  hello.Number(6, Asked().run);
  packet->Number(kRequestField, 1);
  packet->Text(kHelloField, hello.bytes, hello.size);
}

// What the daemon said to who we are; false: nothing that can be used.
bool TakeWelcome(const char* begin, const char* end, int tenants_page) {
  uint64_t number = 0;
  if (!FindField(begin, end, kWelcomeField, &number, &begin, &end)) return false;
  uint64_t client = 0;
  uint64_t slot = 0;
  const char* none = nullptr;
  FindField(begin, end, 1, &client, &none, &none);
  FindField(begin, end, 2, &slot, &none, &none);
  tenant::Join(tenants_page, static_cast<uint32_t>(slot), *Page());
  Log("attached to the daemon as job %llu", static_cast<unsigned long long>(client));
  return true;
}

// Hands over the page on which engines show themselves. On a connection of its own, so that a
// daemon that does not know it loses nothing but that.
void SendElasticPage() {
  const int page = ElasticPageDescriptor();
  const int made = page < 0 ? -1 : Connect();
  if (made < 0) return;
  Writer packet;
  packet.Text(kElasticField, "", 0);
  Send(made, packet, page);
  close(made);
}

// REQUIRES: mutex is held, and there is no socket.
bool Attach() {
  if (PageDescriptor() < 0) return false;
  const int made = Connect();
  if (made < 0) return false;
  Writer packet;
  WriteHello(&packet);
  char answer[kPacketMax];
  size_t size = 0;
  int tenants_page = -1;
  if (Send(made, packet, PageDescriptor())) {
    size = Receive(made, answer, sizeof(answer), NowMs() + kAttachTimeoutMs, &tenants_page);
  }
  const bool welcome = TakeWelcome(answer, answer + size, tenants_page);
  if (tenants_page >= 0) close(tenants_page);
  if (!welcome) {
    close(made);
    return false;
  }
  socket_inode = InodeOf(made);
  socket_descriptor.store(made);
  SendElasticPage();
  return true;
}

// The daemon never writes here again: whatever can be read is its end.
bool StillThere(int descriptor) {
  if (InodeOf(descriptor) != socket_inode) return false;
  char byte = 0;
  const ssize_t size = recv(descriptor, &byte, 1, MSG_DONTWAIT);
  return size > 0 || (size < 0 && (errno == EAGAIN || errno == EINTR));
}

void LoseSocket() {
  const int old = socket_descriptor.exchange(-1);
  // Another's descriptor under our number is not ours to close.
  if (old >= 0 && InodeOf(old) == socket_inode) close(old);
  // Nothing else could end a pause.
  for (proto::LedgerRow& row : Page()->row) row.paused.store(0);
}

void Watch() {
  const int descriptor = socket_descriptor.load();
  pollfd wait{descriptor, POLLIN, 0};
  if (descriptor >= 0) {
    poll(&wait, 1, kRetryMs);
  } else {
    timespec nap{0, kRetryMs * 1000000L};
    nanosleep(&nap, nullptr);
  }
  pthread_mutex_lock(&mutex);
  if (descriptor >= 0 && !StillThere(descriptor)) {
    Log("the daemon is gone");
    LoseSocket();
  }
  if (socket_descriptor.load() < 0) Attach();
  tenant::Commit();
  pthread_mutex_unlock(&mutex);
}

void* Run(void*) {
  pthread_setname_np(pthread_self(), "raven-link");
  for (;;) Watch();
  return nullptr;
}

void StartThread() {
  if (thread_runs.exchange(true)) return;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  // Of the size of the program's: the variables that its threads have of their own come out of it.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  if (pthread_create(&thread, &attributes, Run, nullptr) != 0) thread_runs.store(false);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
}

}  // namespace

void Begin() {
  if (PageDescriptor() < 0) return;
  pthread_mutex_lock(&mutex);
  if (socket_descriptor.load() < 0 && !Attach() && !said_absent) {
    said_absent = true;
    if (!said_stranger.load()) Log("no daemon at %s: the job runs without one", Asked().socket);
  }
  pthread_mutex_unlock(&mutex);
  StartThread();
}

bool Attached() {
  return socket_descriptor.load(std::memory_order_relaxed) >= 0;
}

int64_t ReclaimDeadline() {
  return NowMs() + kReclaimTimeoutMs;
}

bool Reclaim(int row, uint64_t bytes, int64_t deadline) {
  if (row < 0 || !Attached() || NowMs() >= deadline) return false;
  // A connection of its own: no other request can receive its answer.
  const int made = Connect();
  if (made < 0) return false;
  const char* uuid = Page()->row[row].uuid;
  Writer reclaim;
  reclaim.Text(1, uuid, strnlen(uuid, sizeof(Page()->row[row].uuid)));
  reclaim.Number(2, bytes);
  Writer packet;
  packet.Number(kRequestField, 1);
  packet.Text(kReclaimField, reclaim.bytes, reclaim.size);
  char answer[kPacketMax];
  size_t size = 0;
  int none = -1;
  if (Send(made, packet, -1)) size = Receive(made, answer, sizeof(answer), deadline, &none);
  if (none >= 0) close(none);
  close(made);
  uint64_t number = 0;
  uint64_t given = 0;
  const char* begin = nullptr;
  const char* end = nullptr;
  if (FindField(answer, answer + size, kReclaimedField, &number, &begin, &end)) {
    const char* nothing = nullptr;
    FindField(begin, end, 1, &given, &nothing, &nothing);
  }
  Log("asked the store for %llu bytes of %s: it gave %llu", static_cast<unsigned long long>(bytes),
      uuid, static_cast<unsigned long long>(given));
  return given != 0;
}

Place TakePlace(int row, uint64_t bytes) {
  if (row < 0 || !Attached()) return {};
  const int made = Connect();
  if (made < 0) return {};
  const char* uuid = Page()->row[row].uuid;
  Writer wait;
  wait.Text(1, uuid, strnlen(uuid, sizeof(Page()->row[row].uuid)));
  wait.Number(2, bytes);
  Writer packet;
  packet.Number(kRequestField, 1);
  packet.Text(kWaitField, wait.bytes, wait.size);
  if (Send(made, packet, -1)) return {made, InodeOf(made)};
  close(made);
  return {};
}

News AwaitNews(const Place& place, int milliseconds) {
  News news;
  pollfd wait{place.descriptor, POLLIN, 0};
  if (poll(&wait, 1, milliseconds) == 0) return news;
  strcpy(news.why, "the daemon is gone");
  news.kind = News::kOver;
  if (InodeOf(place.descriptor) != place.inode) return news;
  char packet[kPacketMax];
  int none = -1;
  const ssize_t size = ReceiveOnce(place.descriptor, packet, sizeof(packet), &none);
  if (none >= 0) close(none);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) news.kind = News::kNone;
  if (size <= 0) return news;
  uint64_t number = 0;
  const char* begin = nullptr;
  const char* end = nullptr;
  const char* nothing = nullptr;
  if (FindField(packet, packet + size, kTurnField, &number, &begin, &end)) {
    FindField(begin, end, 1, &news.position, &nothing, &nothing);
    FindField(begin, end, 2, &news.bytes, &nothing, &nothing);
    news.kind = news.position == 0 ? News::kTurn : News::kMoved;
  } else if (FindField(packet, packet + size, kFailureField, &number, &begin, &end) &&
             FindField(begin, end, 2, &number, &begin, &end)) {
    const auto length = std::min(static_cast<size_t>(end - begin), sizeof(news.why) - 1);
    memcpy(news.why, begin, length);
    news.why[length] = 0;
  }
  return news;
}

void LeavePlace(const Place& place) {
  if (InodeOf(place.descriptor) == place.inode) close(place.descriptor);
}

void ForgetInChild() {
  mutex = PTHREAD_MUTEX_INITIALIZER;
  // Close-on-exec does not help a child that goes on. The number may be the program's since.
  const int old = socket_descriptor.exchange(-1);
  if (old >= 0 && InodeOf(old) == socket_inode) close(old);
  thread_runs.store(false);
  said_absent = false;
  said_stranger.store(false);
}

}  // namespace ravenstore::interceptor::link
