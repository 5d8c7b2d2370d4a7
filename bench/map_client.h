// A process that maps device memory as clients of the daemon do, and the daemon's end of it.
//
// The process runs client::Mapper on a control segment. Descriptors go to it over a socket. On
// request it also runs a program on its device, or makes the driver's calls by itself.
// Errors: every method throws std::runtime_error when the process or a device fails, or takes more
// than 30 s.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/result.h"
#include "core/types.h"
#include "daemon/map_orders.h"
#include "device/device.h"
#include "ipc/segment.h"
#include "ipc/unique_fd.h"

namespace ravenstore::bench {

inline constexpr core::Bytes kPage = core::MiB(16);
inline constexpr double kPagesPerGib = 64;

// The value of `result`. Throws its error.
template <typename T>
T Must(core::Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error().message);
  return *std::move(result);
}
inline void Must(const core::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.error().message);
}

// The devices of the backend. Throws why there are none.
device::Devices OpenMapDevices(const std::string& backend);

// What the process does on request.
enum class Work : uint32_t { kOpen, kDescriptors, kDriverCalls, kMallocLoop, kFills };

// What the driver's calls take in one thread of one process. Microseconds of a page.
struct DriverCalls {
  double map = 0;
  double unmap = 0;
  double fill = 0;     // create, export and import it, map it twice
  double destroy = 0;  // unmap it twice, release it
};

// Pages are named by their slots: slot s is at offset s * kPage of the client's range.
// Owns: the process, which ends with it, and its segment.
// Threads: one, that of the daemon.
class MapClient {
 public:
  // Forks. `visible` is the CUDA_VISIBLE_DEVICES of the process.
  // REQUIRES: this process has used no device, and has one thread.
  MapClient(const std::string& backend, const std::string& visible);
  ~MapClient();
  MapClient(const MapClient&) = delete;
  MapClient& operator=(const MapClient&) = delete;

  // Opens the device and starts the mapper, with a range of `slots` pages. Returns how many other
  // devices of the process have access to what it maps.
  int Open(const std::string& uuid, size_t slots);

  // ---- Instructions, which wait for Send.
  // Whether the descriptor of one more page may be sent.
  bool MayImport() const { return orders_->MayImport(0); }
  void ImportAndMap(size_t slot, ipc::UniqueFd descriptor);
  void Map(size_t slot);
  void Unmap(size_t slot);
  void UnmapAndRelease(size_t slot);
  void Send();
  // Instructions that the mapper has not acknowledged.
  size_t pending() const { return pending_; }
  // Returns how many memories the mapper has released since the last call.
  size_t Poll();
  // Sends, and polls until the mapper has acknowledged everything.
  void Finish();

  bool mapped(size_t slot) const { return pages_[slot].mapped; }

  // ---- One request at a time.
  // The process makes the driver's calls for this number of pages, none of them by the mapper.
  DriverCalls MakeDriverCalls(size_t pages);
  // Begins kMallocLoop or kFills (gpu_program.h) for this time.
  void Begin(Work work, double seconds);
  bool Ended() const;
  // Waits for its end, and returns its figure.
  double Await();

 private:
  struct Page {
    uint32_t memory = 0;
    bool mapped = false;
  };

  void CountOrder();

  pid_t process_ = -1;
  ipc::UniqueFd socket_;
  std::optional<ipc::ControlSegment> segment_;
  std::optional<daemon::MapOrders> orders_;
  std::vector<Page> pages_;
  size_t pending_ = 0;
  core::Tick progress_{};  // when the last instruction ended, or the first began to wait
};

}  // namespace ravenstore::bench
