#include "interceptor/tenant.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace ravenstore::interceptor {
namespace {

// A tenant's page as the daemon makes it.
class Page {
 public:
  explicit Page(uint64_t slots, int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
      : file_(memfd_create("tenant", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    EXPECT_EQ(ftruncate(file_, static_cast<off_t>(proto::kTenantBytes)), 0);
    EXPECT_EQ(fcntl(file_, F_ADD_SEALS, seals), 0);
    page_ = static_cast<proto::TenantPage*>(
        mmap(nullptr, proto::kTenantBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0));
    page_->magic = proto::kTenantMagic;
    page_->slots = slots;
  }
  ~Page() {
    munmap(page_, proto::kTenantBytes);
    close(file_);
  }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;
  proto::TenantPage* operator->() const { return page_; }
  proto::TenantPage* get() const { return page_; }
  int file() const { return file_; }

 private:
  int file_;
  proto::TenantPage* page_;
};

class TenantTest : public testing::Test {
 protected:
  void SetUp() override {
    tenant::ForgetInChild();
    std::strcpy(ledger_.row[0].uuid, "GPU-0");
    std::strcpy(ledger_.row[1].uuid, "GPU-1");
    ledger_.rows = 2;
  }
  proto::LedgerPage ledger_{};
};

TEST_F(TenantTest, DevicesHaveOneRowEachWhicheverProcessAsksFirst) {
  const Page page(2);
  auto* one = tenant::ReserveRow(page.get(), "GPU-1");
  auto* two = tenant::ReserveRow(page.get(), "GPU-0");
  EXPECT_NE(one, two);
  EXPECT_EQ(tenant::ReserveRow(page.get(), "GPU-1"), one);
  std::vector<std::thread> threads;
  std::atomic<int> strange{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int device = 0; device < 40; ++device) {
        const std::string uuid = "MIG-" + std::to_string(device);
        const auto* row = tenant::ReserveRow(page.get(), uuid.c_str());
        if (row == nullptr || row->device != proto::DeviceKey(uuid.c_str())) ++strange;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(strange, 0);
  EXPECT_NE(page->row[41].device, 0u);
  EXPECT_EQ(page->row[42].device, 0u);
}

TEST_F(TenantTest, APageThatIsFullHasNoRowForAnother) {
  const Page page(1);
  for (uint32_t i = 0; i < proto::kTenantDevices; ++i) {
    ASSERT_NE(tenant::ReserveRow(page.get(), std::to_string(i).c_str()), nullptr);
  }
  EXPECT_EQ(tenant::ReserveRow(page.get(), "GPU-0"), nullptr);
  // Then the process counts for itself.
  tenant::Hold(0, 10);
  tenant::Join(page.file(), 0, ledger_);
  tenant::Hold(0, 5);
  EXPECT_EQ(tenant::TotalOf(0), 15u);
}

TEST_F(TenantTest, WhatWasHeldMovesToThePageThatComesAndToTheNext) {
  tenant::Hold(0, 10);
  tenant::Hold(1, 7);
  EXPECT_EQ(tenant::TotalOf(0), 10u);
  const Page first(3);
  tenant::ReserveRow(first.get(), "GPU-1")->used[0] = 100;
  tenant::Join(first.file(), 2, ledger_);
  EXPECT_EQ(tenant::TotalOf(0), 10u);
  EXPECT_EQ(tenant::TotalOf(1), 107u);
  tenant::Hold(0, 5);
  const Page next(1);
  tenant::Join(next.file(), 0, ledger_);
  EXPECT_EQ(tenant::TotalOf(0), 15u);
  EXPECT_EQ(tenant::TotalOf(1), 7u);
  EXPECT_EQ(first->row[0].used[2], 0u);
  // The daemon went and the next one has no such page.
  tenant::Join(-1, 0, ledger_);
  tenant::Hold(0, 0 - uint64_t{1});
  EXPECT_EQ(tenant::TotalOf(0), 14u);
  EXPECT_EQ(next->row[0].used[0], 0u);
}

TEST_F(TenantTest, TheSamePageAgainChangesNothing) {
  const Page page(1);
  tenant::Join(page.file(), 0, ledger_);
  tenant::Hold(0, 10);
  tenant::Join(page.file(), 0, ledger_);
  EXPECT_EQ(tenant::TotalOf(0), 10u);
}

TEST_F(TenantTest, RefusesAPageThatCouldShrinkUnderItOrIsNone) {
  const Page open(1, F_SEAL_GROW);
  tenant::Join(open.file(), 0, ledger_);
  tenant::Hold(0, 10);
  EXPECT_EQ(open->row[0].device, 0u);
  const Page page(1);
  tenant::Join(page.file(), proto::kTenantSlots, ledger_);
  EXPECT_EQ(page->row[0].device, 0u);
  EXPECT_EQ(tenant::TotalOf(0), 10u);
}

TEST_F(TenantTest, ASlotBelowZeroForAnInstantTakesNothingFromOthers) {
  const Page page(2);
  auto* row = tenant::ReserveRow(page.get(), "GPU-0");
  row->used[0] = 0 - uint64_t{5};
  row->used[1] = 8;
  EXPECT_EQ(tenant::Sum(*row, 2), 8u);
}

TEST_F(TenantTest, NothingIsLostWhileThreadsHoldAndPagesChange) {
  std::vector<std::unique_ptr<Page>> pages;
  for (int i = 0; i < 50; ++i) pages.push_back(std::make_unique<Page>(1));
  std::vector<std::thread> threads;
  std::atomic<bool> begun{false};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&begun] {
      for (int j = 0; j < 200000; ++j) {
        tenant::Hold(0, 3);
        tenant::Hold(0, 0 - uint64_t{2});
        begun = true;
      }
    });
  }
  while (!begun) std::this_thread::yield();
  for (const auto& page : pages) tenant::Join(page->file(), 0, ledger_);
  for (auto& thread : threads) thread.join();
  tenant::Commit();
  uint64_t left = tenant::TotalOf(0);
  // A thread that slept while two pages passed leaves what it added on the older one.
  for (const auto& page : pages) {
    if (page != pages.back()) left += (*page)->row[0].used[0];
  }
  EXPECT_EQ(left, 4u * 200000u);
}

TEST_F(TenantTest, EnginesSeeWhatAllOfThemWant) {
  const Page page(3);
  tenant::Demand all[4];
  EXPECT_EQ(tenant::DemandsOf(0, all, 4).count, 0u);
  tenant::Join(page.file(), 1, ledger_);
  proto::TenantRow* const row = tenant::ReserveRow(page.get(), "GPU-0");
  row->used[0] = 70;  // no engine's
  row->used[2] = 50;
  row->demand[2].alive = 40;
  row->demand[2].held = 30;
  tenant::Demands found = tenant::DemandsOf(0, all, 4);
  EXPECT_EQ(found.count, 1u);
  EXPECT_EQ(found.own, 1u) << "it has published no demand";
  EXPECT_EQ(found.others, 90u);
  tenant::Hold(0, 12);
  tenant::PublishDemand(0, {.in_use = 1, .waits_for = 2, .expected = 3, .alive = 4, .held = 12});
  found = tenant::DemandsOf(0, all, 4);
  EXPECT_EQ(found.count, 2u);
  EXPECT_EQ(found.own, 0u);
  EXPECT_EQ(found.others, 90u);
  EXPECT_EQ(all[0].expected, 3u);
  EXPECT_EQ(all[1].alive, 40u);
  EXPECT_EQ(tenant::DemandsOf(0, all, 1).count, 1u);
  EXPECT_EQ(tenant::DemandsOf(1, all, 4).count, 0u) << "another device";
  tenant::PublishDemand(0, {});
  EXPECT_EQ(tenant::DemandsOf(0, all, 4).count, 1u);
}

}  // namespace
}  // namespace ravenstore::interceptor
