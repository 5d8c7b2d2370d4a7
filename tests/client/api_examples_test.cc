// The programs of docs/api.md are built as they stand there, and do what it says of them.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/daemon/daemon_process.h"

namespace ravenstore {
namespace {

struct Ended {
  int status;
  std::string said;
};

Ended RunToItsEnd(const std::string& program) {
  FILE* pipe = ::popen(program.c_str(), "r");
  std::string said;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) said += static_cast<char>(c);
  return {::pclose(pipe), said};
}

class ApiExamplesTest : public testing::Test {
 protected:
  ApiExamplesTest() { ::setenv("RAVENSTORE_SOCKET", daemon_.socket().c_str(), 1); }

  daemon::DaemonProcess daemon_;
};

TEST_F(ApiExamplesTest, TheProgramInCppMovesWhatDoesNotFit) {
  const Ended ended = RunToItsEnd("tests/client/hello_cc");
  EXPECT_EQ(ended.status, 0);
  unsigned long long out = 0, in = 0, hits = 0, gets = 0;
  ASSERT_EQ(std::sscanf(ended.said.c_str(),
                        "%llu bytes went out, %llu came back, %llu of %llu gets found", &out, &in,
                        &hits, &gets),
            4)
      << ended.said;
  EXPECT_GE(out, 192u << 20);
  EXPECT_GE(in, 192u << 20);
  EXPECT_EQ(gets, 32u);
  EXPECT_LE(hits, gets);
}

TEST_F(ApiExamplesTest, TheProgramInCEndsWell) {
  const Ended ended = RunToItsEnd("tests/client/hello_c");
  EXPECT_EQ(ended.status, 0) << ended.said;
}

}  // namespace
}  // namespace ravenstore
