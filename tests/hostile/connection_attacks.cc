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

void ConnectAndClose(Scene& scene, int flags) {
  scene.Ready();
  while (scene.goes_on()) {
    const int made = RawConnect(scene.socket(), flags);
    if (made < 0) {
      scene.Refused(std::strerror(errno));
      continue;
    }
    ::close(made);
    scene.Did();
  }
}

// Says nothing on as many connections as it is left, and comes again when it is sent away.
void Silent(Scene& scene) {
  const size_t most = scene.count(4000);
  std::vector<int> open;
  while (scene.goes_on()) {
    std::erase_if(open, [](int socket) {
      pollfd look{socket, POLLIN, 0};
      const bool over = ::poll(&look, 1, 0) > 0;  // an answer it did not ask for, or a hang-up
      if (over) ::close(socket);
      return over;
    });
    bool refused = false;
    while (open.size() < most && !refused) {
      const int made = RawConnect(scene.socket(), SOCK_NONBLOCK);
      refused = made < 0;
      if (!refused) open.push_back(made);
      scene.Did(refused ? 0 : 1);
    }
    scene.Ready();
    scene.Pause(milliseconds(20));
  }
}

// Asks until the socket takes no more, and reads nothing; then the oldest is left for a new one.
void NeverReads(Scene& scene) {
  const size_t most = scene.count(256);
  proto::ClientPacket packet;
  packet.set_request(1);
  packet.mutable_stats()->set_whole_store(true);
  const std::string question = packet.SerializeAsString();
  std::vector<Connection> open;
  size_t next = 0;
  while (scene.goes_on()) {
    auto connection = Connection::Open(scene.socket());
    if (!connection.ok()) {
      scene.Refused(connection.error().message);
      scene.Pause(milliseconds(1));
      continue;
    }
    connection->Send(HelloPacket(true));
    while (connection->Send(question)) scene.Did();
    if (open.size() < most) {
      open.push_back(std::move(*connection));
    } else {
      scene.Ready();
      open[next++ % most] = std::move(*connection);
    }
  }
}

// Attaches and never reads the welcome, whose descriptors stay under way.
void WelcomesUnread(Scene& scene) {
  const size_t most = scene.count(600);
  std::vector<Connection> open;
  while (open.size() < most && scene.goes_on()) {
    auto connection = Connection::Open(scene.socket());
    if (!connection.ok()) {
      scene.Refused(connection.error().message);
      break;
    }
    if (connection->Send(HelloPacket(false))) scene.Did();
    open.push_back(std::move(*connection));
  }
  scene.Ready();
  scene.Hold();
}

// Attaches and leaves, at the highest rate that one process has.
void Attaches(Scene& scene) {
  while (scene.goes_on()) {
    try {
      const Store store = Store::connect({.socket = scene.socket(), .name = "attacker"});
      scene.Did();
    } catch (const Error& error) {
      scene.Refused(error.what());
    }
    scene.Ready();
  }
}

constexpr Attack kAttacks[] = {
    {"connect_close", [](Scene& scene) { ConnectAndClose(scene, 0); }},
    {"connect_close_nonblocking", [](Scene& scene) { ConnectAndClose(scene, SOCK_NONBLOCK); }},
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
