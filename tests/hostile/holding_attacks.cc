// One user takes all there is of something, and keeps it.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/hostile/attacks.h"
#include "tests/hostile/raw.h"

namespace ravenstore::hostile {
namespace {

using std::chrono::milliseconds;

// Connections that were welcomed, as many as are to be had.
std::vector<Connection> TakeAll(Scene& scene, bool control_only, size_t most) {
  std::vector<Connection> taken;
  while (taken.size() < most && scene.goes_on()) {
    auto connection = Connection::Open(scene.socket());
    if (!connection.ok()) {
      scene.Refused(connection.error().message);
      break;
    }
    const auto answer = connection->Ask(HelloPacket(control_only));
    if (!answer || !answer->has_welcome()) {
      scene.Refused(answer ? answer->failure().message() : "hung up");
      break;
    }
    taken.push_back(std::move(*connection));
    scene.Did();
  }
  return taken;
}

void Clients(Scene& scene) {
  const auto taken = TakeAll(scene, false, scene.count(10000));
  scene.Ready();
  scene.Hold();
}

void Connections(Scene& scene) {
  const auto taken = TakeAll(scene, true, scene.count(10000));
  scene.Ready();
  scene.Hold();
}

// A place is a process's: this one has children that hold one each.
void LegacyPlaces(Scene& scene) {
  const std::string uuid = FirstDevice(scene.socket());
  std::vector<pid_t> children;
  int ready[2];
  if (::pipe(ready) != 0) return scene.Impossible("no pipe");
  while (children.size() < scene.count(1100) && scene.goes_on()) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      std::string why;
      const auto job = AttachLegacy(scene.socket(), LedgerPage(uuid, 0), &why);
      const char held = job ? 1 : 0;
      [[maybe_unused]] const auto said = ::write(ready[1], &held, 1);
      scene.Hold();
      ::_exit(0);
    }
    if (child < 0) break;
    children.push_back(child);
    char held = 0;
    if (::read(ready[0], &held, 1) != 1 || held == 0) {
      scene.Refused("a place was refused");
      break;
    }
    scene.Did();
  }
  scene.Ready();
  scene.Hold();
  for (const pid_t child : children) ::kill(child, SIGKILL);
  for (const pid_t child : children) ::waitpid(child, nullptr, 0);
}

// Names until they are refused, several under way at a time.
void Names(Scene& scene) {
  auto connection = Connection::Open(scene.socket());
  if (!connection.ok()) return scene.Refused(connection.error().message);
  if (!connection->Ask(HelloPacket(true))) return scene.Refused("hung up");
  const std::string prefix = "held by " + std::to_string(::getpid()) + " ";
  constexpr int kUnderWay = 64;
  bool refused = false;
  for (uint64_t next = 0; !refused && scene.goes_on();) {
    int sent = 0;
    while (sent < kUnderWay && connection->Send(InternPacket(prefix + std::to_string(next + sent))))
      ++sent;
    for (int i = 0; i < sent; ++i, ++next) {
      const auto answer = connection->Receive();
      if (answer && answer->has_name_interned()) {
        scene.Did();
        continue;
      }
      refused = true;
      scene.Refused(answer ? answer->failure().message() : "hung up");
    }
  }
  scene.Ready();
  scene.Hold();
}

void Recording(Scene& scene) {
  const size_t most = scene.count(64);
  std::vector<Connection> open;
  while (open.size() < most && scene.goes_on()) {
    auto taken = TakeAll(scene, true, 1);
    if (taken.empty()) break;
    proto::ClientPacket packet;
    packet.set_request(1);
    packet.mutable_record();
    const auto answer = taken[0].Ask(packet.SerializeAsString());
    if (!answer || !answer->has_recorded()) {
      scene.Refused(answer ? answer->failure().message() : "hung up");
      break;
    }
    scene.Did();
    open.push_back(std::move(taken[0]));
  }
  scene.Ready();
  scene.Hold();
}

// Locks the folder that contains the socket.
void FolderLock(Scene& scene) {
  const std::string folder = scene.socket().substr(0, scene.socket().rfind('/'));
  const ipc::UniqueFd held(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!held || ::flock(held.get(), LOCK_EX | LOCK_NB) != 0)
    return scene.Refused("the folder cannot be locked");
  scene.Did();
  scene.Ready();
  scene.Hold();
}

constexpr Attack kAttacks[] = {
    {"hold_clients", Clients}, {"hold_connections", Connections}, {"hold_places", LegacyPlaces},
    {"hold_names", Names},     {"hold_recording", Recording},     {"hold_folder", FolderLock},
};

}  // namespace

std::span<const Attack> HoldingAttacks() {
  return kAttacks;
}

}  // namespace ravenstore::hostile
