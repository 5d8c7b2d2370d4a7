// A small daemon in the test's own process: the real socket, the real segment, and no policy.
//
// It grants creates from a bump allocator and does what a test asks for: moves tensors away and
// back, holds answers, slabs and arrivals, refuses, and dies. Extents are never used again, so
// every fetch brings a tensor to another address.
//
// Threads: its own serves the clients; every method may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/result.h"
#include "core/types.h"
#include "daemon/map_orders.h"
#include "device/device.h"
#include "ipc/ring.h"
#include "ipc/segment.h"
#include "ipc/socket.h"
#include "ipc/unique_fd.h"
#include "ipc/wake.h"
#include "proto/control.pb.h"
#include "proto/layout.h"
#include "tests/ipc/short_directory.h"

namespace ravenstore::client {

class MiniDaemon {
 public:
  struct Options {
    int devices = 1;
    core::Bytes arena = core::GiB(1);
    core::Bytes slab = core::MiB(8);
    uint64_t restart_timeout_ms = 0;
    uint32_t version = proto::kProtocolVersion;
    std::string backend = "host";
    size_t names_max = 1000;
  };

  MiniDaemon() : MiniDaemon(Options{}) {}
  explicit MiniDaemon(Options options);
  ~MiniDaemon();

  std::string socket() const { return directory_ / "s"; }

  // ---- What a test makes it do. Tensors are named by their id. ----

  // Takes no requests (true) until HoldRequests(false).
  void HoldRequests(bool hold);
  // Maps no slab until HoldSlabs(false).
  void HoldSlabs(bool hold);
  // Fetches are granted early, and their bytes come only with Arrive().
  void HoldArrivals(bool hold);
  void Arrive();
  // The next create (fetch) fails so.
  void FailNextCreate(core::ErrorCode code, std::string words);
  void FailNextFetch(core::ErrorCode code, std::string words);
  // The next fetch finds the bytes given up.
  void DiscardNextFetch();
  // Requests for names are taken, but answered only after HoldNames(false).
  void HoldNames(bool hold);
  // Answers nothing that comes over the socket.
  void IgnoreSocket(bool ignore);

  // Idle -> Away. False when the tensor is not idle or its ticket is not reached.
  bool Evict(uint64_t id);
  // Away -> Idle, at another place.
  bool Prefetch(uint64_t id);
  // Whatever it is -> Lost.
  void Lose(uint64_t id);
  // Asks the client to unmap every slab of `device` that holds none of its tensors; the number
  // asked for.
  size_t ReleaseSlabs(uint32_t device);
  // Hangs up on everybody, as if killed, and takes no more clients.
  void Die();
  // Sends bytes that are no message.
  void SendGarbage();

  // ---- What a test looks at. ----

  struct Counts {
    uint64_t creates = 0;
    uint64_t fetches = 0;
    uint64_t frees = 0;
    uint64_t steps = 0;
    uint64_t interns = 0;
    uint64_t slabs_released = 0;
    uint64_t rings = 0;  // of the doorbell
    uint64_t detaches = 0;
    uint64_t hangups = 0;
    uint64_t gets_logged = 0;
    uint64_t puts_logged = 0;
  };
  Counts counts();
  // True while its thread sleeps until something comes: it then holds no lock and allocates
  // nothing, so that a test may fork.
  bool asleep() const { return asleep_.load(); }
  size_t tensors();
  size_t clients();
  // The row of a tensor, as the daemon maps it. REQUIRES: it exists.
  proto::LeaseSlot& Row(uint64_t id);
  proto::Segment& segment();
  proto::Request last_create();

 private:
  struct Tensor {
    uint64_t id = 0;
    uint32_t slot = 0;
    uint64_t bytes = 0;
    uint32_t device = 0;
    uint64_t offset = 0;
    std::vector<std::byte> away;  // its bytes while it is not on its device
  };
  struct Arena {
    std::unique_ptr<device::VaRange> arena;
    uint64_t used = 0;    // bump allocator
    uint64_t mapped = 0;  // slabs reach so far
    struct Slab {
      uint64_t bytes = 0;
      uint32_t memory = 0;  // once it is sent
    };
    std::map<uint64_t, Slab> slabs;  // by offset
  };
  struct Arrival {
    uint64_t tensor = 0;
    proto::WordValue word;
  };
  struct Client {
    ipc::UniqueFd socket;
    std::optional<ipc::ControlSegment> segment;
    std::optional<ipc::Doorbell> doorbell;
    std::optional<ipc::RequestConsumer> requests;
    std::vector<ipc::LogConsumer> log;
    std::vector<Arena> arenas;
    std::map<uint64_t, Tensor> tensors;
    std::map<uint32_t, std::string> failures;
    std::deque<proto::Request> frees;  // whose ticket is not reached
    std::deque<Arrival> arrivals;      // held
    std::optional<daemon::MapOrders> maps;
    std::deque<std::pair<uint32_t, uint64_t>> held_slabs;  // device, offset
    std::deque<proto::DaemonPacket> held_names;
    bool detached = false;
  };

  void Run();
  // One look at everything; true when there was something to do. REQUIRES mutex_.
  bool Turn();
  void Sleep();
  void AcceptOne();
  bool ReadSocket(Client& client);
  void Handle(Client& client, const proto::ClientPacket& packet);
  void Greet(Client& client, const proto::ClientPacket& packet);
  void Send(Client& client, const proto::DaemonPacket& packet, std::vector<int> descriptors = {});
  bool ReadRequests(Client& client);
  bool ReadLog(Client& client);
  bool FinishFrees(Client& client);
  void Create(Client& client, const proto::Request& request);
  void Fetch(Client& client, const proto::Request& request);
  bool Free(Client& client, const proto::Request& request);
  std::optional<uint64_t> Allocate(Client& client, uint32_t device, uint64_t bytes);
  void SendSlab(Client& client, uint32_t device, uint64_t offset);
  void SendMaps(Client& client);
  bool ReadMaps(Client& client);
  void Answer(proto::LeaseSlot& row, proto::LeaseState state, uint16_t holders);
  std::byte* BytesOf(Client& client, const Tensor& tensor);
  void Bring(Client& client, Tensor& tensor);
  Client* Owner(uint64_t id);

  const Options options_;
  ipc::ShortDirectory directory_;
  device::Devices devices_;
  ipc::Listener listener_;
  ipc::Doorbell wake_;  // of its own thread
  std::atomic<bool> asleep_{false};
  std::thread thread_;

  std::mutex mutex_;  // guards what follows
  bool stopping_ = false;
  bool hold_requests_ = false;
  bool hold_slabs_ = false;
  bool hold_arrivals_ = false;
  bool hold_names_ = false;
  bool ignore_socket_ = false;
  std::optional<core::Error> fail_create_;
  std::optional<core::Error> fail_fetch_;
  bool give_up_fetch_ = false;
  uint64_t last_id_ = 0;
  uint64_t last_arrival_ = 0;
  std::map<std::string, uint32_t> names_;
  Counts counts_;
  proto::Request last_create_{};
  std::vector<std::unique_ptr<Client>> clients_;
};

}  // namespace ravenstore::client
