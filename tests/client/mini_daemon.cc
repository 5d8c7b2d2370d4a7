#include "tests/client/mini_daemon.h"

#include <poll.h>
#include <string.h>

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "ipc/clock.h"
#include "ipc/socket.h"

namespace ravenstore::client {

using core::Bytes;
using core::ErrorCode;
using proto::LeaseState;

namespace {

// While a free waits for its ticket.
constexpr int kTicketPollMs = 1;

uint64_t Place(uint64_t offset) {
  return offset / proto::kPlaceUnit;
}

}  // namespace

MiniDaemon::MiniDaemon(Options options)
    : options_(std::move(options)), wake_(*ipc::Doorbell::Create()) {
  device::HostOptions host;
  host.count = options_.devices;
  devices_ = device::OpenHostDevices(host);
  auto listener = ipc::Listen(socket(), 0600, "");
  RAVEN_CHECK(listener.ok());
  listener_ = *std::move(listener);
  thread_ = std::thread([this] { Run(); });
}

MiniDaemon::~MiniDaemon() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.Ring();
  thread_.join();
}

void MiniDaemon::Run() {
  constexpr auto kAwake = std::chrono::microseconds(300);
  core::Tick last_work = ipc::Now();
  while (true) {
    bool busy = false;
    {
      std::lock_guard lock(mutex_);
      if (stopping_) return;
      busy = Turn();
    }
    if (busy) {
      last_work = ipc::Now();
    } else if (ipc::Now() - last_work > kAwake) {
      Sleep();
    } else {
      std::this_thread::yield();
    }
  }
}

void MiniDaemon::Sleep() {
  std::vector<pollfd> events;
  int timeout = -1;
  {
    std::lock_guard lock(mutex_);
    events.push_back({wake_.fd(), POLLIN, 0});
    events.push_back({listener_.get(), POLLIN, 0});
    for (auto& client : clients_) {
      if (!client->socket) continue;
      events.push_back({client->socket.get(), POLLIN, 0});
      if (!client->frees.empty()) timeout = kTicketPollMs;
      if (!client->doorbell) continue;
      events.push_back({client->doorbell->fd(), POLLIN, 0});
      const auto has_work = [&] {
        return client->maps->HasWork() || (!hold_requests_ && client->requests->HasWork());
      };
      if (!ipc::GoToSleep(&(*client->segment)->header.daemon_asleep, has_work)) return;
    }
  }
  asleep_.store(timeout < 0);
  poll(events.data(), events.size(), timeout);
  asleep_.store(false);
  wake_.Drain();
  std::lock_guard lock(mutex_);
  for (auto& client : clients_) {
    if (client->segment) ipc::StayAwake(&(*client->segment)->header.daemon_asleep);
  }
}

bool MiniDaemon::Turn() {
  AcceptOne();
  bool busy = false;
  for (auto& client : clients_) {
    busy |= ReadSocket(*client);
    if (!client->segment) continue;
    pollfd bell{client->doorbell->fd(), POLLIN, 0};
    if (poll(&bell, 1, 0) == 1) {
      ++counts_.rings;
      client->doorbell->Drain();
    }
    busy |= ReadLog(*client);
    busy |= ReadMaps(*client);
    if (!hold_requests_ && !client->detached) busy |= ReadRequests(*client);
    busy |= FinishFrees(*client);
  }
  return busy;
}

void MiniDaemon::AcceptOne() {
  if (!listener_) return;
  auto accepted = ipc::Accept(listener_.get());
  if (!accepted.ok()) return;
  clients_.push_back(std::make_unique<Client>());
  clients_.back()->socket = *std::move(accepted);
}

bool MiniDaemon::ReadSocket(Client& client) {
  if (!client.socket || ignore_socket_) return false;
  auto received = ipc::Receive(client.socket.get(), /*wait=*/false);
  if (!received.ok()) return false;
  if (!received->has_value()) {
    ++counts_.hangups;
    client.socket.reset();
    return true;
  }
  proto::ClientPacket packet;
  RAVEN_CHECK(packet.ParseFromString((*received)->bytes));
  Handle(client, packet);
  return true;
}

void MiniDaemon::Handle(Client& client, const proto::ClientPacket& packet) {
  proto::DaemonPacket answer;
  answer.set_request(packet.request());
  if (packet.has_hello()) return Greet(client, packet);
  if (packet.has_intern_name()) {
    ++counts_.interns;
    const std::string& name = packet.intern_name().name();
    if (!names_.contains(name) && names_.size() >= options_.names_max) {
      answer.mutable_failure()->set_code(static_cast<uint32_t>(ErrorCode::kLimit));
      answer.mutable_failure()->set_message("too many names");
    } else {
      const auto id = names_.emplace(name, static_cast<uint32_t>(names_.size() + 1)).first->second;
      answer.mutable_name_interned()->set_id(id);
    }
    if (hold_names_) return client.held_names.push_back(std::move(answer));
  } else if (packet.has_explain_failure()) {
    answer.mutable_failure_explained()->set_message(
        client.failures[packet.explain_failure().slot()]);
  } else if (packet.has_detach()) {
    ++counts_.detaches;
    client.detached = true;
    client.tensors.clear();
    client.frees.clear();
    answer.mutable_detached();
  } else if (packet.has_stats()) {
    proto::Stats& stats = *answer.mutable_stats();
    proto::TierStats& tier = *stats.add_tiers();
    tier.set_name("device 0");
    for (const auto& [id, tensor] : client.tensors) tier.set_used(tier.used() + tensor.bytes);
    stats.set_tensors(client.tensors.size());
    stats.set_gets(counts_.gets_logged + counts_.fetches);
    stats.set_hits(counts_.gets_logged);
    stats.set_misses(counts_.fetches);
  }
  Send(client, answer);
}

void MiniDaemon::Greet(Client& client, const proto::ClientPacket& packet) {
  proto::DaemonPacket answer;
  answer.set_request(packet.request());
  if (packet.hello().protocol_version() != options_.version) {
    answer.mutable_failure()->set_code(static_cast<uint32_t>(ErrorCode::kVersionMismatch));
    answer.mutable_failure()->set_message("this daemon speaks another protocol");
    return Send(client, answer);
  }
  auto segment = ipc::ControlSegment::Create(static_cast<uint32_t>(clients_.size()));
  auto doorbell = ipc::Doorbell::Create();
  RAVEN_CHECK(segment.ok());
  RAVEN_CHECK(doorbell.ok());
  client.segment.emplace(*std::move(segment));
  client.doorbell.emplace(*std::move(doorbell));
  client.requests.emplace(&(*client.segment)->requests);
  client.maps.emplace(&(*client.segment)->maps);
  for (proto::LogLane& lane : (*client.segment)->log) client.log.emplace_back(&lane);
  proto::Welcome& welcome = *answer.mutable_welcome();
  welcome.set_protocol_version(options_.version);
  welcome.set_client(static_cast<uint32_t>(clients_.size()));
  welcome.set_backend(options_.backend);
  welcome.set_device_budget(packet.hello().device_budget());
  welcome.set_host_budget(packet.hello().host_budget());
  welcome.set_restart_timeout_ms(options_.restart_timeout_ms);
  welcome.set_daemon_version("mini");
  for (const auto& device : devices_) {
    auto arena = device->ReserveVaRange(options_.arena);
    RAVEN_CHECK(arena.ok());
    client.arenas.emplace_back().arena = *std::move(arena);
    proto::Device& offered = *welcome.add_devices();
    offered.set_uuid(device->info().uuid);
    offered.set_name(device->info().name);
    offered.set_arena_bytes(options_.arena.count());
  }
  Send(client, answer, {client.segment->fd(), client.doorbell->fd()});
}

void MiniDaemon::Send(Client& client, const proto::DaemonPacket& packet,
                      std::vector<int> descriptors) {
  if (!client.socket) return;
  // A client that hung up meanwhile is noticed by the next read.
  static_cast<void>(ipc::Send(client.socket.get(), packet.SerializeAsString(), descriptors));
}

bool MiniDaemon::ReadRequests(Client& client) {
  bool any = false;
  proto::Request request;
  while (true) {
    const ipc::Take take = client.requests->Pop(&request);
    RAVEN_CHECK(take != ipc::Take::kCorrupt);
    if (take == ipc::Take::kEmpty) return any;
    any = true;
    switch (static_cast<proto::RequestOp>(request.op)) {
      case proto::RequestOp::kCreate: Create(client, request); break;
      case proto::RequestOp::kFetch: Fetch(client, request); break;
      case proto::RequestOp::kFree: client.frees.push_back(request); break;
      case proto::RequestOp::kStep: ++counts_.steps; break;
    }
  }
}

bool MiniDaemon::ReadLog(Client& client) {
  bool any = false;
  proto::Access access;
  for (ipc::LogConsumer& lane : client.log) {
    while (true) {
      const ipc::Take take = lane.Pop(&access);
      RAVEN_CHECK(take != ipc::Take::kCorrupt);
      if (take == ipc::Take::kEmpty) break;
      any = true;
      ++(access.op == proto::AccessOp::kGet ? counts_.gets_logged : counts_.puts_logged);
    }
  }
  return any;
}

bool MiniDaemon::FinishFrees(Client& client) {
  return std::erase_if(client.frees,
                       [&](const proto::Request& free) { return Free(client, free); }) > 0;
}

void MiniDaemon::Answer(proto::LeaseSlot& row, LeaseState state, uint16_t holders) {
  const proto::LeaseWord lease = proto::UnpackLease(row.word.load(std::memory_order_acquire));
  row.word.store(proto::Pack(proto::Next(lease, state, holders)), std::memory_order_seq_cst);
  if (row.waiters.exchange(0, std::memory_order_seq_cst) != 0) ipc::WakeLowHalf(&row.word);
}

std::optional<uint64_t> MiniDaemon::Allocate(Client& client, uint32_t device, uint64_t bytes) {
  Arena& arena = client.arenas.at(device);
  const uint64_t offset = arena.used;
  const uint64_t end = offset + Bytes(bytes).RoundUp(core::kExtentAlignment).count();
  if (end > options_.arena.count()) return std::nullopt;
  arena.used = end;
  while (arena.mapped < end) {
    const uint64_t slab = options_.slab.count();
    RAVEN_CHECK(arena.arena->Create(Bytes(arena.mapped), Bytes(slab)).ok());
    arena.slabs[arena.mapped] = {slab};
    if (hold_slabs_) {
      client.held_slabs.emplace_back(device, arena.mapped);
    } else {
      SendSlab(client, device, arena.mapped);
    }
    arena.mapped += slab;
  }
  return offset;
}

void MiniDaemon::SendSlab(Client& client, uint32_t device, uint64_t offset) {
  Arena& arena = client.arenas.at(device);
  Arena::Slab& slab = arena.slabs.at(offset);
  auto descriptor = arena.arena->Export(Bytes(offset));
  RAVEN_CHECK(descriptor.ok());
  const core::DeviceId id{static_cast<uint16_t>(device)};
  slab.memory = client.maps->Import(id, Bytes(slab.bytes), *std::move(descriptor));
  client.maps->Map(id, slab.memory, Bytes(offset), Bytes(slab.bytes));
  SendMaps(client);
}

void MiniDaemon::SendMaps(Client& client) {
  const daemon::MapOrders::Batch batch = client.maps->Send();
  if (batch.descriptors.empty()) return;
  proto::DaemonPacket packet;
  packet.mutable_memory_ready()->set_first(batch.first);
  std::vector<int> descriptors;
  for (const ipc::UniqueFd& descriptor : batch.descriptors) descriptors.push_back(descriptor.get());
  Send(client, packet, std::move(descriptors));
}

bool MiniDaemon::ReadMaps(Client& client) {
  std::vector<daemon::MapOrders::Ended> ended;
  RAVEN_CHECK(client.maps->Poll(&ended));
  for (const daemon::MapOrders::Ended& one : ended) {
    if (one.op != proto::MapOp::kUnmap || !one.ok) continue;
    Arena& arena = client.arenas.at(core::ToInt(one.device));
    RAVEN_CHECK(arena.arena->Unmap(one.offset).ok());
    arena.slabs.erase(one.offset.count());
    ++counts_.slabs_released;
  }
  if (!ended.empty()) SendMaps(client);
  return !ended.empty();
}

void MiniDaemon::Create(Client& client, const proto::Request& request) {
  ++counts_.creates;
  last_create_ = request;
  proto::LeaseSlot& row = (*client.segment)->slots[request.slot];
  RAVEN_CHECK(proto::UnpackLease(row.word.load()).state == LeaseState::kRequested);
  std::optional<core::Error> failure = std::exchange(fail_create_, std::nullopt);
  std::optional<uint64_t> offset;
  if (!failure) offset = Allocate(client, request.device, request.bytes);
  if (!failure && !offset) failure = {ErrorCode::kOutOfMemory, "the mini daemon has no room"};
  if (failure) {
    client.failures[request.slot] = failure->message;
    row.error.store(static_cast<uint32_t>(failure->code));
    return Answer(row, LeaseState::kFailed, 0);
  }
  const uint64_t id = ++last_id_;
  client.tensors[id] = {id, request.slot, request.bytes, request.device, *offset, {}};
  row.id.store(id);
  row.device.store(request.device);
  row.place.store(Place(*offset));
  row.arrival.store(0);
  row.error.store(0);
  Answer(row, LeaseState::kInUse, 1);
}

std::byte* MiniDaemon::BytesOf(Client& client, const Tensor& tensor) {
  return client.arenas.at(tensor.device).arena->base() + tensor.offset;
}

void MiniDaemon::Bring(Client& client, Tensor& tensor) {
  memcpy(BytesOf(client, tensor), tensor.away.data(), tensor.bytes);
  tensor.away.clear();
}

void MiniDaemon::Fetch(Client& client, const proto::Request& request) {
  ++counts_.fetches;
  proto::LeaseSlot& row = (*client.segment)->slots[request.slot];
  RAVEN_CHECK(proto::UnpackLease(row.word.load()).state == LeaseState::kFetching);
  Tensor& tensor = client.tensors.at(request.id);
  if (auto denied = std::exchange(fail_fetch_, std::nullopt)) {
    client.failures[request.slot] = denied->message;
    row.error.store(static_cast<uint32_t>(denied->code));
    if (denied->code == ErrorCode::kLost) return Answer(row, LeaseState::kLost, 0);
    // What was to change devices stays where it is.
    return Answer(row, tensor.away.empty() ? LeaseState::kIdle : LeaseState::kAway, 0);
  }
  if (tensor.away.empty()) {  // resident on another device
    tensor.away.assign(BytesOf(client, tensor), BytesOf(client, tensor) + tensor.bytes);
  }
  const auto offset = Allocate(client, request.device, tensor.bytes);
  RAVEN_CHECK(offset.has_value());
  tensor.device = request.device;
  tensor.offset = *offset;
  row.device.store(request.device);
  row.place.store(Place(*offset));
  if (std::exchange(give_up_fetch_, false)) {
    tensor.away.clear();
    memset(BytesOf(client, tensor), 0xee, tensor.bytes);
    row.arrival.store(0);
    row.error.store(proto::kMustRecompute);
    return Answer(row, LeaseState::kInUse, 1);
  }
  row.error.store(0);
  // Each transfer has a word of its own, with a value that only rises.
  const uint64_t value = ++last_arrival_;
  const proto::WordValue word{static_cast<uint16_t>(value % proto::kArrivalWords), value};
  row.arrival.store(proto::Pack(word));
  if (hold_arrivals_) {
    client.arrivals.push_back({tensor.id, word});
  } else {
    Bring(client, tensor);
    (*client.segment)->arrivals[word.index].store(word.value);
  }
  Answer(row, LeaseState::kInUse, 1);
}

bool MiniDaemon::Free(Client& client, const proto::Request& request) {
  const proto::WordValue ticket = proto::UnpackWordValue(request.ticket);
  if ((*client.segment)->tickets[ticket.index].load() < ticket.value) return false;
  proto::LeaseSlot& row = (*client.segment)->slots[request.slot];
  RAVEN_CHECK(proto::UnpackLease(row.word.load()).state == LeaseState::kFreeing);
  RAVEN_CHECK(client.tensors.erase(request.id) == 1);
  ++counts_.frees;
  Answer(row, LeaseState::kFree, 0);
  return true;
}

MiniDaemon::Client* MiniDaemon::Owner(uint64_t id) {
  for (auto& client : clients_) {
    if (client->tensors.contains(id)) return client.get();
  }
  return nullptr;
}

void MiniDaemon::HoldRequests(bool hold) {
  std::lock_guard lock(mutex_);
  hold_requests_ = hold;
  wake_.Ring();
}

void MiniDaemon::HoldSlabs(bool hold) {
  std::lock_guard lock(mutex_);
  hold_slabs_ = hold;
  if (hold) return;
  for (auto& client : clients_) {
    for (const auto& [device, offset] : client->held_slabs) SendSlab(*client, device, offset);
    client->held_slabs.clear();
  }
}

void MiniDaemon::HoldNames(bool hold) {
  std::lock_guard lock(mutex_);
  hold_names_ = hold;
  if (hold) return;
  for (auto& client : clients_) {
    for (const auto& packet : client->held_names) Send(*client, packet);
    client->held_names.clear();
  }
}

void MiniDaemon::HoldArrivals(bool hold) {
  std::lock_guard lock(mutex_);
  hold_arrivals_ = hold;
}

void MiniDaemon::Arrive() {
  std::lock_guard lock(mutex_);
  for (auto& client : clients_) {
    for (const Arrival& arrival : client->arrivals) {
      Bring(*client, client->tensors.at(arrival.tensor));
      (*client->segment)->arrivals[arrival.word.index].store(arrival.word.value);
    }
    client->arrivals.clear();
  }
}

void MiniDaemon::FailNextCreate(ErrorCode code, std::string words) {
  std::lock_guard lock(mutex_);
  fail_create_ = {code, std::move(words)};
}

void MiniDaemon::DiscardNextFetch() {
  std::lock_guard lock(mutex_);
  give_up_fetch_ = true;
}

void MiniDaemon::FailNextFetch(ErrorCode code, std::string words) {
  std::lock_guard lock(mutex_);
  fail_fetch_ = {code, std::move(words)};
}

void MiniDaemon::IgnoreSocket(bool ignore) {
  std::lock_guard lock(mutex_);
  ignore_socket_ = ignore;
  wake_.Ring();
}

bool MiniDaemon::Evict(uint64_t id) {
  std::lock_guard lock(mutex_);
  Client& client = *Owner(id);
  Tensor& tensor = client.tensors.at(id);
  proto::LeaseSlot& row = (*client.segment)->slots[tensor.slot];
  uint64_t word = row.word.load();
  const proto::LeaseWord lease = proto::UnpackLease(word);
  const proto::WordValue ticket = proto::UnpackWordValue(row.ticket.load());
  if (lease.state != LeaseState::kIdle) return false;
  if ((*client.segment)->tickets[ticket.index].load() < ticket.value) return false;
  std::vector<std::byte> copy(BytesOf(client, tensor), BytesOf(client, tensor) + tensor.bytes);
  const uint64_t away = proto::Pack(proto::Next(lease, LeaseState::kAway, 0));
  if (!row.word.compare_exchange_strong(word, away)) return false;
  tensor.away = std::move(copy);
  return true;
}

bool MiniDaemon::Prefetch(uint64_t id) {
  std::lock_guard lock(mutex_);
  Client& client = *Owner(id);
  Tensor& tensor = client.tensors.at(id);
  proto::LeaseSlot& row = (*client.segment)->slots[tensor.slot];
  uint64_t word = row.word.load();
  if (proto::UnpackLease(word).state != LeaseState::kAway) return false;
  tensor.offset = *Allocate(client, tensor.device, tensor.bytes);
  memcpy(BytesOf(client, tensor), tensor.away.data(), tensor.bytes);
  row.place.store(Place(tensor.offset));
  row.arrival.store(0);
  const uint64_t idle = proto::Pack(proto::Next(proto::UnpackLease(word), LeaseState::kIdle, 0));
  if (!row.word.compare_exchange_strong(word, idle)) return false;
  tensor.away.clear();
  return true;
}

void MiniDaemon::Lose(uint64_t id) {
  std::lock_guard lock(mutex_);
  Client& client = *Owner(id);
  (*client.segment)->header.losses.fetch_add(1);
  Answer((*client.segment)->slots[client.tensors.at(id).slot], LeaseState::kLost, 0);
}

size_t MiniDaemon::ReleaseSlabs(uint32_t device) {
  std::lock_guard lock(mutex_);
  size_t asked = 0;
  for (auto& client : clients_) {
    for (const auto& [offset, slab] : client->arenas.at(device).slabs) {
      const bool used =
          std::any_of(client->tensors.begin(), client->tensors.end(), [&](const auto& entry) {
            const Tensor& tensor = entry.second;
            return tensor.device == device && tensor.away.empty() &&
                   tensor.offset < offset + slab.bytes && offset < tensor.offset + tensor.bytes;
          });
      if (used) continue;
      const core::DeviceId id{static_cast<uint16_t>(device)};
      client->maps->Unmap(id, slab.memory, Bytes(offset));
      client->maps->Release(id, slab.memory);
      ++asked;
    }
    SendMaps(*client);
  }
  return asked;
}

void MiniDaemon::Die() {
  std::lock_guard lock(mutex_);
  listener_.Close();
  hold_requests_ = true;
  for (auto& client : clients_) client->socket.reset();
  wake_.Ring();  // a poll under way keeps the sockets open
}

void MiniDaemon::SendGarbage() {
  std::lock_guard lock(mutex_);
  for (auto& client : clients_) {
    if (client->socket) static_cast<void>(ipc::Send(client->socket.get(), "\xff\xff\xff"));
  }
}

MiniDaemon::Counts MiniDaemon::counts() {
  std::lock_guard lock(mutex_);
  // What is logged does not wake it.
  for (auto& client : clients_) {
    if (client->segment) ReadLog(*client);
  }
  return counts_;
}

size_t MiniDaemon::tensors() {
  std::lock_guard lock(mutex_);
  size_t count = 0;
  for (auto& client : clients_) count += client->tensors.size();
  return count;
}

size_t MiniDaemon::clients() {
  std::lock_guard lock(mutex_);
  return static_cast<size_t>(
      std::count_if(clients_.begin(), clients_.end(),
                    [](const auto& client) { return static_cast<bool>(client->socket); }));
}

proto::LeaseSlot& MiniDaemon::Row(uint64_t id) {
  std::lock_guard lock(mutex_);
  Client& client = *Owner(id);
  return (*client.segment)->slots[client.tensors.at(id).slot];
}

proto::Segment& MiniDaemon::segment() {
  std::lock_guard lock(mutex_);
  return *clients_.back()->segment->get();
}

proto::Request MiniDaemon::last_create() {
  std::lock_guard lock(mutex_);
  return last_create_;
}

}  // namespace ravenstore::client
