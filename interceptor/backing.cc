#include "interceptor/backing.h"

#include "interceptor/account.h"
#include "interceptor/elastic_backing.h"
#include "interceptor/graph.h"
#include "interceptor/served.h"
#include "interceptor/settings.h"

namespace ravenstore::interceptor {
namespace {

// Serves nothing, so that nothing else of it is ever called for an entry.
constexpr Backing kDriver = {
    .counted = true,
    .wants = [](const Entry&) { return false; },
    .create = [](Entry*, const Order&) { return false; },
    .free = [](const Entry&, const Order&) {},
    .context_ends = [](CUcontext) {},
    .make_room = [](int, uint64_t) { return false; },
    .room_made = [](int, uint64_t, uint64_t) {},
    .free_to_job = [](int, uint64_t free) { return free; },
    .forget_in_child = [] {},
};

}  // namespace

const Backing& Serving() {
  switch (Asked().mode) {
    case Mode::kAccount: return kDriver;
    case Mode::kStore: return served::kBacking;
    case Mode::kElastic: return elastic::kBacking;
  }
  return kDriver;
}

bool AllocateBacked(Entry entry, const Order& order, CUdeviceptr* address, CUresult* result) {
  const Backing& serving = Serving();
  if (entry.row < 0 || !serving.wants(entry)) return false;
  if (serving.counted && !Reserve(entry.row, entry.bytes)) {
    *result = CUDA_ERROR_OUT_OF_MEMORY;
    return true;
  }
  entry.backing = &serving;
  if (!serving.create(&entry, order)) {
    if (serving.counted) Unreserve(entry.row, entry.bytes);
    return false;
  }
  if (!Commit(entry)) {
    serving.free(entry, order);
    return false;
  }
  *address = entry.key;
  *result = CUDA_SUCCESS;
  return true;
}

bool FreeBacked(CUdeviceptr address, const Order& order) {
  if (Asked().mode == Mode::kAccount) return false;
  Entry entry;
  if (!ledger.Find(Space::kMemory, address, &entry) || entry.backing == nullptr) {
    return false;
  }
  // What is freed in a capture is the graph's.
  if (order.ordered && graph::Capturing(order.stream, false)) return false;
  if (!ledger.Take(Space::kMemory, address, &entry)) return false;
  Uncharge(entry);
  entry.backing->free(entry, order);
  return true;
}

}  // namespace ravenstore::interceptor
