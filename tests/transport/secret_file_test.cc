#include "transport/secret_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace ravenstore::transport {
namespace {

using core::ErrorCode;

class SecretFileTest : public testing::Test {
 protected:
  std::string Write(const std::string& text, mode_t mode = 0600) {
    const std::string path = testing::TempDir() + "/secret_file_test.key";
    ::unlink(path.c_str());
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
    return path;
  }
  static core::Result<std::string> Read(const std::string& path, size_t bytes_max = 100) {
    return ReadSecretFile("the secret", path, bytes_max);
  }
};

TEST_F(SecretFileTest, ReadsTheWholeFileUpToTheBound) {
  for (const mode_t mode : {0600, 0400}) {
    const auto text = Read(Write("seven\n7", mode), 7);
    ASSERT_TRUE(text.ok()) << Describe(text.error());
    EXPECT_EQ(*text, "seven\n7");
  }
  EXPECT_EQ(Read(Write("")).value(), "");
  const auto longer = Read(Write("seven\n7!"), 7);
  EXPECT_EQ(longer.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(longer.error().message.find("is too long"), std::string::npos);
}

TEST_F(SecretFileTest, RefusesWhatOthersMayReadAndSaysWhatToDo) {
  for (const mode_t mode : {0644, 0640, 0604, 0620}) {
    const auto error = Read(Write("hidden", mode)).error();
    EXPECT_EQ(error.code, ErrorCode::kPermission);
    EXPECT_NE(error.message.find("the secret "), std::string::npos);
    EXPECT_NE(error.message.find("set its mode to 0600"), std::string::npos);
    EXPECT_EQ(error.message.find("hidden"), std::string::npos);
  }
}

TEST_F(SecretFileTest, SaysWhatIsNoFile) {
  EXPECT_EQ(Read(testing::TempDir() + "/none").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(Read(testing::TempDir()).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace ravenstore::transport
