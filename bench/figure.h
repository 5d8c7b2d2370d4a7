// One measured figure and how it is printed: a JSON object a line, or a table for people.
#pragma once

#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace ravenstore::bench {

struct Figure {
  std::string name;  // "store.resident_pair_ns"
  std::string unit;
  std::optional<double> value = {};  // none: skipped
  std::optional<double> bound = {};  // what it is judged against, measured in the same run
  std::optional<double> target = {};
  bool at_least = false;     // the target is a floor, else a ceiling
  std::string skipped = {};  // why there is no value
  std::string detail = {};   // which case it comes from

  // A figure without a value is neither.
  std::optional<bool> Ok() const {
    if (!value || !target) return std::nullopt;
    return at_least ? *value >= *target : *value <= *target;
  }
};

// "Intel(R) Xeon(R) Processor, 2 cores, no GPU"
std::string Machine(const std::string& gpu);

std::string Json(const Figure& figure, const std::string& machine);

// Takes each figure as it is measured.
using Report = std::function<void(const Figure&)>;
// Prints each figure as a line, immediately.
Report PrintEach(std::string machine);

// Runs `measure`, and returns the program's exit code. What it throws is said on standard error,
// and is 1: what `measure` had started has ended then.
int Guarded(const std::function<void()>& measure);

// The median; REQUIRES: not empty. Sorts.
double Median(std::vector<double>& values);
// The value that `fraction` of all do not exceed. Sorts.
double Quantile(std::vector<double>& values, double fraction);

}  // namespace ravenstore::bench
