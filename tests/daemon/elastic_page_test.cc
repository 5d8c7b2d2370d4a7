#include "daemon/elastic_page.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <random>
#include <thread>

#include "ipc/unique_fd.h"
#include "proto/elastic_page.h"
#include "proto/packet.h"
#include "tests/daemon/stalled_write.h"

namespace ravenstore::daemon {
namespace {

const core::Tick kNow{std::chrono::hours(1)};

class ElasticPageTest : public testing::Test {
 protected:
  ElasticPageTest() : file_(memfd_create("elastic", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(file_.get(), proto::kElasticPageBytes), 0);
    page_ = static_cast<char*>(mmap(nullptr, proto::kElasticPageBytes, PROT_READ | PROT_WRITE,
                                    MAP_SHARED, file_.get(), 0));
  }
  ~ElasticPageTest() override { munmap(page_, proto::kElasticPageBytes); }
  proto::ElasticPageRow& Row(size_t row) {
    return *reinterpret_cast<proto::ElasticPageRow*>(page_ + row * proto::kElasticRowBytes);
  }
  std::optional<proto::ElasticDevice> Read(size_t row = 0) const {
    return ReadElasticRow(file_.get(), row, kNow);
  }

  ipc::UniqueFd file_;
  char* page_;
};

TEST_F(ElasticPageTest, ReadsWhatAnEngineShows) {
  EXPECT_FALSE(Read().has_value()) << "nothing was written";
  proto::ElasticPageRow& row = Row(3);
  row.sequence = 2;
  row.written_ns = static_cast<uint64_t>(kNow.time_since_epoch().count()) - 500;
  row.live = 24;
  row.room_waited_ns = 7;
  row.learned = 1;
  row.on_host[2] = 9;
  row.ranges = 2;
  row.range[1] = {.address = 4096,
                  .bytes = 20,
                  .away = 12,
                  .calls = 5,
                  .age_ns = 6,
                  .unused_ns = 7,
                  .pinned = 1};
  row.calls = 1;
  std::strcpy(row.call[0].name, "add");
  row.call[0].waited_ns = 11;
  const auto device = Read(3);
  ASSERT_TRUE(device.has_value());
  EXPECT_EQ(device->age_ns(), 500u);
  EXPECT_EQ(device->live(), 24u);
  EXPECT_EQ(device->room_waited_ns(), 7u);
  EXPECT_TRUE(device->learned());
  EXPECT_FALSE(device->broken());
  EXPECT_EQ(device->on_host(2), 9u);
  ASSERT_EQ(device->ranges_size(), 2);
  EXPECT_EQ(device->ranges(1).away(), 12u);
  EXPECT_TRUE(device->ranges(1).pinned());
  ASSERT_EQ(device->calls_size(), 1);
  EXPECT_EQ(device->calls(0).name(), "add");
  EXPECT_EQ(device->calls(0).waited_ns(), 11u);
}

TEST_F(ElasticPageTest, TotalsAreThoseOfTheRowThoughItIsBeingWritten) {
  EXPECT_EQ(ReadElasticTotals(file_.get(), 0).enough, 0u);
  Row(2).sequence = 3;
  Row(2).written_ns = 1;
  Row(2).enough = 5;
  Row(2).moved_in = 6;
  Row(2).moved_out = 7;
  const ElasticTotals totals = ReadElasticTotals(file_.get(), 2);
  EXPECT_EQ(totals.enough, 5u);
  EXPECT_EQ(totals.moved_in, 6u);
  EXPECT_EQ(totals.moved_out, 7u);
  Row(2).written_ns = 0;
  EXPECT_EQ(ReadElasticTotals(file_.get(), 2).enough, 0u) << "its engine ended";
  EXPECT_EQ(ReadElasticTotals(file_.get(), proto::kLedgerDevices).enough, 0u);
  EXPECT_EQ(ReadElasticTotals(-1, 0).enough, 0u);
}

TEST_F(ElasticPageTest, WhatIsBeingWrittenOrIsOfNoEngineIsNotRead) {
  Row(0).sequence = 3;
  Row(0).written_ns = 1;
  EXPECT_FALSE(Read().has_value()) << "half written";
  Row(0).sequence = 4;
  EXPECT_TRUE(Read().has_value());
  Row(0).written_ns = 0;
  EXPECT_FALSE(Read().has_value()) << "its engine ended";
  EXPECT_FALSE(Read(proto::kLedgerDevices).has_value());
  EXPECT_FALSE(Read(SIZE_MAX).has_value());
}

TEST_F(ElasticPageTest, APageOfAnyBytesGivesAnAnswerThatFitsAPacketAndIsPrintable) {
  const uint64_t seed = std::random_device()();
  std::mt19937_64 random(seed);
  RecordProperty("seed", std::to_string(seed));
  for (int i = 0; i < 200; ++i) {
    for (size_t at = 0; at < proto::kElasticRowBytes; at += sizeof(uint64_t)) {
      // All ones: the largest figures, counts beyond the tables, texts without an end.
      const uint64_t word = i == 0 ? ~uint64_t{0} : random();
      std::memcpy(page_ + at, &word, sizeof(word));
    }
    Row(0).sequence = 2;
    const auto device = Read();
    ASSERT_TRUE(device.has_value());
    EXPECT_EQ(device->ranges_size(), static_cast<int>(proto::kElasticRanges)) << seed;
    EXPECT_EQ(device->calls_size(), static_cast<int>(proto::kElasticCalls)) << seed;
    EXPECT_LT(device->ByteSizeLong(), proto::kControlPacketMax / 2);
    for (const auto& range : device->ranges()) EXPECT_LE(range.away(), range.bytes());
    for (const auto& call : device->calls()) {
      EXPECT_LE(call.name().size(), sizeof(proto::ElasticPageCall::name));
      for (const char c : call.name()) EXPECT_TRUE(c >= ' ' && c <= '~') << seed;
    }
  }
}

TEST_F(ElasticPageTest, ARowThatIsRewrittenIsReadWholeOrNotAtAll) {
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    proto::ElasticPageRow& row = Row(0);
    for (uint64_t i = 1; !stop; ++i) {
      row.sequence.store(2 * i - 1, std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_release);
      row.written_ns = row.live = i;
      row.call[proto::kElasticCalls - 1].waits = i;
      row.calls = proto::kElasticCalls;
      row.sequence.store(2 * i, std::memory_order_release);
      for (int rest = 0; rest < 2000; ++rest) std::atomic_signal_fence(std::memory_order_seq_cst);
      std::this_thread::yield();
    }
  });
  int whole = 0;
  for (int i = 0; i < 1000 || (whole == 0 && i < 1000000); ++i) {
    const auto device = Read();
    if (!device) continue;
    ++whole;
    ASSERT_EQ(device->live(), device->calls(proto::kElasticCalls - 1).waits());
  }
  stop = true;
  writer.join();
  EXPECT_GT(whole, 0);
}

TEST_F(ElasticPageTest, AWriteOfThePageThatNeverEndsDelaysNoReader) {
  Row(0).sequence = 2;
  Row(0).written_ns = 1;
  StalledWrite stalled(file_.get(), 64);
  if (!stalled.stands()) GTEST_SKIP() << "no page faults of one's own here";
  auto read = std::async(std::launch::async, [&] { return Read().has_value(); });
  ASSERT_EQ(read.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_TRUE(read.get());
}

TEST_F(ElasticPageTest, AFileThatIsShorterIsNotRead) {
  Row(0).sequence = 2;
  Row(0).written_ns = 1;
  ASSERT_EQ(ftruncate(file_.get(), 100), 0);
  EXPECT_FALSE(Read().has_value());
}

}  // namespace
}  // namespace ravenstore::daemon
