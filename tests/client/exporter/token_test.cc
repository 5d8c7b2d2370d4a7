#include "client/exporter/token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/client/exporter/token_file.h"

namespace ravenstore::client::exporter {
namespace {

using core::ErrorCode;
using testing::HasSubstr;
using testing::Not;

constexpr char kSecret[] = "0123456789abcdef";

core::Result<Token> ReadWith(const std::string& text, mode_t mode = 0600) {
  return Token::Read(WriteTokenFile(testing::TempDir(), text, mode));
}

TEST(TokenTest, MatchesItselfAsABearerTokenAlone) {
  const auto token = ReadWith(std::string(kSecret) + "\n");
  ASSERT_TRUE(token.ok()) << token.error().message;
  EXPECT_TRUE(token->Matches("Bearer 0123456789abcdef"));
  EXPECT_TRUE(token->Matches("bearer 0123456789abcdef"));
  for (const char* other :
       {"", "Bearer", "Bearer ", "0123456789abcdef", "Basic 0123456789abcdef",
        "Bearer 0123456789abcdee", "Bearer 0123456789abcde", "Bearer 0123456789abcdef0",
        "Bearer 0123456789abcdef0123456789abcdef", "Bearer  0123456789abcdef"}) {
    EXPECT_FALSE(token->Matches(other)) << other;
  }
}

TEST(TokenTest, AFileThatOthersCanReadIsRefused) {
  for (const mode_t mode : {0640, 0604, 0644, 0660}) {
    const auto token = ReadWith(kSecret, mode);
    ASSERT_FALSE(token.ok()) << mode;
    EXPECT_EQ(token.error().code, ErrorCode::kPermission);
    EXPECT_THAT(token.error().message, HasSubstr("is open to other users than its owner"));
  }
}

TEST(TokenTest, AShortOrUnprintableTokenIsRefusedWithoutAPartOfIt) {
  for (const std::string& text :
       {std::string(), std::string("\n"), std::string("0123456789abcde"),
        std::string("0123456789 abcdef"), std::string("0123456789abcdef\nx"),
        "0123456789abcdef" + std::string(1, '\0'), std::string(513, 'a')}) {
    const auto token = ReadWith(text);
    ASSERT_FALSE(token.ok()) << text;
    EXPECT_EQ(token.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(token.error().message, Not(HasSubstr("012345")));
  }
  EXPECT_EQ(Token::Read(testing::TempDir() + "/nothing").error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace ravenstore::client::exporter
