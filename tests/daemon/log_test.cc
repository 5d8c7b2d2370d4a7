#include "daemon/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <sstream>
#include <string>

#include "core/check.h"
#include "ipc/clock.h"
#include "ipc/unique_fd.h"
#include "tests/timing/timing.h"

namespace ravenstore::daemon {
namespace {

using std::chrono::seconds;

// A pipe, or a pair of sockets as a service manager's, to a reader that does not read by itself.
class Reader {
 public:
  explicit Reader(bool sockets = false) {
    ::signal(SIGPIPE, SIG_IGN);
    int ends[2];
    RAVEN_CHECK((sockets ? ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)
                         : ::pipe2(ends, O_CLOEXEC)) == 0);
    from_.reset(ends[0]);
    to_.reset(ends[1]);
    ::fcntl(from_.get(), F_SETFL, O_NONBLOCK);
  }

  int to() const { return to_.get(); }
  void Leave() { from_.reset(); }
  // Until nothing more goes in.
  void Fill() {
    ::fcntl(to_.get(), F_SETFL, O_NONBLOCK);
    const std::string line(4095, 'x');
    while (::write(to_.get(), (line + "\n").data(), 4096) > 0) {
    }
    while (::write(to_.get(), "\n", 1) > 0) {
    }
    ::fcntl(to_.get(), F_SETFL, 0);
  }
  // Returns the bytes that are waiting there.
  std::string Read() {
    std::string all;
    char bytes[4096];
    for (ssize_t n; (n = ::read(from_.get(), bytes, sizeof(bytes))) > 0;) all.append(bytes, n);
    return all;
  }
  // Reads until `words` came.
  bool ReadsLine(const std::string& words) {
    return Eventually([&] {
      all_ += Read();
      return all_.find(words) != std::string::npos;
    });
  }
  const std::string& all() const { return all_; }

 private:
  ipc::UniqueFd from_;
  ipc::UniqueFd to_;
  std::string all_;
};

int64_t LinesWith(const std::string& text, const std::string& words) {
  int64_t lines = 0;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines += line.find(words) != std::string::npos;
  return lines;
}

TEST(LogTest, LinesComeInOrderAndWhole) {
  Reader reader;
  {
    Log log(reader.to());
    for (int i = 0; i < 100; ++i) spdlog::info("line {} of it", i);
  }
  const std::string all = reader.Read();
  size_t at = 0;
  for (int i = 0; i < 100; ++i) {
    at = all.find("[info] line " + std::to_string(i) + " of it\n", at);
    ASSERT_NE(at, std::string::npos) << i;
  }
}

class ReaderTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(PipeAndSocket, ReaderTest, testing::Bool());

TEST_P(ReaderTest, AReaderThatDoesNotReadDelaysNoOtherAndLearnsWhatItMissed) {
  constexpr int64_t kLines = 3 * int64_t{Log::kQueueLines};
  Reader reader(GetParam());
  reader.Fill();
  Log log(reader.to());
  for (int64_t i = 0; i < kLines; ++i) spdlog::info("attached");
  const uint64_t left_out = log.left_out();
  EXPECT_GE(left_out, static_cast<uint64_t>(kLines) - Log::kQueueLines - 1);
  ASSERT_TRUE(reader.ReadsLine(std::to_string(left_out) + " lines of this log were left out"));
  spdlog::info("the last line");
  ASSERT_TRUE(reader.ReadsLine("the last line"));
  EXPECT_EQ(LinesWith(reader.all(), "attached") + static_cast<int64_t>(log.left_out()), kLines);
  EXPECT_EQ(LinesWith(reader.all(), "were left out"), 1);
}

TEST_P(ReaderTest, TheEndDoesNotWaitForTheReader) {
  Reader reader(GetParam());
  reader.Fill();
  std::optional<Log> log(reader.to());
  for (int i = 0; i < 10'000; ++i) spdlog::info("never read");
  TimeLimit limit(seconds(10));
  log.reset();
  EXPECT_FALSE(limit.IsOver());
}

TEST_P(ReaderTest, CriticalWordsAreThereWhenTheCallReturns) {
  Reader reader(GetParam());
  Log log(reader.to());
  spdlog::info("before it");
  spdlog::critical("thread raven-loop threw: no memory");
  EXPECT_NE(reader.Read().find("[critical] thread raven-loop threw: no memory\n"),
            std::string::npos);
}

TEST_P(ReaderTest, CriticalWordsWaitNotForEverForAReaderThatDoesNotRead) {
  Reader reader(GetParam());
  reader.Fill();
  Log log(reader.to());
  for (int i = 0; i < 10'000; ++i) spdlog::info("never read");
  TimeLimit limit(seconds(10));
  spdlog::critical("thread raven-loop threw: no memory");
  EXPECT_FALSE(limit.IsOver());
}

TEST_P(ReaderTest, WithoutAReaderLinesAreLeftOut) {
  Reader reader(GetParam());
  reader.Leave();
  Log log(reader.to());
  spdlog::info("nobody is there");
  EXPECT_TRUE(Eventually([&] { return log.left_out() > 0; }));
}

TEST(LogTest, TheDescriptorsFlagsStayAsTheyAre) {
  Reader reader;
  const int before = ::fcntl(reader.to(), F_GETFL);
  Log log(reader.to());
  spdlog::info("others may share it");
  ASSERT_TRUE(reader.ReadsLine("share it"));
  EXPECT_EQ(::fcntl(reader.to(), F_GETFL), before);
}

TEST(LogTest, LongLinesAreCut) {
  Reader reader;
  Log log(reader.to());
  spdlog::info("{}", std::string(100'000, 'y'));
  spdlog::info("after it");
  ASSERT_TRUE(reader.ReadsLine("after it"));
  EXPECT_NE(reader.all().find("yyy...\n"), std::string::npos);
  EXPECT_EQ(reader.all().find('\n'), Log::kLineBytes - 1);
}

}  // namespace
}  // namespace ravenstore::daemon
