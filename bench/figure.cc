#include "bench/figure.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <fstream>
#include <thread>
#include <utility>

namespace ravenstore::bench {

namespace {

std::string Text(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return quoted + "\"";
}

std::string Number(const std::optional<double>& number) {
  if (!number || !std::isfinite(*number)) return "null";
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", *number);
  return text;
}

std::string Truth(const std::optional<bool>& truth) {
  if (!truth) return "null";
  return *truth ? "true" : "false";
}

}  // namespace

std::string Machine(const std::string& gpu) {
  std::string model = "unknown processor";
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    model = line.substr(line.find(':') + 2);
    break;
  }
  return model + ", " + std::to_string(std::thread::hardware_concurrency()) + " cores, " + gpu;
}

std::string Json(const Figure& figure, const std::string& machine) {
  std::string json = "{\"name\": " + Text(figure.name) + ", \"value\": " + Number(figure.value) +
                     ", \"unit\": " + Text(figure.unit) + ", \"bound\": " + Number(figure.bound) +
                     ", \"target\": " + Number(figure.target) + ", \"ok\": " + Truth(figure.Ok());
  if (!figure.skipped.empty()) json += ", \"skipped\": " + Text(figure.skipped);
  if (!figure.detail.empty()) json += ", \"detail\": " + Text(figure.detail);
  return json + ", \"machine\": " + Text(machine) + "}";
}

Report PrintEach(std::string machine) {
  return [machine = std::move(machine)](const Figure& figure) {
    std::printf("%s\n", Json(figure, machine).c_str());
    std::fflush(stdout);
  };
}

int Guarded(const std::function<void()>& measure) {
  try {
    measure();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

double Quantile(std::vector<double>& values, double fraction) {
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<size_t>(fraction * static_cast<double>(values.size() - 1));
  return values[rank];
}

double Median(std::vector<double>& values) {
  return Quantile(values, 0.5);
}

}  // namespace ravenstore::bench
