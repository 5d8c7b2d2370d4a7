// Sizes and numbers as people write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/types.h"

namespace ravenstore::core {

// "512", "64KiB", "16 MiB", "1.5GiB", "2T": K, KiB and so on are powers of 1024. KB, MB, GB and TB
// are powers of 1000. nullopt for anything else, a negative number, or one that does not fit.
std::optional<Bytes> ParseBytes(std::string_view text);

// "1234"; nullopt for anything else, or one that does not fit.
std::optional<uint64_t> ParseNumber(std::string_view text);

// "640 B", "16.0 MiB", "1.5 GiB": at most one decimal, for people.
std::string SizeText(Bytes bytes);

}  // namespace ravenstore::core
