#include "core/result.h"

namespace ravenstore::core {

std::string_view Name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return "INVALID_ARGUMENT";
    case ErrorCode::kOutOfMemory: return "OUT_OF_MEMORY";
    case ErrorCode::kTimedOut: return "TIMED_OUT";
    case ErrorCode::kNotFound: return "NOT_FOUND";
    case ErrorCode::kWrongState: return "WRONG_STATE";
    case ErrorCode::kLost: return "LOST";
    case ErrorCode::kCapturing: return "CAPTURING";
    case ErrorCode::kForked: return "FORKED";
    case ErrorCode::kUnavailable: return "UNAVAILABLE";
    case ErrorCode::kVersionMismatch: return "VERSION_MISMATCH";
    case ErrorCode::kPermission: return "PERMISSION";
    case ErrorCode::kDevice: return "DEVICE";
    case ErrorCode::kSystem: return "SYSTEM";
    case ErrorCode::kLimit: return "LIMIT";
    case ErrorCode::kCorrupt: return "CORRUPT";
    case ErrorCode::kUnsupported: return "UNSUPPORTED";
  }
  return "UNKNOWN";
}

std::string Describe(const Error& error) {
  return std::string(Name(error.code)) + ": " + error.message;
}

}  // namespace ravenstore::core
