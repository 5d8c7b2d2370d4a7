#include "core/suggest.h"

#include <algorithm>
#include <cctype>
#include <vector>

namespace ravenstore::core {
namespace {

// Nothing that people type by name is longer, and the distance takes the square of it.
constexpr size_t kWordMax = 64;
// A shorter beginning says too little of what was meant.
constexpr size_t kBeginningMin = 3;

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

// Of optimal string alignment: letters added, left out, changed, and neighbours swapped.
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> distance(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) distance[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) distance[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = distance[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      distance[i][j] = std::min({changed, distance[i - 1][j] + 1, distance[i][j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        distance[i][j] = std::min(distance[i][j], distance[i - 2][j - 2] + 1);
    }
  }
  return distance[a.size()][b.size()];
}

}  // namespace

std::string Suggestion(std::string_view word, std::span<const std::string> names) {
  if (word.empty() || word.size() > kWordMax) return "";
  const std::string typed = Lower(word);
  std::string nearest;
  size_t least = kWordMax;
  for (const std::string& name : names) {
    if (name.size() > kWordMax) continue;
    const size_t distance = Distance(typed, Lower(name));
    const size_t allowed = std::max<size_t>(1, std::max(typed.size(), name.size()) / 3);
    if (distance > allowed || distance >= std::min(least, name.size())) continue;
    nearest = name;
    least = distance;
  }
  if (!nearest.empty() || typed.size() < kBeginningMin) return nearest;
  const auto begins = std::find_if(names.begin(), names.end(), [&](const std::string& name) {
    return Lower(name).starts_with(typed);
  });
  return begins == names.end() ? "" : *begins;
}

std::string DidYouMean(std::string_view word, std::span<const std::string> names) {
  const std::string meant = Suggestion(word, names);
  return meant.empty() ? "" : "; did you mean \"" + meant + "\"?";
}

}  // namespace ravenstore::core
