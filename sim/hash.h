// FNV-1a of numbers, 64 bit: the same on every machine.
#pragma once

#include <cstdint>

namespace ravenstore::sim {

class Hash {
 public:
  void Add(uint64_t number) {
    for (int i = 0; i < 8; ++i, number >>= 8) value_ = (value_ ^ (number & 0xff)) * 0x100000001b3;
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325;
};

}  // namespace ravenstore::sim
