// Names near one that was mistyped.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace ravenstore::core {

// The one of `names` that was most likely meant by `word`: the nearest by letters added, left out,
// changed or swapped, capitals aside, as long as those are at most a third of it; else the first
// that begins with `word`. Empty when there is none.
std::string Suggestion(std::string_view word, std::span<const std::string> names);

// Suggestion as the end of a sentence: "; did you mean \"status\"?". Empty when there is none.
std::string DidYouMean(std::string_view word, std::span<const std::string> names);

}  // namespace ravenstore::core
