#include "client/mapper.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "ipc/segment.h"

namespace ravenstore::client {
namespace {

using core::Bytes;
using core::ErrorCode;
using core::MiB;
using proto::MapOp;
using testing::ElementsAre;

constexpr uint64_t kPage = 2 << 20;

// The daemon's end is in the same process.
class MapperTest : public testing::Test {
 protected:
  MapperTest()
      : segment_(*ipc::ControlSegment::Create(1)),
        devices_(device::OpenHostDevices({.fault =
                                              [this](device::HostStep step) {
                                                if (step.kind == device::HostStep::Kind::kMap &&
                                                    hold_.exchange(false)) {
                                                  held_.set_value();
                                                  goes_on_.wait();
                                                }
                                                return device::HostFault::kNone;
                                              }})),
        set_(*DeviceSet::Match({{"HOST-0", MiB(64)}}, devices_, segment_.get())),
        producer_(&segment_->maps) {
    mapper_.emplace(&segment_->maps, &set_,
                    Mapper::Hooks{.acknowledged = [this] { ++acknowledged_; },
                                  .failed = [this] { failed_.set_value(); }});
  }
  ~MapperTest() override { mapper_->Stop(); }

  ClientDevice& device() { return *set_.all().front(); }
  void Push(MapOp op, uint32_t memory, uint64_t offset = 0, uint16_t device = 0) {
    proto::MapInstruction instruction{};
    instruction.op = static_cast<uint16_t>(op);
    instruction.device = device;
    instruction.memory = memory;
    instruction.offset = offset;
    instruction.bytes = kPage;
    producer_.Push(instruction);
    producer_.Wake();
  }
  // Of the next instruction, when it is executed.
  uint32_t Result() {
    uint32_t result = 0;
    while (producer_.NextResult(&result) == ipc::Take::kEmpty) std::this_thread::yield();
    return result;
  }
  ipc::UniqueFd Descriptor() {
    return (*devices_[0]->CreateMemory(Bytes(kPage)))->Export().value();
  }
  std::vector<ipc::UniqueFd> Descriptors(int count) {
    std::vector<ipc::UniqueFd> descriptors;
    for (int i = 0; i < count; ++i) descriptors.push_back(Descriptor());
    return descriptors;
  }

  std::atomic<bool> hold_{false};  // the next mapping
  std::promise<void> held_;
  std::promise<void> go_on_;
  const std::shared_future<void> goes_on_ = go_on_.get_future().share();
  ipc::ControlSegment segment_;
  device::Devices devices_;
  DeviceSet set_;
  ipc::MapProducer producer_;
  std::atomic<int> acknowledged_{0};
  std::promise<void> failed_;
  std::optional<Mapper> mapper_;
};

TEST_F(MapperTest, InstructionsAreExecutedInOrderAndAcknowledged) {
  ASSERT_TRUE(mapper_->Start().ok());
  mapper_->Offer(0, Descriptors(2));
  Push(MapOp::kImport, 0);
  Push(MapOp::kMap, 0, kPage);
  Push(MapOp::kImport, 1);
  Push(MapOp::kUnmap, 0, kPage);
  Push(MapOp::kMap, 1, kPage);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Result(), 0u) << i;
  EXPECT_TRUE(device().Mapped(kPage, kPage));
  EXPECT_EQ(acknowledged_, 5);
  Push(MapOp::kUnmap, 1, kPage);
  Push(MapOp::kRelease, 1);
  Push(MapOp::kRelease, 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Result(), 0u) << i;
  EXPECT_FALSE(device().Mapped(kPage, 1));
}

TEST_F(MapperTest, AnImportWaitsForItsDescriptor) {
  Push(MapOp::kImport, 0);
  Push(MapOp::kMap, 0);
  ASSERT_TRUE(mapper_->Start().ok());
  EXPECT_FALSE(producer_.HasWork());
  mapper_->Offer(0, Descriptors(1));
  EXPECT_EQ(Result(), 0u);
  EXPECT_EQ(Result(), 0u);
  EXPECT_TRUE(device().Mapped(0, kPage));
}

TEST_F(MapperTest, ADescriptorThatWasMissedFailsItsImportAndNoOther) {
  ASSERT_TRUE(mapper_->Start().ok());
  mapper_->NoteMissedPacket({ErrorCode::kCorrupt, "no descriptor left"});
  mapper_->Offer(1, Descriptors(1));
  Push(MapOp::kImport, 0);
  Push(MapOp::kMap, 0, 0);
  Push(MapOp::kImport, 1);
  Push(MapOp::kMap, 1, kPage);
  std::vector<uint32_t> results;
  for (int i = 0; i < 4; ++i) results.push_back(Result());
  constexpr auto kTimedOut = static_cast<uint32_t>(ErrorCode::kTimedOut);
  EXPECT_THAT(results, ElementsAre(kTimedOut, kTimedOut, 0u, 0u));
  const PhaseWord phase{Phase::kAttached};
  EXPECT_THAT(device().EnsureMapped(0, 1, core::Tick{}, phase).error().message,
              testing::HasSubstr("did not arrive: no descriptor left"));
}

TEST_F(MapperTest, WhatCannotBeExecutedIsAcknowledgedWithItsError) {
  ASSERT_TRUE(mapper_->Start().ok());
  Push(MapOp::kMap, 4);
  Push(MapOp::kUnmap, 4, kPage);
  Push(MapOp::kMap, 0, 0, 9);
  Push(MapOp{77}, 0);
  std::vector<uint32_t> results;
  for (int i = 0; i < 4; ++i) results.push_back(Result());
  constexpr auto kCorrupt = static_cast<uint32_t>(ErrorCode::kCorrupt);
  constexpr auto kNotFound = static_cast<uint32_t>(ErrorCode::kNotFound);
  EXPECT_THAT(results, ElementsAre(kCorrupt, kNotFound, kNotFound, kCorrupt));
}

TEST_F(MapperTest, ACorruptRingIsReportedAndEndsTheThread) {
  ASSERT_TRUE(mapper_->Start().ok());
  segment_->maps.head.store(proto::kMapRingEntries + 1);
  producer_.Wake();
  failed_.get_future().wait();
}

TEST_F(MapperTest, StopDoesNotWaitForADescriptor) {
  Push(MapOp::kImport, 0);
  ASSERT_TRUE(mapper_->Start().ok());
  mapper_->Stop();
  EXPECT_FALSE(producer_.HasWork());
}

TEST_F(MapperTest, AForkedChildClosesDescriptorsThatAreNotImported) {
  std::vector<ipc::UniqueFd> descriptors;
  descriptors.emplace_back(fcntl(Descriptor().get(), F_DUPFD_CLOEXEC, 100));
  const int number = descriptors[0].get();
  mapper_->Offer(0, std::move(descriptors));
  mapper_->LockForFork();
  const pid_t child = fork();
  if (child == 0) {
    mapper_->DropInChild();
    mapper_->UnlockAfterFork();
    _exit(fcntl(number, F_GETFD) == -1 ? 0 : 1);
  }
  mapper_->UnlockAfterFork();
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_NE(fcntl(number, F_GETFD), -1);
}

TEST_F(MapperTest, AForkDoesNotWaitForAMapping) {
  ASSERT_TRUE(mapper_->Start().ok());
  mapper_->Offer(0, Descriptors(1));
  Push(MapOp::kImport, 0);
  EXPECT_EQ(Result(), 0u);
  hold_ = true;
  Push(MapOp::kMap, 0);
  held_.get_future().wait();
  mapper_->LockForFork();
  mapper_->UnlockAfterFork();
  go_on_.set_value();
  EXPECT_EQ(Result(), 0u);
}

}  // namespace
}  // namespace ravenstore::client
