#include "client/examples/text.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <stdexcept>

namespace ravenstore::examples {
namespace {

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read the text " + path.string());
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

std::string LoadText(const std::string& path) {
  namespace fs = std::filesystem;
  if (!fs::exists(path))
    throw std::runtime_error("there is no text at " + path + ": name a file with --text");
  if (!fs::is_directory(path)) return ReadFile(path);
  std::set<fs::path> files;  // sorted, each once
  for (const auto& entry : fs::directory_iterator(path))
    if (fs::is_regular_file(entry)) files.insert(fs::canonical(entry.path()));
  std::string text;
  for (const auto& file : files) text += ReadFile(file);
  if (text.empty()) throw std::runtime_error(path + " holds no text: name a file with --text");
  return text;
}

Batches::Batches(const std::string& text, int sequences, int tokens, uint64_t seed)
    : text_(text), sequences_(sequences), tokens_(tokens), random_(seed) {
  if (text.size() < static_cast<size_t>(tokens))
    throw std::runtime_error("the text has " + std::to_string(text.size()) +
                             " bytes, fewer than one sequence of " + std::to_string(tokens));
}

std::vector<int64_t> Batches::Next() {
  std::vector<int64_t> batch;
  batch.reserve(static_cast<size_t>(sequences_) * tokens_);
  for (int i = 0; i < sequences_; ++i) {
    const size_t begin = random_() % (text_.size() - tokens_ + 1);
    for (int j = 0; j < tokens_; ++j) batch.push_back(static_cast<uint8_t>(text_[begin + j]));
  }
  return batch;
}

}  // namespace ravenstore::examples
