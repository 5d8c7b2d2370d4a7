// The key that all nodes of a cluster share, and its file.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>

#include "core/result.h"

namespace ravenstore::transport {

inline constexpr size_t kNodeKeyBytes = 32;

// Owns the key's bytes, and clears them when it goes.
class NodeKey {
 public:
  explicit NodeKey(const std::array<unsigned char, kNodeKeyBytes>& bytes) : bytes_(bytes) {}
  NodeKey(const NodeKey&) = default;
  NodeKey& operator=(const NodeKey&) = default;
  ~NodeKey();

  std::span<const unsigned char, kNodeKeyBytes> bytes() const { return bytes_; }

 private:
  std::array<unsigned char, kNodeKeyBytes> bytes_;
};

// Reads a file of 64 hexadecimal digits, as `openssl rand -hex 32` prints them. Only its owner, who
// is this user or root, may be able to read or write it.
// Errors: kNotFound, kPermission (also others' file, or one that others can read), kInvalidArgument
// (no regular file, or no key), kSystem. No message has a part of the key.
core::Result<NodeKey> ReadNodeKey(const std::string& path);

}  // namespace ravenstore::transport
