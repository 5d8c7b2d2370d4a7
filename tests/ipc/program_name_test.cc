#include "ipc/program_name.h"

#include <errno.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

namespace ravenstore::ipc {
namespace {

std::string NameOf(const char* program, std::initializer_list<const char*> words) {
  std::string line;
  for (const char* word : words) line.append(word).push_back('\0');
  char name[64];
  const size_t length = NameOfProgram(program, line.data(), line.size(), name, sizeof(name));
  EXPECT_EQ(name[length], '\0');
  return {name, length};
}

TEST(ProgramNameTest, APythonIsCalledByItsScript) {
  EXPECT_EQ(NameOf("python3", {"python3", "jobs/train.py", "--lr", "1"}), "train.py");
  EXPECT_EQ(NameOf("python", {"/usr/bin/python", "-u", "-Wd", "-X", "dev", "/a/b.py"}), "b.py");
  EXPECT_EQ(NameOf("python3.12", {"python3.12", "-uB", "-W", "error", "./c.py"}), "c.py");
  EXPECT_EQ(NameOf("python3.13t", {"python3.13t", "/usr/local/bin/torchrun", "x.py"}), "torchrun");
  EXPECT_EQ(NameOf("python3", {"python3", "--check-hash-based-pycs", "never", "d.py"}), "d.py");
  EXPECT_EQ(NameOf("python3", {"python3", "-m", "a.serve", "x"}), "serve");
  EXPECT_EQ(NameOf("python3", {"python3", "-um", "vllm"}), "vllm");
  EXPECT_EQ(NameOf("python3", {"python3", "-mvllm"}), "vllm");
}

TEST(ProgramNameTest, WithoutAScriptAPythonIsCalledAsItself) {
  EXPECT_EQ(NameOf("python3", {"python3"}), "python3");
  EXPECT_EQ(NameOf("python3", {"python3", "-c", "pass", "x.py"}), "python3");
  EXPECT_EQ(NameOf("python3", {"python3", "-"}), "python3");
  EXPECT_EQ(NameOf("python3", {"python3", "-m"}), "python3");
  EXPECT_EQ(NameOf("python3", {"python3", "-W"}), "python3");
  EXPECT_EQ(NameOf("python3", {"python3", "folder/"}), "python3");
  EXPECT_EQ(NameOf("python3", {"python3", "--check-hash-based-pycs"}), "python3");
  EXPECT_EQ(NameOf("python3", {}), "python3");
}

TEST(ProgramNameTest, OtherProgramsAreCalledAsThemselves) {
  EXPECT_EQ(NameOf("trainer", {"./trainer", "x.py"}), "trainer");
  EXPECT_EQ(NameOf("pythonic", {"pythonic", "x.py"}), "pythonic");
}

TEST(ProgramNameTest, ALongNameIsCut) {
  char name[5];
  EXPECT_EQ(NameOfProgram("abcdefgh", "", 0, name, sizeof(name)), 4u);
  EXPECT_STREQ(name, "abcd");
}

TEST(ProgramNameTest, ThisProcessHasOne) {
  char name[256];
  EXPECT_GT(ProgramName(name, sizeof(name)), 0u);
  EXPECT_STREQ(name, program_invocation_short_name);
}

}  // namespace
}  // namespace ravenstore::ipc
