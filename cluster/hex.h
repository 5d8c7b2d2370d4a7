// Incarnations, machines' ids and keys as text: lower-case hexadecimal digits.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cluster/ids.h"

namespace ravenstore::cluster {

std::string ToHex(const Incarnation& incarnation);
std::string ToHex(const MachineId& machine);
std::string ToHex(const PublicKey& key);

// Of Incarnation, MachineId and PublicKey. Nothing for another number of digits, or for other
// characters.
template <typename T>
std::optional<T> FromHex(std::string_view text);

}  // namespace ravenstore::cluster
