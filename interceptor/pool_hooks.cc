// Pools that the program makes, and the calls after which a pool may hold less than before.
#include "interceptor/account.h"
#include "interceptor/allocate.h"
#include "interceptor/devices.h"
#include "interceptor/hooks.h"
#include "interceptor/ledger.h"
#include "interceptor/pool.h"
#include "interceptor/start.h"

namespace interceptor = ravenstore::interceptor;
namespace pool = interceptor::pool;

// A pool that the program makes is empty; which device it is of is all that is noted.

RAVEN_EXPORT CUresult cuMemPoolCreate(CUmemoryPool* made, const CUmemPoolProps* properties) {
  RAVEN_BEGIN(cuMemPoolCreate);
  const interceptor::Within within;
  const CUresult result = real(made, properties);
  if (!within.outermost() || result != CUDA_SUCCESS || !interceptor::Start()) return result;
  interceptor::Entry entry;
  entry.space = interceptor::Space::kPool;
  entry.key = reinterpret_cast<uint64_t>(*made);
  const bool of_device = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  entry.row = static_cast<int16_t>(of_device ? interceptor::RowOf(properties->location.id) : -1);
  entry.shared = properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE;
  interceptor::ledger.Add(entry);
  return result;
}

RAVEN_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool own) {
  RAVEN_BEGIN(cuMemPoolDestroy);
  const interceptor::Within within;
  return interceptor::FreeOf(interceptor::Space::kPool, reinterpret_cast<uint64_t>(own),
                             [&] { return real(own); });
}

// A pool releases memory that it need not keep when it is trimmed, and when a thread waits for the
// work in its streams.

RAVEN_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool from, size_t keep) {
  RAVEN_BEGIN(cuMemPoolTrimTo);
  const CUresult result = real(from, keep);
  pool::RefreshAll();
  return result;
}

RAVEN_EXPORT CUresult cuStreamSynchronize(CUstream stream) {
  RAVEN_BEGIN(cuStreamSynchronize);
  const CUresult result = real(stream);
  pool::RefreshAll();
  return result;
}

RAVEN_EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream) {
  RAVEN_BEGIN(cuStreamSynchronize_ptsz);
  const CUresult result = real(stream);
  pool::RefreshAll();
  return result;
}

RAVEN_EXPORT CUresult cuEventSynchronize(CUevent event) {
  RAVEN_BEGIN(cuEventSynchronize);
  const CUresult result = real(event);
  pool::RefreshAll();
  return result;
}

RAVEN_EXPORT CUresult cuCtxSynchronize() {
  RAVEN_BEGIN(cuCtxSynchronize);
  const CUresult result = real();
  pool::RefreshAll();
  return result;
}

RAVEN_EXPORT CUresult cuCtxSynchronize_v2(CUcontext context) {
  RAVEN_BEGIN(cuCtxSynchronize_v2);
  const CUresult result = real(context);
  pool::RefreshAll();
  return result;
}
