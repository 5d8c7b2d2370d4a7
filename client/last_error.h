// What every call of the C ABI does with its errors: a code, and words for the thread's next
// ravenstore_last_error(). No exception leaves it.
//
// Threads: each has its own words.
#pragma once

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

}  // namespace ravenstore::client
