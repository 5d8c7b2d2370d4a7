#include "client/examples/report.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <functional>

#include "client/examples/table.h"

namespace ravenstore::examples {
namespace {

std::string Print(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

std::string Outcome(const Trial& run) {
  if (run.result.finished) return "finished";
  const std::string step = " at step " + std::to_string(run.result.failed_step);
  return (run.result.out_of_memory ? "out of memory" : "failed") + step;
}

std::string LossOf(const RunResult& result, bool last) {
  if (result.losses.empty()) return "-";
  return Print("%.6f", last ? result.losses.back() : result.losses.front());
}

std::string BytesOrDash(uint64_t bytes) {
  return bytes ? FormatBytes(bytes) : "-";
}

std::string PerStep(const Trial& run, uint64_t bytes) {
  const size_t steps = run.result.losses.size();
  return run.with_store && steps ? FormatBytes(bytes / steps) : "-";
}

std::string CountOrDash(const Trial& run, uint64_t Stats::*field) {
  return run.with_store ? std::to_string(run.result.store.*field) : "-";
}

std::string Compared(const Trial& run, const Trial& plain) {
  if (&run == &plain || run.result.losses.empty()) return "-";
  return SameBits(run.result, plain.result) ? "bit for bit" : "NO";
}

std::string Slowdown(const Trial& run, const Trial& plain) {
  if (!run.result.finished || plain.result.step_seconds == 0) return "-";
  return Print("%.3f x", run.result.step_seconds / plain.result.step_seconds);
}

std::string Quote(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return quoted + "\"";
}

}  // namespace

bool SameBits(const RunResult& a, const RunResult& b) {
  if (a.losses.size() != b.losses.size()) return false;
  if (a.finished && b.finished && a.weights != b.weights) return false;
  // As bits: a NaN must equal itself, and -0 is not 0.
  return std::equal(a.losses.begin(), a.losses.end(), b.losses.begin(), [](float x, float y) {
    return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
  });
}

std::string Report(const std::string& title, const std::vector<Trial>& runs) {
  const Trial& plain = runs.front();
  Table table(title);
  const auto row = [&](const char* name, const std::function<std::string(const Trial&)>& cell) {
    std::vector<std::string> cells;
    for (const Trial& run : runs) cells.push_back(cell(run));
    table.Add(name, cells);
  };
  const auto store_bytes = [&](const char* name, uint64_t Stats::*field) {
    row(name, [field](const Trial& run) {
      return run.with_store ? FormatBytes(run.result.store.*field) : "-";
    });
  };
  row("", [](const Trial& run) { return run.name; });
  row("result", Outcome);
  row("loss, first step", [](const Trial& run) { return LossOf(run.result, false); });
  row("loss, last step", [](const Trial& run) { return LossOf(run.result, true); });
  row("losses and weights as plain", [&](const Trial& run) { return Compared(run, plain); });
  row("device limit", [](const Trial& run) { return BytesOrDash(run.device_limit); });
  row("device budget for what is saved", [](const Trial& run) { return BytesOrDash(run.budget); });
  row("  of it held by torch",
      [](const Trial& run) { return run.torch_share ? BytesOrDash(*run.torch_share) : "auto"; });
  row("peak device bytes", [](const Trial& run) { return FormatBytes(run.result.device_peak); });
  row("  torch", [](const Trial& run) { return FormatBytes(run.result.torch_peak); });
  row("  torch, with its cache",
      [](const Trial& run) { return FormatBytes(run.result.torch_reserved); });
  row("  store", [](const Trial& run) { return BytesOrDash(run.result.store_peak); });
  row("store's peak host bytes",
      [](const Trial& run) { return BytesOrDash(run.result.store_host_peak); });
  row("adopted per step",
      [](const Trial& run) { return PerStep(run, run.result.offload.adopted_bytes); });
  store_bytes("device to host", &Stats::bytes_out);
  store_bytes("host to device", &Stats::bytes_in);
  const auto store_count = [&](const char* name, uint64_t Stats::*field) {
    row(name, [field](const Trial& run) { return CountOrDash(run, field); });
  };
  store_count("gets", &Stats::gets);
  store_count("  hits: on the device", &Stats::hits);
  store_count("  late hits: on their way", &Stats::late_hits);
  store_count("  misses", &Stats::misses);
  row("stalls", [](const Trial& run) {
    return run.with_store ? FormatSeconds(static_cast<double>(run.result.store.stall_ns) / 1e9)
                          : "-";
  });
  row("step time", [](const Trial& run) {
    return run.result.finished ? FormatSeconds(run.result.step_seconds) : "-";
  });
  row("step time / plain", [&](const Trial& run) { return Slowdown(run, plain); });
  return table.Print();
}

std::string Json(const Trial& run, const Trial& plain, const std::string& where) {
  const RunResult& result = run.result;
  std::string json = "{\"run\": " + Quote(run.name) + ", \"device\": " + Quote(where);
  const auto number = [&](const char* name, uint64_t value) {
    json += std::string(", \"") + name + "\": " + std::to_string(value);
  };
  const auto boolean = [&](const char* name, bool value) {
    json += std::string(", \"") + name + "\": " + (value ? "true" : "false");
  };
  boolean("finished", result.finished);
  boolean("out_of_memory", result.out_of_memory);
  if (!result.finished) {
    number("failed_step", static_cast<uint64_t>(result.failed_step));
    json += ", \"failure\": " + Quote(result.failure);
  }
  boolean("same_bits_as_plain", result.finished && SameBits(result, plain.result));
  json += ", \"losses\": [";
  for (size_t i = 0; i < result.losses.size(); ++i)
    json += (i ? ", " : "") + Print("%.9g", result.losses[i]);
  json += "], \"step_s\": " + Print("%.6f", result.step_seconds);
  number("device_limit", run.device_limit);
  number("device_budget", run.budget);
  if (run.torch_share) number("torch_share", *run.torch_share);
  number("peak_device_bytes", run.result.device_peak);
  number("torch_peak_bytes", result.torch_peak);
  number("torch_reserved_bytes", result.torch_reserved);
  if (run.with_store) {
    number("store_peak_bytes", result.store_peak);
    number("adopted_bytes", result.offload.adopted_bytes);
    number("deduplicated_bytes", result.offload.deduplicated_bytes);
    number("bytes_out", result.store.bytes_out);
    number("bytes_in", result.store.bytes_in);
    number("store_host_peak_bytes", result.store_host_peak);
    number("gets", result.store.gets);
    number("hits", result.store.hits);
    number("late_hits", result.store.late_hits);
    number("misses", result.store.misses);
    number("stall_ns", result.store.stall_ns);
  }
  return json + "}";
}

std::vector<std::string> Failures(const std::vector<Trial>& runs) {
  std::vector<std::string> failures;
  for (const Trial& run : runs) {
    if (run.must_finish && !run.result.finished)
      failures.push_back(run.name + ": " + Outcome(run) + ": " + run.result.failure);
    else if (!run.must_finish && !run.result.finished && !run.result.out_of_memory)
      failures.push_back(run.name + ": " + Outcome(run) + ": " + run.result.failure);
    else if (run.result.finished && !SameBits(run.result, runs.front().result))
      failures.push_back(run.name + ": its losses or weights differ from the plain run's");
  }
  return failures;
}

}  // namespace ravenstore::examples
