#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/store_figures.h"
#include "core/check.h"
#include "device/file_medium.h"
#include "device/medium_channel.h"
#include "ipc/clock.h"

namespace ravenstore::bench {

namespace {

using core::Bytes;
using device::MediumAccess;

constexpr Bytes kCall = core::MiB(4);     // of a plain pread or pwrite
constexpr Bytes kWindow = core::MiB(64);  // of memory that copies go round in
constexpr int kRounds = 5;

double SecondsOf(const std::function<void()>& work) {
  const core::Tick begin = ipc::Now();
  work();
  return core::Seconds(ipc::Now() - begin);
}

// Reads or writes the whole file in order, one call at a time.
void Plain(const device::FileMedium& file, MediumAccess access, std::byte* memory) {
  const ipc::UniqueFd descriptor = file.Duplicate().value();
  for (Bytes at; at < file.size(); at += kCall) {
    std::byte* there = memory + at.count() % kWindow.count();
    const auto place = static_cast<off_t>(at.count());
    const ssize_t moved = access == MediumAccess::kRead
                              ? ::pread(descriptor.get(), there, kCall.count(), place)
                              : ::pwrite(descriptor.get(), there, kCall.count(), place);
    RAVEN_CHECK(moved == static_cast<ssize_t>(kCall.count()));
  }
}

// The same by a channel, as the planner loop drives one.
void Copied(device::FileMedium& file, MediumAccess access, device::Channel& channel,
            std::byte* memory) {
  device::Word word{0};
  for (Bytes at; at < file.size(); at += kWindow) {
    if (access == MediumAccess::kRead) {
      RAVEN_CHECK(channel.Copy(memory, device::Source(file, at), kWindow).ok());
    } else {
      RAVEN_CHECK(channel.Copy(device::Target(file, at), memory, kWindow).ok());
    }
  }
  RAVEN_CHECK(channel.Signal(&word, 1).ok());
  while (word.load(std::memory_order_acquire) == 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    RAVEN_CHECK(channel.Health().ok());
  }
}

// The medians of what plain calls and a channel take in turn.
struct Pair {
  double plain;
  double channel;
};
Pair InTurn(device::FileMedium& file, MediumAccess access, device::Channel& channel,
            std::byte* plain_memory, std::byte* memory) {
  std::vector<double> plain;
  std::vector<double> copied;
  for (int round = 0; round < kRounds; ++round) {
    plain.push_back(SecondsOf([&] { Plain(file, access, plain_memory); }));
    copied.push_back(SecondsOf([&] { Copied(file, access, channel, memory); }));
  }
  return {Median(plain), Median(copied)};
}

}  // namespace

void MeasureFileLink(double scale, const Report& report) {
  Figure figure{.name = "store.file_link_vs_plain", .unit = "x", .target = 0.9, .at_least = true};
  const std::string folder = std::filesystem::temp_directory_path();
  const Bytes size(static_cast<uint64_t>(1024 * std::min(scale, 4.0)) * core::MiB(1).count());
  auto made = device::FileMedium::Create(folder, std::max(size.RoundUp(kWindow), kWindow * 2), {});
  if (!made.ok()) {
    figure.skipped = made.error().message;
    return report(figure);
  }
  device::FileMedium& file = **made;
  const auto device = device::OpenHostDevices({}).front();
  const auto on_host = device->ReserveHostVaRange(kWindow, -1).value();
  const auto on_device = device->ReserveVaRange(kWindow).value();
  for (device::VaRange* range : {on_host.get(), on_device.get()}) {
    RAVEN_CHECK(range->Create(Bytes{}, kWindow).ok());
    std::memset(range->base(), 1, kWindow.count());
  }
  figure.value = 1e9;
  for (const MediumAccess access : {MediumAccess::kWrite, MediumAccess::kRead}) {
    const auto direct = device::OpenMediumChannel(access, {});
    const auto staged = device::OpenMediumChannel(*device, access, {}).value();
    const Pair memory = InTurn(file, access, *direct, on_host->base(), on_host->base());
    const Pair ring = InTurn(file, access, *staged, on_host->base(), on_device->base());
    const auto gigabytes = static_cast<double>(file.size().count()) / 1e9;
    char text[160];
    std::snprintf(text, sizeof(text), "%s %.2f GB/s of %.2f, by way of a ring %.2f of %.2f",
                  access == MediumAccess::kWrite ? "writes" : "; reads", gigabytes / memory.channel,
                  gigabytes / memory.plain, gigabytes / ring.channel, gigabytes / ring.plain);
    figure.detail += text;
    figure.value =
        std::min({*figure.value, memory.plain / memory.channel, ring.plain / ring.channel});
  }
  if (!file.direct()) figure.detail += "; through the page cache";
  report(figure);
}

}  // namespace ravenstore::bench
