// The client's side of proto/control.proto, without a protobuf library.
//
// libravenstore.so must be safe inside any process, and two protobuf runtimes in one are not; nor
// can the distribution's static archive go into a shared library (its objects are not position
// independent). The dozen messages a client exchanges are coded here by hand instead.
// tests/client/wire_test.cc holds this against the generated classes, field by field.
//
// Names, meanings and numbers are those of the .proto; absent fields have their zero.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace ravenstore::client::wire {

// ---- Client to daemon ----

struct Hello {
  uint32_t protocol_version = 0;
  std::string name;
  uint64_t device_budget = 0;
  uint64_t host_budget = 0;
  bool control_only = false;
  std::string library_version;
  bool fixed_addresses = false;
};
struct InternName {
  std::string name;
};
struct ExplainFailure {
  uint32_t slot = 0;
};
struct Detach {};
struct Trim {};
struct StatsQuery {
  bool whole_store = false;
};

struct PinnedAlloc {
  uint64_t block = 0;
  uint64_t bytes = 0;
  uint32_t device = 0;
  uint64_t deadline_ns = 0;
};
struct PinnedFree {
  uint64_t block = 0;
  std::vector<uint64_t> tickets;
};
struct PinnedSlabReleased {
  uint32_t pool = 0;
  uint64_t offset = 0;
};

struct KeepInPlace {
  uint32_t slot = 0;
  uint64_t tensor = 0;
  bool ends = false;
};

struct Sleep {
  uint64_t deadline_ns = 0;
};
struct Wake {};

struct SealSet {
  std::string name;
  uint64_t load = 0;
  uint64_t layout = 0;
};
struct OpenSet {
  std::string name;
  uint64_t version = 0;
  uint64_t least_version = 0;
  uint64_t deadline_ns = 0;
  bool may_load = false;
};
struct UseSet {
  uint64_t open = 0;
  uint64_t deadline_ns = 0;
};
struct SetPages {
  uint64_t open = 0;
  uint32_t tensor = 0;
  uint32_t first = 0;
};
struct EndUseOfSet {
  uint64_t open = 0;
};
struct CloseSet {
  uint64_t open = 0;
};
struct DropSet {
  std::string name;
  uint64_t version = 0;
};

struct TakeOrders {
  std::string tag;
  std::string job;
  uint32_t run = 0;
};
struct OrderDone {
  uint64_t order = 0;
  uint32_t code = 0;
  std::string message;
  uint64_t bytes = 0;
};
struct OrderJob {
  std::string job;
  std::string tag;
  bool wakes = false;
  bool keeps_nothing = false;
  uint64_t timeout_ns = 0;
};

struct ClientPacket {
  uint64_t request = 0;
  std::variant<Hello, InternName, ExplainFailure, Detach, StatsQuery, Trim, PinnedAlloc, PinnedFree,
               PinnedSlabReleased, KeepInPlace, Sleep, Wake, SealSet, OpenSet, UseSet, SetPages,
               EndUseOfSet, CloseSet, DropSet, TakeOrders, OrderDone, OrderJob>
      body;
};

std::string Encode(const ClientPacket& packet);

// ---- Daemon to client ----

struct Failure {
  uint32_t code = 0;
  std::string message;
};
struct Device {
  std::string uuid;
  std::string name;
  uint64_t total_bytes = 0;
  uint64_t arena_bytes = 0;
};
struct Welcome {
  uint32_t protocol_version = 0;
  uint32_t client = 0;
  std::string backend;
  std::vector<Device> devices;
  uint64_t device_budget = 0;
  uint64_t host_budget = 0;
  uint64_t restart_timeout_ms = 0;
  std::string daemon_version;
};
struct NameInterned {
  uint32_t id = 0;
};
struct FailureExplained {
  std::string message;
};
struct MemoryReady {
  uint32_t first = 0;
};
struct Detached {};
struct PinnedAllocated {
  uint32_t pool = 0;
  int32_t numa_node = 0;
  uint64_t pool_bytes = 0;
  uint64_t offset = 0;
};
struct PinnedSlab {
  uint32_t pool = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};
struct ReleasePinnedSlab {
  uint32_t pool = 0;
  uint64_t offset = 0;
};
struct KeptInPlace {};
struct Asleep {
  uint64_t bytes = 0;
};
struct Awake {};
struct SetSealed {
  uint64_t version = 0;
  uint64_t open = 0;
};
struct SetTensor {
  uint32_t device = 0;
  uint64_t bytes = 0;
  uint64_t page_bytes = 0;
  uint64_t offset = 0;
  uint32_t pages = 0;
};
struct SetOpened {
  uint64_t open = 0;
  uint64_t version = 0;
  std::vector<SetTensor> tensors;
  uint64_t load = 0;
  uint64_t layout = 0;
};
struct SetUsed {};
struct SetPagesExported {};
struct SetUseEnded {};
struct SetDropped {
  uint64_t sets = 0;
};
struct OrdersTaken {};
struct SleepOrder {
  uint64_t number = 0;
  bool wakes = false;
  bool keeps_nothing = false;
  uint64_t deadline_ns = 0;
  uint64_t undoes = 0;
};
struct JobOrdered {
  uint32_t clients = 0;
  uint64_t bytes = 0;
};
struct TierStats {
  std::string name;
  uint64_t used = 0;
};
// Only what a client reports of the store's figures.
struct Stats {
  std::vector<TierStats> tiers;
  uint64_t tensors = 0;
  uint64_t gets = 0;
  uint64_t hits = 0;
  uint64_t late_hits = 0;
  uint64_t misses = 0;
  uint64_t prefetches = 0;
  uint64_t bytes_out = 0;
  uint64_t bytes_in = 0;
  uint64_t pinned_bytes = 0;
  uint64_t pinned_locked = 0;
  uint64_t page_bytes = 0;
};

struct DaemonPacket {
  uint64_t request = 0;
  // Nothing: a kind of packet that this client does not know.
  std::variant<std::monostate, Failure, Welcome, NameInterned, FailureExplained, MemoryReady,
               Detached, Stats, PinnedAllocated, PinnedSlab, ReleasePinnedSlab, KeptInPlace, Asleep,
               Awake, SetSealed, SetOpened, SetUsed, SetPagesExported, SetUseEnded, SetDropped,
               OrdersTaken, SleepOrder, JobOrdered>
      body;
};

// nullopt when `bytes` is malformed. Unknown fields are skipped.
std::optional<DaemonPacket> Decode(std::string_view bytes);

// Strings on the wire must be UTF-8.
bool IsUtf8(std::string_view text);

}  // namespace ravenstore::client::wire
