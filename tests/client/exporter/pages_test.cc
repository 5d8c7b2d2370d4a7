#include "client/exporter/pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/client/exporter/token_file.h"

namespace ravenstore::client::exporter {
namespace {

using core::Tick;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr char kSecret[] = "0123456789abcdef";
constexpr char kOfAUser[] = "ravenstore_user_clients{user=\"alice\"} 1\n";

class PagesTest : public testing::Test {
 protected:
  void Start(
      bool with_token, NameOfUser name_of = [](uid_t) { return std::string("alice"); }) {
    std::optional<Token> token;
    if (with_token) token = *Token::Read(WriteTokenFile(testing::TempDir(), kSecret));
    pages_.emplace(Pages::Options{[this] { return Look(); }, name_of, token});
  }
  std::optional<Seen> Look() {
    ++looks_;
    Seen seen;
    seen.now.clients.emplace_back().set_uid(7);
    return seen;
  }
  static HttpRequest Get(std::optional<std::string> authorization = std::nullopt) {
    return {"GET", "/metrics", std::move(authorization)};
  }
  std::string One(const HttpRequest& request) { return pages_->Answer({request}, now_).at(0); }

  std::optional<Pages> pages_;
  Tick now_{std::chrono::seconds(1000)};
  int looks_ = 0;
};

// A TCP port does not identify users: without a token any local user could read others' figures.
TEST_F(PagesTest, WithoutTheTokenARequestSeesSumsOnly) {
  for (const bool with_token : {true, false}) {
    Start(with_token);
    const std::string page = One(Get());
    EXPECT_THAT(page, StartsWith("HTTP/1.1 200 "));
    EXPECT_THAT(page, HasSubstr("\nravenstore_up 1\n"));
    EXPECT_THAT(page, Not(HasSubstr("user")));
  }
}

TEST_F(PagesTest, WithTheTokenItSeesSingleUsers) {
  Start(true);
  EXPECT_THAT(One(Get("Bearer 0123456789abcdef")), HasSubstr(kOfAUser));
  EXPECT_THAT(One(Get()), Not(HasSubstr("alice"))) << "of the same look";
  Start(true, NameOfUser());
  EXPECT_THAT(One(Get("Bearer 0123456789abcdef")),
              AllOf(StartsWith("HTTP/1.1 200 "), Not(HasSubstr("user"))));
}

TEST_F(PagesTest, AWrongTokenIsRefused) {
  Start(true);
  for (const char* wrong : {"", "Bearer x", "Bearer 0123456789abcdeF", "Basic dTpw"}) {
    EXPECT_THAT(One(Get(wrong)), AllOf(StartsWith("HTTP/1.1 401 "), Not(HasSubstr("ravenstore_"))));
  }
  Start(false);
  EXPECT_THAT(One(Get("Bearer 0123456789abcdef")),
              AllOf(StartsWith("HTTP/1.1 401 "), HasSubstr("without --token-file")));
  EXPECT_EQ(looks_, 0);
}

TEST_F(PagesTest, OtherPathsAndMethodsAreRefused) {
  Start(true);
  EXPECT_THAT(One({"GET", "/nowhere", std::nullopt}), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(One({"POST", "/metrics", std::nullopt}), StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(One({"HEAD", "/metrics", std::nullopt}),
              AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("\r\n\r\n")));
}

TEST_F(PagesTest, TheFrontPageLinksToTheMetrics) {
  Start(true);
  EXPECT_THAT(One({"GET", "/", std::nullopt}),
              AllOf(StartsWith("HTTP/1.1 200 "),
                    HasSubstr("\r\nContent-Type: text/html; charset=utf-8\r\n"),
                    HasSubstr("<a href=\"/metrics\">")));
  EXPECT_EQ(looks_, 0);
}

// Else any local user could keep the daemon busy.
TEST_F(PagesTest, ALookServesAllRequestsOfAMoment) {
  Start(true);
  EXPECT_EQ(pages_->Answer({Get(), Get("Bearer 0123456789abcdef"), Get()}, now_).size(), 3u);
  EXPECT_EQ(looks_, 1);
  now_ += Pages::kLookAge - core::Duration(1);
  One(Get());
  EXPECT_EQ(looks_, 1);
  now_ += core::Duration(1);
  One(Get());
  EXPECT_EQ(looks_, 2);
}

}  // namespace
}  // namespace ravenstore::client::exporter
