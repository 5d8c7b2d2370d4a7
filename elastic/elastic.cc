#include "elastic/elastic.h"

#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "elastic/engine.h"

using ravenstore::core::Bytes;
using ravenstore::core::ErrorCode;
using ravenstore::elastic::CallNames;
using ravenstore::elastic::Engine;
using ravenstore::elastic::EngineOptions;
using ravenstore::elastic::EngineStats;
using ravenstore::elastic::JobShare;
using ravenstore::elastic::Place;
using ravenstore::elastic::RangeId;
using ravenstore::elastic::Recorder;
using ravenstore::elastic::Shown;

struct raven_elastic {
  std::unique_ptr<Engine> engine;
  void (*log)(const char* text);
  std::string no_recording;  // why there is none that was asked for
  std::atomic<bool> forked{false};
};

namespace {

// Engines that share a device: further ones are as if they wanted nothing.
constexpr uint32_t kEnginesMost = 64;

struct Token {
  Engine::Submission* submission;
};
static_assert(sizeof(Token) <= sizeof(raven_elastic_token_t));

// What may throw is memory that runs out: the job goes on without the engine's help.
template <typename Call>
auto Guarded(const raven_elastic_t* engine, decltype(std::declval<Call>()()) otherwise, Call call)
    -> decltype(otherwise) {
  if (engine == nullptr || engine->forked.load(std::memory_order_relaxed)) return otherwise;
  try {
    return call();
  } catch (const std::exception& error) {
    if (engine->log != nullptr) engine->log(error.what());
    return otherwise;
  }
}

raven_elastic_demand_t WordsOf(const JobShare::Demand& demand) {
  return {.in_use = demand.in_use.count(),
          .waits_for = demand.waits_for.count(),
          .expected = demand.expected.count(),
          .alive = demand.alive.count(),
          .held = demand.held.count()};
}

std::optional<JobShare::Device> DeviceOf(decltype(raven_elastic_options_t::share) share,
                                         CUdevice device, const JobShare::Demand& demand) {
  const raven_elastic_demand_t words = WordsOf(demand);
  std::array<raven_elastic_demand_t, kEnginesMost> all;
  uint32_t own = 0;
  uint64_t together = 0;
  uint64_t room = 0;
  const uint32_t engines = share(device, &words, all.data(), kEnginesMost, &own, &together, &room);
  if (own >= engines) return std::nullopt;
  JobShare::Device shared{
      .demands = {}, .own = own, .together = Bytes(together), .room = Bytes(room)};
  for (uint32_t i = 0; i < engines; ++i)
    shared.demands.push_back({.in_use = Bytes(all[i].in_use),
                              .waits_for = Bytes(all[i].waits_for),
                              .expected = Bytes(all[i].expected),
                              .alive = Bytes(all[i].alive),
                              .held = Bytes(all[i].held)});
  return shared;
}

EngineOptions OptionsOf(const raven_elastic_options_t& given) {
  EngineOptions options;
  options.device = given.device;
  if (given.part_bytes != 0) options.part = Bytes(given.part_bytes);
  options.on_device.most = Bytes(given.device_bytes);
  options.on_host.most = Bytes(given.host_bytes);
  options.moves = given.still == 0;
  if (given.take != nullptr) {
    options.on_device.take = [take = given.take, device = given.device](Bytes bytes) {
      return take(device, bytes.count()) != 0;
    };
  }
  if (given.give != nullptr) {
    options.on_device.give = [give = given.give, device = given.device](Bytes bytes) {
      give(device, bytes.count());
    };
  }
  if (given.limit != nullptr) {
    options.limit = [limit = given.limit, device = given.device] { return Bytes(limit(device)); };
  }
  if (given.share != nullptr) {
    options.share = [share = given.share, device = given.device](const JobShare::Demand& demand) {
      return DeviceOf(share, device, demand);
    };
  }
  options.maps_away = given.maps_away != 0;
  if (given.log != nullptr) options.log = given.log;
  return options;
}

CUresult ResultOf(const raven_elastic_t* engine, const ravenstore::core::Error& error) {
  // Not logged: a caller that asks for a place that is not available falls back to another way.
  if (error.code == ErrorCode::kInvalidArgument) return CUDA_ERROR_INVALID_VALUE;
  if (engine->log != nullptr) engine->log(Describe(error).c_str());
  return error.code == ErrorCode::kOutOfMemory ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN;
}

ravenstore::core::Result<std::unique_ptr<Recorder>> MakeRecorder(
    const raven_elastic_options_t& given, const ravenstore::elastic::Driver& driver) {
  ravenstore::elastic::RecorderOptions options;
  options.pattern = given.record;
  if (given.record_name != nullptr) options.name = given.record_name;
  return Recorder::Create(std::move(options), driver, CallNames(given.driver));
}

}  // namespace

raven_elastic_t* raven_elastic_open(const raven_elastic_options_t* options) {
  if (options == nullptr || options->struct_size < sizeof(*options) || options->driver == nullptr)
    return nullptr;
  const auto say = [&](const std::string& text) {
    if (options->log != nullptr) options->log(text.c_str());
  };
  try {
    const auto driver = ravenstore::elastic::LoadDriver(options->driver);
    if (!driver.ok()) return say(Describe(driver.error())), nullptr;
    auto opened = std::make_unique<raven_elastic>();
    EngineOptions engine_options = OptionsOf(*options);
    if (options->record != nullptr) {
      auto recorder = MakeRecorder(*options, *driver);
      if (recorder.ok()) {
        engine_options.recorder = std::move(*recorder);
      } else {
        opened->no_recording = "nothing is recorded: " + recorder.error().message;
        say(opened->no_recording);
      }
    }
    if (options->shown != nullptr) {
      engine_options.shown =
          std::make_shared<Shown>(static_cast<ravenstore::proto::ElasticPageRow*>(options->shown),
                                  CallNames(options->driver));
    }
    auto engine = Engine::Create(std::move(engine_options), *driver);
    if (!engine.ok()) return say(Describe(engine.error())), nullptr;
    opened->engine = std::move(*engine);
    opened->log = options->log;
    return opened.release();
  } catch (const std::exception& error) {
    return say(error.what()), nullptr;
  }
}

void raven_elastic_close(raven_elastic_t* engine) {
  // After a fork the thread that it would wait for is not there.
  if (engine != nullptr && !engine->forked) delete engine;
}

void raven_elastic_forget(raven_elastic_t* engine) {
  if (engine != nullptr) engine->forked = true;
}

void raven_elastic_bounds(const raven_elastic_t* engine, CUdeviceptr* begin, CUdeviceptr* end) {
  *begin = engine->engine->addresses().begin();
  *end = engine->engine->addresses().end();
}

CUresult raven_elastic_allocate(raven_elastic_t* engine, uint64_t bytes, CUstream stream,
                                int ordered, CUdeviceptr* address) {
  return Guarded(engine, CUDA_ERROR_OUT_OF_MEMORY, [&] {
    const auto allocated = engine->engine->Allocate(Bytes(bytes), stream, ordered != 0);
    if (allocated.ok()) {
      *address = *allocated;
      return CUDA_SUCCESS;
    }
    return ResultOf(engine, allocated.error());
  });
}

CUresult raven_elastic_free(raven_elastic_t* engine, CUdeviceptr address, CUstream stream,
                            int ordered) {
  return Guarded(engine, CUDA_ERROR_INVALID_VALUE, [&] {
    return engine->engine->Free(address, stream, ordered != 0) ? CUDA_SUCCESS
                                                               : CUDA_ERROR_INVALID_VALUE;
  });
}

int raven_elastic_find(raven_elastic_t* engine, CUdeviceptr address, CUdeviceptr* begin,
                       uint64_t* bytes) {
  return Guarded(engine, 0, [&] {
    const auto found = engine->engine->Find(address);
    if (!found) return 0;
    *begin = found->begin;
    *bytes = found->size.count();
    return 1;
  });
}

int raven_elastic_reserve(raven_elastic_t* engine, uint64_t bytes, CUdeviceptr* address) {
  return Guarded(engine, 0, [&] {
    const auto reserved = engine->engine->segments().Reserve(Bytes(bytes));
    if (reserved) *address = *reserved;
    return reserved ? 1 : 0;
  });
}

int raven_elastic_unreserve(raven_elastic_t* engine, CUdeviceptr address, uint64_t bytes) {
  return Guarded(engine, 0, [&] {
    return engine->engine->segments().Unreserve(address, Bytes(bytes)) ? 1 : 0;
  });
}

CUresult raven_elastic_create_segment(raven_elastic_t* engine, uint64_t bytes, uint32_t* segment) {
  return Guarded(engine, CUDA_ERROR_OUT_OF_MEMORY, [&] {
    const auto made = engine->engine->segments().Create(Bytes(bytes));
    if (!made.ok()) return ResultOf(engine, made.error());
    *segment = static_cast<uint32_t>(*made);
    return CUDA_SUCCESS;
  });
}

void raven_elastic_destroy_segment(raven_elastic_t* engine, uint32_t segment) {
  Guarded(engine, 0, [&] { return engine->engine->segments().Destroy(RangeId{segment}), 0; });
}

CUresult raven_elastic_map_segment(raven_elastic_t* engine, uint32_t segment, CUdeviceptr address) {
  return Guarded(engine, CUDA_ERROR_UNKNOWN, [&] {
    const auto mapped = engine->engine->segments().Map(RangeId{segment}, address);
    return mapped.ok() ? CUDA_SUCCESS : ResultOf(engine, mapped.error());
  });
}

CUresult raven_elastic_unmap_segment(raven_elastic_t* engine, uint32_t segment) {
  return Guarded(engine, CUDA_ERROR_UNKNOWN, [&] {
    const auto unmapped = engine->engine->segments().Unmap(RangeId{segment});
    return unmapped.ok() ? CUDA_SUCCESS : ResultOf(engine, unmapped.error());
  });
}

CUresult raven_elastic_hand_over(raven_elastic_t* engine, uint32_t segment,
                                 CUmemGenericAllocationHandle handle, CUdeviceptr* address) {
  return Guarded(engine, CUDA_ERROR_UNKNOWN, [&] {
    const auto at = engine->engine->segments().HandOver(RangeId{segment}, handle);
    if (!at.ok()) return ResultOf(engine, at.error());
    *address = *at;
    return CUDA_SUCCESS;
  });
}

void raven_elastic_begin(raven_elastic_t* engine, const raven_elastic_use_t* use,
                         raven_elastic_token_t* token) {
  const Token begun = Guarded(engine, Token{nullptr}, [&] {
    return Token{engine->engine->Begin({use->identity,
                                        use->stream,
                                        {use->addresses, use->count},
                                        use->unknown != 0,
                                        {use->kind, use->function},
                                        {use->code, use->pattern},
                                        {use->others, use->other_count}})};
  });
  std::memcpy(token, &begun, sizeof(begun));
}

void raven_elastic_end(raven_elastic_t* engine, raven_elastic_token_t* token, int enqueued) {
  Token begun;
  std::memcpy(&begun, token, sizeof(begun));
  if (begun.submission == nullptr) return;
  Guarded(engine, 0, [&] { return engine->engine->End(begun.submission, enqueued != 0), 0; });
}

void raven_elastic_pin(raven_elastic_t* engine, CUdeviceptr address, int followed) {
  Guarded(engine, 0, [&] { return engine->engine->Pin(address, followed != 0), 0; });
}

void raven_elastic_reach_all(raven_elastic_t* engine) {
  Guarded(engine, 0, [&] { return engine->engine->ReachAll(), 0; });
}

void raven_elastic_illegal_address(raven_elastic_t* engine) {
  Guarded(engine, 0, [&] { return engine->engine->NoteIllegalAddress(), 0; });
}

void raven_elastic_stream_gone(raven_elastic_t* engine, CUstream stream) {
  Guarded(engine, 0, [&] { return engine->engine->StreamGone(stream), 0; });
}

void raven_elastic_limit(raven_elastic_t* engine, uint64_t device_bytes) {
  Guarded(engine, 0, [&] { return engine->engine->SetDeviceLimit(Bytes(device_bytes)), 0; });
}

void raven_elastic_stats(raven_elastic_t* engine, raven_elastic_stats_t* stats) {
  const uint64_t size = stats->struct_size;
  raven_elastic_stats_t all{};
  Guarded(engine, 0, [&] {
    const EngineStats now = engine->engine->stats();
    const auto& parts = engine->engine->parts();
    all.live_bytes = now.live.count();
    all.device_bytes = parts.held(Place::kDevice).count();
    all.host_bytes = parts.held(Place::kHost).count();
    all.away_bytes = now.away.count();
    all.pinned_bytes = now.pinned.count();
    all.peak_bytes = now.peak.count();
    all.moved_in_bytes = now.moved_in.count();
    all.moved_out_bytes = now.moved_out.count();
    all.dropped_bytes = now.dropped.count();
    all.uses = now.uses;
    all.uses_in_place = now.uses_in_place;
    all.bytes_in_place = now.bytes_in_place.count();
    all.waits = now.waits;
    all.waited_ns = static_cast<uint64_t>(now.waited.count());
    all.room_waits = now.room_waits;
    all.room_waited_ns = static_cast<uint64_t>(now.room_waited.count());
    all.enough_bytes = now.enough.count();
    return 0;
  });
  all.struct_size = size;
  std::memcpy(stats, &all, size < sizeof(all) ? size : sizeof(all));
}

int raven_elastic_recorded(raven_elastic_t* engine, char* text, uint64_t room) {
  return Guarded(engine, 0, [&] {
    Recorder* recorder = engine->engine->recorder();
    if (room == 0 || (recorder == nullptr && engine->no_recording.empty())) return 0;
    const std::string line =
        recorder == nullptr ? engine->no_recording : recorder->Flush(std::chrono::seconds(2));
    text[line.copy(text, room - 1)] = 0;
    return 1;
  });
}
