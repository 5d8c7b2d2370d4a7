#include "client/call_recorder.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <future>
#include <vector>

#include "device/host_stream.h"
#include "proto/layout.h"
#include "sim/trace.h"
#include "tests/client/store_test.h"

namespace ravenstore {
namespace {

using core::Duration;
using sim::Op;
using sim::OpKind;

class CallRecorderTest : public testing::Test {
 protected:
  CallRecorderTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
    ::setenv("RAVENSTORE_RECORD", (folder_ + "/calls").c_str(), 1);
  }
  ~CallRecorderTest() override { ::unsetenv("RAVENSTORE_RECORD"); }

  Store Connect() { return Store::connect({.socket = daemon_.socket(), .name = "test"}); }
  // What was recorded. Disconnects.
  sim::Trace End(Store store) {
    store = Store();
    std::ifstream file(folder_ + "/calls", std::ios::binary);
    auto trace = sim::Read(file);
    EXPECT_TRUE(trace.ok()) << core::Describe(trace.error());
    return trace.ok() ? std::move(*trace) : sim::Trace{};
  }
  static std::vector<Op> Calls(const sim::Trace& trace) {
    std::vector<Op> calls;
    for (const Op& op : trace.ops)
      if (op.kind != OpKind::kCompute) calls.push_back(op);
    return calls;
  }

  client::MiniDaemon daemon_;
  const std::string folder_ = testing::TempDir() + "call_recorder";
};

TEST_F(CallRecorderTest, EveryKindOfCallIsInTheTrace) {
  TestStream stream;
  Store store = Connect();
  Tensor one = store.create(MiB(2), {.name = "one"});
  store.put(one, stream, {.order = -5});
  store.step();
  store.get(one, stream, {.access = Access::kReadOnly});
  store.put(one, stream);
  store.get(one, stream);
  store.put(one, stream, {.not_needed = true});
  const std::array<uint64_t, 2> sizes = {MiB(1), MiB(3)};
  std::vector<Tensor> two = store.create(sizes);
  store.put(two[1], stream);
  store.get(two[1], stream);
  store.free(std::move(two), stream);
  store.free(std::move(one), stream);
  stream.Synchronize();
  const sim::Trace trace = End(std::move(store));
  const std::vector<Op> calls = Calls(trace);
  ASSERT_EQ(trace.tensors.size(), 3u);
  EXPECT_EQ(trace.tensors[0].name, "one");
  EXPECT_EQ(trace.tensors[2].bytes, core::MiB(3));
  std::vector<OpKind> kinds;
  for (const Op& op : calls) kinds.push_back(op.kind);
  using enum OpKind;
  EXPECT_EQ(kinds, (std::vector<OpKind>{kCreate, kPut, kStep, kGet, kPut, kGet, kPut, kCreate,
                                        kCreate, kPut, kGet, kFree, kFree, kFree}));
  EXPECT_EQ(calls[1].next_use.order, -5);
  EXPECT_TRUE(calls[1].modified) << "it was created";
  EXPECT_TRUE(calls[3].read_only);
  EXPECT_FALSE(calls[4].modified) << "it was got to be read";
  EXPECT_TRUE(calls[6].modified);
  EXPECT_EQ(calls[6].next_use.kind, core::NextUse::Kind::kNever);
  EXPECT_TRUE(sim::Validate(trace).ok());
}

TEST_F(CallRecorderTest, OfOverlappingGetsTheTraceHasTheFirst) {
  TestStream stream;
  Store store = Connect();
  Tensor tensor = store.create(MiB(1));
  store.get(tensor, stream);
  store.put(tensor, stream);
  store.put(tensor, stream);
  store.get(tensor, stream, {.access = Access::kReadOnly});
  store.get(tensor, stream);
  store.put(tensor, stream, {.not_modified = true});
  store.put(tensor, stream);
  store.free(std::move(tensor), stream);
  const std::vector<Op> calls = Calls(End(std::move(store)));
  ASSERT_EQ(calls.size(), 5u);
  EXPECT_EQ(calls[1].kind, OpKind::kPut);
  EXPECT_EQ(calls[2].kind, OpKind::kGet);
  EXPECT_EQ(calls[3].kind, OpKind::kPut);
  EXPECT_TRUE(calls[3].modified) << "the second get may have written";
}

TEST_F(CallRecorderTest, ComputeIsTheStreamsAndItsWaitsAreNotCounted) {
  // Declared first: it outlives the store, whose streams' work it is.
  TestStream stream;
  Store store = Connect();
  Tensor tensor = store.create(MiB(1));
  store.put(tensor, stream);
  stream.Synchronize();
  ASSERT_TRUE(daemon_.Evict(tensor.id()));
  daemon_.HoldArrivals(true);
  daemon_.HoldRequests(true);
  auto getting = std::async(std::launch::async, [&] { store.get(tensor, stream); });
  const proto::LeaseSlot& row = daemon_.Row(tensor.id());
  EXPECT_TRUE(Eventually(
      [&] { return proto::UnpackLease(row.word.load()).state == proto::LeaseState::kFetching; }));
  // The stream has passed the get's first mark; what it is to wait for is not known yet.
  stream.Synchronize();
  const auto passed = std::chrono::steady_clock::now();
  daemon_.HoldRequests(false);
  getting.get();
  // The CPU is through with the get before its bytes are there.
  Duration worked{0};
  stream.Run([&worked] {
    const auto from = std::chrono::steady_clock::now();
    volatile uint64_t sum = 0;
    for (uint64_t i = 0; i < 3'000'000; ++i) sum = sum + i;
    worked = std::chrono::steady_clock::now() - from;
  });
  store.put(tensor, stream);
  const Duration held = std::chrono::steady_clock::now() - passed;
  daemon_.Arrive();
  store.free(std::move(tensor), stream);
  stream.Synchronize();
  const sim::Trace trace = End(std::move(store));
  Duration waited{0};
  Duration computed{0};
  bool got = false;
  for (const Op& op : trace.ops) {
    if (op.kind == OpKind::kGet) {
      waited = op.waited;
      got = true;
    } else if (op.kind == OpKind::kPut && got) {
      break;
    } else if (got) {
      computed += op.time;
    }
  }
  EXPECT_GE(waited, held) << "the stream was held until the put had returned";
  EXPECT_GE(computed, worked) << "of the stream, though the put had returned long before";
}

TEST_F(CallRecorderTest, AFailedCallIsNoneAndAFileThatCannotBeMadeFailsTheConnect) {
  TestStream stream;
  Store store = Connect();
  Tensor tensor = store.create(MiB(1));
  daemon_.FailNextCreate(core::ErrorCode::kOutOfMemory, "none left");
  EXPECT_EQ(CodeOf([&] { store.create(MiB(1)); }), RAVENSTORE_OUT_OF_MEMORY);
  store.put(tensor, stream);
  EXPECT_EQ(CodeOf([&] { store.put(tensor, stream); }), RAVENSTORE_WRONG_STATE);
  store.free(std::move(tensor), stream);
  EXPECT_EQ(Calls(End(std::move(store))).size(), 3u);
  ::setenv("RAVENSTORE_RECORD", (folder_ + "/none/calls").c_str(), 1);
  std::string words;
  EXPECT_EQ(CodeOf([&] { Connect(); }, &words), RAVENSTORE_SYSTEM);
  EXPECT_NE(words.find("none/calls\" cannot be opened"), std::string::npos) << words;
}

TEST_F(CallRecorderTest, MoreCallsThanMayWaitEndTheRecordingWithTheReason) {
  TestStream stream;
  Store store = Connect();
  Tensor tensor = store.create(MiB(1));
  store.put(tensor, stream);
  stream.Block();
  for (size_t i = 0; i <= client::CallRecorder::kPendingMost / 2; ++i) {
    store.get(tensor, stream);
    store.put(tensor, stream);
  }
  stream.Open();
  store.free(std::move(tensor), stream);
  const sim::Trace trace = End(std::move(store));
  ASSERT_EQ(trace.UnknownCalls().size(), 1u);
  EXPECT_EQ(trace.UnknownCalls()[0].first,
            "the recording ended early: 262144 calls wait for the device");
  EXPECT_GE(Calls(trace).size(), 2u) << "what was before is there";
}

TEST_F(CallRecorderTest, AFileThatIsTooLongEndsTheRecordingWithTheReason) {
  auto recorder = client::CallRecorder::Open(folder_ + "/short", "test", 1000);
  ASSERT_TRUE(recorder.ok());
  for (uint64_t id = 1; id < 100; ++id) {
    (*recorder)->Created(id, core::MiB(1), "a tensor", {}, {});
    (*recorder)->Stepped({});
  }
  std::ifstream file(folder_ + "/short", std::ios::binary);
  const auto trace = sim::Read(file);
  ASSERT_TRUE(trace.ok()) << core::Describe(trace.error());
  EXPECT_GT(trace->tensors.size(), 10u);
  EXPECT_LT(trace->tensors.size(), 90u);
  ASSERT_EQ(trace->UnknownCalls().size(), 1u);
  EXPECT_NE(trace->UnknownCalls()[0].first.find("the recording ended early: the file has 10"),
            std::string::npos)
      << trace->UnknownCalls()[0].first;
}

// The frees of 12,000 tensors are more than a recorder keeps before it writes to the shared file.
TEST_F(CallRecorderTest, AChildOfForkRecordsNothing) {
  constexpr size_t kTensors = 12'000;
  Store store = Connect();
  std::vector<Tensor> tensors = store.create(std::vector<uint64_t>(kTensors, KiB(4)));
  ASSERT_TRUE(Eventually([&] { return daemon_.asleep(); }));
  const pid_t child = ::fork();
  if (child == 0) {
    bool refused = true;
    for (const Tensor& tensor : tensors) {
      refused = refused &&
                ravenstore_free(store.handle(), tensor.handle(), nullptr) == RAVENSTORE_IS_FORKED;
    }
    ::_exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  store.put(tensors[0], nullptr);
  store.free(std::move(tensors), nullptr);
  EXPECT_EQ(Calls(End(std::move(store))).size(), 2 * kTensors + 1);
}

TEST_F(CallRecorderTest, AStreamThatIsCapturedIsNotMarked) {
  device::HostStream host;
  Store store = Connect();
  Tensor tensor = store.create(MiB(1));
  store.put(tensor, &host);
  host.set_capturing(true);
  EXPECT_EQ(CodeOf([&] { store.get(tensor, &host); }), RAVENSTORE_CAPTURING);
  Tensor other = store.create(MiB(1));
  host.set_capturing(false);
  store.free(std::move(tensor), &host);
  store.free(std::move(other), &host);
  EXPECT_EQ(Calls(End(std::move(store))).size(), 5u);
}

}  // namespace
}  // namespace ravenstore
