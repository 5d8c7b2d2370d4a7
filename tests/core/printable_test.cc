#include "core/printable.h"

#include <gtest/gtest.h>

#include <string>

namespace ravenstore::core {
namespace {

TEST(PrintableTest, TextOfAnyScriptStays) {
  for (const char* text : {"layer3.mlp", "café", "слой", "重み", "🙂", ""})
    EXPECT_EQ(Printable(text), text);
}

TEST(PrintableTest, WhatTalksToTheTerminalDoesNot) {
  EXPECT_EQ(Printable("a\x1b[2Jb\n\x7f"), "a?[2Jb??");
  EXPECT_EQ(Printable("a\u009bb"), "a?b") << "the escape of eight bits";
  EXPECT_EQ(Printable(std::string("a\0b", 3)), "a?b");
}

TEST(PrintableTest, WhatReordersOrHidesIsShown) {
  EXPECT_EQ(Printable("\u202Egnp.exe"), "?gnp.exe");
  for (const char* hidden : {"\u200b", "\u200f", "\u2028", "\u202a", "\u2066", "\u2069", "\u061c",
                             "\ufeff", "\u00ad", "\U000e0041"})
    EXPECT_EQ(Printable(hidden), "?");
}

TEST(PrintableTest, BytesThatAreNoUtf8AreShownOneByOne) {
  EXPECT_EQ(Printable("a\xff"
                      "b"),
            "a?b");
  EXPECT_EQ(Printable("a\xe2\x82"), "a??") << "cut in the middle";
  EXPECT_EQ(Printable("\xc0\xaf"), "??") << "longer than it need be";
  EXPECT_EQ(Printable("\xed\xa0\x80"), "???") << "half of a pair";
  EXPECT_EQ(Printable("\xf7\xbf\xbf\xbf"), "????") << "beyond the last";
}

TEST(PrintableTest, JsonKeepsWhatWasSaidAndTheTerminalDoesNotSeeIt) {
  EXPECT_EQ(JsonQuoted("a\"b\\c\n"), R"("a\"b\\c\u000a")");
  EXPECT_EQ(JsonQuoted("café </script>"), "\"café \\u003c/script>\"");
  EXPECT_EQ(JsonQuoted("\u202Ex\u009b"), R"("\u202ex\u009b")");
  EXPECT_EQ(JsonQuoted("\U000e0041"), R"("\udb40\udc41")");
  EXPECT_EQ(JsonQuoted("a\xff"), R"("a\ufffd")");
}

TEST(PrintableTest, WidthIsInColumns) {
  EXPECT_EQ(DisplayWidth("abc"), 3u);
  EXPECT_EQ(DisplayWidth("é"), 1u);
  EXPECT_EQ(DisplayWidth("e\u0301"), 1u) << "an accent of its own";
  EXPECT_EQ(DisplayWidth("重み"), 4u);
  EXPECT_EQ(DisplayWidth("🙂"), 2u);
}

TEST(PrintableTest, CutsAtWholeCharacters) {
  EXPECT_EQ(CutToWidth("abcdef", 6), "abcdef");
  EXPECT_EQ(CutToWidth("abcdef", 4), "abc…");
  EXPECT_EQ(CutToWidth("ééééé", 4), "ééé…");
  EXPECT_EQ(CutToWidth("重み重み", 4), "重…") << "no half of a wide one";
  EXPECT_EQ(CutToWidth("abc", 1), "…");
  EXPECT_EQ(CutToWidth("abc", 0), "");
}

}  // namespace
}  // namespace ravenstore::core
