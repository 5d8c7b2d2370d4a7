// Bytes that come in parts, as lines.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace ravenstore::cluster {

// Owns: the bytes. Each byte is searched once and moved at most once, however short the lines are.
class LineBuffer {
 public:
  void Append(std::string_view bytes) {
    if (begin_ > 0) bytes_.erase(0, begin_);
    searched_ -= begin_;
    begin_ = 0;
    bytes_ += bytes;
  }
  // The next whole line, without its end. Valid until Append, Clear or the destructor.
  std::optional<std::string_view> Next() {
    const size_t end = bytes_.find('\n', searched_);
    if (end == std::string::npos) {
      searched_ = bytes_.size();
      return std::nullopt;
    }
    const std::string_view line = std::string_view(bytes_).substr(begin_, end - begin_);
    begin_ = searched_ = end + 1;
    return line;
  }
  // All that came after the last line that was taken.
  std::string_view rest() const { return std::string_view(bytes_).substr(begin_); }
  void Clear() { *this = {}; }

 private:
  std::string bytes_;
  size_t begin_ = 0;     // of what was not taken
  size_t searched_ = 0;  // from begin_ to here is no end of a line
};

}  // namespace ravenstore::cluster
