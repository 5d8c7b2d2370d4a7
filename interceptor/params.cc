#include "interceptor/params.h"

#include <pthread.h>
#include <string.h>

#include "interceptor/driver.h"
#include "interceptor/hooks.h"

namespace ravenstore::interceptor::params {
namespace {

// A run of words of one parameter.
struct Run {
  uint16_t parameter;
  uint16_t skip;  // bytes before the first aligned word
  uint16_t words;
};

struct Layout {
  uint64_t shape;  // a hash of all sizes
  uint32_t generation;
  bool known;   // where the parameters lie
  bool tables;  // it finds addresses elsewhere as well
  uint16_t runs;
  Run run[];
};

struct Slot {
  std::atomic<CUfunction> function;
  std::atomic<const Layout*> layout;
};

// Untouched pages of both are no memory. What does not fit is asked for again and again, or
// unknown.
constexpr size_t kSlots = size_t{1} << 14;
constexpr size_t kArena = size_t{4} << 20;
constexpr size_t kMostParameters = 4096;
constinit Slot slots[kSlots]{};
alignas(Layout) constinit char arena[kArena]{};

constinit pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
constinit size_t arena_used = 0;  // guarded by mutex, as writing a slot is
constinit std::atomic<uint32_t> generation{1};

struct Functions {
  decltype(&cuFuncGetParamInfo) of_function;
  decltype(&cuKernelGetParamInfo) of_kernel;
  decltype(&cuFuncGetName) name_of_function;
  decltype(&cuKernelGetName) name_of_kernel;
};

Functions FindFunctions() {
  Functions found{};
  const auto find = [](const char* symbol, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(DriverFunction(symbol));
  };
  find("cuFuncGetParamInfo", &found.of_function);
  find("cuKernelGetParamInfo", &found.of_kernel);
  find("cuFuncGetName", &found.name_of_function);
  find("cuKernelGetName", &found.name_of_kernel);
  return found;
}

CUresult Ask(const Functions& ask, CUfunction function, size_t index, size_t* offset,
             size_t* bytes) {
  CUresult result = ask.of_function == nullptr ? CUDA_ERROR_NOT_SUPPORTED
                                               : ask.of_function(function, index, offset, bytes);
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_INVALID_VALUE && ask.of_kernel != nullptr) {
    result = ask.of_kernel(reinterpret_cast<CUkernel>(function), index, offset, bytes);
  }
  return result;
}

// A function's own name in what C++'s compilers make of it: _Z, its length, the name, what it
// takes.
const char* OwnName(const char* name) {
  return strncmp(name, "_Z", 2) == 0 ? name + 2 + strspn(name + 2, "L0123456789") : name;
}

// NCCL's kernels find the addresses that they work on in tables of their own.
bool HasOwnTables(const Functions& ask, CUfunction function) {
  const char* name = nullptr;
  const bool named =
      (ask.name_of_function != nullptr && ask.name_of_function(&name, function) == CUDA_SUCCESS) ||
      (ask.name_of_kernel != nullptr &&
       ask.name_of_kernel(&name, reinterpret_cast<CUkernel>(function)) == CUDA_SUCCESS);
  return named && name != nullptr && strncmp(OwnName(name), "nccl", 4) == 0;
}

// REQUIRES mutex. Null: there is no room.
Layout* Read(CUfunction function) {
  auto* layout = reinterpret_cast<Layout*>(arena + arena_used);
  size_t left = kArena - arena_used;
  if (left < sizeof(Layout)) return nullptr;
  left -= sizeof(Layout);
  const Functions ask = FindFunctions();
  layout->shape = 0;
  layout->runs = 0;
  CUresult result = CUDA_SUCCESS;
  for (size_t i = 0; i < kMostParameters; ++i) {
    size_t offset = 0;
    size_t bytes = 0;
    result = Ask(ask, function, i, &offset, &bytes);
    if (result != CUDA_SUCCESS) break;
    layout->shape = Mix(layout->shape, bytes);
    const size_t skip = (8 - offset % 8) % 8;
    if (bytes < skip + 8) continue;
    if (left < sizeof(Run)) return nullptr;
    left -= sizeof(Run);
    layout->run[layout->runs++] = {static_cast<uint16_t>(i), static_cast<uint16_t>(skip),
                                   static_cast<uint16_t>((bytes - skip) / 8)};
  }
  // Past the last one the driver reports that there is none.
  layout->known = result == CUDA_ERROR_INVALID_VALUE;
  layout->tables = HasOwnTables(ask, function);
  layout->generation = generation.load();
  const size_t used = kArena - left - arena_used;
  arena_used += (used + alignof(Layout) - 1) / alignof(Layout) * alignof(Layout);
  return layout;
}

// The slot of the function, or the free one where it belongs; null: the table is full around it.
Slot* Seek(CUfunction function) {
  constexpr size_t kReach = 64;
  const uint64_t home = Mix(0, reinterpret_cast<uint64_t>(function));
  for (size_t i = 0; i < kReach; ++i) {
    Slot& slot = slots[(home + i) % kSlots];
    const CUfunction there = slot.function.load(std::memory_order_acquire);
    if (there == function || there == nullptr) return &slot;
  }
  return nullptr;
}

// Null: unknown for want of room.
const Layout* Of(CUfunction function) {
  Slot* slot = Seek(function);
  if (slot == nullptr) return nullptr;
  const Layout* layout = slot->function.load(std::memory_order_acquire) == function
                             ? slot->layout.load(std::memory_order_acquire)
                             : nullptr;
  if (layout != nullptr && layout->generation == generation.load(std::memory_order_relaxed)) {
    return layout;
  }
  pthread_mutex_lock(&mutex);
  slot = Seek(function);
  layout = slot == nullptr ? nullptr : Read(function);
  if (layout != nullptr) {
    slot->layout.store(layout, std::memory_order_release);
    slot->function.store(function, std::memory_order_release);
  }
  pthread_mutex_unlock(&mutex);
  return layout;
}

// All parameters, in one piece as the kernel gets them.
void NamePacked(void** extra, Touched* touched) {
  const void* buffer = nullptr;
  size_t bytes = 0;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = extra[1];
    if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *static_cast<const size_t*>(extra[1]);
  }
  touched->Shape(bytes);
  if (buffer != nullptr) touched->NameWords(buffer, bytes, 0);
}

}  // namespace

void Name(CUfunction function, void** parameters, void** extra, Touched* touched) {
  const Layout* layout = Of(function);
  touched->Runs(
      Mix(layout == nullptr ? 0 : layout->generation, reinterpret_cast<uint64_t>(function)));
  const bool is_known = layout != nullptr && !layout->tables && (layout->known || extra != nullptr);
  if (!is_known) return touched->Unknown();
  touched->Shape(layout->shape);
  if (extra != nullptr) return NamePacked(extra, touched);
  for (const Run* run = layout->run; parameters != nullptr && run != layout->run + layout->runs;
       ++run) {
    const auto* parameter = static_cast<const char*>(parameters[run->parameter]);
    if (parameter == nullptr) continue;
    touched->NameWords(parameter + run->skip, run->words * uint64_t{8}, 0);
  }
}

void Forget() {
  generation.fetch_add(1);
}

void ForgetInChild() {
  mutex = PTHREAD_MUTEX_INITIALIZER;
}

}  // namespace ravenstore::interceptor::params
