#include "client/ctl/job_key.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>

#include "tests/ipc/short_directory.h"

namespace ravenstore::client::ctl {
namespace {

TEST(JobKeyTest, TheSameCommandHasTheSameKeyOf32Digits) {
  const std::string key = JobKey({"sh", "train", "5"});
  EXPECT_EQ(key, JobKey({"sh", "train", "5"}));
  EXPECT_EQ(key.size(), 32u);
  EXPECT_EQ(key.find_first_not_of("0123456789abcdef"), std::string::npos);
}

TEST(JobKeyTest, WordsProgramAndFolderDistinguishCommands) {
  std::set<std::string> keys = {JobKey({"sh", "train", "5"}), JobKey({"sh", "train", "6"}),
                                JobKey({"sh", "train5"}), JobKey({"sh", "train", "5", ""}),
                                JobKey({"ls", "train", "5"})};
  EXPECT_EQ(keys.size(), 5u);
  const ipc::ShortDirectory folder;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(std::filesystem::path(folder / "x").parent_path());
  keys.insert(JobKey({"sh", "train", "5"}));
  std::filesystem::current_path(before);
  EXPECT_EQ(keys.size(), 6u);
}

TEST(JobKeyTest, AProgramIsTheFileThatRunsHoweverItIsNamed) {
  EXPECT_EQ(JobKey({"/bin/../bin/sh"}), JobKey({"/bin/sh"}));
  EXPECT_NE(JobKey({"/nowhere/sh"}), JobKey({"/bin/sh"}));
}

TEST(CommandNameTest, IsWhatTheProcessWillBeCalled) {
  EXPECT_EQ(CommandName({"/usr/bin/python3", "-u", "jobs/train.py", "--lr=1"}), "train.py");
  EXPECT_EQ(CommandName({"./trainer", "x.py"}), "trainer");
}

}  // namespace
}  // namespace ravenstore::client::ctl
