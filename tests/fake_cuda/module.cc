// Modules, libraries, functions, what is known of their parameters, and launches.
#include <string.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/state.h"

// Also a CUkernel: the driver takes one for the other, too.
struct CUfunc_st {
  const fake_cuda::Kernel* kernel;
  CUmodule module;
};

// Also a CUlibrary. Guarded by the modules' mutex.
struct CUmod_st {
  std::map<std::string, CUfunc_st> functions;
};

namespace fake_cuda {

struct Launch {
  CUDA_KERNEL_NODE_PARAMS shape{};  // with the pointers below
  const Kernel* kernel = nullptr;
  std::vector<char> parameters;
  std::vector<void*> pointers;  // to each parameter in `parameters`
};

namespace {

struct Modules {
  std::mutex mutex;
  std::set<CUmodule> loaded;
  std::set<CUfunction> functions;
};
Modules& modules() {
  static Modules* instance = new Modules;
  return *instance;
}

CUresult Load(CUmodule* module, const void* image) {
  if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_unique<CUmod_st>();
  std::istringstream names(static_cast<const char*>(image));
  for (std::string name; names >> name;) {
    const Kernel* kernel = FindKernel(name.c_str());
    if (kernel == nullptr) return CUDA_ERROR_INVALID_IMAGE;
    made->functions[name] = {kernel, made.get()};
  }
  if (made->functions.empty()) return CUDA_ERROR_INVALID_IMAGE;
  std::lock_guard lock(modules().mutex);
  *module = made.release();
  modules().loaded.insert(*module);
  for (auto& [name, function] : (*module)->functions) modules().functions.insert(&function);
  return CUDA_SUCCESS;
}

CUresult Unload(CUmodule module) {
  std::lock_guard lock(modules().mutex);
  if (modules().loaded.erase(module) == 0) return CUDA_ERROR_INVALID_HANDLE;
  for (auto& [name, function] : module->functions) modules().functions.erase(&function);
  delete module;
  return CUDA_SUCCESS;
}

CUresult Find(CUfunction* function, CUmodule module, const char* name) {
  std::lock_guard lock(modules().mutex);
  if (modules().loaded.count(module) == 0) return CUDA_ERROR_INVALID_HANDLE;
  const auto found = module->functions.find(name);
  if (found == module->functions.end()) return CUDA_ERROR_NOT_FOUND;
  *function = &found->second;
  return CUDA_SUCCESS;
}

// Null: no such function.
const Kernel* KernelOf(CUfunction function) {
  std::lock_guard lock(modules().mutex);
  return modules().functions.count(function) == 1 ? function->kernel : nullptr;
}

CUresult ParameterInfo(CUfunction function, size_t index, size_t* offset, size_t* size) {
  const Kernel* kernel = KernelOf(function);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!kernel->exposes_parameters) return CUDA_ERROR_NOT_SUPPORTED;
  if (index >= kernel->sizes.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = kernel->OffsetOf(index);
  if (size != nullptr) *size = kernel->sizes[index];
  return CUDA_SUCCESS;
}

// The packed parameters that `extra` names; false: it is malformed or too short for the kernel.
bool Unpack(void** extra, std::vector<char>* parameters) {
  const void* buffer = nullptr;
  size_t bytes = 0;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      buffer = extra[1];
    } else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      bytes = *static_cast<const size_t*>(extra[1]);
    } else {
      return false;
    }
  }
  if (buffer == nullptr || bytes < parameters->size()) return false;
  memcpy(parameters->data(), buffer, parameters->size());
  return true;
}

// Copies the parameters, as the driver does before it returns.
CUresult Copy(Launch* launch, void** parameters, void** extra) {
  const Kernel& kernel = *launch->kernel;
  launch->parameters.resize(kernel.ParameterBytes());
  for (size_t i = 0; i < kernel.sizes.size(); ++i) {
    launch->pointers.push_back(launch->parameters.data() + kernel.OffsetOf(i));
  }
  if (parameters != nullptr && extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (extra != nullptr) {
    if (!Unpack(extra, &launch->parameters)) return CUDA_ERROR_INVALID_VALUE;
  } else if (!kernel.sizes.empty()) {
    if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < kernel.sizes.size(); ++i) {
      memcpy(launch->pointers[i], parameters[i], kernel.sizes[i]);
    }
  }
  launch->shape.kernelParams = launch->pointers.data();
  launch->shape.extra = nullptr;
  return CUDA_SUCCESS;
}

CUresult EnqueueKernel(const CUlaunchConfig& config, CUfunction function, void** parameters,
                       void** extra, CUcontext context) {
  auto launch = std::make_shared<Launch>();
  launch->kernel = KernelOf(function);
  if (launch->kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const unsigned int sizes[] = {config.gridDimX,  config.gridDimY,  config.gridDimZ,
                                config.blockDimX, config.blockDimY, config.blockDimZ};
  if (std::count(std::begin(sizes), std::end(sizes), 0u) != 0) return CUDA_ERROR_INVALID_VALUE;
  launch->shape.func = function;
  launch->shape.gridDimX = config.gridDimX;
  launch->shape.gridDimY = config.gridDimY;
  launch->shape.gridDimZ = config.gridDimZ;
  launch->shape.blockDimX = config.blockDimX;
  launch->shape.blockDimY = config.blockDimY;
  launch->shape.blockDimZ = config.blockDimZ;
  launch->shape.sharedMemBytes = config.sharedMemBytes;
  const CUresult copied = Copy(launch.get(), parameters, extra);
  if (copied != CUDA_SUCCESS) return copied;
  const auto run = [launch](CUcontext in) {
    RunKernel(*launch->kernel, launch->parameters.data(), in);
  };
  return Enqueue(config.hStream, context, {CU_GRAPH_NODE_TYPE_KERNEL, run, launch});
}

}  // namespace

void Describe(const Launch& launch, CUDA_KERNEL_NODE_PARAMS* parameters) {
  *parameters = launch.shape;
}

}  // namespace fake_cuda

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  FAKE_CUDA_CONTEXT("cuModuleLoadData");
  return fake_cuda::Load(module, image);
}

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int, CUjit_option*,
                            void**) {
  FAKE_CUDA_CONTEXT("cuModuleLoadDataEx");
  return fake_cuda::Load(module, image);
}

CUresult cuModuleUnload(CUmodule module) {
  FAKE_CUDA_CLEAN_UP("cuModuleUnload");
  return fake_cuda::Unload(module);
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  FAKE_CUDA_CONTEXT("cuModuleGetFunction");
  return fake_cuda::Find(function, module, name);
}

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*, void**,
                           unsigned int, CUlibraryOption*, void**, unsigned int) {
  FAKE_CUDA_ENTER("cuLibraryLoadData");
  return fake_cuda::Load(reinterpret_cast<CUmodule*>(library), code);
}

CUresult cuLibraryUnload(CUlibrary library) {
  FAKE_CUDA_ENTER("cuLibraryUnload");
  return fake_cuda::Unload(reinterpret_cast<CUmodule>(library));
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  FAKE_CUDA_ENTER("cuLibraryGetKernel");
  return fake_cuda::Find(reinterpret_cast<CUfunction*>(kernel), reinterpret_cast<CUmodule>(library),
                         name);
}

CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  FAKE_CUDA_CONTEXT("cuKernelGetFunction");
  *function = reinterpret_cast<CUfunction>(kernel);
  return fake_cuda::KernelOf(*function) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset, size_t* size) {
  FAKE_CUDA_ENTER("cuFuncGetParamInfo");
  return fake_cuda::ParameterInfo(function, index, offset, size);
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset, size_t* size) {
  FAKE_CUDA_ENTER("cuKernelGetParamInfo");
  return fake_cuda::ParameterInfo(reinterpret_cast<CUfunction>(kernel), index, offset, size);
}

CUresult cuFuncGetName(const char** name, CUfunction function) {
  FAKE_CUDA_ENTER("cuFuncGetName");
  const fake_cuda::Kernel* kernel = fake_cuda::KernelOf(function);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *name = kernel->name;
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                        unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                        unsigned int block_z, unsigned int shared, CUstream stream,
                        void** parameters, void** extra) {
  FAKE_CUDA_CONTEXT("cuLaunchKernel");
  const CUlaunchConfig config{grid_x,  grid_y, grid_z, block_x, block_y,
                              block_z, shared, stream, nullptr, 0};
  return fake_cuda::EnqueueKernel(config, function, parameters, extra, context);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters,
                          void** extra) {
  FAKE_CUDA_CONTEXT("cuLaunchKernelEx");
  return fake_cuda::EnqueueKernel(*config, function, parameters, extra, context);
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                   unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                   unsigned int block_z, unsigned int shared, CUstream stream,
                                   void** parameters) {
  FAKE_CUDA_CONTEXT("cuLaunchCooperativeKernel");
  const CUlaunchConfig config{grid_x,  grid_y, grid_z, block_x, block_y,
                              block_z, shared, stream, nullptr, 0};
  return fake_cuda::EnqueueKernel(config, function, parameters, nullptr, context);
}

// The variants for per-thread default streams.
#undef cuLaunchKernel
#undef cuLaunchKernelEx
#undef cuLaunchCooperativeKernel
extern "C" {
CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                             unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                             unsigned int block_z, unsigned int shared, CUstream stream,
                             void** parameters, void** extra) {
  return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared,
                        FAKE_CUDA_PER_THREAD(stream), parameters, extra);
}
CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction function, void** parameters,
                               void** extra) {
  CUlaunchConfig own = *config;
  own.hStream = FAKE_CUDA_PER_THREAD(own.hStream);
  return cuLaunchKernelEx(&own, function, parameters, extra);
}
CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned int grid_x,
                                        unsigned int grid_y, unsigned int grid_z,
                                        unsigned int block_x, unsigned int block_y,
                                        unsigned int block_z, unsigned int shared, CUstream stream,
                                        void** parameters) {
  return cuLaunchCooperativeKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                                   shared, FAKE_CUDA_PER_THREAD(stream), parameters);
}
}
