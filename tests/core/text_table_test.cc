#include "core/text_table.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "core/printable.h"

namespace ravenstore::core {
namespace {

TextTable Tensors(const std::string& name) {
  TextTable table(">~<");
  table.Row({"ID", "NAME", "STATE"});
  table.Row({"17", name, "idle"});
  table.Row({"4", "b", "in use"});
  return table;
}

TEST(TextTableTest, AlignsColumns) {
  EXPECT_EQ(Tensors("layer").Text(80),
            "ID  NAME   STATE\n"
            "17  layer  idle\n"
            " 4  b      in use\n");
  EXPECT_EQ(Tensors("layer").Width(), 17u);
}

TEST(TextTableTest, CutsLongNamesAndNothingElse) {
  const std::string long_name(300, 'n');
  std::istringstream text(Tensors(long_name).Text(40));
  for (std::string line; std::getline(text, line);) EXPECT_LE(DisplayWidth(line), 40u) << line;
  EXPECT_NE(Tensors(long_name).Text(40).find("n…  idle\n"), std::string::npos);
  EXPECT_NE(Tensors(long_name).Text(400).find(long_name), std::string::npos);
  // Numbers stay whole, and a name can still be distinguished from another.
  EXPECT_NE(Tensors(long_name).Text(5).find("17  nnnnnnnnnnn…  idle"), std::string::npos);
}

TEST(TextTableTest, TheWidestIsCutFirst) {
  TextTable table("~~");
  table.Row({std::string(60, 'a'), std::string(20, 'b')});
  EXPECT_EQ(table.Text(42), std::string(19, 'a') + "…  " + std::string(20, 'b') + "\n");
}

TEST(TextTableTest, WideCharactersKeepColumnsAligned) {
  EXPECT_EQ(Tensors("重み").Text(80),
            "ID  NAME  STATE\n"
            "17  重み  idle\n"
            " 4  b     in use\n");
}

TEST(TextTableTest, TheLastColumnIsBrokenAtBlanks) {
  TextTable table("<|");
  table.Row({"gets", "one two three four five six seven"});
  EXPECT_EQ(table.Text(80), "gets  one two three four five six seven\n");
  EXPECT_EQ(table.Text(30),
            "gets  one two three four five\n"
            "      six seven\n");
}

TEST(TextTableTest, WrapsAtBlanks) {
  EXPECT_EQ(Wrapped("one two three", 80, 4), "one two three");
  EXPECT_EQ(Wrapped("one two three", 9, 2), "one two\n  three");
  EXPECT_EQ(Wrapped("incomprehensibilities are words", 10, 1), "incomprehensibilities\n are words");
  EXPECT_EQ(Wrapped("", 10, 1), "");
}

}  // namespace
}  // namespace ravenstore::core
