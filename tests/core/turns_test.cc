#include "core/turns.h"

#include <gtest/gtest.h>

#include <vector>

namespace ravenstore::core {
namespace {

constexpr ClientId kSecond{2};
constexpr ClientId kFifth{5};
constexpr ClientId kNinth{9};

TEST(TurnsTest, ClientsTakeTurnsAndEachKeepsItsOrder) {
  Turns<int> turns;
  for (const int item : {50, 51, 52}) turns.Push(kFifth, item);
  turns.Push(kNinth, 90);
  for (const int item : {20, 21}) turns.Push(kSecond, item);
  std::vector<int> served;
  while (!turns.empty()) {
    served.push_back(turns.Front());
    turns.Advance(/*done=*/true);
  }
  EXPECT_EQ(served, (std::vector<int>{20, 50, 90, 21, 51, 52}));
}

TEST(TurnsTest, AnItemOfSeveralTurnsStaysFirstOfItsClient) {
  Turns<int> turns;
  turns.Push(kSecond, 20);
  turns.Push(kSecond, 21);
  turns.Advance(/*done=*/false);
  EXPECT_EQ(turns.Front(), 20);
  turns.Push(kFifth, 50);
  EXPECT_EQ(turns.Front(), 50);
  turns.Advance(/*done=*/true);
  EXPECT_EQ(turns.Front(), 20);
  turns.Advance(/*done=*/true);
  EXPECT_EQ(turns.Front(), 21);
}

}  // namespace
}  // namespace ravenstore::core
