#include "daemon/server.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <optional>

#include "core/idle_memory.h"
#include "core/size_text.h"
#include "core/topology.h"
#include "daemon/links.h"
#include "device/open.h"
#include "ipc/clock.h"
#include "ipc/unique_fd.h"

namespace ravenstore::daemon {

namespace {

using core::Bytes;
using core::Error;
using core::ErrorCode;

// One user has two at most: a slab comes while another goes.
constexpr size_t kWorkers = 3;
// By default others leave each tenant an eighth (docs/decisions/0026).
constexpr uint64_t kGuaranteedPart = 8;
// By default of each device this part is no idle memory.
constexpr uint64_t kHarvestReservePart = 8;
// Of other nodes' memory, until it is measured: what one message takes, and more than any network
// here carries.
constexpr core::Duration kRemoteLatency = std::chrono::microseconds(100);
constexpr double kFastestNetwork = 50e9;
// Addresses of this process that all arenas together may take, of the 128 TiB that x86-64 gives: an
// arena is reserved when its client first uses the device, which is mostly one.
constexpr Bytes kArenaAddresses = core::GiB(100 * 1024);

// Entries of the descriptor table from the beginning: what a few hundred clients need.
constexpr rlim_t kDescriptorTable = 16384;

// Slabs, segments and sockets take a descriptor each.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  if (limit.rlim_cur != limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  // The kernel waits for all cores whenever the table of a process with threads grows: tens of
  // milliseconds (decision 0076). It never shrinks.
  const rlim_t table = std::min<rlim_t>(limit.rlim_cur, kDescriptorTable);
  const ipc::UniqueFd highest(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, static_cast<int>(table) - 1));
}

Bytes MachineMemory() {
  return Bytes(static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
               static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)));
}

// What the clients of all users may make the daemon hold of its own memory.
Bytes BookkeepingMemory() {
  return std::max(core::MiB(512), Bytes(MachineMemory().count() / 8));
}

uint64_t Milliseconds(core::Duration duration) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
}

device::HostOptions HostOptionsOf(const Config& config) {
  device::HostOptions host;
  host.count = config.host_devices;
  host.total = config.host_device_total;
  host.bytes_per_second = config.host_bytes_per_second;
  host.latency = config.host_latency;
  host.peer_bytes_per_second = config.host_peer_bytes_per_second;
  host.utilization = [percent = config.host_utilization](int) { return percent; };
  if (config.host_others > Bytes{0} || config.host_utilization > 0) {
    host.others = [held = config.host_others](int) {
      return std::vector<device::DeviceProcess>{{.pid = 1, .bytes = held}};
    };
  }
  return host;
}

core::Result<device::Devices> Choose(device::Devices all, const std::vector<std::string>& uuids) {
  if (uuids.empty()) return all;
  device::Devices chosen;
  for (const auto& uuid : uuids) {
    auto found = device::FindByUuid(all, uuid);
    if (found == nullptr) {
      std::string known;
      for (const auto& device : all) known += " " + device->info().uuid;
      return Error{ErrorCode::kInvalidArgument,
                   "\"devices.uuids\" names " + uuid + ", but the devices here are:" + known};
    }
    chosen.push_back(std::move(found));
  }
  return chosen;
}

// 0: all there is.
Bytes BudgetIn(core::PoolKind kind, const Config& config) {
  switch (kind) {
    case core::PoolKind::kFile: return config.file_budget;
    case core::PoolKind::kRemote: return config.remote_budget;
    default: return config.peer_budget;
  }
}

core::TenantPriority PriorityOf(const std::string& name) {
  if (name == "normal") return core::TenantPriority::kNormal;
  return name == "low" ? core::TenantPriority::kLow : core::TenantPriority::kHigh;
}

}  // namespace

LoopOptions LoopOptionsOf(const Config& config) {
  LoopOptions options;
  PageStore::Options& store = options.store;
  store.transfers.chunk = config.chunk;
  store.transfers.in_flight = config.chunk * 2;
  options.busy_bytes_per_second = config.harvest_busy_bytes_per_second;
  store.host_step = config.pool_step;
  store.host_ahead = config.pool_ahead;
  store.page = config.page;
  store.usual_budget =
      config.usual_budget > core::Bytes{} ? config.usual_budget : config.device_budget;
  store.guaranteed_part = config.single_user ? 0 : kGuaranteedPart;
  options.spin = config.spin;
  options.poll = config.poll;
  return options;
}

core::Result<std::unique_ptr<Server>> Server::Create(const Config& config,
                                                     const std::function<void()>& before_serving) {
  RAVEN_RETURN_IF_ERROR(CheckConfig(config));
  RAVEN_ASSIGN_OR_RETURN(auto all, device::OpenDevices(config.backend, HostOptionsOf(config)));
  RAVEN_ASSIGN_OR_RETURN(auto chosen, Choose(std::move(all), config.uuids));
  return Create(config, std::move(chosen), {}, before_serving);
}

core::Result<std::unique_ptr<Server>> Server::Create(const Config& config, device::Devices devices,
                                                     RemoteMemory remote,
                                                     const std::function<void()>& before_serving) {
  RAVEN_RETURN_IF_ERROR(CheckConfig(config));
  std::unique_ptr<Server> server(new Server(config));
  RAVEN_RETURN_IF_ERROR(server->Init(std::move(devices), std::move(remote), before_serving));
  return server;
}

core::Status Server::Init(device::Devices devices, RemoteMemory remote,
                          const std::function<void()>& before_serving) {
  RaiseDescriptorLimit();
  devices_ = std::move(devices);
  backend_ = devices_.front()->info().uuid.starts_with("HOST-") ? "host" : "cuda";

  // Before anything makes contexts: what they take is measured.
  RAVEN_RETURN_IF_ERROR(MakeWatch());
  links_ = MakeLinks();
  if (!config_.cluster_node.empty()) {
    RAVEN_ASSIGN_OR_RETURN(remote, MakeCluster());
  }
  RAVEN_ASSIGN_OR_RETURN(OtherPools others,
                         MakeOtherPools(config_, devices_, links_, std::move(remote)));
  remote_pool_ = others.remote;
  auto next = static_cast<uint16_t>(1 + devices_.size());
  for (const core::Pool& pool : others.pools) other_pools_.emplace(core::PoolId{next++}, pool);
  RAVEN_ASSIGN_OR_RETURN(const LoopOptions options, MakeLoopOptions(others));
  ControlOptions control;
  control.socket_path = config_.socket_path;
  control.socket_group = config_.socket_group;
  control.socket_mode = config_.socket_mode;
  control.backend = backend_;
  control.arenas = options.store.arena;
  control.capacities = options.store.device_capacity;
  control.links = links_;
  control.visible_memory = config_.visible_memory;
  control.slowdown_most = config_.admission_max_slowdown;
  control.settle = config_.admission_settle;
  control.history_folder = config_.history_path;
  control.clients_max = config_.clients_max;
  control.single_user = config_.single_user;
  control.kept_sets = config_.kept_sets;
  control.restart_timeout_ms = Milliseconds(config_.restart_timeout);
  largest_device_ =
      *std::max_element(options.store.device_capacity.begin(), options.store.device_capacity.end());
  host_capacity_ = options.store.host_capacity;
  control.tenant_budgets = TenantBudgets();
  control.other_pools = other_pools_;
  control.peer_pools = others.shares;
  control.watch = watch_.get();
  control.cluster = cluster_.get();
  if (cluster_ != nullptr) control.remote_pool = remote_pool_;
  WarnOfExcessiveSizes();

  control.guaranteed_by_default = Bytes(largest_device_.count() / kGuaranteedPart);

  workers_ = std::make_unique<WorkerPool>("raven-work", kWorkers);
  RAVEN_ASSIGN_OR_RETURN(loop_, Loop::Create(options, devices_, workers_.get(), MakeOutbox(),
                                             std::move(others.memory)));
  RAVEN_ASSIGN_OR_RETURN(control_, Control::Create(control, devices_, loop_.get(), workers_.get()));
  before_serving();
  loop_thread_ = Supervise("raven-loop", ending_, [this] { loop_->Run(); });
  control_thread_ = Supervise("raven-control", ending_, [this] { control_->Run(); });
  StartWatch();
  StartCluster();
  spdlog::info("serving at {}: {} {} device(s), at most {} a tenant on each, host pool of {}",
               config_.socket_path, devices_.size(), backend_ == "host" ? "simulated" : "CUDA",
               core::SizeText(control.tenant_budgets.device),
               core::SizeText(options.store.host_capacity));
  return core::Ok();
}

Loop::Outbox Server::MakeOutbox() {
  Loop::Outbox outbox;
  outbox.memory_ready = [this](auto memory) {
    control_->memory_messages().PostMemoryReady(std::move(memory));
  };
  outbox.pinned_slab = [this](auto slab) {
    control_->memory_messages().PostPinnedSlab(std::move(slab));
  };
  outbox.release_pinned_slab = [this](auto client, auto slab) {
    control_->memory_messages().PostReleasePinnedSlab(client, slab);
  };
  outbox.expel = [this](auto client, auto why) { control_->PostExpel(client, std::move(why)); };
  return outbox;
}

core::Budgets Server::TenantBudgets() const {
  core::Budgets budgets{config_.device_budget == Bytes{0} ? largest_device_ : config_.device_budget,
                        config_.host_budget == Bytes{0} ? host_capacity_ : config_.host_budget,
                        config_.device_guarantee,
                        {},
                        config_.weight,
                        PriorityOf(config_.priority)};
  for (const auto& [id, pool] : other_pools_) {
    const Bytes budget = BudgetIn(pool.kind, config_);
    if (budget > Bytes{0}) budgets.others.emplace(id, budget);
  }
  return budgets;
}

void Server::WarnOfExcessiveSizes() const {
  const auto warn_if_more = [](const char* key, Bytes value, const char* what, Bytes there) {
    if (value <= there) return;
    spdlog::warn("\"{}\" is {}, but {} {}", key, core::SizeText(value), what,
                 core::SizeText(there));
  };
  warn_if_more("host_pool.size", config_.pool_size, "this machine's memory is", MachineMemory());
  warn_if_more("limits.device_budget", config_.device_budget, "of the largest device the store has",
               largest_device_);
  warn_if_more("limits.device_guarantee", config_.device_guarantee.value_or(Bytes{0}),
               "of the largest device the store has", largest_device_);
  warn_if_more("limits.host_budget", config_.host_budget, "the host pool has", host_capacity_);
}

ConfigChanges Server::Reload(const Config& wanted) {
  ConfigChanges changes = Adopt(wanted, &config_);
  control_->PostDefaults(TenantBudgets(), Milliseconds(config_.restart_timeout));
  WarnOfExcessiveSizes();
  return changes;
}

core::Result<RemoteMemory> Server::MakeCluster() {
  RAVEN_ASSIGN_OR_RETURN(cluster_, Cluster::Create(config_));
  return RemoteMemory{.medium = cluster_->MakeMedium(),
                      .latency = kRemoteLatency,
                      .write = kFastestNetwork,
                      .read = kFastestNetwork};
}

void Server::StartCluster() {
  if (cluster_ == nullptr) return;
  Cluster::Sinks sinks;
  if (remote_pool_) {
    const core::PoolId pool = *remote_pool_;
    sinks = {.recalled =
                 [this, pool](Bytes offset) {
                   loop_->PostEvent(core::ChunkRecalled{pool, offset});
                 },
             .kept =
                 [this, pool](Bytes offset) {
                   loop_->PostEvent(core::ChunkKept{pool, offset});
                 },
             .lost =
                 [this, pool](Bytes offset) {
                   loop_->PostEvent(core::ChunkLost{pool, offset});
                 },
             .limit =
                 [this, pool](Bytes most) {
                   loop_->PostEvent(core::PoolLimit{pool, most});
                 },
             .rate =
                 [this, pool](double rate) {
                   loop_->PostEvent(core::PoolRate{pool, rate});
                 }};
  }
  cluster_->Start(std::move(sinks), ending_);
}

core::Result<LoopOptions> Server::MakeLoopOptions(const OtherPools& others) {
  LoopOptions options = LoopOptionsOf(config_);
  PageStore::Options& store = options.store;
  store.device_granularity = devices_.front()->granularity();
  const Bytes arena_most =
      Bytes(kArenaAddresses.count() / config_.clients_max).RoundDown(store.device_granularity);
  for (size_t i = 0; i < devices_.size(); ++i) {
    const auto& device = devices_[i];
    const Bytes total = device->info().total;
    // The reserve protects contexts and other jobs, which simulated devices do not have.
    const Bytes reserve = backend_ == "host" ? Bytes{0} : config_.device_reserve;
    if (total <= reserve) {
      return Error{ErrorCode::kInvalidArgument, "\"limits.device_reserve\" leaves nothing of " +
                                                    device->info().uuid + " (" +
                                                    core::SizeText(total) + ")"};
    }
    if (total - reserve <= others.shares[i]) {
      return Error{ErrorCode::kInvalidArgument, "\"peer_pool.size\" leaves nothing of " +
                                                    device->info().uuid + " (" +
                                                    core::SizeText(total) + ")"};
    }
    store.device_capacity.push_back(
        (total - reserve - others.shares[i]).RoundDown(store.device_granularity));
  }
  const Bytes pool =
      config_.pool_size == Bytes{0} ? Bytes(MachineMemory().count() / 4) : config_.pool_size;
  store.host_capacity = std::min(pool, core::kRangeMax).RoundDown(config_.pool_step);
  if (store.host_capacity == Bytes{0}) {
    return Error{ErrorCode::kInvalidArgument,
                 "\"host_pool.size\" is less than one \"host_pool.step\""};
  }
  RAVEN_ASSIGN_OR_RETURN(
      options.topology,
      core::DevicesAroundHost(store.device_capacity, store.host_capacity, store.device_granularity,
                              links_, others.pools, others.links));
  for (const auto& [pool, device] : others.harvests) {
    options.harvests.push_back({pool,
                                device,
                                {.name = "harvest of device " + std::to_string(core::ToInt(device)),
                                 .reserve = ReserveOf(*devices_[core::ToInt(device)]),
                                 .each_gib = config_.harvest_return,
                                 .hold = config_.harvest_rise}});
  }
  store.links = links_;
  Bytes away = store.host_capacity;
  for (const core::Pool& other : others.pools) away += other.capacity;
  // Of a client's addresses one half is of tensors, here or away; see daemon/client_pages.h.
  for (const Bytes capacity : store.device_capacity) {
    const Bytes all = (capacity + away) * 4;
    store.arena.push_back(std::min(std::max(all, core::GiB(1)), arena_most));
  }
  options.check_moves = config_.host_check_moves && backend_ == "host";
  options.memory = BookkeepingMemory();
  options.pinned_numa_node = config_.pool_numa_node;
  options.host_numa_node =
      config_.pool_numa_node >= 0 ? config_.pool_numa_node : devices_.front()->info().numa_node;
  return options;
}

Bytes Server::ReserveOf(const device::Device& device) const {
  const Bytes part(device.info().total.count() / kHarvestReservePart);
  return config_.harvest_reserve.value_or(part);
}

void Server::StartWatch() {
  watch_->Look(ipc::Now());
  // Else it would wake the loop for nothing.
  const bool peers = std::ranges::any_of(
      other_pools_, [](const auto& pool) { return pool.second.kind == core::PoolKind::kPeer; });
  watch_thread_ = Supervise("raven-watch", ending_, [this, peers] {
    watch_->Run([this, peers] {
      if (peers) loop_->mailbox().Post([this] { loop_->LookAtDevices(watch_->seen()); });
    });
  });
}

core::Status Server::MakeWatch() {
  std::vector<core::IdleMemory> idle;
  for (const auto& device : devices_) {
    const auto& [uuid, name, total, node] = device->info();
    const Bytes reserve = ReserveOf(*device);
    auto memory = core::IdleMemory::Make(
        {.reserve = reserve, .rise_time = config_.harvest_rise, .step = config_.harvest_step},
        total);
    if (!memory.ok()) {
      return Error{ErrorCode::kInvalidArgument,
                   "\"harvest.reserve\", of " + uuid + ": " + memory.error().message};
    }
    idle.push_back(std::move(*memory));
    // From here on what its context takes is known. Where it fails, the watch says so.
    static_cast<void>(device->ReadMemoryUse());
  }
  watch_ = std::make_unique<MemoryWatch>(
      devices_, std::move(idle),
      MemoryWatch::Options{.interval = config_.harvest_sample, .busy_for = config_.harvest_rise});
  return core::Ok();
}

std::vector<core::LinkModel> Server::MakeLinks() const {
  if (backend_ == "cuda") return MeasureLinks(devices_);
  core::LinkModel link;
  if (config_.host_bytes_per_second > 0) {
    link = {config_.host_latency, config_.host_bytes_per_second, config_.host_bytes_per_second};
  }
  return std::vector(devices_.size(), link);
}

bool Server::Drain() {
  control_->StopAccepting();
  if (cluster_ != nullptr) cluster_->HandOver(config_.drain);
  const auto handed_over = [this] { return cluster_ == nullptr || cluster_->handed_over(); };
  const auto deadline = std::chrono::steady_clock::now() + config_.drain;
  struct Left {
    size_t clients = 0;
    bool quiescent = false;
  };
  std::optional<Left> left;
  do {
    auto answer = std::make_shared<std::promise<Left>>();
    auto future = answer->get_future();
    loop_->mailbox().Post([loop = loop_.get(), answer] {
      answer->set_value({loop->sessions().all().size(), loop->Quiescent()});
    });
    if (future.wait_until(deadline) != std::future_status::ready) break;
    left = future.get();
    if (left->clients == 0 && left->quiescent && handed_over()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  } while (std::chrono::steady_clock::now() < deadline);
  if (!handed_over()) {
    spdlog::warn("other nodes did not empty in time what was lent to them: it is lost");
  }
  if (left && left->clients == 0 && left->quiescent) return false;
  if (left) {
    spdlog::warn("{} client(s) still attached: their tensors are lost", left->clients);
  } else {
    spdlog::error("the planner loop does not answer: the clients' tensors are lost");
  }
  return false;
}

void Server::End(const std::function<void(const char*)>& at) {
  ending_.store(true);
  if (control_thread_.joinable()) {
    at("waiting for the control thread");
    control_->Stop();
    control_thread_.join();
  }
  if (loop_thread_.joinable()) {
    at("waiting for the planner loop");
    loop_->Stop();
    loop_thread_.join();
  }
  if (watch_thread_.joinable()) {
    at("waiting for the watch over the devices' memory");
    watch_->Stop();
    watch_thread_.join();
  }
  if (cluster_ != nullptr) {
    at("waiting for the node's thread");
    cluster_->Stop();
  }
  at("waiting for the workers, which make, unmap and pin memory");
  workers_.reset();
}

Server::~Server() {
  End([](const char*) {});
}

}  // namespace ravenstore::daemon
