#include "client/exporter/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <set>

namespace ravenstore::client::exporter {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string NameOf(uid_t uid) {
  return uid == 7 ? "alice" : std::to_string(uid);
}

std::string Text(const std::optional<Seen>& seen, const NameOfUser& name_of) {
  return prometheus::TextSerializer().Serialize(MetricsOf(seen, name_of));
}

Seen Sample() {
  Seen seen;
  seen.welcome.set_daemon_version("1.2.3");
  seen.welcome.set_backend("cuda");
  proto::Device& device = *seen.welcome.add_devices();
  device.set_uuid("GPU-1");
  device.set_link_up(50'000'000'000);
  device.set_link_down(40'000'000'000);
  for (const char* name : {"device 0", "host"}) {
    proto::TierStats& tier = *seen.now.stats.add_tiers();
    tier.set_name(name);
    tier.set_capacity(1000);
    tier.set_held(500);
    tier.set_used(400);
  }
  proto::DeviceUse& use = *seen.now.stats.add_devices();
  use.set_store(500);
  use.set_others(70);
  use.set_free(300);
  use.set_least_free(200);
  use.set_idle(100);
  use.add_processes()->set_pid(4711);
  use.mutable_processes(0)->set_bytes(60);
  seen.now.stats.set_hits(10);
  seen.now.stats.set_late_hits(2);
  seen.now.stats.set_misses(3);
  seen.now.stats.set_stall_ns(1'500'000'000);
  for (const uint32_t uid : {7, 7, 9}) {
    proto::ClientInfo& client = seen.now.clients.emplace_back();
    client.set_uid(uid);
    client.set_device_bytes(100);
    client.set_in_use_bytes(60);
    client.set_waiting(1);
  }
  proto::LegacyJob& job = seen.now.jobs.emplace_back();
  job.set_uid(9);
  job.set_mode("elastic");
  job.set_waiting(2);
  proto::LegacyDevice& held = *job.add_devices();
  held.set_uuid("GPU-1");
  held.set_used(30);
  held.set_served(20);
  return seen;
}

TEST(MetricsTest, OfADaemonThatDoesNotAnswerOnlyThatIsSaid) {
  const auto families = MetricsOf(std::nullopt, NameOf);
  ASSERT_EQ(families.size(), 1u);
  EXPECT_THAT(Text(std::nullopt, NameOf), HasSubstr("\nravenstore_up 0"));
}

TEST(MetricsTest, DevicesMemoryIsSomebodysOrFree) {
  Seen seen = Sample();
  const std::string text = Text(seen, NameOf);
  for (const char* line : {"ravenstore_device_memory_bytes{device=\"GPU-1\",of=\"store\"} 500\n",
                           "ravenstore_device_memory_bytes{device=\"GPU-1\",of=\"others\"} 70\n",
                           "ravenstore_device_memory_bytes{device=\"GPU-1\",of=\"free\"} 300\n",
                           "ravenstore_device_least_free_bytes{device=\"GPU-1\"} 200\n",
                           "ravenstore_device_idle_bytes{device=\"GPU-1\"} 100\n",
                           "ravenstore_device_process_bytes{device=\"GPU-1\",pid=\"4711\"} 60\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(Text(seen, nullptr), Not(HasSubstr("4711")));
  seen.now.stats.mutable_devices(0)->set_fault("no NVML");
  EXPECT_THAT(Text(seen, NameOf), Not(HasSubstr("ravenstore_device_idle_bytes{")));
}

TEST(MetricsTest, WhetherADeviceComputesIsServedWhateverIsKnownOfItsMemory) {
  Seen seen = Sample();
  proto::DeviceUse& use = *seen.now.stats.mutable_devices(0);
  use.set_fault("no NVML");
  use.set_busy(true);
  EXPECT_THAT(Text(seen, NameOf), HasSubstr("ravenstore_device_busy{device=\"GPU-1\"} 1\n"));
  EXPECT_THAT(Text(seen, NameOf), Not(HasSubstr("ravenstore_device_utilization_ratio{")));
  use.set_utilization(87);
  EXPECT_THAT(Text(seen, NameOf),
              HasSubstr("ravenstore_device_utilization_ratio{device=\"GPU-1\"} 0.87\n"));
}

TEST(MetricsTest, WhatIsHarvestedIsServedWhereAnythingIs) {
  Seen seen = Sample();
  EXPECT_THAT(Text(seen, NameOf), Not(HasSubstr("ravenstore_harvest_bytes{")));
  proto::DeviceUse& use = *seen.now.stats.mutable_devices(0);
  use.set_peer_pool(40);
  proto::HarvestUse& harvest = *use.mutable_harvest();
  harvest.set_used(30);
  harvest.set_returns(5);
  harvest.set_missed(2);
  harvest.set_last_ns(1'500'000'000);
  const std::string text = Text(seen, NameOf);
  for (const char* line : {"ravenstore_harvest_bytes{device=\"GPU-1\",of=\"held\"} 40\n",
                           "ravenstore_harvest_bytes{device=\"GPU-1\",of=\"used\"} 30\n",
                           "ravenstore_harvest_give_backs_total{device=\"GPU-1\",late=\"no\"} 3\n",
                           "ravenstore_harvest_give_backs_total{device=\"GPU-1\",late=\"yes\"} 2\n",
                           "ravenstore_harvest_give_back_last_seconds{device=\"GPU-1\"} 1.5\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(MetricsTest, TheClusterIsServedWhereThereIsOne) {
  Seen seen = Sample();
  EXPECT_THAT(Text(seen, NameOf), Not(HasSubstr("ravenstore_cluster")));
  proto::ClusterUse& cluster = *seen.now.stats.mutable_cluster();
  cluster.set_held(64);
  cluster.set_lent(128);
  cluster.set_nodes_known(3);
  cluster.set_nodes_connected(2);
  cluster.set_pieces_lost(4);
  cluster.set_pieces_recalled(6);
  cluster.set_pieces_taken(5);
  cluster.set_loans_lost(1);
  proto::NodeUse& node = *cluster.add_nodes();
  node.set_name("b");
  node.set_borrowed(64);
  node.set_lease_left_ns(1'500'000'000);
  node.set_written(5);
  node.set_read_here(7);
  const std::string text = Text(seen, NameOf);
  for (const char* line :
       {"ravenstore_cluster_bytes{of=\"borrowed\"} 64\n",
        "ravenstore_cluster_bytes{of=\"lent\"} 128\n",
        "ravenstore_cluster_node_bytes{node=\"b\",of=\"borrowed\"} 64\n",
        "ravenstore_cluster_lease_left_seconds{node=\"b\",of=\"borrowed\"} 1.5\n",
        "ravenstore_cluster_nodes{state=\"known\"} 3\n",
        "ravenstore_cluster_nodes{state=\"connected\"} 2\n",
        "ravenstore_cluster_pieces_lost_total 4\n", "ravenstore_cluster_recalls_total 6\n",
        "ravenstore_cluster_recalls_late_total 5\n", "ravenstore_cluster_loans_lost_total 1\n",
        "ravenstore_cluster_moved_bytes_total{node=\"b\",direction=\"out\"} 12\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, Not(HasSubstr("lease_left_seconds{node=\"b\",of=\"lent\"}")));
  EXPECT_THAT(text, Not(HasSubstr("\nravenstore_cluster_discovery_fails "))) << "there is none";
  cluster.set_discovery("not registered yet as a");
  cluster.set_discovery_fails(true);
  EXPECT_THAT(Text(seen, NameOf), HasSubstr("\nravenstore_cluster_discovery_fails 1\n"));
}

TEST(MetricsTest, BytesAreBytesTimesAreSecondsAndCountersSayTheirKind) {
  const std::string text = Text(Sample(), NameOf);
  for (const char* line :
       {"\nravenstore_up 1\n", "ravenstore_daemon_info{version=\"1.2.3\",backend=\"cuda\"} 1\n",
        "ravenstore_tier_capacity_bytes{tier=\"device 0\"} 1000\n",
        "ravenstore_tier_held_bytes{tier=\"host\"} 500\n",
        "ravenstore_link_bytes_per_second{device=\"GPU-1\",direction=\"out\"} 40000000000\n",
        "# TYPE ravenstore_gets_total counter\n", "ravenstore_gets_total{found=\"away\"} 3\n",
        "ravenstore_gets_total{found=\"on the way\"} 2\n", "ravenstore_stall_seconds_total 1.5\n",
        "# TYPE ravenstore_tensors gauge\n", "ravenstore_jobs{mode=\"elastic\"} 1\n",
        "ravenstore_jobs_waiting 1\n",
        "ravenstore_jobs_device_bytes{device=\"GPU-1\",of=\"served\"} 20\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

// A job's page is its user's: neither names nor sums of it reach other users' figures.
TEST(MetricsTest, AJobsPageNeitherAddsSeriesNorHidesBytes) {
  Seen seen = Sample();
  proto::LegacyJob& job = seen.now.jobs.emplace_back();
  for (int i = 0; i < 1000; ++i) {
    proto::LegacyDevice& device = *job.add_devices();
    device.set_uuid("GPU-x" + std::to_string(i));
    device.set_used(1);
  }
  proto::LegacyDevice& huge = *job.add_devices();
  huge.set_uuid("GPU-1");
  huge.set_used(~uint64_t{});
  const std::string text = Text(seen, NameOf);
  EXPECT_THAT(text, Not(HasSubstr("GPU-x")));
  EXPECT_THAT(text, HasSubstr("ravenstore_jobs_device_bytes{device=\"other\",of=\"all\"} 1000\n"));
  // Wrapped, the sum would be 29.
  EXPECT_THAT(text, HasSubstr("ravenstore_jobs_device_bytes{device=\"GPU-1\",of=\"all\"} 1.8446"));
}

TEST(MetricsTest, AUsersClientsAndJobsAreOneSum) {
  const std::string text = Text(Sample(), NameOf);
  for (const char* line : {"ravenstore_user_bytes{user=\"alice\",place=\"device\"} 200\n",
                           "ravenstore_user_bytes{user=\"alice\",place=\"in use\"} 120\n",
                           "ravenstore_user_bytes{user=\"9\",place=\"jobs\"} 30\n",
                           "ravenstore_user_clients{user=\"alice\"} 2\n",
                           "ravenstore_user_requests_waiting{user=\"9\"} 1\n",
                           "ravenstore_user_jobs{user=\"9\"} 1\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

size_t SeriesOf(const std::vector<prometheus::MetricFamily>& families) {
  size_t series = 0;
  for (const prometheus::MetricFamily& family : families) series += family.metric.size();
  return series;
}

TEST(MetricsTest, SeriesAreBoundedAndTheOthersAreOne) {
  constexpr uint32_t kMany = 5000;
  Seen seen = Sample();
  for (uint32_t i = 0; i < kMany; ++i) {
    proto::ClientInfo& client = seen.now.clients.emplace_back();
    client.set_uid(1000 + i);
    client.set_host_bytes(1 + i);
    proto::DeviceProcess& process = *seen.now.stats.mutable_devices(0)->add_processes();
    process.set_pid(10'000 + i);
    process.set_bytes(100 + i);
    proto::NodeUse& node = *seen.now.stats.mutable_cluster()->add_nodes();
    node.set_name("n" + std::to_string(10'000 + i));
    node.set_borrowed(2);
    node.set_lease_left_ns(int64_t{1'000'000'000} * (kMany - i));
  }
  EXPECT_LE(SeriesOf(MetricsOf(seen, NameOf)),
            100 + 8 * (kUsersMax + 1) + kProcessesMax + 1 + 6 * (kNodesMax + 1));
  const std::string text = Text(seen, NameOf);
  // The users and processes with the most bytes are kept.
  EXPECT_THAT(text, HasSubstr("ravenstore_user_bytes{user=\"5999\",place=\"host\"} 5000\n"));
  EXPECT_THAT(text, Not(HasSubstr("user=\"1000\"")));
  EXPECT_THAT(text, HasSubstr("pid=\"14999\"} 5099\n"));
  EXPECT_THAT(text, Not(HasSubstr("pid=\"4711\"")));
  EXPECT_THAT(text, HasSubstr("ravenstore_user_clients{user=\"other\"} " +
                              std::to_string(kMany + 3 - kUsersMax) + "\n"));
  EXPECT_THAT(text, HasSubstr("node=\"n10000\",of=\"borrowed\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("ravenstore_cluster_node_bytes{node=\"other\",of=\"borrowed\"} " +
                              std::to_string(2 * (kMany - kNodesMax)) + "\n"));
  EXPECT_THAT(text, HasSubstr("left_seconds{node=\"other\",of=\"borrowed\"} 1\n"));
}

// Prometheus refuses a page that has a series twice.
TEST(MetricsTest, UsersOfOneNameAreOneSeries) {
  const std::string text = Text(Sample(), [](uid_t) { return std::string("other"); });
  EXPECT_THAT(text, HasSubstr("\nravenstore_user_clients{user=\"other\"} 3\n"));
}

TEST(MetricsTest, ANodesSumsStopAtTheLargestNumber) {
  Seen seen = Sample();
  proto::NodeUse& node = *seen.now.stats.mutable_cluster()->add_nodes();
  node.set_name("b");
  node.set_written(~uint64_t{});
  node.set_read_here(7);
  EXPECT_THAT(Text(seen, NameOf), HasSubstr("{node=\"b\",direction=\"out\"} 1.8446"));
}

TEST(MetricsTest, WithoutNamesNoSingleUserIsShown) {
  const std::string text = Text(Sample(), NameOfUser());
  EXPECT_THAT(text, Not(HasSubstr("user")));
  EXPECT_THAT(text, HasSubstr("ravenstore_clients "));
}

TEST(MetricsTest, EachFamilyStandsOnceAndHasItsHelp) {
  std::set<std::string> names;
  for (const auto& family : MetricsOf(Sample(), NameOf)) {
    EXPECT_TRUE(names.insert(family.name).second) << family.name;
    EXPECT_FALSE(family.help.empty()) << family.name;
    const bool counts = family.type == prometheus::MetricType::Counter;
    EXPECT_EQ(family.name.ends_with("_total"), counts) << family.name;
  }
}

TEST(MetricsTest, HowRightEstimatesWereIsShownBySource) {
  Seen seen = Sample();
  proto::JobEstimate& estimate = *seen.now.records.emplace_back().add_estimates();
  estimate.set_source("formula");
  estimate.set_bytes(150);
  estimate.set_reserved(180);
  estimate.set_actual(200);
  const std::string text = Text(seen, nullptr);
  EXPECT_THAT(text, HasSubstr("\nravenstore_commands_remembered 1\n"));
  EXPECT_THAT(text, HasSubstr("\nravenstore_estimates{source=\"formula\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("\nravenstore_estimates_under{source=\"formula\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("\nravenstore_estimate_error_ratio{source=\"formula\"} 0.25\n"));
  EXPECT_THAT(
      text, HasSubstr("\nravenstore_estimate_reserved_over_used_ratio{source=\"formula\"} 0.9\n"));
}

}  // namespace
}  // namespace ravenstore::client::exporter
