#include "core/catalog.h"

#include <gtest/gtest.h>

namespace ravenstore::core {
namespace {

TEST(CatalogTest, FindsWhatWasAdded) {
  Catalog catalog;
  const TensorId a = catalog.Add().id;
  const TensorId b = catalog.Add().id;
  EXPECT_NE(a, b);
  EXPECT_EQ(catalog.Find(a)->id, a);
  EXPECT_EQ(catalog.Find(b)->id, b);
  EXPECT_EQ(catalog.count(), 2u);
}

TEST(CatalogTest, KnowsNoTensorByTheNullId) {
  Catalog catalog;
  EXPECT_EQ(catalog.Find(kNoTensor), nullptr);
  const TensorId a = catalog.Add().id;
  catalog.Remove(a);
  EXPECT_EQ(catalog.Find(kNoTensor), nullptr);
  EXPECT_EQ(catalog.Find(TensorId{99}), nullptr);
}

TEST(CatalogTest, AnOldIdDoesNotFindTheRowsNextTensor) {
  Catalog catalog;
  const TensorId old = catalog.Add().id;
  catalog[Catalog::RowOf(old)].writes = 7;
  catalog.Remove(old);
  EXPECT_EQ(catalog.Find(old), nullptr);
  const TensorRow& next = catalog.Add();
  EXPECT_EQ(Catalog::RowOf(next.id), Catalog::RowOf(old));
  EXPECT_NE(next.id, old);
  EXPECT_EQ(next.writes, 0u);
  EXPECT_EQ(catalog.Find(old), nullptr);
  EXPECT_EQ(catalog.rows(), 1u);
}

TEST(CatalogTest, RowsStayWhereTheyAreAsItGrows) {
  Catalog catalog;
  const TensorId first = catalog.Add().id;
  const TensorRow* before = catalog.Find(first);
  for (int i = 0; i < 100000; ++i) catalog.Add();
  EXPECT_EQ(catalog.Find(first), before);
  EXPECT_EQ(catalog.count(), 100001u);
}

TEST(CatalogTest, ATensorIsDirtyUnlessTheHostHoldsItsLastWrite) {
  TensorRow tensor;
  EXPECT_TRUE(tensor.dirty());
  tensor.on_host = true;
  EXPECT_FALSE(tensor.dirty());
  tensor.written = true;
  EXPECT_TRUE(tensor.dirty());
}

}  // namespace
}  // namespace ravenstore::core
