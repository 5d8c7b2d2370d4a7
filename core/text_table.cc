#include "core/text_table.h"

#include <algorithm>
#include <numeric>

#include "core/printable.h"

namespace ravenstore::core {
namespace {

constexpr size_t kGap = 2;
// A name that is cut to kCutMin can still be distinguished from another. A cell that is broken into
// lines of kWrapMin has room for a few words.
constexpr size_t kCutMin = 12;
constexpr size_t kWrapMin = 24;

size_t Sum(const std::vector<size_t>& widths) {
  if (widths.empty()) return 0;
  return std::accumulate(widths.begin(), widths.end(), kGap * (widths.size() - 1));
}

void Trim(std::string* line) {
  line->erase(line->find_last_not_of(' ') + 1);
}

}  // namespace

std::string Wrapped(std::string_view text, size_t columns, size_t indent) {
  std::string wrapped;
  size_t used = indent;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    const size_t width = DisplayWidth(word);
    if (used > indent && used + 1 + width > columns) {
      wrapped += '\n' + std::string(indent, ' ');
      used = indent;
    } else if (!wrapped.empty()) {
      wrapped += ' ';
      ++used;
    }
    wrapped += word;
    used += width;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return wrapped;
}

std::vector<size_t> TextTable::Widths() const {
  std::vector<size_t> widths(columns_.size(), 0);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], DisplayWidth(row[i]));
  }
  return widths;
}

size_t TextTable::Width() const {
  return Sum(Widths());
}

std::vector<size_t> TextTable::Fit(std::vector<size_t> widths, size_t width) const {
  size_t excess = Sum(widths) - std::min(Sum(widths), width);
  if (!columns_.empty() && columns_.back() == '|') {
    const size_t given = std::min(excess, widths.back() - std::min(widths.back(), kWrapMin));
    widths.back() -= given;
    excess -= given;
  }
  for (; excess > 0; --excess) {
    size_t widest = columns_.size();
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (columns_[i] != '~' || widths[i] <= kCutMin) continue;
      if (widest == columns_.size() || widths[i] > widths[widest]) widest = i;
    }
    if (widest == columns_.size()) break;
    --widths[widest];
  }
  return widths;
}

std::string TextTable::Text(size_t width) const {
  const std::vector<size_t> widths = Fit(Widths(), width);
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    size_t begin = 0;
    for (size_t i = 0; i < row.size(); ++i) {
      std::string cell = columns_[i] == '~' ? CutToWidth(row[i], widths[i]) : row[i];
      if (columns_[i] == '|') cell = Wrapped(cell, begin + widths[i], begin);
      const size_t taken = std::min(DisplayWidth(cell), widths[i]);
      const std::string padding(widths[i] - taken, ' ');
      if (i > 0) line += std::string(kGap, ' ');
      line += columns_[i] == '>' ? padding + cell : cell + padding;
      begin += widths[i] + kGap;
    }
    Trim(&line);
    text += line + '\n';
  }
  return text;
}

}  // namespace ravenstore::core
