#include "core/eviction_policies.h"

#include <gtest/gtest.h>

namespace ravenstore::core {
namespace {

using std::chrono::seconds;

constexpr Tick kNow{seconds(1000)};
const AwayLinks kLinks{{{kHostPool, {}, GiB(1)}}};

class EvictionPoliciesTest : public testing::Test {
 protected:
  // Put so long ago, dirty; of its use nothing is known.
  TensorRow& Add(Bytes size, Duration ago, uint32_t gets = 0) {
    TensorRow& tensor = catalog_.Add();
    tensor.size = size;
    tensor.version = 1;
    tensor.logical.gets = gets;
    tensor.use_key = -(kNow - ago).time_since_epoch().count();
    return tensor;
  }

  Catalog catalog_;
};

TEST_F(EvictionPoliciesTest, ForLruOnlyTheTimeSinceTheLastUseCounts) {
  const LruIndex lru(&catalog_);
  const auto cost = [&](const TensorRow& tensor) { return lru.EvictionCost(tensor, kNow, kLinks); };
  EXPECT_DOUBLE_EQ(cost(Add(KiB(4), seconds(2))), 0.5);
  EXPECT_DOUBLE_EQ(cost(Add(GiB(1), seconds(2))), 0.5);
  EXPECT_LT(cost(Add(GiB(1), seconds(4))), cost(Add(KiB(4), seconds(2))));
}

TEST_F(EvictionPoliciesTest, ForGdsfWhatIsGotOftenAndCostsMuchAByteStays) {
  const GdsfIndex gdsf(&catalog_);
  const auto cost = [&](Bytes size, uint32_t gets) {
    TensorRow& tensor = Add(size, seconds(1), gets);
    tensor.use_key = gdsf.KeyAtPut(tensor, kNow, kLinks);
    return gdsf.EvictionCost(tensor, kNow, kLinks);
  };
  EXPECT_GT(cost(MiB(1), 9), 5 * cost(MiB(1), 0));
  EXPECT_GT(cost(KiB(4), 0), cost(MiB(64), 0)) << "the latency is shared by fewer bytes";
}

TEST_F(EvictionPoliciesTest, ForGdsfNewcomersAreWorthMoreThanWhatWasEvicted) {
  GdsfIndex gdsf(&catalog_);
  TensorRow& old = Add(MiB(1), seconds(1), 9);
  old.use_key = gdsf.KeyAtPut(old, kNow, kLinks);
  TensorRow& before = Add(MiB(1), seconds(1));
  before.use_key = gdsf.KeyAtPut(before, kNow, kLinks);
  EXPECT_GT(before.use_key, old.use_key);
  gdsf.Evicted(old);
  TensorRow& after = Add(MiB(1), seconds(1));
  after.use_key = gdsf.KeyAtPut(after, kNow, kLinks);
  EXPECT_LT(after.use_key, old.use_key);
}

TEST_F(EvictionPoliciesTest, ForTheValueSizeAndLinkCount) {
  const ValueIndex value(&catalog_);
  const TensorRow& small = Add(KiB(4), seconds(1));
  const TensorRow& large = Add(GiB(1), seconds(1));
  EXPECT_GT(value.Value(large, kNow, kLinks), value.Value(small, kNow, kLinks));
  AwayLinks slow = kLinks;
  slow.pools[0].link.up_bytes_per_second /= 10;
  EXPECT_GT(value.EvictionCost(large, kNow, slow), value.EvictionCost(large, kNow, kLinks));
}

TEST_F(EvictionPoliciesTest, EachPolicyHasItsIndex) {
  const auto index_of = [&](Policy policy) {
    return MakeEvictionIndex(policy, &catalog_, nullptr, {});
  };
  EXPECT_NE(dynamic_cast<ValueIndex*>(index_of(Policy::kValue).get()), nullptr);
  EXPECT_NE(dynamic_cast<LruIndex*>(index_of(Policy::kLru).get()), nullptr);
  EXPECT_NE(dynamic_cast<GdsfIndex*>(index_of(Policy::kGdsf).get()), nullptr);
}

}  // namespace
}  // namespace ravenstore::core
