#include "interceptor/ledger.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <thread>
#include <vector>

namespace ravenstore::interceptor {
namespace {

Entry Memory(uint64_t key, uint64_t bytes, uint64_t context = 0) {
  Entry entry;
  entry.key = key;
  entry.bytes = bytes;
  entry.context = context;
  return entry;
}

class LedgerTest : public testing::Test {
 protected:
  void SetUp() override { ledger.Reset(); }
};

TEST_F(LedgerTest, TakesOnceWhatWasAdded) {
  EXPECT_TRUE(ledger.Add(Memory(0x1000, 7)));
  EXPECT_FALSE(ledger.Add(Memory(0x1000, 8)));
  Entry entry;
  ASSERT_TRUE(ledger.Take(Space::kMemory, 0x1000, &entry));
  EXPECT_EQ(entry.bytes, 7);
  EXPECT_FALSE(ledger.Take(Space::kMemory, 0x1000, &entry));
}

TEST_F(LedgerTest, NamesOfDifferentSortsDoNotMeet) {
  EXPECT_TRUE(ledger.Add(Memory(0x1000, 1)));
  Entry handle = Memory(0x1000, 2);
  handle.space = Space::kHandle;
  EXPECT_TRUE(ledger.Add(handle));
  Entry entry;
  ASSERT_TRUE(ledger.Find(Space::kHandle, 0x1000, &entry));
  EXPECT_EQ(entry.bytes, 2);
}

TEST_F(LedgerTest, HasNoNullPointer) {
  Entry entry;
  EXPECT_FALSE(ledger.Add(Memory(0, 1)));
  EXPECT_FALSE(ledger.Find(Space::kMemory, 0, &entry));
  EXPECT_FALSE(ledger.Take(Space::kMemory, 0, &entry));
}

TEST_F(LedgerTest, AgreesWithAMapOverManyRandomCalls) {
  constexpr unsigned kSeed = 17;
  std::mt19937 random(kSeed);
  std::map<uint64_t, uint64_t> model;
  for (int i = 0; i < 200000; ++i) {
    const uint64_t key = (1 + random() % 5000) * 512;
    Entry entry;
    if (random() % 2 == 0) {
      const bool is_new = model.emplace(key, i + 1).second;
      ASSERT_EQ(ledger.Add(Memory(key, static_cast<uint64_t>(i) + 1)), is_new);
    } else {
      const auto known = model.find(key);
      ASSERT_EQ(ledger.Take(Space::kMemory, key, &entry), known != model.end()) << "seed " << kSeed;
      if (known == model.end()) continue;
      ASSERT_EQ(entry.bytes, known->second);
      model.erase(known);
    }
  }
  EXPECT_EQ(ledger.Count(), model.size());
}

TEST_F(LedgerTest, TakesOutAllOfAContextAndNothingElse) {
  for (uint64_t i = 1; i <= 1000; ++i) ledger.Add(Memory(i * 512, i, i % 3));
  uint64_t bytes = 0;
  ledger.TakeContext(
      1, [](const Entry& entry, void* sum) { *static_cast<uint64_t*>(sum) += entry.bytes; },
      &bytes);
  uint64_t expected = 0;
  for (uint64_t i = 1; i <= 1000; i += 3) expected += i;
  EXPECT_EQ(bytes, expected);
  EXPECT_EQ(ledger.Count(), 666);
}

TEST_F(LedgerTest, ThreadsDoNotLoseEntries) {
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 8; ++thread) {
    threads.emplace_back([thread] {
      Entry entry;
      for (uint64_t i = 0; i < 20000; ++i) {
        const uint64_t key = (thread << 40) + (i + 1) * 512;
        ledger.Add(Memory(key, 1));
        if (i % 2 == 0) ledger.Take(Space::kMemory, key, &entry);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(ledger.Count(), 8 * 10000);
}

}  // namespace
}  // namespace ravenstore::interceptor
