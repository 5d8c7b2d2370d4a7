#include "bench/cuda_runtime.h"

#include <dlfcn.h>

#include <vector>

#include "bench/figure.h"
#include "core/check.h"

namespace ravenstore::bench {

namespace {

// Values of the CUDA headers, which are not needed to build this.
constexpr int kBf16 = 14;        // CUDA_R_16BF
constexpr int kCompute32f = 68;  // CUBLAS_COMPUTE_32F
constexpr int kDefaultAlgorithm = -1;
constexpr int kNoTranspose = 0;
constexpr int kMatrixMax = 8192;

void* OpenOneOf(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (void* library = ::dlopen(name, RTLD_NOW | RTLD_GLOBAL)) return library;
  }
  return nullptr;
}

}  // namespace

struct GpuWork::Calls {
  int (*get_device_count)(int*);
  int (*malloc)(void**, size_t);
  int (*memset)(void*, int, size_t);
  int (*free)(void*);
  int (*stream_create)(void**, unsigned);
  int (*stream_synchronize)(void*);
  int (*stream_destroy)(void*);
  int (*event_create)(void**);
  int (*event_record)(void*, void*);
  int (*event_elapsed)(float*, void*, void*);
  int (*event_destroy)(void*);
  int (*blas_create)(void**);
  int (*blas_destroy)(void*);
  int (*blas_set_stream)(void*, void*);
  int (*gemm)(void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int,
              int, const void*, void*, int, int, int, int);
};

GpuWork::GpuWork() : calls_(std::make_unique<Calls>()) {}

core::Result<std::unique_ptr<GpuWork>> GpuWork::Create() {
  auto unavailable = [](const char* what) {
    return core::Error{core::ErrorCode::kUnavailable, what};
  };
  void* runtime = OpenOneOf({"libcudart.so.13", "libcudart.so.12", "libcudart.so"});
  if (runtime == nullptr) return unavailable("no CUDA runtime (libcudart.so) on this machine");
  void* blas = OpenOneOf({"libcublas.so.13", "libcublas.so.12", "libcublas.so"});
  if (blas == nullptr) return unavailable("no cuBLAS (libcublas.so) on this machine");
  std::unique_ptr<GpuWork> work(new GpuWork);
  Calls& calls = *work->calls_;
  bool all = true;
  auto load = [&all](void* library, const char* name, auto* call) {
    *call = reinterpret_cast<std::remove_reference_t<decltype(*call)>>(::dlsym(library, name));
    all &= *call != nullptr;
  };
  load(runtime, "cudaGetDeviceCount", &calls.get_device_count);
  load(runtime, "cudaMalloc", &calls.malloc);
  load(runtime, "cudaMemset", &calls.memset);
  load(runtime, "cudaFree", &calls.free);
  load(runtime, "cudaStreamCreateWithFlags", &calls.stream_create);
  load(runtime, "cudaStreamSynchronize", &calls.stream_synchronize);
  load(runtime, "cudaStreamDestroy", &calls.stream_destroy);
  load(runtime, "cudaEventCreate", &calls.event_create);
  load(runtime, "cudaEventRecord", &calls.event_record);
  load(runtime, "cudaEventElapsedTime", &calls.event_elapsed);
  load(runtime, "cudaEventDestroy", &calls.event_destroy);
  load(blas, "cublasCreate_v2", &calls.blas_create);
  load(blas, "cublasDestroy_v2", &calls.blas_destroy);
  load(blas, "cublasSetStream_v2", &calls.blas_set_stream);
  load(blas, "cublasGemmEx", &calls.gemm);
  if (!all) return unavailable("the CUDA libraries here lack an expected symbol");
  int count = 0;
  if (calls.get_device_count(&count) != 0 || count == 0)
    return unavailable("no GPU on this machine");
  constexpr unsigned kNonBlocking = 1;
  RAVEN_CHECK(calls.stream_create(&work->stream_, kNonBlocking) == 0);
  RAVEN_CHECK(calls.event_create(&work->begin_) == 0);
  RAVEN_CHECK(calls.event_create(&work->end_) == 0);
  RAVEN_CHECK(calls.blas_create(&work->blas_) == 0);
  RAVEN_CHECK(calls.blas_set_stream(work->blas_, work->stream_) == 0);
  for (void*& matrix : work->matrices_) {
    constexpr size_t kBytes = size_t{kMatrixMax} * kMatrixMax * 2;
    RAVEN_CHECK(calls.malloc(&matrix, kBytes) == 0);
    RAVEN_CHECK(calls.memset(matrix, 0x3c, kBytes) ==
                0);  // 0x3c3c is about 0.0115 in bf16: not zeros
  }
  return work;
}

GpuWork::~GpuWork() {
  if (blas_ == nullptr) return;
  calls_->stream_synchronize(stream_);
  for (void* matrix : matrices_) calls_->free(matrix);
  calls_->blas_destroy(blas_);
  calls_->event_destroy(begin_);
  calls_->event_destroy(end_);
  calls_->stream_destroy(stream_);
}

void GpuWork::Multiply(int n) {
  const float one = 1;
  const float zero = 0;
  RAVEN_CHECK(calls_->gemm(blas_, kNoTranspose, kNoTranspose, n, n, n, &one, matrices_[0], kBf16, n,
                           matrices_[1], kBf16, n, &zero, matrices_[2], kBf16, n, kCompute32f,
                           kDefaultAlgorithm) == 0);
}

void GpuWork::Synchronize() {
  RAVEN_CHECK(calls_->stream_synchronize(stream_) == 0);
}
void GpuWork::MarkBegin() {
  RAVEN_CHECK(calls_->event_record(begin_, stream_) == 0);
}
void GpuWork::MarkEnd() {
  RAVEN_CHECK(calls_->event_record(end_, stream_) == 0);
}

double GpuWork::Elapsed() {
  Synchronize();
  float milliseconds = 0;
  RAVEN_CHECK(calls_->event_elapsed(&milliseconds, begin_, end_) == 0);
  return milliseconds;
}

double GpuWork::ProductMilliseconds(int n, int count) {
  std::vector<double> each;
  for (int i = 0; i < count; ++i) {
    MarkBegin();
    Multiply(n);
    MarkEnd();
    each.push_back(Elapsed());
  }
  return Median(each);
}

}  // namespace ravenstore::bench
