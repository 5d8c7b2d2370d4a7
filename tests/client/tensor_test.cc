#include "client/tensor.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

namespace ravenstore::client {
namespace {

TEST(TensorTest, HandleIsLiveUntilTheSerialIsRaised) {
  TensorTable table(nullptr);
  TensorRecord& tensor = table.At(7);
  const uint64_t handle = MakeHandle(tensor);
  EXPECT_EQ(RecordOf(handle), &tensor);
  EXPECT_EQ(LiveRecordOf(handle), &tensor);
  tensor.serial.fetch_add(1);
  EXPECT_EQ(LiveRecordOf(handle), nullptr);
  EXPECT_EQ(RecordOf(handle), &tensor) << "the record can still be described";
  EXPECT_NE(MakeHandle(tensor), handle);
  EXPECT_EQ(LiveRecordOf(MakeHandle(tensor)), &tensor);
}

TEST(TensorTest, RowsKeepTheirRecords) {
  TensorTable table(nullptr);
  for (const uint32_t slot : {0u, 1u, 1023u, 1024u, proto::kSlotCapacity - 1}) {
    TensorRecord& tensor = table.At(slot);
    EXPECT_EQ(tensor.slot, slot);
    EXPECT_EQ(&table.At(slot), &tensor);
  }
}

TEST(TensorTest, ThreadsThatGrowTheTableConcurrentlyAgree) {
  TensorTable table(nullptr);
  std::vector<TensorRecord*> seen(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < seen.size(); ++i) {
    threads.emplace_back([&, i] { seen[i] = &table.At(5000); });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(std::set<TensorRecord*>(seen.begin(), seen.end()).size(), 1u);
}

TEST(TensorTest, DescriptionNamesWhatAPersonKnows) {
  const std::string name = "layer3.mlp";
  // Static, as the table's rows are never on a stack: GCC 12's AddressSanitizer aligns what is
  // there to 32.
  static TensorRecord tensor;
  tensor.id = 17;
  tensor.bytes = 4096;
  EXPECT_EQ(Describe(tensor), "tensor 17 (4096 bytes)");
  tensor.name = &name;
  EXPECT_EQ(Describe(tensor), "tensor 17 \"layer3.mlp\" (4096 bytes)");
}

}  // namespace
}  // namespace ravenstore::client
