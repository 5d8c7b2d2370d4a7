// Gets and puts a resident tensor many times, between two getppid() calls.
//
// Usage: resident_pairs [pairs] [threads]. Prints the time of a pair, with one thread's median and
// 99.9th percentile, and what all threads together reach. no_syscalls_test runs it under strace.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "client/client.h"
#include "tests/client/mini_daemon.h"

namespace {

using Clock = std::chrono::steady_clock;

void Pairs(ravenstore::Store& store, ravenstore::Tensor& tensor, long pairs) {
  for (long i = 0; i < pairs; ++i) {
    store.get(tensor, nullptr);
    store.put(tensor, nullptr);
  }
}

double Nanoseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::nano>(duration).count();
}

// Times runs of a few pairs, so that the clock's own cost is small in comparison.
void PrintPercentiles(ravenstore::Store& store, ravenstore::Tensor& tensor, long pairs) {
  constexpr long kPerSample = 8;
  std::vector<double> samples;
  for (long i = 0; i < pairs / kPerSample; ++i) {
    const auto begun = Clock::now();
    Pairs(store, tensor, kPerSample);
    samples.push_back(Nanoseconds(Clock::now() - begun) / kPerSample);
  }
  std::sort(samples.begin(), samples.end());
  std::printf("pair_ns median %.1f p99.9 %.1f\n", samples[samples.size() / 2],
              samples[samples.size() * 999 / 1000]);
}

double PairsPerSecond(ravenstore::Store& store, std::vector<ravenstore::Tensor>& tensors,
                      size_t threads, long pairs) {
  std::atomic<bool> go{false};
  std::atomic<size_t> ready{0};
  std::vector<std::thread> running;
  for (size_t i = 0; i < threads; ++i) {
    running.emplace_back([&, i] {
      Pairs(store, tensors[i], 1000);
      ready.fetch_add(1);
      while (!go.load(std::memory_order_acquire)) {
      }
      Pairs(store, tensors[i], pairs);
    });
  }
  while (ready.load() < threads) std::this_thread::yield();
  const auto begun = Clock::now();
  go.store(true, std::memory_order_release);
  for (std::thread& thread : running) thread.join();
  return static_cast<double>(threads) * static_cast<double>(pairs) /
         (Nanoseconds(Clock::now() - begun) / 1e9);
}

}  // namespace

int main(int argc, char** argv) {
  const long pairs = argc > 1 ? std::atol(argv[1]) : 1'000'000;
  const size_t threads = argc > 2 ? static_cast<size_t>(std::atol(argv[2])) : 1;
  ravenstore::client::MiniDaemon daemon;
  auto store = ravenstore::Store::connect({.socket = daemon.socket()});
  std::vector<ravenstore::Tensor> tensors;
  for (size_t i = 0; i < threads; ++i) {
    tensors.push_back(store.create(4096));
    store.put(tensors.back(), nullptr);
  }
  Pairs(store, tensors[0], 1000);
  static_cast<void>(getppid());
  Pairs(store, tensors[0], pairs);
  static_cast<void>(getppid());
  PrintPercentiles(store, tensors[0], pairs);
  if (threads > 1) {
    const double one = PairsPerSecond(store, tensors, 1, pairs);
    const double all = PairsPerSecond(store, tensors, threads, pairs);
    std::printf("threads %zu speed-up %.2f\n", threads, all / one);
  }
  return 0;
}
