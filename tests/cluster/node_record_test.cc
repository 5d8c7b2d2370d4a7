#include "cluster/node_record.h"

#include <gtest/gtest.h>

#include <string>

namespace ravenstore::cluster {
namespace {

NodeRecord Example() {
  NodeRecord record{.name = "n1", .address = "[::1]:7000"};
  record.incarnation = {.high = 0x1212121212121212, .low = 0x1212121212121212};
  record.machine = {.high = 0x3434343434343434, .low = 0x3434343434343434};
  record.public_key.fill(std::byte{0x56});
  return record;
}

std::string Replace(std::string text, const std::string& what, const std::string& with) {
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), with);
}

TEST(NodeRecordTest, ReadsWhatItWrites) {
  const std::string text = ToText(Example());
  EXPECT_LT(text.size(), kRecordTextMax);
  const auto read = ReadNodeRecord("n1", text);
  ASSERT_TRUE(read.ok()) << Describe(read.error());
  EXPECT_EQ(*read, Example());
}

TEST(NodeRecordTest, OfALaterVersionItReadsWhatItKnows) {
  const auto read = ReadNodeRecord("n1", Replace(ToText(Example()), "{", R"({"more":[1,{}],)"));
  ASSERT_TRUE(read.ok()) << Describe(read.error());
  EXPECT_EQ(*read, Example());
}

TEST(NodeRecordTest, RefusesWhatIsNoRecord) {
  const std::string text = ToText(Example());
  for (const std::string& other :
       {std::string(), std::string("[]"), std::string("null"), text.substr(1),
        Replace(text, "1212", "12"), Replace(text, "3434", "34zz"), Replace(text, "[::1]:7000", ""),
        Replace(text, "[::1]:7000", R"(a\nb)"), Replace(text, "[::1]:7000", "a b"),
        Replace(text, "[::1]:7000", std::string(kAddressMax + 1, 'a')),
        Replace(text, "\"[::1]:7000\"", "7"), Replace(text, "public_key", "key"),
        Replace(text, "{", R"({"more":")" + std::string(kRecordTextMax, ' ') + R"(",)")}) {
    const auto read = ReadNodeRecord("n1", other);
    ASSERT_FALSE(read.ok()) << other;
    EXPECT_EQ(read.error().code, core::ErrorCode::kCorrupt);
  }
}

}  // namespace
}  // namespace ravenstore::cluster
