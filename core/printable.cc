#include "core/printable.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <optional>

namespace ravenstore::core {
namespace {

struct Range {
  char32_t first;
  char32_t last;
};

constexpr Range kUnsafe[] = {
    {0x0000, 0x001f}, {0x007f, 0x009f},    // control
    {0x00ad, 0x00ad},                      // soft hyphen
    {0x061c, 0x061c}, {0x180e, 0x180e},    // Arabic letter mark, Mongolian vowel separator
    {0x200b, 0x200f}, {0x2028, 0x202e},    // zero-width, marks, line ends, direction overrides
    {0x2060, 0x206f}, {0xfeff, 0xfeff},    // invisible operators, isolates, byte order mark
    {0xfff9, 0xfffb}, {0xe0000, 0xe0fff},  // annotations, tags
};
constexpr Range kJoining[] = {
    {0x0300, 0x036f}, {0x1ab0, 0x1aff}, {0x1dc0, 0x1dff},
    {0x20d0, 0x20ff}, {0xfe00, 0xfe0f}, {0xfe20, 0xfe2f},
};
constexpr Range kWide[] = {
    {0x1100, 0x115f},   {0x2e80, 0x303e},   {0x3041, 0xa4cf},   {0xac00, 0xd7a3},
    {0xf900, 0xfaff},   {0xfe30, 0xfe6f},   {0xff00, 0xff60},   {0xffe0, 0xffe6},
    {0x1f300, 0x1f64f}, {0x1f680, 0x1f6ff}, {0x1f900, 0x1f9ff}, {0x20000, 0x3fffd},
};

template <size_t N>
bool IsIn(const Range (&ranges)[N], char32_t point) {
  return std::any_of(std::begin(ranges), std::end(ranges), [point](const Range& range) {
    return range.first <= point && point <= range.last;
  });
}

struct Letter {
  std::string_view bytes;
  std::optional<char32_t> point;  // none: the byte is no UTF-8
};

// REQUIRES: `text` is not empty.
Letter FirstLetter(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const Letter wrong = {text.substr(0, 1), std::nullopt};
  if (byte(0) < 0x80) return {text.substr(0, 1), byte(0)};
  const size_t length = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};  // by length
  if (byte(0) < 0xc0 || byte(0) > 0xf7 || text.size() < length) return wrong;
  char32_t point = byte(0) & (0x7f >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return wrong;
    point = point << 6 | (byte(i) & 0x3f);
  }
  const bool surrogate = 0xd800 <= point && point <= 0xdfff;
  if (point < kLeast[length] || surrogate || point > 0x10ffff) return wrong;
  return {text.substr(0, length), point};
}

template <typename Take>
void ForEachLetter(std::string_view text, const Take& take) {
  while (!text.empty()) {
    const Letter letter = FirstLetter(text);
    take(letter);
    text.remove_prefix(letter.bytes.size());
  }
}

size_t WidthOf(const Letter& letter) {
  if (!letter.point) return 1;
  if (IsIn(kJoining, *letter.point)) return 0;
  return IsIn(kWide, *letter.point) ? 2 : 1;
}

std::string Escaped(char32_t point) {
  char text[16];
  if (point < 0x10000) {
    std::snprintf(text, sizeof(text), "\\u%04x", static_cast<unsigned>(point));
  } else {
    const auto above = static_cast<unsigned>(point - 0x10000);
    std::snprintf(text, sizeof(text), "\\u%04x\\u%04x", 0xd800 + (above >> 10),
                  0xdc00 + (above & 0x3ff));
  }
  return text;
}

}  // namespace

std::string Printable(std::string_view text) {
  std::string printable;
  ForEachLetter(text, [&](const Letter& letter) {
    if (letter.point && !IsIn(kUnsafe, *letter.point)) {
      printable += letter.bytes;
    } else {
      printable += '?';
    }
  });
  return printable;
}

std::string JsonQuoted(std::string_view text) {
  std::string quoted = "\"";
  ForEachLetter(text, [&](const Letter& letter) {
    const char32_t point = letter.point.value_or(0xfffd);
    if (point == '"' || point == '\\') {
      (quoted += '\\') += letter.bytes;
    } else if (!letter.point || point == '<' || IsIn(kUnsafe, point)) {
      quoted += Escaped(point);
    } else {
      quoted += letter.bytes;
    }
  });
  return quoted + '"';
}

size_t DisplayWidth(std::string_view text) {
  size_t width = 0;
  ForEachLetter(text, [&](const Letter& letter) { width += WidthOf(letter); });
  return width;
}

std::string CutToWidth(std::string_view text, size_t columns) {
  if (DisplayWidth(text) <= columns) return std::string(text);
  if (columns == 0) return "";
  std::string cut;
  size_t width = 1;  // the ellipsis
  bool full = false;
  ForEachLetter(text, [&](const Letter& letter) {
    full = full || width + WidthOf(letter) > columns;
    if (full) return;
    cut += letter.bytes;
    width += WidthOf(letter);
  });
  return cut + "…";
}

}  // namespace ravenstore::core
