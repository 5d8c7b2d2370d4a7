// The text a model is trained on, as bytes, and the batches cut from it.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace ravenstore::examples {

// The licences that every Debian system carries: real English text that is always there.
inline constexpr char kDefaultText[] = "/usr/share/common-licenses";

// The bytes of a file, or of every file of a folder in the order of their names (a file that is
// there under several names counts once). Throws std::runtime_error that says what is missing.
std::string LoadText(const std::string& path);

// Cuts batches at random places of a text; the same seed gives the same batches everywhere.
class Batches {
 public:
  // REQUIRES: `text` outlives this. Throws std::runtime_error if it is shorter than one sequence.
  Batches(const std::string& text, int sequences, int tokens, uint64_t seed);

  // `sequences` runs of `tokens` bytes each, one after the other.
  std::vector<int64_t> Next();

 private:
  const std::string& text_;
  const int sequences_;
  const int tokens_;
  std::mt19937_64 random_;
};

}  // namespace ravenstore::examples
