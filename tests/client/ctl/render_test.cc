#include "client/ctl/render.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "core/printable.h"
#include "tests/client/ctl/scripted_daemon.h"

namespace ravenstore::client::ctl {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

proto::ClientInfo SomeClient(uint32_t id, uint64_t device_bytes) {
  proto::ClientInfo client;
  client.set_client(id);
  client.set_pid(4711);
  client.set_name("client-" + std::to_string(id));
  client.set_device_bytes(device_bytes);
  client.set_device_budget(core::GiB(12).count());
  client.set_host_budget(core::GiB(64).count());
  return client;
}

proto::TensorInfo SomeTensor(const std::string& name) {
  proto::TensorInfo tensor;
  tensor.set_id(17);
  tensor.set_client(3);
  tensor.set_name(name);
  tensor.set_bytes(core::MiB(64).count());
  tensor.set_state("idle");
  tensor.set_tier("device 0 + host");
  tensor.set_dirty(true);
  return tensor;
}

TEST(RenderTest, DurationsReadWell) {
  EXPECT_EQ(DurationText(0), "0 s");
  EXPECT_EQ(DurationText(999), "999 ns");
  EXPECT_EQ(DurationText(1'500), "1.5 µs");
  EXPECT_EQ(DurationText(2'000'000), "2.0 ms");
  EXPECT_EQ(DurationText(12'300'000'000), "12.3 s");
  EXPECT_EQ(DurationText(90'000'000'000), "1 min 30 s");
  EXPECT_EQ(DurationText(uint64_t{3 * 3600 + 4 * 60} * 1'000'000'000), "3 h 04 min");
  EXPECT_EQ(DurationText(uint64_t{51 * 3600} * 1'000'000'000), "2 d 3 h");
  EXPECT_EQ(DurationText(~uint64_t{0}), "213503 d 23 h");
}

TEST(RenderTest, PercentagesNeedAWhole) {
  EXPECT_EQ(PercentText(981, 1000), "98.1%");
  EXPECT_EQ(PercentText(0, 0), "-");
}

TEST(RenderTest, PinnedMemoryIsShownByClientAndInAll) {
  proto::ClientInfo client = SomeClient(3, 1);
  client.set_pinned_bytes(core::MiB(96).count());
  EXPECT_THAT(ClientsText({client}, {}, 200), HasSubstr("PINNED"));
  EXPECT_THAT(ClientsText({client}, {}, 200), HasSubstr("96.0 MiB"));
  EXPECT_THAT(ClientsText({client}, {}, 40), HasSubstr("96.0 MiB"));
  EXPECT_THAT(ClientsJson({client}, {}), HasSubstr("\"pinned_bytes\":100663296"));
}

TEST(RenderTest, StrangersCannotTalkToTheTerminal) {
  const std::string text = TensorsText({SomeTensor("\x1b]0;gotcha\x07")}, false);
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(TensorsJson({SomeTensor("\x1b")}, false), HasSubstr("\\u001b"));
  EXPECT_THAT(TensorsText({SomeTensor("\u202egnp")}, false), HasSubstr("?gnp"));
  EXPECT_THAT(TensorsJson({SomeTensor("\u202egnp")}, false), HasSubstr("\\u202egnp"));
}

TEST(RenderTest, StatusShowsDevicesTiersBudgetsAndCounters) {
  const GoodDaemon good;
  const std::string text =
      StatusText(good.welcome, good.stats, {SomeClient(3, core::GiB(2).count())});
  EXPECT_THAT(text, StartsWith("ravenstored "));
  EXPECT_THAT(text, HasSubstr("host (simulated device), up 1 min 30 s"));
  EXPECT_THAT(text, HasSubstr("HOST-1"));
  EXPECT_THAT(text, HasSubstr("300.0 MiB  512.0 MiB   2.0 GiB"));
  EXPECT_THAT(text, HasSubstr("12.0 GiB"));
  EXPECT_THAT(text, HasSubstr("hits 90.0%"));
  EXPECT_THAT(text, HasSubstr("2.0 GiB  54.5 GB/s  24.0 GB/s\n"));
  EXPECT_THAT(text, HasSubstr("2.0 GiB  12.0 GB/s  13.0 GB/s\n"));
  EXPECT_THAT(text, HasSubstr("2.0 GiB          -          -\n"));
  EXPECT_THAT(text, Not(HasSubstr("trouble")));
}

TEST(RenderTest, StatusNamesTrouble) {
  GoodDaemon good;
  good.stats.set_bad_requests(2);
  EXPECT_THAT(StatusText(good.welcome, good.stats, {}), HasSubstr("2 bad requests"));
}

TEST(RenderTest, StatusShowsTheLargestClientsOnly) {
  const GoodDaemon good;
  std::vector<proto::ClientInfo> clients;
  for (uint32_t i = 1; i <= 13; ++i) clients.push_back(SomeClient(i, i));
  const std::string text = StatusText(good.welcome, good.stats, clients);
  EXPECT_THAT(text, HasSubstr("client-13"));
  EXPECT_THAT(text, Not(HasSubstr("client-3 ")));
  EXPECT_THAT(text, HasSubstr("and 3 more"));
}

TEST(RenderTest, StatusAsJsonHasTheSame) {
  const GoodDaemon good;
  const std::string json = StatusJson(good.welcome, good.stats, {SomeClient(3, 5)});
  EXPECT_THAT(json, StartsWith("{\"daemon\":{\"version\":"));
  EXPECT_THAT(json, HasSubstr("\"simulated\":true"));
  EXPECT_THAT(json, HasSubstr("{\"name\":\"host\",\"capacity_bytes\":2147483648,"
                              "\"held_bytes\":536870912,\"used_bytes\":314572800}"));
  EXPECT_THAT(json, HasSubstr("\"device_budget_bytes\":12884901888"));
  EXPECT_THAT(json, HasSubstr("\"hits\":900"));
  EXPECT_THAT(json, HasSubstr("\"link_up_bytes_per_s\":54500000000,"
                              "\"link_down_bytes_per_s\":24000000000"));
  EXPECT_THAT(json, HasSubstr("\"link_up_bytes_per_s\":12000000000,"
                              "\"link_down_bytes_per_s\":13000000000"));
  EXPECT_THAT(json, EndsWith("}\n"));
}

TEST(RenderTest, TensorsAreATableAndSayWhetherThereAreMore) {
  EXPECT_EQ(TensorsText({SomeTensor("layer3.mlp")}, false),
            "ID  CLIENT      SIZE  TIER             STATE  DIRTY  NAME\n"
            "17       3  64.0 MiB  device 0 + host  idle   dirty  layer3.mlp\n"
            "1 tensor, 64.0 MiB\n");
  EXPECT_THAT(TensorsText({}, true), HasSubstr("0 tensors, 0 B; there are more"));
  EXPECT_EQ(TensorsJson({SomeTensor("a")}, true),
            "{\"tensors\":[{\"id\":17,\"client\":3,\"name\":\"a\",\"bytes\":67108864,\"device\":0,"
            "\"tier\":\"device 0 + host\",\"state\":\"idle\",\"dirty\":true}],\"more\":true}\n");
}

TEST(RenderTest, ColumnsStayAlignedWithNamesBeyondAscii) {
  const std::string text = TensorsText({SomeTensor("é"), SomeTensor("e")}, false);
  EXPECT_THAT(text, HasSubstr("dirty  é\n"));
}

TEST(RenderTest, ClientsAreATable) {
  const std::string text = ClientsText({SomeClient(3, core::GiB(1).count())});
  EXPECT_THAT(text, HasSubstr("4711"));
  EXPECT_THAT(text, HasSubstr("1.0 GiB   12.0 GiB"));
  EXPECT_THAT(text, EndsWith("1 client\n"));
  EXPECT_THAT(ClientsJson({}), "{\"clients\":[],\"legacy_jobs\":[]}\n");
}

size_t Widest(const std::string& text) {
  std::istringstream lines(text);
  size_t widest = 0;
  for (std::string line; std::getline(lines, line);)
    widest = std::max(widest, core::DisplayWidth(line));
  return widest;
}

TEST(RenderTest, NothingIsWiderThanTheTerminal) {
  GoodDaemon good;
  const std::string long_name(200, 'n');
  good.welcome.mutable_devices(0)->set_uuid("GPU-01234567-89ab-cdef-0123-456789abcdef");
  good.welcome.mutable_devices(0)->set_name("NVIDIA H100 80GB HBM3");
  proto::ClientInfo client = SomeClient(12345, core::GiB(1000).count());
  client.set_name(long_name);
  client.set_pid(4194303);
  client.set_uid(65534);
  proto::LegacyJob job;
  job.set_name(long_name);
  job.set_mode("account");
  job.add_devices()->set_uuid("GPU-01234567-89ab-cdef-0123-456789abcdef");
  for (int i = 0; i < 4; ++i) job.mutable_devices(0)->add_kinds(core::GiB(3).count());
  proto::TensorInfo tensor = SomeTensor(long_name);
  tensor.set_id(uint64_t{1} << 45);
  const Finding finding = {
      Finding::Level::kWarn, "CUDA_VISIBLE_DEVICES",
      "is 'x': it hides every GPU, and that is so for many more words",
      "unset it, or name GPUs by UUID, as nvidia-smi -L lists them, one by one"};
  EXPECT_LE(Widest(StatusText(good.welcome, good.stats, {client})), 80u);
  EXPECT_LE(Widest(ClientsText({client}, {job})), 80u);
  EXPECT_LE(Widest(TensorsText({tensor}, true)), 80u);
  EXPECT_LE(Widest(FindingsText({finding})), 80u);
  EXPECT_THAT(TensorsText({tensor}, true), HasSubstr("n…"));
  EXPECT_THAT(TensorsText({tensor}, true, 400), HasSubstr(long_name));
  EXPECT_THAT(TensorsJson({tensor}, true), HasSubstr(long_name));
}

TEST(RenderTest, ClientsAreOneTableWhereThereIsRoom) {
  const std::vector<proto::ClientInfo> clients = {SomeClient(3, core::GiB(1).count())};
  EXPECT_THAT(ClientsText(clients, {}, 120), HasSubstr("NAME      TENSORS  WAITING   DEVICE"));
  EXPECT_THAT(ClientsText(clients), HasSubstr("WAITING\n")) << "two, in 80 columns";
}

TEST(RenderTest, WeightsAndPrioritiesAreShownWhereOneIsSet) {
  const GoodDaemon good;
  proto::ClientInfo first = SomeClient(3, 6);
  proto::ClientInfo second = SomeClient(4, 5);
  for (proto::ClientInfo* client : {&first, &second}) client->set_priority(proto::PRIORITY_NORMAL);
  EXPECT_THAT(StatusText(good.welcome, good.stats, {first, second}), Not(HasSubstr("WEIGHT")));
  first.set_weight(3);
  second.set_priority(proto::PRIORITY_LOW);
  const std::string text = StatusText(good.welcome, good.stats, {first, second});
  EXPECT_THAT(text, HasSubstr("WEIGHT  PRIORITY\n"));
  EXPECT_THAT(text, HasSubstr("3    normal\n"));
  EXPECT_THAT(text, HasSubstr("1       low\n"));
}

TEST(RenderTest, LimitsNameWhoseTheyAre) {
  proto::LimitsSet limits;
  limits.set_device_budget(core::GiB(12).count());
  EXPECT_EQ(LimitsText("client 3", limits),
            "client 3: device budget 12.0 GiB on each device, host budget 0 B\n");
  EXPECT_EQ(LimitsJson("client 3", limits),
            "{\"who\":\"client 3\",\"device_budget_bytes\":12884901888,\"host_budget_bytes\":0,"
            "\"device_guarantee_bytes\":0,\"weight\":0,\"priority\":\"\",\"visible_memory_bytes\":"
            "0,\"pool_budgets\":[]}\n");
}

TEST(RenderTest, LimitsNameFurtherPools) {
  proto::LimitsSet limits;
  proto::PoolBudget* budget = limits.add_pool_budgets();
  budget->set_pool("file 0");
  budget->set_bytes(core::GiB(2).count());
  EXPECT_THAT(LimitsText("user a", limits), HasSubstr("host budget 0 B, file 0 budget 2.0 GiB\n"));
  EXPECT_THAT(LimitsJson("user a", limits),
              HasSubstr("\"pool_budgets\":[{\"pool\":\"file 0\",\"budget_bytes\":2147483648}]}"));
}

TEST(RenderTest, LegacyJobsAreListedWithTheClients) {
  proto::LegacyJob job;
  job.set_client(5);
  job.set_pid(4712);
  job.set_name("train");
  job.set_mode("account");
  proto::LegacyDevice* device = job.add_devices();
  device->set_uuid("GPU-7");
  device->set_used(core::GiB(3).count());
  device->set_visible_memory(core::GiB(20).count());
  device->add_kinds(core::GiB(3).count());
  const std::string text = ClientsText({}, {job});
  EXPECT_THAT(text, HasSubstr("GPU-7"));
  EXPECT_THAT(text, HasSubstr("20.0 GiB  device 3.0 GiB"));
  EXPECT_THAT(text, EndsWith("1 legacy job\n"));
  EXPECT_THAT(ClientsJson({}, {job}), HasSubstr("\"visible_memory_bytes\":21474836480"));
  EXPECT_THAT(ClientsJson({}, {job}), HasSubstr("\"kinds\":{\"device\":3221225472}"));
}

TEST(RenderTest, FindingsShowLevelAndAdvice) {
  const std::vector<Finding> findings = {
      {Finding::Level::kOk, "pidfd", "works", ""},
      {Finding::Level::kFail, "daemon", "none", "start it"},
  };
  EXPECT_EQ(FindingsText(findings),
            "OK    pidfd   works\n"
            "FAIL  daemon  none\n"
            "              -> start it\n"
            "1 ok, 0 warnings, 1 failure\n");
  EXPECT_EQ(FindingsJson({findings[1]}),
            "{\"healthy\":false,\"findings\":[{\"level\":\"FAIL\",\"check\":\"daemon\","
            "\"what\":\"none\",\"advice\":\"start it\"}]}\n");
}

TEST(RenderTest, ErrorsAreJsonToo) {
  EXPECT_EQ(ErrorJson({core::ErrorCode::kUnavailable, "nobody"}),
            "{\"error\":{\"code\":\"UNAVAILABLE\",\"message\":\"nobody\"}}\n");
}

TEST(RenderTest, AnExplanationSaysOnWhichNodesATensorLies) {
  proto::TensorExplained explained;
  explained.mutable_tensor()->set_tier("remote 0");
  EXPECT_THAT(ExplainedText(explained, 200), Not(HasSubstr("on nodes")));
  EXPECT_THAT(ExplainedJson(explained), Not(HasSubstr("remote\":")));
  proto::RemoteReplica& remote = *explained.mutable_remote();
  remote.set_copies(1);
  proto::RemotePart& b = *remote.add_parts();
  b.set_node("b");
  b.set_bytes(core::MiB(8).count());
  b.set_lease_left_ns(1'400'000'000);
  EXPECT_THAT(ExplainedText(explained, 200),
              HasSubstr("on nodes  1 copy: 8.0 MiB on b (lease 1.4 s)\n"));
  remote.set_copies(2);
  remote.set_moving(true);
  remote.add_parts()->set_bytes(core::MiB(8).count());
  EXPECT_THAT(ExplainedText(explained, 200),
              HasSubstr("2 copies: 8.0 MiB on b (lease 1.4 s), 8.0 MiB on another node (lease "
                        "expired); on its way to another node\n"));
  remote.set_copies(0);
  remote.set_moving(false);
  remote.set_recalled(true);
  remote.clear_parts();
  EXPECT_THAT(ExplainedText(explained, 200),
              HasSubstr("on nodes  not all of it is there; wanted back\n"));
  EXPECT_THAT(ExplainedJson(explained),
              HasSubstr(R"("remote":{"copies":0,"moving":false,"recalled":true,"parts":[]})"));
}

}  // namespace
}  // namespace ravenstore::client::ctl
