#include "bench/vary_constants.h"

#include <algorithm>
#include <iterator>

#include "core/tuned.h"

namespace ravenstore::bench {

namespace {

using namespace core;  // NOLINT(google-build-using-namespace): for the types and values of the
                       // table

struct Constant {
  const char* name;
  void (*scale)(double by);
};

#ifdef RAVENSTORE_VARY
constexpr bool kVary = true;
template <typename Value>
Value Times(Value value, double factor) {
  return static_cast<Value>(static_cast<double>(value) * factor);
}
Bytes Times(Bytes value, double factor) {
  return Bytes(Times(value.count(), factor));
}
Duration Times(Duration value, double factor) {
  return Duration(Times(value.count(), factor));
}
#define SCALE(type, name, value) [](double by) { name = Times(type{value}, by); }
#else
constexpr bool kVary = false;
#define SCALE(type, name, value) nullptr
#endif

constexpr Constant kConstants[] = {
#define FIXED(why, ...)
#define TUNED(type, name, value, halved, doubled, source) {#name, SCALE(type, name, value)},
#include "core/tuned.def"
#undef TUNED
#undef FIXED
};
#undef SCALE

}  // namespace

size_t TunedConstants() {
  return std::size(kConstants);
}

bool ConstantsVary(const Report& report) {
  if (kVary) return true;
  report({.name = "planner.worth_of_constants",
          .unit = "x",
          .skipped = "the constants do not vary: build with --config=vary"});
  return false;
}

void VaryConstants(const std::vector<std::string>& names,
                   const std::function<void(const std::string& name)>& measure) {
  for (const Constant& one : kConstants) {
    if (!names.empty() && std::find(names.begin(), names.end(), one.name) == names.end()) continue;
    for (const double by : {0.5, 2.0}) {
      one.scale(by);
      measure(std::string(one.name) + (by < 1 ? "_halved" : "_doubled"));
    }
    one.scale(1);
  }
}

}  // namespace ravenstore::bench
