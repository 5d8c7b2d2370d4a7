// An honest user: attaches, works and leaves, over and over, and says how that went.
//
//     honest --socket PATH --seconds S [--least N --patience S] [--pinned] [--keep]
//
// One operation is attach, create, evict, get, free, detach, and the question of `ravenctl status`
// on a connection of its own; with --pinned also a block of pinned memory, written and read. It
// prints one JSON object: operations, failures, p50_ms, p99_ms, max_ms and the first error. An
// operation that is under way at the end counts by what it took so far, and is not waited for: this
// program ends in time whatever the daemon does. With --least it goes on until at least N
// operations are done, for at most --patience seconds more.
//
// With --keep it leaves idle tensors on the device instead, and says at the end how many are there
// still: {"put": 8, "there": 8}. It prints "ready" once they are put.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "client/client.h"
#include "client/ctl/session.h"
#include "ipc/clock.h"

namespace ravenstore::hostile {
namespace {

constexpr uint64_t kTensor = MiB(1) + KiB(512);
constexpr uint64_t kBudget = MiB(2);  // of which there is room for one
constexpr size_t kKept = 8;
constexpr auto kTimeout = std::chrono::seconds(10);

struct Record {
  std::mutex mutex;
  std::vector<double> ms;  // guarded by mutex
  size_t failures = 0;     // guarded by mutex
  std::string error;       // guarded by mutex; the first
  core::Tick began{};      // guarded by mutex; the operation under way
};

// Throws what the store or this program has to say about it.
void Operate(const std::string& socket, unsigned char mark, bool pinned) {
  {
    Store store = Store::connect(
        {.socket = socket, .name = "honest", .device_budget = kBudget, .timeout = kTimeout});
    if (pinned) {
      PinnedBlock block = store.pinned(kTensor);
      auto* there = static_cast<unsigned char*>(block.data());
      std::memset(there, mark, kTensor);
      if (there[kTensor / 2] != mark) throw std::runtime_error("a wrong pinned byte");
    }
    const std::string name = "tensor " + std::to_string(::getpid()) + " " + std::to_string(mark);
    Tensor kept = store.create(kTensor, {.name = name.c_str()});
    std::memset(kept.data(), mark, KiB(4));
    static_cast<unsigned char*>(kept.data())[kTensor - 1] = mark;
    store.put(kept, nullptr);
    Tensor other = store.create(kTensor);
    store.free(std::move(other), nullptr);
    const auto* bytes = static_cast<unsigned char*>(store.get(kept, nullptr, {.blocking = true}));
    if (bytes[0] != mark || bytes[kTensor - 1] != mark) throw std::runtime_error("a wrong byte");
    store.free(std::move(kept), nullptr);
  }
  auto session = client::ctl::Session::Open(socket, kTimeout);
  if (!session.ok()) throw std::runtime_error("status: " + session.error().message);
  const auto stats = session->Stats();
  if (!stats.ok()) throw std::runtime_error("status: " + stats.error().message);
}

void Work(const std::string& socket, bool pinned, Record* record) {
  for (unsigned char mark = 1;; ++mark) {
    const core::Tick began = ipc::Now();
    {
      const std::lock_guard lock(record->mutex);
      record->began = began;
    }
    std::string error;
    try {
      Operate(socket, mark, pinned);
    } catch (const std::exception& thrown) {
      error = thrown.what();
    }
    const std::lock_guard lock(record->mutex);
    if (error.empty()) {
      record->ms.push_back(std::chrono::duration<double, std::milli>(ipc::Now() - began).count());
    } else {
      ++record->failures;
      if (record->error.empty()) record->error = error;
    }
  }
}

double Quantile(const std::vector<double>& sorted, double q) {
  if (sorted.empty()) return 0;
  return sorted[std::min(sorted.size() - 1, static_cast<size_t>(q * sorted.size()))];
}

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c < ' ' ? ' ' : c;
  }
  return out;
}

core::Duration Seconds(double seconds) {
  return std::chrono::duration_cast<core::Duration>(std::chrono::duration<double>(seconds));
}

size_t Done(Record& record) {
  const std::lock_guard lock(record.mutex);
  return record.ms.size();
}

void WaitUntil(core::Tick end) {
  while (ipc::Now() < end) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - ipc::Now());
    ::poll(nullptr, 0, static_cast<int>(left.count()));
  }
}

int Keep(const std::string& socket, core::Tick end) {
  Store store = Store::connect({.socket = socket, .name = "keeper", .timeout = kTimeout});
  std::vector<Tensor> kept;
  for (size_t i = 0; i < kKept; ++i) {
    kept.push_back(store.create(kTensor));
    std::memset(kept.back().data(), 1, KiB(4));
    store.put(kept.back(), nullptr);
  }
  std::printf("ready\n");
  std::fflush(stdout);
  WaitUntil(end);
  const auto there =
      std::count_if(kept.begin(), kept.end(), [](const Tensor& tensor) { return tensor.ready(); });
  std::printf("{\"put\": %zu, \"there\": %zu}\n", kept.size(), static_cast<size_t>(there));
  return 0;
}

int Main(int argc, char** argv) {
  CLI::App app("An honest user among others.");
  std::string socket;
  double seconds = 3;
  size_t least = 0;
  double timeout = 0;
  bool pinned = false;
  bool keep = false;
  app.add_option("--socket", socket)->required();
  app.add_option("--seconds", seconds);
  app.add_option("--least", least);
  app.add_option("--patience", timeout);
  app.add_flag("--pinned", pinned);
  app.add_flag("--keep", keep);
  CLI11_PARSE(app, argc, argv);
  const core::Tick end = ipc::Now() + Seconds(seconds);
  if (keep) return Keep(socket, end);
  Record record;
  std::thread(Work, socket, pinned, &record).detach();
  WaitUntil(end);
  while (Done(record) < least && ipc::Now() < end + Seconds(timeout))
    WaitUntil(ipc::Now() + std::chrono::milliseconds(10));
  const std::lock_guard lock(record.mutex);
  std::vector<double> ms = record.ms;
  const size_t operations = ms.size();
  const double under_way =
      std::chrono::duration<double, std::milli>(ipc::Now() - record.began).count();
  std::sort(ms.begin(), ms.end());
  if (ms.empty() || under_way > ms.back()) ms.push_back(under_way);
  std::printf(
      "{\"operations\": %zu, \"failures\": %zu, \"p50_ms\": %.3f, \"p99_ms\": %.3f, "
      "\"max_ms\": %.3f, \"error\": \"%s\"}\n",
      operations, record.failures, Quantile(ms, 0.5), Quantile(ms, 0.99), ms.back(),
      Escaped(record.error).c_str());
  std::fflush(stdout);
  ::_exit(0);  // the operation under way may never end
}

}  // namespace
}  // namespace ravenstore::hostile

int main(int argc, char** argv) {
  return ravenstore::hostile::Main(argc, argv);
}
