#include "client/ctl/commands.h"

#include <gmock/gmock.h>
#include <google/protobuf/io/coded_stream.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "proto/trace.pb.h"
#include "tests/client/ctl/scripted_daemon.h"

namespace ravenstore::client::ctl {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class CommandsTest : public testing::Test {
 protected:
  Streams streams() { return {out_, err_}; }
  std::string out() { return out_.str(); }
  std::string err() { return err_.str(); }
  GoodDaemon& daemon() { return good_; }

 private:
  GoodDaemon good_;
  ScriptedDaemon daemon_{std::ref(good_)};
  std::ostringstream out_;
  std::ostringstream err_;

 protected:
  Common common{.socket = daemon_.path(), .timeout = std::chrono::seconds(60)};
};

TEST_F(CommandsTest, StatusAsText) {
  EXPECT_EQ(RunStatus(common, streams()), kExitOk);
  EXPECT_THAT(out(), HasSubstr("HOST-0"));
  EXPECT_THAT(out(), HasSubstr("train_gpt 3"));
  EXPECT_EQ(err(), "");
}

TEST_F(CommandsTest, StatusAsJson) {
  common.json = true;
  EXPECT_EQ(RunStatus(common, streams()), kExitOk);
  EXPECT_THAT(out(), StartsWith("{\"daemon\""));
  EXPECT_THAT(out(), HasSubstr("\"name\":\"train_gpt 3\""));
}

TEST_F(CommandsTest, TopLooksAsOftenAsItIsToAndThenEnds) {
  const std::atomic<bool> stop{false};
  EXPECT_EQ(RunTop(common, {.interval = core::Duration{0}, .count = 2}, stop, streams()), kExitOk);
  const size_t second = out().find("ravenstored", 1);
  EXPECT_THAT(out().substr(0, second), HasSubstr("- in, - out"));
  EXPECT_THAT(out().substr(second), HasSubstr("0.00 GB/s in, 0.00 GB/s out"));
  EXPECT_THAT(out(), Not(HasSubstr("\x1b")));
}

TEST_F(CommandsTest, TopTakesTheLastLooksPlaceOnATerminalAndEndsAtAnInterrupt) {
  const std::atomic<bool> stop{true};
  EXPECT_EQ(RunTop(common, {.in_place = true}, stop, streams()), kExitOk);
  EXPECT_THAT(out(), StartsWith("\x1b[H\x1b[J"));
}

TEST_F(CommandsTest, TopTakesKeysAndEndsAtOne) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::write(ends[1], "xhq", 3), 3);
  const std::atomic<bool> stop{false};
  EXPECT_EQ(RunTop(common, {.interval = std::chrono::hours(1), .keys = ends[0]}, stop, streams()),
            kExitOk);
  const std::string text = out();
  EXPECT_THAT(text, HasSubstr("; h: keys\n"));
  const size_t second = text.find("ravenstored", 1);
  ASSERT_NE(second, std::string::npos) << "shown again for a key that means something";
  EXPECT_EQ(text.find("ravenstored", second + 1), std::string::npos) << "and for no other";
  EXPECT_THAT(text.substr(0, second), Not(HasSubstr("q ends")));
  EXPECT_THAT(text.substr(second), HasSubstr("q ends"));
  // The process at the other end is gone: nothing is read any more, and nothing spins.
  ::close(ends[1]);
  EXPECT_EQ(
      RunTop(common, {.interval = core::Duration{1}, .count = 2, .keys = ends[0]}, stop, streams()),
      kExitOk);
  ::close(ends[0]);
}

TEST_F(CommandsTest, TopAsJsonIsAnObjectForEachLook) {
  common.json = true;
  const std::atomic<bool> stop{false};
  EXPECT_EQ(RunTop(common, {.interval = core::Duration{0}, .count = 2}, stop, streams()), kExitOk);
  const std::string text = out();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
}

TEST_F(CommandsTest, TopWithoutADaemonFails) {
  const std::atomic<bool> stop{false};
  common.socket = "/nowhere/s";
  EXPECT_EQ(RunTop(common, {.count = 1}, stop, streams()), kExitFailed);
  EXPECT_THAT(err(), HasSubstr("/nowhere/s"));
}

TEST_F(CommandsTest, ClientsAreAllThere) {
  EXPECT_EQ(RunClients(common, streams()), kExitOk);
  EXPECT_THAT(out(), EndsWith("3 clients\n"));
}

TEST_F(CommandsTest, ListStopsAtItsLimitAndSaysSo) {
  EXPECT_EQ(RunList(common, {}, streams()), kExitOk);
  EXPECT_THAT(out(), HasSubstr("100 tensors"));
  EXPECT_THAT(out(), HasSubstr("there are more"));
}

TEST_F(CommandsTest, ListShowsAllWhenAskedTo) {
  common.json = true;
  EXPECT_EQ(RunList(common, {.limit = 0}, streams()), kExitOk);
  EXPECT_THAT(out(), HasSubstr("layer299"));
  EXPECT_THAT(out(), HasSubstr("\"more\":false"));
}

TEST_F(CommandsTest, ListOfExactlyTheLimitHasNoMore) {
  EXPECT_EQ(RunList(common, {.limit = 300}, streams()), kExitOk);
  EXPECT_THAT(out(), HasSubstr("300 tensors"));
  EXPECT_THAT(out(), Not(HasSubstr("there are more")));
}

TEST_F(CommandsTest, ListOfOneClient) {
  EXPECT_EQ(RunList(common, {.client = 2}, streams()), kExitOk);
  EXPECT_THAT(out(), HasSubstr("100 tensors"));
  EXPECT_THAT(out(), Not(HasSubstr("there are more")));
}

TEST_F(CommandsTest, ListByTierFindsTensorsInTwoPlaces) {
  EXPECT_EQ(RunList(common, {.tier = "host", .limit = 0}, streams()), kExitOk);
  EXPECT_THAT(out(), HasSubstr("120 tensors"));
  EXPECT_THAT(out(), HasSubstr("device 0 + host"));
}

TEST_F(CommandsTest, ListOfATierThatIsNotThereIsWrongUsage) {
  EXPECT_EQ(RunList(common, {.tier = "hots"}, streams()), kExitUsage);
  EXPECT_THAT(err(), HasSubstr("no tier 'hots': there are \"device 0\", \"device 1\", host"));
  EXPECT_EQ(out(), "");
  EXPECT_EQ(RunList(common, {.tier = "device 2"}, streams()), kExitUsage);
  // None of its tensors is there, but it is a place.
  EXPECT_EQ(RunList(common, {.tier = "device 1"}, streams()), kExitOk);
  EXPECT_EQ(RunList(common, {.tier = "nowhere"}, streams()), kExitOk);
}

TEST_F(CommandsTest, ListBySizeShowsTheLargestOfAll) {
  EXPECT_EQ(RunList(common, {.limit = 1, .sort = SortBy::kSize}, streams()), kExitOk);
  uint64_t largest = 0;
  for (uint64_t i = 0; i < 300; ++i) largest = std::max(largest, i * 7919 % 1000);
  EXPECT_THAT(out(), HasSubstr(std::to_string(largest) + ".0 KiB"));
  EXPECT_THAT(out(), HasSubstr("there are more"));
}

TEST_F(CommandsTest, LimitsChangeWhatWasGivenOnly) {
  daemon().limits_now.set_host_budget(core::GiB(5).count());
  EXPECT_EQ(RunLimits(common, {.client = 2, .device_budget = "12GiB"}, streams()), kExitOk);
  EXPECT_EQ(out(), "client 2: device budget 12.0 GiB on each device, host budget 5.0 GiB\n");
}

TEST_F(CommandsTest, LimitsOfAUserByNameOrNumber) {
  EXPECT_EQ(RunLimits(common, {.user = "root", .host_budget = "1G"}, streams()), kExitOk);
  EXPECT_THAT(out(), HasSubstr("user root: "));
  EXPECT_THAT(out(), HasSubstr("host budget 1.0 GiB"));
  EXPECT_EQ(RunLimits(common, {.user = "0"}, streams()), kExitOk);
}

TEST_F(CommandsTest, LimitsOfFurtherPoolsAreShownAndChangedByName) {
  for (const char* pool : {"peer 0", "file 0"}) {
    proto::PoolBudget* budget = daemon().limits_now.add_pool_budgets();
    budget->set_pool(pool);
    budget->set_bytes(core::GiB(5).count());
  }
  EXPECT_EQ(RunLimits(common, {.client = 2, .pool_budgets = {"file 0=1GiB"}}, streams()), kExitOk);
  EXPECT_THAT(out(), HasSubstr(", peer 0 budget 5.0 GiB, file 0 budget 1.0 GiB\n"));
  EXPECT_EQ(RunLimits(common, {.user = "root", .pool_budgets = {"peer 0=2GiB", "file 0=default"}},
                      streams()),
            kExitOk);
  EXPECT_THAT(out(), HasSubstr("peer 0 budget 2.0 GiB, file 0 budget 16777216.0 TiB")) << "as told";
}

TEST_F(CommandsTest, ABudgetOfAPoolThatTheDaemonPassedOverIsAFailure) {
  EXPECT_EQ(RunLimits(common, {.client = 2, .pool_budgets = {"file 0=1GiB"}}, streams()),
            kExitFailed);
  EXPECT_EQ(out(), "");
  EXPECT_THAT(err(), HasSubstr("the budget of file 0 was not set"));
}

TEST_F(CommandsTest, BudgetsOfPoolsThatCannotBeMeantAreRefused) {
  for (const char* text :
       {"", "file 0", "=1GiB", "file 0=", "file 0=0", "file 0=1KiB", "file 0=-1", "file 0=x"}) {
    EXPECT_EQ(RunLimits(common, {.client = 2, .pool_budgets = {text}}, streams()), kExitUsage);
    EXPECT_THAT(err(), HasSubstr("'" + std::string(text) + "' is no pool and its budget"));
  }
}

TEST_F(CommandsTest, BudgetsThatHaveRoomForNothingAreRefused) {
  for (const char* text : {"0", "1KiB", "2MB"}) {
    EXPECT_EQ(RunLimits(common, {.client = 2, .device_budget = text}, streams()), kExitUsage);
    EXPECT_THAT(err(), HasSubstr("'" + std::string(text) + "' is no budget: give a size of at"));
  }
  EXPECT_EQ(RunLimits(common, {.client = 2, .device_budget = "2MiB"}, streams()), kExitOk);
}

TEST_F(CommandsTest, AGuaranteeIsAUsers) {
  EXPECT_EQ(RunLimits(common, {.user = "root", .device_guarantee = "8GiB"}, streams()), kExitOk);
  EXPECT_THAT(out(), HasSubstr("(8.0 GiB guaranteed) on each device"));
  EXPECT_EQ(RunLimits(common, {.user = "root"}, streams()), kExitOk);
  EXPECT_EQ(daemon().limits_now.device_guarantee(), uint64_t{8} << 30);
  EXPECT_EQ(RunLimits(common, {.user = "root", .device_guarantee = "0"}, streams()), kExitOk);
  EXPECT_EQ(daemon().limits_now.device_guarantee(), 0u);
  EXPECT_EQ(RunLimits(common, {.client = 2, .device_guarantee = "8GiB"}, streams()), kExitUsage);
  EXPECT_THAT(err(), HasSubstr("--device-guarantee needs --user"));
}

TEST_F(CommandsTest, AWeightAndAPriorityAreAUsers) {
  EXPECT_EQ(RunLimits(common, {.user = "root", .weight = "3", .priority = "high"}, streams()),
            kExitOk);
  EXPECT_THAT(out(), HasSubstr(", weight 3, priority high\n"));
  EXPECT_EQ(daemon().limits_now.weight(), 3u);
  EXPECT_EQ(daemon().limits_now.priority(), proto::PRIORITY_HIGH);
  EXPECT_EQ(RunLimits(common, {.user = "root", .weight = "default"}, streams()), kExitOk);
  EXPECT_EQ(daemon().limits_now.weight(), 0u);
  EXPECT_EQ(RunLimits(common, {.client = 2, .weight = "3"}, streams()), kExitUsage);
  EXPECT_THAT(err(), HasSubstr("--weight and --priority need --user"));
  for (const char* weight : {"0", "-1", "1001", "1.5", "x"}) {
    EXPECT_EQ(RunLimits(common, {.user = "root", .weight = weight}, streams()), kExitUsage);
    EXPECT_THAT(err(), HasSubstr("'" + std::string(weight) +
                                 "' is no weight: give a whole number from 1 to 1000, or default"));
  }
  EXPECT_EQ(RunLimits(common, {.user = "root", .priority = "top"}, streams()), kExitUsage);
  EXPECT_THAT(err(), HasSubstr("'top' is no priority: give low, normal, high or default"));
}

TEST_F(CommandsTest, ADaemonThatKnowsNoWeightsIsNoSuccess) {
  daemon().knows_shares = false;
  EXPECT_EQ(RunLimits(common, {.user = "root", .weight = "3"}, streams()), kExitFailed);
  EXPECT_THAT(err(), HasSubstr("weight and priority were not set: the daemon is older"));
}

TEST_F(CommandsTest, ALimitIsTakenBackByTheWordDefault) {
  EXPECT_EQ(RunLimits(common, {.client = 2, .device_budget = "default"}, streams()), kExitOk);
  EXPECT_THAT(out(), HasSubstr("device budget 16777216.0 TiB")) << "as told";
}

TEST_F(CommandsTest, LimitsRefuseWhatCannotBeMeant) {
  EXPECT_EQ(RunLimits(common, {}, streams()), kExitUsage);
  EXPECT_EQ(RunLimits(common, {.client = 1, .user = "root"}, streams()), kExitUsage);
  EXPECT_EQ(RunLimits(common, {.client = 1, .device_budget = "0"}, streams()), kExitUsage);
  EXPECT_EQ(RunLimits(common, {.client = 1, .device_budget = "-3"}, streams()), kExitUsage);
  EXPECT_EQ(RunLimits(common, {.client = 1, .host_budget = "lots"}, streams()), kExitUsage);
  EXPECT_EQ(RunLimits(common, {.user = "no such user"}, streams()), kExitUsage);
  EXPECT_EQ(out(), "");
  EXPECT_THAT(err(), HasSubstr("'lots' is no budget"));
}

TEST_F(CommandsTest, AReturnIsRequestedAndFailsWhereItIsLate) {
  EXPECT_EQ(RunHarvest(common, {.device = 1, .return_bytes = "8GiB", .within = "500ms"}, streams()),
            kExitOk);
  EXPECT_EQ(out(), "device 1: 8.0 GiB given back in 500.0 ms\n");
  EXPECT_EQ(RunHarvest(common, {.device = 2, .return_bytes = "8GiB", .within = "1s"}, streams()),
            kExitFailed);
  EXPECT_THAT(out(), HasSubstr("of 8.0 GiB: a tensor is being copied"));
}

TEST_F(CommandsTest, AReturnThatCannotBeMeantIsRefused) {
  EXPECT_EQ(RunHarvest(common, {.return_bytes = "8GiB"}, streams()), kExitUsage);
  EXPECT_THAT(err(), HasSubstr("--give-back needs --device"));
  EXPECT_EQ(RunHarvest(common, {.device = 1, .return_bytes = "0"}, streams()), kExitUsage);
  EXPECT_THAT(err(), HasSubstr("'0' is no size"));
  for (const char* text : {"", "0ms", "5", "ms", "-1s", "2h", "3601s"}) {
    EXPECT_EQ(RunHarvest(common, {.device = 1, .return_bytes = "1GiB", .within = text}, streams()),
              kExitUsage);
    EXPECT_THAT(err(), HasSubstr("'" + std::string(text) + "' is no time"));
  }
}

TEST_F(CommandsTest, WhatIsHarvestedIsShown) {
  EXPECT_EQ(RunHarvest(common, {}, streams()), kExitOk);
  EXPECT_THAT(out(), HasSubstr("nothing is harvested: harvest.size"));
}

TEST_F(CommandsTest, TheDaemonsRefusalIsAFailureInWords) {
  common.json = true;
  EXPECT_EQ(RunLimits(common, {.client = 99, .device_budget = "1GiB"}, streams()), kExitFailed);
  EXPECT_THAT(err(), HasSubstr("NOT_FOUND: the daemon says: no such client"));
  EXPECT_THAT(out(), StartsWith("{\"error\":{\"code\":\"NOT_FOUND\""));
}

TEST_F(CommandsTest, WithoutADaemonEveryCommandFailsWithAdvice) {
  common.socket = "/no/such/socket";
  EXPECT_EQ(RunStatus(common, streams()), kExitFailed);
  EXPECT_EQ(RunClients(common, streams()), kExitFailed);
  EXPECT_EQ(RunList(common, {}, streams()), kExitFailed);
  EXPECT_EQ(RunLimits(common, {.client = 1}, streams()), kExitFailed);
  EXPECT_EQ(out(), "");
  EXPECT_THAT(err(), HasSubstr("start the daemon"));
}

TEST_F(CommandsTest, ExplainTakesANumberOrAName) {
  EXPECT_EQ(RunExplain(common, "17", Explained::kAny, streams()), kExitOk) << err();
  EXPECT_THAT(out(), HasSubstr("17"));
  EXPECT_THAT(out(), HasSubstr("learned from earlier iterations: in 1.5 ms, 87% sure"));
  EXPECT_THAT(out(), HasSubstr("no copy"));
  EXPECT_THAT(out(),
              HasSubstr("2.5 (of those on the device the largest leaves first); low priority"));
  EXPECT_EQ(RunExplain(common, "no such name", Explained::kAny, streams()), kExitFailed);
  EXPECT_THAT(err(), HasSubstr("no tensor is called 'no such name'"));
  EXPECT_EQ(RunExplain(common, "2027", Explained::kAny, streams()), kExitFailed);
  EXPECT_THAT(err(),
              HasSubstr("no tensor, legacy job or client has the number 2027, and none is called "
                        "so"));
  common.json = true;
  EXPECT_EQ(RunExplain(common, "2026", Explained::kAny, streams()),
            kExitOk);  // a name, though it looks otherwise
  EXPECT_THAT(out(), HasSubstr("\"tensor\":41,"));
  EXPECT_EQ(RunExplain(common, "17", Explained::kAny, streams()), kExitOk);
  EXPECT_THAT(out(), HasSubstr("\"tensor\":17,"));
  EXPECT_THAT(out(), HasSubstr("\"priority\":\"low\""));
}

TEST_F(CommandsTest, AJobIsExplainedWithAllOfItsDevices) {
  EXPECT_EQ(RunExplain(common, "1000", Explained::kAny, streams()), kExitOk) << err();
  EXPECT_THAT(out(), HasSubstr("GPU-0"));
  EXPECT_THAT(out(), HasSubstr("GPU-1"));
  EXPECT_THAT(out(), HasSubstr("what would help:\n"));
  common.json = true;
  EXPECT_EQ(RunExplain(common, "1000", Explained::kJob, streams()), kExitOk);
  EXPECT_THAT(out(), HasSubstr("{\"job\":{\"client\":1000,"));
  EXPECT_EQ(RunExplain(common, "1000", Explained::kTensor, streams()), kExitFailed);
}

TEST_F(CommandsTest, AJobsNumberAndATensorsNumberAreDistinguished) {
  daemon().job = 17;
  EXPECT_EQ(RunExplain(common, "17", Explained::kAny, streams()), kExitUsage);
  EXPECT_THAT(err(), HasSubstr("17 is a tensor and a legacy job: say --tensor, --job or --client"));
  EXPECT_EQ(RunExplain(common, "17", Explained::kTensor, streams()), kExitOk);
  EXPECT_EQ(RunExplain(common, "17", Explained::kJob, streams()), kExitOk);
  EXPECT_EQ(RunExplain(common, "18", Explained::kJob, streams()), kExitFailed);
  EXPECT_THAT(err(), HasSubstr("no legacy job has the number 18"));
}

TEST_F(CommandsTest, AClientIsExplainedWithItsTensors) {
  EXPECT_EQ(RunExplain(common, "2", Explained::kClient, streams()), kExitOk) << err();
  EXPECT_THAT(out(), HasSubstr("2 train_gpt 2, process 1002"));
  EXPECT_THAT(out(), HasSubstr("on device 0"));
  EXPECT_EQ(RunExplain(common, "2", Explained::kAny, streams()), kExitUsage);
  EXPECT_THAT(err(), HasSubstr("2 is a tensor and a client: say"));
  EXPECT_EQ(RunExplain(common, "4", Explained::kClient, streams()), kExitFailed);
  EXPECT_THAT(err(), HasSubstr("no client has the number 4"));
  common.json = true;
  EXPECT_EQ(RunExplain(common, "2", Explained::kClient, streams()), kExitOk);
  EXPECT_THAT(out(), HasSubstr("{\"client\":{\"client\":2,"));
}

TEST_F(CommandsTest, AnExplanationThatDoesNotAdvanceEnds) {
  daemon().stuck_job = true;
  EXPECT_EQ(RunExplain(common, "1000", Explained::kJob, streams()), kExitFailed);
  EXPECT_THAT(err(), HasSubstr("does not advance"));
}

TEST_F(CommandsTest, RecordWritesTheHeaderBeforeWhatTheDaemonGives) {
  const std::string file = testing::TempDir() + "/recorded.trace";
  const std::atomic<bool> stop{true};  // takes what is there and ends
  EXPECT_EQ(RunRecord(common, {.file = file}, stop, streams()), kExitOk) << err();
  EXPECT_THAT(out(), HasSubstr("3 calls of 2 clients recorded in " + file));
  EXPECT_EQ(err(), "recording; an interrupt ends it\n");
  EXPECT_THAT(out(), HasSubstr("7 calls came faster"));
  std::ifstream written(file);
  const std::string bytes{std::istreambuf_iterator<char>(written), {}};
  proto::TraceHeader header;
  google::protobuf::io::CodedInputStream coded(reinterpret_cast<const uint8_t*>(bytes.data()),
                                               static_cast<int>(bytes.size()));
  uint32_t length = 0;
  ASSERT_TRUE(coded.ReadVarint32(&length));
  const auto begin = static_cast<size_t>(coded.CurrentPosition());
  ASSERT_TRUE(header.ParseFromString(bytes.substr(begin, length)));
  EXPECT_EQ(header.version(), 1u);
  EXPECT_EQ(header.clients(), 2u);
  EXPECT_EQ(bytes.substr(begin + length), "the ops");
}

TEST_F(CommandsTest, RecordSaysWhyItCannotWriteBeforeItBegins) {
  const std::atomic<bool> stop{true};
  EXPECT_EQ(RunRecord(common, {.file = "/nowhere/at/all"}, stop, streams()), kExitFailed);
  EXPECT_THAT(err(), HasSubstr("/nowhere/at/all: cannot be opened"));
  EXPECT_FALSE(daemon().recorded_);
}

TEST_F(CommandsTest, RecordThatFailsLeavesWhatWasThere) {
  const std::string file = testing::TempDir() + "/kept.trace";
  const std::string others = file + ".tmp";  // another recording's, or the user's own
  std::ofstream(file) << "older";
  std::ofstream(others) << "another";
  common.socket = "/no/such/socket";
  const std::atomic<bool> stop{true};
  EXPECT_EQ(RunRecord(common, {.file = file}, stop, streams()), kExitFailed);
  for (const auto& [name, before] : {std::pair(file, "older"), {others, "another"}}) {
    std::string kept;
    std::ifstream(name) >> kept;
    EXPECT_EQ(kept, before);
  }
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(testing::TempDir()))
    files += entry.path().filename().string().starts_with("kept.trace") ? 1 : 0;
  EXPECT_EQ(files, 2u);
}

TEST_F(CommandsTest, RecordFollowsALinkAndLeavesItThere) {
  const std::string file = testing::TempDir() + "/linked.trace";
  const std::string link = testing::TempDir() + "/link.trace";
  std::filesystem::remove(link);
  std::filesystem::create_symlink(file, link);
  const std::atomic<bool> stop{true};
  EXPECT_EQ(RunRecord(common, {.file = link}, stop, streams()), kExitOk) << err();
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_GT(std::filesystem::file_size(file), 0u);
}

TEST_F(CommandsTest, RecordWritesIntoWhatIsNoFile) {
  const std::string link = testing::TempDir() + "/no_file";
  std::filesystem::remove(link);
  std::filesystem::create_symlink("/dev/null", link);
  const std::atomic<bool> stop{true};
  EXPECT_EQ(RunRecord(common, {.file = link}, stop, streams()), kExitOk) << err();
  EXPECT_TRUE(std::filesystem::is_character_file(link));
}

}  // namespace
}  // namespace ravenstore::client::ctl
