// A file with a secret, for a test.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace ravenstore::client::exporter {

inline std::string WriteTokenFile(const std::string& folder, const std::string& text,
                                  mode_t mode = 0600) {
  const std::string path = folder + "/token";
  std::filesystem::remove(path);
  std::ofstream(path) << text;
  ::chmod(path.c_str(), mode);
  return path;
}

}  // namespace ravenstore::client::exporter
