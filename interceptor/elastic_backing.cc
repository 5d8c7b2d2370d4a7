#include "interceptor/elastic_backing.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "interceptor/budgets.h"
#include "interceptor/devices.h"
#include "interceptor/driver.h"
#include "interceptor/elastic_library.h"
#include "interceptor/elastic_share.h"
#include "interceptor/hooks.h"
#include "interceptor/params.h"
#include "interceptor/settings.h"
#include "interceptor/tenant.h"
#include "ipc/program_name.h"

namespace ravenstore::interceptor::elastic {

constinit Bounds bounds{};
constinit std::atomic<bool> any_pinned{false};

namespace {

constexpr uint64_t kLeastBytes = uint64_t{2} << 20;
// One for each row of the page.
struct Engine {
  std::atomic<raven_elastic_t*> handle;
  std::atomic<bool> impossible;
  EngineShare share;
  std::atomic<uint64_t> driver_waits;  // of allocations of the driver's, for the engine's room
  std::atomic<uint64_t> driver_waited_ns;
  // Written before the handle is.
  CUcontext context;
  CUdeviceptr begin;
  CUdeviceptr end;
  raven_elastic_stats_t last;  // of a closed one
};

// Of one device; the others do not know of further ones.
constexpr uint32_t kEnginesMost = 64;

enum class Phase : uint32_t { kUnknown, kOff, kReady };

// Guards the library, and the opening and closing of engines.
constinit pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
constinit std::atomic<Phase> phase{Phase::kUnknown};
constinit Library library{};
constinit Engine engines[proto::kLedgerDevices]{};

int Rows() {
  return static_cast<int>(Page()->rows);
}

// In the ledger this stands where others have their context: entries of the engine end with it.
uint64_t NameOf(const Engine& engine) {
  return reinterpret_cast<uint64_t>(&engine);
}

// REQUIRES mutex.
bool LoadOnce() {
  if (phase.load() == Phase::kUnknown) phase.store(Load(&library) ? Phase::kReady : Phase::kOff);
  return phase.load() == Phase::kReady;
}

// What the engine calls, from any of its threads.
void Say(const char* text) {
  Log("--mode=elastic: %s", text);
}

int TakeBytes(CUdevice device, uint64_t bytes) {
  const int row = RowOf(device);
  return row >= 0 && engines[row].share.Take(row, bytes) ? 1 : 0;
}

void GiveBytes(CUdevice device, uint64_t bytes) {
  const int row = RowOf(device);
  if (row >= 0) engines[row].share.Give(row, bytes);
}

uint64_t AvailableHostBytes() {
  const int file = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  char text[4096];
  const ssize_t length = read(file, text, sizeof(text) - 1);
  close(file);
  text[length < 0 ? 0 : length] = 0;
  const char* line = strstr(text, "MemAvailable:");
  unsigned long long kilobytes = 0;
  if (line == nullptr || sscanf(line, "MemAvailable: %llu", &kilobytes) != 1) return 0;
  return kilobytes << 10;
}

// Of a device without a budget: what is free, less what is left for code, stacks and libraries'
// own.
uint64_t FreeWithoutBudget() {
  auto* info = RAVEN_REAL(cuMemGetInfo_v2);
  size_t free = 0;
  size_t total = 0;
  if (info == nullptr || info(&free, &total) != CUDA_SUCCESS) return 0;
  return free > total / 64 ? free - total / 64 : 0;
}

uint64_t LimitBytes(CUdevice device) {
  const int row = RowOf(device);
  return row < 0 ? 0 : engines[row].share.Allowed(row, MonotonicNs());
}

// Jobs share what their tenant's jobs may hold together.
uint32_t ShareDevice(CUdevice device, const raven_elastic_demand_t* demand,
                     raven_elastic_demand_t* all, uint32_t most, uint32_t* own, uint64_t* together,
                     uint64_t* room) {
  const int row = RowOf(device);
  const uint64_t limit = row < 0 ? 0 : TogetherLimit(row);
  if (limit == 0) return 0;
  tenant::PublishDemand(
      row, {demand->in_use, demand->waits_for, demand->expected, demand->alive, demand->held});
  tenant::Demand found[kEnginesMost];
  const tenant::Demands demands = tenant::DemandsOf(row, found, std::min(most, kEnginesMost));
  for (uint32_t i = 0; i < demands.count; ++i)
    all[i] = {found[i].in_use, found[i].waits_for, found[i].expected, found[i].alive,
              found[i].held};
  *own = demands.own;
  *together = limit > demands.others ? limit - demands.others : 0;
  *room = Room(row);
  return demands.count;
}

void ChangeBounds() {
  uint64_t begin = ~uint64_t{0};
  uint64_t end = 0;
  for (const Engine& engine : engines) {
    if (engine.handle.load() == nullptr) continue;
    begin = std::min<uint64_t>(begin, engine.begin);
    end = std::max<uint64_t>(end, engine.end);
  }
  bounds.begin.store(end == 0 ? 0 : begin);
  bounds.bytes.store(end == 0 ? 0 : end - begin);
}

// REQUIRES mutex, and a current context of the row's device.
void Open(int row) {
  Engine& engine = engines[row];
  raven_elastic_options_t options{};
  options.struct_size = sizeof(options);
  options.device = DeviceOf(row);
  engine.share.Begin(FreeWithoutBudget());
  options.device_bytes = engine.share.Allowed(row, MonotonicNs());
  options.host_bytes = Asked().elastic_host != 0 ? Asked().elastic_host : AvailableHostBytes() / 2;
  options.part_bytes = Asked().elastic_part;
  options.still = Asked().elastic_still ? 1 : 0;
  options.driver = DriverFunction;
  options.log = Say;
  options.take = TakeBytes;
  options.give = GiveBytes;
  options.limit = LimitBytes;
  options.share = ShareDevice;
  if (*Asked().elastic_record != 0) options.record = Asked().elastic_record;
  options.shown = ElasticPageRow(row);
  options.maps_away = Asked().elastic_maps_away ? 1 : 0;
  char name[256];
  ipc::ProgramName(name, sizeof(name));
  options.record_name = name;  // until it is open
  raven_elastic_t* handle = library.open(&options);
  if (handle == nullptr) {
    Log("--mode=elastic: no engine for device %d: the driver serves", options.device);
    engine.impossible.store(true);
    return;
  }
  engine.context = CurrentContext();
  library.bounds(handle, &engine.begin, &engine.end);
  engine.handle.store(handle, std::memory_order_release);
  ChangeBounds();
}

// The engine that serves the context, or null.
raven_elastic_t* Ready(int row, CUcontext context) {
  Engine& engine = engines[row];
  raven_elastic_t* handle = engine.handle.load(std::memory_order_acquire);
  if (handle == nullptr && !engine.impossible.load(std::memory_order_relaxed) &&
      context == CurrentContext() && context != nullptr && CurrentRow() == row) {
    pthread_mutex_lock(&mutex);
    if (engine.handle.load() == nullptr && LoadOnce()) Open(row);
    handle = engine.handle.load();
    pthread_mutex_unlock(&mutex);
  }
  return handle != nullptr && engine.context == context ? handle : nullptr;
}

bool Wants(const Entry& entry) {
  const bool movable = entry.kind == LegacyKind::kDevice || entry.kind == LegacyKind::kPitch ||
                       entry.kind == LegacyKind::kAsync;
  return movable && entry.bytes >= kLeastBytes && phase.load() != Phase::kOff;
}

bool Create(Entry* entry, const Order& order) {
  const int row = entry->row;
  CUcontext context = order.ordered ? ContextOf(order.stream) : CurrentContext();
  raven_elastic_t* handle = Ready(row, context);
  if (handle == nullptr) return false;
  CUdeviceptr address = 0;
  const CUresult result =
      library.allocate(handle, entry->bytes, order.stream, order.ordered ? 1 : 0, &address);
  if (result != CUDA_SUCCESS) {
    Log("--mode=elastic: error %d for %llu bytes: the driver serves them", result,
        static_cast<unsigned long long>(entry->bytes));
    return false;
  }
  entry->key = address;
  entry->object = handle;
  entry->context = NameOf(engines[row]);
  engines[row].share.Allocated(entry->bytes);
  return true;
}

void Free(const Entry& entry, const Order& order) {
  // Segments go with their engine.
  if (entry.space != Space::kMemory) {
    engines[entry.row].share.RemoveSegment(entry.bytes);
    return;
  }
  engines[entry.row].share.Freed(entry.bytes);
  library.free(static_cast<raven_elastic_t*>(entry.object), entry.key, order.stream,
               order.ordered ? 1 : 0);
}

// How often a stream's name may have become another's.
constinit std::atomic<uint64_t> streams_ended{0};
// What this thread asked last: most calls go to one stream. Initial exec: no allocation on first
// use.
struct Remembered {
  CUstream stream;
  uint64_t ended;
  int row;
};
__attribute__((tls_model("initial-exec"))) thread_local Remembered remembered{nullptr, 0, -1};

// The row of the stream's device.
int RowOfUse(CUstream stream) {
  if (Rows() == 1) return 0;
  if (stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) {
    return CurrentRow();
  }
  const uint64_t ended = streams_ended.load(std::memory_order_relaxed);
  if (remembered.stream != stream || remembered.ended != ended) {
    remembered = {stream, ended, RowOf(stream)};
  }
  return remembered.row;
}

void Print(const char* text, int length) {
  if (length > 0) [[maybe_unused]]
    const auto written = write(STDERR_FILENO, text, static_cast<size_t>(length));
}

// What became of the recording, if there was to be one.
void ReportRecording(const Engine& engine) {
  raven_elastic_t* handle = engine.handle.load();
  char what[4608];
  if (handle == nullptr || *Asked().elastic_record == 0 ||
      library.recorded(handle, what, sizeof(what)) == 0) {
    return;
  }
  char text[4864];
  Print(text, snprintf(text, sizeof(text), "ravenrun: elastic[%d], device %d: %s\n", getpid(),
                       DeviceOf(static_cast<int>(&engine - engines)), what));
}

// What the job would have held of a device with room for all of it.
void NoteNeed(int row, const raven_elastic_stats_t& stats) {
  if (stats.enough_bytes > 0)
    NotePeak(row, stats.enough_bytes + engines[row].share.MostOthers(row));
}

// REQUIRES mutex.
void Close(Engine* engine) {
  raven_elastic_t* handle = engine->handle.load();
  ledger.TakeContext(
      NameOf(*engine), [](const Entry& entry, void*) { Free(entry, {}); }, nullptr);
  engine->last.struct_size = sizeof(engine->last);
  library.stats(handle, &engine->last);
  NoteNeed(static_cast<int>(engine - engines), engine->last);
  ReportRecording(*engine);
  engine->handle.store(nullptr);
  ChangeBounds();
  library.close(handle);
  tenant::PublishDemand(static_cast<int>(engine - engines), {});
}

void ContextEnds(CUcontext context) {
  if (!On()) return;
  // Its streams end with it.
  streams_ended.fetch_add(1);
  pthread_mutex_lock(&mutex);
  for (Engine& engine : engines) {
    if (engine.handle.load() != nullptr && engine.context == context) Close(&engine);
  }
  pthread_mutex_unlock(&mutex);
}

// The engine may hold less by it, and has the rest on the host if there is room.
bool MakeRoom(int row, uint64_t bytes) {
  if (row < 0) return false;
  Engine& engine = engines[row];
  raven_elastic_t* handle = engine.handle.load(std::memory_order_acquire);
  if (handle == nullptr || !engine.share.MakeRoom(bytes)) return false;
  library.limit(handle, engine.share.Allowed(row, MonotonicNs()));
  return true;
}

void RoomMade(int row, uint64_t bytes, uint64_t waited_ns) {
  engines[row].share.RoomMade(bytes);
  engines[row].driver_waits.fetch_add(1);
  engines[row].driver_waited_ns.fetch_add(waited_ns);
}

uint64_t FreeToJob(int row, uint64_t free) {
  return row < 0 ? free : engines[row].share.FreeToJob(free);
}

void ForgetInChild() {
  params::ForgetInChild();
  any_pinned.store(false);
  mutex = PTHREAD_MUTEX_INITIALIZER;
  for (Engine& engine : engines) {
    if (raven_elastic_t* handle = engine.handle.load()) library.forget(handle);
    memset(static_cast<void*>(&engine), 0, sizeof(engine));
  }
  ChangeBounds();
}

// The engine whose allocations may have the address, or null.
Engine* EngineAt(uint64_t address) {
  if (!MayBeOurs(address)) return nullptr;
  for (int row = 0; row < Rows(); ++row) {
    Engine& engine = engines[row];
    if (engine.handle.load(std::memory_order_acquire) != nullptr && address >= engine.begin &&
        address < engine.end) {
      return &engine;
    }
  }
  return nullptr;
}

constexpr double kGiB = 1 << 30;

// Of the row's engine, as it is or was when it was closed.
raven_elastic_stats_t StatsOf(int row) {
  const Engine& engine = engines[row];
  raven_elastic_stats_t stats = engine.last;
  if (raven_elastic_t* handle = engine.handle.load()) {
    stats.struct_size = sizeof(stats);
    library.stats(handle, &stats);
  }
  return stats;
}

// One line of `ravenrun --report`.
void Report(int row) {
  const Engine& engine = engines[row];
  const raven_elastic_stats_t stats = StatsOf(row);
  if (stats.uses == 0 && stats.peak_bytes == 0) return;
  const auto gib = [](uint64_t bytes) { return static_cast<double>(bytes) / kGiB; };
  // Rounded up, so that it is enough as it is printed.
  const uint64_t enough = stats.enough_bytes + engines[row].share.MostOthers(row) + (1 << 20);
  const bool stalled =
      stats.waits + stats.room_waits + stats.uses_in_place > 0 || engine.driver_waits.load() > 0;
  char text[640];
  const int length = snprintf(
      text, sizeof(text),
      "ravenrun: elastic[%d], device %d: peak %.3f GiB; moved %.3f GiB in, %.3f GiB out, %.3f GiB "
      "dropped; waited %.1f ms in %llu of %llu uses, %.1f ms for room in %llu allocations and "
      "%.1f ms in %llu of the driver's; in place %.3f GiB in %llu uses; %s with a budget of %.3f "
      "GiB\n",
      getpid(), DeviceOf(row), gib(stats.peak_bytes), gib(stats.moved_in_bytes),
      gib(stats.moved_out_bytes), gib(stats.dropped_bytes),
      static_cast<double>(stats.waited_ns) / 1e6, static_cast<unsigned long long>(stats.waits),
      static_cast<unsigned long long>(stats.uses), static_cast<double>(stats.room_waited_ns) / 1e6,
      static_cast<unsigned long long>(stats.room_waits),
      static_cast<double>(engine.driver_waited_ns.load()) / 1e6,
      static_cast<unsigned long long>(engine.driver_waits.load()), gib(stats.bytes_in_place),
      static_cast<unsigned long long>(stats.uses_in_place),
      stalled ? "it would not have stalled" : "it did not stall, nor would it", gib(enough));
  Print(text, length);
}

// Runs at exit, after the program's own handlers.
__attribute__((destructor)) void AtExit() {
  if (phase.load() != Phase::kReady) return;
  for (int row = 0; row < Rows(); ++row) {
    NoteNeed(row, StatsOf(row));
    if (Asked().elastic_report) Report(row);
    ReportRecording(engines[row]);
  }
}

}  // namespace

constinit const Backing kBacking = {
    .counted = false,
    .wants = Wants,
    .create = Create,
    .free = Free,
    .context_ends = ContextEnds,
    .make_room = MakeRoom,
    .room_made = RoomMade,
    .free_to_job = FreeToJob,
    .forget_in_child = ForgetInChild,
};

void Use::Begin(raven_elastic_use_t use, CUdeviceptr* addresses) {
  const int row = RowOfUse(use.stream);
  Engine* own = row < 0 ? nullptr : &engines[row];
  raven_elastic_t* handle = own == nullptr ? nullptr : own->handle.load(std::memory_order_acquire);
  uint32_t kept = 0;
  for (uint32_t i = 0; i < use.count; ++i) {
    const CUdeviceptr address = addresses[i];
    if (handle != nullptr && address >= own->begin && address < own->end) {
      addresses[kept++] = address;
    } else {
      Pin(address);
    }
  }
  use.addresses = addresses;
  use.count = kept;
  if (handle == nullptr) return;
  engine_ = handle;
  library.begin(engine_, &use, &token_);
}

void Use::End(bool enqueued) {
  if (engine_ != nullptr) library.end(engine_, &token_, enqueued ? 1 : 0);
}

namespace {

void Pin(uint64_t address, bool is_followed) {
  const Engine* engine = EngineAt(address);
  if (engine == nullptr) return;
  any_pinned.store(true, std::memory_order_relaxed);
  library.pin(engine->handle.load(), address, is_followed ? 1 : 0);
}

}  // namespace

void Pin(uint64_t address) {
  Pin(address, false);
}

void PinFollowed(uint64_t address) {
  Pin(address, true);
}

void ReachAll() {
  if (!On()) return;
  for (int row = 0; row < Rows(); ++row) {
    if (raven_elastic_t* handle = engines[row].handle.load()) library.reach_all(handle);
  }
}

void NoteResult(CUresult result) {
  if (result != CUDA_ERROR_ILLEGAL_ADDRESS || !On()) return;
  for (int row = 0; row < Rows(); ++row) {
    if (raven_elastic_t* handle = engines[row].handle.load()) library.illegal_address(handle);
  }
}

bool Find(uint64_t address, Allocation* allocation) {
  const Engine* engine = EngineAt(address);
  if (engine == nullptr ||
      library.find(engine->handle.load(), address, &allocation->begin, &allocation->bytes) == 0) {
    return false;
  }
  allocation->device = DeviceOf(static_cast<int>(engine - engines));
  allocation->context = engine->context;
  return true;
}

Served ServedOf(int row) {
  return {engines[row].share.live(), engines[row].share.high()};
}

void ResetHigh(int row) {
  engines[row].share.ResetHigh();
}

bool ReserveAddresses(uint64_t bytes, CUdeviceptr* address) {
  raven_elastic_t* handle =
      phase.load() == Phase::kOff ? nullptr : Ready(CurrentRow(), CurrentContext());
  return handle != nullptr && library.reserve(handle, bytes, address) != 0;
}

bool FreeAddresses(CUdeviceptr address, uint64_t bytes, CUresult* result) {
  const Engine* engine = EngineAt(address);
  if (engine == nullptr) return false;
  const bool freed = library.unreserve(engine->handle.load(), address, bytes) != 0;
  *result = freed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  return true;
}

CUresult CreateSegment(Entry* entry) {
  raven_elastic_t* handle = phase.load() == Phase::kOff || entry->row != CurrentRow()
                                ? nullptr
                                : Ready(entry->row, CurrentContext());
  if (handle == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  uint32_t segment = 0;
  const CUresult result = library.create_segment(handle, entry->bytes, &segment);
  if (result != CUDA_SUCCESS) return result;
  entry->backing = &kBacking;
  entry->object = reinterpret_cast<void*>(uintptr_t{segment});
  entry->context = NameOf(engines[entry->row]);
  engines[entry->row].share.AddSegment(entry->bytes);
  return CUDA_SUCCESS;
}

namespace {
uint32_t SegmentOf(const Entry& entry) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(entry.object));
}
}  // namespace

void DestroySegment(const Entry& entry) {
  engines[entry.row].share.RemoveSegment(entry.bytes);
  library.destroy_segment(engines[entry.row].handle.load(), SegmentOf(entry));
}

CUresult MapSegment(const Entry& entry, CUdeviceptr address) {
  return library.map_segment(engines[entry.row].handle.load(), SegmentOf(entry), address);
}

CUresult UnmapSegment(const Entry& entry) {
  return library.unmap_segment(engines[entry.row].handle.load(), SegmentOf(entry));
}

CUresult HandOver(const Entry& entry, CUmemGenericAllocationHandle handle, CUdeviceptr* address) {
  const CUresult result =
      library.hand_over(engines[entry.row].handle.load(), SegmentOf(entry), handle, address);
  if (result == CUDA_SUCCESS) engines[entry.row].share.RemoveSegment(entry.bytes);
  return result;
}

void StreamEnds(CUstream stream) {
  if (!On()) return;
  streams_ended.fetch_add(1);
  for (int row = 0; row < Rows(); ++row) {
    if (raven_elastic_t* handle = engines[row].handle.load()) library.stream_gone(handle, stream);
  }
}

}  // namespace ravenstore::interceptor::elastic
