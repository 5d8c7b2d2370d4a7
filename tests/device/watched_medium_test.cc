#include "device/watched_medium.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/device/fake_medium.h"
#include "tests/device/testing.h"

namespace ravenstore::device {
namespace {

using core::ErrorCode;
using core::KiB;
using Fault = FakeMedium::Fault;

constexpr Bytes kUnit = KiB(4);

class WatchedMediumTest : public testing::Test {
 protected:
  WatchedMediumTest() {
    auto fake = std::make_unique<FakeMedium>(KiB(64));
    fake_ = fake.get();
    medium_ = std::make_unique<WatchedMedium>(std::move(fake), 3);
  }

  Result<Bytes> Transfer(bool write) {
    std::optional<Result<Bytes>> outcome;
    const auto completion = [&](Result<Bytes> moved) { outcome = std::move(moved); };
    auto* memory = reinterpret_cast<std::byte*>(memory_.data());
    if (write) {
      medium_->Write(kUnit, memory, kUnit, completion);
    } else {
      medium_->Read(kUnit, memory, kUnit, completion);
    }
    RAVEN_CHECK(outcome.has_value());
    return *std::move(outcome);
  }
  void Set(Fault fault) {
    fake_->set_fault([fault](uint64_t) { return fault; });
  }

  std::vector<uint8_t> memory_ = Pattern(kUnit, 1);
  FakeMedium* fake_ = nullptr;
  std::unique_ptr<WatchedMedium> medium_;
};

TEST_F(WatchedMediumTest, IsTheMediumAsLongAsThatServes) {
  EXPECT_EQ(medium_->name(), fake_->name());
  EXPECT_EQ(medium_->size(), KiB(64));
  EXPECT_EQ(medium_->granularity(), kUnit);
  const auto written = memory_;
  ASSERT_OK(Transfer(true));
  memory_.assign(memory_.size(), 0);
  ASSERT_OK(Transfer(false));
  EXPECT_EQ(memory_, written);
  ASSERT_OK(medium_->Health());
}

TEST_F(WatchedMediumTest, AFailureBetweenTransfersThatSucceedIsNoReasonToGiveUp) {
  for (int i = 0; i < 10; ++i) {
    Set(Fault::kFails);
    EXPECT_CODE(Transfer(i % 2 == 0), ErrorCode::kSystem);
    EXPECT_CODE(Transfer(i % 2 != 0), ErrorCode::kSystem);
    Set(Fault::kNone);
    ASSERT_OK(Transfer(true));
  }
  ASSERT_OK(medium_->Health());
}

TEST_F(WatchedMediumTest, WhatOnlyFailsIsGivenUpInTheWordsOfItsLastFailure) {
  Set(Fault::kFails);
  for (int i = 0; i < 2; ++i) EXPECT_CODE(Transfer(false), ErrorCode::kSystem);
  ASSERT_OK(medium_->Health());
  EXPECT_CODE(Transfer(true), ErrorCode::kSystem);
  const std::string words = "the fake: transfer 3 fails (given up after 3 failures in a row)";
  EXPECT_CODE(medium_->Health(), ErrorCode::kSystem);
  EXPECT_EQ(medium_->Health().error().message, words);
  Set(Fault::kNone);
  EXPECT_EQ(Transfer(false).error().message, words);
  EXPECT_EQ(Transfer(true).error().message, words);
  EXPECT_EQ(fake_->transfers(), 3u);
}

TEST_F(WatchedMediumTest, TransfersThatFallShortAreFailures) {
  Set(Fault::kFallsShort);
  for (int i = 0; i < 3; ++i) {
    const auto moved = Transfer(false);
    ASSERT_OK(moved);
    EXPECT_EQ(*moved, KiB(2));
  }
  EXPECT_CODE(medium_->Health(), ErrorCode::kSystem);
  EXPECT_EQ(medium_->Health().error().message,
            "the fake: transfers fall short (given up after 3 failures in a row)");
}

}  // namespace
}  // namespace ravenstore::device
