#include "core/turns.h"

#include <gtest/gtest.h>

#include <vector>

namespace ravenstore::core {
namespace {

// Of users who have one client each.
constexpr TurnOwner kSecond{TenantId{2}, ClientId{2}};
constexpr TurnOwner kFifth{TenantId{5}, ClientId{5}};
constexpr TurnOwner kNinth{TenantId{9}, ClientId{9}};

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

TEST(TurnsTest, AUserOfManyClientsHasOneTurnToAnothers) {
  Turns<int> turns(kChunk);
  for (uint32_t client = 1; client <= 400; ++client)
    turns.Push({TenantId{1000}, ClientId{client}}, static_cast<int>(client));
  for (const int item : {-1, -2, -3}) turns.Push({TenantId{1001}, ClientId{7}}, item);
  std::vector<int> served;
  for (int i = 0; i < 7; ++i) {
    served.push_back(turns.Front());
    turns.Advance(kChunk, /*done=*/true);
  }
  EXPECT_EQ(served, (std::vector<int>{1, -1, 2, -2, 3, -3, 4}));
}

TEST(TurnsTest, WithinATurnAUsersClientsFollowEachOther) {
  Turns<int> turns(kChunk + kChunk);
  for (uint32_t client = 1; client <= 4; ++client)
    turns.Push({TenantId{1000}, ClientId{client}}, static_cast<int>(client));
  turns.Push({TenantId{1001}, ClientId{7}}, -1);
  std::vector<int> served;
  while (!turns.empty()) {
    served.push_back(turns.Front());
    turns.Advance(kChunk, /*done=*/true);
  }
  EXPECT_EQ(served, (std::vector<int>{1, 2, -1, 3, 4}));
}

// As clients took turns before there were users.
TEST(TurnsTest, ClientsOfOneUserTakeTurnsOfTheSameLength) {
  Turns<int> turns(kChunk + kChunk);
  const auto mine = [](uint32_t client) { return TurnOwner{TenantId{1}, ClientId{client}}; };
  for (const int item : {20, 21, 22}) turns.Push(mine(2), item);
  for (const int item : {50, 51}) turns.Push(mine(5), item);
  std::vector<int> served;
  while (!turns.empty()) {
    served.push_back(turns.Front());
    turns.Advance(kChunk, /*done=*/true);
  }
  EXPECT_EQ(served, (std::vector<int>{20, 21, 50, 51, 22}));
}

TEST(TurnsTest, WhatIsErasedIsNotServed) {
  Turns<int> turns(kChunk);
  for (const int item : {20, 21}) turns.Push(kSecond, item);
  turns.Push(kFifth, 50);
  EXPECT_TRUE(turns.Erase(kSecond, 20));
  EXPECT_FALSE(turns.Erase(kSecond, 20));
  EXPECT_FALSE(turns.Erase(kNinth, 20));
  EXPECT_TRUE(turns.Erase(kFifth, 50));
  EXPECT_EQ(turns.Front(), 21);
  turns.Advance(kChunk, /*done=*/true);
  EXPECT_TRUE(turns.empty());
}

}  // namespace
}  // namespace ravenstore::core
