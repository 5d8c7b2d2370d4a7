#include "client/orders.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ipc/clock.h"

namespace ravenstore::client {
namespace {

class OrdersTest : public testing::Test {
 protected:
  void Offer(uint64_t number, uint64_t undoes = 0) {
    orders_.Offer({.number = number, .undoes = undoes});
  }
  // The number of the next order, which must be there.
  uint64_t Take() {
    const auto order = orders_.Take();
    return order ? order->number : 0;
  }
  // Takes the next and executes it.
  uint64_t Execute(bool changed = true) {
    const uint64_t number = Take();
    orders_.Finish(core::Ok(), changed, core::Bytes(9));
    return number;
  }
  std::vector<uint64_t> Answered() {
    std::vector<uint64_t> numbers;
    for (const wire::OrderDone& done : std::exchange(answers_, {})) {
      EXPECT_EQ(done.code, 0u);
      numbers.push_back(done.order);
    }
    return numbers;
  }

  using Numbers = std::vector<uint64_t>;
  std::vector<wire::OrderDone> answers_;
  Orders orders_{[this](const wire::OrderDone& done) { answers_.push_back(done); }};
};

TEST_F(OrdersTest, TheyAreTakenInOrderOfArrivalAndAnsweredOnceFinished) {
  EXPECT_FALSE(Orders::AnyWaits());
  EXPECT_FALSE(orders_.Take());
  Offer(1);
  Offer(2);
  EXPECT_TRUE(Orders::AnyWaits());
  EXPECT_EQ(Take(), 1u);
  EXPECT_TRUE(answers_.empty());
  orders_.Finish(core::Ok(), true, core::Bytes(9));
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].bytes, 9u);
  EXPECT_EQ(Take(), 2u);
  EXPECT_FALSE(Orders::AnyWaits());
  orders_.Finish(core::Error{core::ErrorCode::kCapturing, "why"}, false, {});
  EXPECT_EQ(answers_[1].order, 2u);
  EXPECT_EQ(answers_[1].code, static_cast<uint32_t>(core::ErrorCode::kCapturing));
  EXPECT_EQ(answers_[1].message, "why");
}

TEST_F(OrdersTest, OneThatIsNotExecutedYetIsDroppedByWhatUndoesIt) {
  Offer(1);
  Offer(2, 1);
  EXPECT_EQ(Answered(), Numbers{2}) << "no process waits for the answer to the first";
  EXPECT_FALSE(Orders::AnyWaits());
  EXPECT_FALSE(orders_.Take());
}

TEST_F(OrdersTest, OneThatChangedSomethingIsUndone) {
  Offer(1);
  EXPECT_EQ(Execute(), 1u);
  Offer(2, 1);
  EXPECT_EQ(Execute(), 2u);
  EXPECT_EQ(Answered(), (Numbers{1, 2}));
  Offer(3, 1);
  EXPECT_EQ(Answered(), Numbers{3}) << "it is undone already";
}

TEST_F(OrdersTest, OneThatFoundNothingToDoIsNot) {
  Offer(1);
  EXPECT_EQ(Execute(/*changed=*/false), 1u);
  Offer(2, 1);
  EXPECT_EQ(Answered(), (Numbers{1, 2}));
  EXPECT_FALSE(orders_.Take());
}

TEST_F(OrdersTest, OneThatIsBeingExecutedIsUndoneIfItChangesSomething) {
  for (const bool changes : {true, false}) {
    Offer(10);
    EXPECT_EQ(Take(), 10u);
    Offer(11, 10);
    EXPECT_TRUE(answers_.empty()) << "what it will do is not known yet";
    orders_.Finish(core::Ok(), changes, {});
    EXPECT_EQ(Take(), changes ? 11u : 0u);
    if (changes) orders_.Finish(core::Ok(), true, {});
    EXPECT_EQ(Answered(), (Numbers{10, 11}));
    EXPECT_FALSE(Orders::AnyWaits());
  }
}

TEST_F(OrdersTest, AnOrderToAnyClientOfTheProcessEndsAWait) {
  EXPECT_FALSE(Orders::AwaitAny(ipc::Now()));
  std::optional<bool> arrived;
  std::thread waits([&] { arrived = Orders::AwaitAny(core::kNever); });
  Orders other([](const wire::OrderDone&) {});
  other.Offer({.number = 1});
  waits.join();
  EXPECT_TRUE(arrived.value());
  other.Drop();
  EXPECT_FALSE(Orders::AnyWaits());
  EXPECT_FALSE(other.Take());
}

}  // namespace
}  // namespace ravenstore::client
