#include "daemon/recorder.h"

#include <google/protobuf/io/coded_stream.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace ravenstore::daemon {
namespace {

using core::ClientId;
using core::TensorId;
using core::Tick;
using proto::TraceOp;
using std::chrono::microseconds;

constexpr Tick kBegin{std::chrono::seconds(5)};

core::TensorView View(uint64_t id, uint32_t client = 1) {
  core::TensorView view{};
  view.id = TensorId{id};
  view.client = ClientId{client};
  view.size = core::KiB(4);
  view.name = core::NameId{1};
  return view;
}
core::PutSeen PutOf(uint64_t id, uint32_t writes) {
  return {TensorId{id}, writes, {}, {}};
}

class RecorderTest : public testing::Test {
 protected:
  static Recorder::Options Options(size_t bytes_max = 1 << 20) {
    Recorder::Options options;
    options.name = [](ClientId, core::NameId) { return "weights"; };
    options.bytes_max = bytes_max;
    return options;
  }
  std::vector<TraceOp> Ops() {
    std::vector<TraceOp> ops;
    for (std::string chunk = recorder_.Take(); !chunk.empty(); chunk = recorder_.Take()) {
      google::protobuf::io::CodedInputStream in(reinterpret_cast<const uint8_t*>(chunk.data()),
                                                static_cast<int>(chunk.size()));
      uint32_t length = 0;
      while (in.ReadVarint32(&length)) {
        const auto limit = in.PushLimit(static_cast<int>(length));
        EXPECT_TRUE(ops.emplace_back().ParseFromCodedStream(&in));
        in.PopLimit(limit);
      }
    }
    return ops;
  }
  std::vector<TraceOp::Kind> Kinds() {
    std::vector<TraceOp::Kind> kinds;
    for (const TraceOp& op : Ops()) kinds.push_back(op.kind());
    return kinds;
  }
  using KindList = std::vector<TraceOp::Kind>;

  Recorder recorder_{Options()};
};

TEST_F(RecorderTest, LifeOfATensorWithTheComputeBetweenItsCalls) {
  recorder_.Created(View(7), kBegin);
  core::PutSeen put = PutOf(7, 1);
  put.next_use = {core::NextUse::Kind::kOrder, {}, -3};
  put.recompute = microseconds(40);
  put.priority = core::Priority::kHigh;
  recorder_.Put(View(7), put, kBegin + microseconds(10));
  recorder_.Got(View(7), kBegin + microseconds(30));
  recorder_.Put(View(7), PutOf(7, 1), kBegin + microseconds(30));
  recorder_.Freed(View(7), kBegin + microseconds(30));
  const auto ops = Ops();
  ASSERT_EQ(ops.size(), 7u);
  EXPECT_EQ(ops[0].kind(), TraceOp::CREATE);
  EXPECT_EQ(ops[0].tensor(), 7u);
  EXPECT_EQ(ops[0].bytes(), 4096u);
  EXPECT_EQ(ops[0].name(), "weights");
  EXPECT_EQ(ops[1].kind(), TraceOp::COMPUTE);
  EXPECT_EQ(ops[1].ns(), 10'000u);
  EXPECT_EQ(ops[2].kind(), TraceOp::PUT);
  EXPECT_TRUE(ops[2].modified());
  EXPECT_EQ(ops[2].order(), -3);
  EXPECT_EQ(ops[2].recompute_ns(), 40'000u);
  EXPECT_EQ(ops[2].priority(), TraceOp::HIGH);
  EXPECT_EQ(ops[3].ns(), 20'000u);
  EXPECT_EQ(ops[4].kind(), TraceOp::GET);
  EXPECT_EQ(ops[5].kind(), TraceOp::PUT);
  EXPECT_FALSE(ops[5].modified());
  EXPECT_EQ(ops[6].kind(), TraceOp::FREE);
}

TEST_F(RecorderTest, WaitingIsNoCompute) {
  recorder_.Asked(ClientId{1}, kBegin);
  recorder_.Answered(ClientId{1}, kBegin + microseconds(500));
  recorder_.Stepped(ClientId{1}, kBegin + microseconds(501));
  const auto ops = Ops();
  ASSERT_EQ(ops.size(), 2u);
  EXPECT_EQ(ops[0].ns(), 1000u);
  EXPECT_EQ(ops[1].kind(), TraceOp::STEP);
}

TEST_F(RecorderTest, TensorsThatWereThereBeforeAreCreatedWhenTheyAreSeen) {
  recorder_.Got(View(1), kBegin);
  recorder_.Put(View(2), PutOf(2, 1), kBegin);
  recorder_.Freed(View(3), kBegin);
  EXPECT_EQ(Kinds(),
            (KindList{TraceOp::CREATE, TraceOp::PUT, TraceOp::GET, TraceOp::CREATE, TraceOp::PUT}));
}

TEST_F(RecorderTest, CallsThatTheLogHidAreMadeUpFor) {
  recorder_.Created(View(1), kBegin);
  recorder_.Got(View(1), kBegin);  // overlaps the create
  recorder_.Put(View(1), PutOf(1, 1), kBegin);
  recorder_.Put(View(1), PutOf(1, 2), kBegin);  // the get between was dropped
  EXPECT_EQ(Kinds(), (KindList{TraceOp::CREATE, TraceOp::PUT, TraceOp::GET, TraceOp::PUT}));
}

TEST_F(RecorderTest, ClientsAreNumberedAsTheyAreSeen) {
  recorder_.Created(View(1, 40), kBegin);
  recorder_.Created(View(2, 3), kBegin);
  const auto ops = Ops();
  EXPECT_EQ(ops[0].client(), 0u);
  EXPECT_EQ(ops[1].client(), 1u);
  EXPECT_EQ(recorder_.clients(), 2u);
}

TEST_F(RecorderTest, OnlyWhomItWants) {
  Recorder::Options options = Options();
  options.client = ClientId{4};
  options.user = 1000;
  const Recorder recorder(options);
  EXPECT_TRUE(recorder.Wants(ClientId{4}, 1000));
  EXPECT_FALSE(recorder.Wants(ClientId{4}, 1001));
  EXPECT_FALSE(recorder.Wants(ClientId{5}, 1000));
}

// Whatever is dropped, every tensor's calls stay in an order that the store allows.
TEST_F(RecorderTest, AFullBufferDropsAndCountsAndStaysValid) {
  Recorder recorder(Options(128));
  std::vector<TraceOp> all;
  for (uint64_t round = 0; round < 50; ++round) {
    for (uint64_t id = 1; id <= 10; ++id) {
      if (round == 0) recorder.Created(View(id), kBegin);
      recorder.Put(View(id), PutOf(id, static_cast<uint32_t>(round)), kBegin);
      recorder.Got(View(id), kBegin);
    }
    for (std::string chunk = recorder.Take(); !chunk.empty(); chunk = recorder.Take()) {
      google::protobuf::io::CodedInputStream in(reinterpret_cast<const uint8_t*>(chunk.data()),
                                                static_cast<int>(chunk.size()));
      uint32_t length = 0;
      while (in.ReadVarint32(&length)) {
        const auto limit = in.PushLimit(static_cast<int>(length));
        EXPECT_TRUE(all.emplace_back().ParseFromCodedStream(&in));
        in.PopLimit(limit);
      }
    }
  }
  EXPECT_GT(recorder.dropped(), 0u);
  EXPECT_EQ(recorder.ops(), all.size());
  std::vector<int> in_use(11, -1);
  for (const TraceOp& op : all) {
    int& state = in_use[op.tensor()];
    const bool put = op.kind() == TraceOp::PUT;
    EXPECT_EQ(state, op.kind() == TraceOp::CREATE ? -1 : put ? 1 : 0);
    state = put ? 0 : 1;
  }
}

}  // namespace
}  // namespace ravenstore::daemon
