// Under --mode=elastic: reports kernels with what their parameters name.
#include "interceptor/hooks.h"
#include "interceptor/params.h"
#include "interceptor/touch.h"

namespace ravenstore::interceptor {
namespace {

struct Shape {
  unsigned int grid[3];
  unsigned int block[3];
};

template <typename Call>
CUresult Launch(CUfunction function, const Shape& shape, CUstream stream, bool per_thread,
                void** parameters, void** extra, Call call) {
  const auto name = [&](Touched& touched) {
    touched.Function(function);
    touched.Shape(reinterpret_cast<uint64_t>(function));
    for (int i = 0; i < 3; ++i) touched.Shape(uint64_t{shape.grid[i]} << 32 | shape.block[i]);
    params::Name(function, parameters, extra, &touched);
  };
  return Touch(kKernel, stream, per_thread, name, call);
}

// Of several devices, or with parameters set one by one: the memory it touches is not looked up.
template <typename Call>
CUresult LaunchUnknown(CUfunction function, CUstream stream, bool per_thread, Call call) {
  const auto name = [function](Touched& touched) {
    touched.Function(function);
    touched.Unknown();
  };
  return Touch(kKernel, stream, per_thread, name, call);
}

// Functions go with their module, and their names come again.
template <typename Call>
CUresult Unload(Call call) {
  const CUresult result = call();
  params::Forget();
  return result;
}

Shape ShapeOf(const CUlaunchConfig* config) {
  if (config == nullptr) return {};
  return {{config->gridDimX, config->gridDimY, config->gridDimZ},
          {config->blockDimX, config->blockDimY, config->blockDimZ}};
}

CUstream StreamOf(const CUlaunchConfig* config) {
  return config == nullptr ? nullptr : config->hStream;
}

}  // namespace
}  // namespace ravenstore::interceptor

namespace interceptor = ravenstore::interceptor;

#define RAVEN_LAUNCHES(suffix, per_thread)                                                        \
  RAVEN_EXPORT CUresult cuLaunchKernel##suffix(                                                   \
      CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,         \
      unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,      \
      CUstream stream, void** parameters, void** extra) {                                         \
    RAVEN_BEGIN(cuLaunchKernel##suffix);                                                          \
    return interceptor::Launch(function, {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}}, \
                               stream, per_thread, parameters, extra, [&] {                       \
                                 return real(function, grid_x, grid_y, grid_z, block_x, block_y,  \
                                             block_z, shared, stream, parameters, extra);         \
                               });                                                                \
  }                                                                                               \
  RAVEN_EXPORT CUresult cuLaunchCooperativeKernel##suffix(                                        \
      CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,         \
      unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,      \
      CUstream stream, void** parameters) {                                                       \
    RAVEN_BEGIN(cuLaunchCooperativeKernel##suffix);                                               \
    return interceptor::Launch(function, {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}}, \
                               stream, per_thread, parameters, nullptr, [&] {                     \
                                 return real(function, grid_x, grid_y, grid_z, block_x, block_y,  \
                                             block_z, shared, stream, parameters);                \
                               });                                                                \
  }                                                                                               \
  RAVEN_EXPORT CUresult cuLaunchKernelEx##suffix(                                                 \
      const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra) {       \
    RAVEN_BEGIN(cuLaunchKernelEx##suffix);                                                        \
    return interceptor::Launch(function, interceptor::ShapeOf(config),                            \
                               interceptor::StreamOf(config), per_thread, parameters, extra,      \
                               [&] { return real(config, function, parameters, extra); });        \
  }
RAVEN_LAUNCHES(, false)
RAVEN_LAUNCHES(_ptsz, true)
#undef RAVEN_LAUNCHES

RAVEN_EXPORT CUresult cuLaunch(CUfunction function) {
  RAVEN_BEGIN(cuLaunch);
  return interceptor::LaunchUnknown(function, nullptr, false, [&] { return real(function); });
}

RAVEN_EXPORT CUresult cuLaunchGrid(CUfunction function, int width, int height) {
  RAVEN_BEGIN(cuLaunchGrid);
  return interceptor::LaunchUnknown(function, nullptr, false,
                                    [&] { return real(function, width, height); });
}

RAVEN_EXPORT CUresult cuLaunchGridAsync(CUfunction function, int width, int height,
                                        CUstream stream) {
  RAVEN_BEGIN(cuLaunchGridAsync);
  return interceptor::LaunchUnknown(function, stream, false,
                                    [&] { return real(function, width, height, stream); });
}

// The first of its devices stands for all: whatever they touch of other devices is not moved while
// they run there, since it is not known either.
RAVEN_EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* launches,
                                                           unsigned int devices,
                                                           unsigned int flags) {
  RAVEN_BEGIN(cuLaunchCooperativeKernelMultiDevice);
  CUstream stream = devices == 0 || launches == nullptr ? nullptr : launches->hStream;
  return interceptor::LaunchUnknown(nullptr, stream, false,
                                    [&] { return real(launches, devices, flags); });
}

RAVEN_EXPORT CUresult cuModuleUnload(CUmodule module) {
  RAVEN_BEGIN(cuModuleUnload);
  return interceptor::Unload([&] { return real(module); });
}

RAVEN_EXPORT CUresult cuLibraryUnload(CUlibrary library) {
  RAVEN_BEGIN(cuLibraryUnload);
  return interceptor::Unload([&] { return real(library); });
}
