#include "core/round_robin_queue.h"

#include <gtest/gtest.h>

#include <vector>

namespace ravenstore::core {
namespace {

// Of users who have one client each.
constexpr TurnOwner kSecond{TenantId{2}, ClientId{2}};
constexpr TurnOwner kFifth{TenantId{5}, ClientId{5}};
constexpr TurnOwner kNinth{TenantId{9}, ClientId{9}};

constexpr Bytes kChunk = MiB(16);

TEST(RoundRobinQueueTest, ClientsTakeTurnsAndEachKeepsItsOrder) {
  RoundRobinQueue<int> queue(kChunk);
  for (const int item : {50, 51, 52}) queue.Push(kFifth, item);
  queue.Push(kNinth, 90);
  for (const int item : {20, 21}) queue.Push(kSecond, item);
  std::vector<int> served;
  while (!queue.empty()) {
    served.push_back(queue.Front());
    queue.Advance(kChunk, /*done=*/true);
  }
  EXPECT_EQ(served, (std::vector<int>{20, 50, 90, 21, 51, 52}));
}

TEST(RoundRobinQueueTest, AnItemOfSeveralTurnsStaysFirstOfItsClient) {
  RoundRobinQueue<int> queue(kChunk);
  queue.Push(kSecond, 20);
  queue.Push(kSecond, 21);
  queue.Advance(kChunk, /*done=*/false);
  EXPECT_EQ(queue.Front(), 20);
  queue.Push(kFifth, 50);
  EXPECT_EQ(queue.Front(), 50);
  queue.Advance(kChunk, /*done=*/true);
  EXPECT_EQ(queue.Front(), 20);
  queue.Advance(kChunk, /*done=*/true);
  EXPECT_EQ(queue.Front(), 21);
}

TEST(RoundRobinQueueTest, ATurnLastsForItsBytes) {
  RoundRobinQueue<int> queue(kChunk + kChunk);
  for (const int item : {20, 21, 22}) queue.Push(kSecond, item);
  queue.Push(kFifth, 50);
  std::vector<int> served;
  while (!queue.empty()) {
    served.push_back(queue.Front());
    queue.Advance(kChunk, /*done=*/true);
  }
  EXPECT_EQ(served, (std::vector<int>{20, 21, 50, 22}));
}

TEST(RoundRobinQueueTest, AUserWithNothingMoreLosesItsTurn) {
  RoundRobinQueue<int> queue(kChunk + kChunk);
  queue.Push(kFifth, 50);
  queue.Advance(kChunk, /*done=*/true);
  queue.Push(kNinth, 90);
  EXPECT_EQ(queue.Front(), 90);
  queue.Advance(kChunk, /*done=*/false);
  queue.Push(kFifth, 51);
  EXPECT_EQ(queue.Front(), 90);
  queue.Advance(kChunk, /*done=*/false);
  EXPECT_EQ(queue.Front(), 51);
}

TEST(RoundRobinQueueTest, AUserOfManyClientsHasOneTurnToAnothers) {
  RoundRobinQueue<int> queue(kChunk);
  for (uint32_t client = 1; client <= 400; ++client)
    queue.Push({TenantId{1000}, ClientId{client}}, static_cast<int>(client));
  for (const int item : {-1, -2, -3}) queue.Push({TenantId{1001}, ClientId{7}}, item);
  std::vector<int> served;
  for (int i = 0; i < 7; ++i) {
    served.push_back(queue.Front());
    queue.Advance(kChunk, /*done=*/true);
  }
  EXPECT_EQ(served, (std::vector<int>{1, -1, 2, -2, 3, -3, 4}));
}

TEST(RoundRobinQueueTest, WithinATurnAUsersClientsFollowEachOther) {
  RoundRobinQueue<int> queue(kChunk + kChunk);
  for (uint32_t client = 1; client <= 4; ++client)
    queue.Push({TenantId{1000}, ClientId{client}}, static_cast<int>(client));
  queue.Push({TenantId{1001}, ClientId{7}}, -1);
  std::vector<int> served;
  while (!queue.empty()) {
    served.push_back(queue.Front());
    queue.Advance(kChunk, /*done=*/true);
  }
  EXPECT_EQ(served, (std::vector<int>{1, 2, -1, 3, 4}));
}

// As clients took turns before there were users.
TEST(RoundRobinQueueTest, ClientsOfOneUserTakeTurnsOfTheSameLength) {
  RoundRobinQueue<int> queue(kChunk + kChunk);
  const auto mine = [](uint32_t client) { return TurnOwner{TenantId{1}, ClientId{client}}; };
  for (const int item : {20, 21, 22}) queue.Push(mine(2), item);
  for (const int item : {50, 51}) queue.Push(mine(5), item);
  std::vector<int> served;
  while (!queue.empty()) {
    served.push_back(queue.Front());
    queue.Advance(kChunk, /*done=*/true);
  }
  EXPECT_EQ(served, (std::vector<int>{20, 21, 50, 51, 22}));
}

TEST(RoundRobinQueueTest, WhatIsErasedIsNotServed) {
  RoundRobinQueue<int> queue(kChunk);
  for (const int item : {20, 21}) queue.Push(kSecond, item);
  queue.Push(kFifth, 50);
  EXPECT_TRUE(queue.Erase(kSecond, 20));
  EXPECT_FALSE(queue.Erase(kSecond, 20));
  EXPECT_FALSE(queue.Erase(kNinth, 20));
  EXPECT_TRUE(queue.Erase(kFifth, 50));
  EXPECT_EQ(queue.Front(), 21);
  queue.Advance(kChunk, /*done=*/true);
  EXPECT_TRUE(queue.empty());
}

}  // namespace
}  // namespace ravenstore::core
