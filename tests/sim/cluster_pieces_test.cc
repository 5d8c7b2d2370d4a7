#include "sim/cluster_pieces.h"

#include <gtest/gtest.h>

#include <vector>

namespace ravenstore::sim {
namespace {

using cluster::PieceId;

constexpr uint32_t kGranules = 4;

class ClusterPiecesTest : public testing::Test {
 protected:
  void Grow() { pieces_.FinishGrowth(pieces_.StartGrowth(), true); }

  ClusterPieces pieces_{kGranules};
};

TEST_F(ClusterPiecesTest, APieceIsOfUseWhenItHasGrown) {
  const PieceId piece = pieces_.StartGrowth();
  EXPECT_EQ(piece, PieceId{0});
  EXPECT_EQ(pieces_.StartGrowth(), PieceId{1});
  EXPECT_EQ(pieces_.FreeGranules(), 0u);
  EXPECT_EQ(pieces_.all(), 2u);
  pieces_.FinishGrowth(PieceId{0}, true);
  pieces_.FinishGrowth(PieceId{1}, false);
  EXPECT_EQ(pieces_.FreeGranules(), kGranules);
  EXPECT_EQ(pieces_.staying(), 1u);
  EXPECT_EQ(pieces_.all(), 1u);
}

TEST_F(ClusterPiecesTest, HolesAreTakenInRuns) {
  Grow();
  Grow();
  const auto first = pieces_.Take(1);
  const auto second = pieces_.Take(1);
  pieces_.Free(first);
  const auto runs = pieces_.Take(4);
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[0].first, 0u);
  EXPECT_EQ(runs[0].count, 1u);
  EXPECT_EQ(runs[1].first, 2u);
  EXPECT_EQ(runs[1].count, 2u);
  EXPECT_EQ(runs[2].piece, PieceId{1});
  EXPECT_EQ(pieces_.FreeGranules(), 3u);
}

TEST_F(ClusterPiecesTest, APieceThatLeavesIsEmptiedAndTakesNothing) {
  Grow();
  Grow();
  const auto runs = pieces_.Take(2);
  pieces_.SetLeaves(PieceId{0}, true);
  EXPECT_TRUE(pieces_.AnyLeaves());
  EXPECT_EQ(pieces_.staying(), 1u);
  EXPECT_EQ(pieces_.FreeGranules(), kGranules);
  EXPECT_EQ(pieces_.Take(1)[0].piece, PieceId{1});
  EXPECT_FALSE(pieces_.FindEmpty(true));
  pieces_.Free(runs);
  EXPECT_EQ(pieces_.FindEmpty(true), PieceId{0});
  EXPECT_FALSE(pieces_.FindEmpty(false));
  pieces_.SetLeaves(PieceId{0}, false);
  EXPECT_EQ(pieces_.FindEmpty(false), PieceId{0});
}

TEST_F(ClusterPiecesTest, APieceMayLeaveOrBeLostBeforeItsGrowthIsReported) {
  const PieceId leaves = pieces_.StartGrowth();
  const PieceId lost = pieces_.StartGrowth();
  pieces_.SetLeaves(leaves, true);
  pieces_.Remove(lost);
  pieces_.FinishGrowth(leaves, true);
  pieces_.FinishGrowth(lost, true);
  EXPECT_EQ(pieces_.FindEmpty(true), leaves);
  EXPECT_EQ(pieces_.all(), 1u);
  EXPECT_EQ(pieces_.FreeGranules(), 0u);
}

TEST_F(ClusterPiecesTest, RunsOfALostPieceMayBeFreed) {
  Grow();
  Grow();
  const auto runs = pieces_.Take(kGranules + 1);
  pieces_.Remove(PieceId{0});
  pieces_.Free(runs);
  EXPECT_EQ(pieces_.FreeGranules(), kGranules);
  EXPECT_EQ(pieces_.all(), 1u);
}

}  // namespace
}  // namespace ravenstore::sim
