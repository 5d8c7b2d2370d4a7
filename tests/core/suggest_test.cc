#include "core/suggest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ravenstore::core {
namespace {

const std::vector<std::string> kNames = {"status", "clients", "ls",       "limits",    "explain",
                                         "record", "doctor",  "resnet50", "bert-large"};

TEST(SuggestTest, FindsWhatOneSlipOfTheFingerMadeOfAName) {
  EXPECT_EQ(Suggestion("statsu", kNames), "status") << "swapped";
  EXPECT_EQ(Suggestion("satus", kNames), "status") << "left out";
  EXPECT_EQ(Suggestion("limitss", kNames), "limits") << "added";
  EXPECT_EQ(Suggestion("doktor", kNames), "doctor") << "changed";
  EXPECT_EQ(Suggestion("lz", kNames), "ls") << "short names too";
  EXPECT_EQ(Suggestion("STATUS", kNames), "status") << "in capitals";
}

TEST(SuggestTest, TheNearestWins) {
  const std::vector<std::string> names = {"gpt2-xl", "gpt2-l", "gpt2-xs"};
  EXPECT_EQ(Suggestion("gpt2l", names), "gpt2-l");
}

TEST(SuggestTest, ABeginningIsEnough) {
  EXPECT_EQ(Suggestion("bert", kNames), "bert-large");
  EXPECT_EQ(Suggestion("be", kNames), "") << "too little to go by";
}

TEST(SuggestTest, WhatIsFarFromAllSuggestsNothing) {
  EXPECT_EQ(Suggestion("", kNames), "");
  EXPECT_EQ(Suggestion("nonsense", kNames), "");
  EXPECT_EQ(Suggestion("xy", kNames), "") << "every letter another";
  EXPECT_EQ(Suggestion(std::string(1 << 20, 's'), kNames), "") << "and at once";
  EXPECT_EQ(Suggestion("status", {}), "");
}

TEST(SuggestTest, EndsASentence) {
  EXPECT_EQ(DidYouMean("statsu", kNames), "; did you mean \"status\"?");
  EXPECT_EQ(DidYouMean("nonsense", kNames), "");
}

}  // namespace
}  // namespace ravenstore::core
