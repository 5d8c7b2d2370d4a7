#include "client/ctl/estimate_sums.h"

#include <gtest/gtest.h>

namespace ravenstore::client::ctl {
namespace {

void Add(proto::JobRecord* record, const char* source, uint64_t bytes, uint64_t reserved,
         uint64_t actual) {
  proto::JobEstimate& estimate = *record->add_estimates();
  estimate.set_source(source);
  estimate.set_bytes(bytes);
  estimate.set_reserved(reserved);
  estimate.set_actual(actual);
}

TEST(EstimateSumsTest, EachSourceIsSummedByItself) {
  std::vector<proto::JobRecord> records(2);
  Add(&records[0], "history", 100, 105, 100);
  Add(&records[1], "history", 80, 84, 100);
  Add(&records[1], "formula", 300, 330, 200);
  Add(&records[1], "capture", 300, 330, 0);
  const auto sums = SumEstimates(records);
  ASSERT_EQ(sums.size(), 2u);
  const EstimateSum& history = sums.at("history");
  EXPECT_EQ(history.count, 2u);
  EXPECT_EQ(history.under, 1u);
  EXPECT_DOUBLE_EQ(history.mean_error, 0.1);
  EXPECT_DOUBLE_EQ(history.reserved_over_used, 189.0 / 200);
  EXPECT_DOUBLE_EQ(sums.at("formula").reserved_over_used, 1.65);
  EXPECT_DOUBLE_EQ(sums.at("formula").mean_error, 0.5);
}

}  // namespace
}  // namespace ravenstore::client::ctl
