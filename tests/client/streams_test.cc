#include "client/streams.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "client/access.h"
#include "device/host_stream.h"
#include "ipc/segment.h"

namespace ravenstore::client {
namespace {

using core::ErrorCode;
using core::MiB;
using device::HostStream;
using std::chrono::milliseconds;

class StreamsTest : public testing::Test {
 protected:
  StreamsTest()
      : segment_(*ipc::ControlSegment::Create(1)),
        device_(device::OpenHostDevices({})[0], 0, 0, MiB(8), segment_.get()),
        table_(segment_.get(), &phase_) {}

  ClientStream& Of(HostStream* stream) {
    auto found = table_.Find(stream, device_);
    EXPECT_TRUE(found.ok());
    return **found;
  }
  uint64_t Ticket(HostStream* stream) {
    auto ticket = Of(stream).TakeTicket({}, patient_);
    EXPECT_TRUE(ticket.ok());
    return *ticket;
  }
  // The tensor in row `slot` is lost, as the daemon reports it.
  void Lose(uint32_t slot) {
    segment_->header.losses.fetch_add(1);
    segment_->slots[slot].word.store(proto::Pack(proto::LeaseWord{proto::LeaseState::kLost, 0, 1}));
  }
  void Use(uint32_t slot, uint64_t id) {
    segment_->slots[slot].id.store(id);
    segment_->slots[slot].word.store(
        proto::Pack(proto::LeaseWord{proto::LeaseState::kInUse, 1, 1}));
  }
  // Holds `stream` until gate_ is opened.
  void Block(HostStream& stream) {
    stream.Run([this] {
      while (!gate_.load()) std::this_thread::yield();
    });
  }

  ipc::ControlSegment segment_;
  PhaseWord phase_{Phase::kAttached};
  ClientDevice device_;
  StreamTable table_;
  Deadline patient_{std::chrono::seconds(10)};
  Deadline hasty_{milliseconds(2)};
  std::atomic<bool> gate_{false};
};

TEST_F(StreamsTest, CallingThreadNeedsNoTicket) {
  EXPECT_TRUE(Of(nullptr).synchronous());
  EXPECT_EQ(Ticket(nullptr), 0u);
  EXPECT_FALSE(table_.AnyAsynchronous());
}

TEST_F(StreamsTest, TicketsOfAStreamRiseAndAreReachedInOrder) {
  HostStream stream;
  Block(stream);
  const proto::WordValue first = proto::UnpackWordValue(Ticket(&stream));
  const proto::WordValue second = proto::UnpackWordValue(Ticket(&stream));
  EXPECT_EQ(first.index, second.index);
  EXPECT_LT(first.value, second.value);
  EXPECT_TRUE(Of(&stream).Open(proto::Pack(first)));
  gate_.store(true);
  stream.Synchronize();
  EXPECT_FALSE(Of(&stream).Open(proto::Pack(second)));
}

TEST_F(StreamsTest, EveryStreamHasAWordOfItsOwn) {
  HostStream a, b;
  EXPECT_NE(proto::UnpackWordValue(Ticket(&a)).index, proto::UnpackWordValue(Ticket(&b)).index);
  EXPECT_EQ(&Of(&a), &Of(&a));
  EXPECT_EQ(table_.Known(&a).size(), 1u);
  EXPECT_EQ(table_.Known(&gate_).size(), 0u);
}

TEST_F(StreamsTest, OwnOrderIsEnough) {
  HostStream stream;
  Block(stream);
  const uint64_t ticket = Ticket(&stream);
  EXPECT_TRUE(Of(&stream).Open(ticket));
  EXPECT_FALSE(Of(&stream).MustOrder(ticket));
  EXPECT_TRUE(Of(nullptr).MustOrder(ticket));
  gate_.store(true);
  stream.Synchronize();
  EXPECT_FALSE(Of(nullptr).MustOrder(ticket));
}

// As CU_STREAM_PER_THREAD: one handle that means `own` in the test's thread and `others` elsewhere.
class PerThreadStream : public device::Stream {
 public:
  PerThreadStream(HostStream* own, HostStream* others)
      : own_(device::WrapHostStream(own)),
        others_(device::WrapHostStream(others)),
        // Of the CUDA stream: it awaits events of all threads, in order.
        side_(device::WrapHostStream(&side_queue_)) {}

  core::Status SignalAfter(device::Word* word, uint64_t value) override {
    const uint64_t event = ++last_event_;
    RAVEN_RETURN_IF_ERROR(Mine().SignalAfter(&events_[event], 1));
    RAVEN_RETURN_IF_ERROR(side_->Wait(&events_[event], 1));
    return side_->SignalAfter(word, value);
  }
  core::Status Wait(device::Word* word, uint64_t value) override {
    return Mine().Wait(word, value);
  }
  core::Status Copy(void* to, const void* from, core::Bytes bytes) override {
    return Mine().Copy(to, from, bytes);
  }
  core::Status Fill(void* to, uint8_t value, core::Bytes bytes) override {
    return Mine().Fill(to, value, bytes);
  }
  core::Result<bool> Capturing() override { return Mine().Capturing(); }
  core::Status Synchronize() override { return Mine().Synchronize(); }
  core::Result<std::unique_ptr<device::StreamMark>> Mark() override { return Mine().Mark(); }
  bool synchronous() const override { return false; }
  bool per_thread() const override { return true; }

 private:
  device::Stream& Mine() { return std::this_thread::get_id() == owner_ ? *own_ : *others_; }

  const std::thread::id owner_ = std::this_thread::get_id();
  const std::unique_ptr<device::Stream> own_;
  const std::unique_ptr<device::Stream> others_;
  std::array<device::Word, 16> events_{};
  uint64_t last_event_ = 0;
  HostStream side_queue_;
  const std::unique_ptr<device::Stream> side_;
};

TEST_F(StreamsTest, AHandleThatIsAnotherStreamInEveryThreadHasNoOrder) {
  HostStream mine, others;
  ClientStream shared(std::make_unique<PerThreadStream>(&mine, &others), 0, segment_.get(),
                      &phase_);
  Block(mine);
  const std::array also = {*shared.TakeTicket({}, patient_)};
  EXPECT_TRUE(shared.MustOrder(also[0]));
  std::atomic<bool> early{false};
  std::thread other([&] {
    ASSERT_TRUE(shared.WaitForTicket(also[0], patient_).ok());
    others.Run([&] { early.store(!gate_.load()); });
  });
  other.join();
  const uint64_t later = *shared.TakeTicket(also, patient_);
  EXPECT_TRUE(shared.Open(later));
  gate_.store(true);
  others.Synchronize();
  EXPECT_FALSE(early.load()) << "the other thread's work ran before what it waits for";
  EXPECT_TRUE(shared.Block(later, 0, patient_).ok()) << "its own ticket can be waited for";
  EXPECT_FALSE(shared.MustOrder(also[0]));
}

TEST_F(StreamsTest, StreamWaitsForAnothersTicket) {
  HostStream writer, reader;
  Block(writer);
  const uint64_t ticket = Ticket(&writer);
  ASSERT_TRUE(Of(&reader).WaitForTicket(ticket, hasty_).ok()) << "the caller does not wait";
  std::atomic<bool> ran{false};
  reader.Run([&] { ran.store(true); });
  EXPECT_FALSE(ran.load());
  gate_.store(true);
  reader.Synchronize();
  EXPECT_TRUE(ran.load());
}

TEST_F(StreamsTest, CallingThreadWaitsBounded) {
  HostStream writer;
  Block(writer);
  const uint64_t ticket = Ticket(&writer);
  EXPECT_EQ(Of(nullptr).WaitForTicket(ticket, hasty_).error().code, ErrorCode::kTimedOut);
  gate_.store(true);
  EXPECT_TRUE(Of(nullptr).WaitForTicket(ticket, patient_).ok());
}

TEST_F(StreamsTest, TicketCoversThoseOfOthers) {
  HostStream slow, fast;
  Block(slow);
  const std::array also = {Ticket(&slow)};
  const uint64_t ticket = *Of(&fast).TakeTicket(also, patient_);
  EXPECT_EQ(proto::UnpackWordValue(ticket).index, proto::UnpackWordValue(Ticket(&fast)).index);
  EXPECT_TRUE(Of(nullptr).Open(ticket)) << "though nothing runs on the fast stream";
  EXPECT_EQ(*Of(nullptr).TakeTicket(also, patient_), also[0]) << "passed on";
  gate_.store(true);
  slow.Synchronize();
  fast.Synchronize();
  EXPECT_FALSE(Of(nullptr).Open(ticket));
  EXPECT_EQ(*Of(nullptr).TakeTicket(also, patient_), 0u) << "nothing is open any more";
}

TEST_F(StreamsTest, SharedTicketIsNotTakenForALaterOneOfTheSameStream) {
  HostStream stream;
  Block(stream);
  SharedTicket shared;
  const uint64_t first = *TicketFor(Of(&stream), {}, patient_, &shared);
  EXPECT_EQ(*TicketFor(Of(&stream), std::array{first}, patient_, &shared), first);
  const uint64_t others = Ticket(&stream);  // of a put in another thread
  const uint64_t both = *TicketFor(Of(&stream), std::array{others}, patient_, &shared);
  EXPECT_GE(proto::UnpackWordValue(both).value, proto::UnpackWordValue(others).value);
  gate_.store(true);
}

TEST_F(StreamsTest, CapturingStreamIsRefused) {
  HostStream stream;
  EXPECT_TRUE(Of(&stream).CheckNotCapturing().ok());
  stream.set_capturing(true);
  EXPECT_EQ(Of(&stream).CheckNotCapturing().error().code, ErrorCode::kCapturing);
  stream.set_capturing(false);
  EXPECT_TRUE(Of(&stream).CheckNotCapturing().ok());
}

TEST_F(StreamsTest, ArrivalOfALostTensorIsNoticed) {
  HostStream stream;
  const uint64_t arrival = proto::Pack(proto::WordValue{3, 1});
  ASSERT_TRUE(Of(&stream).WaitForArrival(12, arrival, patient_).ok());
  EXPECT_FALSE(Of(&stream).SawLoss());
  Lose(12);
  EXPECT_FALSE(Of(&stream).SawLoss()) << "its work has not run yet";
  segment_->arrivals[3].store(1);
  EXPECT_TRUE(Of(&stream).SawLoss());
  EXPECT_TRUE(Of(&stream).SawLoss()) << "for ever";
}

TEST_F(StreamsTest, LossIsNoticedAlsoWhenTheRowIsAnotherTensorsSince) {
  HostStream stream;
  segment_->slots[12].id.store(100);
  ASSERT_TRUE(Of(&stream).WaitForArrival(12, proto::Pack(proto::WordValue{3, 1}), patient_).ok());
  Lose(12);
  segment_->arrivals[3].store(1);
  Use(12, 101);
  EXPECT_TRUE(Of(&stream).SawLoss());
}

TEST_F(StreamsTest, AnotherTensorsLossIsNoneOfAStreamsThatDidNotWaitForIt) {
  HostStream stream;
  Use(12, 100);
  ASSERT_TRUE(Of(&stream).WaitForArrival(12, proto::Pack(proto::WordValue{3, 1}), patient_).ok());
  segment_->arrivals[3].store(1);
  Lose(13);
  EXPECT_FALSE(Of(&stream).SawLoss());
}

TEST_F(StreamsTest, ATensorThatWasFreedAfterItArrivedIsNotLost) {
  HostStream stream;
  Use(12, 100);
  ASSERT_TRUE(Of(&stream).WaitForArrival(12, proto::Pack(proto::WordValue{3, 1}), patient_).ok());
  segment_->arrivals[3].store(1);
  segment_->slots[12].word.store(proto::Pack(proto::LeaseWord{proto::LeaseState::kFree, 0, 9}));
  EXPECT_FALSE(Of(&stream).SawLoss());
}

TEST_F(StreamsTest, PastArrivalsAreForgotten) {
  HostStream stream;
  for (uint64_t value = 1; value <= 500; ++value) {
    const uint64_t arrival = proto::Pack(proto::WordValue{0, value});
    ASSERT_TRUE(Of(&stream).WaitForArrival(0, arrival, patient_).ok());
    segment_->arrivals[0].store(value);
  }
  EXPECT_FALSE(Of(&stream).SawLoss());
}

TEST_F(StreamsTest, ArrivalWordThatDoesNotExistIsRefused) {
  const uint64_t nonsense = proto::Pack(proto::WordValue{60000, 1});
  EXPECT_EQ(Of(nullptr).WaitForArrival(0, nonsense, hasty_).error().code, ErrorCode::kCorrupt);
}

TEST_F(StreamsTest, LostSessionEndsTheWaitOfTheCallingThread) {
  std::thread watcher([&] { phase_.store(Phase::kLost); });
  const uint64_t never = proto::Pack(proto::WordValue{0, 1});
  EXPECT_EQ(Of(nullptr).WaitForArrival(0, never, patient_).error().code, ErrorCode::kLost);
  watcher.join();
}

TEST_F(StreamsTest, TooManyStreamsAreRefused) {
  // Handles are only wrapped here, so any aligned address will do.
  for (uintptr_t i = 1; i <= proto::kTicketWords; ++i) {
    ASSERT_TRUE(table_.Find(reinterpret_cast<device::StreamHandle>(i * 64), device_).ok());
  }
  const uintptr_t one_more = (proto::kTicketWords + 1) * 64;
  const auto beyond = table_.Find(reinterpret_cast<device::StreamHandle>(one_more), device_);
  ASSERT_FALSE(beyond.ok());
  EXPECT_EQ(beyond.error().code, ErrorCode::kLimit);
  EXPECT_TRUE(table_.Find(nullptr, device_).ok()) << "the calling thread needs no word";
}

TEST_F(StreamsTest, AllTicketsAreAwaitedBounded) {
  HostStream a, b;
  Block(b);
  Ticket(&a);
  Ticket(&b);
  EXPECT_FALSE(table_.AwaitTickets(hasty_.at()));
  gate_.store(true);
  EXPECT_TRUE(table_.AwaitTickets(patient_.at()));
}

TEST_F(StreamsTest, ThreadsCacheIsNotFooledByAnotherTable) {
  HostStream stream;
  ClientStream* const here = &Of(&stream);
  StreamTable other(segment_.get(), &phase_);
  EXPECT_NE(*other.Find(&stream, device_), here);
  EXPECT_EQ(&Of(&stream), here);
}

}  // namespace
}  // namespace ravenstore::client
