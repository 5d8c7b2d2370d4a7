// Linked with the toolkit's own static runtime: begins it, and says how that went.
#include <cuda_runtime_api.h>
#include <stdio.h>

int main() {
  int devices = 0;
  const cudaError_t result = cudaGetDeviceCount(&devices);
  printf("%d %s\n", static_cast<int>(result), cudaGetErrorName(result));
  return 0;
}
