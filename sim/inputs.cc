#include "sim/inputs.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/size_text.h"
#include "core/suggest.h"
#include "sim/generators.h"

namespace ravenstore::sim {

using core::Bytes;
using core::ErrorCode;
using core::Result;

namespace {

// What part of the hints "dropped" keeps.
constexpr double kHintsKept = 0.7;
// What is shown of a budget that is many times the footprint.
constexpr double kPercentMax = 99999;
// In addition to the device's and the host's.
constexpr size_t kPoolsMax = 16;

core::Error Unknown(const std::string& what, const std::string& name) {
  return {ErrorCode::kInvalidArgument, "no " + what + " is called \"" + name + "\""};
}

Result<Trace> Open(const TraceChoice& choice, const Hardware& hardware) {
  std::vector<std::string> names = GeneratorNames();
  names.insert(names.end(), ValidationNames().begin(), ValidationNames().end());
  if (std::find(names.begin(), names.end(), choice.name) != names.end())
    return Generate(choice.name, hardware, choice.iterations, choice.seed);
  std::ifstream file(choice.name, std::ios::binary);
  if (!file)
    return core::Error{ErrorCode::kNotFound, "\"" + choice.name +
                                                 "\" is neither a generator's name nor a file that "
                                                 "can be read" +
                                                 core::DidYouMean(choice.name, names)};
  return Read(file);
}

// A number from 0 to 1e9.
std::optional<double> NumberOf(std::string_view text) {
  double number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = parsed.ec == std::errc{} && parsed.ptr == text.data() + text.size();
  return whole && number >= 0 && number <= 1e9 ? std::optional(number) : std::nullopt;
}

// "latency=MS"; false: it is none.
bool AddRemoteOption(std::string_view text, ExtraPool* pool) {
  constexpr std::string_view kLatency = "latency=";
  if (!text.starts_with(kLatency)) return false;
  const auto value = NumberOf(text.substr(kLatency.size()));
  if (value) pool->latency = core::FromSeconds(*value * 1e-3);
  return value.has_value();
}

core::PoolKind KindOf(const std::string& name) {
  return name == "peer"   ? core::PoolKind::kPeer
         : name == "file" ? core::PoolKind::kFile
                          : core::PoolKind::kRemote;
}

// Hints that are times are scaled as well.
core::Status ScaleCompute(double seconds, Trace* trace) {
  core::Duration sum{0};
  for (const Op& op : trace->ops) sum += op.time;
  const core::Duration scaled = core::FromSeconds(seconds);
  if (sum == core::Duration{0} || scaled > kComputeMax) {
    return core::Error{ErrorCode::kInvalidArgument,
                       "the compute times of \"" + trace->name + "\", " +
                           std::to_string(core::Seconds(sum)) + " s in sum, cannot be scaled to " +
                           std::to_string(seconds) + " s"};
  }
  const double factor = core::Seconds(scaled) / core::Seconds(sum);
  const auto scale = [factor](core::Duration time) {
    return core::FromSeconds(core::Seconds(time) * factor);
  };
  for (Op& op : trace->ops) {
    op.time = scale(op.time);
    if (op.next_use.kind == core::NextUse::Kind::kIn) op.next_use.in = scale(op.next_use.in);
  }
  return core::Ok();
}

}  // namespace

Result<Trace> Load(const TraceChoice& choice) {
  RAVEN_ASSIGN_OR_RETURN(const Hardware hardware, HardwareOf(choice));
  RAVEN_ASSIGN_OR_RETURN(Trace trace, Open(choice, hardware));
  if (choice.compute) RAVEN_RETURN_IF_ERROR(ScaleCompute(*choice.compute, &trace));
  if (const Bytes footprint = trace.Footprint(); footprint > kFootprintMax) {
    return core::Error{ErrorCode::kLimit, "what lives at once in \"" + choice.name + "\" is " +
                                              core::SizeText(footprint) +
                                              ", and a replay takes at most " +
                                              core::SizeText(kFootprintMax)};
  }
  if (choice.disturb == "times") {
    trace = WithTimesPerturbed(std::move(trace), 0.25, choice.seed);
  } else if (choice.disturb == "reorder") {
    trace = WithReorder(std::move(trace), 0.05, choice.seed);
  } else if (choice.disturb == "period") {
    trace = WithPeriodChanged(std::move(trace), static_cast<size_t>(choice.iterations) / 2, 0.75);
  } else if (choice.disturb != "none") {
    return Unknown("disturbance", choice.disturb);
  }
  if (choice.hints == "none") return WithHints(std::move(trace), Hints::kNone);
  if (choice.hints == "time") return WithHints(std::move(trace), Hints::kTime);
  if (choice.hints == "order") return WithHints(std::move(trace), Hints::kOrder);
  if (choice.hints == "dropped")
    return WithHints(std::move(trace), Hints::kTime, kHintsKept, choice.seed);
  if (choice.hints != "keep") return Unknown("choice of hints", choice.hints);
  return trace;
}

Result<Hardware> HardwareOf(const TraceChoice& choice) {
  const Hardware* found = FindHardware(choice.hardware);
  if (found == nullptr) return Unknown("hardware", choice.hardware);
  Hardware hardware = *found;
  if (choice.up) hardware.up = *choice.up * 1e9;
  if (choice.down) hardware.down = *choice.down * 1e9;
  return hardware;
}

core::Status AddPool(const std::string& text, const Trace& trace, ReplaySetup* setup) {
  const auto wrong = [&](const std::string& why) {
    return core::Error{ErrorCode::kInvalidArgument, "the pool \"" + text + "\" " + why};
  };
  std::vector<std::string> parts;
  std::istringstream words(text);
  for (std::string part; std::getline(words, part, ':');) parts.push_back(part);
  const bool host = !parts.empty() && parts[0] == "host";
  const bool remote = !parts.empty() && parts[0] == "remote";
  if (remote ? parts.size() < 4 : parts.size() != (host ? 2 : 4)) {
    return wrong(
        "is neither host:SIZE nor peer:SIZE:IN:OUT nor file:SIZE:IN:OUT nor remote:SIZE:IN:OUT");
  }
  if (!host && !remote && parts[0] != "peer" && parts[0] != "file")
    return wrong("is of no known kind: host, peer, file and remote are");
  const auto size = ParseBudget(parts[1], trace);
  if (!size.ok()) return wrong("has no size: " + size.error().message);
  if (size->bytes > core::kRangeMax)
    return wrong("is larger than " + core::SizeText(core::kRangeMax));
  if (host) {
    if (setup->host) return wrong("is a second host pool");
    setup->host = size->bytes;
    return core::Ok();
  }
  double rates[2];
  for (size_t i = 0; i < 2; ++i) {
    const std::string& rate = parts[2 + i];
    const auto parsed = std::from_chars(rate.data(), rate.data() + rate.size(), rates[i]);
    if (parsed.ec != std::errc{} || parsed.ptr != rate.data() + rate.size() || rates[i] < 1e-3 ||
        rates[i] > 1e6)
      return wrong("moves bytes at \"" + rate + "\", which is no rate from 0.001 to 1000000 GB/s");
  }
  if (setup->pools.size() == kPoolsMax)
    return wrong("is one more than the " + std::to_string(kPoolsMax) + " that can be");
  ExtraPool pool{KindOf(parts[0]), size->bytes, rates[0] * 1e9, rates[1] * 1e9};
  for (size_t i = 4; i < parts.size(); ++i) {
    if (!AddRemoteOption(parts[i], &pool))
      return wrong("says \"" + parts[i] + "\", which is not latency=MS");
  }
  setup->pools.push_back(std::move(pool));
  return core::Ok();
}

Result<Budget> ParseBudget(const std::string& text, const Trace& trace) {
  const core::Error wrong{ErrorCode::kInvalidArgument,
                          "the budget \"" + text + "\" is neither a percentage nor a size"};
  if (text.empty() || text.back() != '%') {
    const auto bytes = core::ParseBytes(text);
    if (!bytes) return wrong;
    if (*bytes < kBudgetUnit) {
      return core::Error{ErrorCode::kInvalidArgument,
                         "the budget \"" + text + "\" is less than the " +
                             core::SizeText(kBudgetUnit) + " that memory is given out in"};
    }
    const double share = static_cast<double>(bytes->count()) /
                         static_cast<double>(std::max<uint64_t>(trace.Footprint().count(), 1));
    return Budget{static_cast<int>(std::lround(std::min(share * 100, kPercentMax))), *bytes};
  }
  double percent = 0;
  const char* end = text.data() + text.size() - 1;
  const auto parsed = std::from_chars(text.data(), end, percent);
  if (parsed.ec != std::errc{} || parsed.ptr != end || !(percent > 0) || percent > 1000)
    return wrong;
  Budget budget{static_cast<int>(std::lround(percent)), Bytes{}};
  for (const Bytes most : trace.FootprintByClient()) {
    const double share = static_cast<double>(most.count()) * percent / 100;
    budget.bytes += Bytes(static_cast<uint64_t>(share)).RoundUp(kBudgetUnit);
  }
  budget.bytes = std::max(budget.bytes, kBudgetUnit);
  return budget;
}

}  // namespace ravenstore::sim
