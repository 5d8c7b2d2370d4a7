// A directory of a test's own whose path leaves room for a Unix socket's 108 bytes.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

#include "core/check.h"

namespace ravenstore::ipc {

class ShortDirectory {
 public:
  ShortDirectory() { RAVEN_CHECK(mkdtemp(path_.data()) != nullptr); }
  ShortDirectory(const ShortDirectory&) = delete;
  ShortDirectory& operator=(const ShortDirectory&) = delete;
  ~ShortDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_ = "/tmp/raven-XXXXXX";
};

}  // namespace ravenstore::ipc
