#include "cluster/loan.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "transport/fake.h"

namespace ravenstore::cluster {
namespace {

using core::ErrorCode;
using transport::ConnectionId;
using transport::IncomingCall;
using transport::Sink;

constexpr uint64_t kSeed = 48;

// A lender that lends the slots that a test names, whatever it has lent already.
class ScriptedLender : public transport::Service {
 public:
  void OnConnected(ConnectionId, std::string_view) override { ++connections; }
  void OnLost(ConnectionId, const core::Error&) override { ++lost; }
  core::Result<Sink> OnRequest(const IncomingCall& call) override {
    requests_.emplace(call.id, DecodeRequest(call.header).value());
    return Sink{};
  }
  void OnReceived(transport::CallId call) override {
    const AnyRequest request = requests_.extract(call).mapped();
    EXPECT_TRUE(transport->Reply(call, {.header = AnswerTo(request)}).ok());
  }
  void OnEnded(transport::CallId, const core::Status&) override {}

  transport::Transport* transport = nullptr;
  std::vector<SlotRef> lends = {};
  int connections = 0;
  int lost = 0;

 private:
  std::string AnswerTo(const AnyRequest& request) const {
    constexpr auto kLease = std::chrono::seconds(5);
    if (std::holds_alternative<ChallengeRequest>(request)) return Encode(ChallengeAnswer{});
    if (std::holds_alternative<OpenRequest>(request)) return Encode(OpenAnswer{});
    if (std::holds_alternative<OfferRequest>(request)) return Encode(OfferAnswer{.slots = 4});
    if (std::holds_alternative<BorrowRequest>(request)) {
      return Encode(BorrowAnswer{.lease = kLease, .slots = lends});
    }
    RenewAnswer renewed{.lease = kLease};
    for (const SlotRef& slot : std::get<RenewRequest>(request).slots) {
      renewed.slots.push_back({slot});
    }
    return Encode(renewed);
  }

  std::map<transport::CallId, AnyRequest> requests_;
};

class LoanTest : public testing::Test, public transport::Service, public Loan::Listener {
 protected:
  LoanTest() {
    lender_transport_ = network_.Add("lender", &lender_);
    lender_.transport = lender_transport_.get();
    transport_ = network_.Add("home", this);
    loan_ = std::make_unique<Loan>(options_, "lender", Peer{"lender"}, transport_.get(), this);
    loan_->AskForOffer();
    Run();
  }

  void OnConnected(ConnectionId connection, std::string_view) override {
    loan_->OnConnected(connection);
  }
  void OnLost(ConnectionId connection, const core::Error& why) override {
    loan_->OnLost(connection, why);
  }
  core::Result<Sink> OnRequest(const IncomingCall&) override { return Sink{}; }
  void OnReceived(transport::CallId) override {}
  void OnEnded(transport::CallId, const core::Status&) override {}

  void OnJoined(Loan*) override {}
  void OnRefused(Loan*, const core::Error& why) override { refused_.push_back(why); }
  void OnUsable(Loan*) override {}
  void OnRecalled(Loan*, SlotRef, core::Tick) override {}
  void OnSlotsLost(Loan*, const std::vector<SlotRef>&, const core::Error&) override {}

  void Run(core::Duration duration = std::chrono::milliseconds(500)) {
    const core::Tick end = network_.Now() + duration;
    while (network_.Now() < end) {
      loan_->Advance();
      network_.RunUntil(network_.Now() + std::chrono::milliseconds(1));
    }
  }
  core::Result<SlotRef> Borrow() {
    std::optional<core::Result<SlotRef>> borrowed;
    loan_->Borrow(core::kNever, [&](core::Result<SlotRef> slot) { borrowed = std::move(slot); });
    Run();
    return borrowed.value();
  }

  transport::FakeNetwork network_{kSeed};
  const Loan::Options options_{.home = "home",
                               .identity = {.incarnation = {},
                                            .machine = {},
                                            .sign = [](std::string_view) { return Signature{}; },
                                            .verify = {}},
                               .lease_clock = [this] { return network_.Now(); }};
  ScriptedLender lender_;
  std::vector<core::Error> refused_;
  std::unique_ptr<transport::Transport> lender_transport_;
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<Loan> loan_;
};

TEST_F(LoanTest, ALenderThatLendsOneSlotTwiceIsDisconnected) {
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  const SlotRef slot{};
  lender_.lends = {slot};
  ASSERT_TRUE(Borrow().ok());
  EXPECT_EQ(lender_.connections, 1);
  const auto again = Borrow();
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(lender_.lost, 1);
  ASSERT_FALSE(refused_.empty());
  EXPECT_EQ(refused_.back().code, ErrorCode::kCorrupt);
  EXPECT_EQ(loan_->slots().size(), 1u);
}

TEST_F(LoanTest, ALenderThatLendsMoreThanWasAskedForIsDisconnected) {
  SlotRef other{};
  ++other.generation;
  lender_.lends = {SlotRef{}, other};
  const auto borrowed = Borrow();
  ASSERT_FALSE(borrowed.ok());
  EXPECT_EQ(borrowed.error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(lender_.lost, 1);
  EXPECT_TRUE(loan_->slots().empty());
}

}  // namespace
}  // namespace ravenstore::cluster
