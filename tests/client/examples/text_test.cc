#include "client/examples/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace ravenstore::examples {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::ThrowsMessage;

class TextTest : public testing::Test {
 protected:
  TextTest() : folder_(fs::path(testing::TempDir()) / "text_test") {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~TextTest() override { fs::remove_all(folder_); }
  void Write(const char* name, const char* bytes) { std::ofstream(folder_ / name) << bytes; }

  const fs::path folder_;
};

TEST_F(TextTest, AFolderIsItsFilesInTheOrderOfTheirNamesEachOnce) {
  Write("b", "second");
  Write("a", "first,");
  fs::create_symlink("a", folder_ / "c");
  EXPECT_EQ(LoadText(folder_), "first,second");
}

TEST_F(TextTest, AFileIsItsBytes) {
  Write("one", "only this");
  EXPECT_EQ(LoadText(folder_ / "one"), "only this");
}

TEST_F(TextTest, WhatIsMissingIsNamed) {
  EXPECT_THAT([&] { LoadText(folder_ / "none"); },
              ThrowsMessage<std::runtime_error>(HasSubstr("none")));
  EXPECT_THAT([&] { LoadText(folder_); },
              ThrowsMessage<std::runtime_error>(HasSubstr("holds no text")));
}

TEST(BatchesTest, TheSameSeedCutsTheSameBatchesFromTheText) {
  const std::string text = "abcdefghijklmnopqrstuvwxyz";
  Batches first(text, 3, 5, 42), second(text, 3, 5, 42), other(text, 3, 5, 43);
  for (int i = 0; i < 3; ++i) {
    const auto batch = first.Next();
    ASSERT_EQ(batch.size(), 15u);
    EXPECT_EQ(batch, second.Next());
    EXPECT_NE(batch, other.Next());
    for (size_t j = 0; j < batch.size(); ++j) {
      if (j % 5 == 0) continue;
      EXPECT_EQ(batch[j], batch[j - 1] + 1);
    }
  }
}

TEST(BatchesTest, ATextOfOneSequenceGivesThatSequence) {
  const std::string text = "abc";
  EXPECT_EQ(Batches(text, 1, 3, 1).Next(), (std::vector<int64_t>{'a', 'b', 'c'}));
  EXPECT_THROW(Batches(text, 1, 4, 1), std::runtime_error);
}

}  // namespace
}  // namespace ravenstore::examples
