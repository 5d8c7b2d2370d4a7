// The C++ wrapper: ownership, moves, exceptions.
#include "client/client.h"

#include "tests/client/store_test.h"

namespace ravenstore {
namespace {

constexpr uint64_t kBytes = 4096;

using ClientTest = StoreTest;

TEST_F(ClientTest, ExampleOfTheHeaderWorks) {
  using std::chrono_literals::operator""ms;
  TestStream stream;
  auto t = store_.create(MiB(1), {.name = "layer3.mlp", .stream = stream});
  Fill(t.data(), 1, MiB(1));
  store_.put(t, stream, {.needed_in = 80ms});
  void* p = store_.get(t, stream);
  stream.Synchronize();
  EXPECT_TRUE(Holds(p, 1, MiB(1)));
  store_.free(std::move(t), stream);
  EXPECT_FALSE(t);
}

TEST_F(ClientTest, MovedTensorHasOneOwner) {
  Tensor a = store_.create(kBytes);
  const uint64_t id = a.id();
  Tensor b = std::move(a);
  EXPECT_FALSE(a);
  EXPECT_EQ(b.id(), id);
  a = std::move(b);
  EXPECT_EQ(a.id(), id);
  a = store_.create(kBytes);  // frees the first
  EXPECT_TRUE(Eventually([&] { return daemon_.counts().frees == 1; }));
  EXPECT_NE(a.id(), id);
}

// The daemon takes requests in turn: a tensor that can be created after a free was asked for.
TEST_F(ClientTest, DestroyedTensorWaitsForTheStreamOfItsCreate) {
  TestStream stream;
  Tensor single = store_.create(kBytes, {.stream = stream});
  const uint64_t sizes[] = {kBytes, kBytes};
  std::vector<Tensor> batch = store_.create(sizes, {.stream = stream});
  stream.Block();
  single = Tensor();
  batch.clear();
  Tensor after = store_.create(kBytes);
  EXPECT_EQ(daemon_.counts().frees, 0u);
  stream.Open();
  EXPECT_TRUE(Eventually([&] { return daemon_.counts().frees == 3; }));
}

TEST_F(ClientTest, DestroyedTensorWaitsForTheStreamOfItsLastCall) {
  TestStream first;
  TestStream last;
  Tensor tensor = store_.create(kBytes, {.stream = first});
  store_.put(tensor, first);
  store_.get(tensor, last);
  last.Block();
  tensor = Tensor();
  Tensor after = store_.create(kBytes);
  EXPECT_EQ(daemon_.counts().frees, 0u);
  last.Open();
  EXPECT_TRUE(Eventually([&] { return daemon_.counts().frees == 1; }));
}

TEST_F(ClientTest, EmptyTensorIsHarmless) {
  Tensor none;
  EXPECT_EQ(none.size(), 0u);
  EXPECT_EQ(none.device(), -1);
  EXPECT_FALSE(none.ready());
  EXPECT_THROW(static_cast<void>(none.data()), Error);
  EXPECT_EQ(CodeOf([&] { store_.get(none, nullptr); }), RAVENSTORE_INVALID_ARGUMENT);
}

TEST_F(ClientTest, CommonErrorsHaveTypes) {
  daemon_.FailNextCreate(core::ErrorCode::kOutOfMemory, "full");
  EXPECT_THROW(store_.create(kBytes), OutOfMemory);
  Tensor tensor = Away(kBytes, 1);
  daemon_.FailNextFetch(core::ErrorCode::kLost, "");
  EXPECT_THROW(store_.get(tensor, nullptr), Lost);
  EXPECT_THROW(static_cast<void>(tensor.ready()), Lost);
}

TEST_F(ClientTest, MovedStoreStaysTheTensorsStore) {
  Tensor tensor = store_.create(kBytes);
  Store moved = std::move(store_);
  moved.put(tensor, nullptr);
  EXPECT_EQ(moved.backend(), "host");
  moved.free(std::move(tensor), nullptr);
  store_ = std::move(moved);
}

TEST_F(ClientTest, ZeroTimeoutMeansDoNotWait) {
  Tensor tensor = Away(kBytes, 1);
  daemon_.HoldArrivals(true);
  EXPECT_EQ(CodeOf([&] { store_.get(tensor, nullptr, {.timeout = std::chrono::nanoseconds(0)}); }),
            RAVENSTORE_TIMED_OUT);
  daemon_.Arrive();
}

}  // namespace
}  // namespace ravenstore
