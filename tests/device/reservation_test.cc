#include "device/reservation.h"

#include <errno.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/device/testing.h"

namespace ravenstore::device {
namespace {

using core::ErrorCode;
using core::KiB;
using core::MiB;

// Whether the kernel would read from there, asked without a fault.
bool Readable(const std::byte* at) {
  int ends[2];
  RAVEN_CHECK(pipe(ends) == 0);
  const bool readable = write(ends[1], at, 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return readable;
}

TEST(ReservationTest, OnlyMappedRangesAreAccessible) {
  auto range = Reservation::Make(KiB(64));
  ASSERT_OK(range);
  EXPECT_FALSE(Readable(range->base()));
  auto memory = NewMemory(KiB(8));
  ASSERT_OK(memory);
  ASSERT_OK(range->Map(KiB(16), KiB(8), memory->get()));
  EXPECT_TRUE(Readable(range->base() + KiB(16).count()));
  EXPECT_FALSE(Readable(range->base() + KiB(24).count()));
  ASSERT_OK(range->Unmap(KiB(16), KiB(8)));
  EXPECT_FALSE(Readable(range->base() + KiB(16).count()));
}

TEST(ReservationTest, APopulatedRangeHasItsPages) {
  auto range = Reservation::Make(KiB(64));
  ASSERT_OK(range);
  auto memory = NewMemory(KiB(16));
  ASSERT_OK(memory);
  ASSERT_OK(range->Map(KiB(16), KiB(16), memory->get()));
  ASSERT_OK(range->Populate(KiB(16), KiB(8)));
  EXPECT_EQ(ResidentPages(range->base() + KiB(16).count(), KiB(8)), 2);
  EXPECT_EQ(ResidentPages(range->base() + KiB(24).count(), KiB(8)), 0);
}

TEST(ReservationTest, ItBeginsWhereHugePagesDo) {
  for (int i = 0; i < 3; ++i) {
    auto range = Reservation::Make(KiB(12), MiB(2));
    ASSERT_OK(range);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(range->base()) % MiB(2).count(), 0u);
    EXPECT_EQ(range->size(), KiB(12));
  }
}

TEST(ReservationTest, OwnMemoryHasAllItsPagesWhicheverThreadPopulates) {
  auto range = Reservation::Make(MiB(32), MiB(2));
  ASSERT_OK(range);
  for (const core::Bytes size : {KiB(4), MiB(4), MiB(18) + KiB(8)}) {
    ASSERT_OK(range->MapOwn(MiB(2), size.RoundUp(MiB(2))));
    ASSERT_OK(range->PopulateInParallel(MiB(2), size));
    EXPECT_EQ(ResidentPages(range->base() + MiB(2).count(), size),
              static_cast<int64_t>(size.count() / KiB(4).count()));
    EXPECT_EQ(range->base()[MiB(2).count()], std::byte{0});
    range->base()[MiB(2).count()] = std::byte{1};
    ASSERT_OK(range->Unmap(MiB(2), size.RoundUp(MiB(2))));
    EXPECT_FALSE(Readable(range->base() + MiB(2).count()));
  }
}

TEST(ReservationTest, APartThatCannotBePopulatedIsAnError) {
  auto range = Reservation::Make(MiB(32), MiB(2));
  ASSERT_OK(range);
  ASSERT_OK(range->MapOwn(MiB(0), MiB(16)));
  // Of the part that another thread may populate.
  ASSERT_EQ(munmap(range->base() + MiB(14).count(), KiB(4).count()), 0);
  EXPECT_CODE(range->PopulateInParallel(MiB(0), MiB(16)), ErrorCode::kSystem);
  ASSERT_OK(range->PopulateInParallel(MiB(0), MiB(8)));
}

TEST(ReservationTest, AForkedChildDoesNotInheritIt) {
  auto range = Reservation::Make(KiB(64));
  ASSERT_OK(range);
  auto memory = NewMemory(KiB(8));
  ASSERT_OK(memory);
  ASSERT_OK(range->Map(KiB(0), KiB(8), memory->get()));
  const pid_t child = fork();
  if (child == 0) _exit(Readable(range->base()) ? 1 : 0);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(ReservationTest, TheEndOfItFreesTheAddresses) {
  std::byte* base = nullptr;
  {
    auto range = Reservation::Make(KiB(64));
    ASSERT_OK(range);
    base = range->base();
    Reservation moved = *std::move(range);
    EXPECT_EQ(moved.base(), base);
  }
  EXPECT_EQ(msync(base, KiB(64).count(), MS_ASYNC), -1);
  EXPECT_EQ(errno, ENOMEM) << "nothing is mapped there";
}

TEST(ReservationTest, SharedMemoryIsMappedAgainWithoutItsDescriptor) {
  auto first = Reservation::Make(KiB(16));
  auto second = Reservation::Make(KiB(64));
  ASSERT_OK(first);
  ASSERT_OK(second);
  {
    const auto memory = NewMemory(KiB(16));
    ASSERT_OK(memory);
    ASSERT_OK(first->MapWhole(core::Bytes{0}, KiB(16), memory->get()));
  }
  ASSERT_OK(second->MapSame(KiB(32), KiB(16), first->base()));
  first->base()[5000] = std::byte{7};
  EXPECT_EQ(second->base()[KiB(32).count() + 5000], std::byte{7});
  // Each mapping lives on without the other.
  ASSERT_OK(second->Unmap(KiB(32), KiB(16)));
  ASSERT_OK(second->MapSame(core::Bytes{0}, KiB(16), first->base()));
  *first = Reservation();
  EXPECT_EQ(second->base()[5000], std::byte{7});
}

TEST(ReservationTest, MemoryThatIsNotSharedIsNotMappedAgain) {
  auto range = Reservation::Make(KiB(64));
  ASSERT_OK(range);
  ASSERT_OK(range->MapOwn(core::Bytes{0}, KiB(16)));
  EXPECT_CODE(range->MapSame(KiB(32), KiB(16), range->base()), ErrorCode::kSystem);
}

TEST(ReservationTest, NoBytesAreNoReservation) {
  EXPECT_CODE(Reservation::Make(core::Bytes{0}), ErrorCode::kInvalidArgument);
}

TEST(ReservationTest, WithoutAddressesTheErrorSaysWhichLimitToLift) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer takes addresses of its own";
#endif
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  rlimit less = before;
  less.rlim_cur = core::GiB(32 * 1024).count();
  ASSERT_EQ(setrlimit(RLIMIT_AS, &less), 0);
  const auto refused = Reservation::Make(core::GiB(40 * 1024));
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, testing::HasSubstr("this process may have 32.0 TiB in all"));
  EXPECT_THAT(refused.error().message, testing::HasSubstr("ulimit -v unlimited"));
}

TEST(NewMemoryTest, KeepsItsSizeAndClosesOnExec) {
  const auto memory = NewMemory(KiB(8));
  ASSERT_OK(memory);
  EXPECT_EQ(ftruncate(memory->get(), 4096), -1);
  EXPECT_EQ(ftruncate(memory->get(), 1 << 20), -1);
  EXPECT_EQ(*SizeOf(memory->get()), KiB(8));
  EXPECT_EQ(fcntl(memory->get(), F_GETFD), FD_CLOEXEC);
  const auto copy = Duplicate(memory->get());
  ASSERT_OK(copy);
  EXPECT_NE(copy->get(), memory->get());
  EXPECT_EQ(fcntl(copy->get(), F_GETFD), FD_CLOEXEC);
}

TEST(NewMemoryTest, ErrorsCarryTheSystemsWords) {
  const auto copy = Duplicate(-1);
  EXPECT_CODE(copy, ErrorCode::kSystem);
  EXPECT_NE(copy.error().message.find("Bad file descriptor"), std::string::npos);
  EXPECT_CODE(SizeOf(-1), ErrorCode::kSystem);
}

}  // namespace
}  // namespace ravenstore::device
