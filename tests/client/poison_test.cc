#include "client/poison.h"

#include <cstdlib>
#include <random>

#include "tests/client/store_test.h"

namespace ravenstore {
namespace {

using testing::HasSubstr;

constexpr uint64_t kBytes = 4096;

// The variable must be set before the store connects.
class Poisoned {
 protected:
  Poisoned() { setenv("RAVENSTORE_DEBUG", "trace,poison", 1); }
};

class PoisonTest : private Poisoned, public StoreTest {
 protected:
  PoisonTest() { unsetenv("RAVENSTORE_DEBUG"); }
};

TEST_F(PoisonTest, BytesComeBackWithTheGet) {
  Tensor tensor = Idle(kBytes, 0x42);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(Holds(store_.get(tensor, nullptr), 0x42, kBytes));
    store_.put(tensor, nullptr);
  }
  ASSERT_TRUE(daemon_.Evict(tensor.id()));
  EXPECT_TRUE(Holds(store_.get(tensor, nullptr), 0x42, kBytes));
}

TEST_F(PoisonTest, ReadAfterPutSeesPoison) {
  Tensor tensor = store_.create(kBytes);
  void* const stale = tensor.data();
  Fill(stale, 1, kBytes);
  store_.put(tensor, nullptr);
  EXPECT_TRUE(Holds(stale, client::kPoisonByte, kBytes));
}

TEST_F(PoisonTest, EveryWriteAfterPutIsFoundByTheNextGet) {
  constexpr uint32_t kSeed = 20240607;
  RecordProperty("seed", static_cast<int>(kSeed));
  std::mt19937 random(kSeed);
  int found = 0;
  constexpr int kPlanted = 300;
  for (int i = 0; i < kPlanted; ++i) {
    const uint64_t bytes = 1 + random() % 10000;
    Tensor tensor = store_.create(bytes, {.name = "victim"});
    auto* const stale = static_cast<unsigned char*>(tensor.data());
    Fill(stale, i, bytes);
    store_.put(tensor, nullptr);
    const uint64_t at = random() % bytes;
    stale[at] ^= static_cast<unsigned char>(1 + random() % 255);
    const bool moves = random() % 2 == 0;
    if (moves) {
      ASSERT_TRUE(daemon_.Evict(tensor.id()));
    }
    std::string words;
    if (CodeOf([&] { store_.get(tensor, nullptr); }, &words) == RAVENSTORE_CORRUPT) ++found;
    EXPECT_THAT(words, HasSubstr("\"victim\""));
    EXPECT_THAT(words, HasSubstr("written after put, at byte " + std::to_string(at)));
    // Said once; then the bytes are as they were put.
    EXPECT_TRUE(Holds(store_.get(tensor, nullptr), i & 0xff, bytes));
  }
  EXPECT_EQ(found, kPlanted);
}

TEST_F(PoisonTest, WriteAfterPutIsFoundByTheFree) {
  Tensor tensor = store_.create(kBytes);
  auto* const stale = static_cast<unsigned char*>(tensor.data());
  store_.put(tensor, nullptr);
  stale[17] = 0;
  std::string words;
  EXPECT_EQ(CodeOf([&] { store_.free(std::move(tensor), nullptr); }, &words), RAVENSTORE_CORRUPT);
  EXPECT_THAT(words, HasSubstr("at byte 17"));
  EXPECT_TRUE(Eventually([&] { return daemon_.tensors() == 0; })) << "it is freed all the same";
}

TEST_F(PoisonTest, WriteOfAStreamAfterPutIsFound) {
  TestStream stream;
  Tensor tensor = store_.create(kBytes);
  void* const stale = tensor.data();
  store_.put(tensor, stream);
  stream.Run([stale] { Fill(stale, 0, 1); });
  EXPECT_EQ(CodeOf([&] { store_.get(tensor, stream); }), RAVENSTORE_CORRUPT);
}

TEST_F(PoisonTest, OverlappingUsesArePoisonedOnlyAtTheLastPut) {
  Tensor tensor = Idle(kBytes, 3);
  void* const address = store_.get(tensor, nullptr);
  store_.get(tensor, nullptr);
  store_.put(tensor, nullptr);
  EXPECT_TRUE(Holds(address, 3, kBytes));
  store_.put(tensor, nullptr);
  EXPECT_TRUE(Holds(address, client::kPoisonByte, kBytes));
}

TEST_F(PoisonTest, FreedRowForgetsItsBytes) {
  store_.free(Idle(kBytes, 1), nullptr);
  ASSERT_TRUE(Eventually([&] { return daemon_.tensors() == 0; }));
  Tensor next = Idle(kBytes, 9);
  EXPECT_TRUE(Holds(store_.get(next, nullptr), 9, kBytes));
}

TEST_F(PoisonTest, BytesThatWereDiscardedAreNoSign) {
  Tensor tensor = store_.create(kBytes);
  Fill(tensor.data(), 1, kBytes);
  store_.put(tensor, nullptr, {.recompute = std::chrono::milliseconds(1)});
  ASSERT_TRUE(daemon_.Evict(tensor.id()));
  daemon_.DiscardNextFetch();
  Fill(store_.get(tensor, nullptr), 2, kBytes);
  EXPECT_TRUE(tensor.must_recompute());
  store_.put(tensor, nullptr);
  EXPECT_TRUE(Holds(store_.get(tensor, nullptr), 2, kBytes));
}

}  // namespace
}  // namespace ravenstore
