#include "cluster/hex.h"

#include <span>

namespace ravenstore::cluster {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

std::string Digits(std::span<const std::byte> bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<size_t>(byte >> 4)];
    text += kDigits[std::to_integer<size_t>(byte & std::byte{15})];
  }
  return text;
}

bool ReadDigits(std::string_view text, std::span<std::byte> bytes) {
  if (text.size() != 2 * bytes.size()) return false;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const size_t high = kDigits.find(text[2 * i]);
    const size_t low = kDigits.find(text[2 * i + 1]);
    if (high == kDigits.npos || low == kDigits.npos) return false;
    bytes[i] = static_cast<std::byte>(high << 4 | low);
  }
  return true;
}

// Numbers begin with their highest digit.
using Bytes16 = std::array<std::byte, 16>;

template <typename T>
std::string NumberDigits(const T& number) {
  Bytes16 bytes;
  for (size_t i = 0; i < 8; ++i) {
    bytes[i] = static_cast<std::byte>(number.high >> (56 - 8 * i));
    bytes[8 + i] = static_cast<std::byte>(number.low >> (56 - 8 * i));
  }
  return Digits(bytes);
}

template <typename T>
std::optional<T> ReadNumber(std::string_view text) {
  Bytes16 bytes;
  if (!ReadDigits(text, bytes)) return std::nullopt;
  T number;
  for (size_t i = 0; i < 8; ++i) {
    number.high = number.high << 8 | std::to_integer<uint64_t>(bytes[i]);
    number.low = number.low << 8 | std::to_integer<uint64_t>(bytes[8 + i]);
  }
  return number;
}

}  // namespace

std::string ToHex(const Incarnation& incarnation) {
  return NumberDigits(incarnation);
}

std::string ToHex(const MachineId& machine) {
  return NumberDigits(machine);
}

std::string ToHex(const PublicKey& key) {
  return Digits(key);
}

template <>
std::optional<Incarnation> FromHex(std::string_view text) {
  return ReadNumber<Incarnation>(text);
}

template <>
std::optional<MachineId> FromHex(std::string_view text) {
  return ReadNumber<MachineId>(text);
}

template <>
std::optional<PublicKey> FromHex(std::string_view text) {
  PublicKey key;
  if (!ReadDigits(text, key)) return std::nullopt;
  return key;
}

}  // namespace ravenstore::cluster
