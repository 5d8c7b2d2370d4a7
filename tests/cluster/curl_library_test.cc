#include "cluster/curl_library.h"

#include <gtest/gtest.h>

namespace ravenstore::cluster {
namespace {

TEST(CurlLibraryTest, IsLoadedOnceAndWhole) {
  const auto curl = LoadCurl();
  if (!curl.ok()) {
    EXPECT_NE(curl.error().message.find("libcurl"), std::string::npos);
    GTEST_SKIP() << curl.error().message;
  }
  EXPECT_EQ(LoadCurl().value(), *curl);
  EXPECT_STREQ((*curl)->curl_easy_strerror(CURLE_OK), "No error");
}

}  // namespace
}  // namespace ravenstore::cluster
