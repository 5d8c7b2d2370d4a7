// What every call of the C ABI does with its errors: a code, and words for the thread's next
// ravenstore_last_error(). No exception leaves it. And what it does with its options.
//
// Threads: each has its own words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "client/client.h"
#include "core/result.h"

namespace ravenstore::client {

// Returns the code.
ravenstore_code_t Fail(core::ErrorCode code, const char* words) noexcept;
// Of the last call of this thread that failed.
const char* LastWords() noexcept;

// Runs `body`, which returns a Status.
template <typename Body>
ravenstore_code_t Guard(Body body) noexcept {
  try {
    const core::Status status = body();
    if (status.ok()) [[likely]]
      return RAVENSTORE_OK;
    return Fail(status.error().code, status.error().message.c_str());
  } catch (const ravenstore::Error& error) {
    return Fail(static_cast<core::ErrorCode>(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return Fail(core::ErrorCode::kSystem, "this process is out of memory");
  } catch (const std::exception& exception) {
    return Fail(core::ErrorCode::kSystem, exception.what());
  } catch (...) {
    return Fail(core::ErrorCode::kSystem, "an unknown exception");
  }
}

inline core::Error BadArgument(const char* words) {
  return {core::ErrorCode::kInvalidArgument, words};
}

// The caller's options. Those of another version of the struct, and none at all, are completed in
// `*filled`, whose values are the defaults.
template <typename Options>
core::Result<const Options*> Read(const Options* given, Options* filled) {
  if (given == nullptr) return filled;
  if (given->struct_size >= sizeof(Options)) [[likely]]
    return given;
  if (given->struct_size < sizeof(size_t)) {
    return BadArgument("options: set struct_size to sizeof(the struct)");
  }
  std::memcpy(filled, given, given->struct_size);
  return filled;
}

inline core::Status CheckFlags(uint32_t flags, uint32_t known) {
  if ((flags & ~known) == 0) return core::Ok();
  return BadArgument("options: unknown flags");
}

}  // namespace ravenstore::client
