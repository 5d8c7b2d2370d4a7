// Text tables for people, and the spelling of figures in them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ravenstore::examples {

// "1.50 GiB"; below one KiB "12 B".
std::string FormatBytes(uint64_t bytes);
// "1.234 s" or "12.3 ms".
std::string FormatSeconds(double seconds);

// The figures of several runs side by side: one column a run, one row a figure.
class Table {
 public:
  explicit Table(std::string title) : title_(std::move(title)) {}

  // The first row is the header. Every row has a name and as many cells as the first.
  void Add(std::string name, std::vector<std::string> cells);
  // Aligned, with the title above it and a line under the header.
  std::string Print() const;

 private:
  std::string title_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace ravenstore::examples
