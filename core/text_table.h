// Tables of text that fit a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ravenstore::core {

// `text`, which begins after `indent` columns, broken at blanks into lines of at most `columns`:
// all but the first begin with `indent` blanks. A word that is longer than that stands on a line of
// its own.
std::string Wrapped(std::string_view text, size_t columns, size_t indent);

// Columns two blanks apart. REQUIRES of the cells: printable (core/printable.h).
// Threads: one.
class TextTable {
 public:
  // A column a letter: '<' flush left, '>' flush right, '~' flush left and cut with an ellipsis
  // where the table is too wide, '|' (the last alone) broken into lines there.
  explicit TextTable(std::string columns) : columns_(std::move(columns)) {}

  // Cells that are missing are empty.
  void Row(std::vector<std::string> cells) {
    cells.resize(columns_.size());
    rows_.push_back(std::move(cells));
  }

  // How wide it is with nothing cut.
  size_t Width() const;
  // With a line feed after each row. At most `width` wide if cutting and breaking can reach that:
  // numbers stay whole.
  std::string Text(size_t width) const;

 private:
  std::vector<size_t> Widths() const;
  // `natural`, narrowed to `width` together.
  std::vector<size_t> Fit(std::vector<size_t> natural, size_t width) const;

  std::string columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace ravenstore::core
