#include "interceptor/settings.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <string>

namespace ravenstore::interceptor {
namespace {

constexpr char kVariable[] = "RAVENSTORE_TEST_SIZE";

uint64_t SizeOf(const char* text) {
  ::setenv(kVariable, text, 1);
  return AskedSize(kVariable, "nothing");
}

TEST(SettingsTest, ReadsSizesAsUsersWriteThem) {
  EXPECT_EQ(SizeOf("0"), 0u);
  EXPECT_EQ(SizeOf("12"), 12u);
  EXPECT_EQ(SizeOf("12B"), 12u);
  EXPECT_EQ(SizeOf("2k"), 2048u);
  EXPECT_EQ(SizeOf("2 KiB"), 2048u);
  EXPECT_EQ(SizeOf("1.5GiB"), uint64_t{3} << 29);
  EXPECT_EQ(SizeOf("1TiB"), uint64_t{1} << 40);
  EXPECT_EQ(SizeOf("1T"), uint64_t{1} << 40);
  EXPECT_EQ(SizeOf("1.5 TB"), uint64_t{1'500'000'000'000});
  EXPECT_EQ(SizeOf("2kB"), 2000u);
  ::unsetenv(kVariable);
  EXPECT_EQ(AskedSize(kVariable, "nothing"), 0u);
}

TEST(SettingsTest, SaysWhatHoldsWithoutWhatIsNoSize) {
  for (const char* text : {"much", "-1", "1.5.2", "3PiB", "1GiBs", "99999999999999999999"}) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(SizeOf(text), 0u) << text;
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find(std::string(kVariable) + "=" + text + " is no size: nothing"),
              std::string::npos)
        << said;
  }
}

// It is read once in a process, so this is one test.
TEST(SettingsTest, TheEnvironmentIsReadOnce) {
  const std::string log = testing::TempDir() + "settings_test.log";
  ::setenv("RAVENSTORE_MODE", "elastic", 1);
  ::setenv("RAVENSTORE_INTERCEPT_LOG", log.c_str(), 1);
  ::setenv("RAVENSTORE_WAIT", "30", 1);
  ::setenv("RAVENSTORE_ELASTIC_HOST", "1GiB", 1);
  ::setenv("RAVENSTORE_ELASTIC_AWAY", "mapped", 1);
  ReadSettings();
  ::setenv("RAVENSTORE_MODE", "store", 1);
  ::setenv("RAVENSTORE_WAIT", "31", 1);
  ReadSettings();
  EXPECT_EQ(AskedMode(), Mode::kElastic);
  EXPECT_EQ(Asked().mode, Mode::kElastic);
  EXPECT_STREQ(NameOf(Asked().mode), "elastic");
  EXPECT_EQ(Asked().wait_seconds, 30);
  EXPECT_EQ(Asked().elastic_host, uint64_t{1} << 30);
  EXPECT_TRUE(Asked().elastic_maps_away);
  EXPECT_FALSE(Asked().elastic_still);
  Log("%d words", 2);
  std::string line;
  std::getline(std::ifstream(log), line);
  EXPECT_EQ(line.substr(line.find(']')), "]: 2 words");
}

}  // namespace
}  // namespace ravenstore::interceptor
