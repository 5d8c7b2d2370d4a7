#include "transport/node_key.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

namespace ravenstore::transport {
namespace {

using core::ErrorCode;

class NodeKeyTest : public testing::Test {
 protected:
  std::string Write(const std::string& text, mode_t mode = 0600) {
    const std::string path = testing::TempDir() + "/node_key_test.key";
    ::unlink(path.c_str());
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
    return path;
  }
  core::Error ErrorOf(const std::string& path) { return ReadNodeKey(path).error(); }

  const std::string digits_ = "00FFa1" + std::string(58, '7');
};

TEST_F(NodeKeyTest, ReadsWhatItsOwnerAloneCanRead) {
  for (const char* end : {"", "\n"}) {
    const auto key = ReadNodeKey(Write(digits_ + end, 0400));
    ASSERT_TRUE(key.ok()) << Describe(key.error());
    EXPECT_EQ(key->bytes()[0], 0x00);
    EXPECT_EQ(key->bytes()[1], 0xff);
    EXPECT_EQ(key->bytes()[2], 0xa1);
    EXPECT_EQ(key->bytes()[31], 0x77);
  }
}

TEST_F(NodeKeyTest, RefusesAFileThatOthersMayRead) {
  for (const mode_t mode : {0644, 0640, 0604, 0620}) {
    const auto error = ErrorOf(Write(digits_, mode));
    EXPECT_EQ(error.code, ErrorCode::kPermission);
    EXPECT_NE(error.message.find("is open to other users than its owner"), std::string::npos);
  }
}

TEST_F(NodeKeyTest, RefusesWhatIsNoKeyWithoutShowingIt) {
  for (const std::string& text : {std::string(), digits_ + "0", digits_ + "\n\n", digits_.substr(1),
                                  "x" + digits_.substr(1)}) {
    const auto error = ErrorOf(Write(text));
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.message.find("777"), std::string::npos);
  }
}

TEST_F(NodeKeyTest, SaysWhatIsWrongWithThePath) {
  EXPECT_EQ(ErrorOf(testing::TempDir() + "/none").code, ErrorCode::kNotFound);
  EXPECT_EQ(ErrorOf(testing::TempDir()).code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace ravenstore::transport
