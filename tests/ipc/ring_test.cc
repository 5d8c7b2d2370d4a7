#include "ipc/ring.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "ipc/segment.h"
#include "tests/ipc/child.h"

namespace ravenstore::ipc {
namespace {

using proto::kLogLaneEntries;
using proto::kRequestRingEntries;

proto::Request Numbered(uint64_t id) {
  proto::Request request{};
  request.op = static_cast<uint32_t>(proto::RequestOp::kCreate);
  request.slot = static_cast<uint32_t>(id * 3);
  request.id = id;
  request.bytes = id * 5;
  request.deadline_ns = -1;
  request.ticket = id * 7;
  return request;
}

struct RequestPair {
  std::unique_ptr<proto::RequestRing> ring = std::make_unique<proto::RequestRing>();
  RequestProducer producer{ring.get()};
  RequestConsumer consumer{ring.get()};

  Take Pop(proto::Request* request = nullptr) {
    proto::Request unused;
    return consumer.Pop(request ? request : &unused);
  }
};

TEST(RequestRingTest, StartsEmpty) {
  RequestPair pair;
  EXPECT_FALSE(pair.consumer.HasWork());
  EXPECT_EQ(pair.Pop(), Take::kEmpty);
  EXPECT_EQ(pair.producer.Room(), kRequestRingEntries);
}

TEST(RequestRingTest, DeliversWholeEntriesInOrderRoundAndRound) {
  RequestPair pair;
  for (uint64_t id = 0; id < 5 * kRequestRingEntries; ++id) {
    ASSERT_TRUE(pair.producer.Push(Numbered(id)));
    EXPECT_TRUE(pair.consumer.HasWork());
    proto::Request request;
    ASSERT_EQ(pair.Pop(&request), Take::kEntry);
    EXPECT_EQ(request.id, id);
    EXPECT_EQ(request.sequence, id);
    EXPECT_EQ(request.slot, id * 3);
    EXPECT_EQ(request.bytes, id * 5);
    EXPECT_EQ(request.ticket, id * 7);
    EXPECT_EQ(request.deadline_ns, -1);
  }
  EXPECT_EQ(pair.Pop(), Take::kEmpty);
}

TEST(RequestRingTest, RefusesWhenFullAndTakesAgainAfterAPop) {
  RequestPair pair;
  for (uint64_t id = 0; id < kRequestRingEntries; ++id) {
    ASSERT_TRUE(pair.producer.Push(Numbered(id)));
  }
  EXPECT_FALSE(pair.producer.Push(Numbered(0)));
  ASSERT_EQ(pair.Pop(), Take::kEntry);
  EXPECT_TRUE(pair.producer.Push(Numbered(0)));
  EXPECT_FALSE(pair.producer.Push(Numbered(0)));
}

TEST(RequestRingTest, TakesOfABatchWhatFits) {
  RequestPair pair;
  std::vector<proto::Request> batch;
  for (uint64_t id = 0; id < kRequestRingEntries; ++id) batch.push_back(Numbered(id));
  EXPECT_EQ(pair.producer.PushBatch(std::span(batch).first(1000)), 1000u);
  EXPECT_EQ(pair.producer.PushBatch(batch), kRequestRingEntries - 1000);
  EXPECT_EQ(pair.producer.PushBatch(batch), 0u);
  EXPECT_EQ(pair.producer.PushBatch({}), 0u);
  for (uint64_t i = 0; i < kRequestRingEntries; ++i) {
    proto::Request request;
    ASSERT_EQ(pair.Pop(&request), Take::kEntry);
    EXPECT_EQ(request.id, i < 1000 ? i : i - 1000);
  }
  EXPECT_EQ(pair.Pop(), Take::kEmpty);
}

TEST(RequestRingTest, AHeadThatCannotBeTrueIsCorruptForGood) {
  for (const uint64_t head :
       {uint64_t{kRequestRingEntries + 2}, uint64_t{1} << 32, ~uint64_t{0}, uint64_t{0}}) {
    RequestPair pair;
    ASSERT_TRUE(pair.producer.Push(Numbered(1)));
    ASSERT_EQ(pair.Pop(), Take::kEntry);
    pair.ring->head.store(head);
    EXPECT_TRUE(pair.consumer.HasWork());
    EXPECT_EQ(pair.Pop(), Take::kCorrupt) << head;
    pair.ring->head.store(1);
    EXPECT_TRUE(pair.consumer.HasWork());
    EXPECT_EQ(pair.Pop(), Take::kCorrupt) << head;
  }
}

TEST(RequestRingTest, AReplayedEntryIsCorrupt) {
  RequestPair pair;
  for (uint64_t id = 0; id < kRequestRingEntries; ++id) {
    ASSERT_TRUE(pair.producer.Push(Numbered(id)));
    ASSERT_EQ(pair.Pop(), Take::kEntry);
  }
  // A full round later the entries still lie there: only the head moves.
  pair.ring->head.store(kRequestRingEntries + 1);
  EXPECT_EQ(pair.Pop(), Take::kCorrupt);
}

TEST(RequestRingTest, ReservedFieldsMustBeZero) {
  proto::Request request = Numbered(1);
  request.reserved = uint64_t{1} << 63;
  RequestPair pair;
  ASSERT_TRUE(pair.producer.Push(request));
  EXPECT_EQ(pair.Pop(), Take::kCorrupt);
}

TEST(RequestRingTest, TheConsumerNeverBelievesTheSharedTail) {
  RequestPair pair;
  ASSERT_TRUE(pair.producer.Push(Numbered(1)));
  ASSERT_TRUE(pair.producer.Push(Numbered(2)));
  pair.ring->tail.store(2);
  proto::Request request;
  ASSERT_EQ(pair.Pop(&request), Take::kEntry);
  EXPECT_EQ(request.id, 1u);
  EXPECT_EQ(pair.ring->tail.load(), 1u);
}

TEST(RequestRingTest, AnImpossibleTailLooksFullToTheProducer) {
  RequestPair pair;
  for (uint64_t id = 0; id < kRequestRingEntries; ++id) {
    ASSERT_TRUE(pair.producer.Push(Numbered(id)));
  }
  for (const uint64_t tail : {uint64_t{kRequestRingEntries + 1}, ~uint64_t{0}}) {
    pair.ring->tail.store(tail);
    EXPECT_FALSE(pair.producer.Push(Numbered(0))) << tail;
  }
  pair.ring->tail.store(0);
  EXPECT_EQ(pair.Pop(), Take::kEntry);
  EXPECT_TRUE(pair.producer.Push(Numbered(0)));
}

TEST(RequestRingTest, ThreadsPassEveryEntryOnce) {
  RequestPair pair;
  constexpr uint64_t kCount = 100'000;
  std::thread producer([&] {
    for (uint64_t id = 0; id < kCount;) id += pair.producer.Push(Numbered(id));
  });
  for (uint64_t id = 0; id < kCount;) {
    proto::Request request;
    const Take take = pair.Pop(&request);
    ASSERT_NE(take, Take::kCorrupt);
    if (take == Take::kEmpty) {
      std::this_thread::yield();
      continue;
    }
    ASSERT_EQ(request.id, id);
    ASSERT_EQ(request.ticket, id * 7);
    ++id;
  }
  producer.join();
}

TEST(RequestRingTest, ProcessesPassEveryEntryOnceInBatches) {
  auto segment = ControlSegment::Create(1);
  ASSERT_TRUE(segment.ok());
  constexpr uint64_t kCount = 100'000;
  Child client([&] {
    auto mine = ControlSegment::Map(UniqueFd(dup(segment->fd())));
    if (!mine.ok()) return 1;
    RequestProducer producer(&(*mine)->requests);
    for (uint64_t id = 0; id < kCount;) {
      proto::Request batch[64];
      const size_t size = std::min<uint64_t>(64, kCount - id);
      for (size_t i = 0; i < size; ++i) batch[i] = Numbered(id + i);
      const size_t taken = producer.PushBatch(std::span(batch, size));
      if (taken == 0) std::this_thread::yield();
      id += taken;
    }
    return 0;
  });
  RequestConsumer consumer(&(*segment)->requests);
  for (uint64_t id = 0; id < kCount;) {
    proto::Request request;
    const Take take = consumer.Pop(&request);
    ASSERT_NE(take, Take::kCorrupt);
    if (take == Take::kEmpty) {
      std::this_thread::yield();
      continue;
    }
    ASSERT_EQ(request.id, id);
    ++id;
  }
  EXPECT_EQ(client.Wait(), 0);
}

struct LogPair {
  std::unique_ptr<proto::LogLane> lane = std::make_unique<proto::LogLane>();
  LogProducer producer{lane.get()};
  LogConsumer consumer{lane.get()};

  Take Pop(proto::Access* access = nullptr) {
    proto::Access unused;
    return consumer.Pop(access ? access : &unused);
  }
};

constexpr proto::Access kSomePut{17, proto::AccessOp::kPut};

TEST(LogTest, DeliversInOrderRoundAndRound) {
  LogPair pair;
  for (uint32_t i = 0; i < 5 * kLogLaneEntries; ++i) {
    const auto op = i % 3 == 0 ? proto::AccessOp::kGet : proto::AccessOp::kPut;
    pair.producer.Append({i, op});
    EXPECT_TRUE(pair.consumer.HasWork());
    proto::Access access;
    ASSERT_EQ(pair.Pop(&access), Take::kEntry);
    EXPECT_EQ(access.slot, i);
    EXPECT_EQ(access.op, op);
  }
  EXPECT_FALSE(pair.consumer.HasWork());
  EXPECT_EQ(pair.Pop(), Take::kEmpty);
  EXPECT_EQ(pair.consumer.dropped(), 0u);
}

TEST(LogTest, DropsAndCountsWhenFullAndGoesOnLater) {
  LogPair pair;
  for (uint32_t i = 0; i < kLogLaneEntries + 10; ++i) {
    pair.producer.Append({i, proto::AccessOp::kPut});
  }
  EXPECT_EQ(pair.consumer.dropped(), 10u);
  ASSERT_EQ(pair.Pop(), Take::kEntry);
  pair.producer.Append(kSomePut);
  EXPECT_EQ(pair.consumer.dropped(), 10u);
  proto::Access access;
  for (uint32_t i = 1; i < kLogLaneEntries; ++i) {
    ASSERT_EQ(pair.Pop(&access), Take::kEntry);
    EXPECT_EQ(access.slot, i);
  }
  ASSERT_EQ(pair.Pop(&access), Take::kEntry);
  EXPECT_EQ(access.slot, kSomePut.slot);
}

TEST(LogTest, AHeadThatCannotBeTrueIsCorruptForGood) {
  for (const uint64_t head : {uint64_t{kLogLaneEntries + 2}, ~uint64_t{0}, uint64_t{0}}) {
    LogPair pair;
    pair.producer.Append(kSomePut);
    ASSERT_EQ(pair.Pop(), Take::kEntry);
    pair.lane->head.store(head);
    EXPECT_EQ(pair.Pop(), Take::kCorrupt) << head;
    pair.lane->head.store(2);
    EXPECT_EQ(pair.Pop(), Take::kCorrupt) << head;
    EXPECT_TRUE(pair.consumer.HasWork());
  }
}

TEST(LogTest, AnEntryThatMeansNothingIsCorrupt) {
  for (const uint64_t entry : {uint64_t{0}, uint64_t{3}, uint64_t{1} << 9 | 1,
                               uint64_t{proto::kSlotCapacity} << 32 | 1, ~uint64_t{0}}) {
    LogPair pair;
    pair.lane->entries[0].store(entry);
    pair.lane->head.store(1);
    EXPECT_EQ(pair.Pop(), Take::kCorrupt) << entry;
  }
}

TEST(LogTest, AnImpossibleTailDropsAtTheProducer) {
  LogPair pair;
  for (uint32_t i = 0; i < kLogLaneEntries; ++i) pair.producer.Append(kSomePut);
  pair.lane->tail.store(~uint64_t{0});
  pair.producer.Append(kSomePut);
  EXPECT_EQ(pair.consumer.dropped(), 1u);
  EXPECT_EQ(pair.lane->head.load(), kLogLaneEntries);
}

TEST(LogTest, ThreadsPassOrDropEveryEntry) {
  LogPair pair;
  constexpr uint32_t kCount = 200'000;
  std::atomic<bool> done{false};
  std::thread producer([&] {
    for (uint32_t i = 0; i < kCount; ++i) pair.producer.Append({i, proto::AccessOp::kGet});
    done.store(true);
  });
  uint64_t taken = 0;
  uint32_t last = 0;
  for (;;) {
    const bool finished = done.load();
    proto::Access access;
    const Take take = pair.Pop(&access);
    ASSERT_NE(take, Take::kCorrupt);
    if (take == Take::kEmpty) {
      if (finished) break;
      std::this_thread::yield();
      continue;
    }
    ASSERT_TRUE(taken == 0 || access.slot > last);
    last = access.slot;
    ++taken;
  }
  producer.join();
  EXPECT_EQ(taken + pair.consumer.dropped(), kCount);
}

class MapRingTest : public testing::Test {
 protected:
  static proto::MapInstruction Numbered(uint32_t number) {
    proto::MapInstruction instruction{};
    instruction.memory = number;
    instruction.offset = ~uint64_t{number};
    return instruction;
  }

  const std::unique_ptr<proto::MapRing> ring_ = std::make_unique<proto::MapRing>();
  MapProducer producer_{ring_.get()};
  MapConsumer consumer_{ring_.get()};
  proto::MapInstruction taken_{};
  uint32_t result_ = 0;
};

TEST_F(MapRingTest, EntriesGoAndResultsComeBackInOrderRoundAndRound) {
  EXPECT_EQ(consumer_.Next(&taken_), Take::kEmpty);
  EXPECT_EQ(producer_.NextResult(&result_), Take::kEmpty);
  for (uint32_t i = 0; i < 3 * proto::kMapRingEntries; ++i) {
    producer_.Push(Numbered(i));
    EXPECT_FALSE(producer_.HasWork());
    ASSERT_EQ(consumer_.Next(&taken_), Take::kEntry);
    ASSERT_EQ(consumer_.Next(&taken_), Take::kEntry) << "it stays until it is acknowledged";
    EXPECT_EQ(taken_.memory, i);
    EXPECT_EQ(taken_.offset, ~uint64_t{i});
    consumer_.Acknowledge(i + 7);
    EXPECT_TRUE(producer_.HasWork());
    ASSERT_EQ(producer_.NextResult(&result_), Take::kEntry);
    EXPECT_EQ(result_, i + 7);
  }
}

TEST_F(MapRingTest, ThereIsRoomOnceResultsAreRead) {
  for (uint32_t i = 0; i < proto::kMapRingEntries; ++i) producer_.Push(Numbered(i));
  EXPECT_EQ(producer_.Room(), 0u);
  ASSERT_EQ(consumer_.Next(&taken_), Take::kEntry);
  consumer_.Acknowledge(0);
  EXPECT_EQ(producer_.Room(), 0u);
  ASSERT_EQ(producer_.NextResult(&result_), Take::kEntry);
  EXPECT_EQ(producer_.Room(), 1u);
}

TEST_F(MapRingTest, AcknowledgementsThatCannotBeTrueAreCorruptForGood) {
  for (const uint64_t claimed : {uint64_t{3}, ~uint64_t{0}, uint64_t{1} << 32}) {
    const auto ring = std::make_unique<proto::MapRing>();
    MapProducer producer(ring.get());
    producer.Push({});
    producer.Push({});
    ring->acknowledged.store(1);
    ASSERT_EQ(producer.NextResult(&result_), Take::kEntry);
    ring->acknowledged.store(claimed);
    EXPECT_EQ(producer.NextResult(&result_), Take::kCorrupt) << claimed;
    ring->acknowledged.store(2);
    EXPECT_EQ(producer.NextResult(&result_), Take::kCorrupt) << claimed;
    EXPECT_TRUE(producer.HasWork());
  }
}

TEST_F(MapRingTest, AHeadOrAnEntryThatCannotBeTrueIsCorrupt) {
  producer_.Push({});
  ring_->entries[0].sequence = 1;
  EXPECT_EQ(consumer_.Next(&taken_), Take::kCorrupt);
  ring_->head.store(proto::kMapRingEntries + 1);
  EXPECT_EQ(MapConsumer(ring_.get()).Next(&taken_), Take::kCorrupt);
}

TEST_F(MapRingTest, ASleepEndsWithAWakeOfEitherSide) {
  const uint64_t seen = consumer_.wake();
  producer_.Wake();
  consumer_.Sleep(seen);  // returns
  std::thread sleeper([this, from = consumer_.wake()] { consumer_.Sleep(from); });
  consumer_.Wake();
  sleeper.join();
}

TEST_F(MapRingTest, ThreadsPassEveryEntryOnce) {
  constexpr uint32_t kEntries = 100'000;
  std::thread client([this] {
    for (uint32_t i = 0; i < kEntries;) {
      proto::MapInstruction next;
      if (consumer_.Next(&next) != Take::kEntry) continue;
      ASSERT_EQ(next.memory, i);
      consumer_.Acknowledge(++i);
    }
  });
  uint32_t results = 0;
  for (uint32_t pushed = 0; results < kEntries;) {
    while (pushed < kEntries && producer_.Room() > 0) producer_.Push(Numbered(pushed++));
    while (producer_.NextResult(&result_) == Take::kEntry) ASSERT_EQ(result_, ++results);
  }
  client.join();
}

}  // namespace
}  // namespace ravenstore::ipc
