#include "bench/redis.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "core/check.h"
#include "core/types.h"
#include "ipc/clock.h"

namespace ravenstore::bench {
namespace {

constexpr std::chrono::seconds kPatience{10};

std::string FreePort() {
  std::string address;
  const ipc::UniqueFd listener = transport::LoopbackListener(&address);
  return address.substr(address.rfind(':') + 1);
}

// Its process, or -1.
pid_t Spawn(const std::string& port) {
  std::vector<std::string> words = {"redis-server", "--port", port,           "--bind", "127.0.0.1",
                                    "--save",       "",       "--appendonly", "no"};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  pid_t server = -1;
  const int error =
      ::posix_spawnp(&server, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  return error == 0 ? server : -1;
}

void End(pid_t server) {
  ::kill(server, SIGKILL);
  ::waitpid(server, nullptr, 0);
}

}  // namespace

core::Result<std::unique_ptr<Redis>> Redis::Start(size_t bytes) {
  const std::string port = FreePort();
  const pid_t server = Spawn(port);
  if (server < 0) return core::Error{core::ErrorCode::kNotFound, "no redis-server in PATH"};
  auto stream = LoopbackStream::Connect("127.0.0.1:" + port, ipc::Now() + kPatience);
  if (!stream.ok()) {
    End(server);
    return core::Error{core::ErrorCode::kUnavailable,
                       "redis-server does not serve: " + stream.error().message};
  }
  return std::unique_ptr<Redis>(new Redis(server, *std::move(stream), bytes));
}

Redis::~Redis() {
  End(server_);
}

double Redis::SetAndGet(size_t count) {
  const std::string size = "$" + std::to_string(value_.size()) + "\r\n";
  const std::string set = "*3\r\n$3\r\nSET\r\n$5\r\nvalue\r\n" + size;
  const std::string get = "*2\r\n$3\r\nGET\r\n$5\r\nvalue\r\n";
  std::string line;
  const auto expect = [&](const std::string& text) {
    line.resize(text.size());
    stream_.Read(std::as_writable_bytes(std::span(line)));
    RAVEN_CHECK(line == text);
  };
  const core::Tick begin = ipc::Now();
  for (size_t i = 0; i < count; ++i) {
    stream_.Write(set);
    stream_.Write(value_);
    stream_.Write("\r\n");
    expect("+OK\r\n");
    stream_.Write(get);
    expect(size);
    stream_.Read(value_);
    expect("\r\n");
  }
  return core::Seconds(ipc::Now() - begin);
}

}  // namespace ravenstore::bench
