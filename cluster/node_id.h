// What a node is known by, and how that is written.
//
// A node has a name, which its operator chose; a key, which it keeps for life; an incarnation,
// which it has from one start to the next; and the id of the machine that it runs on.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ravenstore::cluster {

// Bytes that are compared, never counted. The tag keeps one kind from being passed for another.
template <size_t kBytes, typename Tag>
struct Opaque {
  std::array<uint8_t, kBytes> bytes{};
  auto operator<=>(const Opaque&) const = default;
};

// 128 random bits of one start of a node. Two starts are never equal, and nothing orders them.
using Incarnation = Opaque<16, struct IncarnationTag>;
// Copies that are to survive a machine lie on two of them.
using MachineId = Opaque<16, struct MachineIdTag>;
// Of Ed25519.
using PublicKey = Opaque<32, struct PublicKeyTag>;
using Signature = Opaque<64, struct SignatureTag>;

// Lower-case hexadecimal digits, and back: nothing for another number of them, or other characters.
std::string ToHex(const uint8_t* bytes, size_t count);
bool FromHex(std::string_view text, uint8_t* bytes, size_t count);

template <size_t kBytes, typename Tag>
std::string ToHex(const Opaque<kBytes, Tag>& what) {
  return ToHex(what.bytes.data(), kBytes);
}

// REQUIRES: T is an Opaque.
template <typename T>
std::optional<T> FromHex(std::string_view text) {
  T what;
  if (!FromHex(text, what.bytes.data(), what.bytes.size())) return std::nullopt;
  return what;
}

}  // namespace ravenstore::cluster
