// Reads files that hold secrets, and refuses those that others can read.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/result.h"

namespace ravenstore::transport {

// The whole of the file `path`, of at most `bytes_max`. Only its owner, who is this user or root,
// may be able to read or write it. `what` names it in messages: "the key file".
// Owns: nothing; the caller clears the secret.
// Errors: kNotFound, kPermission (also others' file, or one that others can read), kInvalidArgument
// (no regular file, or a longer one), kSystem. No message has a part of the file.
core::Result<std::string> ReadSecretFile(std::string_view what, const std::string& path,
                                         size_t bytes_max);

}  // namespace ravenstore::transport
