#include "client/examples/options.h"

#include <cctype>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <stdexcept>

namespace ravenstore::examples {

const char kUsage[] =
    R"(train_gpt: trains a byte-level GPT with its saved activations in Ravenstore.

  --demo                the whole story: what a plain run needs, that it runs out of memory under a
                        limit, that it finishes under the same limit with the store
  --size tiny|small|medium
                        4 x 64, 6 x 384 or GPT-2 medium's 24 x 1024 (layers x width)
  --steps N --batch N --seq N --lr X --seed N
  --budget B            device memory for the store: bytes (300MiB) or a part of the measured
                        activations (25%); default 50%, with --demo 25%
  --budgets 100,75,50   one run for each percentage
  --torch-share PERCENT of each budget is held by torch, the rest by the store. Default: all of it,
                        once it is seen that everything fits, which then is copied no more; 0 where
                        it does not fit, or under a device limit
  --no-hints            the store is told nothing of what comes next and learns it step by step
  --plain               only the run without the store
  --device-limit BYTES  of the device, for torch and the store together
  --host-budget BYTES   host memory for the store (default: the daemon's limit for this user)
  --text PATH           a file, or a folder of files (default /usr/share/common-licenses)
  --socket PATH         the daemon's socket (default $RAVENSTORE_SOCKET)
  --device auto|cuda|cpu
                        auto is a GPU if torch and the daemon have one, else the simulated device
  --threads N           of torch on the CPU (default 2; the losses depend on it)
  --json                one JSON object for each run instead of the table

Exits with 1 when a run that must finish does not, or when losses differ from the plain run's.
)";

namespace {

struct Size {
  int layers, width, heads, steps, batch, seq;
  double learning_rate;
};
const std::map<std::string, Size> kSizes = {
    {"tiny", {4, 64, 4, 12, 8, 128, 3e-3}},
    {"small", {6, 384, 6, 20, 16, 256, 6e-4}},
    {"medium", {24, 1024, 16, 20, 16, 1024, 3e-4}},
};

double Number(const std::string& text, size_t* used) {
  try {
    const double value = std::stod(text, used);
    if (std::isfinite(value) && value >= 0) return value;
  } catch (const std::exception&) {
  }
  throw std::runtime_error("\"" + text + "\" is not a number");
}

uint64_t Count(const std::string& text) {
  size_t used = 0;
  const double value = Number(text, &used);
  if (used != text.size() || value != std::floor(value))
    throw std::runtime_error("\"" + text + "\" is not a whole number");
  return static_cast<uint64_t>(value);
}

int Positive(const std::string& text) {
  const uint64_t value = Count(text);
  if (value == 0 || value > 1000000)
    throw std::runtime_error("\"" + text + "\" must be between 1 and 1000000");
  return static_cast<int>(value);
}

double ParsePercent(const std::string& text) {
  size_t used = 0;
  const double percent = Number(text, &used);
  if (used != text.size() && text.substr(used) != "%")
    throw std::runtime_error("\"" + text + "\" is not a percentage");
  return percent;
}

Budget ParseBudget(const std::string& text, bool always_percent) {
  Budget budget;
  if (!always_percent && (text.empty() || text.back() != '%'))
    budget.bytes = ParseBytes(text);
  else
    budget.percent = ParsePercent(text);
  if (budget.bytes == 0 && budget.percent <= 0)
    throw std::runtime_error("a budget of \"" + text + "\" is none");
  return budget;
}

std::vector<Budget> ParseBudgets(const std::string& text) {
  std::vector<Budget> budgets;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    budgets.push_back(ParseBudget(text.substr(begin, end - begin), true));
    begin = end + 1;
  }
  return budgets;
}

std::string OneOf(const std::string& text, const std::vector<std::string>& choices) {
  std::string all;
  for (const auto& choice : choices) {
    if (text == choice) return text;
    all += (all.empty() ? "" : ", ") + choice;
  }
  throw std::runtime_error("\"" + text + "\" is none of " + all);
}

void ApplySize(Options& options) {
  const Size& size = kSizes.at(options.size);
  options.layers = size.layers;
  options.width = size.width;
  options.heads = size.heads;
  if (!options.steps) options.steps = size.steps;
  if (!options.batch) options.batch = size.batch;
  if (!options.seq) options.seq = size.seq;
  if (options.learning_rate == 0) options.learning_rate = size.learning_rate;
  if (options.budgets.empty()) options.budgets = {Budget{.percent = options.demo ? 25.0 : 50.0}};
}

}  // namespace

uint64_t Budget::Resolve(uint64_t activations) const {
  if (bytes) return bytes;
  return static_cast<uint64_t>(static_cast<double>(activations) * percent / 100);
}

std::string Budget::Format() const {
  if (bytes) return std::to_string(bytes) + " B";
  char text[32];
  std::snprintf(text, sizeof(text), "%g%%", percent);
  return text;
}

uint64_t ParseBytes(const std::string& text) {
  size_t used = 0;
  const double value = Number(text, &used);
  std::string unit;
  for (char c : text.substr(used))
    if (c != ' ') unit += static_cast<char>(std::tolower(c));
  static const std::map<std::string, double> units = {
      {"", 1},          {"b", 1},    {"k", 1 << 10}, {"kib", 1 << 10}, {"kb", 1e3}, {"m", 1 << 20},
      {"mib", 1 << 20}, {"mb", 1e6}, {"g", 1 << 30}, {"gib", 1 << 30}, {"gb", 1e9},
  };
  const auto found = units.find(unit);
  if (found == units.end() || value * found->second < 1)
    throw std::runtime_error("\"" + text + "\" is not a number of bytes such as 300MiB");
  return static_cast<uint64_t>(value * found->second);
}

Options ParseOptions(const std::vector<std::string>& arguments) {
  Options o;
  const std::map<std::string, std::function<void(const std::string&)>> values = {
      {"--size",
       [&](auto& v) {
         o.size = OneOf(v, {"tiny", "small", "medium"});
       }},
      {"--steps", [&](auto& v) { o.steps = Positive(v); }},
      {"--batch", [&](auto& v) { o.batch = Positive(v); }},
      {"--seq", [&](auto& v) { o.seq = Positive(v); }},
      {"--threads", [&](auto& v) { o.threads = Positive(v); }},
      {"--seed", [&](auto& v) { o.seed = Count(v); }},
      {"--lr",
       [&](auto& v) {
         size_t n;
         o.learning_rate = Number(v, &n);
       }},
      {"--budget", [&](auto& v) { o.budgets = {ParseBudget(v, false)}; }},
      {"--budgets", [&](auto& v) { o.budgets = ParseBudgets(v); }},
      {"--torch-share", [&](auto& v) { o.torch_share = ParsePercent(v); }},
      {"--device-limit", [&](auto& v) { o.device_limit = ParseBytes(v); }},
      {"--host-budget", [&](auto& v) { o.host_budget = ParseBytes(v); }},
      {"--text", [&](auto& v) { o.text = v; }},
      {"--socket", [&](auto& v) { o.socket = v; }},
      {"--device",
       [&](auto& v) {
         o.device = OneOf(v, {"auto", "cuda", "cpu"});
       }},
  };
  const std::map<std::string, bool*> flags = {
      {"--plain", &o.plain}, {"--demo", &o.demo}, {"--json", &o.json},
      {"--help", &o.help},   {"-h", &o.help},     {"--no-hints", &o.no_hints},
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string name = arguments[i], value;
    if (auto flag = flags.find(name); flag != flags.end()) {
      *flag->second = true;
      continue;
    }
    const size_t equals = name.find('=');
    if (equals != std::string::npos) {
      value = name.substr(equals + 1);
      name.resize(equals);
    }
    const auto option = values.find(name);
    if (option == values.end())
      throw std::runtime_error("unknown argument " + arguments[i] + "; --help lists them");
    if (equals == std::string::npos) {
      if (++i == arguments.size()) throw std::runtime_error(name + " wants a value");
      value = arguments[i];
    }
    try {
      option->second(value);
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(name + ": " + error.what());
    }
  }
  if (o.torch_share.value_or(0) > 100) throw std::runtime_error("--torch-share: at most 100");
  if (o.demo && o.plain) throw std::runtime_error("--demo and --plain exclude each other");
  ApplySize(o);
  return o;
}

}  // namespace ravenstore::examples
