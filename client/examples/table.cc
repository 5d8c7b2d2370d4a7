#include "client/examples/table.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace ravenstore::examples {
namespace {

std::string Format(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

}  // namespace

std::string FormatBytes(uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes >= uint64_t{1} << 30) return Format("%.2f GiB", value / (uint64_t{1} << 30));
  if (bytes >= uint64_t{1} << 20) return Format("%.1f MiB", value / (uint64_t{1} << 20));
  if (bytes >= uint64_t{1} << 10) return Format("%.1f KiB", value / (uint64_t{1} << 10));
  return Format("%.0f B", value);
}

std::string FormatSeconds(double seconds) {
  return seconds >= 1 ? Format("%.3f s", seconds) : Format("%.1f ms", seconds * 1e3);
}

void Table::Add(std::string name, std::vector<std::string> cells) {
  cells.insert(cells.begin(), std::move(name));
  rows_.push_back(std::move(cells));
}

std::string Table::Print() const {
  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text = title_ + "\n";
  for (size_t r = 0; r < rows_.size(); ++r) {
    std::string line;
    for (size_t i = 0; i < rows_[r].size(); ++i) {
      const std::string padding(widths[i] - rows_[r][i].size(), ' ');
      if (i > 0) line += "  ";
      line += i == 0 ? rows_[r][i] + padding : padding + rows_[r][i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
    if (r > 0) continue;
    size_t total = 2 * (widths.size() - 1);
    for (size_t width : widths) total += width;
    text += std::string(total, '-') + "\n";
  }
  return text;
}

}  // namespace ravenstore::examples
