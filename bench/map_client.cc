#include "bench/map_client.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "bench/figure.h"
#include "bench/gpu_program.h"
#include "client/devices.h"
#include "client/mapper.h"
#include "device/open.h"
#include "ipc/clock.h"
#include "ipc/socket.h"

namespace ravenstore::bench {
namespace {

using core::DeviceId;
using core::Tick;

constexpr auto kTimeout = std::chrono::seconds(30);  // of one instruction or request
constexpr DeviceId kDevice{0};

struct Request {
  Work work{};
  uint32_t first = 0;  // kDescriptors
  uint64_t pages = 0;  // kOpen, kDriverCalls
  double seconds = 0;  // kMallocLoop, kFills
  char uuid[64] = "";  // kOpen
};

template <typename T>
void SendStruct(int socket, const T& value, std::span<const int> descriptors = {}) {
  const std::string_view bytes(reinterpret_cast<const char*>(&value), sizeof(value));
  Must(ipc::WaitWritable(socket, ipc::Now() + kTimeout));
  Must(ipc::Send(socket, bytes, descriptors));
}

template <typename T>
T StructIn(const ipc::Packet& packet) {
  if (packet.bytes.size() != sizeof(T)) throw std::runtime_error("a packet of another size");
  T value;
  std::memcpy(&value, packet.bytes.data(), sizeof(T));
  return value;
}

template <typename T>
T ReceiveStruct(int socket) {
  Must(ipc::WaitReadable(socket, ipc::Now() + kTimeout));
  const auto packet = Must(ipc::Receive(socket, /*wait=*/true));
  if (!packet) throw std::runtime_error("a client has ended");
  return StructIn<T>(*packet);
}

double MicrosecondsSince(Tick begin, size_t pages) {
  return core::Seconds(ipc::Now() - begin) * 1e6 / static_cast<double>(pages);
}

DriverCalls MeasureDriverCalls(device::Device& device, size_t pages) {
  using Memory = std::shared_ptr<const device::PhysicalMemory>;
  const auto client = Must(device.ReserveVaRange(kPage * pages));
  const auto daemon = Must(device.ReserveVaRange(kPage * pages));
  Must(device.CreateMemory(kPage));  // the first makes a context
  std::vector<std::pair<Memory, Memory>> memories;
  DriverCalls calls;
  Tick begin = ipc::Now();
  for (size_t i = 0; i < pages; ++i) {
    Memory created = Must(device.CreateMemory(kPage));
    Must(daemon->Map(kPage * i, created));
    Memory imported = Must(device.ImportMemory(Must(created->Export()), kPage));
    Must(client->Map(kPage * i, imported));
    memories.emplace_back(std::move(created), std::move(imported));
  }
  calls.fill = MicrosecondsSince(begin, pages);
  begin = ipc::Now();
  for (size_t i = 0; i < pages; ++i) Must(client->Unmap(kPage * i));
  calls.unmap = MicrosecondsSince(begin, pages);
  begin = ipc::Now();
  for (size_t i = 0; i < pages; ++i) Must(client->Map(kPage * i, memories[i].second));
  calls.map = MicrosecondsSince(begin, pages);
  begin = ipc::Now();
  for (size_t i = 0; i < pages; ++i) {
    Must(client->Unmap(kPage * i));
    Must(daemon->Unmap(kPage * i));
    memories[i] = {};
  }
  calls.destroy = MicrosecondsSince(begin, pages);
  return calls;
}

// What the forked process does.
class Process {
 public:
  Process(const std::string& backend, ipc::UniqueFd socket)
      : backend_(backend), socket_(std::move(socket)) {}
  ~Process() {
    if (mapper_) mapper_->Stop();
  }

  // Until the daemon hangs up.
  void Serve() {
    while (auto packet = Must(ipc::Receive(socket_.get(), /*wait=*/true))) {
      const auto request = StructIn<Request>(*packet);
      switch (request.work) {
        case Work::kOpen: Open(request, std::move(packet->descriptors.at(0))); break;
        case Work::kDescriptors:
          mapper_->Offer(request.first, std::move(packet->descriptors));
          break;
        case Work::kDriverCalls:
          SendStruct(socket_.get(), MeasureDriverCalls(Device().device(), request.pages));
          break;
        case Work::kMallocLoop:
          SendStruct(socket_.get(), Program().RunMallocLoop(request.seconds));
          break;
        case Work::kFills: SendStruct(socket_.get(), Program().RunFills(request.seconds)); break;
      }
    }
  }

 private:
  client::ClientDevice& Device() { return *devices_->all().front(); }
  GpuProgram& Program() {
    if (!program_) program_.emplace();
    return *program_;
  }

  void Open(const Request& request, ipc::UniqueFd memory) {
    segment_.emplace(Must(ipc::ControlSegment::Map(std::move(memory))));
    const device::Devices local = OpenMapDevices(backend_);
    devices_.emplace(Must(
        client::DeviceSet::Match({{request.uuid, kPage * request.pages}}, local, segment_->get())));
    mapper_.emplace(&(*segment_)->maps, &*devices_,
                    client::Mapper::Hooks{.acknowledged = [] {}, .failed = [] { std::abort(); }});
    Must(mapper_->Start());
    int peers = 0;
    for (const auto& other : local) {
      if (other.get() != &Device().device() && other->Reaches(Device().device())) ++peers;
    }
    SendStruct(socket_.get(), peers);
  }

  const std::string backend_;
  const ipc::UniqueFd socket_;
  std::optional<ipc::ControlSegment> segment_;
  std::optional<client::DeviceSet> devices_;
  std::optional<client::Mapper> mapper_;
  std::optional<GpuProgram> program_;
};

}  // namespace

device::Devices OpenMapDevices(const std::string& backend) {
  // Pages of the host backend take memory only where they are written.
  return Must(device::OpenDevices(backend, {.total = core::GiB(64)}));
}

MapClient::MapClient(const std::string& backend, const std::string& visible) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
    throw std::runtime_error("socketpair failed");
  }
  socket_.reset(pair[0]);
  ipc::UniqueFd theirs(pair[1]);
  process_ = ::fork();
  if (process_ < 0) throw std::runtime_error("fork failed");
  if (process_ > 0) return;
  socket_.reset();
  ::setenv("CUDA_VISIBLE_DEVICES", visible.c_str(), 1);
  ::_exit(Guarded([&] { Process(backend, std::move(theirs)).Serve(); }));
}

MapClient::~MapClient() {
  ::shutdown(socket_.get(), SHUT_RDWR);  // later clients inherited the descriptor
  ::waitpid(process_, nullptr, 0);
}

int MapClient::Open(const std::string& uuid, size_t slots) {
  segment_.emplace(Must(ipc::ControlSegment::Create(1)));
  orders_.emplace(&(*segment_)->maps);
  pages_.resize(slots);
  Request request{.work = Work::kOpen, .pages = slots};
  uuid.copy(request.uuid, sizeof(request.uuid) - 1);
  SendStruct(socket_.get(), request, std::array{segment_->fd()});
  return ReceiveStruct<int>(socket_.get());
}

void MapClient::CountOrder() {
  if (pending_++ == 0) progress_ = ipc::Now();
}

void MapClient::ImportAndMap(size_t slot, ipc::UniqueFd descriptor) {
  pages_[slot].memory = orders_->Import(kDevice, kPage, std::move(descriptor));
  CountOrder();
  Map(slot);
}

void MapClient::Map(size_t slot) {
  orders_->Map(kDevice, pages_[slot].memory, kPage * slot, kPage);
  pages_[slot].mapped = true;
  CountOrder();
}

void MapClient::Unmap(size_t slot) {
  orders_->Unmap(kDevice, pages_[slot].memory, kPage * slot);
  pages_[slot].mapped = false;
  CountOrder();
}

void MapClient::UnmapAndRelease(size_t slot) {
  Unmap(slot);
  orders_->Release(kDevice, pages_[slot].memory);
  CountOrder();
}

void MapClient::Send() {
  const daemon::MapOrders::Batch batch = orders_->Send();
  if (batch.descriptors.empty()) return;
  std::vector<int> numbers;
  for (const ipc::UniqueFd& descriptor : batch.descriptors) numbers.push_back(descriptor.get());
  SendStruct(socket_.get(), Request{.work = Work::kDescriptors, .first = batch.first}, numbers);
}

size_t MapClient::Poll() {
  if (!orders_->HasWork()) {
    if (pending_ > 0 && ipc::Now() > progress_ + kTimeout) {
      throw std::runtime_error("a client does not map in time");
    }
    return 0;
  }
  std::vector<daemon::MapOrders::Ended> ended;
  if (!orders_->Poll(&ended)) throw std::runtime_error("the map ring is corrupt");
  size_t released = 0;
  for (const auto& each : ended) {
    if (!each.ok) throw std::runtime_error("a client could not map memory");
    if (each.op == proto::MapOp::kRelease) ++released;
  }
  pending_ -= ended.size();
  progress_ = ipc::Now();
  return released;
}

void MapClient::Finish() {
  do {
    Send();
    Poll();
  } while (pending_ > 0);
}

DriverCalls MapClient::MakeDriverCalls(size_t pages) {
  SendStruct(socket_.get(), Request{.work = Work::kDriverCalls, .pages = pages});
  return ReceiveStruct<DriverCalls>(socket_.get());
}

void MapClient::Begin(Work work, double seconds) {
  SendStruct(socket_.get(), Request{.work = work, .seconds = seconds});
}

bool MapClient::Ended() const {
  return ipc::WaitReadable(socket_.get(), ipc::Now()).ok();
}

double MapClient::Await() {
  return ReceiveStruct<double>(socket_.get());
}

}  // namespace ravenstore::bench
