#include "elastic/shown.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>

#include "ipc/unique_fd.h"
#include "tests/elastic/testing.h"

namespace ravenstore::elastic {
namespace {

using core::Bytes;
using core::MiB;
using core::Tick;
using std::chrono::milliseconds;
using std::chrono::seconds;

const Tick kNow{std::chrono::hours(1)};

Shown::View::Range RangeOf(Bytes size, Bytes away, core::Duration unused) {
  return {.address = size.count(),
          .size = size,
          .away = away,
          .calls = 3,
          .allocated = kNow - std::chrono::minutes(1),
          .used = kNow - unused,
          .pinned = false};
}

class ShownTest : public testing::Test {
 protected:
  std::unique_ptr<proto::ElasticPageRow> row_ = std::make_unique<proto::ElasticPageRow>();
  std::unique_ptr<Shown> shown_ = std::make_unique<Shown>(row_.get(), CallNames());
};

TEST_F(ShownTest, LiveBytesAreToldByPlaceAndByWhenTheyWereUsed) {
  Shown::View view(kNow);
  view.Add(RangeOf(MiB(10), MiB(4), milliseconds(999)));
  view.Add(RangeOf(MiB(20), MiB(0), seconds(1)));
  view.Add(RangeOf(MiB(30), MiB(30), seconds(10)));
  shown_->Publish(view);
  EXPECT_EQ(row_->on_device[0], MiB(6).count());
  EXPECT_EQ(row_->on_host[0], MiB(4).count());
  EXPECT_EQ(row_->on_device[1], MiB(20).count());
  EXPECT_EQ(row_->on_host[2], MiB(30).count());
  EXPECT_EQ(row_->ranges, 3u);
  EXPECT_EQ(row_->ranges_live, 3u);
  EXPECT_EQ(row_->range[0].age_ns, 60'000'000'000u);
}

TEST_F(ShownTest, OfManyRangesTheLargestAreShown) {
  Shown::View view(kNow);
  constexpr uint64_t kMany = 1000;
  // In an order that is neither rising nor falling.
  for (uint64_t i = 0; i < kMany; ++i) view.Add(RangeOf(MiB(i * 7 % kMany + 1), {}, {}));
  shown_->Publish(view);
  ASSERT_EQ(row_->ranges, proto::kElasticRanges);
  EXPECT_EQ(row_->ranges_live, kMany);
  uint64_t sum = 0;
  for (const auto& range : row_->range) sum += range.bytes / MiB(1).count();
  uint64_t largest = 0;
  for (uint64_t i = 0; i < proto::kElasticRanges; ++i) largest += kMany - i;
  EXPECT_EQ(sum, largest);
}

TEST_F(ShownTest, CallsAddUpAndTheOldestMakesRoom) {
  for (uint64_t i = 1; i <= proto::kElasticCalls; ++i) {
    shown_->Note(i, {std::to_string(i).c_str(), nullptr}, {.waited = milliseconds(1)},
                 kNow + seconds(i));
  }
  shown_->Note(1, {"1", nullptr}, {.in_place = MiB(2)}, kNow + seconds(20));
  shown_->Note(99, {"new", nullptr}, {.unknown = true}, kNow + seconds(21));
  Shown::View view(kNow + seconds(30));
  shown_->AddCalls(&view);
  shown_->Publish(view);
  ASSERT_EQ(row_->calls, proto::kElasticCalls);
  EXPECT_STREQ(row_->call[0].name, "new");
  EXPECT_EQ(row_->call[0].unknown, 1u);
  EXPECT_EQ(row_->call[0].waits, 0u);
  EXPECT_EQ(row_->call[0].ago_ns, 9'000'000'000u);
  EXPECT_STREQ(row_->call[1].name, "1");
  EXPECT_EQ(row_->call[1].waits, 1u);
  EXPECT_EQ(row_->call[1].waited_ns, 1'000'000u);
  EXPECT_EQ(row_->call[1].in_place_bytes, MiB(2).count());
  for (const auto& call : row_->call) EXPECT_STRNE(call.name, "2") << "it was the oldest";
}

TEST_F(ShownTest, ANameIsCutToItsRoom) {
  const std::string longer(300, 'x');
  shown_->Note(1, {longer.c_str(), nullptr}, {.unknown = true}, kNow);
  Shown::View view(kNow);
  shown_->AddCalls(&view);
  shown_->Publish(view);
  EXPECT_EQ(std::strlen(row_->call[0].name), sizeof(row_->call[0].name) - 1);
}

TEST_F(ShownTest, ASequenceIsEvenWhenARowIsWholeAndAnEngineThatEndsLeavesNothing) {
  EXPECT_EQ(row_->sequence, 0u);
  Shown::View view(kNow);
  view.Add(RangeOf(MiB(10), MiB(4), {}));
  shown_->Publish(view);
  EXPECT_EQ(row_->sequence, 2u);
  shown_->Publish(view);
  EXPECT_EQ(row_->sequence, 4u);
  // Its process was killed in between: the next engine's is whole again.
  row_->sequence = 5;
  shown_->Publish(view);
  EXPECT_EQ(row_->sequence, 6u);
  shown_.reset();
  EXPECT_EQ(row_->sequence, 8u);
  EXPECT_EQ(row_->ranges, 0u);
  EXPECT_EQ(row_->written_ns, 0u);
}

// The whole way: an engine with less memory than is used, and what it says of itself.
class ShownEngineTest : public EngineTest {
 protected:
  // The row outlives the engine.
  void TearDown() override { engine_.reset(); }
  ~ShownEngineTest() override { ::munmap(row_, sizeof(*row_)); }
  // As another process sees the row: whole, or not yet.
  bool Snapshot(proto::ElasticPageRow* to) const {
    uint64_t after = 0;
    return ::pread(file_.get(), to, sizeof(*to), 0) == ssize_t{sizeof(*to)} &&
           ::pread(file_.get(), &after, sizeof(after), 0) == ssize_t{sizeof(after)} &&
           to->sequence % 2 == 0 && to->sequence == after;
  }
  const ipc::UniqueFd file_{::memfd_create("row", MFD_CLOEXEC)};
  proto::ElasticPageRow* const row_ = [this] {
    RAVEN_CHECK(::ftruncate(file_.get(), sizeof(proto::ElasticPageRow)) == 0);
    return static_cast<proto::ElasticPageRow*>(::mmap(nullptr, sizeof(proto::ElasticPageRow),
                                                      PROT_READ | PROT_WRITE, MAP_SHARED,
                                                      file_.get(), 0));
  }();
};

TEST_F(ShownEngineTest, AnEngineShowsWhatLiesWhereAndWhatStalled) {
  const auto row = std::make_unique<proto::ElasticPageRow>();
  EngineOptions options;
  options.part = kPart;
  options.on_device.most = MiB(16);
  options.on_host.most = MiB(64);
  options.shown = std::make_shared<Shown>(row_, CallNames(&FakeFunction));
  auto engine = Engine::Create(options, driver_);
  ASSERT_TRUE(engine.ok()) << core::Describe(engine.error());
  engine_ = std::move(*engine);
  const CUdeviceptr first = Allocate(MiB(12));
  Write(first, 1, MiB(12));
  engine_->Pin(first);
  const CUdeviceptr second = Allocate(MiB(12));
  Write(second, 2, MiB(12));
  const CUdeviceptr any[] = {first};
  engine_->End(engine_->Begin({7, nullptr, any, true, {"opaque", nullptr}}), true);
  ASSERT_TRUE(Eventually([&] { return Snapshot(row.get()) && row->uses == 3; }));
  EXPECT_EQ(row->live, MiB(24).count());
  EXPECT_EQ(row->pinned, MiB(12).count());
  EXPECT_EQ(row->away, MiB(8).count());
  EXPECT_EQ(row->limit, MiB(16).count());
  EXPECT_EQ(row->host_limit, MiB(64).count());
  EXPECT_EQ(row->enough, MiB(24).count());
  ASSERT_EQ(row->ranges, 2u);
  uint64_t away = 0;
  for (uint64_t i = 0; i < 2; ++i) {
    away += row->range[i].away;
    EXPECT_EQ(row->range[i].pinned, row->range[i].address == first ? 1u : 0u);
  }
  EXPECT_EQ(away, MiB(8).count());
  EXPECT_GT(row->in_place_bytes, 0u);
  std::string names;
  for (uint64_t i = 0; i < row->calls; ++i) names += std::string(row->call[i].name) + " ";
  EXPECT_NE(names.find("opaque"), std::string::npos) << names;
}

}  // namespace
}  // namespace ravenstore::elastic
