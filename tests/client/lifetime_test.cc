#include "client/lifetime.h"

#include "tests/client/store_test.h"

namespace ravenstore {
namespace {

using proto::LeaseState;
using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr uint64_t kBytes = 4096;

using LifetimeTest = StoreTest;

TEST_F(LifetimeTest, CreatedTensorIsInUserspaceAndTheDaemonHasAllItsFields) {
  Tensor tensor = store_.create(kBytes, {.name = "weights"});
  Fill(tensor.data(), 1, kBytes);
  EXPECT_EQ(tensor.size(), kBytes);
  EXPECT_NE(tensor.id(), 0u);
  EXPECT_EQ(tensor.device(), 0);
  EXPECT_TRUE(tensor.ready());
  const proto::Request request = daemon_.last_create();
  EXPECT_EQ(request.bytes, kBytes);
  EXPECT_NE(request.name, 0u);
  EXPECT_EQ(request.flags, 0);
  EXPECT_GT(request.deadline_ns, 0);
}

TEST_F(LifetimeTest, FreedTensorsEndAndTheirRowsAreUsedAgain) {
  for (int i = 0; i < 100; ++i) {
    Tensor tensor = store_.create(kBytes);
    store_.free(std::move(tensor), nullptr);
    ASSERT_TRUE(Eventually([&] { return daemon_.tensors() == 0; }));
  }
  EXPECT_LT(daemon_.last_create().slot, 8u);
}

TEST_F(LifetimeTest, TensorIsFreedByItsDestructor) {
  { Tensor tensor = store_.create(kBytes); }
  EXPECT_TRUE(Eventually([&] { return daemon_.counts().frees == 1; }));
}

TEST_F(LifetimeTest, FreeWaitsForTheStream) {
  TestStream stream;
  Tensor tensor = store_.create(kBytes);
  stream.Block();
  store_.free(std::move(tensor), stream);
  Tensor other = store_.create(kBytes);  // the daemon has seen the free by now
  EXPECT_EQ(daemon_.counts().frees, 0u);
  stream.Open();
  EXPECT_TRUE(Eventually([&] { return daemon_.counts().frees == 1; }));
}

TEST_F(LifetimeTest, FreeInRavenspaceWaitsForTheStreamThatPut) {
  TestStream stream;
  Tensor tensor = store_.create(kBytes);
  stream.Block();
  store_.put(tensor, stream);
  store_.free(std::move(tensor), nullptr);
  Tensor other = store_.create(kBytes);
  EXPECT_EQ(daemon_.counts().frees, 0u);
  stream.Open();
  EXPECT_TRUE(Eventually([&] { return daemon_.counts().frees == 1; }));
}

TEST_F(LifetimeTest, FreeWorksWhereverTheTensorIs) {
  store_.free(store_.create(kBytes), nullptr);
  store_.free(Idle(kBytes, 1), nullptr);
  store_.free(Away(kBytes, 1), nullptr);
  EXPECT_TRUE(Eventually([&] { return daemon_.counts().frees == 3; }));
}

TEST_F(LifetimeTest, UseOfAFreedHandleIsRefusedInWords) {
  ravenstore_tensor_t* handle = nullptr;
  ravenstore_create_options_t options{};
  options.struct_size = sizeof(options);
  options.name = "gone";
  ASSERT_EQ(ravenstore_create(store_.handle(), kBytes, &options, &handle), RAVENSTORE_OK);
  ASSERT_EQ(ravenstore_free(store_.handle(), handle, nullptr), RAVENSTORE_OK);
  void* address = &options;
  EXPECT_EQ(ravenstore_get(store_.handle(), handle, nullptr, nullptr, &address),
            RAVENSTORE_WRONG_STATE);
  EXPECT_THAT(ravenstore_last_error(), HasSubstr("used after free"));
  EXPECT_THAT(ravenstore_last_error(), HasSubstr("\"gone\""));
  EXPECT_EQ(address, nullptr);
  EXPECT_EQ(ravenstore_put(store_.handle(), handle, nullptr, nullptr), RAVENSTORE_WRONG_STATE);
  EXPECT_EQ(ravenstore_free(store_.handle(), handle, nullptr), RAVENSTORE_WRONG_STATE);
  EXPECT_EQ(ravenstore_data(handle), nullptr);
  EXPECT_EQ(ravenstore_ready(handle), 0);
  EXPECT_EQ(daemon_.counts().frees, Eventually([&] { return daemon_.tensors() == 0; }) ? 1u : 0u);
}

TEST_F(LifetimeTest, FreedHandleNeverMeansTheNextTensorOfItsRow) {
  ravenstore_tensor_t* old = nullptr;
  ASSERT_EQ(ravenstore_create(store_.handle(), kBytes, nullptr, &old), RAVENSTORE_OK);
  ASSERT_EQ(ravenstore_free(store_.handle(), old, nullptr), RAVENSTORE_OK);
  ASSERT_TRUE(Eventually([&] { return daemon_.tensors() == 0; }));
  Tensor next = store_.create(kBytes);
  ASSERT_EQ(daemon_.last_create().slot, 0u) << "the row is used again";
  EXPECT_NE(next.handle(), old);
  EXPECT_EQ(ravenstore_data(old), nullptr);
  EXPECT_EQ(ravenstore_free(store_.handle(), old, nullptr), RAVENSTORE_WRONG_STATE);
  EXPECT_NE(next.data(), nullptr);
}

TEST_F(LifetimeTest, RefusedCreateSaysWhyAndItsRowIsFree) {
  for (int i = 0; i < 3; ++i) {
    daemon_.FailNextCreate(core::ErrorCode::kOutOfMemory, "tenant 0 has used all of 1 GiB");
    std::string words;
    EXPECT_EQ(CodeOf([&] { store_.create(kBytes, {.name = "act", .fail_fast = true}); }, &words),
              RAVENSTORE_OUT_OF_MEMORY);
    EXPECT_THAT(words, HasSubstr("tenant 0 has used all of 1 GiB"));
    EXPECT_THAT(words, HasSubstr("\"act\""));
    EXPECT_EQ(daemon_.last_create().flags, proto::kFailFast);
    EXPECT_EQ(daemon_.last_create().slot, 0u);
  }
}

TEST_F(LifetimeTest, BatchIsAllOrNone) {
  const std::vector<uint64_t> sizes(2000, kBytes);
  std::vector<Tensor> tensors = store_.create(sizes);
  ASSERT_EQ(tensors.size(), sizes.size());
  EXPECT_EQ(daemon_.tensors(), sizes.size());
  for (Tensor& tensor : tensors) Fill(tensor.data(), 1, kBytes);
  store_.free(std::move(tensors), nullptr);
  EXPECT_TRUE(Eventually([&] { return daemon_.tensors() == 0; }));

  daemon_.FailNextCreate(core::ErrorCode::kOutOfMemory, "full");
  EXPECT_EQ(CodeOf([&] { store_.create(sizes); }), RAVENSTORE_OUT_OF_MEMORY);
  EXPECT_TRUE(Eventually([&] { return daemon_.tensors() == 0; }));
}

TEST_F(LifetimeTest, AdoptCopiesOnTheStream) {
  TestStream stream;
  std::vector<unsigned char> mine(kBytes, 0x77);
  Tensor tensor = store_.adopt(mine.data(), kBytes, stream);
  stream.Synchronize();
  EXPECT_TRUE(Holds(tensor.data(), 0x77, kBytes));
  store_.put(tensor, stream);
  EXPECT_EQ(daemon_.Row(tensor.id()).writes.load(), 1u);
}

TEST_F(LifetimeTest, ImpossibleSizesAreRefusedHere) {
  EXPECT_EQ(CodeOf([&] { store_.create(uint64_t{0}); }), RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_EQ(CodeOf([&] { store_.create(~uint64_t{0}); }), RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_EQ(daemon_.counts().creates, 0u);
}

TEST_F(LifetimeTest, CreateTheDaemonAnswersTooLateIsReleased) {
  daemon_.HoldRequests(true);
  std::string words;
  EXPECT_EQ(CodeOf([&] { store_.create(kBytes, {.timeout = milliseconds(1)}); }, &words),
            RAVENSTORE_TIMED_OUT);
  EXPECT_THAT(words, HasSubstr("daemon is unresponsive"));
  daemon_.HoldRequests(false);
  ASSERT_TRUE(Eventually([&] { return daemon_.tensors() == 1; }));
  Tensor next = store_.create(kBytes);
  EXPECT_TRUE(Eventually([&] { return daemon_.tensors() == 1; })) << "the late one is freed";
}

TEST_F(LifetimeTest, FreeWhileAnotherThreadFetchesIsRefusedAndDoneLater) {
  Tensor tensor = Away(kBytes, 1);
  daemon_.HoldRequests(true);
  std::thread getter([&] {
    void* address = nullptr;
    static_cast<void>(ravenstore_get(store_.handle(), tensor.handle(), nullptr, nullptr, &address));
  });
  ASSERT_TRUE(Eventually([&] { return LeaseOf(tensor).state == LeaseState::kFetching; }));
  EXPECT_EQ(ravenstore_free(store_.handle(), tensor.handle(), nullptr), RAVENSTORE_WRONG_STATE);
  EXPECT_THAT(ravenstore_last_error(), HasSubstr("get of it was under way"));
  daemon_.HoldRequests(false);
  getter.join();
  EXPECT_EQ(CodeOf([&] { store_.free(std::move(tensor), nullptr); }), RAVENSTORE_WRONG_STATE);
  Tensor next = store_.create(kBytes);
  EXPECT_TRUE(Eventually([&] { return daemon_.tensors() == 1; }));
}

}  // namespace
}  // namespace ravenstore
