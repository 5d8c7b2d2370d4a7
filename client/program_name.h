// What this process is called where its program gives it no name (ipc/program_name.h). Threads:
// any.
#pragma once

#include <string>

#include "ipc/program_name.h"

namespace ravenstore::client {

inline std::string ProgramName() {
  char name[256];
  const size_t length = ipc::ProgramName(name, sizeof(name));
  return {name, length};
}

}  // namespace ravenstore::client
