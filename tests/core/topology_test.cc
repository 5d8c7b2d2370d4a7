#include "core/topology.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace ravenstore::core {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr Bytes kChunk(1'000'000);

PoolId Id(size_t index) {
  return PoolId{static_cast<uint16_t>(index)};
}

// Device 0, host 0 and file 0; devices' copies at 50 up and 25 GB/s down, the file's at 2 and 1.
constexpr PoolId kDevice{0};
constexpr PoolId kHost{1};
constexpr PoolId kFile{2};

std::vector<Pool> ThreePools() {
  return {{PoolKind::kDevice, 0, GiB(80), MiB(2), true},
          {PoolKind::kHost, 0, GiB(200), Bytes(512), false},
          {PoolKind::kFile, 0, GiB(1000), KiB(4), false}};
}
std::vector<Link> TwoLinks() {
  return {{kHost, kDevice, microseconds(10), 50e9, 25e9},
          {kHost, kFile, microseconds(100), 1e9, 2e9}};
}
Topology Made(std::vector<Pool> pools, std::vector<Link> links) {
  auto topology = Topology::Make(std::move(pools), std::move(links), kChunk);
  EXPECT_TRUE(topology.ok()) << Describe(topology.error());
  return *std::move(topology);
}
std::string Refusal(std::vector<Pool> pools, std::vector<Link> links) {
  const auto topology = Topology::Make(std::move(pools), std::move(links), kChunk);
  if (topology.ok()) return "";
  EXPECT_EQ(topology.error().code, ErrorCode::kInvalidArgument);
  return topology.error().message;
}

TEST(TopologyTest, NoLinkOfACappedPoolIsFasterThanItsCap) {
  const Topology topology = Made(ThreePools(), TwoLinks());
  const Topology capped = topology.Capped({{kDevice, 30e9}});
  EXPECT_EQ(capped.Cost(kHost, kDevice, Bytes(30'000'000)), microseconds(1010)) << "of 50 GB/s";
  EXPECT_EQ(capped.Cost(kDevice, kHost, Bytes(50'000'000)), microseconds(2010)) << "slower anyway";
  EXPECT_EQ(capped.Cost(kHost, kFile, MiB(1)), topology.Cost(kHost, kFile, MiB(1)));
  EXPECT_EQ(topology.Capped({}).Cost(kHost, kDevice, MiB(1)),
            topology.Cost(kHost, kDevice, MiB(1)));
}

TEST(TopologyTest, ALinkTakesItsLatencyAndItsBytesEachWay) {
  const Topology topology = Made(ThreePools(), TwoLinks());
  EXPECT_EQ(topology.Cost(kHost, kDevice, Bytes(50'000'000)), microseconds(1010));
  EXPECT_EQ(topology.Cost(kDevice, kHost, Bytes(50'000'000)), microseconds(2010));
  EXPECT_EQ(topology.Cost(kHost, kHost, Bytes(50'000'000)), Duration{});
  EXPECT_EQ(topology.Cost(kHost, kDevice, Bytes(0)), microseconds(10));
}

TEST(TopologyTest, ARouteOfTwoIsPacedByTheSlowerLinkAndBeginsWithAChunkOnTheFaster) {
  const Topology topology = Made(ThreePools(), TwoLinks());
  // Both latencies, ten chunks at 1 GB/s, and one at 25 GB/s.
  EXPECT_EQ(topology.Cost(kDevice, kFile, kChunk * 10), milliseconds(10) + microseconds(110 + 40));
  // Less than a chunk goes over one link and then over the other.
  EXPECT_EQ(topology.Cost(kFile, kDevice, Bytes(100'000)), microseconds(110 + 50 + 2));
  const Route& route = topology.Best(kDevice, kFile, kChunk);
  EXPECT_EQ(route.first.to, kHost);
  ASSERT_TRUE(route.second);
  EXPECT_EQ(route.second->from, kHost);
  EXPECT_EQ(route.second->to, kFile);
  EXPECT_EQ(route.rate, 1e9);
}

TEST(TopologyTest, LinksOfOneGroupTakeTurns) {
  std::vector<Link> links = TwoLinks();
  links[0].group = links[1].group = 3;
  // 10 MB at 25 GB/s and then at 1 GB/s.
  EXPECT_EQ(Made(ThreePools(), links).Cost(kDevice, kFile, kChunk * 10),
            microseconds(110 + 400) + milliseconds(10));
}

TEST(TopologyTest, TheRouteGoesWithTheSize) {
  std::vector<Link> links = TwoLinks();
  links.push_back({kDevice, kFile, microseconds(20), 0.1e9, 0.1e9});
  const Topology topology = Made(ThreePools(), links);
  EXPECT_FALSE(topology.Best(kDevice, kFile, Bytes(4096)).second);
  EXPECT_TRUE(topology.Best(kDevice, kFile, MiB(1)).second);
  EXPECT_EQ(topology.Cost(kDevice, kFile, Bytes(1000)), microseconds(30));
}

TEST(TopologyTest, PoolsAreFoundByKindAndNumber) {
  const Topology topology = Made(ThreePools(), TwoLinks());
  EXPECT_EQ(topology.Find(PoolKind::kFile, 0), kFile);
  EXPECT_EQ(topology.Find(PoolKind::kFile, 1), std::nullopt);
  EXPECT_EQ(NameOf(topology.pools()[0]), "device 0");
  EXPECT_EQ(NameOf(topology.pools()[1]), "host 0");
  EXPECT_EQ(NameOf(topology.pools()[2]), "file 0");
  EXPECT_EQ(NameOf({.kind = PoolKind::kRemote}), "remote 0");
  EXPECT_EQ(Topology().Find(PoolKind::kHost, 0), std::nullopt);
}

TEST(TopologyTest, BadPoolsAreRefusedInWords) {
  std::vector<Pool> pools = ThreePools();
  pools[2] = pools[0];
  EXPECT_EQ(Refusal(pools, TwoLinks()), "topology: device 0 is named twice");
  pools = ThreePools();
  pools[1].granularity = Bytes(0);
  EXPECT_EQ(Refusal(pools, TwoLinks()),
            "topology: the granularity of host 0 must be a power of two, got 0");
  pools[1].granularity = Bytes(768);
  EXPECT_EQ(Refusal(pools, TwoLinks()),
            "topology: the granularity of host 0 must be a power of two, got 768");
  pools.assign(Topology::kPoolsMax + 1, ThreePools()[0]);
  EXPECT_EQ(Refusal(pools, {}), "topology: 65 pools, but at most 64 can be");
  EXPECT_FALSE(Topology::Make(ThreePools(), TwoLinks(), Bytes(0)).ok());
}

TEST(TopologyTest, BadLinksAreRefusedInWords) {
  const auto with = [](auto change) {
    std::vector<Link> links = TwoLinks();
    change(links[1]);
    return Refusal(ThreePools(), links);
  };
  EXPECT_EQ(with([](Link& link) { link.b = PoolId{3}; }),
            "topology: link 1 leads to pool 3, but there are 3 pools");
  EXPECT_EQ(with([](Link& link) { link.b = kHost; }), "topology: link 1 joins host 0 to itself");
  EXPECT_EQ(with([](Link& link) { link.latency = nanoseconds(-1); }),
            "topology: link 1 has a negative latency");
  for (const double rate : {0.0, -1.0, std::numeric_limits<double>::infinity(),
                            std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_NE(with([&](Link& link) { link.a_to_b = rate; }), "");
    EXPECT_NE(with([&](Link& link) { link.b_to_a = rate; }), "");
  }
  EXPECT_EQ(with([](Link& link) { link.b_to_a = 0; }),
            "topology: link 1 must move bytes at a positive rate in both directions, got 0.000000");
}

TEST(TopologyTest, PoolsThatNoRouteJoinsAreRefusedInWords) {
  EXPECT_EQ(Refusal(ThreePools(), {TwoLinks()[0]}),
            "topology: no route of at most two links leads from device 0 to file 0");
  // Three links are one too many.
  std::vector<Pool> pools = ThreePools();
  pools.push_back({PoolKind::kFile, 1, GiB(1), KiB(4), false});
  std::vector<Link> links = TwoLinks();
  links.push_back({kFile, PoolId{3}, {}, 1e9, 1e9});
  EXPECT_EQ(Refusal(pools, links),
            "topology: no route of at most two links leads from device 0 to file 1");
}

TEST(TopologyTest, DevicesAroundTheHostHaveALinkEach) {
  const LinkModel fast{microseconds(10), 55e9, 54e9};
  const LinkModel slow{microseconds(20), 12e9, 13e9};
  const auto topology =
      DevicesAroundHost({GiB(80), GiB(24)}, GiB(100), MiB(2), std::vector{fast, slow});
  ASSERT_TRUE(topology.ok());
  ASSERT_EQ(topology->pools().size(), 3u);
  EXPECT_EQ(topology->pools()[ToInt(kHostPool)].capacity, GiB(100));
  EXPECT_EQ(topology->pools()[ToInt(PoolOf(DeviceId{1}))].capacity, GiB(24));
  for (uint16_t i = 0; i < 2; ++i) {
    const LinkModel& given = i == 0 ? fast : slow;
    const LinkModel link = LinkBetween(*topology, DeviceId{i}, kHostPool);
    EXPECT_EQ(link.latency, given.latency);
    EXPECT_EQ(link.up_bytes_per_second, given.up_bytes_per_second);
    EXPECT_EQ(link.down_bytes_per_second, given.down_bytes_per_second);
  }
  EXPECT_FALSE(DevicesAroundHost({GiB(1)}, GiB(1), MiB(2), {{.up_bytes_per_second = 0}}).ok());
}

// A path as the test finds it: a rate for each of its links.
struct Path {
  Duration latency{};
  std::vector<double> rates;
  bool one_at_a_time = false;
};

// What the path takes chunk by chunk, each link moving one chunk at a time and a chunk going on
// once it is there.
double SecondsOf(const Path& path, Bytes bytes) {
  if (path.rates.size() == 2 && path.one_at_a_time) {
    return Seconds(path.latency) + static_cast<double>(bytes.count()) / path.rates[0] +
           static_cast<double>(bytes.count()) / path.rates[1];
  }
  std::vector<double> free(path.rates.size(), 0.0);
  for (Bytes left = bytes; left > Bytes{}; left = Minus(left, kChunk)) {
    double there = 0;
    for (size_t i = 0; i < path.rates.size(); ++i) {
      const auto chunk = static_cast<double>(std::min(left, kChunk).count());
      free[i] = there = std::max(free[i], there) + chunk / path.rates[i];
    }
  }
  return Seconds(path.latency) + free.back();
}

std::vector<Path> PathsOf(const std::vector<Link>& links, PoolId from, PoolId to) {
  const auto rate = [](const Link& link, PoolId begin, PoolId end) -> std::optional<double> {
    if (link.a == begin && link.b == end) return link.a_to_b;
    if (link.b == begin && link.a == end) return link.b_to_a;
    return std::nullopt;
  };
  std::vector<Path> paths;
  for (const Link& first : links) {
    if (const auto only = rate(first, from, to)) paths.push_back({first.latency, {*only}});
    for (const Link& second : links) {
      for (size_t middle = 0; middle < Topology::kPoolsMax; ++middle) {
        const auto in = rate(first, from, Id(middle));
        const auto out = rate(second, Id(middle), to);
        if (!in || !out) continue;
        paths.push_back({first.latency + second.latency,
                         {*in, *out},
                         first.group != 0 && first.group == second.group});
      }
    }
  }
  return paths;
}

// Random pools around a hub that all of them are joined to, with additional links.
class RandomTopology {
 public:
  explicit RandomTopology(uint32_t seed) : random_(seed) {
    const size_t count = Below(2, 7);
    for (uint16_t i = 0; i < count; ++i) {
      pools_.push_back({PoolKind::kDevice, i, GiB(1), KiB(4), true});
      if (i > 0) links_.push_back(Between(0, i));
    }
    for (size_t i = Below(0, 12); i > 0; --i) {
      const size_t a = Below(0, count - 1);
      const size_t b = Below(0, count - 1);
      if (a != b) links_.push_back(Between(a, b));
    }
  }
  Bytes Size() { return Bytes(Below(0, 1) == 0 ? Below(0, 2'000'000) : Below(0, 200'000'000)); }
  const std::vector<Pool>& pools() const { return pools_; }
  const std::vector<Link>& links() const { return links_; }

 private:
  size_t Below(size_t least, size_t most) {
    return std::uniform_int_distribution<size_t>(least, most)(random_);
  }
  double Rate() { return std::exp(std::uniform_real_distribution<double>(18, 27)(random_)); }
  Link Between(size_t a, size_t b) {
    return {Id(a),  Id(b),  microseconds(Below(0, 500)),
            Rate(), Rate(), static_cast<uint16_t>(Below(0, 3))};
  }

  std::mt19937 random_;
  std::vector<Pool> pools_;
  std::vector<Link> links_;
};

TEST(TopologyTest, NoPathOfTwoLinksIsFasterThanTheRoute) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    RandomTopology random(seed);
    const Topology topology = Made(random.pools(), random.links());
    for (size_t from = 0; from < random.pools().size(); ++from) {
      for (size_t to = 0; to < random.pools().size(); ++to) {
        if (from == to) continue;
        const std::vector<Path> paths = PathsOf(random.links(), Id(from), Id(to));
        const Bytes bytes = random.Size();
        // A route is reckoned to add a whole chunk where the last one is shorter.
        const Bytes whole((bytes.count() + kChunk.count() - 1) / kChunk.count() * kChunk.count());
        double least = std::numeric_limits<double>::infinity();
        double least_whole = least;
        for (const Path& path : paths) {
          least = std::min(least, SecondsOf(path, bytes));
          least_whole = std::min(least_whole, SecondsOf(path, whole));
        }
        const double cost = Seconds(topology.Cost(Id(from), Id(to), bytes));
        EXPECT_GE(cost, least - 2e-9) << "seed " << seed;
        EXPECT_LE(cost, least_whole + 2e-9) << "seed " << seed;
        if (bytes <= kChunk) {
          EXPECT_LE(cost, least + 2e-9) << "seed " << seed;
        }
      }
    }
  }
}

}  // namespace
}  // namespace ravenstore::core
