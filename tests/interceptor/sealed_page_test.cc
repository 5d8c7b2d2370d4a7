#include "interceptor/sealed_page.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

namespace ravenstore::interceptor {
namespace {

TEST(SealedPageTest, WhatIsWrittenIsInTheFileAndItsSizeCannotBeChanged) {
  SealedPage page;
  EXPECT_EQ(page.Descriptor(), -1);
  auto* bytes = static_cast<char*>(page.Make("page", 8192));
  ASSERT_NE(bytes, nullptr);
  EXPECT_EQ(bytes[8191], 0);
  std::strcpy(bytes + 5000, "here");
  const int file = page.Descriptor();
  char read[5] = {};
  ASSERT_EQ(pread(file, read, 4, 5000), 4);
  EXPECT_STREQ(read, "here");
  EXPECT_NE(ftruncate(file, 100), 0);
  EXPECT_NE(ftruncate(file, 100000), 0);
  EXPECT_EQ(fcntl(file, F_GETFD), FD_CLOEXEC);
}

TEST(SealedPageTest, AnotherFileUnderItsNumberIsNotItsOwn) {
  SealedPage page;
  ASSERT_NE(page.Make("page", 4096), nullptr);
  const int file = page.Descriptor();
  ASSERT_EQ(dup2(STDERR_FILENO, file), file);
  EXPECT_EQ(page.Descriptor(), -1);
  page.ForgetInChild();
  EXPECT_NE(fcntl(file, F_GETFD), -1) << "it closed what was not its own";
  close(file);
}

TEST(SealedPageTest, AChildOfForkHasNone) {
  SealedPage page;
  ASSERT_NE(page.Make("page", 4096), nullptr);
  const int file = page.Descriptor();
  const pid_t child = fork();
  if (child == 0) {
    page.ForgetInChild();
    _exit(page.Descriptor() == -1 && fcntl(file, F_GETFD) == -1 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(page.Descriptor(), file);
}

}  // namespace
}  // namespace ravenstore::interceptor
