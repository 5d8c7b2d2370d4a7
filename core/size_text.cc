#include "core/size_text.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace ravenstore::core {

std::optional<Bytes> ParseBytes(std::string_view text) {
  double number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc() || !std::isfinite(number) || number < 0) return std::nullopt;
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  if (!unit.empty() && unit != "B") {
    static constexpr std::string_view kPrefixes = "KMGT";
    const size_t prefix =
        kPrefixes.find(static_cast<char>(std::toupper(static_cast<unsigned char>(unit.front()))));
    if (prefix == std::string_view::npos) return std::nullopt;
    const std::string_view rest = unit.substr(1);
    if (!rest.empty() && rest != "B" && rest != "iB") return std::nullopt;
    number *= std::pow(rest == "B" ? 1000 : 1024, prefix + 1);
  }
  if (number >= std::ldexp(1.0, 63)) return std::nullopt;
  return Bytes(static_cast<uint64_t>(number));
}

std::optional<uint64_t> ParseNumber(std::string_view text) {
  uint64_t number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::string SizeText(Bytes bytes) {
  static constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double number = static_cast<double>(bytes.count());
  size_t unit = 0;
  // What one decimal would round up to 1024 belongs to the next unit, but whole bytes never round.
  while (number >= (unit == 0 ? 1024 : 1023.95) && unit + 1 < kUnits.size()) {
    number /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.1f %s", number, kUnits[unit]);
  return text;
}

}  // namespace ravenstore::core
