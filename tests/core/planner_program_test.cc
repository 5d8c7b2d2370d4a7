// Lives that once ended badly, as the fuzzer's shrinker printed them, named after what broke.
#include <gtest/gtest.h>

#include "tests/core/fuzz_program.h"

namespace ravenstore::core {
namespace {

TEST(PlannerProgramTest, ATensorThatMovesToAnotherDeviceWaitsForItsLastPut) {
  // With an older put's ticket its copy began while the last one's stream was still to run.
  Play({
      {Op::kDevice, {32768, 65536}},
      {Op::kDevice, {32768, 65536}},
      {Op::kHost, {1048576, 8192, 512}},
      {Op::kTenant, {1, 1048576, 1048576}},
      {Op::kAttach, {1, 1, 1048576, 1048576}},
      {Op::kCreate, {1, 1, 512, 0, 1000000, 0}},
      {Op::kReadRequests, {1, 1000}},
      {Op::kSlabEnds, {0, 1}},
      {Op::kSlabEnds, {0, 1}},
      {Op::kPut, {1, 0, 0, 0}},
      {Op::kReadRequests, {1, 1000}},
      {Op::kRun, {1}},
      {Op::kGet, {1, 0, 1000000}},
      {Op::kPut, {1, 0, 0, 0}},
      {Op::kGet, {1, 1, 1000000}},
      {Op::kReadRequests, {1, 1000}},
      {Op::kReadTickets},
      {Op::kCopyEnds, {1, 1}},
      {Op::kRun, {1}},
  });
}

TEST(PlannerProgramTest, AFetchFailsWithTheCopyOfTheGetBeforeIt) {
  // The promised copy fails while a get on another device already waits.
  Play({
      {Op::kDevice, {32768, 65536}},
      {Op::kDevice, {32768, 65536}},
      {Op::kHost, {1048576, 8192, 512}},
      {Op::kHabits, {0, 1, 0, 0}},
      {Op::kTenant, {2, 1048576, 1048576}},
      {Op::kAttach, {1, 2, 31232, 1048576}},
      {Op::kCreate, {1, 1, 2048, 1, 1000000, 0}},
      {Op::kCreate, {2, 1, 512, 0, 1000000, 0}},
      {Op::kReadRequests, {1, 1000}},
      {Op::kSlabEnds, {0, 1}},
      {Op::kSlabEnds, {0, 1}},
      {Op::kCreate, {3, 1, 512, 1, 1000000, 0}},
      {Op::kReadRequests, {1, 1000}},
      {Op::kPut, {3, 1, 0, 0}},
      {Op::kReadRequests, {1, 1000}},
      {Op::kSlabEnds, {0, 1}},
      {Op::kRun, {3}},
      {Op::kReadTickets},
      {Op::kCopyEnds, {3, 1}},
      {Op::kGet, {3, 0, 1000000}},
      {Op::kReadRequests, {1, 1000}},
      {Op::kPut, {3, 0, 0, 0}},
      {Op::kGet, {3, 1, 3000}},
      {Op::kReadRequests, {1, 1000}},
      {Op::kCopyEnds, {3, 0}},
      {Op::kPass, {4684}},
  });
}

TEST(PlannerProgramTest, ATensorLostBeforeItsFetchIsReadMayBeFreed) {
  // The get's request is read after the client was told that the bytes are lost, and freed them.
  Play({
      {Op::kDevice, {28672, 65536}},
      {Op::kDevice, {32768, 65536}},
      {Op::kHost, {1048576, 8192, 512}},
      {Op::kTenant, {1, 1048576, 1048576}},
      {Op::kAttach, {1, 1, 1048576, 1048576}},
      {Op::kAttach, {2, 1, 1048576, 1048576}},
      {Op::kSlabEnds, {0, 1}},
      {Op::kCreate, {1, 2, 1536, 0, 1000000, 0}},
      {Op::kReadRequests, {2, 1000}},
      {Op::kCreate, {2, 2, 3072, 0, 1000000, 0}},
      {Op::kSlabEnds, {0, 1}},
      {Op::kCreate, {3, 1, 8704, 0, 1000000, 0}},
      {Op::kReadRequests, {1, 1000}},
      {Op::kSlabEnds, {0, 1}},
      {Op::kCreate, {4, 1, 512, 0, 1000000, 0}},
      {Op::kCreate, {5, 1, 512, 1, 1000000, 0}},
      {Op::kStep, {1}},
      {Op::kCreate, {6, 1, 512, 0, 1000000, 0}},
      {Op::kCreate, {7, 1, 512, 1, 1000000, 0}},
      {Op::kReadRequests, {2, 1000}},
      {Op::kReadRequests, {1, 2}},
      {Op::kCreate, {8, 1, 11264, 0, 7000, 0}},
      {Op::kReadRequests, {1, 3}},
      {Op::kPut, {6, 0, 0, 0}},
      {Op::kRun, {6}},
      {Op::kPass, {8268}},
      {Op::kReadRequests, {1, 1000}},
      {Op::kCopyEnds, {6, 1}},
      {Op::kPass, {1000}},
      {Op::kGet, {6, 0, 1000000}},
      {Op::kReadRequests, {1, 1000}},
      {Op::kPut, {6, 0, 0, 0}},
      {Op::kGet, {6, 1, 1000000}},
      {Op::kCopyEnds, {6, 0}},
      {Op::kFree, {6}},
      {Op::kReadRequests, {1, 1000}},
  });
}

TEST(PlannerProgramTest, ADeniedFetchOfWhatCameMeanwhileFindsItsPlace) {
  // Prefetched while its client began to fetch it, it is on its device, elsewhere than its row
  // says.
  Play({
      {Op::kSlabs, {4608}},
      {Op::kHost, {1048576, 8192, 512}},
      {Op::kHabits, {1, 1, 0, 0}},
      {Op::kTenant, {1, 23040, 1048576}},
      {Op::kAttach, {1, 1, 1048576, 1048576}},
      {Op::kAttach, {2, 1, 1048576, 1048576}},
      {Op::kSlabEnds, {0, 1}},
      {Op::kCreate, {1, 2, 2048, 0, 1000000, 0}},
      {Op::kReadRequests, {2, 1000}},
      {Op::kSlabEnds, {0, 1}},
      {Op::kCreate, {2, 1, 2048, 0, 1000000, 0}},
      {Op::kCreate, {3, 2, 2048, 0, 1000000, 0}},
      {Op::kReadRequests, {1, 1000}},
      {Op::kSlabEnds, {0, 1}},
      {Op::kCreate, {4, 1, 512, 0, 1000000, 0}},
      {Op::kPut, {2, 0, 0, 0}},
      {Op::kCreate, {5, 1, 2560, 0, 1000000, 0}},
      {Op::kCreate, {6, 2, 1024, 0, 1000000, 0}},
      {Op::kCreate, {7, 2, 513, 0, 1000000, 0}},
      {Op::kReadRequests, {1, 1000}},
      {Op::kCreate, {8, 2, 513, 0, 1000000, 0}},
      {Op::kCreate, {9, 2, 1536, 0, 1000000, 0}},
      {Op::kFree, {4}},
      {Op::kCreate, {10, 1, 4096, 0, 1000000, 0}},
      {Op::kReadRequests, {2, 1000}},
      {Op::kRun, {4}},
      {Op::kPut, {5, 2, 0, 0}},
      {Op::kRun, {5}},
      {Op::kReadRequests, {1, 1000}},
      {Op::kCopyEnds, {5, 1}},
      {Op::kPut, {10, 2, 1, 0}},
      {Op::kGet, {2, 0, 1000000}},
      {Op::kRun, {10}},
      {Op::kReadRequests, {1, 1000}},
      {Op::kCopyEnds, {10, 1}},
      {Op::kGet, {10, 0, 1000000}},
      {Op::kGet, {5, 0, 50000}},
      {Op::kCopyEnds, {5, 1}},
      {Op::kReadRequests, {1, 1000}},
      {Op::kPass, {12494}},
      {Op::kPass, {16577}},
      {Op::kPass, {15280}},
      {Op::kPass, {6050}},
      {Op::kGet, {5, 0, 1000000}},
      {Op::kRun, {5}},
  });
}

TEST(PlannerProgramTest, AFetchThatWaitsForALostTensorFailsAtOnce) {
  // Not at its deadline, when its row has gone on.
  Play({
      {Op::kDevice, {32768, 65536}},
      {Op::kDevice, {12288, 65536}},
      {Op::kHost, {1048576, 8192, 512}},
      {Op::kTenant, {1, 1048576, 1048576}},
      {Op::kAttach, {1, 1, 1048576, 1048576}},
      {Op::kSlabEnds, {0, 1}},
      {Op::kAttach, {2, 1, 1048576, 1048576}},
      {Op::kCreate, {1, 2, 2560, 1, 1000000, 0}},
      {Op::kReadRequests, {2, 1000}},
      {Op::kSlabEnds, {0, 1}},
      {Op::kFree, {1}},
      {Op::kAttach, {3, 1, 1048576, 1048576}},
      {Op::kCreate, {2, 3, 512, 1, 1000000, 0}},
      {Op::kCreate, {3, 2, 2048, 1, 1000000, 0}},
      {Op::kReadRequests, {2, 1000}},
      {Op::kReadRequests, {3, 1000}},
      {Op::kSlabEnds, {0, 1}},
      {Op::kCreate, {4, 2, 5120, 1, 1000000, 0}},
      {Op::kRun, {1}},
      {Op::kPut, {3, 0, 0, 0}},
      {Op::kReadRequests, {2, 1000}},
      {Op::kRun, {3}},
      {Op::kReadTickets},
      {Op::kCopyEnds, {3, 1}},
      {Op::kGet, {3, 1, 1000000}},
      {Op::kReadRequests, {2, 1000}},
      {Op::kPut, {3, 0, 0, 0}},
      {Op::kGet, {3, 0, 4000}},
      {Op::kReadRequests, {2, 1000}},
      {Op::kCopyEnds, {3, 0}},
      {Op::kFree, {3}},
      {Op::kPass, {5078}},
  });
}

TEST(PlannerProgramTest, ATensorThatArrivesIsWaitedForOnce) {
  // However often it is got meanwhile: its client's own time would never go on.
  Play({
      {Op::kDevice, {32768, 65536}},
      {Op::kDevice, {32768, 65536}},
      {Op::kHabits, {0, 1, 0, 0}},
      {Op::kTenant, {1, 1048576, 1048576}},
      {Op::kAttach, {1, 1, 29696, 1048576}},
      {Op::kCreate, {1, 1, 512, 1, 1000000, 0}},
      {Op::kReadRequests, {1, 1000}},
      {Op::kSlabEnds, {0, 1}},
      {Op::kCreate, {2, 1, 1024, 0, 1000000, 0}},
      {Op::kReadRequests, {1, 1000}},
      {Op::kSlabEnds, {0, 1}},
      {Op::kCreate, {3, 1, 512, 0, 1000000, 0}},
      {Op::kReadRequests, {1, 1000}},
      {Op::kPut, {3, 0, 0, 0}},
      {Op::kRun, {3}},
      {Op::kGet, {3, 1, 3000}},
      {Op::kReadRequests, {1, 1000}},
      {Op::kSlabEnds, {0, 1}},
      {Op::kPass, {3171}},
      {Op::kCreate, {4, 1, 512, 0, 1000000, 0}},
      {Op::kReadRequests, {1, 1000}},
      {Op::kPut, {4, 1, 0, 0}},
      {Op::kReadRequests, {1, 1000}},
      {Op::kRun, {4}},
      {Op::kReadTickets},
      {Op::kCopyEnds, {4, 1}},
      {Op::kGet, {4, 1, 1000000}},
      {Op::kReadRequests, {1, 1000}},
      {Op::kPut, {4, 0, 0, 0}},
      {Op::kGet, {4, 0, 7000}},
      {Op::kReadRequests, {1, 1000}},
      {Op::kPass, {9983}},
      {Op::kGet, {4, 1, 1000000}},
      {Op::kReadRequests, {1, 1000}},
  });
}

// Found by the fuzzer: a slab that lay apart came again where it lay apart, for ever.
TEST(PlannerProgramTest, ASlabThatLiesApartComesAgainBesideTheOthersOrNotAtAll) {
  Play({
      {Op::kDevice, {40960, 43008}},
      {Op::kTenant, {1, 1048576, 1048576}},
      {Op::kAttach, {1, 1, 1048576, 1048576}},
      {Op::kAttach, {2, 1, 1048576, 1048576}},
      {Op::kCreate, {1, 1, 513, 0, 1000000, 0}},
      {Op::kReadRequests, {1, 1000}},
      {Op::kSlabEnds, {0, 1}},
      {Op::kCreate, {2, 1, 512, 0, 1000000, 0}},
      {Op::kCreate, {3, 1, 3584, 0, 1000000, 0}},
      {Op::kCreate, {4, 1, 2560, 0, 1000000, 0}},
      {Op::kCreate, {5, 2, 13312, 0, 1000000, 0}},
      {Op::kReadRequests, {2, 1000}},
      {Op::kCreate, {6, 1, 15360, 0, 1000000, 0}},
      {Op::kCreate, {7, 1, 2048, 0, 1000000, 0}},
      {Op::kPut, {1, 1, 6, 0}},
      {Op::kReadRequests, {1, 1000}},
      {Op::kQuiesce},
  });
}

TEST(PlannerProgramTest, HarvestedMemoryThatGrowsForWhatLeavesIsNoRoomForASlab) {
  Play({
      {Op::kSlabs, {4608}},
      {Op::kDevice, {49152, 65536}},
      {Op::kHost, {1048576, 8192, 512}},
      {Op::kPool, {2, 1048576, 100000000, 100000000}},
      {Op::kTenant, {1, 1048576, 1048576, 0}},
      {Op::kAttach, {1, 1, 1048576, 1048576}},
      {Op::kAttach, {2, 1, 16896, 1048576}},
      {Op::kAttach, {3, 1, 1048576, 1048576}},
      {Op::kCreate, {1, 2, 2048, 0, 1000000, 0}},
      {Op::kSlabEnds, {0, 1}},
      {Op::kReadRequests, {2, 1000}},
      {Op::kSlabEnds, {0, 1}},
      {Op::kCreate, {2, 3, 512, 0, 1000000, 0}},
      {Op::kCreate, {3, 1, 512, 0, 1000000, 0}},
      {Op::kReadRequests, {1, 1000}},
      {Op::kSlabEnds, {0, 1}},
      {Op::kAttach, {4, 1, 1048576, 1048576}},
      {Op::kPoolLimit, {0, 31744}},
      {Op::kReadRequests, {3, 1000}},
      {Op::kSlabEnds, {0, 1}},
      {Op::kCreate, {4, 4, 512, 0, 1000000, 0}},
      {Op::kReadRequests, {4, 1000}},
      {Op::kCreate, {5, 2, 15360, 0, 1000000, 0}},
      {Op::kPut, {1, 0, 0, 0, 0}},
      {Op::kRun, {1}},
      {Op::kReadRequests, {2, 1000}},
  });
}

}  // namespace
}  // namespace ravenstore::core
