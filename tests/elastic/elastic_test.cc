#include "elastic/elastic.h"

#include <string>

#include "tests/elastic/testing.h"

namespace ravenstore::elastic {
namespace {

std::string said;

class ElasticTest : public testing::Test {
 protected:
  ElasticTest() {
    said.clear();
    options_.struct_size = sizeof(options_);
    options_.device_bytes = core::MiB(32).count();
    options_.host_bytes = core::MiB(64).count();
    options_.part_bytes = core::MiB(4).count();
    options_.driver = &FakeFunction;
    options_.log = [](const char* text) { said += text; };
  }
  void TearDown() override { raven_elastic_close(engine_); }
  void Open() {
    engine_ = raven_elastic_open(&options_);
    ASSERT_NE(engine_, nullptr) << said;
  }
  raven_elastic_stats_t Stats() {
    raven_elastic_stats_t stats{};
    stats.struct_size = sizeof(stats);
    raven_elastic_stats(engine_, &stats);
    return stats;
  }

  FakeContext context_;
  raven_elastic_options_t options_{};
  raven_elastic_t* engine_ = nullptr;
};

TEST_F(ElasticTest, AnAllocationIsFoundUsedCountedAndFreed) {
  Open();
  CUdeviceptr begin = 0;
  CUdeviceptr end = 0;
  raven_elastic_bounds(engine_, &begin, &end);
  CUdeviceptr address = 0;
  ASSERT_EQ(raven_elastic_allocate(engine_, 5'000'000, nullptr, 1, &address), CUDA_SUCCESS);
  EXPECT_GE(address, begin);
  EXPECT_LT(address, end);
  CUdeviceptr found = 0;
  uint64_t bytes = 0;
  EXPECT_EQ(raven_elastic_find(engine_, address + 4'999'999, &found, &bytes), 1);
  EXPECT_EQ(found, address);
  EXPECT_EQ(bytes, 5'000'000u);
  const CUdeviceptr inside = address + 8;
  const raven_elastic_use_t use{1, nullptr, &inside, 1, 0, nullptr, nullptr, 0, 0, nullptr, 0};
  raven_elastic_token_t token;
  raven_elastic_begin(engine_, &use, &token);
  raven_elastic_end(engine_, &token, 1);
  EXPECT_EQ(Stats().uses, 1u);
  EXPECT_EQ(Stats().live_bytes, core::MiB(6).count());
  EXPECT_EQ(raven_elastic_free(engine_, inside, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(raven_elastic_free(engine_, address, nullptr, 1), CUDA_SUCCESS);
  EXPECT_EQ(raven_elastic_free(engine_, address, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Stats().live_bytes, 0u);
  EXPECT_EQ(Stats().peak_bytes, core::MiB(6).count());
}

TEST_F(ElasticTest, WhatFitsNowhereIsOutOfMemoryInWords) {
  Open();
  CUdeviceptr address = 0;
  EXPECT_EQ(raven_elastic_allocate(engine_, core::MiB(200).count(), nullptr, 1, &address),
            CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_NE(said.find("is used up"), std::string::npos) << said;
}

TEST_F(ElasticTest, WhatCannotBeOpenedSaysWhy) {
  options_.driver = [](const char* symbol) {
    return std::string(symbol) == "cuMemMap" ? nullptr : FakeFunction(symbol);
  };
  EXPECT_EQ(raven_elastic_open(&options_), nullptr);
  EXPECT_NE(said.find("cuMemMap"), std::string::npos) << said;
  options_.driver = &FakeFunction;
  options_.part_bytes = 12345;
  EXPECT_EQ(raven_elastic_open(&options_), nullptr);
  EXPECT_NE(said.find("12345"), std::string::npos) << said;
  options_.part_bytes = 0;
  options_.struct_size = 8;
  EXPECT_EQ(raven_elastic_open(&options_), nullptr);
}

TEST_F(ElasticTest, AChildHasNoneOfIt) {
  Open();
  CUdeviceptr address = 0;
  ASSERT_EQ(raven_elastic_allocate(engine_, 4096, nullptr, 1, &address), CUDA_SUCCESS);
  raven_elastic_forget(engine_);
  // The child's memory of it is never given back.
  static auto* forgotten = new std::vector<raven_elastic_t*>;
  forgotten->push_back(engine_);
  EXPECT_EQ(raven_elastic_allocate(engine_, 4096, nullptr, 1, &address), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(raven_elastic_free(engine_, address, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  const raven_elastic_use_t use{1, nullptr, &address, 1, 0, nullptr, nullptr, 0, 0, nullptr, 0};
  raven_elastic_token_t token;
  raven_elastic_begin(engine_, &use, &token);
  raven_elastic_end(engine_, &token, 1);
  raven_elastic_close(engine_);
  EXPECT_EQ(Stats().uses, 0u);
}

TEST_F(ElasticTest, AnOlderCallersStatisticsAreItsOwnSize) {
  Open();
  raven_elastic_stats_t stats{};
  stats.struct_size = offsetof(raven_elastic_stats_t, device_bytes);
  stats.host_bytes = 77;
  raven_elastic_stats(engine_, &stats);
  EXPECT_EQ(stats.host_bytes, 77u);
}

}  // namespace
}  // namespace ravenstore::elastic
