#include "daemon/process_slots.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <chrono>
#include <cstddef>
#include <future>
#include <set>

#include "proto/ledger_page.h"
#include "tests/daemon/stalled_write.h"

namespace ravenstore::daemon {
namespace {

constexpr uid_t kUser = 7;

// A tenant's page as a job maps it.
class Mapped {
 public:
  explicit Mapped(const ProcessSlots::Slot& process_slot)
      : page_(static_cast<proto::TenantPage*>(mmap(nullptr, proto::kTenantBytes,
                                                   PROT_READ | PROT_WRITE, MAP_SHARED,
                                                   process_slot.page, 0))) {}
  ~Mapped() { munmap(page_, proto::kTenantBytes); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  proto::TenantPage* operator->() const { return page_; }

 private:
  proto::TenantPage* page_;
};

TEST(ProcessSlotsTest, ProcessesOfAUserShareAPageAndNoSlot) {
  ProcessSlots process_slots;
  const auto one = process_slots.Take(1, kUser, {100, 1}, 11);
  const auto two = process_slots.Take(2, kUser, {200, 1}, 22);
  const auto stranger = process_slots.Take(3, kUser + 1, {300, 1}, 33);
  ASSERT_TRUE(one.ok() && two.ok() && stranger.ok());
  EXPECT_EQ(one->page, two->page);
  EXPECT_NE(one->page, stranger->page);
  EXPECT_NE(one->slot, two->slot);
  const Mapped page(*one);
  EXPECT_EQ(page->magic, proto::kTenantMagic);
  EXPECT_EQ(page->slots, 2u);
}

TEST(ProcessSlotsTest, AProcessThatEndedCountsNoMoreOnAnyDevice) {
  ProcessSlots process_slots;
  const auto one = process_slots.Take(1, kUser, {100, 1}, 11);
  const auto two = process_slots.Take(2, kUser, {200, 1}, 22);
  const Mapped page(*one);
  for (int row = 0; row < 2; ++row) {
    page->row[row].device = 1 + static_cast<uint64_t>(row);
    page->row[row].used[one->slot] = 50;
    page->row[row].used[two->slot] = 60;
    page->row[row].demand[one->slot].alive = 70;
    page->row[row].demand[two->slot].held = 80;
  }
  process_slots.Release(1);
  for (int row = 0; row < 2; ++row) {
    EXPECT_EQ(page->row[row].used[one->slot], 0u);
    EXPECT_EQ(page->row[row].used[two->slot], 60u);
    EXPECT_EQ(page->row[row].demand[one->slot].alive, 0u);
    EXPECT_EQ(page->row[row].demand[two->slot].held, 80u);
  }
  // The next process gets the slot that is free, so that few are summed.
  const auto next = process_slots.Take(3, kUser, {300, 1}, 33);
  EXPECT_EQ(next->slot, one->slot);
  EXPECT_EQ(page->slots, 2u);
}

TEST(ProcessSlotsTest, AProcessThatAttachesAgainKeepsItsSlotAndWhatStandsThere) {
  ProcessSlots process_slots;
  const auto before = process_slots.Take(1, kUser, {100, 1}, 11);
  const Mapped page(*before);
  page->row[0].device = 1;
  page->row[0].used[before->slot] = 50;
  const auto after = process_slots.Take(2, kUser, {100, 1}, 11);
  EXPECT_EQ(after->slot, before->slot);
  EXPECT_EQ(page->row[0].used[after->slot], 50u);
  process_slots.Release(1);  // its old connection ends
  EXPECT_EQ(page->row[0].used[after->slot], 50u);
  process_slots.Release(2);
  EXPECT_EQ(page->row[0].used[after->slot], 0u);
}

TEST(ProcessSlotsTest, AProcessThatBecameAnotherProgramBeginsAtZero) {
  ProcessSlots process_slots;
  const auto before = process_slots.Take(1, kUser, {100, 1}, 11);
  const Mapped page(*before);
  page->row[0].device = 1;
  page->row[0].used[before->slot] = 50;
  const auto after = process_slots.Take(2, kUser, {100, 1}, 12);
  EXPECT_EQ(page->row[0].used[after->slot], 0u);
}

TEST(ProcessSlotsTest, ANumberThatIsReusedIsAnotherProcess) {
  ProcessSlots process_slots;
  const auto before = process_slots.Take(1, kUser, {100, 1}, 11);
  const auto after = process_slots.Take(2, kUser, {100, 2}, 11);
  EXPECT_NE(before->slot, after->slot);
  // Those of a foreign namespace all have the number 0.
  const auto foreign = process_slots.Take(3, kUser, {0, 0}, 13);
  const auto other = process_slots.Take(4, kUser, {0, 0}, 13);
  EXPECT_NE(foreign->slot, other->slot);
}

TEST(ProcessSlotsTest, APageGoesWithItsUsersLastProcess) {
  ProcessSlots process_slots;
  ASSERT_TRUE(process_slots.Take(1, kUser, {100, 1}, 11).ok());
  const auto second = process_slots.Take(2, kUser, {200, 1}, 22);
  process_slots.Release(1);
  EXPECT_GE(::fcntl(second->page, F_GETFD), 0);
  process_slots.Release(2);
  EXPECT_LT(::fcntl(second->page, F_GETFD), 0);
}

TEST(ProcessSlotsTest, AWriteOfThePageThatNeverEndsStopsNoReader) {
  ProcessSlots process_slots;
  const auto first = process_slots.Take(1, kUser, {100, 1}, 11);
  ASSERT_TRUE(first.ok());
  StalledWrite stalled(first->page, offsetof(proto::TenantPage, reserved));
  if (!stalled.stands()) GTEST_SKIP() << "no page faults of one's own here";
  auto second = std::async(std::launch::async, [&] {
    const bool taken = process_slots.Take(2, kUser, {200, 1}, 22).ok();
    process_slots.Release(2);
    return taken;
  });
  ASSERT_EQ(second.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_TRUE(second.get());
}

TEST(ProcessSlotsTest, RefusesOneMoreThanAPageHasSlots) {
  ProcessSlots process_slots;
  std::set<uint32_t> slots;
  for (uint32_t i = 0; i < proto::kTenantSlots; ++i) {
    const auto process_slot = process_slots.Take(i + 1, kUser, {static_cast<pid_t>(i + 1), 1}, 11);
    ASSERT_TRUE(process_slot.ok());
    slots.insert(process_slot->slot);
  }
  EXPECT_EQ(slots.size(), proto::kTenantSlots);
  EXPECT_EQ(process_slots.Take(5000, kUser, {5000, 1}, 11).error().code, core::ErrorCode::kLimit);
  process_slots.Release(1);
  EXPECT_TRUE(process_slots.Take(5000, kUser, {5000, 1}, 11).ok());
}

}  // namespace
}  // namespace ravenstore::daemon
