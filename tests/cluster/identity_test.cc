#include "cluster/identity.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "cluster/hex.h"

namespace ravenstore::cluster {
namespace {

using core::ErrorCode;

class IdentityTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(folder_);
    std::filesystem::remove(machine_file_);
  }

  IdentityOptions Options() const { return {.folder = folder_, .machine = "a machine"}; }
  core::Result<NodeIdentity> Open() const { return NodeIdentity::Open(Options()); }
  void Start() const { ASSERT_TRUE(Open().ok()); }
  std::string Path(const char* name) const { return folder_ + "/" + name; }
  static std::string Text(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static mode_t ModeOf(const std::string& path) {
    struct stat status {};
    return ::stat(path.c_str(), &status) == 0 ? status.st_mode & 07777 : 0;
  }
  MachineId MachineOf(const std::string& name) const {
    IdentityOptions options = Options();
    options.machine = name;
    options.machine_file = machine_file_;
    const auto identity = NodeIdentity::Open(options);
    return identity.ok() ? identity->machine() : MachineId{};
  }

  const std::string folder_ = testing::TempDir() + "/identity_test";
  const std::string machine_file_ = testing::TempDir() + "/identity_test.machine";
};

TEST_F(IdentityTest, KeepsItsKeyAndChangesItsIncarnation) {
  PublicKey key;
  Incarnation first;
  {
    const auto identity = Open();
    ASSERT_TRUE(identity.ok()) << Describe(identity.error());
    key = identity->public_key();
    first = identity->incarnation();
    EXPECT_TRUE(identity->predecessors().empty());
    EXPECT_NE(first, Incarnation{});
  }
  const auto identity = Open();
  ASSERT_TRUE(identity.ok()) << Describe(identity.error());
  EXPECT_EQ(identity->public_key(), key);
  EXPECT_NE(identity->incarnation(), first);
  EXPECT_EQ(identity->predecessors(), std::vector{first});
  EXPECT_EQ(ModeOf(folder_), 0700u);
  EXPECT_EQ(ModeOf(Path("node.key")), 0600u);
}

TEST_F(IdentityTest, KnowsABoundedNumberOfPredecessors) {
  std::vector<Incarnation> all;
  for (size_t i = 0; i < kPredecessorsMax + 5; ++i) {
    const auto identity = Open();
    ASSERT_TRUE(identity.ok()) << Describe(identity.error());
    const std::vector<Incarnation>& known = identity->predecessors();
    ASSERT_EQ(known.size(), std::min(all.size(), kPredecessorsMax));
    EXPECT_TRUE(std::equal(known.rbegin(), known.rend(), all.rbegin()));
    all.push_back(identity->incarnation());
  }
}

TEST_F(IdentityTest, ASignatureHoldsForItsKeyAndMessageAlone) {
  const auto identity = Open();
  ASSERT_TRUE(identity.ok());
  const std::string message = "32 bytes that nobody could foresee";
  const Signature signature = identity->Sign(message);
  const PublicKey& key = identity->public_key();
  EXPECT_TRUE(NodeIdentity::Verify(key, message, signature));
  EXPECT_FALSE(NodeIdentity::Verify(key, message.substr(1), signature));
  EXPECT_FALSE(NodeIdentity::Verify(key, message + " ", signature));
  for (const size_t at : {size_t{0}, size_t{63}}) {
    Signature damaged = signature;
    damaged[at] ^= std::byte{1};
    EXPECT_FALSE(NodeIdentity::Verify(key, message, damaged));
  }
  PublicKey other = key;
  other[3] ^= std::byte{1};
  EXPECT_FALSE(NodeIdentity::Verify(other, message, signature));
}

TEST_F(IdentityTest, IsWhatANodeProvesItselfBy) {
  const auto kept = Open();
  ASSERT_TRUE(kept.ok());
  const Identity identity = kept->identity();
  EXPECT_EQ(identity.incarnation, kept->incarnation());
  EXPECT_EQ(identity.machine, kept->machine());
  EXPECT_EQ(identity.key, kept->public_key());
  EXPECT_TRUE(identity.verify(identity.key, "message", identity.sign("message")));
  EXPECT_FALSE(identity.verify(identity.key, "another", identity.sign("message")));
}

// OpenSSL takes the empty signature for a sign of the point at zero, whatever is signed.
TEST_F(IdentityTest, AKeyThatAnybodyCanSignForProvesNothing) {
  for (const uint8_t sign : {0x00, 0x80}) {
    PublicKey key{};
    key.back() = std::byte{sign};
    for (int i = 0; i < 64; ++i) {
      EXPECT_FALSE(NodeIdentity::Verify(key, "challenge " + std::to_string(i), Signature{}));
    }
  }
}

TEST_F(IdentityTest, ASecondProcessCannotHaveTheFolder) {
  const auto first = Open();
  ASSERT_TRUE(first.ok());
  const auto second = Open();
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::kWrongState);
  EXPECT_NE(second.error().message.find("another process has the state folder"), std::string::npos);
}

TEST_F(IdentityTest, RefusesAKeyThatOthersMayRead) {
  Start();
  ::chmod(Path("node.key").c_str(), 0640);
  const auto identity = Open();
  ASSERT_FALSE(identity.ok());
  EXPECT_EQ(identity.error().code, ErrorCode::kPermission);
  EXPECT_NE(identity.error().message.find("set its mode to 0600"), std::string::npos);
}

TEST_F(IdentityTest, RefusesAFolderThatOthersMayWrite) {
  Start();
  ::chmod(folder_.c_str(), 0770);
  const auto identity = Open();
  ASSERT_FALSE(identity.ok());
  EXPECT_EQ(identity.error().code, ErrorCode::kPermission);
  EXPECT_NE(identity.error().message.find(folder_), std::string::npos);
}

TEST_F(IdentityTest, SaysWhichFileIsDamagedAndWhatToDo) {
  Start();
  const std::string key = Text(Path("node.key"));
  for (const std::string& text : {std::string("no key"), std::string(), key.substr(0, 60)}) {
    std::ofstream(Path("node.key")) << text;
    const auto identity = Open();
    ASSERT_FALSE(identity.ok());
    EXPECT_EQ(identity.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(identity.error().message.find("is no Ed25519 key"), std::string::npos);
  }
  std::ofstream(Path("node.key")) << key;
  std::ofstream(Path("incarnations")) << "0123\n";
  const auto identity = Open();
  ASSERT_FALSE(identity.ok());
  EXPECT_EQ(identity.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(identity.error().message.find("incarnations: remove it"), std::string::npos);
}

TEST_F(IdentityTest, AStartThatDiedWhileItWroteLeavesTheLastOnesWords) {
  Start();
  const std::string before = Text(Path("incarnations"));
  std::ofstream(Path("incarnations.new")) << "half a li";
  const auto identity = Open();
  ASSERT_TRUE(identity.ok()) << Describe(identity.error());
  EXPECT_EQ(Text(Path("incarnations")), before + ToHex(identity->incarnation()) + "\n");
}

TEST_F(IdentityTest, AMachineHasOneIdThatRevealsNothing) {
  const std::string digits = "0123456789abcdef0123456789abcdef";
  std::ofstream(machine_file_) << digits << "\n";
  const MachineId from_file = MachineOf("");
  EXPECT_EQ(MachineOf(""), from_file);
  EXPECT_NE(ToHex(from_file), digits);
  EXPECT_EQ(MachineOf("x"), MachineOf("x"));
  EXPECT_NE(MachineOf("x"), MachineOf("y"));
  EXPECT_NE(MachineOf(digits), from_file);
}

TEST_F(IdentityTest, AMachineWithoutAnIdGetsAnErrorThatSaysWhatToDo) {
  for (const char* text : {"", "uninitialized\n"}) {
    std::ofstream(machine_file_) << text;
    const auto identity = NodeIdentity::Open({.folder = folder_, .machine_file = machine_file_});
    ASSERT_FALSE(identity.ok());
    EXPECT_EQ(identity.error().code, ErrorCode::kNotFound);
    EXPECT_NE(identity.error().message.find("systemd-machine-id-setup"), std::string::npos);
  }
}

}  // namespace
}  // namespace ravenstore::cluster
