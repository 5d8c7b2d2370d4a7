#include "interceptor/touch.h"

#include <string.h>

#include "interceptor/driver.h"
#include "interceptor/graph.h"
#include "interceptor/hooks.h"

namespace ravenstore::interceptor {
namespace {

constinit std::atomic<int> captures{0};

// Ordinary memory of the host or what CUDA pinned of it: the CPU can read it.
bool IsHost(uint64_t address) {
  static std::atomic<decltype(&cuPointerGetAttribute)> slot{nullptr};
  auto get = slot.load(std::memory_order_relaxed);
  if (get == nullptr) {
    get = reinterpret_cast<decltype(get)>(DriverFunction("cuPointerGetAttribute"));
    slot.store(get, std::memory_order_relaxed);
  }
  unsigned int type = 0;
  if (get == nullptr || elastic::MayBeOurs(address)) return false;
  const CUresult result = get(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
  return result == CUDA_SUCCESS ? type == CU_MEMORYTYPE_HOST : result == CUDA_ERROR_INVALID_VALUE;
}

const char* NameOfKind(uint64_t kind) {
  if (kind < kHooks) return InfoOf(static_cast<Hook>(kind)).symbol;
  return kind == kGraph ? "graph" : "kernel";
}

// `visit` gets the words that are aligned where they will lie.
template <typename Visit>
void ForEachWord(const void* from, uint64_t bytes, uint64_t at, Visit visit) {
  const auto* text = static_cast<const char*>(from);
  for (uint64_t i = (8 - at % 8) % 8; i + 8 <= bytes; i += 8) {
    uint64_t word = 0;
    memcpy(&word, text + i, 8);
    visit(word);
  }
}

}  // namespace

void Touched::NameWords(const void* from, uint64_t bytes, uint64_t at) {
  ForEachWord(from, bytes, at, [this](uint64_t word) { Name(word); });
}

void Touched::Table(uint64_t to, const void* from, uint64_t bytes) {
  if (!is_after_ || bytes > kLargestTable || from == nullptr) return;
  ForEachWord(from, bytes, to, elastic::PinFollowed);
}

void Touched::MaybeTable(uint64_t to, uint64_t from, uint64_t bytes) {
  if (!is_after_ || bytes > kLargestTable || bytes < 8 || !IsHost(from)) return;
  Table(to, reinterpret_cast<const void*>(from), bytes);
}

Touching::Touching(Touched* touched, CUstream stream, bool per_thread) {
  // Code that names other memory may find addresses of ours there.
  const Code& code = touched->code_;
  const bool follows = code.name != 0 && (code.other_count > 0 ||
                                          elastic::any_pinned.load(std::memory_order_relaxed));
  const bool matters = touched->count_ > 0 || touched->unknown_ || follows;
  if (!matters) return;
  if (stream == nullptr && per_thread) stream = CU_STREAM_PER_THREAD;
  // What is captured runs when its graph is launched.
  if (captures.load(std::memory_order_relaxed) > 0 && graph::Capturing(stream, false)) {
    // But the driver looks at addresses of copies and sets at capture, and at none of kernels.
    if (touched->kind_ < kHooks && touched->count_ > 0) elastic::ReachAll();
    return;
  }
  use_.Begin({touched->identity_, stream, nullptr, touched->count_, touched->unknown_ ? 1u : 0u,
              NameOfKind(touched->kind_), touched->function_, code.name, code.pattern, code.others,
              code.other_count},
             touched->room_);
}

void CaptureBegan() {
  captures.fetch_add(1);
}

void CaptureEnded() {
  int before = captures.load();
  while (before > 0 && !captures.compare_exchange_weak(before, before - 1)) {
  }
}

}  // namespace ravenstore::interceptor
