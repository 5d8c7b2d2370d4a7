// Kernels are enqueued far ahead on several streams while ranges are allocated, freed, moved and
// squeezed at random; each kernel that reads checks each word when it runs.
#include <random>

#include "tests/elastic/testing.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace ravenstore::elastic {
namespace {

using core::Bytes;
using core::KiB;
using core::MiB;

constexpr size_t kStreams = 3;
constexpr size_t kRangesMost = 24;
// A sanitizer slows each of them down twentyfold.
#ifdef __SANITIZE_THREAD__
constexpr int kSteps = 300;
#else
constexpr int kSteps = 1500;
#endif
constexpr const char* kReachesAll =
    "the job reaches memory that it does not name: what is away stays mapped";

class FuzzTest : public EngineTest, public testing::WithParamInterface<int> {
 protected:
  // A range as the job knows it.
  struct Known {
    CUdeviceptr address;
    Bytes size;
    uint64_t seed;
    size_t stream;  // of its last use
  };

  void SetUp() override {
    CUmodule module = nullptr;
    RAVEN_CHECK(Fake<decltype(cuModuleLoadData)>("cuModuleLoadData")(
                    &module, "fill opaque check") == CUDA_SUCCESS);
    for (auto [name, function] :
         {std::pair("fill", &fill_), {"opaque", &opaque_}, {"check", &check_}})
      RAVEN_CHECK(Fake<decltype(cuModuleGetFunction)>("cuModuleGetFunction")(function, module,
                                                                             name) == CUDA_SUCCESS);
    for (CUstream& stream : streams_) stream = MakeStream();
  }

  // What is enqueued on the stream from now on is behind the range's last use.
  void OrderBehind(Known& range, size_t stream) {
    if (range.stream == stream) return;
    CUevent event = nullptr;
    RAVEN_CHECK(driver_.event_create(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    driver_.event_record(event, streams_[range.stream]);
    Fake<decltype(cuStreamWaitEvent)>("cuStreamWaitEvent")(streams_[stream], event, 0);
    driver_.event_destroy(event);
    range.stream = stream;
  }
  void Launch(CUfunction function, Known& range, size_t stream) {
    OrderBehind(range, stream);
    uint64_t count = range.size.count() / sizeof(uint64_t);
    CUdeviceptr no_word = 0;
    void* parameters[] = {&range.address, &count, &range.seed, &no_word};
    const CUdeviceptr named[] = {range.address};
    const bool is_opaque = function == opaque_;
    Engine::Submission* submission = engine_->Begin(
        {reinterpret_cast<uint64_t>(function), streams_[stream],
         is_opaque ? std::span<const CUdeviceptr>() : std::span<const CUdeviceptr>(named),
         is_opaque});
    const CUresult result = Fake<decltype(cuLaunchKernel)>("cuLaunchKernel")(
        function, 1, 1, 1, 1, 1, 1, 0, streams_[stream], parameters, nullptr);
    engine_->End(submission, result == CUDA_SUCCESS);
    ASSERT_EQ(result, CUDA_SUCCESS);
  }
  void Renew(size_t stream) {
    engine_->StreamGone(streams_[stream]);
    Fake<decltype(cuStreamDestroy)>("cuStreamDestroy_v2")(streams_[stream]);
    streams_[stream] = MakeStream();
  }
  // `opaque_from`: from this step on, kernels are launched whose touched memory is not known.
  void Run(uint64_t seed, int steps, int opaque_from);

  CUfunction fill_ = nullptr;
  CUfunction opaque_ = nullptr;
  CUfunction check_ = nullptr;
  CUstream streams_[kStreams] = {};
};

void FuzzTest::Run(uint64_t seed, int steps, int opaque_from) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  const auto draw = [&](uint64_t below) { return random() % below; };
  Open(MiB(24), MiB(256));
  std::vector<Known> known;
  for (int i = 0; i < steps; ++i) {
    const size_t stream = draw(kStreams);
    const uint64_t what = draw(100);
    if (known.empty() || (what < 25 && known.size() < kRangesMost)) {
      const Bytes size = KiB(512) * (1 + draw(16));
      known.push_back({Allocate(size, streams_[stream]), size, random(), stream});
      Launch(fill_, known.back(), stream);
      continue;
    }
    const size_t which = draw(known.size());
    Known& range = known[which];
    if (what < 45) {
      OrderBehind(range, stream);
      EXPECT_TRUE(engine_->Free(range.address, streams_[stream], true));
      known.erase(known.begin() + static_cast<ptrdiff_t>(which));
    } else if (what < 60) {
      range.seed = random();
      Launch(what < 47 && i >= opaque_from ? opaque_ : fill_, range, stream);
    } else if (what == 60) {
      engine_->SetDeviceLimit(MiB(8) * (1 + draw(5)));
    } else if (what == 61) {
      for (Known& each : known) OrderBehind(each, (stream + 1) % kStreams);
      Renew(stream);
    } else if (what == 62) {
      Fake<decltype(FakeCudaKernelNanoseconds)>("FakeCudaKernelNanoseconds")(draw(300'000));
    } else {
      Launch(check_, range, stream);
    }
  }
  for (CUstream stream : streams_) Synchronize(stream);
  EXPECT_EQ(Fake<decltype(FakeCudaWrongWords)>("FakeCudaWrongWords")(), 0u);
  EXPECT_EQ(Fake<decltype(FakeCudaTornKernels)>("FakeCudaTornKernels")(), 0);
  EXPECT_GT(engine_->stats().moved_out, Bytes{0});
  EXPECT_EQ(said_, opaque_from > 0 && opaque_from < steps ? kReachesAll : "");
  const CUstream last = MakeStream();
  EXPECT_EQ(Fake<decltype(cuStreamSynchronize)>("cuStreamSynchronize")(last), CUDA_SUCCESS);
}

TEST_P(FuzzTest, NoWordIsWrongAndNothingIsTakenFromBeneathAKernel) {
  const char* asked = std::getenv("RAVENSTORE_TEST_SEED");
  const uint64_t seed = asked != nullptr ? std::strtoull(asked, nullptr, 10) : 20261125;
  maps_away_ = GetParam() == 0;
  Run(seed, kSteps, GetParam());
}

// Memory on the host is mapped from the start on; from some step on; when it is named.
INSTANTIATE_TEST_SUITE_P(OpaqueFrom, FuzzTest, testing::Values(0, kSteps / 2, kSteps));

}  // namespace
}  // namespace ravenstore::elastic
