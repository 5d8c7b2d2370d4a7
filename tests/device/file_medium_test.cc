#include "device/file_medium.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/device/testing.h"

namespace ravenstore::device {
namespace {

using core::ErrorCode;
using core::KiB;
using core::MiB;
using testing::HasSubstr;

constexpr Bytes kUnit = KiB(4);

class FileMediumTest : public testing::Test {
 protected:
  FileMediumTest() : folder_(testing::TempDir() + "file_medium_test.XXXXXX") {
    RAVEN_CHECK(mkdtemp(folder_.data()) != nullptr);
  }
  ~FileMediumTest() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<FileMedium> Create(Bytes size) {
    auto made = FileMedium::Create(folder_, size, {});
    RAVEN_CHECK(made.ok());
    return *std::move(made);
  }
  // Waits for one transfer.
  static Result<Bytes> Await(const std::function<void(Medium::Completion)>& begin) {
    std::optional<Result<Bytes>> outcome;
    std::atomic<bool> over{false};
    begin([&](Result<Bytes> moved) {
      outcome = std::move(moved);
      over.store(true, std::memory_order_release);
    });
    RAVEN_CHECK(Eventually([&] { return over.load(std::memory_order_acquire); }));
    return *std::move(outcome);
  }
  static Result<Bytes> Write(Medium& medium, Bytes offset, const std::vector<uint8_t>& bytes) {
    return Await([&](Medium::Completion completion) {
      medium.Write(offset, reinterpret_cast<const std::byte*>(bytes.data()), Bytes(bytes.size()),
                   std::move(completion));
    });
  }
  static Result<Bytes> Read(Medium& medium, Bytes offset, std::vector<uint8_t>* bytes) {
    return Await([&](Medium::Completion completion) {
      medium.Read(offset, reinterpret_cast<std::byte*>(bytes->data()), Bytes(bytes->size()),
                  std::move(completion));
    });
  }

  std::string folder_;
};

TEST_F(FileMediumTest, BytesComeBackWhateverTheirSizeAndAlignment) {
  const auto file = Create(MiB(8));
  EXPECT_EQ(file->size(), MiB(8));
  const auto memory = std::unique_ptr<std::byte, decltype(&free)>(
      static_cast<std::byte*>(aligned_alloc(4096, MiB(4).count())), &free);
  uint64_t seed = 1;
  for (const uint64_t size : {1u, 511u, 512u, 4096u, 4097u, 100'000u, 1u << 20, (2u << 20) + 5}) {
    for (const uint64_t shift : {0u, 1u, 512u}) {
      const auto pattern = Pattern(Bytes(size), ++seed);
      std::byte* const at = memory.get() + shift;
      memcpy(at, pattern.data(), size);
      const auto written = Await([&](Medium::Completion completion) {
        file->Write(kUnit * 3, at, Bytes(size), std::move(completion));
      });
      ASSERT_OK(written);
      EXPECT_EQ(*written, Bytes(size));
      memset(memory.get(), 0, MiB(4).count());
      const auto read = Await([&](Medium::Completion completion) {
        file->Read(kUnit * 3, at, Bytes(size), std::move(completion));
      });
      ASSERT_OK(read);
      EXPECT_EQ(*read, Bytes(size));
      EXPECT_EQ(memcmp(at, pattern.data(), size), 0) << size << " bytes, shifted by " << shift;
      EXPECT_EQ(at[size], std::byte{0});
    }
  }
}

TEST_F(FileMediumTest, AWriteLeavesNeighbouringUnitsAlone) {
  const auto file = Create(MiB(1));
  const auto before = Pattern(kUnit * 4, 1);
  ASSERT_OK(Write(*file, Bytes{}, before));
  ASSERT_OK(Write(*file, kUnit, Pattern(Bytes(4097), 2)));
  std::vector<uint8_t> after(before.size());
  ASSERT_OK(Read(*file, Bytes{}, &after));
  const auto unit = static_cast<ptrdiff_t>(kUnit.count());
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + unit, after.begin()));
  EXPECT_TRUE(std::equal(before.begin() + 3 * unit, before.end(), after.begin() + 3 * unit));
}

TEST_F(FileMediumTest, TheFileHasItsRoomNoNameAndNoOtherUser) {
  const auto file = Create(MiB(3));
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  const auto descriptor = file->Duplicate();
  ASSERT_OK(descriptor);
  struct stat status {};
  ASSERT_EQ(fstat(descriptor->get(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(status.st_nlink, 0u);
  EXPECT_GE(Bytes(static_cast<uint64_t>(status.st_blocks) * 512), MiB(3));
}

TEST_F(FileMediumTest, AnotherMayTakeItOver) {
  auto first = Create(Bytes(100'000));
  const auto pattern = Pattern(first->size(), 3);
  ASSERT_OK(Write(*first, Bytes{}, pattern));
  auto descriptor = first->Duplicate();
  ASSERT_OK(descriptor);
  first.reset();
  const auto second = FileMedium::Adopt(*std::move(descriptor), "what was left", {});
  ASSERT_OK(second);
  EXPECT_EQ((*second)->size(), Bytes(pattern.size()));
  std::vector<uint8_t> read(pattern.size());
  ASSERT_OK(Read(**second, Bytes{}, &read));
  EXPECT_EQ(read, pattern);
}

TEST_F(FileMediumTest, AFileThatIsNoMediumIsNotTakenOver) {
  auto memory = NewMemory(kUnit);
  ASSERT_OK(memory);
  const auto adopted = FileMedium::Adopt(*std::move(memory), "a small file", {});
  EXPECT_CODE(adopted, ErrorCode::kInvalidArgument);
  EXPECT_THAT(adopted.error().message, HasSubstr("a small file: 4096 bytes"));
}

TEST_F(FileMediumTest, AFileThatIsMadeShorterFailsWhatFollows) {
  const auto file = Create(MiB(1));
  ASSERT_OK(Write(*file, Bytes{}, Pattern(MiB(1), 1)));
  const auto descriptor = file->Duplicate();
  ASSERT_OK(descriptor);
  ASSERT_EQ(ftruncate(descriptor->get(), 10'000), 0);
  std::vector<uint8_t> bytes(kUnit.count() * 2);
  for (const Bytes at : {Bytes{}, kUnit * 2, KiB(512)}) {
    const auto read = Read(*file, at, &bytes);
    EXPECT_CODE(read, ErrorCode::kSystem);
    EXPECT_THAT(read.error().message, HasSubstr("the file was made shorter: it ends at 10000"));
  }
  // Writes up to its end make it longer again, but what it lost is not taken for zeros.
  EXPECT_CODE(Write(*file, MiB(1) - kUnit, Pattern(kUnit, 2)), ErrorCode::kSystem);
  EXPECT_CODE(Read(*file, KiB(512), &bytes), ErrorCode::kSystem);
}

TEST_F(FileMediumTest, AFileSystemWithoutRoomIsAnErrorInWords) {
  const auto made = FileMedium::Create(folder_, core::GiB(1 << 20), {});
  EXPECT_CODE(made, ErrorCode::kOutOfMemory);
  EXPECT_THAT(made.error().message, HasSubstr(folder_ + ": a file of 1024.0 TiB was asked for"));
  EXPECT_CODE(FileMedium::Create(folder_, Bytes{}, {}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(FileMedium::Create(folder_, Bytes(~uint64_t{0}), {}), ErrorCode::kInvalidArgument);
}

TEST_F(FileMediumTest, RoomThatCannotBeReservedIsAnErrorInWordsAndLeavesNothing) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  rlimit less = before;
  less.rlim_cur = MiB(1).count();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &less), 0);
  const auto made = FileMedium::Create(folder_, MiB(2), {});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  EXPECT_CODE(made, ErrorCode::kSystem);
  EXPECT_THAT(made.error().message, HasSubstr("reserve 2.0 MiB (fallocate): File too large"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

// While it lives, the rights of files hold for this thread even if it is root's.
class Unprivileged {
 public:
  Unprivileged() {
    RAVEN_CHECK(syscall(SYS_capget, &header_, before_) == 0);
    __user_cap_data_struct without[2] = {before_[0], before_[1]};
    without[0].effective = without[1].effective = 0;
    RAVEN_CHECK(syscall(SYS_capset, &header_, without) == 0);
  }
  ~Unprivileged() { RAVEN_CHECK(syscall(SYS_capset, &header_, before_) == 0); }

 private:
  __user_cap_header_struct header_{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct before_[2] = {};
};

TEST_F(FileMediumTest, AFolderThatMayNotBeWrittenToIsAnErrorInWords) {
  ASSERT_EQ(chmod(folder_.c_str(), 0555), 0);
  const auto made = [&] {
    const Unprivileged unprivileged;
    return FileMedium::Create(folder_, MiB(1), {});
  }();
  EXPECT_CODE(made, ErrorCode::kSystem);
  EXPECT_THAT(made.error().message, HasSubstr("create a file (mkostemp): Permission denied"));
}

TEST_F(FileMediumTest, AFolderThatIsNotThereIsAnErrorInWords) {
  const auto made = FileMedium::Create(folder_ + "/none", MiB(1), {});
  EXPECT_CODE(made, ErrorCode::kSystem);
  EXPECT_THAT(made.error().message, HasSubstr("none: statvfs: No such file or directory"));
}

}  // namespace
}  // namespace ravenstore::device
