#include "bench/planner_references.h"

#include <fstream>
#include <sstream>
#include <utility>

namespace ravenstore::bench {

namespace {
using core::Error;
using core::ErrorCode;
using std::chrono::microseconds;
}  // namespace

core::Result<References> References::Read(const std::string& path) {
  std::ifstream file(path);
  if (!file) return Error{ErrorCode::kNotFound, "cannot read " + path};
  References references;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.empty() || line.front() == '#') continue;
    std::istringstream words(line);
    Key key;
    uint64_t fingerprint = 0;
    int64_t compute = 0;
    int64_t stall = 0;
    words >> key.trace >> key.machine >> key.percent >> key.from >> std::hex >> fingerprint >>
        std::dec >> compute >> stall;
    if (!words || compute < 0 || stall < 0)
      return Error{ErrorCode::kCorrupt, path + ", line " + std::to_string(number) +
                                            ": not \"trace machine percent from fingerprint "
                                            "compute_us stall_us\""};
    references.Add(std::move(key), {fingerprint, microseconds(compute), microseconds(stall)});
  }
  return references;
}

core::Status References::Write(const std::string& path) const {
  std::ofstream file(path);
  file << "# Written by `planner_bench --write-references FILE`.\n"
          "# trace machine percent from fingerprint compute_us stall_us\n";
  const auto in_us = [](core::Duration time) {
    return std::chrono::duration_cast<microseconds>(time).count();
  };
  for (const auto& [key, known] : known_) {
    file << key.trace << ' ' << key.machine << ' ' << key.percent << ' ' << key.from << ' '
         << std::hex << known.fingerprint << std::dec << ' ' << in_us(known.compute) << ' '
         << in_us(known.stall) << '\n';
  }
  file.close();
  if (!file) return Error{ErrorCode::kSystem, "cannot write " + path};
  return core::Ok();
}

std::optional<References::Known> References::Find(const Key& key, uint64_t fingerprint,
                                                  std::string* why) const {
  const auto found = known_.find(key);
  if (found != known_.end() && found->second.fingerprint == fingerprint) return found->second;
  *why = key.trace + " at " + std::to_string(key.percent) + "% on " + key.machine +
         (found == known_.end() ? " has no reference" : " is another trace than its reference's");
  return std::nullopt;
}

}  // namespace ravenstore::bench
