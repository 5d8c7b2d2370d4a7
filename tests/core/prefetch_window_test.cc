#include "core/prefetch_window.h"

#include <gtest/gtest.h>

namespace ravenstore::core {
namespace {

constexpr Bytes kTensor = MiB(64);

void Bring(PrefetchWindow* window, int count, bool used) {
  for (int i = 0; i < count; ++i) window->Begin(kTensor);
  for (int i = 0; i < count; ++i) window->End(kTensor, used);
}

TEST(PrefetchWindowTest, IsWideBeforeAnythingIsKnown) {
  PrefetchWindow window;
  window.Begin(GiB(64));
  EXPECT_TRUE(window.Admits(kTensor));
}

TEST(PrefetchWindowTest, ShrinksWhenWhatCameIsNotUsed) {
  PrefetchWindow window;
  Bring(&window, 8, false);
  EXPECT_LT(window.most(), MiB(512));
  const Bytes before = window.most();
  Bring(&window, 8, false);
  EXPECT_LT(window.most(), before);
  Bring(&window, 64, false);
  // One at a time is always allowed.
  EXPECT_TRUE(window.Admits(kTensor));
  window.Begin(kTensor);
  EXPECT_FALSE(window.Admits(kTensor));
}

TEST(PrefetchWindowTest, RecoversWhenWhatComesIsUsed) {
  PrefetchWindow window;
  Bring(&window, 256, false);
  const Bytes before = window.most();
  for (int i = 0; i < 100; ++i) Bring(&window, 1, true);
  EXPECT_GT(window.most(), before * 8);
}

TEST(PrefetchWindowTest, StaysWhenHalfIsUsed) {
  PrefetchWindow window;
  Bring(&window, 64, false);
  const Bytes before = window.most();
  for (int i = 0; i < 100; ++i) {
    Bring(&window, 2, true);
    Bring(&window, 1, false);
  }
  EXPECT_EQ(window.most(), before);
  EXPECT_EQ(window.pending(), Bytes{0});
}

// At the level of kernels a run of many small ones leaves at once.
TEST(PrefetchWindowTest, StaysWhereWhatCameHasToLeaveBeforeItsTime) {
  PrefetchWindow window;
  for (int i = 0; i < 64; ++i) Bring(&window, 1, true);
  const Bytes before = window.most();
  for (int i = 0; i < 1024; ++i) {
    window.Begin(kTensor);
    window.Withdraw(kTensor);
  }
  EXPECT_EQ(window.most(), before);
  EXPECT_EQ(window.pending(), Bytes{0});
}

}  // namespace
}  // namespace ravenstore::core
