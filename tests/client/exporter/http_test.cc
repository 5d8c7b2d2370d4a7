#include "client/exporter/http.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ravenstore::client::exporter {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

TEST(HttpTest, ARequestIsAMethodAPathAndMaybeAnAuthorization) {
  const auto plain = ParseHttpHead("GET /metrics?a=b?c HTTP/1.1\r\nHost: x:1\r\n\r\n");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->method, "GET");
  EXPECT_EQ(plain->path, "/metrics");
  EXPECT_FALSE(plain->authorization);
  const auto with = ParseHttpHead("HEAD / HTTP/1.0\r\naUTHORIZATION:\t Bearer x \r\n\r\n");
  ASSERT_TRUE(with);
  EXPECT_EQ(with->method, "HEAD");
  EXPECT_EQ(with->authorization, "Bearer x");
  EXPECT_TRUE(ParseHttpHead("GET / HTTP/1.1\r\n\r\n"));
}

TEST(HttpTest, WhatIsNoRequestIsNone) {
  for (const char* head : {"", "\r\n\r\n", "GET / HTTP/1.1", "GET / HTTP/1.1\r\n", "GET\r\n\r\n",
                           "GET /\r\n\r\n", " / HTTP/1.1\r\n\r\n", "GET HTTP/1.1\r\n\r\n",
                           "GET / HTTP/2\r\n\r\n", "GET / HTTP/1.1\r\nno colon\r\n\r\n",
                           "GET / HTTP/1.1\r\nAuthorization: a\r\nauthorization: b\r\n\r\n"}) {
    EXPECT_FALSE(ParseHttpHead(head)) << head;
  }
}

TEST(HttpTest, AnAnswerSaysItsLengthAndEndsTheConnection) {
  const std::string answer = HttpAnswer(200, "text\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\nContent-Type: text/plain; version=0.0.4"));
  EXPECT_THAT(answer, HasSubstr("\r\nContent-Length: 5\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\nConnection: close\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\ntext\n"));
  EXPECT_THAT(HttpAnswer(200, "text\n", /*with_body=*/false),
              AllOf(HasSubstr("\r\nContent-Length: 5\r\n"), EndsWith("\r\n\r\n")));
  EXPECT_THAT(HttpAnswer(401, ""), HasSubstr("\r\nWWW-Authenticate: Bearer\r\n"));
  EXPECT_THAT(HttpAnswer(405, ""), HasSubstr("\r\nAllow: GET, HEAD\r\n"));
}

}  // namespace
}  // namespace ravenstore::client::exporter
