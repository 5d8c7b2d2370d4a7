// What the tests of device/ share.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/result.h"
#include "core/types.h"
#include "device/device.h"
#include "device/reservation.h"
#include "ipc/unique_fd.h"
#include "tests/timing/timing.h"

#define ASSERT_OK(expression)                                     \
  do {                                                            \
    const auto& status_ = (expression);                           \
    ASSERT_TRUE(status_.ok()) << core::Describe(status_.error()); \
  } while (false)
#define EXPECT_CODE(expression, expected)                                           \
  do {                                                                              \
    const auto& status_ = (expression);                                             \
    EXPECT_FALSE(status_.ok());                                                     \
    if (!status_.ok()) {                                                            \
      EXPECT_EQ(status_.error().code, expected) << core::Describe(status_.error()); \
    }                                                                               \
  } while (false)

namespace ravenstore::device {

// Of the mapped pages there, those that memory was found for already.
inline int64_t ResidentPages(std::byte* begin, Bytes bytes) {
  constexpr uint64_t kPage = 4096;
  std::vector<unsigned char> pages(bytes.count() / kPage);
  RAVEN_CHECK(mincore(begin, bytes.count(), pages.data()) == 0);
  return std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; });
}

// A page of words that processes share.
class WordPage {
 public:
  static constexpr Bytes kBytes = core::KiB(4);

  WordPage() : WordPage(NewMemory(kBytes).value()) {}
  explicit WordPage(ipc::UniqueFd memory) : memory_(std::move(memory)) {
    void* at = mmap(nullptr, kBytes.count(), PROT_READ | PROT_WRITE, MAP_SHARED, memory_.get(), 0);
    RAVEN_CHECK(at != MAP_FAILED);
    words_ = static_cast<Word*>(at);
  }
  ~WordPage() { munmap(words_, kBytes.count()); }

  Word& operator[](size_t i) { return words_[i]; }
  void* begin() { return words_; }
  int descriptor() const { return memory_.get(); }

 private:
  ipc::UniqueFd memory_;
  Word* words_;
};

// Bytes that differ from one seed to another and within a run.
inline std::vector<uint8_t> Pattern(Bytes bytes, uint64_t seed) {
  std::vector<uint8_t> pattern(bytes.count());
  uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
  for (auto& byte : pattern) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    byte = static_cast<uint8_t>(state);
  }
  return pattern;
}

}  // namespace ravenstore::device
