#include "core/chunked.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace ravenstore::core {
namespace {

TEST(ChunkedTest, WhatItHoldsStaysWhereItIs) {
  Chunked<std::string, 4> words;
  words.push_back("first");
  const std::string* first = &words[0];
  for (int i = 1; i < 100; ++i) words.push_back(std::to_string(i));
  EXPECT_EQ(words.size(), 100u);
  EXPECT_EQ(&words[0], first);
  EXPECT_EQ(words[0], "first");
  for (size_t i = 1; i < 100; ++i) EXPECT_EQ(words[i], std::to_string(i));
}

TEST(ChunkedTest, ShrinksAndGrowsAcrossChunks) {
  Chunked<std::unique_ptr<int>, 2> numbers;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 5; ++i) numbers.push_back(std::make_unique<int>(i));
    for (int i = 4; i >= 0; --i) {
      EXPECT_EQ(*numbers.back(), i);
      numbers.pop_back();
    }
    EXPECT_TRUE(numbers.empty());
  }
}

}  // namespace
}  // namespace ravenstore::core
