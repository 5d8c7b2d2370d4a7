#include "sim/tape.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "sim/trace.h"

namespace ravenstore::sim {
namespace {

using core::Bytes;

const Hardware& H200() {
  return kHardware[0];
}

std::vector<OpKind> KindsOf(const Trace& trace) {
  std::vector<OpKind> kinds;
  for (const Op& op : trace.ops) kinds.push_back(op.kind);
  return kinds;
}

size_t Kernels(const Trace& trace) {
  return static_cast<size_t>(std::count_if(trace.ops.begin(), trace.ops.end(), [](const Op& op) {
    return op.kind == OpKind::kCompute;
  }));
}

double SecondsOfLast(const Trace& trace) {
  double seconds = 0;
  for (const Op& op : trace.ops) {
    if (op.kind == OpKind::kCompute) seconds = core::Seconds(op.time);
  }
  return seconds;
}

TEST(TapeTest, AKernelGetsItsInputsAndFreesItsWorkspaceBeforeItPuts) {
  Tape tape("t", H200(), 1);
  {
    const Data x = tape.Filled(4096);
    const Data y = tape.Run({.reads = {x, x}, .workspace = 1024}, 2048);
    EXPECT_EQ(y->bytes(), 2048);
  }
  const Trace trace = tape.Take();
  ASSERT_TRUE(Validate(trace).ok());
  using enum OpKind;
  // A tensor that is named twice is got once; what is held is freed with its last holder.
  EXPECT_EQ(KindsOf(trace), (std::vector<OpKind>{kCreate, kPut, kGet, kCreate, kCreate, kCompute,
                                                 kFree, kPut, kPut, kFree, kFree}));
}

TEST(TapeTest, AKernelTakesTheLongerOfArithmeticAndTraffic) {
  const double bytes = 4.8e9;  // a millisecond of the memory's rate
  const auto seconds = [&](const auto& change) {
    Tape tape("t", H200(), 1);
    Tape::Kernel kernel;
    change(kernel);
    tape.Run(kernel, bytes);
    return SecondsOfLast(tape.Take());
  };
  EXPECT_NEAR(seconds([](auto&) {}), 1e-3, 3e-5);
  EXPECT_NEAR(seconds([](auto& kernel) { kernel.seconds = 5e-3; }), 5e-3, 1.1e-4);
  EXPECT_NEAR(seconds([&](auto& kernel) { kernel.workspace = bytes; }), 2e-3, 5e-5);
  EXPECT_NEAR(seconds([&](auto& kernel) { kernel.traffic = bytes / 10; }), 1e-4, 6e-6);
}

TEST(TapeTest, BackwardRunsInReverseAndSumsGradientsUp) {
  Tape tape("t", H200(), 1);
  std::vector<int> order;
  tape.Record([&] { order.push_back(1); });
  tape.Record([&] {
    order.push_back(2);
    tape.Record([&] { order.push_back(3); });
  });
  tape.Backward();
  EXPECT_EQ(order, (std::vector<int>{2, 3, 1}));
  {
    const auto gradient = std::make_shared<Gradient>();
    tape.Add(gradient, tape.Run({}, 512));
    tape.Add(gradient, tape.Run({}, 512));
  }
  EXPECT_EQ(Kernels(tape.Take()), 3u);
}

// A chain of two in a checkpoint: what is between them is gone until the backward pass.
TEST(TapeTest, ACheckpointKeepsItsInputAloneAndRunsAgain) {
  Tape tape("t", H200(), 1);
  int runs = 0;
  const auto link = [&](const Value& x) {
    Value y{tape.Run({.reads = {x.data}}, core::MiB(2).count())};
    tape.Record([&tape, kept = y.data, to = x.gradient, from = y.gradient] {
      const Data gradient = std::move(from->sum);
      tape.Add(to, tape.Run({.reads = {gradient, kept}}, core::MiB(3).count()));
    });
    return y;
  };
  {
    const Value x{tape.Filled(core::MiB(1).count())};
    Value y = tape.Checkpoint(x, [&](const Value& in) {
      ++runs;
      return link(link(in));
    });
    EXPECT_EQ(runs, 1);
    tape.Add(y.gradient, tape.Run({}, 512));
    y.data = nullptr;
    tape.Step();
    tape.Backward();
    EXPECT_EQ(runs, 2);
    EXPECT_NE(x.gradient->sum, nullptr);
  }
  const Trace trace = tape.Take();
  ASSERT_TRUE(Validate(trace).ok());
  EXPECT_EQ(Kernels(trace), 2u + 1 + 2 + 2);
  std::multiset<Bytes> alive;
  for (const Op& op : trace.ops) {
    if (op.kind == OpKind::kStep) break;
    const Bytes bytes = trace.tensors[op.tensor].bytes;
    if (op.kind == OpKind::kCreate) alive.insert(bytes);
    if (op.kind == OpKind::kFree) alive.erase(alive.find(bytes));
  }
  EXPECT_EQ(alive, (std::multiset<Bytes>{Bytes(512), core::MiB(1)}));
}

TEST(TapeTest, UpdatesTakeWhatHasAGradientSoManyAtATime) {
  Tape tape("t", H200(), 1);
  for (int i = 0; i < 5; ++i) {
    Parameter* const one = tape.LearnedByAdam(1024);
    if (i > 0) tape.Add(one->value.gradient, tape.Run({}, 2048));
  }
  tape.EndSetUp();
  tape.Update({.together = 3, .clips = true});
  const Trace trace = tape.Take();
  ASSERT_TRUE(Validate(trace).ok());
  const auto set_up = std::find_if(trace.ops.begin(), trace.ops.end(),
                                   [](const Op& op) { return op.kind == OpKind::kStep; });
  size_t kernels = 0;
  std::vector<size_t> written(1);
  for (auto op = set_up; op != trace.ops.end(); ++op) {
    if (op->kind == OpKind::kCompute) {
      ++kernels;
      written.push_back(0);
    }
    if (op->kind == OpKind::kGet && !op->read_only) ++written.back();
  }
  // Two norms, the norm of these, and two updates: of each a weight and three states.
  EXPECT_EQ(kernels, 5u);
  EXPECT_EQ(written, (std::vector<size_t>{0, 0, 0, 12, 4, 0}));
}

struct OneWeight {
  OneWeight(Tape* tape, double bytes) : tape(tape), weight(tape->Learned(bytes)) {}
  void Train() {
    tape->Record([this] { tape->Add(weight->value.gradient, tape->Run({}, 512)); });
  }
  void Average() { ++averaged; }
  Tape* tape;
  Parameter* weight;
  inline static int averaged = 0;
};

TEST(TapeTest, NetworksAreTrainedIterationByIteration) {
  OneWeight::averaged = 0;
  const Trace trace = Trained<OneWeight>("one", H200(), 3, 7, {}, 4096.0);
  ASSERT_TRUE(Validate(trace).ok());
  EXPECT_EQ(trace.name, "one");
  EXPECT_EQ(std::count_if(trace.ops.begin(), trace.ops.end(),
                          [](const Op& op) { return op.kind == OpKind::kStep; }),
            4);
  EXPECT_EQ(Kernels(trace), 1u + 3 * 2);  // the set-up's, gradients and updates
  EXPECT_EQ(OneWeight::averaged, 3);
  EXPECT_EQ(trace.Footprint(), Bytes(2 * 4096 + 512));
}

}  // namespace
}  // namespace ravenstore::sim
