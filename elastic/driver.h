// The functions of the CUDA driver that the engine calls: the real ones, never the interceptor's
// hooks.
#pragma once

#include <cuda.h>

#include "core/result.h"

namespace ravenstore::elastic {

#define RAVEN_ELASTIC_DRIVER(F)                 \
  F(cuCtxGetCurrent, ctx_get_current)           \
  F(cuCtxSetCurrent, ctx_set_current)           \
  F(cuEventCreate, event_create)                \
  F(cuEventDestroy, event_destroy)              \
  F(cuEventQuery, event_query)                  \
  F(cuEventRecord, event_record)                \
  F(cuMemAddressFree, address_free)             \
  F(cuMemAddressReserve, address_reserve)       \
  F(cuMemCreate, mem_create)                    \
  F(cuMemGetAddressRange, address_range)        \
  F(cuMemGetAllocationGranularity, granularity) \
  F(cuMemHostRegister, host_register)           \
  F(cuMemHostUnregister, host_unregister)       \
  F(cuMemMap, mem_map)                          \
  F(cuMemRelease, mem_release)                  \
  F(cuMemSetAccess, set_access)                 \
  F(cuMemUnmap, mem_unmap)                      \
  F(cuMemcpyAsync, copy_async)                  \
  F(cuPointerGetAttribute, pointer_attribute)   \
  F(cuStreamCreate, stream_create)              \
  F(cuStreamIsCapturing, is_capturing)          \
  F(cuThreadExchangeStreamCaptureMode, exchange_mode)

struct Driver {
#define RAVEN_ELASTIC_FIELD(symbol, field) decltype(&(symbol)) field = nullptr;
  RAVEN_ELASTIC_DRIVER(RAVEN_ELASTIC_FIELD)
#undef RAVEN_ELASTIC_FIELD
  // Null: times cannot be measured.
  decltype(&cuEventElapsedTime) elapsed = nullptr;
};

// `find` gives the real function by its exported name, or null.
// Errors: kUnsupported, with the name of the first that is missing.
core::Result<Driver> LoadDriver(void* (*find)(const char* symbol));

// While it lives no call of this thread's breaks a capture of the job's.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : driver_(driver) { driver_.exchange_mode(&mode_); }
  ~RelaxedCapture() { driver_.exchange_mode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // then what it was before
};

// An Error for `result` of the driver's `call` ("cuMemMap").
core::Error DriverError(const char* call, CUresult result);

}  // namespace ravenstore::elastic
