#include "core/request_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <random>

namespace ravenstore::core {
namespace {

constexpr ArenaId kA{ClientId{1}, DeviceId{0}};
constexpr ArenaId kB{ClientId{2}, DeviceId{0}};

constexpr Tick At(int64_t ns) {
  return Tick(Duration(ns));
}

Request CreateIn(const ArenaId& arena, Tick deadline = kNever) {
  Request request;
  static_cast<ArenaId&>(request) = arena;
  request.deadline = deadline;
  return request;
}
Request FetchIn(const ArenaId& arena, TensorId tensor) {
  Request request = CreateIn(arena);
  request.tensor = tensor;
  return request;
}
Request FailingFastIn(const ArenaId& arena) {
  Request request = CreateIn(arena);
  request.fail_fast = true;
  return request;
}

TEST(RequestQueueTest, EachArenaHasItsLineFirstComeFirstServed) {
  RequestQueue queue;
  const uint64_t a = queue.Push(CreateIn(kA)).id;
  const uint64_t b = queue.Push(CreateIn(kB)).id;
  const uint64_t later = queue.Push(CreateIn(kA)).id;
  EXPECT_EQ(queue.Waiting(kA), 2u);
  EXPECT_EQ(queue.First(kA).id, a);
  EXPECT_EQ(queue.First(kB).id, b);
  EXPECT_EQ(queue.Pop(a).id, a);
  EXPECT_EQ(queue.First(kA).id, later);
  EXPECT_EQ(queue.Pop(later).client, kA.client);
  EXPECT_EQ(queue.Waiting(kA), 0u);
  EXPECT_EQ(queue.lines().size(), 1u);
}

TEST(RequestQueueTest, TheArenaWhoseFirstRequestCameFirstIsOlder) {
  RequestQueue queue;
  const uint64_t a = queue.Push(CreateIn(kA)).id;
  EXPECT_TRUE(queue.IsOlder(kA, kB));
  queue.Push(CreateIn(kB));
  queue.Push(CreateIn(kA));
  EXPECT_TRUE(queue.IsOlder(kA, kB));
  EXPECT_FALSE(queue.IsOlder(kB, kA));
  EXPECT_FALSE(queue.IsOlder(kA, kA));
  queue.Pop(a);
  EXPECT_TRUE(queue.IsOlder(kB, kA));
}

TEST(RequestQueueTest, FindsTheFetchOfATensor) {
  RequestQueue queue;
  queue.Push(CreateIn(kA));
  const uint64_t fetch = queue.Push(FetchIn(kB, TensorId{7})).id;
  EXPECT_EQ(queue.FetchOf(TensorId{7}).id, fetch);
  queue.Pop(fetch);
  const uint64_t again = queue.Push(FetchIn(kB, TensorId{7})).id;
  EXPECT_EQ(queue.FetchOf(TensorId{7}).id, again);
}

TEST(RequestQueueTest, WhatFailsFastIsFoundBehindWhatWaits) {
  RequestQueue queue;
  queue.Push(CreateIn(kA));
  EXPECT_EQ(queue.FirstFailingFast(kA), nullptr);
  const uint64_t fast = queue.Push(FailingFastIn(kA)).id;
  queue.Push(FailingFastIn(kA));
  EXPECT_EQ(queue.FirstFailingFast(kA)->id, fast);
  EXPECT_EQ(queue.FirstFailingFast(kB), nullptr);
}

TEST(RequestQueueTest, DeadlinesPassInTheirOwnOrder) {
  RequestQueue queue;
  EXPECT_EQ(queue.NextDeadline(), kNever);
  const uint64_t late = queue.Push(CreateIn(kA, At(20))).id;
  const uint64_t soon = queue.Push(CreateIn(kA, At(10))).id;
  EXPECT_EQ(queue.NextDeadline(), At(10));
  EXPECT_EQ(queue.Overdue(At(9)), nullptr);
  EXPECT_EQ(queue.Overdue(At(30))->id, soon);
  queue.Pop(soon);
  EXPECT_EQ(queue.Overdue(At(30))->id, late);
  queue.Pop(late);
  EXPECT_EQ(queue.Overdue(At(30)), nullptr);
}

TEST(RequestQueueTest, AnAbandonedLineIsTakenOutAFewAtATime) {
  RequestQueue queue;
  const uint64_t first = queue.Push(CreateIn(kA)).id;
  const uint64_t overdue = queue.Push(CreateIn(kA, At(10))).id;
  const uint64_t last = queue.Push(CreateIn(kA)).id;
  queue.Abandon(kB);  // it has none
  EXPECT_FALSE(queue.HasAbandoned());
  queue.Abandon(kA);
  EXPECT_EQ(queue.Waiting(kA), 0u);
  EXPECT_EQ(queue.Overdue(At(10))->id, overdue);  // its deadline comes all the same
  queue.Pop(overdue);
  queue.CheckInvariants();
  const auto some = queue.PopAbandoned(1);
  ASSERT_EQ(some.size(), 1u);
  EXPECT_EQ(some[0].id, first);
  EXPECT_TRUE(queue.HasAbandoned());
  const auto rest = queue.PopAbandoned(10);
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].id, last);
  EXPECT_FALSE(queue.HasAbandoned());
  EXPECT_TRUE(queue.all().empty());
}

TEST(RequestQueueDeathTest, ATensorIsFetchedOnceAtATime) {
  RequestQueue queue;
  queue.Push(FetchIn(kA, TensorId{7}));
  EXPECT_DEATH(queue.Push(FetchIn(kB, TensorId{7})), "");
}

TEST(RequestQueueTest, StaysConsistentWhateverComesAndGoes) {
  std::mt19937 random(1);
  RequestQueue queue;
  std::map<uint64_t, Request> model;
  for (int step = 0; step < 5000; ++step) {
    const ArenaId arena{ClientId{static_cast<uint32_t>(random() % 4)}, DeviceId{0}};
    switch (random() % 8) {
      case 0: queue.Abandon(arena); break;
      case 1:
        for (const Request& request : queue.PopAbandoned(3)) ASSERT_EQ(model.erase(request.id), 1u);
        break;
      case 2:
      case 3:
      case 4: {
        if (model.empty()) break;
        const auto one = std::next(model.begin(), random() % model.size());
        ASSERT_EQ(queue.Pop(one->first).deadline, one->second.deadline);
        model.erase(one);
        break;
      }
      default: {
        Request request = CreateIn(arena, At(random() % 100));
        request.fail_fast = random() % 4 == 0;
        const Request& pushed = queue.Push(request);
        model.emplace(pushed.id, pushed);
      }
    }
    queue.CheckInvariants();
    ASSERT_EQ(queue.all().size(), model.size());
    const Tick now = At(random() % 100);
    const Request* overdue = queue.Overdue(now);
    const auto earliest = std::min_element(model.begin(), model.end(), [](auto& a, auto& b) {
      return a.second.deadline < b.second.deadline;
    });
    if (earliest == model.end() || earliest->second.deadline > now) {
      ASSERT_EQ(overdue, nullptr);
    } else {
      ASSERT_EQ(overdue->id, earliest->first);
    }
  }
}

}  // namespace
}  // namespace ravenstore::core
