#include "daemon/history_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/ipc/short_directory.h"

namespace ravenstore::daemon {
namespace {

class HistoryFileTest : public testing::Test {
 protected:
  static JobHistory Of(size_t jobs) {
    JobHistory history;
    for (size_t i = 0; i < jobs; ++i) {
      const std::string digits = std::to_string(i);
      history.Add({.uid = 7,
                   .job = std::string(32 - digits.size(), '0') + digits,
                   .run = 1,
                   .name = "job",
                   .peak = core::GiB(1)});
    }
    return history;
  }
  std::string Folder() const { return std::filesystem::path(directory_ / "x").parent_path(); }
  std::string File(const char* name) const { return directory_ / name; }
  void Write(const std::string& text) { std::ofstream(File("jobs")) << text; }
  static void Save(HistoryFile& file, const JobHistory& history) {
    file.Save(history.Serialize(), history.version());
  }

  ipc::ShortDirectory directory_;
};

TEST_F(HistoryFileTest, WhatIsSavedIsLoadedAndIsTheDaemonsAlone) {
  HistoryFile file(Folder());
  EXPECT_EQ(file.Load().size(), 0u);
  Save(file, Of(3));
  EXPECT_EQ(HistoryFile(Folder()).Load().size(), 3u);
  struct stat status {};
  ASSERT_EQ(::stat(File("jobs").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_FALSE(std::filesystem::exists(File("jobs.new")));
}

TEST_F(HistoryFileTest, OneThatIsDamagedIsSetAsideAndANewOneBegins) {
  Write("nonsense");
  HistoryFile file(Folder());
  EXPECT_EQ(file.Load().size(), 0u);
  EXPECT_TRUE(std::filesystem::exists(File("jobs.damaged")));
  EXPECT_FALSE(std::filesystem::exists(File("jobs")));
  Save(file, Of(1));
  EXPECT_EQ(file.Load().size(), 1u);
}

TEST_F(HistoryFileTest, WhatIsNoFileIsSetAsideToo) {
  std::filesystem::create_directory(File("jobs"));
  EXPECT_EQ(HistoryFile(Folder()).Load().size(), 0u);
  EXPECT_TRUE(std::filesystem::is_directory(File("jobs.damaged")));
}

TEST_F(HistoryFileTest, WithoutAFolderNothingIsKept) {
  HistoryFile none("");
  EXPECT_EQ(none.Load().size(), 0u);
  EXPECT_FALSE(none.keeps());
  HistoryFile absent(File("absent"));
  EXPECT_TRUE(absent.keeps());
  EXPECT_EQ(absent.Load().size(), 0u);
  EXPECT_FALSE(absent.keeps());
  Save(absent, Of(1));
  EXPECT_FALSE(std::filesystem::exists(File("absent")));
}

TEST_F(HistoryFileTest, AnOlderVersionThatComesLaterIsNotWritten) {
  HistoryFile file(Folder());
  const JobHistory later = Of(5);
  std::vector<std::thread> threads;
  for (size_t jobs = 1; jobs <= 5; ++jobs)
    threads.emplace_back([&file, jobs] { Save(file, Of(jobs)); });
  for (std::thread& thread : threads) thread.join();
  Save(file, Of(1));
  EXPECT_EQ(HistoryFile(Folder()).Load().size(), later.size());
}

TEST_F(HistoryFileTest, WhereItCannotBeWrittenTheOldOneStays) {
  HistoryFile file(Folder());
  Save(file, Of(1));
  std::filesystem::create_directory(File("jobs.new"));
  Save(file, Of(2));
  EXPECT_EQ(HistoryFile(Folder()).Load().size(), 1u);
  std::filesystem::remove(File("jobs.new"));
  Save(file, Of(2));
  EXPECT_EQ(HistoryFile(Folder()).Load().size(), 2u);
}

}  // namespace
}  // namespace ravenstore::daemon
