#include "client/access.h"

#include "tests/client/store_test.h"

namespace ravenstore {
namespace {

using proto::HintKind;
using proto::LeaseState;
using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr uint64_t kBytes = 4096;

using AccessTest = StoreTest;

TEST_F(AccessTest, ResidentGetFindsTheBytesWithoutTheDaemon) {
  Tensor tensor = Idle(kBytes, 7);
  daemon_.HoldRequests(true);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(Holds(store_.get(tensor, nullptr), 7, kBytes));
    store_.put(tensor, nullptr);
  }
  EXPECT_TRUE(Eventually([&] { return daemon_.counts().gets_logged == 3; }));
  EXPECT_TRUE(Eventually([&] { return daemon_.counts().puts_logged == 4; }));
  EXPECT_EQ(daemon_.counts().fetches, 0u);
  daemon_.HoldRequests(false);
}

TEST_F(AccessTest, DataIsThereOnlyInUserspace) {
  Tensor tensor = store_.create(kBytes);
  void* const created = tensor.data();
  store_.put(tensor, nullptr);
  EXPECT_EQ(CodeOf([&] { static_cast<void>(tensor.data()); }), RAVENSTORE_WRONG_STATE);
  EXPECT_EQ(store_.get(tensor, nullptr), created);
  EXPECT_EQ(tensor.data(), created);
}

TEST_F(AccessTest, EveryGetAndPutRaisesTheGeneration) {
  Tensor tensor = Idle(kBytes, 1);
  const proto::LeaseWord before = LeaseOf(tensor);
  store_.get(tensor, nullptr);
  EXPECT_EQ(LeaseOf(tensor).state, LeaseState::kInUse);
  EXPECT_EQ(LeaseOf(tensor).holders, 1);
  store_.put(tensor, nullptr);
  EXPECT_EQ(LeaseOf(tensor).state, LeaseState::kIdle);
  EXPECT_EQ(LeaseOf(tensor).generation, before.generation + 2);
}

TEST_F(AccessTest, OnlyTheLastPutOfOverlappingGetsGoesToRavenspace) {
  Tensor tensor = Idle(kBytes, 1);
  void* const first = store_.get(tensor, nullptr);
  EXPECT_EQ(store_.get(tensor, nullptr), first);
  EXPECT_EQ(LeaseOf(tensor).holders, 2);
  store_.put(tensor, nullptr);
  EXPECT_EQ(LeaseOf(tensor).state, LeaseState::kInUse);
  EXPECT_EQ(tensor.data(), first);
  store_.put(tensor, nullptr);
  EXPECT_EQ(LeaseOf(tensor).state, LeaseState::kIdle);
}

TEST_F(AccessTest, PutTwiceIsRefusedInWords) {
  Tensor tensor = store_.create(kBytes, {.name = "layer3.mlp"});
  store_.put(tensor, nullptr);
  std::string words;
  EXPECT_EQ(CodeOf([&] { store_.put(tensor, nullptr); }, &words), RAVENSTORE_WRONG_STATE);
  EXPECT_THAT(words, HasSubstr("tensor " + std::to_string(tensor.id())));
  EXPECT_THAT(words, HasSubstr("layer3.mlp"));
  EXPECT_THAT(words, HasSubstr("put twice"));
}

TEST_F(AccessTest, AwayGetBringsTheBytesToAnotherAddress) {
  Tensor tensor = store_.create(kBytes);
  void* const old = tensor.data();
  Fill(old, 9, kBytes);
  store_.put(tensor, nullptr);
  ASSERT_TRUE(daemon_.Evict(tensor.id()));
  EXPECT_FALSE(tensor.ready());
  void* const brought = store_.get(tensor, nullptr);
  EXPECT_NE(brought, old);
  EXPECT_TRUE(Holds(brought, 9, kBytes));
  EXPECT_TRUE(tensor.ready());
}

TEST_F(AccessTest, PrefetchedTensorIsFoundWithoutAsking) {
  Tensor tensor = Away(kBytes, 5);
  ASSERT_TRUE(daemon_.Prefetch(tensor.id()));
  EXPECT_TRUE(tensor.ready());
  EXPECT_TRUE(Holds(store_.get(tensor, nullptr), 5, kBytes));
  EXPECT_EQ(daemon_.counts().fetches, 0u);
}

TEST_F(AccessTest, CallingThreadWaitsForTheBytes) {
  Tensor tensor = Away(kBytes, 6);
  daemon_.HoldArrivals(true);
  std::thread later([&] {
    ASSERT_TRUE(Eventually([&] { return daemon_.counts().fetches == 1; }));
    daemon_.Arrive();
  });
  EXPECT_TRUE(Holds(store_.get(tensor, nullptr), 6, kBytes));
  later.join();
}

TEST_F(AccessTest, StreamWaitsForTheBytesAndTheCallerDoesNot) {
  TestStream stream;
  Tensor tensor = Away(kBytes, 6);
  daemon_.HoldArrivals(true);
  void* const address = store_.get(tensor, stream);
  EXPECT_FALSE(tensor.ready());
  std::atomic<int> held{-1};
  stream.Run([&] { held.store(Holds(address, 6, kBytes) ? 1 : 0); });
  EXPECT_EQ(held.load(), -1);
  daemon_.Arrive();
  stream.Synchronize();
  EXPECT_EQ(held.load(), 1);
  EXPECT_TRUE(tensor.ready());
}

TEST_F(AccessTest, BlockingGetReturnsWithTheBytes) {
  TestStream stream;
  Tensor tensor = Away(kBytes, 8);
  daemon_.HoldArrivals(true);
  std::thread later([&] {
    ASSERT_TRUE(Eventually([&] { return daemon_.counts().fetches == 1; }));
    daemon_.Arrive();
  });
  EXPECT_TRUE(Holds(store_.get(tensor, stream, {.blocking = true}), 8, kBytes));
  later.join();
}

TEST_F(AccessTest, ArrivalThatNeverComesTimesOutAndLeavesTheTensorIdle) {
  Tensor tensor = Away(kBytes, 8);
  daemon_.HoldArrivals(true);
  EXPECT_EQ(CodeOf([&] { store_.get(tensor, nullptr, {.timeout = milliseconds(20)}); }),
            RAVENSTORE_TIMED_OUT);
  EXPECT_EQ(LeaseOf(tensor).state, LeaseState::kIdle);
  daemon_.Arrive();
  EXPECT_TRUE(Holds(store_.get(tensor, nullptr), 8, kBytes));
}

// The next get waits for the writer's put: a stream as it goes, and the calling thread.
class AccessAfterAPutTest : public AccessTest {
 protected:
  void ExpectWaits(bool with_another_holder) {
    TestStream writer, reader;
    Tensor tensor = Idle(kBytes, 1);
    if (with_another_holder) store_.get(tensor, nullptr);
    store_.get(tensor, writer);
    writer.Block();
    store_.put(tensor, writer);
    store_.get(tensor, reader);
    std::atomic<bool> ran{false};
    reader.Run([&] { ran.store(true); });
    EXPECT_EQ(CodeOf([&] { store_.get(tensor, nullptr, {.timeout = milliseconds(20)}); }),
              RAVENSTORE_TIMED_OUT);
    EXPECT_FALSE(ran.load());
    writer.Open();
    reader.Synchronize();
    EXPECT_TRUE(ran.load());
    store_.put(tensor, reader);
  }
};

TEST_F(AccessAfterAPutTest, AGetOnAnotherStreamWaits) {
  ExpectWaits(/*with_another_holder=*/false);
}

TEST_F(AccessAfterAPutTest, AGetConcurrentWithAnotherHolderWaits) {
  ExpectWaits(/*with_another_holder=*/true);
}

TEST_F(AccessTest, TensorIsNotStreamCompleteBeforeItsStreamIs) {
  TestStream stream;
  Tensor tensor = Idle(kBytes, 1);
  store_.get(tensor, stream);
  stream.Block();
  store_.put(tensor, stream);
  EXPECT_FALSE(daemon_.Evict(tensor.id()));
  stream.Open();
  stream.Synchronize();
  EXPECT_TRUE(Eventually([&] { return daemon_.Evict(tensor.id()); }));
}

TEST_F(AccessTest, LastPutStandsForTheEarlierPutsOfOtherStreams) {
  TestStream slow;
  Tensor tensor = Idle(kBytes, 1);
  store_.get(tensor, slow);
  store_.get(tensor, nullptr);
  slow.Block();
  store_.put(tensor, slow);
  store_.put(tensor, nullptr);
  EXPECT_EQ(LeaseOf(tensor).state, LeaseState::kIdle);
  EXPECT_FALSE(daemon_.Evict(tensor.id())) << "the slow stream still works on it";
  slow.Open();
  EXPECT_TRUE(Eventually([&] { return daemon_.Evict(tensor.id()); }));
}

TEST_F(AccessTest, WritesRiseOnlyForUsesThatMayHaveWritten) {
  Tensor tensor = Idle(kBytes, 1);
  const auto writes = [&] { return daemon_.Row(tensor.id()).writes.load(); };
  EXPECT_EQ(writes(), 1u) << "the create";
  store_.get(tensor, nullptr, {.access = Access::kReadOnly});
  store_.put(tensor, nullptr);
  EXPECT_EQ(writes(), 1u);
  store_.get(tensor, nullptr);
  store_.put(tensor, nullptr, {.not_modified = true});
  EXPECT_EQ(writes(), 1u);
  store_.get(tensor, nullptr, {.access = Access::kReadOnly});
  store_.put(tensor, nullptr);
  EXPECT_EQ(writes(), 1u) << "what an earlier use might have done was denied at its put";
  store_.get(tensor, nullptr);
  store_.put(tensor, nullptr);
  EXPECT_EQ(writes(), 2u);
}

TEST_F(AccessTest, HintsReachTheRow) {
  Tensor tensor = Idle(kBytes, 1);
  const auto hint_of = [&](const PutOptions& options) {
    store_.get(tensor, nullptr);
    store_.put(tensor, nullptr, options);
    return proto::UnpackHint(daemon_.Row(tensor.id()).hint.load());
  };
  EXPECT_EQ(hint_of({}).kind, HintKind::kNone);
  EXPECT_EQ(hint_of({.order = -3}).kind, HintKind::kOrder);
  EXPECT_EQ(hint_of({.order = -3}).value, static_cast<uint64_t>(proto::kOrderBias - 3));
  EXPECT_EQ(hint_of({.not_needed = true}).kind, HintKind::kNotNeeded);
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  EXPECT_EQ(hint_of({.priority = Priority::kLow}).priority, proto::HintPriority::kLow);
  EXPECT_EQ(hint_of({}).priority, proto::HintPriority::kNormal) << "holds until the next put";
  const proto::Hint both = hint_of({.order = 7, .priority = Priority::kHigh});
  EXPECT_EQ(both.priority, proto::HintPriority::kHigh);
  EXPECT_EQ(both.kind, HintKind::kOrder);
  EXPECT_EQ(both.value, static_cast<uint64_t>(proto::kOrderBias + 7));
  const proto::Hint hint = hint_of({.needed_in = std::chrono::seconds(60)});
  EXPECT_EQ(hint.kind, HintKind::kNeededAt);
  const auto ahead = std::chrono::nanoseconds(hint.value << 10) - now;
  EXPECT_GT(ahead, std::chrono::seconds(59));
  EXPECT_LT(ahead, std::chrono::seconds(75));
}

TEST_F(AccessTest, GetThatFailsConcurrentlyWithAPutLeavesWhatThePutSaid) {
  TestStream stream;
  Tensor tensor = Idle(kBytes, 1);
  store_.get(tensor, stream);
  stream.Block();
  store_.put(tensor, stream, {.not_needed = true, .recompute = milliseconds(1)});
  store_.get(tensor, stream);
  std::thread other([&] {
    EXPECT_EQ(CodeOf([&] { store_.get(tensor, nullptr, {.timeout = milliseconds(100)}); }),
              RAVENSTORE_TIMED_OUT);
  });
  ASSERT_TRUE(Eventually([&] { return LeaseOf(tensor).holders == 2; }));
  store_.put(tensor, stream);
  other.join();
  EXPECT_EQ(LeaseOf(tensor).state, LeaseState::kIdle);
  EXPECT_EQ(proto::UnpackHint(daemon_.Row(tensor.id()).hint.load()).kind, HintKind::kNone)
      << "what was put is needed: the daemon must not drop it";
  EXPECT_EQ(daemon_.Row(tensor.id()).recompute.load(), 0u);
  stream.Open();
}

TEST_F(AccessTest, DeniedGetNamesTheTensorAndTheReason) {
  Tensor tensor = Away(kBytes, 4);
  daemon_.FailNextFetch(core::ErrorCode::kOutOfMemory, "client 3 holds 4 GiB in use");
  std::string words;
  EXPECT_EQ(CodeOf([&] { store_.get(tensor, nullptr); }, &words), RAVENSTORE_OUT_OF_MEMORY);
  EXPECT_THAT(words, HasSubstr("tensor " + std::to_string(tensor.id())));
  EXPECT_THAT(words, HasSubstr("client 3 holds 4 GiB in use"));
  EXPECT_TRUE(Holds(store_.get(tensor, nullptr), 4, kBytes));
}

TEST_F(AccessTest, LostTensorIsLostForEver) {
  Tensor tensor = Away(kBytes, 4);
  daemon_.FailNextFetch(core::ErrorCode::kLost, "");
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(CodeOf([&] { store_.get(tensor, nullptr); }), RAVENSTORE_LOST);
  }
  EXPECT_EQ(CodeOf([&] { static_cast<void>(tensor.ready()); }), RAVENSTORE_LOST);
  EXPECT_EQ(CodeOf([&] { store_.free(std::move(tensor), nullptr); }), RAVENSTORE_OK);
}

TEST_F(AccessTest, StreamThatWaitedForALostTensorFails) {
  TestStream stream;
  Tensor tensor = Away(kBytes, 4);
  daemon_.HoldArrivals(true);
  store_.get(tensor, stream);
  EXPECT_EQ(CodeOf([&] { store_.check(stream); }), RAVENSTORE_OK);
  daemon_.Lose(tensor.id());
  daemon_.Arrive();
  EXPECT_EQ(CodeOf([&] { store_.check(stream); }), RAVENSTORE_LOST);
  EXPECT_EQ(CodeOf([&] { store_.check(nullptr); }), RAVENSTORE_OK) << "another stream";
  EXPECT_EQ(CodeOf([&] { store_.put(tensor, stream); }), RAVENSTORE_LOST);
}

TEST_F(AccessTest, StreamThatWaitedForALostTensorFailsAfterItsFree) {
  TestStream stream;
  TestStream other;
  Tensor whole = Away(kBytes, 4);
  store_.get(whole, other);
  Tensor tensor = Away(kBytes, 4);
  daemon_.HoldArrivals(true);
  store_.get(tensor, stream);
  daemon_.Lose(tensor.id());
  daemon_.Arrive();
  store_.free(std::move(tensor), nullptr);
  EXPECT_EQ(CodeOf([&] { store_.check(stream); }), RAVENSTORE_LOST);
  EXPECT_EQ(CodeOf([&] { store_.check(other); }), RAVENSTORE_OK) << "its tensor came whole";
}

TEST_F(AccessTest, UnresponsiveDaemonIsNamedAndItsLateAnswerIsKept) {
  Tensor tensor = Away(kBytes, 2);
  daemon_.HoldRequests(true);
  std::string words;
  const auto impatient = [&] { store_.get(tensor, nullptr, {.timeout = milliseconds(1)}); };
  EXPECT_EQ(CodeOf(impatient, &words), RAVENSTORE_TIMED_OUT);
  EXPECT_THAT(words, HasSubstr("daemon is unresponsive"));
  daemon_.HoldRequests(false);
  ASSERT_TRUE(Eventually([&] { return LeaseOf(tensor).state == LeaseState::kInUse; }));
  EXPECT_TRUE(Holds(store_.get(tensor, nullptr), 2, kBytes));
  EXPECT_EQ(LeaseOf(tensor).holders, 1) << "the holder that came late is the one that was got";
  EXPECT_EQ(daemon_.counts().fetches, 1u);
  store_.put(tensor, nullptr);
  EXPECT_EQ(LeaseOf(tensor).state, LeaseState::kIdle);
}

TEST_F(AccessTest, BatchAsksForAllBeforeItWaitsForAny) {
  std::vector<Tensor> tensors;
  std::vector<ravenstore_tensor_t*> handles;
  for (int i = 0; i < 20; ++i) {
    tensors.push_back(i % 2 == 0 ? Away(kBytes, i) : Idle(kBytes, i));
    handles.push_back(tensors.back().handle());
  }
  handles.push_back(tensors[0].handle());  // twice in one batch
  std::vector<void*> addresses(handles.size());
  ASSERT_EQ(ravenstore_get_batch(store_.handle(), handles.data(), handles.size(), nullptr, nullptr,
                                 addresses.data()),
            RAVENSTORE_OK);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(Holds(addresses[i], i, kBytes)) << i;
  EXPECT_EQ(addresses.back(), addresses[0]);
  EXPECT_EQ(daemon_.counts().fetches, 10u);
  EXPECT_EQ(ravenstore_put_batch(store_.handle(), handles.data(), handles.size(), nullptr, nullptr),
            RAVENSTORE_OK);
  for (Tensor& tensor : tensors) EXPECT_EQ(LeaseOf(tensor).state, LeaseState::kIdle);
}

TEST_F(AccessTest, WhatWasAskedForAheadIsTheNextGets) {
  Tensor away = Away(kBytes, 1);
  Tensor idle = Idle(kBytes, 2);
  ravenstore_tensor_t* tensors[] = {away.handle(), idle.handle()};
  ASSERT_EQ(ravenstore_begin_get_batch(store_.handle(), tensors, 2, nullptr), RAVENSTORE_OK);
  ASSERT_TRUE(Eventually([&] { return LeaseOf(away).state == LeaseState::kInUse; }));
  EXPECT_EQ(LeaseOf(idle).state, LeaseState::kIdle) << "it is here";
  EXPECT_TRUE(Holds(store_.get(away, nullptr), 1, kBytes));
  EXPECT_EQ(LeaseOf(away).holders, 1u) << "there is one get";
  EXPECT_EQ(daemon_.counts().fetches, 1u);
  store_.put(away, nullptr);
  EXPECT_EQ(LeaseOf(away).state, LeaseState::kIdle);
}

TEST_F(AccessTest, WhatWasAskedForAheadAndDeniedIsAskedForAgain) {
  Tensor away = Away(kBytes, 1);
  ravenstore_tensor_t* const tensor = away.handle();
  daemon_.FailNextFetch(core::ErrorCode::kOutOfMemory, "full");
  ASSERT_EQ(ravenstore_begin_get_batch(store_.handle(), &tensor, 1, nullptr), RAVENSTORE_OK);
  ASSERT_TRUE(Eventually([&] { return LeaseOf(away).state == LeaseState::kAway; }));
  EXPECT_TRUE(Holds(store_.get(away, nullptr), 1, kBytes));
  EXPECT_EQ(daemon_.counts().fetches, 2u);
}

TEST_F(AccessTest, BatchThatFailsHoldsNothing) {
  std::vector<Tensor> tensors;
  std::vector<ravenstore_tensor_t*> handles;
  for (int i = 0; i < 4; ++i) {
    tensors.push_back(i < 2 ? Away(kBytes, i) : Idle(kBytes, i));
    handles.push_back(tensors.back().handle());
  }
  daemon_.FailNextFetch(core::ErrorCode::kOutOfMemory, "full");
  std::vector<void*> addresses(4, &tensors);
  EXPECT_EQ(
      ravenstore_get_batch(store_.handle(), handles.data(), 4, nullptr, nullptr, addresses.data()),
      RAVENSTORE_OUT_OF_MEMORY);
  EXPECT_THAT(addresses, testing::Each(nullptr));
  EXPECT_EQ(LeaseOf(tensors[0]).state, LeaseState::kAway);
  for (int i = 1; i < 4; ++i) EXPECT_EQ(LeaseOf(tensors[i]).state, LeaseState::kIdle) << i;
}

TEST_F(AccessTest, GetIntoCopiesAndLeavesTheTensorIdleAndClean) {
  TestStream stream;
  Tensor tensor = Away(kBytes, 0x5a);
  const uint32_t writes = daemon_.Row(tensor.id()).writes.load();
  std::vector<unsigned char> copy(kBytes);
  store_.get_into(tensor, copy.data(), stream);
  stream.Synchronize();
  EXPECT_TRUE(Holds(copy.data(), 0x5a, kBytes));
  EXPECT_EQ(LeaseOf(tensor).state, LeaseState::kIdle);
  EXPECT_EQ(daemon_.Row(tensor.id()).writes.load(), writes);
}

TEST_F(AccessTest, TensorsInSlabsThatComeLateAreWaitedFor) {
  daemon_.HoldSlabs(true);
  std::thread later([&] {
    ASSERT_TRUE(Eventually([&] { return daemon_.counts().creates == 1; }));
    daemon_.HoldSlabs(false);
  });
  Tensor tensor = store_.create(kBytes);
  later.join();
  Fill(tensor.data(), 1, kBytes);
}

TEST_F(AccessTest, SlabThatNeverComesIsAnError) {
  daemon_.HoldSlabs(true);
  std::string words;
  EXPECT_EQ(CodeOf([&] { store_.create(kBytes, {.timeout = milliseconds(1)}); }, &words),
            RAVENSTORE_TIMED_OUT);
  EXPECT_THAT(words, HasSubstr("not mapped in time"));
  EXPECT_TRUE(Eventually([&] { return daemon_.tensors() == 0; })) << "it was given back";
}

TEST_F(AccessTest, ExtentMaySpanSlabs) {
  const uint64_t bytes = MiB(20);
  Tensor tensor = Away(bytes, 0x11);
  EXPECT_TRUE(Holds(store_.get(tensor, nullptr), 0x11, bytes));
}

TEST_F(AccessTest, EmptySlabsAreUnmappedWhenAsked) {
  Tensor tensor = Away(MiB(8), 1);
  store_.get(tensor, nullptr);
  const size_t asked = daemon_.ReleaseSlabs(0);
  EXPECT_GT(asked, 0u);
  EXPECT_TRUE(Eventually([&] { return daemon_.counts().slabs_released == asked; }));
  EXPECT_TRUE(Holds(tensor.data(), 1, MiB(8)));
}

class TwoDevices : public StoreTest {
 protected:
  TwoDevices() : StoreTest({.devices = 2}) {}
};

TEST_F(TwoDevices, GetOnAnotherDeviceMovesTheTensorThere) {
  Tensor tensor = Idle(kBytes, 0x21);
  EXPECT_EQ(tensor.device(), 0);
  EXPECT_TRUE(Holds(store_.get(tensor, nullptr, {.device = 1}), 0x21, kBytes));
  EXPECT_EQ(tensor.device(), 1);
  std::string words;
  EXPECT_EQ(CodeOf([&] { store_.get(tensor, nullptr, {.device = 0}); }, &words),
            RAVENSTORE_WRONG_STATE);
  EXPECT_THAT(words, HasSubstr("in use on another device"));
  store_.put(tensor, nullptr);
  ASSERT_TRUE(daemon_.Evict(tensor.id()));
  EXPECT_TRUE(Holds(store_.get(tensor, nullptr), 0x21, kBytes));
  EXPECT_EQ(tensor.device(), 1) << "where it was last";
}

TEST_F(TwoDevices, DeniedMoveLeavesTheTensorWhereItIs) {
  Tensor tensor = Idle(kBytes, 0x21);
  daemon_.FailNextFetch(core::ErrorCode::kOutOfMemory, "device 1 is full");
  std::string words;
  EXPECT_EQ(CodeOf([&] { store_.get(tensor, nullptr, {.device = 1}); }, &words),
            RAVENSTORE_OUT_OF_MEMORY);
  EXPECT_THAT(words, HasSubstr("device 1 is full"));
  EXPECT_EQ(tensor.device(), 0);
  EXPECT_TRUE(Holds(store_.get(tensor, nullptr), 0x21, kBytes));
}

TEST_F(TwoDevices, MoveThatWasNeverAskedForIsLoggedAsAPut) {
  Tensor tensor = Idle(kBytes, 0x21);
  const proto::LeaseWord before = LeaseOf(tensor);
  daemon_.HoldRequests(true);
  for (uint64_t i = 0; i < proto::kRequestRingEntries; ++i) store_.step();
  const auto impatient = [&] {
    store_.get(tensor, nullptr, {.device = 1, .timeout = milliseconds(1)});
  };
  EXPECT_EQ(CodeOf(impatient), RAVENSTORE_TIMED_OUT);
  EXPECT_EQ(LeaseOf(tensor).state, LeaseState::kIdle);
  EXPECT_NE(LeaseOf(tensor).generation, before.generation);
  daemon_.HoldRequests(false);  // and it looks at the log
  EXPECT_TRUE(Eventually([&] { return daemon_.counts().puts_logged == 2; }))
      << "the daemon does not know the word that it may evict from";
  EXPECT_TRUE(Holds(store_.get(tensor, nullptr, {.device = 1}), 0x21, kBytes));
}

TEST_F(TwoDevices, DeniedMoveIsNotMistakenForAnotherThreadsGet) {
  Tensor tensor = Idle(kBytes, 0x21);
  std::atomic<bool> done{false};
  // Gets where the tensor is, all the time, so that one falls between a denial and its reading.
  std::thread reader([&] {
    while (!done.load()) {
      void* address = nullptr;
      ASSERT_EQ(ravenstore_get(store_.handle(), tensor.handle(), nullptr, nullptr, &address),
                RAVENSTORE_OK);
      ASSERT_EQ(ravenstore_put(store_.handle(), tensor.handle(), nullptr, nullptr), RAVENSTORE_OK);
    }
  });
  ravenstore_get_options_t there{};
  there.struct_size = sizeof(there);
  there.flags = RAVENSTORE_ON_DEVICE;
  there.device = 1;
  for (int denied = 0; denied < 20;) {
    daemon_.FailNextFetch(core::ErrorCode::kOutOfMemory, "full");
    void* address = nullptr;
    const auto code = ravenstore_get(store_.handle(), tensor.handle(), nullptr, &there, &address);
    ASSERT_TRUE(code == RAVENSTORE_OUT_OF_MEMORY || code == RAVENSTORE_WRONG_STATE) << code;
    if (code == RAVENSTORE_OUT_OF_MEMORY) ++denied;
  }
  done.store(true);
  reader.join();
  EXPECT_EQ(LeaseOf(tensor).state, LeaseState::kIdle);
}

TEST_F(TwoDevices, GetWhoseOptionsNameNoDeviceLeavesTheTensorWhereItIs) {
  Tensor tensor = store_.create(kBytes, {.device = 1});
  store_.put(tensor, nullptr);
  ravenstore_get_options_t options{};
  options.struct_size = sizeof(options);
  options.flags = RAVENSTORE_READ_ONLY;
  void* address = nullptr;
  ASSERT_EQ(ravenstore_get(store_.handle(), tensor.handle(), nullptr, &options, &address),
            RAVENSTORE_OK)
      << ravenstore_last_error();
  EXPECT_EQ(tensor.device(), 1);
  store_.put(tensor, nullptr);
  // With the flag it is the first device that is meant.
  options.flags |= RAVENSTORE_ON_DEVICE;
  ASSERT_EQ(ravenstore_get(store_.handle(), tensor.handle(), nullptr, &options, &address),
            RAVENSTORE_OK)
      << ravenstore_last_error();
  EXPECT_EQ(tensor.device(), 0);
}

TEST_F(TwoDevices, DeviceAndItsFlagGoTogether) {
  Tensor tensor = Idle(kBytes, 1);
  ravenstore_get_options_t options{};
  options.struct_size = sizeof(options);
  options.device = 1;
  void* address = nullptr;
  const auto get = [&] {
    return ravenstore_get(store_.handle(), tensor.handle(), nullptr, &options, &address);
  };
  EXPECT_EQ(get(), RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_THAT(ravenstore_last_error(), HasSubstr("RAVENSTORE_ON_DEVICE"));
  options.device = -1;  // as programs that know of no flag say it
  EXPECT_EQ(get(), RAVENSTORE_OK) << ravenstore_last_error();
  store_.put(tensor, nullptr);
  options.flags = RAVENSTORE_ON_DEVICE;
  EXPECT_EQ(get(), RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_EQ(LeaseOf(tensor).state, LeaseState::kIdle);
}

TEST_F(TwoDevices, UnknownDeviceIsNotFound) {
  Tensor tensor = Idle(kBytes, 1);
  EXPECT_EQ(CodeOf([&] { store_.get(tensor, nullptr, {.device = 2}); }), RAVENSTORE_NOT_FOUND);
  EXPECT_EQ(CodeOf([&] { store_.create(kBytes, {.device = 5}); }), RAVENSTORE_NOT_FOUND);
  EXPECT_EQ(CodeOf([&] { store_.create(kBytes, {.device = -1}); }), RAVENSTORE_NOT_FOUND);
}

// ---- Tensors that may be recomputed ----

class RecomputeTest : public StoreTest {
 protected:
  // In Ravenspace, and its bytes are gone.
  Tensor Discarded(int value) {
    Tensor tensor = store_.create(kBytes);
    Fill(tensor.data(), value, kBytes);
    store_.put(tensor, nullptr, {.recompute = std::chrono::milliseconds(5)});
    EXPECT_TRUE(daemon_.Evict(tensor.id()));
    daemon_.DiscardNextFetch();
    return tensor;
  }
};

TEST_F(RecomputeTest, CostOfRecomputingItStandsInTheRow) {
  Tensor tensor = store_.create(kBytes);
  store_.put(tensor, nullptr, {.recompute = std::chrono::milliseconds(5)});
  const uint64_t recompute_ns = proto::UnpackRecompute(daemon_.Row(tensor.id()).recompute.load());
  EXPECT_NEAR(static_cast<double>(recompute_ns), 5e6, 5e3);
  store_.get(tensor, nullptr);
  store_.put(tensor, nullptr);
  EXPECT_EQ(daemon_.Row(tensor.id()).recompute.load(), 0u) << "holds until the next put";
}

TEST_F(RecomputeTest, GetOfDiscardedBytesSaysSoUntilTheyAreRecomputed) {
  Tensor tensor = Discarded(1);
  const uint32_t writes = daemon_.Row(tensor.id()).writes.load();
  void* address = store_.get(tensor, nullptr, {.access = Access::kReadOnly});
  EXPECT_TRUE(tensor.must_recompute());
  EXPECT_FALSE(tensor.ready());
  store_.put(tensor, nullptr, {.not_modified = true});  // thought better of it
  address = store_.get(tensor, nullptr, {.access = Access::kReadOnly});
  EXPECT_TRUE(tensor.must_recompute());
  Fill(address, 2, kBytes);
  store_.put(tensor, nullptr);
  EXPECT_FALSE(tensor.must_recompute());
  EXPECT_GT(daemon_.Row(tensor.id()).writes.load(), writes) << "new bytes, though got read-only";
  ASSERT_TRUE(daemon_.Evict(tensor.id()));
  EXPECT_TRUE(Holds(store_.get(tensor, nullptr), 2, kBytes));
  EXPECT_FALSE(tensor.must_recompute());
}

TEST_F(RecomputeTest, EveryGetOfTheSameUseMustRecompute) {
  Tensor tensor = Discarded(1);
  void* address = nullptr;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(ravenstore_get(store_.handle(), tensor.handle(), nullptr, nullptr, &address),
              RAVENSTORE_RECOMPUTE);
    EXPECT_NE(address, nullptr);
  }
}

TEST_F(RecomputeTest, BatchSaysWhichOfItsTensors) {
  Tensor kept = Idle(kBytes, 3);
  Tensor discarded = Discarded(1);
  ravenstore_tensor_t* tensors[] = {kept.handle(), discarded.handle()};
  void* addresses[2] = {};
  EXPECT_EQ(ravenstore_get_batch(store_.handle(), tensors, 2, nullptr, nullptr, addresses),
            RAVENSTORE_RECOMPUTE);
  EXPECT_FALSE(kept.must_recompute());
  EXPECT_TRUE(discarded.must_recompute());
  EXPECT_TRUE(Holds(addresses[0], 3, kBytes));
}

TEST_F(RecomputeTest, GetIntoCopiesNothing) {
  Tensor tensor = Discarded(1);
  std::vector<char> to(kBytes, 9);
  EXPECT_EQ(CodeOf([&] { store_.get_into(tensor, to.data(), nullptr); }), RAVENSTORE_RECOMPUTE);
  EXPECT_TRUE(Holds(to.data(), 9, kBytes));
  EXPECT_EQ(LeaseOf(tensor).state, LeaseState::kIdle);
  EXPECT_TRUE(tensor.must_recompute());
}

}  // namespace
}  // namespace ravenstore
