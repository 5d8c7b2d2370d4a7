#include "cluster/lent_memory.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace ravenstore::cluster {
namespace {

TEST(LentMemoryTest, MemoryThatIsMadeAgainIsZero) {
  AnonymousMemory memory;
  for (int i = 0; i < 3; ++i) {
    const auto made = memory.Make(core::MiB(1));
    ASSERT_TRUE(made.ok());
    ASSERT_EQ(made->size(), 1u << 20);
    EXPECT_TRUE(std::ranges::all_of(*made, [](std::byte byte) { return byte == std::byte{}; }));
    std::ranges::fill(*made, std::byte{7});
    memory.Release(*made);
  }
}

TEST(LentMemoryTest, WhatIsNotThereIsAnError) {
  AnonymousMemory memory;
  const auto made = memory.Make(core::GiB(1 << 20));
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, core::ErrorCode::kOutOfMemory);
}

}  // namespace
}  // namespace ravenstore::cluster
