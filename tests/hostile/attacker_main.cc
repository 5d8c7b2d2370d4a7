// A hostile user's process.
//
//     attacker --socket PATH --seconds S [--count N] ATTACK
//
// It prints "ready" once the attack is under way, and at its end one JSON object: how often it did
// what it does, what it was refused with, and why it could not be done here, if that is so.
#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "ipc/clock.h"
#include "tests/hostile/attacks.h"

namespace ravenstore::hostile {
namespace {

std::vector<Attack> All() {
  std::vector<Attack> all;
  for (const auto attacks : {ConnectionAttacks(), HoldingAttacks(), LegacyAttacks(),
                             MessageAttacks(), StoreAttacks(), StallingAttacks()})
    all.insert(all.end(), attacks.begin(), attacks.end());
  return all;
}

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c < ' ' ? ' ' : c;
  }
  return out;
}

int Main(int argc, char** argv) {
  CLI::App app("A hostile user.");
  std::string socket;
  std::string name;
  double seconds = 3;
  uint64_t count = 0;
  app.add_option("--socket", socket)->required();
  app.add_option("--seconds", seconds);
  app.add_option("--count", count);
  app.add_option("attack", name)->required();
  CLI11_PARSE(app, argc, argv);
  ::signal(SIGPIPE, SIG_IGN);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  for (const Attack& attack : All()) {
    if (attack.name != name) continue;
    const auto length =
        std::chrono::duration_cast<core::Duration>(std::chrono::duration<double>(seconds));
    AttackContext context(socket, ipc::Now() + length, count);
    attack.run(context);
    context.Ready();
    std::printf("{\"did\": %llu, \"refused\": \"%s\", \"impossible\": \"%s\"}\n",
                static_cast<unsigned long long>(context.done()), Escaped(context.refused()).c_str(),
                Escaped(context.impossible()).c_str());
    return 0;
  }
  std::fprintf(stderr, "there is no attack %s; there are:", name.c_str());
  for (const Attack& attack : All()) std::fprintf(stderr, " %s", attack.name);
  std::fprintf(stderr, "\n");
  return 2;
}

}  // namespace
}  // namespace ravenstore::hostile

int main(int argc, char** argv) {
  return ravenstore::hostile::Main(argc, argv);
}
