// The C ABI as a C program meets it: arguments, option structs of other versions, last_error.
#include "client/ravenstore.h"

#include "device/host_stream.h"
#include "tests/client/store_test.h"

namespace ravenstore {
namespace {

using testing::HasSubstr;

constexpr uint64_t kBytes = 4096;

class RavenstoreTest : public StoreTest {
 protected:
  ~RavenstoreTest() override {
    for (ravenstore_tensor_t* tensor : created_) {
      static_cast<void>(ravenstore_free(store(), tensor, nullptr));
    }
  }

  ravenstore_store_t* store() { return store_.handle(); }
  ravenstore_tensor_t* Create() {
    ravenstore_tensor_t* tensor = nullptr;
    EXPECT_EQ(ravenstore_create(store(), kBytes, nullptr, &tensor), RAVENSTORE_OK);
    created_.push_back(tensor);
    return tensor;
  }

 private:
  std::vector<ravenstore_tensor_t*> created_;
};

TEST_F(RavenstoreTest, NullArgumentsAreRefusedNotFollowed) {
  ravenstore_tensor_t* tensor = Create();
  void* address = nullptr;
  EXPECT_EQ(ravenstore_connect(nullptr, nullptr), RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_EQ(ravenstore_create(nullptr, 1, nullptr, &tensor), RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_EQ(ravenstore_create(store(), 1, nullptr, nullptr), RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_EQ(ravenstore_create_batch(store(), nullptr, 1, nullptr, &tensor),
            RAVENSTORE_INVALID_ARGUMENT);
  tensor = Create();
  EXPECT_EQ(ravenstore_adopt(store(), nullptr, 1, nullptr, nullptr, &tensor),
            RAVENSTORE_INVALID_ARGUMENT);
  tensor = Create();
  EXPECT_EQ(ravenstore_get(store(), nullptr, nullptr, nullptr, &address),
            RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_EQ(ravenstore_get(store(), tensor, nullptr, nullptr, nullptr),
            RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_EQ(ravenstore_get_batch(store(), nullptr, 1, nullptr, nullptr, &address),
            RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_EQ(ravenstore_get_into(store(), tensor, nullptr, nullptr, nullptr),
            RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_EQ(ravenstore_put(store(), nullptr, nullptr, nullptr), RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_EQ(ravenstore_check(nullptr, nullptr), RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_EQ(ravenstore_get_stats(store(), nullptr), RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_EQ(ravenstore_free(store(), nullptr, nullptr), RAVENSTORE_OK);
  ravenstore_disconnect(nullptr);
  EXPECT_EQ(ravenstore_data(nullptr), nullptr);
  EXPECT_EQ(ravenstore_size(nullptr), 0u);
  EXPECT_EQ(ravenstore_id(nullptr), 0u);
  EXPECT_EQ(ravenstore_device(nullptr), -1);
  EXPECT_EQ(ravenstore_ready(nullptr), 0);
  EXPECT_STREQ(ravenstore_backend(nullptr), "");
  ravenstore_host_stream_run(nullptr, nullptr, nullptr);
  ravenstore_host_stream_synchronize(nullptr);
  ravenstore_host_stream_destroy(nullptr);
}

TEST_F(RavenstoreTest, EmptyBatchesDoNothing) {
  EXPECT_EQ(ravenstore_create_batch(store(), nullptr, 0, nullptr, nullptr), RAVENSTORE_OK);
  EXPECT_EQ(ravenstore_get_batch(store(), nullptr, 0, nullptr, nullptr, nullptr), RAVENSTORE_OK);
  EXPECT_EQ(ravenstore_put_batch(store(), nullptr, 0, nullptr, nullptr), RAVENSTORE_OK);
  EXPECT_EQ(ravenstore_free_batch(store(), nullptr, 0, nullptr), RAVENSTORE_OK);
}

TEST_F(RavenstoreTest, OptionsWithoutASizeAreRefused) {
  ravenstore_create_options_t options{};
  ravenstore_tensor_t* tensor = nullptr;
  EXPECT_EQ(ravenstore_create(store(), kBytes, &options, &tensor), RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_THAT(ravenstore_last_error(), HasSubstr("struct_size"));
}

TEST_F(RavenstoreTest, ShorterOptionsOfAnOlderProgramAreCompleted) {
  ravenstore_tensor_t* tensor = Create();
  ASSERT_EQ(ravenstore_put(store(), tensor, nullptr, nullptr), RAVENSTORE_OK);
  ravenstore_get_options_t options;
  std::memset(&options, 0xff, sizeof(options));  // memory behind an old struct is not ours
  options.struct_size = offsetof(ravenstore_get_options_t, device);
  options.flags = RAVENSTORE_READ_ONLY;
  void* address = nullptr;
  EXPECT_EQ(ravenstore_get(store(), tensor, nullptr, &options, &address), RAVENSTORE_OK)
      << ravenstore_last_error();
}

TEST_F(RavenstoreTest, LongerOptionsOfANewerProgramAreRead) {
  struct Newer {
    ravenstore_put_options_t known;
    uint64_t unknown = 0;
  } options{};
  options.known.struct_size = sizeof(options);
  options.known.flags = RAVENSTORE_ORDER;
  ravenstore_tensor_t* tensor = Create();
  EXPECT_EQ(ravenstore_put(store(), tensor, nullptr, &options.known), RAVENSTORE_OK);
}

TEST_F(RavenstoreTest, UnknownFlagsAreRefused) {
  ravenstore_put_options_t options{};
  options.struct_size = sizeof(options);
  options.flags = 0x8000;
  ravenstore_tensor_t* tensor = Create();
  EXPECT_EQ(ravenstore_put(store(), tensor, nullptr, &options), RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_NE(ravenstore_data(tensor), nullptr) << "it stays in Userspace";
}

TEST_F(RavenstoreTest, PrioritiesThatAreNotThereAreRefused) {
  ravenstore_put_options_t options{};
  options.struct_size = sizeof(options);
  ravenstore_tensor_t* tensor = Create();
  for (const int32_t priority : {-2, 2, INT32_MAX, INT32_MIN}) {
    options.priority = priority;
    EXPECT_EQ(ravenstore_put(store(), tensor, nullptr, &options), RAVENSTORE_INVALID_ARGUMENT);
    EXPECT_THAT(ravenstore_last_error(), testing::HasSubstr("-1, 0 and 1"));
  }
  options.priority = RAVENSTORE_PRIORITY_HIGH;
  EXPECT_EQ(ravenstore_put(store(), tensor, nullptr, &options), RAVENSTORE_OK);
}

TEST_F(RavenstoreTest, TensorOfAnotherStoreIsRefused) {
  Store other = Connect();
  ravenstore_tensor_t* tensor = Create();
  void* address = nullptr;
  EXPECT_EQ(ravenstore_put(other.handle(), tensor, nullptr, nullptr), RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_EQ(ravenstore_get(other.handle(), tensor, nullptr, nullptr, &address),
            RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_EQ(ravenstore_free(other.handle(), tensor, nullptr), RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_NE(ravenstore_data(tensor), nullptr);
}

TEST_F(RavenstoreTest, LastErrorBelongsToTheThread) {
  EXPECT_EQ(ravenstore_put(store(), nullptr, nullptr, nullptr), RAVENSTORE_INVALID_ARGUMENT);
  std::thread([&] { EXPECT_STREQ(ravenstore_last_error(), ""); }).join();
  EXPECT_THAT(ravenstore_last_error(), HasSubstr("NULL"));
  ravenstore_tensor_t* tensor = Create();
  EXPECT_THAT(ravenstore_last_error(), HasSubstr("NULL")) << "successes do not clear it";
  static_cast<void>(tensor);
}

TEST_F(RavenstoreTest, CapturedStreamIsRefusedEverywhere) {
  device::HostStream stream;
  ravenstore_tensor_t* used = Create();
  ravenstore_tensor_t* idle = Create();
  ASSERT_EQ(ravenstore_put(store(), idle, nullptr, nullptr), RAVENSTORE_OK);
  stream.set_capturing(true);
  void* address = nullptr;
  EXPECT_EQ(ravenstore_get(store(), idle, &stream, nullptr, &address), RAVENSTORE_CAPTURING);
  EXPECT_EQ(ravenstore_put(store(), used, &stream, nullptr), RAVENSTORE_CAPTURING);
  EXPECT_NE(ravenstore_data(used), nullptr);
  EXPECT_EQ(proto::UnpackLease(daemon_.Row(ravenstore_id(idle)).word.load()).state,
            proto::LeaseState::kIdle);
  ravenstore_tensor_t* adopted = nullptr;
  EXPECT_EQ(ravenstore_adopt(store(), &address, sizeof(address), &stream, nullptr, &adopted),
            RAVENSTORE_CAPTURING);
  EXPECT_EQ(adopted, nullptr);
  stream.set_capturing(false);
  EXPECT_EQ(ravenstore_put(store(), used, &stream, nullptr), RAVENSTORE_OK);
  stream.Synchronize();
}

TEST_F(RavenstoreTest, FreeThatACaptureRefusedIsDoneLater) {
  device::HostStream stream;
  ravenstore_tensor_t* tensor = Create();
  stream.set_capturing(true);
  EXPECT_EQ(ravenstore_free(store(), tensor, &stream), RAVENSTORE_CAPTURING);
  EXPECT_EQ(ravenstore_size(tensor), 0u) << "the handle is ended";
  ravenstore_tensor_t* other = Create();  // still capturing: remembered again
  EXPECT_EQ(daemon_.tensors(), 2u);
  stream.set_capturing(false);
  EXPECT_EQ(ravenstore_free(store(), other, &stream), RAVENSTORE_OK);
  EXPECT_TRUE(Eventually([&] { return daemon_.tensors() == 0; }));
  stream.Synchronize();
}

TEST_F(RavenstoreTest, FailedAdoptOnACapturingStreamLeavesNothingBehind) {
  device::HostStream stream;
  stream.set_capturing(true);
  const uint64_t source = 7;
  ravenstore_tensor_t* adopted = nullptr;
  EXPECT_EQ(ravenstore_adopt(store(), &source, sizeof(source), &stream, nullptr, &adopted),
            RAVENSTORE_CAPTURING);
  EXPECT_TRUE(Eventually([&] { return daemon_.tensors() == 0; }));
}

TEST_F(RavenstoreTest, StepReachesTheDaemon) {
  EXPECT_EQ(ravenstore_step(nullptr), RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_EQ(ravenstore_step(store()), RAVENSTORE_OK);
  EXPECT_TRUE(Eventually([&] { return daemon_.counts().steps == 1; }));
}

TEST_F(RavenstoreTest, CodesHaveTheirNames) {
  EXPECT_STREQ(ravenstore_code_name(RAVENSTORE_OK), "OK");
  EXPECT_STREQ(ravenstore_code_name(RAVENSTORE_RECOMPUTE), "RECOMPUTE");
  EXPECT_STREQ(ravenstore_code_name(RAVENSTORE_OUT_OF_MEMORY), "OUT_OF_MEMORY");
  EXPECT_STREQ(ravenstore_code_name(static_cast<ravenstore_code_t>(99)), "UNKNOWN");
  EXPECT_STREQ(ravenstore_version(), RAVENSTORE_VERSION);
}

TEST_F(RavenstoreTest, StatsFillOnlyWhatThereIsRoomFor) {
  struct {
    ravenstore_stats_t stats;
    uint64_t behind = 0x5555;
  } room{};
  room.stats.gets = 0x7777;
  room.stats.struct_size = offsetof(ravenstore_stats_t, gets);
  ASSERT_EQ(ravenstore_get_stats(store(), &room.stats), RAVENSTORE_OK);
  EXPECT_EQ(room.stats.gets, 0x7777u);
  room.stats.struct_size = sizeof(room);  // a newer program's
  ASSERT_EQ(ravenstore_get_stats(store(), &room.stats), RAVENSTORE_OK);
  EXPECT_EQ(room.behind, 0x5555u);
}

// Fails once more when its thread ends, after the library's own of that thread is gone.
struct LateCaller {
  ~LateCaller() {
    // It gets the memory in which the words of the first failure were.
    const std::string fresh(30, 'v');
    *code = ravenstore_free_batch(nullptr, nullptr, 1, nullptr);
    *harmless = fresh == std::string(30, 'v') && ravenstore_last_error() != nullptr;
  }
  ravenstore_code_t* code = nullptr;
  bool* harmless = nullptr;
};

TEST(LastErrorTest, IsNotWrittenOnceItsThreadHasEnded) {
  ravenstore_code_t code = RAVENSTORE_OK;
  bool harmless = false;
  std::thread([&] {
    thread_local LateCaller late;
    late.code = &code;
    late.harmless = &harmless;
    EXPECT_EQ(ravenstore_free_batch(nullptr, nullptr, 1, nullptr), RAVENSTORE_INVALID_ARGUMENT);
    EXPECT_STREQ(ravenstore_last_error(), "the tensors are NULL");
  }).join();
  EXPECT_EQ(code, RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_TRUE(harmless);
}

TEST_F(RavenstoreTest, PutBatchGoesOnAfterATensorThatFails) {
  ravenstore_tensor_t* tensors[] = {Create(), Create(), Create()};
  ASSERT_EQ(ravenstore_put(store(), tensors[1], nullptr, nullptr), RAVENSTORE_OK);
  EXPECT_EQ(ravenstore_put_batch(store(), tensors, 3, nullptr, nullptr), RAVENSTORE_WRONG_STATE);
  EXPECT_EQ(ravenstore_data(tensors[0]), nullptr);
  EXPECT_EQ(ravenstore_data(tensors[2]), nullptr);
}

}  // namespace
}  // namespace ravenstore
