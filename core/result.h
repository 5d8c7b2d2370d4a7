// Result<T>: a value, or an Error that says what was wrong and what to do.
//
// Operating failures travel as Result; broken invariants are RAVEN_CHECK (check.h). The codes are a
// closed set, the same inside, on the wire and in the C ABI, where they keep these numbers for
// ever.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "core/check.h"

namespace ravenstore::core {

enum class ErrorCode : uint16_t {
  kInvalidArgument = 1,   // the caller's argument makes no sense; the message names it
  kOutOfMemory = 2,       // no room within the budgets before the deadline
  kTimedOut = 3,          // the deadline passed for another reason than room
  kNotFound = 4,          // no such tensor, name, client or device
  kWrongState = 5,        // put twice, freed twice, used after put
  kLost = 6,              // the bytes are gone (daemon or device lost); for ever
  kCapturing = 7,         // the stream is being captured into a graph
  kForked = 8,            // this process is a fork of the one that connected
  kUnavailable = 9,       // no daemon at that socket, or it is shutting down
  kVersionMismatch = 10,  // client and daemon speak different protocols
  kPermission = 11,       // not this user's to do
  kDevice = 12,           // the driver refused; the message carries its words
  kSystem = 13,           // the operating system refused; the message carries errno
  kLimit = 14,            // a fixed bound (tensors, streams, names) is reached
  kCorrupt = 15,      // bytes written behind the store's back (poison mode), or a malformed message
  kUnsupported = 16,  // this backend or machine cannot do it
};

// "OUT_OF_MEMORY" and so on; "UNKNOWN" for a number outside the set.
std::string_view Name(ErrorCode code);

struct [[nodiscard]] Error {
  ErrorCode code;
  std::string message;
};

// "OUT_OF_MEMORY: device 0: ..." for logs and people.
std::string Describe(const Error& error);

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  // REQUIRES: ok().
  T& value() & {
    RAVEN_CHECK(ok());
    return std::get<0>(state_);
  }
  const T& value() const& {
    RAVEN_CHECK(ok());
    return std::get<0>(state_);
  }
  T&& value() && {
    RAVEN_CHECK(ok());
    return std::get<0>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  // REQUIRES: !ok().
  const Error& error() const& {
    RAVEN_CHECK(!ok());
    return std::get<1>(state_);
  }
  Error&& error() && {
    RAVEN_CHECK(!ok());
    return std::get<1>(std::move(state_));
  }

 private:
  std::variant<T, Error> state_;
};

// Success without a value.
struct Done {};
using Status = Result<Done>;
inline Status Ok() {
  return Done{};
}

}  // namespace ravenstore::core

// Returns the error of `expression` from the enclosing function, or goes on.
#define RAVEN_RETURN_IF_ERROR(expression)                             \
  do {                                                                \
    auto raven_status_ = (expression);                                \
    if (!raven_status_.ok()) return std::move(raven_status_).error(); \
  } while (false)

#define RAVEN_CONCAT_INNER_(a, b) a##b
#define RAVEN_CONCAT_(a, b) RAVEN_CONCAT_INNER_(a, b)

// RAVEN_ASSIGN_OR_RETURN(auto x, F()): declares x from F()'s value, or returns F()'s error.
#define RAVEN_ASSIGN_OR_RETURN(declaration, expression) \
  RAVEN_ASSIGN_OR_RETURN_IMPL_(RAVEN_CONCAT_(raven_result_, __LINE__), declaration, expression)
#define RAVEN_ASSIGN_OR_RETURN_IMPL_(result, declaration, expression) \
  auto result = (expression);                                         \
  if (!result.ok()) return std::move(result).error();                 \
  declaration = std::move(result).value()
