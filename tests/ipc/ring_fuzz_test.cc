// Fuzzes the ends of the rings that read the other side's words. A well-behaved producer writes the
// segment, and the other side also scribbles over it. An input is a list of instructions of four
// bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>

#include "ipc/ring.h"
#include "tests/ipc/fuzz.h"

namespace ravenstore::ipc {
namespace {

constexpr size_t kInstructionBytes = 4;
constexpr size_t kInstructionsMax = 48;

struct Instruction {
  uint8_t op;
  uint8_t a;
  uint8_t b;
  uint8_t c;
};

// Now and then one count is enough to fill or empty a whole ring.
int Count(const Instruction& instruction) {
  return instruction.b % 8 == 7 ? instruction.a * 8 : instruction.a % 32;
}

// Positions that are interesting to claim, around `now` and at the edges.
uint64_t Position(uint64_t now, uint32_t capacity, const Instruction& instruction) {
  switch (instruction.b % 8) {
    case 0: return now + instruction.c;
    case 1: return now - instruction.c;
    case 2: return now + capacity + instruction.c % 3 - 1;
    case 3: return now - capacity + instruction.c % 3 - 1;
    case 4: return instruction.c;
    case 5: return ~uint64_t{0} - instruction.c;
    case 6: return now + (uint64_t{1} << 32);
    default: return now ^ uint64_t { 1 } << (instruction.c % 64);
  }
}

// What must hold of a consumer whatever the segment says.
class Verdict {
 public:
  // The consumer said `take` while the segment claimed `head`.
  void See(Take take, uint64_t head, uint32_t capacity) {
    EXPECT_TRUE(!corrupt_ || take == Take::kCorrupt) << "corrupt is for good";
    if (!corrupt_ && head_believed_ == taken_) {
      EXPECT_EQ(head == taken_, take == Take::kEmpty);
      EXPECT_TRUE(head - taken_ <= capacity || take == Take::kCorrupt) << "an impossible head";
      head_believed_ = head;
    }
    corrupt_ |= take == Take::kCorrupt;
    taken_ += take == Take::kEntry;
  }
  uint64_t taken() const { return taken_; }
  bool corrupt() const { return corrupt_; }

 private:
  uint64_t taken_ = 0;
  uint64_t head_believed_ = 0;
  bool corrupt_ = false;
};

proto::Request Numbered(uint32_t number) {
  proto::Request request{};
  request.op = number % 4;
  request.slot = number;
  request.id = ~uint64_t{number};
  return request;
}

// Random bytes somewhere in the ring's positions or entries.
void Scribble(void* memory, size_t size, const Instruction& instruction) {
  const size_t at =
      (size_t{instruction.a} << 16 | size_t{instruction.b} << 8 | instruction.c) % size;
  static_cast<uint8_t*>(memory)[at] ^= static_cast<uint8_t>(instruction.c | 1);
}

class RequestWorld {
 public:
  void Run(const Instruction& instruction) {
    switch (instruction.op % 8) {
      case 0:
      case 1: Push(Count(instruction)); break;
      case 2:
      case 3: Pop(Count(instruction)); break;
      case 4:
        Touch();
        ring_->head.store(Position(verdict_.taken(), proto::kRequestRingEntries, instruction));
        break;
      case 5:
        Touch();
        ring_->tail.store(Position(verdict_.taken(), proto::kRequestRingEntries, instruction));
        break;
      case 6:
        Touch();
        Scribble(ring_.get(), sizeof(*ring_), instruction);
        break;
      default:
        Touch();
        Edit(instruction);
        break;
    }
  }
  void Finish() {
    Pop(proto::kRequestRingEntries);
    EXPECT_TRUE(touched_ || expected_.empty()) << "an entry was lost";
    EXPECT_TRUE(touched_ || !consumer_.HasWork());
  }

 private:
  // From here on the order of entries is the scribbler's.
  void Touch() { touched_ = true; }

  void Push(int count) {
    for (int i = 0; i < count; ++i) {
      const bool pushed = producer_.Push(Numbered(++pushed_));
      if (pushed && !touched_) expected_.push_back(pushed_);
      EXPECT_TRUE(touched_ || pushed || expected_.size() == proto::kRequestRingEntries);
    }
    EXPECT_LE(producer_.Room(), proto::kRequestRingEntries);
  }
  void Pop(int count) {
    for (int i = 0; i < count; ++i) {
      proto::Request request{};
      const bool had_work = consumer_.HasWork();
      const uint64_t before = verdict_.taken();
      const Take take = consumer_.Pop(&request);
      verdict_.See(take, ring_->head.load(), proto::kRequestRingEntries);
      EXPECT_EQ(had_work, take != Take::kEmpty);
      if (take != Take::kEntry) break;
      EXPECT_EQ(request.sequence, static_cast<uint32_t>(before));
      EXPECT_EQ(request.reserved, 0u);
      EXPECT_EQ(ring_->tail.load(), verdict_.taken());
      if (touched_) continue;
      ASSERT_FALSE(expected_.empty());
      EXPECT_EQ(request.slot, expected_.front());
      EXPECT_EQ(request.id, ~uint64_t{expected_.front()});
      expected_.pop_front();
    }
    EXPECT_TRUE(touched_ || !verdict_.corrupt());
  }
  // A forged or replayed entry at the next positions.
  void Edit(const Instruction& instruction) {
    const uint64_t at = verdict_.taken() + instruction.a % 4;
    proto::Request& entry = ring_->entries[at % proto::kRequestRingEntries];
    entry = Numbered(instruction.c);
    entry.sequence = static_cast<uint32_t>(Position(at, proto::kRequestRingEntries, instruction));
  }

  std::unique_ptr<proto::RequestRing> ring_ = std::make_unique<proto::RequestRing>();
  RequestProducer producer_{ring_.get()};
  RequestConsumer consumer_{ring_.get()};
  Verdict verdict_;
  std::deque<uint32_t> expected_;
  uint32_t pushed_ = 0;
  bool touched_ = false;
};

class LogWorld {
 public:
  void Run(const Instruction& instruction) {
    switch (instruction.op % 8) {
      case 0:
      case 1: Append(Count(instruction)); break;
      case 2:
      case 3: Pop(Count(instruction)); break;
      case 4:
        Touch();
        lane_->head.store(Position(verdict_.taken(), proto::kLogLaneEntries, instruction));
        break;
      case 5:
        Touch();
        lane_->tail.store(Position(verdict_.taken(), proto::kLogLaneEntries, instruction));
        break;
      default:
        Touch();
        Scribble(lane_.get(), sizeof(*lane_), instruction);
        break;
    }
  }
  void Finish() {
    Pop(proto::kLogLaneEntries);
    if (!touched_) {
      EXPECT_EQ(verdict_.taken() + consumer_.dropped(), appended_);
    }
  }

 private:
  void Touch() { touched_ = true; }
  void Append(int count) {
    for (int i = 0; i < count; ++i) {
      producer_.Append({static_cast<uint32_t>(appended_++ % proto::kSlotCapacity),
                        appended_ % 2 ? proto::AccessOp::kGet : proto::AccessOp::kPut});
    }
  }
  void Pop(int count) {
    for (int i = 0; i < count; ++i) {
      proto::Access access{};
      const Take take = consumer_.Pop(&access);
      verdict_.See(take, lane_->head.load(), proto::kLogLaneEntries);
      if (take != Take::kEntry) break;
      EXPECT_LT(access.slot, proto::kSlotCapacity);
      EXPECT_TRUE(access.op == proto::AccessOp::kGet || access.op == proto::AccessOp::kPut);
      EXPECT_EQ(lane_->tail.load(), verdict_.taken());
      EXPECT_TRUE(touched_ || int64_t{access.slot} >= next_slot_);
      next_slot_ = access.slot + 1;
    }
    EXPECT_TRUE(touched_ || !verdict_.corrupt());
  }

  std::unique_ptr<proto::LogLane> lane_ = std::make_unique<proto::LogLane>();
  LogProducer producer_{lane_.get()};
  LogConsumer consumer_{lane_.get()};
  Verdict verdict_;
  uint64_t appended_ = 0;
  int64_t next_slot_ = 0;
  bool touched_ = false;
};

// The daemon's end of the map ring, over a client that claims what it likes.
class MapWorld {
 public:
  void Run(const Instruction& instruction) {
    switch (instruction.op % 8) {
      case 0: Push(Count(instruction)); break;
      case 1: Read(Count(instruction)); break;
      case 2:
      case 3: Acknowledge(Count(instruction)); break;
      case 4:
      case 5:
        touched_ = true;
        ring_->acknowledged.store(Position(read_, proto::kMapRingEntries, instruction));
        break;
      default:
        touched_ = true;
        Scribble(ring_.get(), sizeof(*ring_), instruction);
        break;
    }
  }
  void Finish() {
    Read(proto::kMapRingEntries);
    EXPECT_TRUE(touched_ || read_ == acknowledged_);
    EXPECT_LE(read_, pushed_);
  }

 private:
  void Push(int count) {
    for (int i = 0; i < count && producer_.Room() > 0; ++i) {
      producer_.Push({});
      ++pushed_;
    }
    EXPECT_LE(pushed_ - read_, proto::kMapRingEntries);
  }
  void Acknowledge(int count) {
    proto::MapInstruction next;
    for (int i = 0; i < count && consumer_.Next(&next) == Take::kEntry; ++i) {
      consumer_.Acknowledge(static_cast<uint32_t>(++acknowledged_));
    }
  }
  void Read(int count) {
    for (int i = 0; i < count; ++i) {
      uint32_t result = 0;
      const bool had_work = producer_.HasWork();
      const Take take = producer_.NextResult(&result);
      EXPECT_EQ(had_work, take != Take::kEmpty);
      EXPECT_TRUE(touched_ || take != Take::kCorrupt);
      if (take != Take::kEntry) return;
      ++read_;
      EXPECT_LE(read_, pushed_);
      EXPECT_TRUE(touched_ || result == static_cast<uint32_t>(read_));
    }
  }

  std::unique_ptr<proto::MapRing> ring_ = std::make_unique<proto::MapRing>();
  MapProducer producer_{ring_.get()};
  MapConsumer consumer_{ring_.get()};
  uint64_t pushed_ = 0;
  uint64_t acknowledged_ = 0;
  uint64_t read_ = 0;
  bool touched_ = false;
};

template <typename World>
void Play(std::span<const uint8_t> input) {
  World world;
  while (input.size() >= kInstructionBytes) {
    Instruction instruction;
    std::memcpy(&instruction, input.data(), sizeof(instruction));
    world.Run(instruction);
    input = input.subspan(kInstructionBytes);
  }
  world.Finish();
}

// Half of the inputs hold only honest instructions, or ones that begin so: else nearly every run
// would end at its first scribble.
Input Instructions(std::mt19937_64& random) {
  Input input = RandomInput(random, kInstructionsMax * kInstructionBytes);
  const size_t honest = random() % 3 == 0 ? input.size() : random() % (input.size() + 1);
  for (size_t i = 0; i < honest; i += kInstructionBytes) input[i] %= 4;
  return input;
}

TEST(RingFuzz, RequestConsumerSurvivesAScribbledRing) {
  Fuzz("tests/ipc/corpus/ring", 20'000, Instructions, Play<RequestWorld>);
}

TEST(RingFuzz, LogConsumerSurvivesAScribbledLane) {
  Fuzz("tests/ipc/corpus/ring", 20'000, Instructions, Play<LogWorld>);
}

TEST(RingFuzz, MapProducerSurvivesAScribbledRing) {
  Fuzz("tests/ipc/corpus/ring", 20'000, Instructions, Play<MapWorld>);
}

}  // namespace
}  // namespace ravenstore::ipc
