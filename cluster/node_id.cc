#include "cluster/node_id.h"

namespace ravenstore::cluster {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

}  // namespace

std::string ToHex(const uint8_t* bytes, size_t count) {
  std::string text;
  text.reserve(2 * count);
  for (size_t i = 0; i < count; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

bool FromHex(std::string_view text, uint8_t* bytes, size_t count) {
  if (text.size() != 2 * count) return false;
  for (size_t i = 0; i < count; ++i) {
    const size_t high = kDigits.find(text[2 * i]);
    const size_t low = kDigits.find(text[2 * i + 1]);
    if (high == kDigits.npos || low == kDigits.npos) return false;
    bytes[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return true;
}

}  // namespace ravenstore::cluster
