#include "daemon/config.h"

#include <toml++/toml.h>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

#include "core/size_text.h"

namespace ravenstore::daemon {

namespace {

using core::Bytes;
using core::Error;
using core::ErrorCode;

// Sets one key's target from its node, or says what the key accepts.
using Setter = std::function<std::optional<std::string>(const toml::node&)>;

Setter Text(std::string* target) {
  return [target](const toml::node& node) -> std::optional<std::string> {
    const auto value = node.value_exact<std::string>();
    if (!value) return "a string";
    *target = *value;
    return std::nullopt;
  };
}

Setter OneOf(std::string* target, std::vector<std::string> choices) {
  return
      [target, choices = std::move(choices)](const toml::node& node) -> std::optional<std::string> {
        const auto value = node.value_exact<std::string>();
        std::string accepted = "one of";
        for (const auto& choice : choices) {
          if (value == choice) {
            *target = choice;
            return std::nullopt;
          }
          accepted += " \"" + choice + "\"";
        }
        return accepted;
      };
}

Setter Size(Bytes* target) {
  return [target](const toml::node& node) -> std::optional<std::string> {
    static const std::string kAccepted = "a size: a number of bytes, or a string such as \"12GiB\"";
    if (const auto number = node.value_exact<int64_t>()) {
      if (*number < 0) return kAccepted;
      *target = Bytes(static_cast<uint64_t>(*number));
      return std::nullopt;
    }
    const auto text = node.value_exact<std::string>();
    const auto bytes = text ? core::ParseBytes(*text) : std::nullopt;
    if (!bytes) return kAccepted;
    *target = *bytes;
    return std::nullopt;
  };
}

Setter SizeOrDefault(std::optional<Bytes>* target) {
  return [target](const toml::node& node) -> std::optional<std::string> {
    if (node.value_exact<std::string>() == "default") {
      target->reset();
      return std::nullopt;
    }
    Bytes bytes;
    if (const auto accepted = Size(&bytes)(node)) return *accepted + ", or \"default\"";
    *target = bytes;
    return std::nullopt;
  };
}

template <typename Number>
Setter Whole(Number* target, int64_t least, int64_t most) {
  return [target, least, most](const toml::node& node) -> std::optional<std::string> {
    const auto number = node.value_exact<int64_t>();
    if (!number || *number < least || *number > most) {
      return "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
    }
    *target = static_cast<Number>(*number);
    return std::nullopt;
  };
}

Setter Flag(bool* target) {
  return [target](const toml::node& node) -> std::optional<std::string> {
    const auto value = node.value_exact<bool>();
    if (!value) return "true or false";
    *target = *value;
    return std::nullopt;
  };
}

Setter Time(core::Duration* target, core::Duration unit, const char* accepted) {
  return [target, unit, accepted](const toml::node& node) -> std::optional<std::string> {
    const auto number = node.value<double>();
    if (!number || !(*number >= 0 && *number <= 1e9)) return accepted;  // NaN is neither
    *target = core::Duration(static_cast<int64_t>(*number * static_cast<double>(unit.count())));
    return std::nullopt;
  };
}

Setter Texts(std::vector<std::string>* target) {
  return [target](const toml::node& node) -> std::optional<std::string> {
    static const std::string kAccepted = "a list of strings";
    const toml::array* list = node.as_array();
    if (list == nullptr) return kAccepted;
    target->clear();
    for (const toml::node& item : *list) {
      const auto value = item.value_exact<std::string>();
      if (!value) return kAccepted;
      target->push_back(*value);
    }
    return std::nullopt;
  };
}

Setter Rate(double* target) {
  return [target](const toml::node& node) -> std::optional<std::string> {
    const auto number = node.value<double>();
    if (!number || !(*number >= 0)) return "bytes per second, or 0 for no limit";
    *target = *number;
    return std::nullopt;
  };
}

// The only list of keys.
std::map<std::string, Setter> Keys(Config* config) {
  using std::chrono::microseconds;
  using std::chrono::seconds;
  static constexpr const char* kMicroseconds = "a number of microseconds";
  static constexpr const char* kSeconds = "a number of seconds";
  return {
      {"socket.path", Text(&config->socket_path)},
      {"socket.group", Text(&config->socket_group)},
      {"socket.mode", Whole(&config->socket_mode, 0, 0777)},
      {"devices.backend", OneOf(&config->backend, {"auto", "cuda", "host"})},
      {"devices.uuids", Texts(&config->uuids)},
      {"devices.slab", Size(&config->slab)},
      {"limits.device_budget", Size(&config->device_budget)},
      {"limits.host_budget", Size(&config->host_budget)},
      {"limits.device_guarantee", SizeOrDefault(&config->device_guarantee)},
      {"limits.visible_memory", Size(&config->visible_memory)},
      {"limits.device_reserve", Size(&config->device_reserve)},
      {"limits.clients_max", Whole(&config->clients_max, 1, 100000)},
      {"host_pool.size", Size(&config->pool_size)},
      {"host_pool.step", Size(&config->pool_step)},
      {"host_pool.ahead", Size(&config->pool_ahead)},
      {"host_pool.numa_node", Whole(&config->pool_numa_node, -1, 1023)},
      {"transfer.chunk", Size(&config->chunk)},
      {"transfer.prefetch", Flag(&config->prefetch)},
      {"transfer.preclean", Flag(&config->preclean)},
      {"planner.policy", OneOf(&config->policy, {"value", "lru", "gdsf"})},
      {"planner.learn", Flag(&config->learn)},
      {"loop.spin_us", Time(&config->spin, microseconds(1), kMicroseconds)},
      {"loop.poll_us", Time(&config->poll, microseconds(1), kMicroseconds)},
      {"log.level", OneOf(&config->log_level, {"trace", "debug", "info", "warn", "error"})},
      {"shutdown.drain_s", Time(&config->drain, seconds(1), kSeconds)},
      {"shutdown.restart_timeout_s", Time(&config->restart_timeout, seconds(1), kSeconds)},
      {"host_backend.devices", Whole(&config->host_devices, 1, 16)},
      {"host_backend.total", Size(&config->host_device_total)},
      {"host_backend.bytes_per_second", Rate(&config->host_bytes_per_second)},
      {"host_backend.latency_us", Time(&config->host_latency, microseconds(1), kMicroseconds)},
  };
}

Error At(const std::string& name, const toml::source_region& source, const std::string& what) {
  return {ErrorCode::kInvalidArgument,
          name + ":" + std::to_string(source.begin.line) + ": " + what};
}

}  // namespace

core::Status ParseConfig(const std::string& text, const std::string& name, Config* config) {
  toml::table root;
  try {
    root = toml::parse(text, name);
  } catch (const toml::parse_error& error) {
    return At(name, error.source(), "not TOML: " + std::string(error.description()));
  }
  const auto keys = Keys(config);
  for (const auto& [section, content] : root) {
    const std::string section_name(section.str());
    const toml::table* table = content.as_table();
    if (table == nullptr) {
      return At(name, content.source(), "\"" + section_name + "\" is outside every [section]");
    }
    for (const auto& [key, node] : *table) {
      const std::string full = section_name + "." + std::string(key.str());
      const auto known = keys.find(full);
      if (known == keys.end()) {
        return At(name, node.source(),
                  "unknown key \"" + full + "\"; deploy/ravenstored.toml lists them");
      }
      if (const auto accepted = known->second(node)) {
        return At(name, node.source(), "\"" + full + "\" must be " + *accepted);
      }
    }
  }
  return core::Ok();
}

core::Status LoadConfig(const std::string& path, Config* config) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) return Error{ErrorCode::kInvalidArgument, path + ": cannot be read"};
  return ParseConfig(text.str(), path, config);
}

core::Status CheckConfig(const Config& config) {
  auto fail = [](const std::string& what) { return Error{ErrorCode::kInvalidArgument, what}; };
  constexpr Bytes kPage = core::MiB(2);
  const std::pair<const char*, Bytes> pages[] = {{"devices.slab", config.slab},
                                                 {"host_pool.step", config.pool_step}};
  for (const auto& [key, value] : pages) {
    if (value == Bytes{0} || value.RoundUp(kPage) != value) {
      return fail(std::string("\"") + key + "\" must be a multiple of 2 MiB, not " +
                  core::SizeText(value));
    }
  }
  // Sums of several are reckoned with, which must not overflow.
  if (config.slab > core::kRangeMax || config.pool_step > core::kRangeMax) {
    return fail("\"devices.slab\" and \"host_pool.step\" must be at most " +
                core::SizeText(core::kRangeMax));
  }
  if (config.pool_ahead > core::kRangeMax) {
    return fail("\"host_pool.ahead\" must be at most " + core::SizeText(core::kRangeMax) +
                ", not " + core::SizeText(config.pool_ahead));
  }
  if (config.chunk < core::MiB(1) || config.chunk > core::GiB(1) ||
      config.chunk.RoundUp(core::kExtentAlignment) != config.chunk) {
    return fail("\"transfer.chunk\" must be 1 MiB to 1 GiB and a multiple of 512 bytes, not " +
                core::SizeText(config.chunk));
  }
  if (config.pool_size > core::kRangeMax) {
    return fail("\"host_pool.size\" must be at most " + core::SizeText(core::kRangeMax) + ", not " +
                core::SizeText(config.pool_size));
  }
  if (config.socket_path.empty() || config.socket_path.size() > 107) {
    return fail("\"socket.path\" must have 1 to 107 bytes: \"" + config.socket_path + "\"");
  }
  return core::Ok();
}

}  // namespace ravenstore::daemon
