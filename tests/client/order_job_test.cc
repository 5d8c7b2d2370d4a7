// Orders to regions, end to end: the process that orders, the daemon, and the regions that obey.
#include "client/order_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/orders.h"
#include "client/regions.h"
#include "tests/daemon/daemon_process.h"
#include "tests/daemon/pattern.h"

namespace ravenstore::client {
namespace {

using daemon::DaemonProcess;
using daemon::FillPattern;
using daemon::HoldsPattern;
using testing::HasSubstr;

// Two ranks of a job, which here are one process.
class OrderJobTest : public testing::Test {
 protected:
  struct Rank {
    explicit Rank(const DaemonProcess& daemon, const char* tag = "weights", const char* job = "job")
        : region(std::make_unique<Region>(ConnectOptions{.socket = daemon.socket(), .name = tag})) {
      Region::Enter(region.get());
      memory = Region::AllocateInCurrent(MiB(4), 0);
      Region::Enter(nullptr);
      FillPattern(memory, MiB(4), 1);
      region->TakeOrders(job, 4711);
    }
    std::unique_ptr<Region> region;
    void* memory;
  };
  std::future<core::Result<wire::JobOrdered>> Order(bool wakes = false, std::string tag = "weights",
                                                    std::string job = "job",
                                                    uint64_t timeout_ns = 0) {
    return std::async(std::launch::async, [=, this] {
      return OrderJob(daemon_.socket(),
                      {.job = job, .tag = tag, .wakes = wakes, .timeout_ns = timeout_ns});
    });
  }
  // Waits until an order has come to that rank, and executes it.
  static bool Obey(const Rank& rank) {
    const bool was = rank.region->view().is_asleep;
    while (rank.region->view().is_asleep == was) {
      Orders::AwaitAny(core::kNever);
      rank.region->Obey();
    }
    return !was;
  }
  // The rank executes orders until this one is done.
  static void ObeyUntil(const std::future<core::Result<wire::JobOrdered>>& done, const Rank& rank) {
    while (done.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      rank.region->Obey();
      sched_yield();
    }
  }
  static core::ErrorCode CodeOf(const core::Result<wire::JobOrdered>& ordered) {
    return ordered.ok() ? core::ErrorCode{} : ordered.error().code;
  }

  DaemonProcess daemon_{{"--page", "2MiB", "--device-total", "64MiB", "--pool-size", "128MiB"}};
  Rank first_{daemon_};
  Rank second_{daemon_};
};

TEST_F(OrderJobTest, AllRanksSleepAndAllWake) {
  const Rank other(daemon_, "weights", "another");
  for (int cycle = 0; cycle < 3; ++cycle) {
    auto slept = Order();
    EXPECT_TRUE(Obey(first_));
    EXPECT_TRUE(Obey(second_));
    const auto ordered = slept.get();
    ASSERT_TRUE(ordered.ok()) << ordered.error().message;
    EXPECT_EQ(ordered->clients, 2u);
    EXPECT_GE(ordered->bytes, MiB(8));
    EXPECT_TRUE(Region::IsAnyOrdered()) << "they sleep by an order";
    auto woken = Order(/*wakes=*/true, "", "4711");
    EXPECT_FALSE(Obey(second_));
    EXPECT_FALSE(Obey(first_));
    // By the number of their run the other job is meant, too.
    ObeyUntil(woken, other);
    ASSERT_TRUE(woken.get().ok());
    EXPECT_FALSE(Region::IsAnyOrdered());
    EXPECT_TRUE(HoldsPattern(first_.memory, MiB(4), 1) && HoldsPattern(second_.memory, MiB(4), 1));
  }
  EXPECT_FALSE(other.region->view().is_asleep);
}

TEST_F(OrderJobTest, OneThatCannotSleepWakesTheOther) {
  Region::Keep(second_.memory, true);
  auto slept = Order();
  EXPECT_TRUE(Obey(first_));
  std::thread refuses([&] { ObeyUntil(slept, second_); });
  EXPECT_FALSE(Obey(first_));
  refuses.join();
  const auto failed = slept.get();
  EXPECT_EQ(CodeOf(failed), core::ErrorCode::kWrongState);
  EXPECT_THAT(failed.error().message, HasSubstr("is kept in place"));
  EXPECT_THAT(failed.error().message, HasSubstr("the others are as before"));
  EXPECT_FALSE(first_.region->view().is_asleep);
  EXPECT_TRUE(HoldsPattern(first_.memory, MiB(4), 1));
}

TEST_F(OrderJobTest, OneThatEndsWakesTheOther) {
  auto slept = Order();
  EXPECT_TRUE(Obey(first_));
  Region::Free(second_.memory);
  second_.region.reset();
  EXPECT_FALSE(Obey(first_));
  const auto failed = slept.get();
  EXPECT_EQ(CodeOf(failed), core::ErrorCode::kLost);
  EXPECT_THAT(failed.error().message, HasSubstr("it ended"));
}

TEST_F(OrderJobTest, OneThatIsLateWakesTheOther) {
  auto slept = Order(false, "weights", "job", 1'000'000'000);
  EXPECT_TRUE(Obey(first_));
  EXPECT_FALSE(Obey(first_));
  const auto failed = slept.get();
  EXPECT_EQ(CodeOf(failed), core::ErrorCode::kTimedOut);
  second_.region->Obey();
  EXPECT_FALSE(second_.region->view().is_asleep) << "the order is dropped";
  EXPECT_FALSE(Region::IsAnyOrdered());
}

TEST_F(OrderJobTest, OneThatSleepsAlreadyHasNothingToDo) {
  first_.region->Sleep({});
  auto slept = Order();
  EXPECT_TRUE(Obey(second_));
  ObeyUntil(slept, first_);
  ASSERT_TRUE(slept.get().ok());
  first_.region->Wake({});
  EXPECT_TRUE(Region::IsAnyOrdered());
  second_.region->Wake({});
  EXPECT_FALSE(Region::IsAnyOrdered()) << "the program woke it itself";
}

TEST_F(OrderJobTest, AJobThatIsNotThereIsAnErrorWithThoseThatAre) {
  const auto failed = Order(false, "cache").get();
  EXPECT_EQ(CodeOf(failed), core::ErrorCode::kNotFound);
  EXPECT_THAT(failed.error().message, HasSubstr("'job' with 'weights'"));
  EXPECT_THROW(first_.region->TakeOrders(std::string(256, 'x'), 0), Error);
  EXPECT_THROW(first_.region->TakeOrders("\xff", 0), Error);
}

TEST_F(OrderJobTest, ADaemonThatDiesIsAnErrorForBothSides) {
  auto slept = Order();
  EXPECT_TRUE(Obey(first_));
  daemon_.Kill(SIGKILL);
  EXPECT_EQ(CodeOf(slept.get()), core::ErrorCode::kLost);
  EXPECT_NE(CodeOf(Order().get()), core::ErrorCode{});
  while (ravenstore_region_obey(reinterpret_cast<ravenstore_region_t*>(first_.region.get()),
                                nullptr) != RAVENSTORE_LOST) {
    sched_yield();
  }
}

TEST_F(OrderJobTest, TheAbiRefusesNonsense) {
  auto* const region = reinterpret_cast<ravenstore_region_t*>(first_.region.get());
  uint64_t asleep = 7;
  EXPECT_EQ(ravenstore_region_take_orders(nullptr, "job", 0), RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_EQ(ravenstore_region_take_orders(region, nullptr, 0), RAVENSTORE_OK);
  EXPECT_EQ(ravenstore_region_obey(nullptr, &asleep), RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_EQ(ravenstore_region_obey(region, &asleep), RAVENSTORE_OK);
  EXPECT_EQ(asleep, 0u);
  EXPECT_EQ(ravenstore_region_is_ordered(), 0);
  EXPECT_EQ(ravenstore_region_await_order(1), 0);
  const std::string socket = daemon_.socket();
  const auto order = [&](const char* job, uint32_t flags) {
    return ravenstore_order_job(socket.c_str(), job, nullptr, flags, 0, nullptr);
  };
  EXPECT_EQ(order(nullptr, 0), RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_EQ(order("", 0), RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_EQ(order("job", 8), RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_EQ(order("unknown", RAVENSTORE_ORDER_WAKE), RAVENSTORE_NOT_FOUND);
}

}  // namespace
}  // namespace ravenstore::client
