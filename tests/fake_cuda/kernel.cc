// The kernels: what they do to memory, on the thread of their stream.
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <array>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/state.h"

namespace fake_cuda {
namespace {

struct Kernels {
  std::atomic<uint64_t> nanoseconds{0};
  std::atomic<bool> held{false};
  std::atomic<int> running{0};
  std::atomic<uint64_t> done{0};
  std::atomic<uint64_t> wrong_words{0};
};

Kernels& kernels() {
  static Kernels* instance = [] {
    auto* made = new Kernels;
    const char* text = getenv("RAVENSTORE_FAKE_CUDA_KERNEL_NS");
    if (text != nullptr) made->nanoseconds = strtoull(text, nullptr, 10);
    return made;
  }();
  return *instance;
}

// A kernel between resolving its addresses and touching them: it stays here while kernels are held,
// and as long as each has to take.
class Running {
 public:
  Running() : begin_(Nanoseconds()) {
    ++kernels().running;
    for (int turn = 0; kernels().held; ++turn) Pause(turn);
    while (true) {
      const uint64_t taken = Nanoseconds() - begin_;
      const uint64_t wanted = kernels().nanoseconds;
      if (taken >= wanted) return;
      Nap(wanted - taken);
    }
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  ~Running() { --kernels().running; }

 private:
  const uint64_t begin_;
};

// Calls body(words, first, n) for runs of `n` words from the word `first` on, of which words[k] are
// those of the k-th address. False, with nothing done: an address with nothing there.
template <size_t N, typename Body>
bool ForWords(const std::array<CUdeviceptr, N>& addresses, uint64_t count, Body body) {
  std::array<Resolved, N> resolved;
  for (size_t k = 0; k < N; ++k) {
    if (addresses[k] % sizeof(uint64_t) != 0 ||
        !Resolve(addresses[k], count * sizeof(uint64_t), Reach::kDevice, &resolved[k])) {
      return false;
    }
  }
  const Running running;
  std::array<size_t, N> span{};
  std::array<size_t, N> offset{};
  for (uint64_t first = 0; first < count;) {
    std::array<uint64_t*, N> words;
    uint64_t n = count - first;
    for (size_t k = 0; k < N; ++k) {
      const Span& at = resolved[k].spans()[span[k]];
      words[k] = reinterpret_cast<uint64_t*>(at.begin + offset[k]);
      n = std::min<uint64_t>(n, (at.bytes - offset[k]) / sizeof(uint64_t));
    }
    // Mappings are whole pages, and no word spans two of them.
    if (n == 0) return false;
    body(words, first, n);
    first += n;
    for (size_t k = 0; k < N; ++k) {
      offset[k] += n * sizeof(uint64_t);
      if (offset[k] == resolved[k].spans()[span[k]].bytes) {
        ++span[k];
        offset[k] = 0;
      }
    }
  }
  return true;
}

template <typename Parameters>
Parameters Read(const char* parameters) {
  Parameters read;
  memcpy(&read, parameters, sizeof(read));
  return read;
}

bool CountWrong(uint64_t wrong, CUdeviceptr counter) {
  kernels().wrong_words += wrong;
  if (counter == 0) return true;
  Resolved found;
  if (counter % sizeof(uint32_t) != 0 ||
      !Resolve(counter, sizeof(uint32_t), Reach::kDevice, &found)) {
    return false;
  }
  auto* word = reinterpret_cast<uint32_t*>(found.spans().front().begin);
  __atomic_fetch_add(word, static_cast<uint32_t>(wrong), __ATOMIC_SEQ_CST);
  return true;
}

// Counts the words of `addresses[0]` that differ from expected(words, i, index).
template <size_t N, typename Expected>
bool Check(const std::array<CUdeviceptr, N>& addresses, uint64_t count, CUdeviceptr counter,
           Expected expected) {
  uint64_t wrong = 0;
  const bool there = ForWords<N>(addresses, count, [&](auto& words, uint64_t first, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) {
      wrong += words[0][i] != expected(words, i, first + i) ? 1 : 0;
    }
  });
  return there && CountWrong(wrong, counter);
}

bool Empty(const char*) {
  const Running running;
  return true;
}

struct FillParameters {
  CUdeviceptr to;
  uint64_t count, seed;
};
bool Fill(const char* parameters) {
  const auto in = Read<FillParameters>(parameters);
  return ForWords<1>({in.to}, in.count, [&](auto& words, uint64_t first, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) words[0][i] = FakeCudaMix(in.seed, first + i);
  });
}

struct AddParameters {
  CUdeviceptr to, from;
  uint64_t count;
};
bool Add(const char* parameters) {
  const auto in = Read<AddParameters>(parameters);
  return ForWords<2>({in.to, in.from}, in.count, [](auto& words, uint64_t, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) words[0][i] += words[1][i];
  });
}

struct CombineParameters {
  CUdeviceptr to;
  struct {
    CUdeviceptr a, b;
  } from;
  uint64_t count;
};
bool CombineWords(const CombineParameters& in) {
  return ForWords<3>({in.to, in.from.a, in.from.b}, in.count,
                     [](auto& words, uint64_t, uint64_t n) {
                       for (uint64_t i = 0; i < n; ++i) {
                         words[0][i] = FakeCudaMix(words[1][i], 0) + words[2][i];
                       }
                     });
}
// Its four parameters and the one of combine_packed have the same bytes.
bool Combine(const char* parameters) {
  return CombineWords(Read<CombineParameters>(parameters));
}

struct TableParameters {
  CUdeviceptr table;
  uint64_t count;
};
bool CombineTable(const char* parameters) {
  const auto in = Read<TableParameters>(parameters);
  CombineParameters named{};
  named.count = in.count;
  Resolved table;
  constexpr size_t kBytes = 3 * sizeof(CUdeviceptr);
  if (!Resolve(in.table, kBytes, Reach::kDevice, &table) || table.spans().front().bytes < kBytes) {
    return false;
  }
  memcpy(&named, table.spans().front().begin, kBytes);
  return CombineWords(named);
}

struct MadeTableParameters {
  CUdeviceptr table, to, a, b;
};
bool MakeTable(const char* parameters) {
  const auto in = Read<MadeTableParameters>(parameters);
  const CUdeviceptr named[] = {in.to, in.a, in.b};
  Resolved table;
  if (!Resolve(in.table, sizeof(named), Reach::kDevice, &table) ||
      table.spans().front().bytes < sizeof(named)) {
    return false;
  }
  const Running running;
  memcpy(table.spans().front().begin, named, sizeof(named));
  return true;
}

struct CheckParameters {
  CUdeviceptr from;
  uint64_t count, seed;
  CUdeviceptr wrong;
};
bool CheckWords(const char* parameters) {
  const auto in = Read<CheckParameters>(parameters);
  return Check<1>({in.from}, in.count, in.wrong,
                  [&](auto&, uint64_t, uint64_t index) { return FakeCudaMix(in.seed, index); });
}

struct CheckSumParameters {
  CUdeviceptr from;
  uint64_t count, seed, step, times;
  CUdeviceptr wrong;
};
bool CheckSum(const char* parameters) {
  const auto in = Read<CheckSumParameters>(parameters);
  return Check<1>({in.from}, in.count, in.wrong, [&](auto&, uint64_t, uint64_t index) {
    return FakeCudaMix(in.seed, index) + in.times * FakeCudaMix(in.step, index);
  });
}

struct CheckCombinedParameters {
  CUdeviceptr from, a, b;
  uint64_t count;
  CUdeviceptr wrong;
};
bool CheckCombined(const char* parameters) {
  const auto in = Read<CheckCombinedParameters>(parameters);
  return Check<3>({in.from, in.a, in.b}, in.count, in.wrong, [](auto& words, uint64_t i, uint64_t) {
    return FakeCudaMix(words[1][i], 0) + words[2][i];
  });
}

const std::vector<Kernel>& All() {
  static const auto* all = new std::vector<Kernel>{
      {"empty", {}, true, Empty},
      {"fill", {8, 8, 8}, true, Fill},
      {"opaque", {8, 8, 8}, false, Fill},
      {"add", {8, 8, 8}, true, Add},
      {"combine", {8, 8, 8, 8}, true, Combine},
      {"combine_packed", {sizeof(CombineParameters)}, true, Combine},
      {"combine_table", {8, 8}, true, CombineTable},
      {"make_table", {8, 8, 8, 8}, true, MakeTable},
      {FAKE_CUDA_NCCL_KERNEL, {8, 8}, true, CombineTable},
      {"check", {8, 8, 8, 8}, true, CheckWords},
      {"check_sum", {8, 8, 8, 8, 8, 8}, true, CheckSum},
      {"check_combined", {8, 8, 8, 8, 8}, true, CheckCombined},
  };
  return *all;
}

}  // namespace

size_t Kernel::OffsetOf(size_t parameter) const {
  size_t offset = 0;
  for (size_t i = 0; i < parameter; ++i) offset += sizes[i];
  return offset;
}

const Kernel* FindKernel(const char* name) {
  for (const Kernel& kernel : All()) {
    if (strcmp(kernel.name, name) == 0) return &kernel;
  }
  return nullptr;
}

void RunKernel(const Kernel& kernel, const char* parameters, CUcontext context) {
  if (!kernel.run(parameters)) context->error = CUDA_ERROR_ILLEGAL_ADDRESS;
  ++kernels().done;
}

}  // namespace fake_cuda

using fake_cuda::kernels;

void FakeCudaKernelNanoseconds(uint64_t nanoseconds) {
  kernels().nanoseconds = nanoseconds;
}

void FakeCudaHoldKernels(int hold) {
  kernels().held = hold != 0;
}

int FakeCudaRunningKernels() {
  return kernels().running;
}

uint64_t FakeCudaKernelsDone() {
  return kernels().done;
}

uint64_t FakeCudaWrongWords() {
  return kernels().wrong_words;
}
