#include "elastic/call_ends.h"

#include <vector>

#include "tests/elastic/testing.h"

namespace ravenstore::elastic {
namespace {

using core::Bytes;
using core::CallEnd;
using core::MiB;
using core::TensorNumber;

class CallEndsTest : public EngineTest {
 protected:
  // The ends that have passed, after all streams but those with held copies have.
  std::vector<TensorNumber> Passed() {
    std::vector<TensorNumber> passed;
    // The first look records what the next one finds passed.
    for (int look = 0; look < 4; ++look) {
      streams_.Look();
      std::vector<CallEnd> ends;
      ends_.TakePassed(&ends);
      for (const CallEnd& end : ends) passed.push_back(end.tensor);
      if (!is_held_) {
        Synchronize(one_);
        Synchronize(other_);
      }
    }
    return passed;
  }
  // Copies wait from now on, and so does a stream with one.
  void HoldCopy(CUstream stream) {
    Fake<void(int)>("FakeCudaHoldCopies")(1);
    driver_.copy_async(AddressOf(to_), AddressOf(from_), 64, stream);
    is_held_ = true;
  }
  void ReleaseCopies() {
    Fake<void(int)>("FakeCudaHoldCopies")(0);
    is_held_ = false;
  }
  Point On(CUstream stream) { return streams_.Enqueued(stream); }

  std::vector<uint64_t> from_ = std::vector<uint64_t>(8);
  std::vector<uint64_t> to_ = std::vector<uint64_t>(8);
  CUstream one_ = MakeStream();
  CUstream other_ = MakeStream();
  bool is_held_ = false;
  Streams streams_{&driver_};
  CallEnds ends_{&streams_};
};

TEST_F(CallEndsTest, AnEndWithoutAPointHasPassed) {
  ends_.Add({.tensor = 1}, MiB(1), {}, {});
  EXPECT_FALSE(ends_.empty());
  EXPECT_EQ(Passed(), std::vector<TensorNumber>{1});
  EXPECT_TRUE(ends_.empty());
}

TEST_F(CallEndsTest, AnEndPassesWithItsStreamsInTheirOrder) {
  HoldCopy(one_);
  ends_.Add({.tensor = 1}, MiB(1), On(one_), {});
  ends_.Add({.tensor = 2}, MiB(1), On(one_), {});
  ends_.Add({.tensor = 3}, MiB(1), On(one_), {On(other_)});
  EXPECT_TRUE(Passed().empty());
  ReleaseCopies();
  Synchronize(one_);
  const auto passed = Passed();
  ASSERT_EQ(passed.size(), 3u);
  EXPECT_LT(std::find(passed.begin(), passed.end(), 1u),
            std::find(passed.begin(), passed.end(), 2u));
}

TEST_F(CallEndsTest, AFreeWaitsForAllOtherEndsOfItsRange) {
  HoldCopy(one_);
  ends_.Add({.tensor = 1}, MiB(1), On(one_), {});
  ends_.Add({.tensor = 1, .frees = true}, MiB(1), {}, {});
  EXPECT_TRUE(Passed().empty());
  EXPECT_EQ(ends_.freed(), MiB(1));
  ReleaseCopies();
  Synchronize(one_);
  EXPECT_EQ(Passed().size(), 2u);
  EXPECT_EQ(ends_.freed(), Bytes{});
}

}  // namespace
}  // namespace ravenstore::elastic
