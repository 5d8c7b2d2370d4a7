// A libravenstore_elastic.so that moves nothing: it writes down what it is asked, a line each, to
// the file $RECORDER, so that the interceptor's side is tested apart from the engine.
//
// Addresses are written as offsets into its one range. Memory is the device's while take() gives
// it, else the host's; nothing is ever unmapped.
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>

#include "elastic/elastic.h"
#include "tests/fake_cuda/fake_cuda.h"

struct raven_elastic {
  raven_elastic_options_t options;
  CUdeviceptr base = 0;
  CUdeviceptr next = 0;
  std::mutex mutex;
  struct Piece {
    uint64_t bytes;
    uint64_t taken;
  };
  std::map<CUdeviceptr, Piece> live;
  raven_elastic_stats_t stats{};
};

namespace {

constexpr uint64_t kRange = uint64_t{8} << 30;
constexpr uint64_t kGranularity = uint64_t{2} << 20;

// Else only what it costs to get here is of interest.
bool Records() {
  static const bool records = getenv("RECORDER") != nullptr;
  return records;
}

void Write(const char* format, ...) __attribute__((format(printf, 1, 2)));
void Write(const char* format, ...) {
  if (!Records()) return;
  static const int file = open(getenv("RECORDER"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  char text[8192];
  va_list arguments;
  va_start(arguments, format);
  const int length = vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  if (write(file, text, static_cast<size_t>(length)) != length) abort();
}

template <typename Function>
Function* Real(const raven_elastic_t* engine, const char* symbol, Function*) {
  auto* found = reinterpret_cast<Function*>(engine->options.driver(symbol));
  if (found == nullptr) abort();
  return found;
}
#define REAL(symbol) Real(engine, #symbol, static_cast<decltype(&(symbol))>(nullptr))

bool Back(raven_elastic_t* engine, CUdeviceptr at, uint64_t bytes, bool on_device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {engine->options.device}};
  CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  if (!on_device) properties.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, {0}};
  CUmemGenericAllocationHandle handle = 0;
  return REAL(cuMemCreate)(&handle, bytes, &properties, 0) == CUDA_SUCCESS &&
         REAL(cuMemMap)(at, bytes, 0, handle, 0) == CUDA_SUCCESS &&
         REAL(cuMemSetAccess)(at, bytes, &access, 1) == CUDA_SUCCESS &&
         REAL(cuMemRelease)(handle) == CUDA_SUCCESS;
}

}  // namespace

raven_elastic_t* raven_elastic_open(const raven_elastic_options_t* options) {
  if (getenv("RECORDER_REFUSES") != nullptr) {
    options->log("not here");
    return nullptr;
  }
  auto* engine = new raven_elastic;
  engine->options = *options;
  if (REAL(cuMemAddressReserve)(&engine->base, kRange, 0, 0, 0) != CUDA_SUCCESS) abort();
  engine->next = engine->base;
  Write("open %d %llu %llu %llu %u\n", options->device,
        static_cast<unsigned long long>(options->device_bytes),
        static_cast<unsigned long long>(options->host_bytes),
        static_cast<unsigned long long>(options->part_bytes), options->maps_away);
  return engine;
}

void raven_elastic_close(raven_elastic_t*) {
  Write("close\n");
}

void raven_elastic_forget(raven_elastic_t*) {
  Write("forget\n");
}

void raven_elastic_bounds(const raven_elastic_t* engine, CUdeviceptr* begin, CUdeviceptr* end) {
  *begin = engine->base;
  *end = engine->base + kRange;
}

CUresult raven_elastic_allocate(raven_elastic_t* engine, uint64_t bytes, CUstream stream,
                                int ordered, CUdeviceptr* address) {
  std::lock_guard lock(engine->mutex);
  const uint64_t whole = (bytes + kGranularity - 1) / kGranularity * kGranularity;
  const bool on_device = engine->options.take(engine->options.device, whole) != 0;
  if (!Back(engine, engine->next, whole, on_device)) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = engine->next;
  engine->next += whole;
  engine->live[*address] = {bytes, on_device ? whole : 0};
  engine->stats.live_bytes += bytes;
  engine->stats.peak_bytes = std::max(engine->stats.peak_bytes, engine->stats.live_bytes);
  Write("allocate %llu %llu %p %d\n", static_cast<unsigned long long>(*address - engine->base),
        static_cast<unsigned long long>(bytes), static_cast<void*>(stream), ordered);
  return CUDA_SUCCESS;
}

CUresult raven_elastic_free(raven_elastic_t* engine, CUdeviceptr address, CUstream stream,
                            int ordered) {
  std::lock_guard lock(engine->mutex);
  const auto found = engine->live.find(address);
  if (found == engine->live.end()) return CUDA_ERROR_INVALID_VALUE;
  engine->options.give(engine->options.device, found->second.taken);
  engine->stats.live_bytes -= found->second.bytes;
  engine->live.erase(found);
  Write("free %llu %p %d\n", static_cast<unsigned long long>(address - engine->base),
        static_cast<void*>(stream), ordered);
  return CUDA_SUCCESS;
}

int raven_elastic_find(raven_elastic_t* engine, CUdeviceptr address, CUdeviceptr* begin,
                       uint64_t* bytes) {
  std::lock_guard lock(engine->mutex);
  auto found = engine->live.upper_bound(address);
  if (found == engine->live.begin()) return 0;
  --found;
  if (address >= found->first + found->second.bytes) return 0;
  *begin = found->first;
  *bytes = found->second.bytes;
  return 1;
}

void raven_elastic_begin(raven_elastic_t* engine, const raven_elastic_use_t* use,
                         raven_elastic_token_t* token) {
  token->opaque[0] = use->identity;
  if (!Records()) return;
  std::string addresses;
  for (uint32_t i = 0; i < use->count; ++i) {
    addresses += " " + std::to_string(use->addresses[i] - engine->base);
  }
  Write("begin %llx %p %u%s\n", static_cast<unsigned long long>(use->identity),
        static_cast<void*>(use->stream), use->unknown, addresses.c_str());
  if (getenv("RECORDER_CODE") != nullptr) {
    Write("code %llu %llu %u\n", static_cast<unsigned long long>(use->code),
          static_cast<unsigned long long>(use->pattern), use->other_count);
  }
  // The real call that follows fails: its end then shows that this begin came before it.
  const char* fails = getenv("RECORDER_FAILS");
  if (fails == nullptr) return;
  auto* fail = reinterpret_cast<decltype(&FakeCudaFail)>(engine->options.driver("FakeCudaFail"));
  const char* result = getenv("RECORDER_RESULT");
  fail(
      fails, 1,
      result == nullptr ? CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES : static_cast<CUresult>(atoi(result)));
}

void raven_elastic_end(raven_elastic_t* engine, raven_elastic_token_t* token, int enqueued) {
  ++engine->stats.uses;
  Write("end %llx %d\n", static_cast<unsigned long long>(token->opaque[0]), enqueued);
}

void raven_elastic_pin(raven_elastic_t* engine, CUdeviceptr address, int followed) {
  Write("%s %llu\n", followed != 0 ? "follow" : "pin",
        static_cast<unsigned long long>(address - engine->base));
}

void raven_elastic_reach_all(raven_elastic_t*) {
  Write("reach\n");
}

void raven_elastic_illegal_address(raven_elastic_t*) {
  Write("illegal\n");
}

void raven_elastic_stream_gone(raven_elastic_t*, CUstream stream) {
  Write("stream_gone %p\n", static_cast<void*>(stream));
}

void raven_elastic_limit(raven_elastic_t* engine, uint64_t device_bytes) {
  Write("limit %llu\n", static_cast<unsigned long long>(device_bytes));
  // It immediately returns what the driver wants next, as if it had moved that to the host.
  std::lock_guard lock(engine->mutex);
  for (auto& [address, piece] : engine->live) {
    if (getenv("RECORDER_YIELDS") == nullptr) break;
    engine->options.give(engine->options.device, piece.taken);
    piece.taken = 0;
  }
}

void raven_elastic_stats(raven_elastic_t* engine, raven_elastic_stats_t* stats) {
  *stats = engine->stats;
}

int raven_elastic_recorded(raven_elastic_t*, char*, uint64_t) {
  return 0;
}

// The driver serves the job's own virtual memory.
int raven_elastic_reserve(raven_elastic_t*, uint64_t, CUdeviceptr*) {
  return 0;
}
int raven_elastic_unreserve(raven_elastic_t*, CUdeviceptr, uint64_t) {
  return 0;
}
CUresult raven_elastic_create_segment(raven_elastic_t*, uint64_t, uint32_t*) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
void raven_elastic_destroy_segment(raven_elastic_t*, uint32_t) {}
CUresult raven_elastic_map_segment(raven_elastic_t*, uint32_t, CUdeviceptr) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult raven_elastic_unmap_segment(raven_elastic_t*, uint32_t) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult raven_elastic_hand_over(raven_elastic_t*, uint32_t, CUmemGenericAllocationHandle,
                                 CUdeviceptr*) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
