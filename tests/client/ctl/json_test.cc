#include "client/ctl/json.h"

#include <gtest/gtest.h>

namespace ravenstore::client::ctl {
namespace {

TEST(JsonTest, NestsAndSeparates) {
  JsonWriter json;
  json.BeginObject().Field("a", 1u).BeginArray("list");
  json.BeginObject().Field("b", "x").EndObject();
  json.BeginObject().EndObject();
  json.EndArray().BeginArray("none").EndArray().Field("c", true).Field("d", false).EndObject();
  EXPECT_EQ(json.Take(), R"({"a":1,"list":[{"b":"x"},{}],"none":[],"c":true,"d":false})"
                         "\n");
}

TEST(JsonTest, KeepsLargeNumbersExact) {
  EXPECT_EQ(JsonWriter().BeginObject().Field("n", ~uint64_t{0}).EndObject().Take(),
            "{\"n\":18446744073709551615}\n");
}

TEST(JsonTest, EscapesWhatJsonForbids) {
  const std::string text("a\"b\\c\n\x01\x7f\0é", 11);
  EXPECT_EQ(JsonWriter().BeginObject().Field("s", text).EndObject().Take(),
            "{\"s\":\"a\\\"b\\\\c\\u000a\\u0001\\u007f\\u0000é\"}\n");
}

TEST(JsonTest, StartsAgainAfterTake) {
  JsonWriter json;
  json.BeginObject().EndObject();
  EXPECT_EQ(json.Take(), "{}\n");
  json.BeginArray().EndArray();
  EXPECT_EQ(json.Take(), "[]\n");
}

TEST(JsonTest, FractionsHaveSixDigits) {
  JsonWriter json;
  json.BeginObject().Field("third", 1.0 / 3).Field("large", 1e12).EndObject();
  EXPECT_EQ(json.Take(), "{\"third\":0.333333,\"large\":1e+12}\n");
}

}  // namespace
}  // namespace ravenstore::client::ctl
