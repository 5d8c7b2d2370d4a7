// Connections: made and closed, silent, and never read.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "client/client.h"
#include "tests/hostile/attacks.h"
#include "tests/hostile/raw.h"

namespace ravenstore::hostile {
namespace {

using std::chrono::milliseconds;

// A connection at the kernel's price: no library, nothing said.
int RawConnect(const std::string& path, int flags) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  const int made = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0);
  if (made < 0) return -1;
  if (::connect(made, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return made;
  ::close(made);
  return -1;
}

void ConnectAndClose(AttackContext& context, int flags) {
  context.Ready();
  while (context.running()) {
    const int made = RawConnect(context.socket(), flags);
    if (made < 0) {
      context.Refused(std::strerror(errno));
      continue;
    }
    ::close(made);
    context.AddDone();
  }
}

// Says nothing on as many connections as it is left, and comes again when it is sent away.
void Silent(AttackContext& context) {
  const size_t most = context.count(4000);
  std::vector<int> open;
  while (context.running()) {
    std::erase_if(open, [](int socket) {
      pollfd look{socket, POLLIN, 0};
      const bool over = ::poll(&look, 1, 0) > 0;  // an answer it did not ask for, or a hang-up
      if (over) ::close(socket);
      return over;
    });
    bool refused = false;
    while (open.size() < most && !refused) {
      const int made = RawConnect(context.socket(), SOCK_NONBLOCK);
      refused = made < 0;
      if (!refused) open.push_back(made);
      context.AddDone(refused ? 0 : 1);
    }
    context.Ready();
    context.Pause(milliseconds(20));
  }
}

// Asks until the socket takes no more, and reads nothing; then the oldest is left for a new one.
void NeverReads(AttackContext& context) {
  const size_t most = context.count(256);
  proto::ClientPacket packet;
  packet.set_request(1);
  packet.mutable_stats()->set_whole_store(true);
  const std::string question = packet.SerializeAsString();
  std::vector<Connection> open;
  size_t next = 0;
  while (context.running()) {
    auto connection = Connection::Open(context.socket());
    if (!connection.ok()) {
      context.Refused(connection.error().message);
      context.Pause(milliseconds(1));
      continue;
    }
    connection->Send(HelloPacket(true));
    while (connection->Send(question)) context.AddDone();
    if (open.size() < most) {
      open.push_back(std::move(*connection));
    } else {
      context.Ready();
      open[next++ % most] = std::move(*connection);
    }
  }
}

// Attaches and never reads the welcome, whose descriptors stay under way.
void WelcomesUnread(AttackContext& context) {
  const size_t most = context.count(600);
  std::vector<Connection> open;
  while (open.size() < most && context.running()) {
    auto connection = Connection::Open(context.socket());
    if (!connection.ok()) {
      context.Refused(connection.error().message);
      break;
    }
    if (connection->Send(HelloPacket(false))) context.AddDone();
    open.push_back(std::move(*connection));
  }
  context.Ready();
  context.Hold();
}

// Attaches and leaves, at the highest rate that one process has.
void Attaches(AttackContext& context) {
  while (context.running()) {
    try {
      const Store store = Store::connect({.socket = context.socket(), .name = "attacker"});
      context.AddDone();
    } catch (const Error& error) {
      context.Refused(error.what());
    }
    context.Ready();
  }
}

constexpr Attack kAttacks[] = {
    {"connect_close", [](AttackContext& context) { ConnectAndClose(context, 0); }},
    {"connect_close_nonblocking",
     [](AttackContext& context) { ConnectAndClose(context, SOCK_NONBLOCK); }},
    {"silent", Silent},
    {"never_reads", NeverReads},
    {"welcomes_unread", WelcomesUnread},
    {"attaches", Attaches},
};

}  // namespace

std::span<const Attack> ConnectionAttacks() {
  return kAttacks;
}

}  // namespace ravenstore::hostile
