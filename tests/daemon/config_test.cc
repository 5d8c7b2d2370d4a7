#include "daemon/config.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/ipc/short_directory.h"

namespace ravenstore::daemon {
namespace {

using core::GiB;
using core::KiB;
using core::MiB;
using std::chrono::microseconds;
using std::chrono::seconds;

// Every value of `config`. Does not compile once Config has another field: extend kEveryKey then.
auto Values(const Config& config) {
  const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z, aa, ab,
               ac, ad, ae, af, ag, ah, ai, aj, ak, al, am, an, ao, ap, aq, ar, as, at, au, av, aw,
               ax, ay, az, ba, bb, bc, bd, be, bf, bg, bh, bi, bj, bk, bl, bm, bn, bo, bp, bq, br,
               bs, bt, bu, bv, bw] = config;
  return std::make_tuple(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y,
                         z, aa, ab, ac, ad, ae, af, ag, ah, ai, aj, ak, al, am, an, ao, ap, aq, ar,
                         as, at, au, av, aw, ax, ay, az, ba, bb, bc, bd, be, bf, bg, bh, bi, bj, bk,
                         bl, bm, bn, bo, bp, bq, br, bs, bt, bu, bv, bw);
}

// Every key with a value that is not its default.
constexpr const char* kEveryKey = R"([cluster]
node = "a"
listen = "127.0.0.1:7420"
key = "/tmp/key"
state = "/tmp/state"
machine = "one"
nodes = ["b", "c"]
etcd = ["http://127.0.0.1:2379"]
etcd_ca = "/tmp/ca"
etcd_certificate = "/tmp/certificate"
etcd_key = "/tmp/etcd_key"
peers = ["b=127.0.0.1:7420"]
size = "128MiB"
lend = "192MiB"
lend_each = "64MiB"
reserve = "5GiB"
copies = 2
lease_s = 2.5
recall_s = 0.5
transport = "ucx"
trusted_fabric = true
ucx_transports = "rc"
ucx_devices = "mlx5_0:1"
[socket]
path = "/tmp/other"
group = "users"
mode = 0o600
[devices]
backend = "host"
uuids = ["HOST-1", "HOST-0"]
page = "4MiB"
usual_budget = "2GiB"
[limits]
device_budget = "12GiB"
host_budget = 4194304
peer_budget = "2MiB"
file_budget = "8MiB"
remote_budget = "6MiB"
device_guarantee = "3GiB"
weight = 4
priority = "high"
device_reserve = "1.5GiB"
visible_memory = "5GiB"
clients_max = 7
kept_sets = "3GiB"
single_user = true
[host_pool]
size = "3GiB"
step = "2 MiB"
ahead = "1KiB"
numa_node = 1
[peer_pool]
size = "4MiB"
[file_pool]
path = "/tmp/pool"
size = "6MiB"
read_bytes_per_second = 7e9
write_bytes_per_second = 5e9
[harvest]
reserve = "3GiB"
sample_ms = 50
rise_s = 2.5
step = "1MiB"
size = "12MiB"
give_back_ms_per_gib = 80
busy_bytes_per_second = 3e10
[history]
path = "/tmp/history"
[admission]
max_slowdown = 2.5
settle_s = 0.5
[transfer]
chunk = "1MiB"
[loop]
spin_us = 1.5
poll_us = 7
[log]
level = "trace"
[shutdown]
drain_s = 0.25
restart_timeout_s = 60
[host_backend]
devices = 2
total = "64MiB"
others = "16MiB"
utilization = 87
bytes_per_second = 1e9
check_moves = true
latency_us = 10
peer_bytes_per_second = 2e9
)";

template <size_t... I>
void ExpectAllDiffer(const Config& one, const Config& other, std::index_sequence<I...>) {
  const auto a = Values(one);
  const auto b = Values(other);
  const bool same[] = {std::get<I>(a) == std::get<I>(b)...};
  for (size_t i = 0; i < sizeof...(I); ++i) EXPECT_FALSE(same[i]) << "value " << i;
}

Config Parsed(const std::string& text) {
  Config config;
  const core::Status status = ParseConfig(text, "test.toml", &config);
  EXPECT_TRUE(status.ok()) << core::Describe(status.error());
  return config;
}

// The words that refuse `text`.
std::string Refusal(const std::string& text) {
  Config config;
  const core::Status status = ParseConfig(text, "test.toml", &config);
  if (status.ok()) return "";
  EXPECT_EQ(status.error().code, core::ErrorCode::kInvalidArgument);
  return status.error().message;
}

TEST(ConfigTest, EveryKeyIsRead) {
  const Config config = Parsed(kEveryKey);
  ExpectAllDiffer(config, Config(), std::make_index_sequence<45>());
  EXPECT_EQ(config.socket_path, "/tmp/other");
  EXPECT_EQ(config.socket_group, "users");
  EXPECT_EQ(config.socket_mode, 0600u);
  EXPECT_EQ(config.backend, "host");
  EXPECT_EQ(config.uuids, (std::vector<std::string>{"HOST-1", "HOST-0"}));
  EXPECT_EQ(config.page, MiB(4));
  EXPECT_EQ(config.usual_budget, GiB(2));
  EXPECT_EQ(config.device_budget, GiB(12));
  EXPECT_EQ(config.host_budget, MiB(4));
  EXPECT_EQ(config.peer_budget, MiB(2));
  EXPECT_EQ(config.file_budget, MiB(8));
  EXPECT_EQ(config.remote_budget, MiB(6));
  EXPECT_EQ(config.device_guarantee, GiB(3));
  EXPECT_EQ(config.weight, 4u);
  EXPECT_EQ(config.priority, "high");
  EXPECT_EQ(config.device_reserve, MiB(1536));
  EXPECT_EQ(config.visible_memory, GiB(5));
  EXPECT_EQ(config.clients_max, 7u);
  EXPECT_EQ(config.kept_sets, GiB(3));
  EXPECT_TRUE(config.single_user);
  EXPECT_EQ(config.pool_size, GiB(3));
  EXPECT_EQ(config.pool_step, MiB(2));
  EXPECT_EQ(config.pool_ahead, KiB(1));
  EXPECT_EQ(config.pool_numa_node, 1);
  EXPECT_EQ(config.peer_pool_size, MiB(4));
  EXPECT_EQ(config.host_peer_bytes_per_second, 2e9);
  EXPECT_TRUE(config.host_check_moves);
  EXPECT_EQ(config.file_pool_path, "/tmp/pool");
  EXPECT_EQ(config.file_pool_size, MiB(6));
  EXPECT_EQ(config.file_pool_read_bytes_per_second, 7e9);
  EXPECT_EQ(config.file_pool_write_bytes_per_second, 5e9);
  EXPECT_EQ(config.harvest_reserve, GiB(3));
  EXPECT_EQ(config.harvest_sample, std::chrono::milliseconds(50));
  EXPECT_EQ(config.harvest_rise, std::chrono::milliseconds(2500));
  EXPECT_EQ(config.harvest_step, MiB(1));
  EXPECT_EQ(config.harvest_busy_bytes_per_second, 3e10);
  EXPECT_EQ(config.host_others, MiB(16));
  EXPECT_EQ(config.host_utilization, 87u);
  EXPECT_EQ(config.history_path, "/tmp/history");
  EXPECT_EQ(config.admission_max_slowdown, 2.5);
  EXPECT_EQ(config.admission_settle, std::chrono::milliseconds(500));
  EXPECT_EQ(config.chunk, MiB(1));
  EXPECT_EQ(config.spin, core::Duration(1500));
  EXPECT_EQ(config.poll, microseconds(7));
  EXPECT_EQ(config.log_level, "trace");
  EXPECT_EQ(config.drain, std::chrono::milliseconds(250));
  EXPECT_EQ(config.restart_timeout, seconds(60));
  EXPECT_EQ(config.host_devices, 2);
  EXPECT_EQ(config.host_device_total, MiB(64));
  EXPECT_EQ(config.host_bytes_per_second, 1e9);
  EXPECT_EQ(config.host_latency, microseconds(10));
}

TEST(ConfigTest, EveryKeyOfTheClusterIsRead) {
  const Config config = Parsed(kEveryKey);
  EXPECT_EQ(config.cluster_node, "a");
  EXPECT_EQ(config.cluster_listen, "127.0.0.1:7420");
  EXPECT_EQ(config.cluster_key, "/tmp/key");
  EXPECT_EQ(config.cluster_state, "/tmp/state");
  EXPECT_EQ(config.cluster_machine, "one");
  EXPECT_EQ(config.cluster_nodes, (std::vector<std::string>{"b", "c"}));
  EXPECT_EQ(config.cluster_etcd, (std::vector<std::string>{"http://127.0.0.1:2379"}));
  EXPECT_EQ(config.cluster_etcd_ca, "/tmp/ca");
  EXPECT_EQ(config.cluster_etcd_certificate, "/tmp/certificate");
  EXPECT_EQ(config.cluster_etcd_key, "/tmp/etcd_key");
  EXPECT_EQ(config.cluster_peers, (std::map<std::string, std::string>{{"b", "127.0.0.1:7420"}}));
  EXPECT_EQ(config.cluster_size, MiB(128));
  EXPECT_EQ(config.cluster_lend, MiB(192));
  EXPECT_EQ(config.cluster_lend_each, MiB(64));
  EXPECT_EQ(config.cluster_reserve, GiB(5));
  EXPECT_EQ(config.cluster_copies, 2);
  EXPECT_EQ(config.cluster_lease, std::chrono::milliseconds(2500));
  EXPECT_EQ(config.cluster_recall, std::chrono::milliseconds(500));
  EXPECT_EQ(config.cluster_transport, "ucx");
  EXPECT_TRUE(config.cluster_trusted_fabric);
  EXPECT_EQ(config.cluster_ucx_transports, "rc");
  EXPECT_EQ(config.cluster_ucx_devices, "mlx5_0:1");
}

TEST(ConfigTest, AWeightIsAWholeNumberOrTheDefaultAndAPriorityOneOfThree) {
  EXPECT_EQ(Parsed("[limits]\nweight = \"default\"\n").weight, std::nullopt);
  EXPECT_EQ(Parsed("[limits]\nweight = 1000\n").weight, 1000u);
  for (const char* weight : {"0", "-1", "1001", "1.5", "\"3\""}) {
    EXPECT_NE(Refusal("[limits]\nweight = " + std::string(weight) + "\n")
                  .find("must be a whole number from 1 to 1000, or \"default\""),
              std::string::npos)
        << weight;
  }
  EXPECT_NE(Refusal("[limits]\npriority = \"higher\"\n").find("\"low\" \"normal\" \"high\""),
            std::string::npos);
}

TEST(ConfigTest, AGuaranteeOfNothingIsNotTheDefault) {
  EXPECT_EQ(Parsed("").device_guarantee, std::nullopt);
  EXPECT_EQ(Parsed("[limits]\ndevice_guarantee = 0\n").device_guarantee, core::Bytes{0});
  EXPECT_EQ(Parsed("[limits]\ndevice_guarantee = \"default\"\n").device_guarantee, std::nullopt);
  EXPECT_NE(Refusal("[limits]\ndevice_guarantee = \"half\"\n").find("or \"default\""),
            std::string::npos);
}

TEST(ConfigTest, SizesWhoseSumsWouldOverflowAreRefused) {
  Config config;
  config.chunk = GiB(uint64_t{1} << 33);
  EXPECT_FALSE(CheckConfig(config).ok());
  config.chunk = GiB(1);
  EXPECT_TRUE(CheckConfig(config).ok());
  config.pool_ahead = GiB(4096);
  EXPECT_FALSE(CheckConfig(config).ok());
}

// So that an upgrade does not keep the service from starting.
TEST(ConfigTest, RemovedKeysHaveNoEffect) {
  EXPECT_EQ(Values(Parsed("[devices]\nmemory = \"slabs\"\nslab = \"64MiB\"\n"
                          "[transfer]\nprefetch = true\npreclean = 1\n"
                          "[planner]\npolicy = \"lru\"\nlearn = false\n")),
            Values(Config()));
}

TEST(ConfigTest, NothingIsTheDefault) {
  EXPECT_EQ(Values(Parsed("")), Values(Config()));
  EXPECT_TRUE(CheckConfig(Config()).ok());
}

// A key that the shipped file did not name would keep the value that differs from its default.
TEST(ConfigTest, TheShippedFileNamesEveryKeyWithItsDefault) {
  Config config = Parsed(kEveryKey);
  const core::Status status = LoadConfig("deploy/ravenstored.toml", &config);
  ASSERT_TRUE(status.ok()) << core::Describe(status.error());
  EXPECT_EQ(Values(config), Values(Config()));
  EXPECT_TRUE(CheckConfig(config).ok());
}

TEST(ConfigTest, UnknownKeysAreNamedWithTheirLine) {
  const std::string words = Refusal("[limits]\ndevice_budget = 0\ndevice_bugdet = \"12GiB\"\n");
  EXPECT_EQ(words.find("test.toml:3: "), 0u) << words;
  EXPECT_NE(words.find("\"limits.device_bugdet\""), std::string::npos) << words;
  EXPECT_NE(words.find("deploy/ravenstored.toml"), std::string::npos) << words;
  EXPECT_NE(Refusal("[limit]\nclients_max = 1\n").find("\"limit.clients_max\""), std::string::npos);
}

TEST(ConfigTest, AMisspeltKeyIsAnsweredByTheOneThatWasMeant) {
  const std::string words = Refusal("[limits]\ndevice_bugdet = \"12GiB\"\n");
  EXPECT_NE(words.find("; did you mean \"limits.device_budget\"? "), std::string::npos) << words;
}

// What FaultsOfFile says of a file with that text, its path left out.
std::vector<std::string> FaultsOf(const std::string& text) {
  const ipc::ShortDirectory directory;
  const std::string path = directory / "c";
  std::ofstream(path) << text;
  std::vector<std::string> faults;
  for (const core::Error& error : FaultsOfFile(path)) {
    EXPECT_EQ(error.message.find(path + ":"), 0u) << error.message;
    faults.push_back(error.message.substr(path.size() + 1));
  }
  return faults;
}

TEST(ConfigTest, AFileIsCheckedForAllThatIsWrongByLine) {
  EXPECT_TRUE(FaultsOf(kEveryKey).empty());
  EXPECT_TRUE(FaultsOfFile("deploy/ravenstored.toml").empty());
  const auto faults = FaultsOf("[transfer]\nchunk = true\nx = 1\n[devices]\nbackend = \"gpu\"\n");
  ASSERT_EQ(faults.size(), 3u);
  EXPECT_EQ(faults[0].find("2: \"transfer.chunk\" must be a size"), 0u) << faults[0];
  EXPECT_EQ(faults[1].find("3: unknown key \"transfer.x\""), 0u) << faults[1];
  EXPECT_EQ(faults[2].find("5: \"devices.backend\" must be one of"), 0u) << faults[2];
  // Values that do not fit together, once all are read; also those of keys that are not there.
  const auto together = FaultsOf("[host_pool]\nstep = 3\n[limits]\ndevice_budget = 1\n");
  ASSERT_EQ(together.size(), 2u);
  EXPECT_EQ(together[0].find("2: \"host_pool.step\" must be"), 0u) << together[0];
  EXPECT_EQ(together[1].find("4: \"limits.device_budget\" must be"), 0u) << together[1];
  const auto absent = FaultsOf("[cluster]\nnode = \"a\"\n");
  ASSERT_EQ(absent.size(), 1u);
  EXPECT_EQ(absent[0].find(" \"cluster.listen\" must be"), 0u) << absent[0];
  EXPECT_EQ(FaultsOf("[transfer\n").size(), 1u) << "not TOML";
  ASSERT_EQ(FaultsOfFile("/nowhere").size(), 1u);
}

TEST(ConfigTest, KeysOutsideEverySectionAreNamedWithTheirLine) {
  const std::string words = Refusal("# a remark\nchunk = true\n");
  EXPECT_EQ(words.find("test.toml:2: \"chunk\" is outside every [section]"), 0u) << words;
}

TEST(ConfigTest, WrongValuesNameLineKeyAndWhatIsAccepted) {
  struct Case {
    const char* line;
    const char* key;
    const char* accepted;
  };
  const Case cases[] = {
      {"[socket]\npath = 7", "socket.path", "a string"},
      {"[socket]\nmode = 0o1777", "socket.mode", "from 0 to 0o777"},
      {"[socket]\nmode = \"660\"", "socket.mode", "a whole number"},
      {"[devices]\nbackend = \"rocm\"", "devices.backend", R"("auto" "cuda" "host")"},
      {"[devices]\nuuids = \"HOST-0\"", "devices.uuids", "a list of strings"},
      {"[devices]\nuuids = [\"HOST-0\", 1]", "devices.uuids", "a list of strings"},
      {"[devices]\nuuids = [\"\"]", "devices.uuids", "a list of strings that are not empty"},
      {"[devices]\npage = \"256 Mebi\"", "devices.page", "12GiB"},
      {"[devices]\npage = \"-1MiB\"", "devices.page", "12GiB"},
      {"[limits]\ndevice_budget = -1", "limits.device_budget", "12GiB"},
      {"[limits]\nhost_budget = 1.5", "limits.host_budget", "12GiB"},
      {"[limits]\nhost_budget = true", "limits.host_budget", "12GiB"},
      {"[limits]\nclients_max = 0", "limits.clients_max", "from 1 to 100000"},
      {"[limits]\nclients_max = 1.0", "limits.clients_max", "a whole number"},
      {"[host_pool]\nnuma_node = -2", "host_pool.numa_node", "from -1 to 1023"},
      {"[file_pool]\npath = 1", "file_pool.path", "a string"},
      {"[file_pool]\nsize = \"much\"", "file_pool.size", "12GiB"},
      {"[file_pool]\nread_bytes_per_second = -1", "file_pool.read_bytes_per_second",
       "bytes per second, or 0 for what is measured"},
      {"[file_pool]\nwrite_bytes_per_second = inf", "file_pool.write_bytes_per_second",
       "bytes per second, or 0 for what is measured"},
      {"[harvest]\nreserve = \"all\"", "harvest.reserve", "or \"default\""},
      {"[harvest]\nreserve = -1", "harvest.reserve", "a size: a number of bytes"},
      {"[harvest]\nsample_ms = \"100\"", "harvest.sample_ms", "a number of milliseconds"},
      {"[harvest]\nsample_ms = 0", "harvest.sample_ms", "10 to 10000, not 0"},
      {"[harvest]\nsample_ms = 9.5", "harvest.sample_ms", "10 to 10000, not 9.5"},
      {"[harvest]\nsample_ms = 10001", "harvest.sample_ms", "10 to 10000, not 10001"},
      {"[cluster]\ncopies = 3", "cluster.copies", "a whole number from 1 to 2"},
      {"[cluster]\ntransport = \"tcp\"", "cluster.transport", "one of \"tls\" \"ucx\""},
      {"[cluster]\nnodes = \"b\"", "cluster.nodes", "a list of strings"},
      {"[harvest]\nrise_s = -1", "harvest.rise_s", "a number of seconds"},
      {"[harvest]\nrise_s = 3601", "harvest.rise_s", "at most 3600, not 3601"},
      {"[harvest]\nstep = \"some\"", "harvest.step", "a size: a number of bytes"},
      {"[harvest]\nbusy_bytes_per_second = \"all\"", "harvest.busy_bytes_per_second",
       "bytes per second, or 0 for no cap"},
      {"[harvest]\nbusy_bytes_per_second = 40", "harvest.busy_bytes_per_second",
       "0 (no cap) or at least 1e+06, not 40"},
      {"[loop]\nspin_us = \"200\"", "loop.spin_us", "a number of microseconds"},
      {"[loop]\npoll_us = -1", "loop.poll_us", "a number of microseconds"},
      {"[loop]\npoll_us = nan", "loop.poll_us", "a number of microseconds"},
      {"[log]\nlevel = \"loud\"", "log.level", R"("trace" "debug" "info" "warn" "error")"},
      {"[shutdown]\ndrain_s = inf", "shutdown.drain_s", "a number of seconds"},
      {"[host_backend]\ndevices = 17", "host_backend.devices", "from 1 to 16"},
      {"[host_backend]\nothers = \"3GiB\"", "host_backend.others",
       "at most host_backend.total, 2.0 GiB, not 3.0 GiB"},
      {"[host_backend]\nutilization = 101", "host_backend.utilization", "from 0 to 100"},
      {"[host_backend]\nbytes_per_second = -1", "host_backend.bytes_per_second", "no limit"},
      {"[host_backend]\nbytes_per_second = nan", "host_backend.bytes_per_second", "no limit"},
  };
  for (const Case& one : cases) {
    const std::string words = Refusal(one.line);
    EXPECT_EQ(words.find("test.toml:2: "), 0u) << one.line << ": " << words;
    EXPECT_NE(words.find(std::string("\"") + one.key + "\" must be "), std::string::npos) << words;
    EXPECT_NE(words.find(one.accepted), std::string::npos) << words;
  }
}

TEST(ConfigTest, BadTomlIsNamedWithItsLine) {
  const std::string words = Refusal("[socket]\npath = \"x\"\nmode = = 3\n");
  EXPECT_EQ(words.find("test.toml:3: not TOML: "), 0u) << words;
}

TEST(ConfigTest, FilesThatCannotBeReadAreNamed) {
  const ipc::ShortDirectory directory;
  const std::string fifo = directory / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const std::string large = directory / "large";
  ASSERT_EQ(::truncate((std::ofstream(large), large.c_str()), 1 << 30), 0);
  const std::pair<std::string, const char*> cases[] = {
      {"/nowhere/ravenstored.toml", "No such file"},
      {directory / "", "is no regular file"},
      {fifo, "is no regular file"},
      {"/dev/null", "is no regular file"},
      {large, "more than 1 MiB"},
  };
  for (const auto& [path, words] : cases) {
    Config config;
    const core::Status status = LoadConfig(path, &config);
    ASSERT_FALSE(status.ok()) << path;
    EXPECT_EQ(status.error().message.find(path + ": "), 0u) << status.error().message;
    EXPECT_NE(status.error().message.find(words), std::string::npos) << status.error().message;
  }
}

TEST(ConfigTest, WhatDoesNotFitTogetherIsNamedWithItsLineAndBothValues) {
  struct Case {
    const char* text;
    const char* words;
  };
  const Case cases[] = {
      {"[devices]\npage = \"6MiB\"",
       "\"devices.page\" must be a power of two from 2 MiB to 1 GiB, not 6.0 MiB"},
      {"[limits]\ndevice_budget = 1",
       "\"limits.device_budget\" must be 0 (all there is) or at "
       "least 2 MiB, not 1 B"},
      {"[limits]\nhost_budget = \"1MiB\"", "or at least 2 MiB, not 1.0 MiB"},
      {"[limits]\ndevice_guarantee = \"3GiB\"\ndevice_budget = \"2GiB\"",
       "\"limits.device_guarantee\" must be at most limits.device_budget, 2.0 GiB, not 3.0 GiB"},
      {"[host_pool]\nsize = \"32MiB\"\nstep = \"64MiB\"",
       "\"host_pool.size\" must be at least one host_pool.step, 64.0 MiB, not 32.0 MiB"},
      {"[devices]\nuuids = [\"GPU-1\", \"GPU-2\", \"GPU-1\"]", "\"GPU-1\" is there twice"},
      {"[peer_pool]\nsize = \"3MiB\"",
       "\"peer_pool.size\" must be a multiple of 2 MiB, not 3.0 MiB"},
      {"[file_pool]\nsize = \"1MiB\"",
       "\"file_pool.size\" must be a multiple of 2 MiB, not 1.0 MiB"},
      {"[file_pool]\nsize = \"8TiB\"", "\"file_pool.size\" must be at most"},
      {"[file_pool]\npath = \"pool\"",
       "\"file_pool.path\" must be the absolute path of a folder, not \"pool\""},
      {"[transfer]\nchunk = \"512KiB\"", "not 512.0 KiB"},
      {"[cluster]\nnode = \"a b\"", "\"cluster.node\" must be 1 to 64 letters, digits"},
      {"[cluster]\nlisten = \"\"\nnode = \"a\"",
       "\"cluster.listen\" must be the address and port at which"},
      {"[cluster]\nlisten = \"0.0.0.0:7420\"\nnode = \"a\"",
       "\"cluster.listen\" is 0.0.0.0:7420, but \"0.0.0.0:7420\" is no address at which other "
       "nodes "
       "reach "
       "this one: name that of one of its network interfaces"},
      {"[cluster]\nlisten = \"[::]:7420\"\nnode = \"a\"", "\"[::]:7420\" is no address at which"},
      {"[cluster]\nlisten = \"host:7420\"\nnode = \"a\"",
       "\"host:7420\" is no numeric address with a port"},
      {"[cluster]\nkey = \"key\"", "\"cluster.key\" must be an absolute path, not \"key\""},
      {"[cluster]\nnodes = [\"b\", \"/\"]", "\"cluster.nodes\" must list names of nodes: \"/\""},
      {"[cluster]\npeers = [\"b\"]", "must be a list of nodes as \"NAME=ADDRESS:PORT\", not \"b\""},
      {"[cluster]\npeers = [\"b=\"]", "not \"b=\""},
      {"[cluster]\npeers = [\"b=1\", \"b=2\"]", "\"b\" is there twice"},
      {"[cluster]\npeers = [\"a=x:1\"]\nlisten = \"127.0.0.1:1\"\nnode = \"a\"",
       "\"cluster.peers\" must not name this node, \"a\""},
      {"[cluster]\nsize = \"32MiB\"", "\"cluster.size\" must be a multiple of 64.0 MiB"},
      {"[cluster]\nlend = \"8TiB\"", "and at most"},
      {"[cluster]\nlease_s = 0.5", "\"cluster.lease_s\" must be 1 to 600, not 0.5"},
      {"[cluster]\nrecall_s = 0", "\"cluster.recall_s\" must be 0.1 to 600, not 0"},
      {"[cluster]\ntransport = \"ucx\"", "whoever reaches its port owns this daemon"},
  };
  for (const Case& one : cases) {
    const std::string words = Refusal(one.text);
    EXPECT_EQ(words.find("test.toml:2: "), 0u) << one.text << ": " << words;
    EXPECT_NE(words.find(one.words), std::string::npos) << words;
  }
}

TEST(ConfigTest, OnlyWhatMayChangeWhileItRunsIsAdoptedAndTheRestIsNamed) {
  Config running;
  const Config wanted = Parsed(kEveryKey);
  const ConfigChanges changes = Adopt(wanted, &running);
  EXPECT_EQ(changes.adopted, (std::vector<std::string>{
                                 "limits.device_budget", "limits.device_guarantee",
                                 "limits.file_budget", "limits.host_budget", "limits.peer_budget",
                                 "limits.priority", "limits.remote_budget", "limits.weight",
                                 "log.level", "shutdown.drain_s", "shutdown.restart_timeout_s"}));
  EXPECT_EQ(changes.adopted.size() + changes.need_restart.size(), 75u);
  EXPECT_EQ(running.device_budget, GiB(12));
  EXPECT_EQ(running.log_level, "trace");
  EXPECT_EQ(running.drain, std::chrono::milliseconds(250));
  EXPECT_EQ(running.clients_max, Config().clients_max);
  EXPECT_EQ(Adopt(wanted, &running).adopted, std::vector<std::string>());
  EXPECT_EQ(Adopt(running, &running).need_restart, std::vector<std::string>());
}

TEST(ConfigTest, WhatDoesNotFitTogetherIsNamed) {
  struct Case {
    const char* key;
    void (*spoil)(Config&);
  };
  const Case cases[] = {
      {"devices.page", [](Config& c) { c.page = MiB(3); }},
      {"host_pool.step", [](Config& c) { c.pool_step = MiB(2) + KiB(4); }},
      {"transfer.chunk", [](Config& c) { c.chunk = KiB(512); }},
      {"transfer.chunk", [](Config& c) { c.chunk = MiB(1) + core::Bytes{100}; }},
      {"host_pool.size", [](Config& c) { c.pool_size = GiB(2048); }},
      {"host_pool.size", [](Config& c) { c.pool_size = MiB(32); }},
      {"limits.device_budget", [](Config& c) { c.device_budget = core::Bytes{1}; }},
      {"devices.uuids",
       [](Config& c) {
         c.uuids = {"HOST-0", "HOST-0"};
       }},
      {"admission.max_slowdown", [](Config& c) { c.admission_max_slowdown = 0.9; }},
      {"history.path", [](Config& c) { c.history_path = "history"; }},
      {"socket.path", [](Config& c) { c.socket_path.clear(); }},
      {"socket.path", [](Config& c) { c.socket_path = std::string(108, 'x'); }},
  };
  for (const Case& one : cases) {
    Config config;
    one.spoil(config);
    const core::Status status = CheckConfig(config);
    ASSERT_FALSE(status.ok()) << one.key;
    EXPECT_EQ(status.error().code, core::ErrorCode::kInvalidArgument);
    EXPECT_NE(status.error().message.find(one.key), std::string::npos) << status.error().message;
  }
}

}  // namespace
}  // namespace ravenstore::daemon
