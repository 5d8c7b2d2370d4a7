#include "elastic/addresses.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace ravenstore::elastic {
namespace {

using core::Bytes;
using core::MiB;

constexpr CUdeviceptr kBegin = 0x7000000000;

TEST(AddressesTest, APieceIsFoundByEachOfItsAddressesAndByNoOther) {
  Addresses addresses(kBegin, MiB(16), MiB(2));
  const auto one = addresses.Take(MiB(4), 1);
  const auto two = addresses.Take(MiB(2), 2);
  ASSERT_TRUE(one && two);
  EXPECT_EQ(addresses.At(*one), 1u);
  EXPECT_EQ(addresses.At(*one + MiB(4).count() - 1), 1u);
  EXPECT_EQ(addresses.At(*two), 2u);
  EXPECT_EQ(addresses.At(*two + MiB(2).count()), Addresses::kNoOwner);
  EXPECT_EQ(addresses.At(kBegin - 1), Addresses::kNoOwner);
  EXPECT_EQ(addresses.At(addresses.end()), Addresses::kNoOwner);
}

TEST(AddressesTest, NeighboursThatAreGivenBackAreOneAgain) {
  Addresses addresses(kBegin, MiB(12), MiB(2));
  CUdeviceptr pieces[6];
  for (uint32_t i = 0; i < 6; ++i) pieces[i] = *addresses.Take(MiB(2), i + 1);
  EXPECT_FALSE(addresses.Take(MiB(2), 9).has_value());
  for (const int i : {1, 3, 2}) addresses.Give(pieces[i], MiB(2));
  EXPECT_FALSE(addresses.Take(MiB(8), 9).has_value());
  EXPECT_EQ(addresses.Take(MiB(6), 9), pieces[1]);
  EXPECT_EQ(addresses.At(pieces[3]), 9u);
}

TEST(AddressesTest, AtAgreesWithAModelWhateverIsTakenAndGiven) {
  std::mt19937_64 random(7);
  std::printf("seed 7\n");
  Addresses addresses(kBegin, MiB(64), MiB(2));
  std::map<CUdeviceptr, std::pair<Bytes, uint32_t>> model;
  for (uint32_t owner = 1; owner < 2000; ++owner) {
    if (random() % 2 == 0 && !model.empty()) {
      auto piece = std::next(model.begin(), static_cast<ptrdiff_t>(random() % model.size()));
      addresses.Give(piece->first, piece->second.first);
      model.erase(piece);
    } else if (const Bytes size = MiB(2) * (1 + random() % 6);
               const auto begin = addresses.Take(size, owner)) {
      model[*begin] = {size, owner};
    }
    const CUdeviceptr at = kBegin + random() % MiB(64).count();
    uint32_t expected = Addresses::kNoOwner;
    for (const auto& [begin, piece] : model) {
      if (at >= begin && at < begin + piece.first.count()) expected = piece.second;
    }
    ASSERT_EQ(addresses.At(at), expected);
  }
}

}  // namespace
}  // namespace ravenstore::elastic
