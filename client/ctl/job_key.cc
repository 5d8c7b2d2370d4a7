#include "client/ctl/job_key.h"

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <system_error>

#include "ipc/program_name.h"

namespace ravenstore::client::ctl {
namespace {

namespace fs = std::filesystem;

// The file that runs, as a shell would find it; not where a link leads: an environment's python is
// a link to the system's.
std::string Program(const std::string& word) {
  if (word.find('/') != std::string::npos) return fs::absolute(word).lexically_normal().string();
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "/bin:/usr/bin" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const fs::path file = fs::path(folder.empty() ? "." : folder) / word;
    if (access(file.c_str(), X_OK) == 0) return fs::absolute(file).lexically_normal().string();
  }
  return word;
}

// FNV-1a of 128 bits.
class Hash {
 public:
  void Add(const std::string& word) {
    for (const char c : word) Byte(static_cast<unsigned char>(c));
    Byte(0);
  }
  std::string Digits() const {
    char text[33];
    std::snprintf(text, sizeof(text), "%016lx%016lx", static_cast<uint64_t>(value_ >> 64),
                  static_cast<uint64_t>(value_));
    return text;
  }

 private:
  using Wide = unsigned __int128;
  void Byte(unsigned char byte) { value_ = (value_ ^ byte) * kPrime; }

  static constexpr Wide kPrime = (Wide{1} << 88) + 0x13b;
  Wide value_ = Wide{0x6c62272e07bb0142} << 64 | 0x62b821756295c58d;
};

}  // namespace

std::string JobKey(const std::vector<std::string>& command) {
  Hash hash;
  std::error_code ignored;
  hash.Add(fs::current_path(ignored).string());
  hash.Add(Program(command.front()));
  for (size_t i = 1; i < command.size(); ++i) hash.Add(command[i]);
  return hash.Digits();
}

std::string CommandName(const std::vector<std::string>& command) {
  std::string words;
  for (const std::string& word : command) words.append(word).push_back('\0');
  const std::string program = fs::path(command.front()).filename();
  char name[256];
  const size_t length =
      ipc::NameOfProgram(program.c_str(), words.data(), words.size(), name, sizeof(name));
  return {name, length};
}

}  // namespace ravenstore::client::ctl
