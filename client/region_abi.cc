// The C ABI of regions, and of orders to those of other processes.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>

#include "client/last_error.h"
#include "client/lease.h"
#include "client/order_job.h"
#include "client/orders.h"
#include "client/program_name.h"
#include "client/ravenstore.h"
#include "client/regions.h"
#include "ipc/clock.h"

namespace {

namespace client = ravenstore::client;
namespace core = ravenstore::core;
using client::BadArgument;
using client::CheckFlags;
using client::Guard;
using client::Region;
using core::Status;

Region* RegionOf(ravenstore_region_t* region) {
  return reinterpret_cast<Region*>(region);
}

ravenstore_region_t* HandleOf(Region* region) {
  return reinterpret_cast<ravenstore_region_t*>(region);
}

Status CheckRegion(const ravenstore_region_t* region, uint32_t flags, uint32_t known) {
  if (region == nullptr) return BadArgument("the region is NULL");
  return CheckFlags(flags, known);
}

ravenstore::Timeout TimeoutOf(uint64_t nanoseconds) {
  if (nanoseconds == 0) return std::nullopt;
  return std::chrono::nanoseconds(std::min<uint64_t>(nanoseconds, INT64_MAX));
}

}  // namespace

extern "C" {

ravenstore_code_t ravenstore_region_open(const ravenstore_connect_options_t* given,
                                         ravenstore_region_t** region) {
  return Guard([&]() -> Status {
    if (region == nullptr) return BadArgument("the place for the region is NULL");
    *region = nullptr;
    ravenstore_connect_options_t defaults{};
    RAVEN_ASSIGN_OR_RETURN(const ravenstore_connect_options_t* const options,
                           client::Read(given, &defaults));
    ravenstore::ConnectOptions converted;
    if (options->socket != nullptr) converted.socket = options->socket;
    if (options->name != nullptr) converted.name = options->name;
    converted.device_budget = options->device_budget;
    converted.host_budget = options->host_budget;
    converted.timeout = TimeoutOf(options->timeout_ns);
    *region = HandleOf(new Region(converted));
    return core::Ok();
  });
}

void ravenstore_region_close(ravenstore_region_t* region) {
  static_cast<void>(Guard([&]() -> Status {
    delete RegionOf(region);
    return core::Ok();
  }));
}

ravenstore_region_t* ravenstore_region_enter(ravenstore_region_t* region) {
  Region* const before = Region::Current();
  Region::Enter(RegionOf(region));
  return HandleOf(before);
}

ravenstore_region_t* ravenstore_region_here(void) {
  return HandleOf(Region::Current());
}

ravenstore_region_t* ravenstore_region_of(const void* address) {
  return HandleOf(Region::Of(address));
}

void* ravenstore_region_alloc(ptrdiff_t bytes, int device, ravenstore_stream_t /*stream*/) {
  return bytes <= 0 ? nullptr : Region::AllocateInCurrent(static_cast<uint64_t>(bytes), device);
}

int ravenstore_region_free(void* address, ptrdiff_t /*bytes*/, int /*device*/,
                           ravenstore_stream_t /*stream*/) {
  return address != nullptr && Region::Free(address) ? 1 : 0;
}

ravenstore_code_t ravenstore_region_sleep(ravenstore_region_t* region, uint32_t flags,
                                          uint64_t timeout_ns, uint64_t* bytes) {
  return Guard([&]() -> Status {
    RAVEN_RETURN_IF_ERROR(
        CheckRegion(region, flags, RAVENSTORE_KEEP_NOTHING | RAVENSTORE_UNCHANGED));
    const uint64_t slept =
        RegionOf(region)->Sleep({.keeps_bytes = (flags & RAVENSTORE_KEEP_NOTHING) == 0,
                                 .unchanged = (flags & RAVENSTORE_UNCHANGED) != 0,
                                 .timeout = TimeoutOf(timeout_ns)});
    if (bytes != nullptr) *bytes = slept;
    return core::Ok();
  });
}

ravenstore_code_t ravenstore_region_wake(ravenstore_region_t* region, uint32_t flags,
                                         uint64_t timeout_ns, ravenstore_stream_t stream) {
  return Guard([&]() -> Status {
    RAVEN_RETURN_IF_ERROR(CheckRegion(region, flags, RAVENSTORE_DO_NOT_WAIT | RAVENSTORE_IN_ORDER));
    RegionOf(region)->Wake({.stream = stream,
                            .waits = (flags & RAVENSTORE_DO_NOT_WAIT) == 0,
                            .in_order = (flags & RAVENSTORE_IN_ORDER) != 0,
                            .timeout = TimeoutOf(timeout_ns)});
    return core::Ok();
  });
}

ravenstore_code_t ravenstore_region_await(const void* address, ravenstore_stream_t stream,
                                          uint64_t timeout_ns) {
  return Guard([&]() -> Status {
    Region::Await(address, stream, TimeoutOf(timeout_ns));
    return core::Ok();
  });
}

ravenstore_code_t ravenstore_region_keep_in_place(void* address, int32_t stays) {
  return Guard([&]() -> Status {
    Region::Keep(address, stays != 0);
    return core::Ok();
  });
}

ravenstore_code_t ravenstore_region_read(const void* address, uint64_t bytes, void* to,
                                         uint64_t timeout_ns) {
  return Guard([&]() -> Status {
    if (to == nullptr) return BadArgument("the memory to copy to is NULL");
    Region::Read(address, bytes, to, TimeoutOf(timeout_ns));
    return core::Ok();
  });
}

ravenstore_code_t ravenstore_region_take_orders(ravenstore_region_t* region, const char* job,
                                                uint32_t run) {
  return Guard([&]() -> Status {
    RAVEN_RETURN_IF_ERROR(CheckRegion(region, 0, 0));
    RegionOf(region)->TakeOrders(job != nullptr ? std::string(job) : client::ProgramName(), run);
    return core::Ok();
  });
}

int ravenstore_region_is_ordered(void) {
  return Region::IsAnyOrdered() ? 1 : 0;
}

int ravenstore_region_await_order(uint64_t timeout_ns) {
  const core::Duration timeout(static_cast<int64_t>(std::min<uint64_t>(timeout_ns, INT64_MAX)));
  const core::Tick deadline =
      timeout_ns == 0 ? core::kNever : client::DeadlineAfter(ravenstore::ipc::Now(), timeout);
  return client::Orders::AwaitAny(deadline) ? 1 : 0;
}

ravenstore_code_t ravenstore_region_obey(ravenstore_region_t* region, uint64_t* asleep) {
  return Guard([&]() -> Status {
    RAVEN_RETURN_IF_ERROR(CheckRegion(region, 0, 0));
    const bool sleeps = RegionOf(region)->Obey();
    if (asleep != nullptr) *asleep = sleeps ? 1 : 0;
    return core::Ok();
  });
}

ravenstore_code_t ravenstore_order_job(const char* socket, const char* job, const char* tag,
                                       uint32_t flags, uint64_t timeout_ns, uint64_t* bytes) {
  return Guard([&]() -> Status {
    if (job == nullptr) return BadArgument("the job is NULL");
    RAVEN_RETURN_IF_ERROR(CheckFlags(flags, RAVENSTORE_KEEP_NOTHING | RAVENSTORE_ORDER_WAKE));
    const client::wire::OrderJob order{.job = job,
                                       .tag = tag != nullptr ? tag : "",
                                       .wakes = (flags & RAVENSTORE_ORDER_WAKE) != 0,
                                       .keeps_nothing = (flags & RAVENSTORE_KEEP_NOTHING) != 0,
                                       .timeout_ns = timeout_ns};
    RAVEN_ASSIGN_OR_RETURN(const auto ordered,
                           client::OrderJob(socket != nullptr ? socket : "", order));
    if (bytes != nullptr) *bytes = ordered.bytes;
    return core::Ok();
  });
}

ravenstore_code_t ravenstore_region_get_info(const ravenstore_region_t* region,
                                             ravenstore_region_info_t* info) {
  return Guard([&]() -> Status {
    RAVEN_RETURN_IF_ERROR(CheckRegion(info == nullptr ? nullptr : region, 0, 0));
    const Region::View view = reinterpret_cast<const Region*>(region)->view();
    ravenstore_region_info_t filled{};
    filled.struct_size = info->struct_size;
    filled.bytes = view.bytes;
    filled.allocations = view.allocations;
    filled.asleep = view.is_asleep ? 1 : 0;
    filled.devices = view.devices;
    std::memcpy(info, &filled, std::min(info->struct_size, sizeof(filled)));
    return core::Ok();
  });
}

}  // extern "C"
