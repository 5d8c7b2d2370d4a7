// The name under which the daemon remembers what a command took (daemon/job_history.h).
//
// Two commands are the same if they are given in the same folder, the same program would run, and
// the words behind it are equal.
#pragma once

#include <string>
#include <vector>

namespace ravenstore::client::ctl {

// 32 lower-case hexadecimal digits. REQUIRES: there is a first word.
std::string JobKey(const std::vector<std::string>& command);

// What the command's process will be called (ipc/program_name.h). REQUIRES: there is a first word.
std::string CommandName(const std::vector<std::string>& command);

}  // namespace ravenstore::client::ctl
