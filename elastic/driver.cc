#include "elastic/driver.h"

#include <string>

namespace ravenstore::elastic {

// The exported name of what cuda.h calls `symbol`: some are macros for a later version.
#define RAVEN_ELASTIC_TEXT(symbol) #symbol
#define RAVEN_ELASTIC_NAME(symbol) RAVEN_ELASTIC_TEXT(symbol)

core::Result<Driver> LoadDriver(void* (*find)(const char* symbol)) {
  Driver driver;
#define RAVEN_ELASTIC_FIND(symbol, field)                                                    \
  driver.field = reinterpret_cast<decltype(driver.field)>(find(RAVEN_ELASTIC_NAME(symbol))); \
  if (driver.field == nullptr) {                                                             \
    return core::Error{core::ErrorCode::kUnsupported,                                        \
                       "the driver has no " RAVEN_ELASTIC_NAME(symbol)};                     \
  }
  RAVEN_ELASTIC_DRIVER(RAVEN_ELASTIC_FIND)
#undef RAVEN_ELASTIC_FIND
  // Older drivers have only the second, which does the same.
  void* elapsed = find("cuEventElapsedTime_v2");
  if (elapsed == nullptr) elapsed = find("cuEventElapsedTime");
  driver.elapsed = reinterpret_cast<decltype(driver.elapsed)>(elapsed);
  return driver;
}

core::Error DriverError(const char* call, CUresult result) {
  const bool room = result == CUDA_ERROR_OUT_OF_MEMORY;
  return {room ? core::ErrorCode::kOutOfMemory : core::ErrorCode::kDevice,
          std::string(call) + " returned " + std::to_string(static_cast<int>(result))};
}

}  // namespace ravenstore::elastic
