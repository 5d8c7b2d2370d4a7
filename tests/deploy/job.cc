// A user's process for systemd_test.py.
//
//   job          reads commands, a word a line, and answers each with one line: "OK", "OK WORDS",
//                or the error's name and its words
//   job flood N  holds N connections that never say a word, then connects and hangs up until its
//                standard input ends; says "holding N", then "connected M times"
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "client/client.h"
#include "ipc/clock.h"
#include "ipc/socket.h"
#include "ipc/unique_fd.h"
#include "tests/timing/timing.h"

namespace {

using ravenstore::Error;
using ravenstore::MiB;
using ravenstore::Store;
using ravenstore::Tensor;

constexpr std::chrono::seconds kTimeout{20};
constexpr unsigned char kPattern = 0x5a;

struct Job {
  Store store;
  Tensor tensor;
};

void Attach(Job* job) {
  job->tensor = {};
  job->store = {};
  job->store = Store::connect({.name = "job", .timeout = kTimeout});
}

void Create(Job* job) {
  job->tensor = job->store.create(MiB(1), {.name = "weights"});
  std::memset(job->tensor.data(), kPattern, job->tensor.size());
  job->store.put(job->tensor, nullptr);
}

void Get(Job* job) {
  const auto* bytes =
      static_cast<const unsigned char*>(job->store.get(job->tensor, nullptr, {.blocking = true}));
  const bool same = std::all_of(bytes, bytes + job->tensor.size(),
                                [](unsigned char byte) { return byte == kPattern; });
  job->store.put(job->tensor, nullptr, {.not_modified = true});
  if (!same) throw Error(RAVENSTORE_CORRUPT, "other bytes than were put");
}

// Gets until a get fails: a job that works learns that the daemon is gone as soon as its library
// does, which takes a moment.
void Work(Job* job) {
  ravenstore::TimeLimit limit(kTimeout);
  while (!limit.IsOver()) Get(job);
}

void Cycle(Job* job) {
  Attach(job);
  Create(job);
  Get(job);
  job->store.free(std::move(job->tensor), nullptr);
  job->store = {};
}

std::string Answer(const std::string& command, Job* job) {
  try {
    if (command == "attach") {
      Attach(job);
    } else if (command == "create") {
      Create(job);
    } else if (command == "get") {
      Get(job);
    } else if (command == "work") {
      Work(job);
    } else if (command == "cycle") {
      Cycle(job);
    } else {
      return "there is no command " + command;
    }
    return "OK";
  } catch (const Error& error) {
    std::string words = error.what();
    std::replace(words.begin(), words.end(), '\n', ' ');
    return std::string(ravenstore_code_name(error.code())) + " " + words;
  }
}

bool InputEnded() {
  pollfd input{STDIN_FILENO, 0, 0};
  return poll(&input, 1, 0) != 0;
}

int Flood(size_t held_max) {
  namespace ipc = ravenstore::ipc;
  const std::string path = "/run/ravenstore/ravenstore.sock";
  const auto connect = [&path] {
    return ipc::Connect(path, ipc::Now() + std::chrono::milliseconds(100));
  };
  std::vector<ipc::UniqueFd> held;
  while (held.size() < held_max) {
    auto connection = connect();
    if (!connection.ok()) break;
    held.push_back(std::move(*connection));
  }
  std::cout << "holding " << held.size() << std::endl;
  size_t connected = 0;
  while (!InputEnded()) connected += connect().ok() ? 1 : 0;
  std::cout << "connected " << connected << " times" << std::endl;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "flood") {
    return Flood(std::strtoul(argv[2], nullptr, 10));
  }
  Job job;
  for (std::string command; std::getline(std::cin, command);) {
    std::cout << Answer(command, &job) << std::endl;
  }
}
