// Every function of interceptor/touches.def, doing nothing with success: what the hooks tell of
// them does not depend on a driver that has them all.
#include "interceptor/cuda_api.h"

#define TOUCH(symbol, suffix, parameters, ...)         \
  RAVEN_EXPORT CUresult symbol parameters {            \
    return CUDA_SUCCESS;                               \
  }                                                    \
  RAVEN_EXPORT CUresult symbol##_##suffix parameters { \
    return CUDA_SUCCESS;                               \
  }
#define TOUCH_ONE(symbol, parameters, ...)  \
  RAVEN_EXPORT CUresult symbol parameters { \
    return CUDA_SUCCESS;                    \
  }
#include "interceptor/touches.def"
