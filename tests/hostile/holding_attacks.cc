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
std::vector<Connection> TakeAll(AttackContext& context, bool control_only, size_t most) {
  std::vector<Connection> taken;
  while (taken.size() < most && context.running()) {
    auto connection = Connection::Open(context.socket());
    if (!connection.ok()) {
      context.Refused(connection.error().message);
      break;
    }
    const auto answer = connection->Ask(HelloPacket(control_only));
    if (!answer || !answer->has_welcome()) {
      context.Refused(answer ? answer->failure().message() : "hung up");
      break;
    }
    taken.push_back(std::move(*connection));
    context.AddDone();
  }
  return taken;
}

void Clients(AttackContext& context) {
  const auto taken = TakeAll(context, false, context.count(10000));
  context.Ready();
  context.Hold();
}

void Connections(AttackContext& context) {
  const auto taken = TakeAll(context, true, context.count(10000));
  context.Ready();
  context.Hold();
}

// A place is a process's: this one has children that hold one each.
void LegacyPlaces(AttackContext& context) {
  const std::string uuid = FirstDevice(context.socket());
  std::vector<pid_t> children;
  int ready[2];
  if (::pipe(ready) != 0) return context.Impossible("no pipe");
  while (children.size() < context.count(1100) && context.running()) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      std::string why;
      const auto job = AttachLegacy(context.socket(), LedgerPage(uuid, 0), &why);
      const char held = job ? 1 : 0;
      [[maybe_unused]] const auto said = ::write(ready[1], &held, 1);
      context.Hold();
      ::_exit(0);
    }
    if (child < 0) break;
    children.push_back(child);
    char held = 0;
    if (::read(ready[0], &held, 1) != 1 || held == 0) {
      context.Refused("a place was refused");
      break;
    }
    context.AddDone();
  }
  context.Ready();
  context.Hold();
  for (const pid_t child : children) ::kill(child, SIGKILL);
  for (const pid_t child : children) ::waitpid(child, nullptr, 0);
}

// Names until they are refused, several under way at a time.
void Names(AttackContext& context) {
  auto connection = Connection::Open(context.socket());
  if (!connection.ok()) return context.Refused(connection.error().message);
  if (!connection->Ask(HelloPacket(true))) return context.Refused("hung up");
  const std::string prefix = "held by " + std::to_string(::getpid()) + " ";
  constexpr int kUnderWay = 64;
  bool refused = false;
  for (uint64_t next = 0; !refused && context.running();) {
    int sent = 0;
    while (sent < kUnderWay && connection->Send(InternPacket(prefix + std::to_string(next + sent))))
      ++sent;
    for (int i = 0; i < sent; ++i, ++next) {
      const auto answer = connection->Receive();
      if (answer && answer->has_name_interned()) {
        context.AddDone();
        continue;
      }
      refused = true;
      context.Refused(answer ? answer->failure().message() : "hung up");
    }
  }
  context.Ready();
  context.Hold();
}

void Recording(AttackContext& context) {
  const size_t most = context.count(64);
  std::vector<Connection> open;
  while (open.size() < most && context.running()) {
    auto taken = TakeAll(context, true, 1);
    if (taken.empty()) break;
    proto::ClientPacket packet;
    packet.set_request(1);
    packet.mutable_record();
    const auto answer = taken[0].Ask(packet.SerializeAsString());
    if (!answer || !answer->has_recorded()) {
      context.Refused(answer ? answer->failure().message() : "hung up");
      break;
    }
    context.AddDone();
    open.push_back(std::move(taken[0]));
  }
  context.Ready();
  context.Hold();
}

// Locks the folder that contains the socket.
void FolderLock(AttackContext& context) {
  const std::string folder = context.socket().substr(0, context.socket().rfind('/'));
  const ipc::UniqueFd held(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!held || ::flock(held.get(), LOCK_EX | LOCK_NB) != 0)
    return context.Refused("the folder cannot be locked");
  context.AddDone();
  context.Ready();
  context.Hold();
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
