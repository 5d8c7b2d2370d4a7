// How nodes, and what they lend, are identified.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "core/types.h"

namespace ravenstore::cluster {

// One start of a node: 128 random bits, compared for equality only.
struct Incarnation {
  uint64_t high = 0;
  uint64_t low = 0;
  auto operator<=>(const Incarnation&) const = default;
};

// The machine that a node runs on: copies on one machine are lost together.
struct MachineId {
  uint64_t high = 0;
  uint64_t low = 0;
  auto operator<=>(const MachineId&) const = default;
};

// Ed25519's sizes.
using PublicKey = std::array<std::byte, 32>;
using Signature = std::array<std::byte, 64>;
using Challenge = std::array<std::byte, 32>;

// What a node proves itself by. Both functions are called on the transport's thread.
struct Identity {
  Incarnation incarnation;
  MachineId machine;
  PublicKey key{};
  std::function<Signature(std::string_view message)> sign;
  std::function<bool(const PublicKey&, std::string_view message, const Signature&)> verify;
};

// A piece of a home's range of offsets, by number: piece n begins at n times the piece's size.
enum class PieceId : uint32_t {};

// A piece-sized run of a lender's memory, as it was lent. A lender never uses a generation twice.
struct SlotRef {
  uint32_t slot = 0;
  uint64_t generation = 0;
  auto operator<=>(const SlotRef&) const = default;
};

// What both ends of a loan count with. The same on all nodes of a cluster.
struct Sizes {
  core::Bytes piece = core::MiB(64);
  // Of checksums, and the least that tensors are placed by; divides the piece.
  core::Bytes granule = core::KiB(256);
};

}  // namespace ravenstore::cluster
