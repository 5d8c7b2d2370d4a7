#include "ipc/segment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <functional>
#include <optional>
#include <utility>

#include "tests/ipc/child.h"

namespace ravenstore::ipc {
namespace {

using core::ErrorCode;

constexpr int kGoodSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

UniqueFd Duplicate(int fd) {
  return UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

// Memory as a stranger would make it.
UniqueFd Forged(off_t bytes, int seals, const std::function<void(proto::SegmentHeader*)>& edit) {
  UniqueFd memory(memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(memory.get(), bytes), 0);
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  EXPECT_NE(page, MAP_FAILED);
  auto* header = static_cast<proto::SegmentHeader*>(page);
  header->magic = proto::kSegmentMagic;
  header->version = proto::kProtocolVersion;
  header->segment_bytes = sizeof(proto::Segment);
  if (edit) edit(header);
  munmap(page, 4096);
  EXPECT_EQ(fcntl(memory.get(), F_ADD_SEALS, seals), 0);
  return memory;
}

ErrorCode WhyRefused(UniqueFd memory) {
  auto mapped = ControlSegment::Map(std::move(memory));
  EXPECT_FALSE(mapped.ok());
  return mapped.ok() ? ErrorCode{} : mapped.error().code;
}

TEST(SegmentTest, ComesZeroedWithItsHeaderFilled) {
  auto segment = ControlSegment::Create(7);
  ASSERT_TRUE(segment.ok()) << core::Describe(segment.error());
  EXPECT_EQ((*segment)->header.magic, proto::kSegmentMagic);
  EXPECT_EQ((*segment)->header.version, proto::kProtocolVersion);
  EXPECT_EQ((*segment)->header.client, 7u);
  EXPECT_EQ((*segment)->header.segment_bytes, sizeof(proto::Segment));
  EXPECT_EQ((*segment)->header.daemon_asleep.load(), 0u);
  EXPECT_EQ((*segment)->requests.head.load(), 0u);
  EXPECT_EQ((*segment)->slots[proto::kSlotCapacity - 1].word.load(), 0u);
  EXPECT_NE(fcntl(segment->fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(SegmentTest, IsSharedWithEveryProcessThatMapsItsDescriptor) {
  auto segment = ControlSegment::Create(7);
  ASSERT_TRUE(segment.ok());
  Child client([&] {
    auto mine = ControlSegment::Map(Duplicate(segment->fd()));
    if (!mine.ok()) return 1;
    (*mine)->tickets[3].store(99);
    return (*mine)->header.client == 7 ? 0 : 2;
  });
  EXPECT_EQ(client.Wait(), 0);
  EXPECT_EQ((*segment)->tickets[3].load(), 99u);
}

TEST(SegmentTest, CostsOnlyThePagesTouched) {
  auto segment = ControlSegment::Create(1);
  ASSERT_TRUE(segment.ok());
  (*segment)->slots[1000].word.store(1);
  struct stat status {};
  ASSERT_EQ(fstat(segment->fd(), &status), 0);
  EXPECT_LE(status.st_blocks * 512, 64 * 1024);
}

TEST(SegmentTest, CannotBeResizedOrSealedAgain) {
  auto segment = ControlSegment::Create(1);
  ASSERT_TRUE(segment.ok());
  Child client([&] {
    const UniqueFd theirs = Duplicate(segment->fd());
    if (ftruncate(theirs.get(), 0) == 0 || errno != EPERM) return 1;
    if (ftruncate(theirs.get(), 2 * sizeof(proto::Segment)) == 0 || errno != EPERM) return 2;
    if (fcntl(theirs.get(), F_ADD_SEALS, F_SEAL_WRITE) == 0) return 3;
    return 0;
  });
  EXPECT_EQ(client.Wait(), 0);
  (*segment)->slots[proto::kSlotCapacity - 1].word.store(1);
}

TEST(SegmentTest, SurvivesAPunchedHole) {
  auto segment = ControlSegment::Create(1);
  ASSERT_TRUE(segment.ok());
  (*segment)->tickets[0].store(5);
  ASSERT_EQ(fallocate(segment->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                      sizeof(proto::Segment)),
            0);
  EXPECT_EQ((*segment)->tickets[0].load(), 0u);
  (*segment)->tickets[0].store(6);
  EXPECT_EQ((*segment)->tickets[0].load(), 6u);
}

TEST(SegmentTest, AcceptsItsOwnKind) {
  EXPECT_TRUE(ControlSegment::Map(Forged(sizeof(proto::Segment), kGoodSeals, nullptr)).ok());
}

TEST(SegmentTest, RefusesMemoryThatCouldShrinkOrGrow) {
  for (const int seals : {0, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL}) {
    EXPECT_EQ(WhyRefused(Forged(sizeof(proto::Segment), seals, nullptr)), ErrorCode::kCorrupt)
        << "seals " << seals;
  }
}

TEST(SegmentTest, RefusesMemoryOfAnotherSize) {
  const auto size = static_cast<off_t>(sizeof(proto::Segment));
  for (const off_t bytes : {off_t{4096}, size - 4096, size - 1, size + 1, size + 4096}) {
    EXPECT_EQ(WhyRefused(Forged(bytes, kGoodSeals, nullptr)), ErrorCode::kCorrupt) << bytes;
  }
}

TEST(SegmentTest, RefusesForeignContents) {
  const auto forged = [](const std::function<void(proto::SegmentHeader*)>& edit) {
    return WhyRefused(Forged(sizeof(proto::Segment), kGoodSeals, edit));
  };
  EXPECT_EQ(forged([](auto* header) { header->magic ^= 1; }), ErrorCode::kCorrupt);
  EXPECT_EQ(forged([](auto* header) { header->version += 1; }), ErrorCode::kVersionMismatch);
  EXPECT_EQ(forged([](auto* header) { header->segment_bytes -= 1; }), ErrorCode::kCorrupt);
}

TEST(SegmentTest, RefusesWhatIsNoMemory) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd other(ends[1]);
  EXPECT_EQ(WhyRefused(UniqueFd(ends[0])), ErrorCode::kCorrupt);
  EXPECT_EQ(WhyRefused(UniqueFd(open("/dev/null", O_RDWR | O_CLOEXEC))), ErrorCode::kCorrupt);
  EXPECT_EQ(WhyRefused(UniqueFd()), ErrorCode::kCorrupt);
}

TEST(SegmentTest, RefusesADescriptorItMayNotWrite) {
  auto segment = ControlSegment::Create(1);
  ASSERT_TRUE(segment.ok());
  const std::string path = "/proc/self/fd/" + std::to_string(segment->fd());
  EXPECT_EQ(WhyRefused(UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC))), ErrorCode::kSystem);
}

TEST(SegmentTest, MovesAndCanBeMappedMoreThanOnce) {
  auto segment = ControlSegment::Create(1);
  ASSERT_TRUE(segment.ok());
  ControlSegment moved = std::move(*segment);
  EXPECT_EQ(segment->get(), nullptr);
  auto again = ControlSegment::Map(Duplicate(moved.fd()));
  ASSERT_TRUE(again.ok());
  moved->arrivals[1].store(4);
  EXPECT_EQ((*again)->arrivals[1].load(), 4u);
  *again = std::move(moved);
  EXPECT_EQ((*again)->arrivals[1].load(), 4u);
}

TEST(SegmentTest, IsNotInheritedByAFork) {
  auto segment = ControlSegment::Create(1);
  ASSERT_TRUE(segment.ok());
  Child fork(
      [&] { return msync(segment->get(), 4096, MS_ASYNC) == -1 && errno == ENOMEM ? 0 : 1; });
  EXPECT_EQ(fork.Wait(), 0);
}

TEST(SegmentTest, DestroyedInAForkItLeavesWhatLiesThereNow) {
  auto made = ControlSegment::Create(1);
  ASSERT_TRUE(made.ok());
  std::optional<ControlSegment> segment(std::move(*made));
  Child fork([&] {
    void* there = mmap(segment->get(), 4096, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (there == MAP_FAILED) return 1;
    segment.reset();
    return msync(there, 4096, MS_ASYNC) == 0 ? 0 : 2;
  });
  EXPECT_EQ(fork.Wait(), 0);
  (*segment)->tickets[0].store(1);
}

}  // namespace
}  // namespace ravenstore::ipc
