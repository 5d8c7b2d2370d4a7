// How many bytes an array holds, from what was asked for.
#pragma once

#include <cstdint>

#include "interceptor/cuda_api.h"

namespace ravenstore::interceptor {

uint64_t TexelBytes(CUarray_format format, unsigned int channels);
// Height and depth of 0 are those of an array of fewer dimensions.
uint64_t ArrayBytes(uint64_t width, uint64_t height, uint64_t depth, uint64_t texel);
uint64_t MipmapBytes(uint64_t width, uint64_t height, uint64_t depth, uint64_t texel,
                     unsigned int flags, unsigned int levels);

}  // namespace ravenstore::interceptor
