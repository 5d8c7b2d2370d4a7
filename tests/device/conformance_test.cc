// What every backend of device.h must do (its channels: channel_conformance_test.cc), run on the
// host backend, on the CUDA backend over the fake driver, and on a GPU where there is one. It is a
// program of its own as well: //tests/device: conformance_gpu_test needs nothing but libc and a
// driver.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "device/device.h"
#include "tests/device/backends.h"
#include "tests/device/testing.h"

extern char** environ;

namespace ravenstore::device {
namespace {

using core::ErrorCode;
using core::MiB;

constexpr int kChunkDescriptor = 60;
constexpr int kWordsDescriptor = 61;
constexpr Bytes kChunk = MiB(4);

// A stream of a caller's and our wrapping of it.
class TestStream {
 public:
  TestStream(TestBackend& backend, size_t device)
      : backend_(backend), handle_(backend.NewStream(device)) {
    auto wrapped = backend.devices()[device]->WrapStream(handle_);
    RAVEN_CHECK(wrapped.ok());
    stream_ = *std::move(wrapped);
  }
  ~TestStream() {
    stream_.reset();
    backend_.EndStream(handle_);
  }
  Stream* operator->() { return stream_.get(); }
  StreamHandle handle() const { return handle_; }

 private:
  TestBackend& backend_;
  const StreamHandle handle_;
  std::unique_ptr<Stream> stream_;
};

class Conformance : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::string why_not;
    backend_ = OpenBackend(GetParam(), &why_not);
    ASSERT_NE(backend_, nullptr) << why_not;
    words_ = std::make_unique<WordPage>();
    auto registration = device().RegisterWords(words_->begin(), WordPage::kBytes);
    ASSERT_OK(registration);
    registration_ = *std::move(registration);
    arena_ = NewVaRange(device());
    auto host = device().ReserveHostVaRange(MiB(64), -1);
    ASSERT_OK(host);
    host_ = *std::move(host);
    ASSERT_OK(host_->Create(Bytes{0}, MiB(32)));
  }

  Device& device(size_t i = 0) { return *backend_->devices()[i]; }
  std::unique_ptr<VaRange> NewVaRange(Device& device) {
    auto arena = device.ReserveVaRange(MiB(256));
    RAVEN_CHECK(arena.ok());
    return *std::move(arena);
  }
  std::shared_ptr<Channel> NewChannel(Direction direction, size_t i = 0) {
    auto opened = device(i).OpenChannel(direction);
    RAVEN_CHECK(opened.ok());
    std::shared_ptr<Channel> channel = *std::move(opened);
    channels_.push_back(channel);
    return channel;
  }
  Word& word(size_t i) { return (*words_)[i]; }
  // Enough for a GPU to be seen at work, and little enough for ThreadSanitizer elsewhere.
  Bytes Free() {
    const auto free = device().FreeBytes();
    EXPECT_TRUE(free.ok());
    return *free;
  }
  // Other processes, such as other tests, may allocate on a real device at the same time. So a
  // check of its free memory has to hold in one of many trials only.
  bool IsSoInATrial(const std::function<bool()>& is_so) {
    const int trials = GetParam().starts_with("cuda") ? 50 : 1;
    for (int i = 0; i < trials; ++i)
      if (is_so()) return true;
    return false;
  }
  static Bytes Big() { return GetParam().starts_with("cuda") ? MiB(32) : MiB(4); }
  bool Reaches(size_t i, uint64_t value) {
    return Eventually([&] {
      PollChannels();
      return word(i).load(std::memory_order_acquire) >= value;
    });
  }
  void PollChannels() {
    for (const auto& weak : channels_) {
      if (const auto channel = weak.lock()) channel->Poll();
    }
  }

  // Device memory by way of a stream, which all backends allow.
  std::vector<uint8_t> Read(const void* from, Bytes bytes) {
    std::vector<uint8_t> to(bytes.count());
    TestStream stream(*backend_, 0);
    EXPECT_TRUE(stream->Copy(to.data(), from, bytes).ok());
    EXPECT_TRUE(stream->Synchronize().ok());
    return to;
  }
  void Write(void* to, const std::vector<uint8_t>& from) {
    TestStream stream(*backend_, 0);
    EXPECT_TRUE(stream->Copy(to, from.data(), Bytes(from.size())).ok());
    EXPECT_TRUE(stream->Synchronize().ok());
  }

  std::unique_ptr<TestBackend> backend_;
  std::unique_ptr<WordPage> words_;
  std::vector<std::weak_ptr<Channel>> channels_;
  std::unique_ptr<Registration> registration_;
  std::unique_ptr<VaRange> arena_;  // of device 0
  std::unique_ptr<VaRange> host_;   // its first 32 MiB are there
};

TEST_P(Conformance, DevicesAreDescribedAndFoundByUuid) {
  for (const auto& device : backend_->devices()) {
    EXPECT_FALSE(device->info().uuid.empty());
    EXPECT_FALSE(device->info().name.empty());
    EXPECT_GT(device->info().total, Bytes{0});
    EXPECT_EQ(FindByUuid(backend_->devices(), device->info().uuid), device);
    EXPECT_EQ(MiB(256).count() % device->granularity().count(), 0u);
  }
  EXPECT_EQ(FindByUuid(backend_->devices(), "GPU-none"), nullptr);
}

TEST_P(Conformance, ASignalAfterAllStreamsWaitsForEachOfThem) {
  const auto all = device().WrapStream(AllStreams());
  ASSERT_OK(all);
  EXPECT_FALSE((*all)->synchronous());
  TestStream held(*backend_, 0);
  TestStream idle(*backend_, 0);
  EXPECT_TRUE(device().InUse());
  ASSERT_OK(held->Wait(&word(0), 1));
  ASSERT_OK((*all)->SignalAfter(&word(1), 1));
  ASSERT_OK(idle->SignalAfter(&word(2), 1));
  ASSERT_TRUE(Reaches(2, 1));
  EXPECT_EQ(word(1).load(), 0u);
  word(0).store(1, std::memory_order_release);
  EXPECT_TRUE(Reaches(1, 1));
  // What is enqueued after it does not hold it up.
  ASSERT_OK((*all)->SignalAfter(&word(1), 2));
  ASSERT_OK(held->Wait(&word(0), 2));
  EXPECT_TRUE(Reaches(1, 2));
  word(0).store(2, std::memory_order_release);
}

TEST_P(Conformance, NothingIsEnqueuedOnAllStreams) {
  const auto all = device().WrapStream(AllStreams());
  ASSERT_OK(all);
  EXPECT_CODE((*all)->Wait(&word(0), 1), ErrorCode::kInvalidArgument);
  const auto mark = (*all)->Mark();
  ASSERT_FALSE(mark.ok());
  EXPECT_EQ(mark.error().code, ErrorCode::kInvalidArgument);
  EXPECT_CODE((*all)->Copy(host_->base(), host_->base(), Bytes(8)), ErrorCode::kInvalidArgument);
}

TEST_P(Conformance, FreshMemoryIsZeroEvenAfterSomebodyUsedIt) {
  for (int round = 0; round < 3; ++round) {
    ASSERT_OK(arena_->Create(Bytes{0}, Big()));
    EXPECT_EQ(Read(arena_->base(), Big()), std::vector<uint8_t>(Big().count(), 0));
    TestStream stream(*backend_, 0);
    ASSERT_OK(stream->Fill(arena_->base(), 0xab, Big()));
    ASSERT_OK(stream->Synchronize());
    ASSERT_OK(arena_->Unmap(Bytes{0}));
  }
}

TEST_P(Conformance, CreateTakesCapacityAndUnmapGivesItBack) {
  EXPECT_TRUE(IsSoInATrial([this] {
    const Bytes before = Free();
    EXPECT_TRUE(arena_->Create(MiB(8), MiB(64)).ok());
    const Bytes during = Free();
    EXPECT_TRUE(arena_->Unmap(MiB(8)).ok());
    return during + MiB(64) <= before && Free() >= during + MiB(64);
  }));
}

TEST_P(Conformance, MemoryUseFollowsWhatIsCreated) {
  ASSERT_OK(arena_->Create(Bytes{0}, MiB(2)));  // from here on the device is in use
  EXPECT_TRUE(IsSoInATrial([this] {
    const auto before = device().ReadMemoryUse();
    EXPECT_TRUE(before.ok());
    EXPECT_LE(before->free + before->context, device().info().total);
    EXPECT_TRUE(arena_->Create(MiB(8), MiB(64)).ok());
    const auto during = device().ReadMemoryUse();
    EXPECT_TRUE(during.ok());
    EXPECT_TRUE(arena_->Unmap(MiB(8)).ok());
    return during->free + MiB(64) <= before->free;
  }));
}

TEST_P(Conformance, DestroyingAnArenaGivesItsMemoryBack) {
  EXPECT_TRUE(IsSoInATrial([this] {
    auto arena = NewVaRange(device());
    EXPECT_TRUE(arena->Create(Bytes{0}, MiB(64)).ok());
    const Bytes during = Free();
    arena.reset();
    return Free() >= during + MiB(64);
  }));
}

TEST_P(Conformance, CreateBeyondTheDeviceIsOutOfMemoryAndLeavesTheRangeFree) {
  const Bytes total = device().info().total;
  const Bytes too_much = total.RoundUp(device().granularity()) + MiB(64);
  auto arena = device().ReserveVaRange(too_much);
  ASSERT_OK(arena);
  EXPECT_CODE((*arena)->Create(Bytes{0}, too_much), ErrorCode::kOutOfMemory);
  ASSERT_OK((*arena)->Create(Bytes{0}, kChunk));
}

TEST_P(Conformance, BadRangesAreRefused) {
  const Bytes unit = device().granularity();
  EXPECT_CODE(arena_->Create(Bytes{512}, unit), ErrorCode::kInvalidArgument);
  EXPECT_CODE(arena_->Create(Bytes{0}, Bytes{512}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(arena_->Create(Bytes{0}, Bytes{0}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(arena_->Create(arena_->size(), unit), ErrorCode::kInvalidArgument);
  EXPECT_CODE(arena_->Create(arena_->size() - unit, unit * 2), ErrorCode::kInvalidArgument);
  EXPECT_CODE(arena_->Create(Bytes(~uint64_t{0}).RoundUp(unit) - unit, unit * 2),
              ErrorCode::kInvalidArgument);
  ASSERT_OK(arena_->Create(unit, unit * 2));
  EXPECT_CODE(arena_->Create(unit * 2, unit), ErrorCode::kInvalidArgument);
  EXPECT_CODE(arena_->Create(Bytes{0}, unit * 2), ErrorCode::kInvalidArgument);
  EXPECT_CODE(arena_->Create(Bytes{0}, unit * 8), ErrorCode::kInvalidArgument);
  EXPECT_CODE(arena_->Unmap(unit * 2), ErrorCode::kNotFound);
  EXPECT_CODE(arena_->Export(Bytes{0}), ErrorCode::kNotFound);
}

TEST_P(Conformance, APieceIsUnmappedOnce) {
  ASSERT_OK(arena_->Create(Bytes{0}, kChunk));
  ASSERT_OK(arena_->Unmap(Bytes{0}));
  EXPECT_CODE(arena_->Unmap(Bytes{0}), ErrorCode::kNotFound);
  ASSERT_OK(arena_->Create(Bytes{0}, kChunk));
}

TEST_P(Conformance, AnEmptyArenaIsRefused) {
  EXPECT_CODE(device().ReserveVaRange(Bytes{0}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(device().ReserveHostVaRange(Bytes{0}, -1), ErrorCode::kInvalidArgument);
  EXPECT_CODE(device().ReservePoolVaRange(Bytes{0}, -1), ErrorCode::kInvalidArgument);
}

TEST_P(Conformance, AChunkOfThePoolIsCopiedFromAndMadeAgain) {
  auto made = device().ReservePoolVaRange(MiB(64), -1);
  ASSERT_OK(made);
  const std::unique_ptr<VaRange> pool = *std::move(made);
  ASSERT_OK(arena_->Create(Bytes{0}, kChunk));
  auto up = NewChannel(Direction::kHostToDevice);
  for (uint64_t round = 1; round <= 3; ++round) {
    ASSERT_OK(pool->Create(MiB(8), MiB(32)));
    std::byte* const at = pool->base() + MiB(40).count() - MiB(1).count();
    EXPECT_EQ(std::vector<uint8_t>(MiB(1).count()),
              std::vector<uint8_t>(reinterpret_cast<uint8_t*>(at),
                                   reinterpret_cast<uint8_t*>(at) + MiB(1).count()));
    const auto pattern = Pattern(MiB(1), round);
    memcpy(at, pattern.data(), pattern.size());
    ASSERT_OK(up->Copy(arena_->base(), at, MiB(1)));
    ASSERT_OK(up->Signal(&word(0), round));
    ASSERT_TRUE(Reaches(0, round));
    EXPECT_EQ(Read(arena_->base(), MiB(1)), pattern);
    ASSERT_OK(pool->Unmap(MiB(8)));
    EXPECT_CODE(pool->Unmap(MiB(8)), ErrorCode::kNotFound);
  }
}

TEST_P(Conformance, AnExtentMaySpanChunks) {
  ASSERT_OK(arena_->Create(Bytes{0}, kChunk));
  ASSERT_OK(arena_->Create(kChunk, kChunk));
  std::byte* extent = arena_->base() + kChunk.count() - 12345;
  const auto pattern = Pattern(MiB(1), 1);
  memcpy(host_->base(), pattern.data(), pattern.size());
  auto up = NewChannel(Direction::kHostToDevice);
  ASSERT_OK(up->Copy(extent, host_->base(), MiB(1)));
  ASSERT_OK(up->Signal(&word(0), 1));
  ASSERT_TRUE(Reaches(0, 1));
  EXPECT_EQ(Read(extent, MiB(1)), pattern);
}

TEST_P(Conformance, AStreamSignalsOnlyAfterItsWork) {
  TestStream held(*backend_, 0);
  TestStream other(*backend_, 0);
  ASSERT_OK(held->Wait(&word(0), 5));
  ASSERT_OK(held->SignalAfter(&word(1), 9));
  // A whole round trip on another stream is time enough for a signal that does not wait.
  ASSERT_OK(other->SignalAfter(&word(2), 1));
  ASSERT_TRUE(Reaches(2, 1));
  EXPECT_EQ(word(1).load(), 0u);
  word(0).store(4);
  ASSERT_OK(other->SignalAfter(&word(2), 2));
  ASSERT_TRUE(Reaches(2, 2));
  EXPECT_EQ(word(1).load(), 0u) << "4 does not satisfy a wait for 5";
  word(0).store(6, std::memory_order_release);
  EXPECT_TRUE(Reaches(1, 9));
  EXPECT_EQ(word(1).load(), 9u);
}

TEST_P(Conformance, AWaitHoldsLaterWorkOnItsStream) {
  ASSERT_OK(arena_->Create(Bytes{0}, kChunk));
  TestStream held(*backend_, 0);
  ASSERT_OK(held->Fill(arena_->base(), 0x11, kChunk));
  ASSERT_OK(held->Synchronize());
  ASSERT_OK(held->Wait(&word(0), 1));
  ASSERT_OK(held->Fill(arena_->base(), 0x22, kChunk));
  EXPECT_EQ(Read(arena_->base(), kChunk), std::vector<uint8_t>(kChunk.count(), 0x11));
  word(0).store(1, std::memory_order_release);
  ASSERT_OK(held->Synchronize());
  EXPECT_EQ(Read(arena_->base(), kChunk), std::vector<uint8_t>(kChunk.count(), 0x22));
}

TEST_P(Conformance, MarksShowHowLongAStreamWaited) {
  TestStream held(*backend_, 0);
  const auto begin = held->Mark();
  ASSERT_OK(held->Wait(&word(0), 1));
  const auto end = held->Mark();
  ASSERT_TRUE(begin.ok() && end.ok());
  const auto reached = [](const StreamMark& mark) {
    const auto is = mark.Reached();
    EXPECT_TRUE(is.ok()) << core::Describe(is.error());
    return is.ok() && *is;
  };
  EXPECT_TRUE(Eventually([&] { return reached(**begin); }));
  // The stream waits from before this time until after the next.
  const auto from = std::chrono::steady_clock::now();
  EXPECT_FALSE(reached(**end));
  const core::Duration held_for = std::chrono::steady_clock::now() - from;
  word(0).store(1, std::memory_order_release);
  EXPECT_TRUE(Eventually([&] { return reached(**end); }));
  const auto waited = (*end)->Since(**begin);
  const auto back = (*begin)->Since(**end);
  ASSERT_TRUE(waited.ok() && back.ok());
  // Events resolve half a microsecond.
  EXPECT_GE(*waited, held_for - std::chrono::microseconds(2));
  EXPECT_LE(*back, core::Duration{0});
}

TEST_P(Conformance, AStreamThatAwaitsAnArrivalReadsTheWholeCopy) {
  const Bytes half(Big().count() / 2);
  ASSERT_OK(arena_->Create(Bytes{0}, half));
  auto up = NewChannel(Direction::kHostToDevice);
  TestStream stream(*backend_, 0);
  std::byte* back = host_->base() + half.count();
  for (uint64_t round = 1; round <= 10; ++round) {
    const auto pattern = Pattern(half, round);
    memcpy(host_->base(), pattern.data(), pattern.size());
    ASSERT_OK(stream->Wait(&word(0), round));
    ASSERT_OK(stream->Copy(back, arena_->base(), half));
    ASSERT_OK(stream->SignalAfter(&word(1), round));
    ASSERT_OK(up->Copy(arena_->base(), host_->base(), half));
    ASSERT_OK(up->Signal(&word(0), round));
    ASSERT_TRUE(Reaches(0, round));
    ASSERT_TRUE(Reaches(1, round));
    EXPECT_EQ(memcmp(back, pattern.data(), pattern.size()), 0) << "round " << round;
  }
}

TEST_P(Conformance, SignalsOfAStreamArriveInOrder) {
  TestStream stream(*backend_, 0);
  for (uint64_t value = 1; value <= 200; ++value) {
    ASSERT_OK(stream->SignalAfter(&word(0), value));
    ASSERT_OK(stream->SignalAfter(&word(1), value));
  }
  ASSERT_TRUE(Reaches(1, 200));
  EXPECT_EQ(word(0).load(), 200u);
}

TEST_P(Conformance, TheEndOfAWrappingLeavesItsSignalsToCome) {
  const StreamHandle handle = backend_->NewStream(0);
  auto stream = device().WrapStream(handle);
  ASSERT_OK(stream);
  ASSERT_OK((*stream)->Wait(&word(0), 1));
  ASSERT_OK((*stream)->SignalAfter(&word(1), 1));
  (*stream).reset();
  EXPECT_EQ(word(1).load(), 0u);
  word(0).store(1, std::memory_order_release);
  EXPECT_TRUE(Reaches(1, 1));
  backend_->EndStream(handle);
}

TEST_P(Conformance, TheDefaultStreamWorks) {
  ASSERT_OK(arena_->Create(Bytes{0}, kChunk));
  auto stream = device().WrapStream(nullptr);
  ASSERT_OK(stream);
  ASSERT_OK((*stream)->Fill(arena_->base(), 0x3c, kChunk));
  ASSERT_OK((*stream)->Copy(host_->base(), arena_->base(), kChunk));
  ASSERT_OK((*stream)->SignalAfter(&word(0), 1));
  ASSERT_TRUE(Reaches(0, 1));
  if ((*stream)->synchronous()) {
    EXPECT_CODE((*stream)->Wait(&word(1), 1), ErrorCode::kWrongState);
  }
  const auto capturing = (*stream)->Capturing();
  ASSERT_OK(capturing);
  EXPECT_FALSE(*capturing);
  ASSERT_OK((*stream)->Synchronize());
  for (uint64_t i = 0; i < kChunk.count(); i += 4096) {
    ASSERT_EQ(static_cast<uint8_t>(host_->base()[i]), 0x3c);
  }
}

TEST_P(Conformance, ACapturedStreamSaysSo) {
  TestStream stream(*backend_, 0);
  auto capturing = stream->Capturing();
  ASSERT_OK(capturing);
  EXPECT_FALSE(*capturing);
  backend_->BeginCapture(stream.handle());
  capturing = stream->Capturing();
  ASSERT_OK(capturing);
  EXPECT_TRUE(*capturing);
  // The memory of other tensors comes and goes meanwhile.
  ASSERT_OK(arena_->Create(Bytes{0}, kChunk));
  ASSERT_OK(arena_->Unmap(Bytes{0}));
  backend_->EndCapture(stream.handle());
  capturing = stream->Capturing();
  ASSERT_OK(capturing);
  EXPECT_FALSE(*capturing);
}

TEST_P(Conformance, AnExportedChunkOutlivesItsCreatorsMapping) {
  ASSERT_OK(arena_->Create(Bytes{0}, kChunk));
  const auto pattern = Pattern(kChunk, 3);
  Write(arena_->base(), pattern);
  auto first = arena_->Export(Bytes{0});
  auto second = arena_->Export(Bytes{0});
  ASSERT_OK(first);
  ASSERT_OK(second);
  EXPECT_NE(first->get(), second->get());
  ASSERT_OK(arena_->Unmap(Bytes{0}));
  ASSERT_OK(arena_->Import(*std::move(first), MiB(64), kChunk));
  EXPECT_EQ(Read(arena_->base() + MiB(64).count(), kChunk), pattern);
  EXPECT_CODE(arena_->Export(MiB(64)), ErrorCode::kInvalidArgument);
  auto other = NewVaRange(device());
  ASSERT_OK(other->Import(*std::move(second), Bytes{0}, kChunk));
  Write(other->base(), Pattern(kChunk, 4));
  EXPECT_EQ(Read(arena_->base() + MiB(64).count(), kChunk), Pattern(kChunk, 4));
}

TEST_P(Conformance, MemoryIsExportedBeforeItIsMapped) {
  const auto memory = device().CreateMemory(kChunk);
  ASSERT_OK(memory);
  EXPECT_EQ((*memory)->size(), kChunk);
  auto descriptor = (*memory)->Export();
  ASSERT_OK(descriptor);
  const auto imported = device().ImportMemory(*std::move(descriptor), kChunk);
  ASSERT_OK(imported);
  EXPECT_EQ((*imported)->size(), kChunk);
  const auto again = (*imported)->Export();
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code, ErrorCode::kInvalidArgument);
  const auto other = NewVaRange(device());
  ASSERT_OK(other->Map(MiB(8), *imported));
  ASSERT_OK(arena_->Map(Bytes{0}, *memory));
  EXPECT_EQ(Read(other->base() + MiB(8).count(), kChunk), std::vector<uint8_t>(kChunk.count(), 0));
  Write(arena_->base(), Pattern(kChunk, 5));
  EXPECT_EQ(Read(other->base() + MiB(8).count(), kChunk), Pattern(kChunk, 5));
}

TEST_P(Conformance, MemoryKeepsItsBytesWhileItHasNoAddress) {
  const auto memory = device().CreateMemory(kChunk);
  ASSERT_OK(memory);
  const auto imported = device().ImportMemory((*memory)->Export().value(), kChunk);
  ASSERT_OK(imported);
  for (const auto& of : {*memory, *imported}) {
    ASSERT_OK(arena_->Map(MiB(16), of));
    Write(arena_->base() + MiB(16).count(), Pattern(kChunk, 7));
    ASSERT_OK(arena_->Unmap(MiB(16)));
    ASSERT_OK(arena_->Map(MiB(64), of));
    EXPECT_EQ(Read(arena_->base() + MiB(64).count(), kChunk), Pattern(kChunk, 7));
    // Two addresses at a time show the same bytes.
    ASSERT_OK(arena_->Map(MiB(16), of));
    Write(arena_->base() + MiB(16).count(), Pattern(kChunk, 8));
    EXPECT_EQ(Read(arena_->base() + MiB(64).count(), kChunk), Pattern(kChunk, 8));
    ASSERT_OK(arena_->Unmap(MiB(16)));
    EXPECT_EQ(Read(arena_->base() + MiB(64).count(), kChunk), Pattern(kChunk, 8));
    ASSERT_OK(arena_->Unmap(MiB(64)));
  }
}

TEST_P(Conformance, MemoryTakesCapacityUntilItsLastReferenceAndMapping) {
  EXPECT_TRUE(IsSoInATrial([this] {
    const Bytes before = Free();
    auto memory = device().CreateMemory(MiB(64)).value();
    const Bytes unmapped = Free();
    EXPECT_TRUE(arena_->Map(MiB(8), memory).ok());
    memory.reset();
    const Bytes mapped = Free();
    EXPECT_TRUE(arena_->Unmap(MiB(8)).ok());
    return unmapped + MiB(64) <= before && mapped + MiB(64) <= before && Free() >= mapped + MiB(64);
  }));
}

TEST_P(Conformance, MemoryIsMappedWholeIntoRangesOfItsDevice) {
  const Bytes unit = device().granularity();
  for (const Bytes bytes : {Bytes{0}, Bytes{512}, unit + Bytes{512}})
    EXPECT_EQ(device().CreateMemory(bytes).error().code, ErrorCode::kInvalidArgument);
  const auto memory = device().CreateMemory(unit * 2);
  ASSERT_OK(memory);
  EXPECT_CODE(arena_->Map(Bytes{512}, *memory), ErrorCode::kInvalidArgument);
  EXPECT_CODE(arena_->Map(arena_->size() - unit, *memory), ErrorCode::kInvalidArgument);
  EXPECT_CODE(host_->Map(MiB(48), *memory), ErrorCode::kUnsupported);
  ASSERT_OK(arena_->Map(unit, *memory));
  EXPECT_CODE(arena_->Map(unit * 2, *memory), ErrorCode::kInvalidArgument);
  // Parts are of one device.
  if (backend_->devices().size() < 2 || GetParam().ends_with("_parts")) return;
  const auto elsewhere = NewVaRange(device(1));
  EXPECT_CODE(elsewhere->Map(Bytes{0}, *memory), ErrorCode::kInvalidArgument);
  ASSERT_OK(elsewhere->Create(Bytes{0}, unit));
}

TEST_P(Conformance, MemoryBeyondTheDeviceIsOutOfMemory) {
  const Bytes total = device().info().total.RoundUp(device().granularity());
  EXPECT_EQ(device().CreateMemory(total + MiB(64)).error().code, ErrorCode::kOutOfMemory);
}

TEST_P(Conformance, WhatIsNoChunkIsNotImported) {
  ASSERT_OK(arena_->Create(Bytes{0}, kChunk));
  auto chunk = arena_->Export(Bytes{0});
  ASSERT_OK(chunk);
  EXPECT_FALSE(arena_->Import(*std::move(chunk), MiB(64), kChunk * 2).ok());
  EXPECT_FALSE(arena_->Import(ipc::UniqueFd(), MiB(64), kChunk).ok());
  EXPECT_FALSE(device().ImportMemory(ipc::UniqueFd(), kChunk).ok());
  // Neither left anything behind.
  ASSERT_OK(arena_->Create(MiB(64), kChunk));
}

// Runs this program again as `role` of Child(), with the two descriptors.
pid_t SpawnChild(const std::string& backend, const std::string& role, int chunk, int words) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, chunk, kChunkDescriptor);
  posix_spawn_file_actions_adddup2(&actions, words, kWordsDescriptor);
  std::string program = "/proc/self/exe";
  std::string argument = "--child=" + backend + "," + role;
  char* argv[] = {program.data(), argument.data(), nullptr};
  pid_t child = -1;
  RAVEN_CHECK(posix_spawn(&child, program.c_str(), &actions, nullptr, argv, environ) == 0);
  posix_spawn_file_actions_destroy(&actions);
  return child;
}

int ExitOf(pid_t child) {
  int status = 0;
  RAVEN_CHECK(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST_P(Conformance, ProcessesShareDeviceMemoryAndWords) {
  ASSERT_OK(arena_->Create(Bytes{0}, kChunk));
  auto chunk = arena_->Export(Bytes{0});
  ASSERT_OK(chunk);
  const pid_t child = SpawnChild(GetParam(), "device", chunk->get(), words_->descriptor());
  // The child's stream awaits our channel's signal, checks our bytes, writes its own and signals.
  const auto pattern = Pattern(kChunk, 11);
  memcpy(host_->base(), pattern.data(), pattern.size());
  auto up = NewChannel(Direction::kHostToDevice);
  EXPECT_TRUE(up->Copy(arena_->base(), host_->base(), kChunk).ok());
  EXPECT_TRUE(up->Signal(&word(0), 1).ok());
  EXPECT_TRUE(Reaches(1, 1));
  // The child saw word 0, but ThreadSanitizer did not see the child.
  EXPECT_TRUE(Reaches(0, 1));
  EXPECT_EQ(Read(arena_->base(), kChunk), std::vector<uint8_t>(kChunk.count(), 0x5c));
  EXPECT_EQ(ExitOf(child), 0);
}

TEST_P(Conformance, ProcessesShareHostMemory) {
  const auto pattern = Pattern(kChunk, 11);
  ASSERT_OK(host_->Create(MiB(32), kChunk));
  std::byte* shared = host_->base() + MiB(32).count();
  memcpy(shared, pattern.data(), pattern.size());
  auto chunk = host_->Export(MiB(32));
  ASSERT_OK(chunk);
  word(0).store(1, std::memory_order_release);
  const pid_t child = SpawnChild(GetParam(), "host", chunk->get(), words_->descriptor());
  EXPECT_EQ(ExitOf(child), 0);
  for (uint64_t i = 0; i < kChunk.count(); ++i) {
    ASSERT_EQ(static_cast<uint8_t>(shared[i]), 0x5c);
  }
}

// Sends or receives one descriptor over a Unix socket.
bool SendDescriptor(int socket, int descriptor) {
  char byte = 0;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec part{&byte, 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  return sendmsg(socket, &message, MSG_NOSIGNAL) == 1;
}

ipc::UniqueFd ReceiveDescriptor(int socket) {
  char byte = 0;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec part{&byte, 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return ipc::UniqueFd();
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return ipc::UniqueFd();
  int descriptor = -1;
  memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
  return ipc::UniqueFd(descriptor);
}

// What a restart of the daemon rests on.
TEST_P(Conformance, MemoryOutlivesACreatorThatIsKilled) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  ipc::UniqueFd ours(ends[0]);
  ipc::UniqueFd theirs(ends[1]);
  const pid_t child = SpawnChild(GetParam(), "create", theirs.get(), words_->descriptor());
  theirs.reset();
  ipc::UniqueFd chunk = ReceiveDescriptor(ours.get());
  EXPECT_TRUE(chunk);
  ASSERT_EQ(kill(child, SIGKILL), 0);
  EXPECT_EQ(ExitOf(child), 1000 + SIGKILL);
  ASSERT_OK(arena_->Import(std::move(chunk), Bytes{0}, kChunk));
  EXPECT_EQ(Read(arena_->base(), kChunk), Pattern(kChunk, 13));
}

// The returned number shows the parent where a child failed.
#define CHILD_CHECK(condition) \
  if (!(condition)) return __LINE__ % 250 + 1

// Makes a chunk, hands it over and waits to be killed.
int CreatingChild(TestBackend& backend) {
  const ipc::UniqueFd socket(kChunkDescriptor);
  auto arena = backend.devices()[0]->ReserveVaRange(MiB(64));
  CHILD_CHECK(arena.ok());
  CHILD_CHECK((*arena)->Create(Bytes{0}, kChunk).ok());
  const auto pattern = Pattern(kChunk, 13);
  TestStream stream(backend, 0);
  CHILD_CHECK(stream->Copy((*arena)->base(), pattern.data(), kChunk).ok());
  CHILD_CHECK(stream->Synchronize().ok());
  const auto chunk = (*arena)->Export(Bytes{0});
  CHILD_CHECK(chunk.ok());
  CHILD_CHECK(SendDescriptor(socket.get(), chunk->get()));
  char byte = 0;
  return read(socket.get(), &byte, 1) == 0 ? 1 : 2;
}

int Child(const std::string& backend_name, const std::string& role) {
  std::string why_not;
  auto backend = OpenBackend(backend_name, &why_not);
  CHILD_CHECK(backend != nullptr);
  if (role == "create") return CreatingChild(*backend);
  Device& device = *backend->devices()[0];
  WordPage words{ipc::UniqueFd(kWordsDescriptor)};
  auto registration = device.RegisterWords(words.begin(), WordPage::kBytes);
  CHILD_CHECK(registration.ok());
  auto arena =
      role == "host" ? device.ReserveHostVaRange(MiB(64), -1) : device.ReserveVaRange(MiB(64));
  CHILD_CHECK(arena.ok());
  CHILD_CHECK((*arena)->Import(ipc::UniqueFd(kChunkDescriptor), MiB(8), kChunk).ok());
  std::byte* chunk = (*arena)->base() + MiB(8).count();
  TestStream stream(*backend, 0);
  std::vector<uint8_t> seen(kChunk.count());
  CHILD_CHECK(stream->Wait(&words[0], 1).ok());
  CHILD_CHECK(stream->Copy(seen.data(), chunk, kChunk).ok());
  CHILD_CHECK(stream->Fill(chunk, 0x5c, kChunk).ok());
  CHILD_CHECK(stream->SignalAfter(&words[1], 1).ok());
  CHILD_CHECK(stream->Synchronize().ok());
  CHILD_CHECK(seen == Pattern(kChunk, 11));
  CHILD_CHECK(Eventually([&] { return words[1].load() == 1; }));
  return 0;
}

TEST_P(Conformance, AFailedCreateLeavesTheRangeFree) {
  const auto before = device().FreeBytes();
  if (!backend_->FailNextCreate()) GTEST_SKIP() << "this backend cannot be made to fail";
  EXPECT_CODE(arena_->Create(Bytes{0}, kChunk), ErrorCode::kDevice);
  const auto after = device().FreeBytes();
  ASSERT_OK(after);
  EXPECT_EQ(*after, *before);
  ASSERT_OK(arena_->Create(Bytes{0}, kChunk));
}

TEST_P(Conformance, TwoDevicesAreApart) {
  if (backend_->devices().size() < 2) GTEST_SKIP() << "one device";
  auto second = NewVaRange(device(1));
  ASSERT_OK(arena_->Create(Bytes{0}, kChunk));
  ASSERT_OK(second->Create(Bytes{0}, kChunk));
  auto registration = device(1).RegisterWords(words_->begin(), WordPage::kBytes);
  ASSERT_OK(registration);
  const auto a = Pattern(kChunk, 1);
  const auto b = Pattern(kChunk, 2);
  memcpy(host_->base(), a.data(), a.size());
  memcpy(host_->base() + kChunk.count(), b.data(), b.size());
  auto up_first = NewChannel(Direction::kHostToDevice, 0);
  auto up_second = NewChannel(Direction::kHostToDevice, 1);
  ASSERT_OK(up_first->Copy(arena_->base(), host_->base(), kChunk));
  ASSERT_OK(up_second->Copy(second->base(), host_->base() + kChunk.count(), kChunk));
  ASSERT_OK(up_first->Signal(&word(0), 1));
  ASSERT_OK(up_second->Signal(&word(1), 1));
  ASSERT_TRUE(Reaches(0, 1));
  ASSERT_TRUE(Reaches(1, 1));
  EXPECT_EQ(Read(arena_->base(), kChunk), a);
  TestStream stream(*backend_, 1);
  ASSERT_OK(stream->Copy(host_->base(), second->base(), kChunk));
  ASSERT_OK(stream->SignalAfter(&word(2), 1));
  ASSERT_TRUE(Reaches(2, 1));
  EXPECT_EQ(memcmp(host_->base(), b.data(), b.size()), 0);
}

TEST_P(Conformance, ArenasMayBeUsedByManyThreads) {
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (uint64_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 10; ++round) {
        if (!arena_->Create(MiB(8 * i), kChunk).ok()) ++failures;
        if (!arena_->Export(MiB(8 * i)).ok()) ++failures;
        if (!arena_->Unmap(MiB(8 * i)).ok()) ++failures;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, Conformance,
                         testing::Values("host", "fake", "cuda", "host_parts", "fake_parts",
                                         "cuda_parts"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace ravenstore::device

int main(int argc, char** argv) {
  const std::string flag = "--child=";
  if (argc == 2 && std::string(argv[1]).rfind(flag, 0) == 0) {
    const std::string what = std::string(argv[1]).substr(flag.size());
    const size_t comma = what.find(',');
    return ravenstore::device::Child(what.substr(0, comma), what.substr(comma + 1));
  }
  testing::InitGoogleTest(&argc, argv);
  ravenstore::device::SkipAbsentBackends();
  return RUN_ALL_TESTS();
}
