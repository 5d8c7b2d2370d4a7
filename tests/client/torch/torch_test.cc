#include "client/torch.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <thread>

#include "tests/client/torch/fake_store.h"

namespace ravenstore::torch {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Loss = std::function<Tensor(const Tensors& parameters)>;

constexpr uint64_t kSeed = 20240131;

Tensor Parameter(std::vector<int64_t> shape) {
  return (at::randn(shape) * 0.3).requires_grad_();
}
void Backward(const Tensor& loss, bool retain = false) {
  ::torch::autograd::backward({loss}, {}, retain);
}
Tensors Grad(const Tensor& loss, const Tensors& inputs, bool retain, bool create_graph = false) {
  return ::torch::autograd::grad({loss}, inputs, {}, retain, create_graph, /*allow_unused=*/true);
}

// Equal in every bit, not only in value.
void ExpectSame(const Tensors& want, const Tensors& got) {
  ASSERT_EQ(want.size(), got.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(want[i].defined(), got[i].defined()) << "gradient " << i;
    if (!want[i].defined()) continue;
    const Tensor a = want[i].contiguous(), b = got[i].contiguous();
    ASSERT_EQ(a.sizes(), b.sizes());
    if (a.nbytes() == 0) continue;
    EXPECT_EQ(std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()), 0) << "gradient " << i;
  }
}

class OffloadScopeTest : public testing::Test {
 protected:
  OffloadScopeTest() { at::manual_seed(kSeed); }
  ~OffloadScopeTest() override {
    EXPECT_EQ(fake::counts().tensors, 0u) << "tensors leaked in the store";
    EXPECT_EQ(fake::counts().in_use, 0u);
    EXPECT_EQ(fake::counts().misuses, 0u);
  }

  // The gradients of `loss` with and without a scope are the same; returns the scope's figures.
  OffloadStats ExpectSameGradients(const Tensors& parameters, const Loss& loss) {
    at::manual_seed(kSeed);
    const Tensors want = Grad(loss(parameters), parameters, false);
    at::manual_seed(kSeed);
    OffloadScope scope(store_, parameters, all_);
    const Tensors got = Grad(loss(parameters), parameters, false);
    ExpectSame(want, got);
    EXPECT_EQ(scope.stats().failed_puts, 0u);
    EXPECT_EQ(scope.stats().live_bytes, 0u);
    return scope.stats();
  }

  const OffloadOptions all_{.min_bytes = 1};
  std::shared_ptr<Store> store_ = fake::Connect();
};

// --- Gradients ---

TEST_F(OffloadScopeTest, MlpHasTheSameGradientsAndKeepsItsWeights) {
  const Tensor input = at::randn({16, 32});
  const auto stats = ExpectSameGradients(
      {Parameter({64, 32}), Parameter({64}), Parameter({8, 64})}, [&](const Tensors& p) {
        return at::linear(at::gelu(at::linear(input, p[0], p[1])), p[2]).pow(2).mean();
      });
  EXPECT_GT(stats.adopted, 0u);
  EXPECT_GT(stats.kept, 0u);  // a weight, transposed
  EXPECT_EQ(stats.saved, stats.kept + stats.deduplicated + stats.offered);
  EXPECT_EQ(stats.adopted_bytes, stats.offered_bytes);
  EXPECT_EQ(stats.unpacked, stats.saved);
}

TEST_F(OffloadScopeTest, AttentionAdoptsTheProjectionOfQueryKeyAndValueOnce) {
  const Tensor input = at::randn({2, 10, 32});
  const auto stats = ExpectSameGradients(
      {Parameter({32}), Parameter({32}), Parameter({96, 32})}, [&](const Tensors& p) {
        const Tensor x = at::layer_norm(input, {32}, p[0], p[1]);
        const Tensor qkv = at::linear(x, p[2]).view({2, 10, 3, 4, 8}).permute({2, 0, 3, 1, 4});
        // Elementwise on purpose: it saves the strided views themselves, not contiguous copies.
        const Tensor mixed = qkv[0] * qkv[1] + qkv[1] * qkv[2];
        const Tensor scores = at::matmul(qkv[0], qkv[1].transpose(-1, -2));
        return at::matmul(at::softmax(scores, -1), mixed).pow(2).sum();
      });
  EXPECT_GE(stats.deduplicated, 3u);
}

TEST_F(OffloadScopeTest, TiedWeightsHaveTheSameGradients) {
  const Tensor tokens = at::randint(0, 20, {4, 6}, at::kLong);
  ExpectSameGradients({Parameter({20, 8})}, [&](const Tensors& p) {
    const Tensor x = at::tanh(at::embedding(p[0], tokens));
    return at::log_softmax(at::linear(x, p[0]), -1).mean();
  });
}

TEST_F(OffloadScopeTest, StridedBroadcastAndPartialViewsHaveTheSameGradients) {
  ExpectSameGradients({Parameter({12, 8})}, [&](const Tensors& p) {
    const Tensor x = at::sin(p[0]);
    const Tensor every_second = x.slice(0, 1, 12, 2);
    const Tensor column = x.select(1, 3).unsqueeze(1).expand({12, 8});
    return (every_second * every_second.t().matmul(every_second).sum()).sum() + (column * x).sum() +
           (x.t() * x.t().flip(0)).sum();
  });
}

TEST_F(OffloadScopeTest, DropoutHasTheSameGradients) {
  const Tensor input = at::randn({64, 64});
  ExpectSameGradients({Parameter({64, 64})}, [&](const Tensors& p) {
    return at::dropout(at::relu(at::linear(input, p[0])), 0.4, true).pow(2).sum();
  });
}

TEST_F(OffloadScopeTest, ResultsSavedByTheirOwnNodeAreFreed) {
  ExpectSameGradients({Parameter({9, 7})}, [](const Tensors& p) {
    return at::exp(at::sigmoid(at::tanh(at::softmax(p[0], 1)))).sum();
  });
}

TEST_F(OffloadScopeTest, KeptResultsOfTheirOwnNodeDieWithTheGraph) {
  const Tensor w = Parameter({9, 7});
  OffloadScope scope(store_, {w}, {.min_bytes = MiB(1)});
  Tensor result = at::exp(at::sigmoid(w));
  const auto storage = result.storage().getWeakStorageImpl();
  EXPECT_EQ(scope.stats().kept, 2u);
  result.reset();
  EXPECT_TRUE(storage.expired()) << "a node that holds its own result is never freed";
}

TEST_F(OffloadScopeTest, InPlaceOperationsThatAutogradAllowsHaveTheSameGradients) {
  const Tensor input = at::randn({16, 16});
  ExpectSameGradients({Parameter({16, 16})}, [&](const Tensors& p) {
    Tensor x = at::linear(input, p[0]);
    x = at::relu_(x);
    x = x.mul(2);
    x.select(0, 1).sigmoid_();
    return x.pow(2).sum();
  });
}

TEST_F(OffloadScopeTest, EmptyBooleanAndIntegerTensorsHaveTheSameGradients) {
  const Tensor mask = at::randn({8, 8}) > 0;
  const Tensor index = at::randint(0, 8, {8, 8}, at::kLong);
  ExpectSameGradients({Parameter({8, 8}), Parameter({0, 8})}, [&](const Tensors& p) {
    const Tensor x = at::where(mask, at::cos(p[0]), p[0] * 2);
    return at::gather(x, 1, index).pow(2).sum() + (p[1] * p[1].exp()).sum();
  });
}

TEST_F(OffloadScopeTest, SparseAndConjugateTensorsHaveTheSameGradients) {
  const Tensor sparse = (at::randn({8, 8}) * (at::randn({8, 8}) > 0)).to_sparse();
  const Tensor complex = at::complex(at::randn({8, 8}), at::randn({8, 8}));
  const auto stats = ExpectSameGradients({Parameter({8, 8})}, [&](const Tensors& p) {
    const Tensor y = at::mm(sparse, at::sin(p[0]));
    return y.sum() + at::abs(y * complex.conj()).sum();
  });
  EXPECT_GT(stats.kept, 0u);
}

TEST_F(OffloadScopeTest, DoubleBackwardHasTheSameGradients) {
  ExpectSameGradients({Parameter({6, 6})}, [](const Tensors& p) {
    const Tensor y = at::tanh(p[0].matmul(p[0])).pow(3).sum();
    return Grad(y, p, true, /*create_graph=*/true)[0].pow(2).sum();
  });
}

// --- What stays ---

TEST_F(OffloadScopeTest, NothingIsSavedUnderNoGrad) {
  const Tensor w = Parameter({32, 32});
  OffloadScope scope(store_, {w}, all_);
  at::NoGradGuard guard;
  at::tanh(at::linear(at::randn({32, 32}), w));
  EXPECT_EQ(scope.stats().saved, 0u);
}

TEST_F(OffloadScopeTest, SmallTensorsStay) {
  const Tensor w = Parameter({8, 8});
  OffloadScope scope(store_, {w}, {.min_bytes = 1024});
  Backward(at::tanh(at::sin(w)).sum());
  EXPECT_EQ(scope.stats().adopted, 0u);
  EXPECT_EQ(scope.stats().kept, scope.stats().saved);
}

TEST_F(OffloadScopeTest, ParametersStayAlsoAsViewsAndDetached) {
  const Tensor w = Parameter({8, 8});
  const Tensor v = Parameter({8, 8});
  OffloadScope scope(store_, {w, v}, all_);
  Backward((v * w.detach().t()).sum() + (w.t() * v.view({64}).slice(0, 0, 8)).sum());
  EXPECT_EQ(scope.stats().adopted, 0u);
}

TEST_F(OffloadScopeTest, LeavesThatWereNotRegisteredStayAlsoAsViews) {
  const Tensor w = Parameter({8, 8});
  OffloadScope scope(store_, {}, all_);
  Backward((w.t() * w).sum());
  EXPECT_EQ(scope.stats().adopted, 0u);
  EXPECT_EQ(scope.stats().kept, 2u);
}

TEST_F(OffloadScopeTest, ASmallPartOfALargeStorageIsAdoptedAlone) {
  const Tensor w = Parameter({1000});
  OffloadScope scope(store_, {w}, all_);
  const Tensor x = at::sin(w);
  const Tensor part = x.slice(0, 600, 700);
  const Tensor loss = (part * part).sum();
  EXPECT_LT(scope.stats().live_bytes, 1000 * sizeof(float) / 2);
  ExpectSame({at::sin(w).detach().slice(0, 600, 700) * 2}, Grad(loss, {part}, true));
}

// --- What waits in torch's memory ---

// Three tensors of one size are saved: sin's and cos's results and tanh's own.
Tensor ThreeSaves(const Tensors& p) {
  return at::tanh(at::sin(p[0]) * at::cos(p[0])).sum();
}

TEST_F(OffloadScopeTest, WhatTorchMayHoldIsNotCopied) {
  const Tensor w = Parameter({32, 32});
  const Tensors want = Grad(ThreeSaves({w}), {w}, false);
  OffloadScope scope(store_, {w}, {.min_bytes = 1, .torch_bytes = 3 * w.nbytes()});
  ExpectSame(want, Grad(ThreeSaves({w}), {w}, false));
  ExpectSame(want, Grad(ThreeSaves({w}), {w}, false));
  EXPECT_EQ(scope.stats().offered, 6u);
  EXPECT_EQ(scope.stats().adopted, 0u);
  EXPECT_EQ(scope.stats().live_bytes_peak, 3 * w.nbytes());
}

TEST_F(OffloadScopeTest, WhatIsSeenToFitIsNotCopiedAgain) {
  const Tensor w = Parameter({32, 32});
  const Tensors want = Grad(ThreeSaves({w}), {w}, false);
  fake::SetDeviceBudget(3 * w.nbytes());
  OffloadScope scope(store_, {w}, {.min_bytes = 1});
  ExpectSame(want, Grad(ThreeSaves({w}), {w}, false));
  EXPECT_EQ(scope.stats().adopted, 3u) << "nothing is known yet";
  EXPECT_EQ(fake::counts().trims, 1u);
  for (int step = 0; step < 3; ++step) ExpectSame(want, Grad(ThreeSaves({w}), {w}, false));
  EXPECT_EQ(scope.stats().adopted, 3u);
  // More than ever before, and more than fits: the oldest go to the store, and all from then on.
  const Tensor both = ThreeSaves({w}) + ThreeSaves({w});
  EXPECT_EQ(scope.stats().adopted, 6u);
  Grad(both, {w}, false);
  ExpectSame(want, Grad(ThreeSaves({w}), {w}, false));
  EXPECT_EQ(scope.stats().adopted, 9u);
}

TEST_F(OffloadScopeTest, BeyondThatTheOldestAreAdopted) {
  const Tensor w = Parameter({32, 32});
  const Tensors want = Grad(ThreeSaves({w}), {w}, false);
  OffloadScope scope(store_, {w}, {.min_bytes = 1, .torch_bytes = 2 * w.nbytes()});
  const Tensor loss = ThreeSaves({w});
  EXPECT_EQ(scope.stats().adopted, 1u);
  ExpectSame(want, Grad(loss, {w}, /*retain=*/true));
  ExpectSame(want, Grad(loss, {w}, /*retain=*/false));
  EXPECT_EQ(fake::counts().gets, 2u);
  EXPECT_EQ(fake::counts().tensors, 0u);
}

TEST_F(OffloadScopeTest, ATensorThatIsAdoptedLateMayBeInUseMeanwhile) {
  const Tensor w = Parameter({32, 32});
  const Tensor v = Parameter({32, 32});
  const Tensors want = Grad(at::tanh(at::sin(w)).sum(), {w}, false);
  OffloadScope scope(store_, {w, v}, {.min_bytes = 1, .torch_bytes = w.nbytes()});
  const Tensor first = at::tanh(at::sin(w)).sum();
  std::thread other([&] {
    for (int i = 0; i < 50; ++i) Grad(at::exp(at::sin(v)).sum(), {v}, false);
  });
  for (int i = 0; i < 50; ++i) ExpectSame(want, Grad(first, {w}, /*retain=*/true));
  other.join();
}

TEST_F(OffloadScopeTest, InPlaceChangeOfATensorThatIsAdoptedLateMakesBackwardThrow) {
  const Tensor w = Parameter({8, 8});
  OffloadScope scope(store_, {w}, {.min_bytes = 1, .torch_bytes = w.nbytes()});
  Tensor x = at::sin(w);
  const Tensor loss = x.pow(2).sum();
  x.zero_();
  const Tensor later = at::exp(w).sum();  // pushes x, as it is now, into the store
  EXPECT_GT(scope.stats().adopted, 0u);
  EXPECT_THROW(Backward(loss), c10::Error);
}

TEST_F(OffloadScopeTest, MeasuringNeedsNoStoreAndMovesNothing) {
  const Tensor w = Parameter({32, 32});
  const Tensors want = Grad(ThreeSaves({w}), {w}, false);
  OffloadScope scope(nullptr, {w}, {.min_bytes = 1, .measure_only = true});
  ExpectSame(want, Grad(ThreeSaves({w}), {w}, false));
  EXPECT_EQ(scope.stats().live_bytes_peak, 3 * w.nbytes());
  EXPECT_EQ(scope.stats().live_bytes, 0u);
  EXPECT_EQ(fake::counts().adopts, 0u);
}

// --- In-place changes after the save ---

TEST_F(OffloadScopeTest, InPlaceChangeOfAnAdoptedTensorMakesBackwardThrow) {
  const Tensor w = Parameter({8, 8});
  OffloadScope scope(store_, {w}, all_);
  Tensor x = at::sin(w);
  const Tensor loss = x.pow(2).sum();
  x.select(0, 2).zero_();  // through a view: they share the version
  EXPECT_GT(scope.stats().adopted, 0u);
  EXPECT_THROW(Backward(loss), c10::Error);
}

TEST_F(OffloadScopeTest, InPlaceChangeOfAKeptTensorMakesBackwardThrow) {
  const Tensor w = Parameter({8, 8});
  OffloadScope scope(store_, {w}, all_);
  const Tensor loss = (w * w).sum();
  {
    at::NoGradGuard guard;
    w.add_(1);  // as an optimizer would
  }
  EXPECT_THROW(Backward(loss), c10::Error);
}

TEST_F(OffloadScopeTest, ATensorChangedInPlaceAndSavedAgainIsAdoptedAgain) {
  const Tensor w = Parameter({64});
  const Tensor x = at::randn({64});
  const Tensor before = x.clone();
  OffloadScope scope(store_, {w}, all_);
  const Tensor first = (w * x).sum();
  x.add_(1);
  const Tensor second = (w * x).sum();
  EXPECT_EQ(scope.stats().adopted, 2u);
  ExpectSame({before + 1}, Grad(second, {w}, false));
  EXPECT_THROW(Grad(first, {w}, false), c10::Error);
}

TEST_F(OffloadScopeTest, EqualVersionsOfDifferentCountersAreNotTheSameBytes) {
  const Tensor w = Parameter({64});
  const Tensor x = at::ones({64});
  while (x._version() < 3) x.mul_(1);
  OffloadScope scope(store_, {w}, all_);
  const Tensor first = (w * x).sum();
  const Tensor alias = x.variable_data();  // the same storage, another counter
  while (alias._version() < 3) alias.fill_(2);
  const Tensor second = (w * alias).sum();
  ASSERT_EQ(alias.data_ptr(), x.data_ptr());
  ExpectSame({at::full({64}, 2.0f)}, Grad(second, {w}, false));
}

// --- Liveness ---

TEST_F(OffloadScopeTest, ALaterTensorAtTheSameAddressIsNotTakenForTheFirst) {
  std::vector<float> memory(256, 1.0f);
  const Tensor w = Parameter({256});
  OffloadScope scope(store_, {w}, all_);
  Tensor first, second;
  {
    const Tensor x = at::from_blob(memory.data(), {256});
    first = (w * x).sum();
  }
  std::fill(memory.begin(), memory.end(), 2.0f);
  {
    const Tensor x = at::from_blob(memory.data(), {256});
    second = (w * x).sum();
  }
  EXPECT_EQ(scope.stats().adopted, 2u);
  ExpectSame({at::full({256}, 2.0f)}, Grad(second, {w}, false));
  ExpectSame({at::full({256}, 1.0f)}, Grad(first, {w}, false));
}

TEST_F(OffloadScopeTest, RecycledStoragesAreNeverConfused) {
  const Tensor w = Parameter({64});
  OffloadScope scope(store_, {w}, all_);
  Tensors losses;
  for (int i = 0; i < 200; ++i) losses.push_back((w * at::full({64}, double(i))).sum());
  for (int i = 0; i < 200; i += 2) losses[i].reset();
  for (int i = 0; i < 200; i += 2) losses[i] = (w * at::full({64}, double(i + 1000))).sum();
  for (int i = 0; i < 200; ++i)
    ExpectSame({at::full({64}, float(i % 2 ? i : i + 1000))}, Grad(losses[i], {w}, false));
}

TEST_F(OffloadScopeTest, AGraphThatIsDroppedFreesItsTensors) {
  const Tensor w = Parameter({32, 32});
  OffloadScope scope(store_, {w}, all_);
  Tensor loss = at::tanh(at::exp(at::sin(w))).sum();
  EXPECT_GT(fake::counts().tensors, 0u);
  loss.reset();
  EXPECT_EQ(fake::counts().tensors, 0u);
  EXPECT_EQ(fake::counts().gets, 0u);
  EXPECT_EQ(scope.stats().live_bytes, 0u);
}

TEST_F(OffloadScopeTest, BackwardThatFailsHalfwayFreesItsTensors) {
  const Tensor w = Parameter({32, 32});
  OffloadScope scope(store_, {w}, all_);
  Tensor loss = at::tanh(at::exp(at::sin(w))).sum();
  fake::FailNextGet(RAVENSTORE_LOST);
  EXPECT_THROW(Backward(loss), Lost);
  loss.reset();
  EXPECT_EQ(fake::counts().tensors, 0u);
}

TEST_F(OffloadScopeTest, BytesThatNeverArrivedEndTheNextBackwardAndTheNextSave) {
  const Tensor w = Parameter({32, 32});
  OffloadScope scope(store_, {w}, all_);
  Tensor loss = at::tanh(at::exp(at::sin(w))).sum();
  fake::LoseBytes();
  EXPECT_THROW(Backward(loss), Lost);
  EXPECT_THROW(at::sin(at::exp(w)), Lost);
}

TEST_F(OffloadScopeTest, BackwardMayRepeat) {
  const Tensor w = Parameter({16, 16});
  const Loss make = [](const Tensors& p) { return at::tanh(at::sin(p[0]) * at::cos(p[0])).sum(); };
  const Tensors want = Grad(make({w}), {w}, false);
  OffloadScope scope(store_, {w}, all_);
  const Tensor loss = make({w});
  ExpectSame(want, Grad(loss, {w}, /*retain=*/true));
  ExpectSame(want, Grad(loss, {w}, /*retain=*/true));
  EXPECT_GT(fake::counts().tensors, 0u);
  ExpectSame(want, Grad(loss, {w}, /*retain=*/false));
  EXPECT_EQ(fake::counts().tensors, 0u);
  EXPECT_THROW(Grad(loss, {w}, false), std::exception);
}

TEST_F(OffloadScopeTest, ThreadsMayRunOneGraphBackwardTogether) {
  const Tensor w = Parameter({64, 64});
  const Loss make = [](const Tensors& p) {
    Tensor x = at::sin(p[0]);
    for (int i = 0; i < 6; ++i) x = at::tanh(x.matmul(x) * 0.1 + x);
    return x.pow(2).sum();
  };
  const Tensors want = Grad(make({w}), {w}, false);
  OffloadScope scope(store_, {w}, all_);
  {
    const Tensor loss = make({w});
    std::vector<Tensors> got(4);
    std::vector<std::thread> threads;
    for (auto& result : got)
      threads.emplace_back([&] {
        for (int round = 0; round < 5; ++round) result = Grad(loss, {w}, true);
      });
    for (auto& thread : threads) thread.join();
    for (const auto& result : got) ExpectSame(want, result);
  }
  EXPECT_EQ(fake::counts().tensors, 0u);
}

TEST_F(OffloadScopeTest, ThreadsMayBuildGraphsTogether) {
  const Tensor w = Parameter({32, 32});
  const Tensor shared = at::randn({32, 32});
  const Loss make = [&](const Tensors& p) { return at::tanh(p[0] * shared).matmul(shared).sum(); };
  const Tensors want = Grad(make({w}), {w}, false);
  OffloadScope scope(store_, {w}, all_);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) ExpectSame(want, Grad(make({w}), {w}, false));
    });
  for (auto& thread : threads) thread.join();
}

TEST_F(OffloadScopeTest, AGraphMayOutliveItsScopeAndTheCallersStore) {
  const Tensor w = Parameter({16, 16});
  const Tensors want = Grad(at::tanh(at::sin(w)).sum(), {w}, false);
  Tensor loss;
  {
    OffloadScope scope(std::exchange(store_, nullptr), {w}, all_);
    loss = at::tanh(at::sin(w)).sum();
  }
  ExpectSame(want, Grad(loss, {w}, false));
}

TEST_F(OffloadScopeTest, AGradientThatIsTheSavedTensorItselfStaysValid) {
  const Tensor w = Parameter({64});
  const Tensor x = at::randn({64});
  {
    OffloadScope scope(store_, {w}, all_);
    Tensor loss = (w * x).sum();
    Backward(loss);
  }
  ExpectSame({x}, {w.grad()});
  w.mutable_grad().reset();
}

// --- Around it ---

TEST_F(OffloadScopeTest, LaterSavedIsNeededSooner) {
  const Tensor w = Parameter({16, 16});
  OffloadScope scope(store_, {w}, all_);
  const Tensor loss = at::tanh(at::exp(at::sin(w))).sum();
  const auto orders = fake::orders();
  ASSERT_GE(orders.size(), 2u);
  EXPECT_TRUE(std::is_sorted(orders.rbegin(), orders.rend()));
  EXPECT_LT(orders.back(), orders.front());
}

TEST_F(OffloadScopeTest, SavedAgainIsNeededAtItsLatestSaveAndThenAtTheOlder) {
  const Tensor w = Parameter({16, 16});
  OffloadScope scope(store_, {w}, all_);
  const Tensor x = at::tanh(w);       // saves x
  const Tensor y = at::exp(x);        // saves y
  const Tensor loss = (x * y).sum();  // saves both again
  const auto saved = fake::orders();
  ASSERT_EQ(saved.size(), 4u);
  EXPECT_TRUE(std::is_sorted(saved.rbegin(), saved.rend()));
  Backward(loss);
  const auto all = fake::orders();
  // Once the product's node has read them, each is wanted at its own node's place.
  const std::vector<int64_t> returned(all.begin() + 4, all.end());
  EXPECT_THAT(returned, testing::Contains(saved[0]));
  EXPECT_THAT(returned, testing::Contains(saved[1]));
}

TEST_F(OffloadScopeTest, WithoutHintsPutsSayNothingOfWhatComesNext) {
  const Tensor w = Parameter({16, 16});
  OffloadScope scope(store_, {w}, {.min_bytes = 1, .hints = false});
  Backward(at::tanh(at::exp(at::sin(w))).sum());
  EXPECT_GT(fake::counts().puts, 0u);
  EXPECT_TRUE(fake::orders().empty());
}

TEST_F(OffloadScopeTest, EachIterationThatUsedTheStoreIsAStep) {
  const Tensor w = Parameter({16, 16});
  OffloadScope scope(store_, {w}, all_);
  for (int i = 0; i < 3; ++i) Backward(at::tanh(at::exp(w)).sum());
  EXPECT_EQ(fake::counts().steps, 3u);
}

TEST_F(OffloadScopeTest, WithoutAScopeNothingReachesTheStore) {
  const Tensor w = Parameter({16, 16});
  { OffloadScope scope(store_, {w}, all_); }
  Backward(at::tanh(at::sin(w)).sum());
  EXPECT_EQ(fake::counts().adopts, 0u);
}

TEST_F(OffloadScopeTest, ASecondScopeIsRefusedWhileOneIsAlive) {
  OffloadScope scope(store_, {}, all_);
  try {
    OffloadScope second(store_, {}, all_);
    FAIL() << "a second scope was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), RAVENSTORE_WRONG_STATE);
  }
}

TEST_F(OffloadScopeTest, AScopeWithoutAStoreIsRefused) {
  EXPECT_THROW(OffloadScope(nullptr, {}, all_), Error);
}

TEST_F(OffloadScopeTest, ASaveThatTheStoreRefusesThrowsItsWordsAndLeavesNothingBehind) {
  const Tensor w = Parameter({16, 16});
  OffloadScope scope(store_, {w}, all_);
  fake::FailNextAdopt(RAVENSTORE_OUT_OF_MEMORY);
  try {
    at::tanh(at::sin(w));
    FAIL() << "the refusal was swallowed";
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("as the test asked"));
    EXPECT_THAT(error.what(), testing::HasSubstr("1024 bytes"));
  }
  Backward(at::tanh(at::sin(w)).sum());  // the next one works
}

}  // namespace
}  // namespace ravenstore::torch
