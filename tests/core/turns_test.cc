#include "core/turns.h"

#include <gtest/gtest.h>

#include <vector>

namespace ravenstore::core {
namespace {

constexpr ClientId kSecond{2};
constexpr ClientId kFifth{5};
constexpr ClientId kNinth{9};

constexpr Bytes kChunk = MiB(16);

TEST(TurnsTest, ClientsTakeTurnsAndEachKeepsItsOrder) {
  Turns<int> turns(kChunk);
  for (const int item : {50, 51, 52}) turns.Push(kFifth, item);
  turns.Push(kNinth, 90);
  for (const int item : {20, 21}) turns.Push(kSecond, item);
  std::vector<int> served;
  while (!turns.empty()) {
    served.push_back(turns.Front());
    turns.Advance(kChunk, /*done=*/true);
  }
  EXPECT_EQ(served, (std::vector<int>{20, 50, 90, 21, 51, 52}));
}

TEST(TurnsTest, AnItemOfSeveralTurnsStaysFirstOfItsClient) {
  Turns<int> turns(kChunk);
  turns.Push(kSecond, 20);
  turns.Push(kSecond, 21);
  turns.Advance(kChunk, /*done=*/false);
  EXPECT_EQ(turns.Front(), 20);
  turns.Push(kFifth, 50);
  EXPECT_EQ(turns.Front(), 50);
  turns.Advance(kChunk, /*done=*/true);
  EXPECT_EQ(turns.Front(), 20);
  turns.Advance(kChunk, /*done=*/true);
  EXPECT_EQ(turns.Front(), 21);
}

TEST(TurnsTest, ATurnLastsForItsBytes) {
  Turns<int> turns(kChunk + kChunk);
  for (const int item : {20, 21, 22}) turns.Push(kSecond, item);
  turns.Push(kFifth, 50);
  std::vector<int> served;
  while (!turns.empty()) {
    served.push_back(turns.Front());
    turns.Advance(kChunk, /*done=*/true);
  }
  EXPECT_EQ(served, (std::vector<int>{20, 21, 50, 22}));
}

TEST(TurnsTest, WhoHasNoMoreLosesHisTurn) {
  Turns<int> turns(kChunk + kChunk);
  turns.Push(kFifth, 50);
  turns.Advance(kChunk, /*done=*/true);
  turns.Push(kNinth, 90);
  EXPECT_EQ(turns.Front(), 90);
  turns.Advance(kChunk, /*done=*/false);
  turns.Push(kFifth, 51);
  EXPECT_EQ(turns.Front(), 90);
  turns.Advance(kChunk, /*done=*/false);
  EXPECT_EQ(turns.Front(), 51);
}

}  // namespace
}  // namespace ravenstore::core
