#include "daemon/machine_memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>

namespace ravenstore::daemon {
namespace {

using core::Bytes;

std::optional<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

std::optional<uint64_t> NumberAt(const std::string& text, size_t at) {
  at = text.find_first_not_of(" \t", at);
  if (at == std::string::npos) return std::nullopt;
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  return number;
}

// Of lines "name value".
std::optional<uint64_t> Field(const std::string& text, const std::string& name) {
  const std::string lines = "\n" + text;
  const size_t at = lines.find("\n" + name);
  if (at == std::string::npos) return std::nullopt;
  return NumberAt(lines, at + 1 + name.size());
}

// What the group at `path` leaves; nothing where it has no limit.
std::optional<Bytes> LeftBy(const std::string& path) {
  const auto limit = ReadFile(path + "/memory.max");
  const auto current = ReadFile(path + "/memory.current");
  if (!limit || !current) return std::nullopt;
  const auto most = NumberAt(*limit, 0);  // or "max"
  const auto used = NumberAt(*current, 0);
  if (!most || !used) return std::nullopt;
  // Pages of files count as used, and go when memory is wanted.
  const auto stat = ReadFile(path + "/memory.stat");
  const uint64_t reclaimable = stat ? Field(*stat, "inactive_file ").value_or(0) : 0;
  const uint64_t stays = *used - std::min(*used, reclaimable);
  return Bytes(*most - std::min(*most, stays));
}

}  // namespace

core::Result<MachineMemory> ReadMachineMemory(const MemorySources& sources) {
  const auto meminfo = ReadFile(sources.meminfo);
  const auto total = meminfo ? Field(*meminfo, "MemTotal:") : std::nullopt;
  const auto available = meminfo ? Field(*meminfo, "MemAvailable:") : std::nullopt;
  if (!total || !available) {
    return core::Error{core::ErrorCode::kSystem,
                       sources.meminfo + " does not say MemTotal and MemAvailable"};
  }
  MachineMemory memory{core::KiB(*total), core::KiB(*available)};
  const auto own = ReadFile(sources.own_group);
  const size_t at = own ? ("\n" + *own).find("\n0::/") : std::string::npos;
  if (at == std::string::npos) return memory;
  std::string group = own->substr(at + 3, own->find('\n', at) - (at + 3));
  // A group's limit holds for all that is below it.
  while (true) {
    if (const auto left = LeftBy(sources.groups + group)) {
      memory.available = std::min(memory.available, *left);
    }
    if (group.empty()) return memory;
    group.resize(group.rfind('/'));
  }
}

}  // namespace ravenstore::daemon
