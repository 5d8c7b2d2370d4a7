#include "cluster/node.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "cluster/protocol.h"
#include "transport/fake.h"

namespace ravenstore::cluster {
namespace {

using core::Duration;
using core::ErrorCode;
using core::KiB;
using core::Status;
using core::Tick;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Buffer = std::vector<std::byte>;

constexpr Sizes kSizes{.piece = KiB(512), .granule = KiB(64)};
constexpr PieceId kPiece{0};

// Memory of the system, which is allocated again for each slot.
class CountedMemory final : public LentMemory {
 public:
  core::Result<std::span<std::byte>> Make(core::Bytes bytes) override {
    ++made;
    auto memory = memory_.Make(bytes);
    if (memory.ok()) {
      EXPECT_TRUE(std::ranges::all_of(*memory, [](std::byte byte) { return byte == std::byte{}; }));
      last = *memory;
    }
    return memory;
  }
  void Release(std::span<std::byte> memory) override {
    ++released;
    memory_.Release(memory);
  }
  int made = 0;
  int released = 0;
  std::span<std::byte> last;

 private:
  AnonymousMemory memory_;
};

// A node, its memory, and what was reported to its listener.
struct Machine final : Node::Listener {
  void OnPieceRecalled(PieceId piece, Tick) override { recalled.push_back(piece); }
  void OnPieceKept(PieceId piece) override { kept.push_back(piece); }
  void OnPieceLost(PieceId piece, const core::Error&) override { lost.push_back(piece); }
  void OnPiecesMost(uint32_t pieces) override { most = pieces; }
  void OnEvent(const Event& event) override { events.emplace_back(Name(event.kind)); }
  bool HasEvent(const std::string& event) const { return std::ranges::count(events, event) > 0; }

  std::vector<PieceId> recalled;
  std::vector<PieceId> kept;
  std::vector<PieceId> lost;
  uint32_t most = 0;
  std::vector<std::string> events;
  CountedMemory memory;
  std::unique_ptr<Node> node;
  std::unique_ptr<transport::Transport> transport;
};

// A home, or a lender, that says what the test has it say.
struct Speaker final : transport::Service {
  using Answer =
      std::function<core::Result<std::string>(transport::ConnectionId, const AnyRequest&)>;

  void OnConnected(transport::ConnectionId, std::string_view) override {}
  void OnLost(transport::ConnectionId, const core::Error&) override {}
  core::Result<transport::Sink> OnRequest(const transport::IncomingCall& call) override {
    requests.emplace(call.id, DecodeRequest(call.header).value());
    return transport::Sink{};
  }
  void OnReceived(transport::CallId call) override {
    const auto said = answer(call.connection, requests.at(call));
    if (said.ok()) {
      EXPECT_TRUE(transport->Reply(call, {.header = *said}).ok());
    } else {
      EXPECT_TRUE(transport->Refuse(call, said.error()).ok());
    }
  }
  void OnEnded(transport::CallId call, const Status&) override { requests.erase(call); }

  Answer answer;
  std::map<transport::CallId, AnyRequest> requests;
  std::unique_ptr<transport::Transport> transport;
};

class NodeTest : public testing::Test {
 protected:
  ~NodeTest() override {
    for (auto& [name, machine] : machines_) Stop(name);
  }

  Machine& Start(const std::string& name, uint64_t machine, uint32_t slots,
                 std::byte key = std::byte{}) {
    Machine& started = machines_[name];
    Node::Options options;
    options.name = name;
    options.sizes = kSizes;
    options.identity.incarnation = {random_(), random_()};
    options.identity.machine = {0, machine};
    options.identity.key[0] = key == std::byte{} ? static_cast<std::byte>(name[0]) : key;
    options.identity.sign = [](std::string_view) { return Signature{}; };
    options.identity.verify = [](const PublicKey&, std::string_view, const Signature&) {
      return true;
    };
    options.lease_clock = [this] { return network_.Now() + clock_; };
    options.random = [this] { return random_(); };
    options.home.copies = copies_;
    options.home.pieces_max = 8;
    options.home.repairs_max = repairs_;
    options.lender.home_slots_max = each_;
    options.lender.allows = [this](std::string_view home) { return home != stranger_; };
    started.node = std::make_unique<Node>(std::move(options), &started.memory, &started);
    started.transport = network_.Add(name, started.node.get());
    started.node->Attach(started.transport.get());
    started.node->SetLendable(kSizes.piece * slots);
    for (auto& [one, machine_of_one] : machines_) {
      std::map<std::string, Peer> peers;
      for (const auto& [other, unused] : machines_) {
        if (other != one) peers[other] = {.address = other};
      }
      if (machine_of_one.node != nullptr) machine_of_one.node->SetPeers(peers);
    }
    return started;
  }
  // As a process that is killed, but for its own calls, which are ended first.
  void Stop(const std::string& name) {
    Machine& machine = machines_[name];
    if (machine.node == nullptr) return;
    machine.node->Close();
    machine.transport.reset();
    machine.node.reset();
  }
  void Run(Duration duration) {
    const Tick until = network_.Now() + duration;
    while (network_.Now() < until) {
      Tick next = until;
      for (auto& [name, machine] : machines_) {
        if (machine.node == nullptr) continue;
        machine.node->Advance();
        next = std::min(next, machine.node->Next());
      }
      if (!network_.RunNext(next)) network_.RunUntil(next);
    }
  }
  Home& home() { return machines_.at(home_).node->home(); }

  // Runs until it has ended, and returns how.
  Status Ended(const std::function<void(Tick, Home::DoneCallback)>& begin,
               Duration within = seconds(3)) {
    std::optional<Status> ended;
    begin(network_.Now() + within, [&ended](const Status& status) {
      EXPECT_FALSE(ended) << "completed twice";
      ended = status;
    });
    EXPECT_FALSE(ended) << "completed within the call";
    for (Duration waited{}; !ended && waited <= within; waited += milliseconds(1)) {
      Run(milliseconds(1));
    }
    EXPECT_TRUE(ended) << "not by its deadline";
    return ended.value_or(core::Error{ErrorCode::kSystem, "never completed"});
  }
  Status Grow(PieceId piece = kPiece) {
    return Ended([&](Tick deadline, auto done) { home().Grow(piece, deadline, done); });
  }
  Status Write(const Buffer& bytes, core::Bytes offset = {}) {
    return Ended([&](Tick deadline, auto done) { home().Write(offset, bytes, deadline, done); });
  }
  Status Read(Buffer* bytes, core::Bytes offset = {}, Duration within = seconds(3)) {
    return Ended([&](Tick deadline, auto done) { home().Read(offset, *bytes, deadline, done); },
                 within);
  }
  static Buffer Bytes(size_t size, uint64_t seed) {
    Buffer bytes(size);
    std::mt19937_64 random(seed);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
  }
  void GrowAndWrite() {
    Run(seconds(1));
    ASSERT_TRUE(Grow().ok());
    ASSERT_TRUE(Write(bytes_).ok());
  }
  // A home has a piece of a lender with `slots`, and starts again with another key: it gets no
  // piece until the lease of the earlier start expires. Returns the lender.
  Machine& LendAPieceToAHomeThatChangesItsKey(uint32_t slots) {
    Start("home", 1, 0);
    Machine& lender = Start("lender", 2, slots);
    GrowAndWrite();
    Stop("home");
    Start("home", 1, 0, std::byte{99});
    Run(seconds(1));
    EXPECT_EQ(lender.node->lent(), kSizes.piece);
    EXPECT_EQ(Grow().error().code, ErrorCode::kOutOfMemory);
    return lender;
  }
  // A home of two copies at "a" and "b", which lend `slots` slots each; "b" stopped a while ago.
  Machine& LoseOneOfTwoLenders(uint32_t slots) {
    copies_ = 2;
    Machine& machine = Start("home", 1, 0);
    Start("a", 2, slots);
    Start("b", 3, slots);
    GrowAndWrite();
    Stop("b");
    Run(seconds(8));
    return machine;
  }
  void ExpectBytes() {
    Buffer read(bytes_.size());
    const Status status = Read(&read);
    ASSERT_TRUE(status.ok()) << Describe(status.error());
    EXPECT_EQ(read, bytes_);
  }

  std::mt19937_64 random_{20261126};
  transport::FakeNetwork network_{1, /*sums=*/false};  // as over TLS
  Duration clock_{};                                   // of leases, ahead of the transport's
  uint32_t copies_ = 1;
  uint32_t repairs_ = 4;       // at the same time
  uint32_t each_ = kSlotsMax;  // of a lender's slots, for each home
  std::string stranger_;
  std::map<std::string, Machine> machines_;
  std::string home_ = "home";  // whose pieces are meant
  // More than a chunk, and a granule in part.
  const Buffer bytes_ = Bytes((300 << 10) + 100, 1);
};

TEST_F(NodeTest, WhatIsWrittenIsRead) {
  Start("home", 1, 0);
  Machine& lender = Start("lender", 2, 2);
  GrowAndWrite();
  ExpectBytes();
  EXPECT_EQ(lender.node->lent(), kSizes.piece);
  EXPECT_EQ(machines_["home"].most, 2u);
  EXPECT_TRUE(machines_["home"].HasEvent("cluster.joined"));
  EXPECT_TRUE(lender.HasEvent("cluster.home_joined"));
}

TEST_F(NodeTest, WhatWasNotAcknowledgedIsNotRead) {
  Start("home", 1, 0);
  Start("lender", 2, 2);
  GrowAndWrite();
  Buffer beyond(kSizes.granule.count());
  EXPECT_EQ(Read(&beyond, KiB(320)).error().code, ErrorCode::kWrongState);
  EXPECT_EQ(Read(&beyond, KiB(1)).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(Read(&beyond, KiB(512)).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(Write(Buffer(1 << 20)).error().code, ErrorCode::kInvalidArgument);
}

TEST_F(NodeTest, WrongBytesOfTheOnlyLenderFailTheRead) {
  Machine& machine = Start("home", 1, 0);
  Machine& lender = Start("lender", 2, 1);
  GrowAndWrite();
  lender.memory.last[bytes_.size() / 2] ^= std::byte{1};
  Buffer read(bytes_.size());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Read(&read).error().code, ErrorCode::kCorrupt);
  }
  EXPECT_EQ(std::ranges::count(machine.events, "cluster.piece_corrupt"), 1);
  EXPECT_TRUE(machine.lost.empty());
  ASSERT_TRUE(Write(bytes_).ok());
  ExpectBytes();
}

TEST_F(NodeTest, WrongBytesOfOneOfTwoLendersAreReadOfTheOther) {
  copies_ = 2;
  Machine& machine = Start("home", 1, 0);
  Machine& first = Start("a", 2, 1);
  Machine& second = Start("b", 3, 1);
  GrowAndWrite();
  for (Machine* const lender : {&first, &second}) {
    lender->memory.last[7] ^= std::byte{1};
    ExpectBytes();
    // Two copies again, of which one was made of the other.
    Run(seconds(8));
    ExpectBytes();
  }
  EXPECT_TRUE(machine.HasEvent("cluster.piece_corrupt"));
  EXPECT_TRUE(machine.lost.empty());
}

TEST_F(NodeTest, WhatIsReleasedIsFreeAtTheLenderPromptly) {
  Start("home", 1, 0);
  Machine& lender = Start("lender", 2, 1);
  GrowAndWrite();
  EXPECT_EQ(Grow(PieceId{1}).error().code, ErrorCode::kOutOfMemory);
  home().Shrink(kPiece);
  Run(milliseconds(100));
  EXPECT_EQ(lender.node->lent(), core::Bytes{});
}

TEST_F(NodeTest, WhatIsReleasedWhileALeaseIsRenewedIsFreePromptly) {
  Start("home", 1, 0);
  Machine& lender = Start("lender", 2, 3);
  Run(seconds(1));
  for (const uint32_t piece : {0, 1, 2}) ASSERT_TRUE(Grow(PieceId{piece}).ok());
  // The first starts a renewal that names the others.
  for (const uint32_t piece : {0, 1, 2}) {
    home().Shrink(PieceId{piece});
    machines_["home"].node->Advance();
  }
  Run(milliseconds(200));
  EXPECT_EQ(lender.node->lent(), core::Bytes{});
}

TEST_F(NodeTest, WhatIsGivenBackIsSaidBeforeOtherNodesAreAsked) {
  Start("home", 1, 0);
  for (const char* const name : {"a", "b", "c", "d", "e", "f"}) Start(name, 2, 1);
  Run(seconds(1));
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(Grow().ok());
    // To the moment at which others take the place of those who have nothing of this home.
    Run(seconds(5) - network_.Now().time_since_epoch() % seconds(5));
    home().Shrink(kPiece);
    Run(seconds(1));
    for (const auto& [name, machine] : machines_) {
      EXPECT_EQ(machine.node->lent(), core::Bytes{}) << name << " in round " << i;
    }
  }
}

TEST_F(NodeTest, WhatIsGivenBackWithoutAConnectionIsFreeOnceThereIsOne) {
  Start("home", 1, 0);
  Machine& lender = Start("lender", 2, 1);
  GrowAndWrite();
  network_.Drop("home", "lender");
  home().Shrink(kPiece);
  Run(seconds(1));
  EXPECT_EQ(lender.node->lent(), core::Bytes{});
}

// Else the lender keeps it for its home, to which it then offers less. What the home had sent
// before may be answered after.
TEST_F(NodeTest, WhatWasGivenUpIsFreeOnceTheLenderIsHeardOfAgain) {
  Machine& machine = Start("home", 1, 0);
  Machine& lender = Start("lender", 2, 1);
  network_.SetLink("home", "lender", {.delay = milliseconds(100)});
  int lost = 0;
  for (Duration cut = milliseconds(3500); cut < seconds(7); cut += milliseconds(100)) {
    GrowAndWrite();
    network_.Cut("home", "lender");
    Run(cut);
    network_.Heal("home", "lender");
    Run(seconds(2));
    const bool is_lost = !std::exchange(machine.lost, {}).empty();
    lost += is_lost ? 1 : 0;
    if (!is_lost) home().Shrink(kPiece);
    Run(seconds(6));
    EXPECT_EQ(lender.node->lent(), core::Bytes{}) << core::Milliseconds(cut) << " ms";
    EXPECT_EQ(machine.most, 1u) << core::Milliseconds(cut) << " ms";
  }
  EXPECT_GT(lost, 5);
  EXPECT_LT(lost, 35);
}

TEST_F(NodeTest, WhatWasGivenUpIsFreeOnceTheLenderIsAskedAgain) {
  Machine& machine = Start("home", 1, 0);
  Machine& lender = Start("lender", 2, 1);
  GrowAndWrite();
  for (const char* const name : {"a", "b", "c"}) Start(name, 3, 0);
  network_.Cut("home", "lender");
  network_.Drop("home", "lender");
  Run(seconds(15));  // others have its place among those who are asked
  ASSERT_EQ(machine.lost, std::vector{kPiece});
  network_.Heal("home", "lender");
  Run(seconds(15));
  EXPECT_EQ(lender.node->lent(), core::Bytes{});
  EXPECT_TRUE(Grow().ok());
}

TEST_F(NodeTest, WhatWasLentTooLateIsFreePromptlyThoughAnEarlierBorrowIsStillUnderWay) {
  Start("home", 1, 0);
  Machine& lender = Start("lender", 2, 2);
  network_.SetLink("home", "lender", {.delay = milliseconds(200)});
  Run(seconds(3));
  lender.node->SetLendable({});  // which the home does not know yet
  std::vector<Status> ended;
  const auto end = [&ended](const Status& status) { ended.push_back(status); };
  home().Grow(PieceId{0}, network_.Now() + seconds(3), end);
  Run(milliseconds(50));
  home().Grow(PieceId{1}, network_.Now() + milliseconds(250), end);
  Run(milliseconds(175));  // the first has come there, the second has not
  lender.node->SetLendable(kSizes.piece);
  Run(milliseconds(50));
  EXPECT_EQ(lender.node->lent(), kSizes.piece);
  Run(seconds(2));
  EXPECT_EQ(lender.node->lent(), core::Bytes{});
  ASSERT_EQ(ended.size(), 2u);
  EXPECT_FALSE(ended[0].ok() || ended[1].ok());
}

TEST_F(NodeTest, ARecalledPieceGoesToAnotherLender) {
  Start("home", 1, 0);
  Machine& first = Start("first", 2, 1);
  GrowAndWrite();
  Start("second", 3, 1);
  Run(seconds(6));
  first.node->SetLendable({});
  Run(milliseconds(900));
  EXPECT_EQ(first.node->lent(), core::Bytes{});
  EXPECT_TRUE(first.HasEvent("cluster.recalled"));
  EXPECT_FALSE(first.HasEvent("cluster.taken"));
  EXPECT_TRUE(machines_["home"].HasEvent("cluster.piece_moved"));
  EXPECT_TRUE(machines_["home"].recalled.empty());
  ExpectBytes();
}

TEST_F(NodeTest, WrongBytesOfARecalledPieceMoveWithItAndAreReported) {
  Machine& machine = Start("home", 1, 0);
  Machine& first = Start("first", 2, 1);
  GrowAndWrite();
  first.memory.last[7] ^= std::byte{1};
  Start("second", 3, 1);
  Run(seconds(6));
  first.node->SetLendable(core::Bytes{});
  Run(seconds(1));
  EXPECT_TRUE(machine.HasEvent("cluster.piece_moved"));
  EXPECT_EQ(std::ranges::count(machine.events, "cluster.piece_corrupt"), 1);
  Buffer read(bytes_.size());
  EXPECT_EQ(Read(&read).error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(std::ranges::count(machine.events, "cluster.piece_corrupt"), 1) << "it is reported";
}

TEST_F(NodeTest, WhereNoNodeLendsTheDaemonIsAskedAndThenItIsTaken) {
  Machine& machine = Start("home", 1, 0);
  Machine& lender = Start("lender", 2, 1);
  GrowAndWrite();
  lender.node->SetLendable({});
  Run(milliseconds(300));
  EXPECT_EQ(machine.recalled, std::vector{kPiece});
  ExpectBytes();
  EXPECT_EQ(Write(bytes_).error().code, ErrorCode::kUnavailable);
  Run(seconds(4));
  EXPECT_EQ(machine.lost, std::vector{kPiece});
  EXPECT_TRUE(lender.HasEvent("cluster.taken"));
  EXPECT_EQ(lender.node->lent(), core::Bytes{});
}

TEST_F(NodeTest, ARecalledPieceIsKeptWhereALenderIsFoundLater) {
  Machine& machine = Start("home", 1, 0);
  Machine& lender = Start("lender", 2, 1);
  GrowAndWrite();
  lender.node->HandOver(seconds(20));
  Run(milliseconds(300));
  ASSERT_EQ(machine.recalled, std::vector{kPiece});
  ASSERT_EQ(Write(bytes_).error().code, ErrorCode::kUnavailable);
  Start("second", 3, 1);
  Run(seconds(2));
  EXPECT_EQ(machine.kept, std::vector{kPiece});
  EXPECT_TRUE(machine.HasEvent("cluster.piece_moved"));
  EXPECT_EQ(lender.node->lent(), core::Bytes{});
  ExpectBytes();
  EXPECT_TRUE(Write(bytes_).ok());
  Run(seconds(30));
  EXPECT_TRUE(machine.lost.empty());
  ExpectBytes();
}

TEST_F(NodeTest, WhereTheNodesThatAreAskedLendNothingOthersAreAskedPromptly) {
  Machine& machine = Start("home", 1, 0);
  Machine& lender = Start("lender", 2, 1);
  GrowAndWrite();
  for (char name = 'a'; name <= 't'; ++name) Start(std::string(1, name), 3, name == 't' ? 1 : 0);
  lender.node->HandOver(seconds(8));
  Run(seconds(7));
  EXPECT_TRUE(machine.HasEvent("cluster.piece_moved"));
  EXPECT_EQ(lender.node->lent(), core::Bytes{});
  ExpectBytes();
}

TEST_F(NodeTest, ANodeThatAnswersSlowlyIsWaitedForWhileOthersAreAsked) {
  Machine& machine = Start("home", 1, 0);
  Machine& lender = Start("lender", 2, 1);
  GrowAndWrite();
  for (const char* const name : {"a", "b", "c", "d", "e", "f"}) Start(name, 3, 0);
  network_.SetLink("home", "slow", {.delay = milliseconds(200)});
  Start("slow", 4, 1);
  lender.node->HandOver(seconds(30));
  Run(seconds(25));
  EXPECT_TRUE(machine.HasEvent("cluster.piece_moved"));
  ExpectBytes();
}

TEST_F(NodeTest, WhatIsTakenFirstIsCopiedFirst) {
  repairs_ = 2;
  Start("home", 1, 0);
  Machine& early = Start("early", 2, 4);
  Run(seconds(1));
  for (const uint32_t piece : {0, 1, 2, 3}) {
    ASSERT_TRUE(Grow(PieceId{piece}).ok());
    ASSERT_TRUE(Write(bytes_, kSizes.piece * piece).ok());
  }
  Machine& late = Start("late", 3, 1);
  Run(seconds(6));
  ASSERT_TRUE(Grow(PieceId{4}).ok());
  ASSERT_TRUE(Write(bytes_, kSizes.piece * 4).ok());
  ASSERT_EQ(late.node->lent(), kSizes.piece);
  network_.SetLink("home", "other", {.bytes_per_second = 1e6});
  Start("other", 4, 5);
  Run(seconds(6));
  early.node->HandOver(seconds(20));
  Run(milliseconds(50));
  late.node->HandOver(seconds(3));
  while (late.node->lent() > core::Bytes{}) Run(milliseconds(10));
  EXPECT_FALSE(late.HasEvent("cluster.taken"));
  EXPECT_GT(early.node->lent(), core::Bytes{}) << "it was asked for before, and has more time";
  Run(seconds(3));
  EXPECT_EQ(early.node->lent(), core::Bytes{});
}

TEST_F(NodeTest, WhatIsRecalledIsSpreadOverHomes) {
  Start("few", 1, 0);
  Start("many", 2, 0);
  Machine& lender = Start("lender", 3, 8);
  Run(seconds(1));
  for (const auto& [name, pieces] : std::map<std::string, uint32_t>{{"few", 3}, {"many", 5}}) {
    home_ = name;
    for (uint32_t i = 0; i < pieces; ++i) ASSERT_TRUE(Grow(PieceId{i}).ok());
  }
  const auto recalled = [&] {
    std::map<std::string, uint32_t> homes;
    for (const auto& view : lender.node->Homes()) homes[view.home] = view.recalled;
    return homes;
  };
  using Recalled = std::map<std::string, uint32_t>;
  lender.node->SetLendable(kSizes.piece * 7);
  EXPECT_EQ(recalled(), (Recalled{{"few", 0}, {"many", 1}})) << "of the one that has most";
  lender.node->SetLendable(kSizes.piece * 4);
  EXPECT_EQ(recalled(), (Recalled{{"few", 2}, {"many", 2}}));
  lender.node->SetLendable(kSizes.piece);
  EXPECT_EQ(recalled(), (Recalled{{"few", 3}, {"many", 4}})) << "one has no more";
}

TEST_F(NodeTest, ALostLenderIsSaidWithinTheLeaseAndASecond) {
  Machine& machine = Start("home", 1, 0);
  Start("lender", 2, 1);
  GrowAndWrite();
  network_.Cut("home", "lender");
  Buffer read(bytes_.size());
  EXPECT_EQ(Read(&read, {}, seconds(6)).error().code, ErrorCode::kLost);
  EXPECT_EQ(machine.lost, std::vector{kPiece});
  EXPECT_TRUE(machine.HasEvent("cluster.lost"));
}

// Otherwise a caller that grows the piece again from there is notified that the new one is lost.
TEST_F(NodeTest, ThatAPieceIsLostIsSaidBeforeWhatIsUnderWayInItEnds) {
  Machine& machine = Start("home", 1, 0);
  Start("lender", 2, 2);
  GrowAndWrite();
  network_.Cut("home", "lender");
  Buffer read(bytes_.size());
  std::optional<Status> ended;
  home().Read({}, read, network_.Now() + seconds(20), [&](const Status& status) {
    ended = status;
    EXPECT_EQ(machine.lost, std::vector{kPiece});
    home().Grow(kPiece, network_.Now() + seconds(1), [](const Status&) {});
  });
  Run(seconds(15));
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->error().code, ErrorCode::kLost);
  EXPECT_EQ(machine.lost, std::vector{kPiece});
}

TEST_F(NodeTest, ABrokenConnectionIsMadeAgainAndNothingIsLost) {
  Machine& machine = Start("home", 1, 0);
  Start("lender", 2, 1);
  GrowAndWrite();
  for (int i = 0; i < 5; ++i) {
    network_.Drop("home", "lender");
    ExpectBytes();
  }
  EXPECT_TRUE(machine.lost.empty());
}

TEST_F(NodeTest, OfTwoCopiesOneIsEnoughAndIsCopiedOn) {
  copies_ = 2;
  Machine& machine = Start("home", 1, 0);
  Start("a", 2, 1);
  Start("b", 3, 1);
  GrowAndWrite();
  Start("c", 4, 1);
  Run(seconds(6));
  Stop("a");
  ExpectBytes();
  Run(seconds(8));
  EXPECT_TRUE(machine.lost.empty());
  EXPECT_TRUE(machine.HasEvent("cluster.piece_moved"));
  Stop("b");
  Run(seconds(8));
  EXPECT_TRUE(machine.lost.empty());
  ExpectBytes();
}

TEST_F(NodeTest, APieceThatLeavesForWantOfALenderStaysOnceOneIsFound) {
  Machine& machine = LoseOneOfTwoLenders(1);
  ASSERT_EQ(machine.recalled, std::vector{kPiece});
  EXPECT_EQ(Write(bytes_).error().code, ErrorCode::kUnavailable);
  Start("b", 3, 1);
  Run(seconds(8));
  EXPECT_EQ(machine.kept, std::vector{kPiece});
  EXPECT_TRUE(machine.HasEvent("cluster.piece_kept"));
  ASSERT_TRUE(Write(bytes_).ok());
  Stop("a");
  ExpectBytes();
}

// A home that holds n pieces may borrow `most` - n more.
TEST_F(NodeTest, APieceThatLeavesIsAmongThoseThatMayBeHeld) {
  Machine& machine = LoseOneOfTwoLenders(2);
  ASSERT_EQ(machine.recalled, std::vector{kPiece});
  EXPECT_EQ(machine.most, 1u);
  Start("b", 3, 2);
  Run(seconds(8));
  EXPECT_EQ(machine.most, 2u);
  EXPECT_TRUE(Grow(PieceId{1}).ok());
  home().Shrink(kPiece);
  Run(seconds(8));
  EXPECT_EQ(machine.most, 2u) << "in its place another may come";
}

TEST_F(NodeTest, ANodeThatEndsWhileItAsksForASlotAsksNoOtherNode) {
  Start("home", 1, 0);
  for (int i = 0; i < 4; ++i)
    Start(std::string(1, static_cast<char>(97 + i)), 2 + static_cast<uint64_t>(i), 2);
  Run(seconds(1));
  std::vector<Status> ended;
  for (uint32_t i = 0; i < 4; ++i) {
    home().Grow(PieceId{i}, network_.Now() + seconds(3),
                [&ended](const Status& status) { ended.push_back(status); });
  }
  machines_["home"].node->Advance();  // they are asked
  Stop("home");
  ASSERT_EQ(ended.size(), 4u);
  for (const Status& status : ended) EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
}

TEST_F(NodeTest, APieceGrowsAgainWhileItsFirstGrowthStillAsksALender) {
  Start("home", 1, 0);
  Start("a", 2, 2);
  Run(seconds(1));
  std::optional<Status> first;
  home().Grow(kPiece, network_.Now() + seconds(3), [&](const Status& status) { first = status; });
  machines_["home"].node->Advance();
  ASSERT_FALSE(first) << "its lender is asked";
  home().Shrink(kPiece);
  EXPECT_TRUE(Grow().ok());
  ASSERT_TRUE(first);
  EXPECT_EQ(first->error().code, ErrorCode::kUnavailable);
}

TEST_F(NodeTest, TwoCopiesAreNeverOnOneMachine) {
  copies_ = 2;
  Start("home", 1, 0);
  Start("a", 2, 4);
  Start("b", 2, 4);
  Run(seconds(1));
  EXPECT_EQ(Grow().error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(machines_["home"].most, 0u);
}

TEST_F(NodeTest, ANewIncarnationWithTheSameKeyFreesItsPredecessorsSlots) {
  Start("home", 1, 0);
  Machine& lender = Start("lender", 2, 1);
  GrowAndWrite();
  Stop("home");
  Start("home", 1, 0);
  Run(seconds(1));
  EXPECT_EQ(lender.node->lent(), core::Bytes{});
  EXPECT_TRUE(Grow().ok());
}

class NodeOfASpeakerTest : public NodeTest {
 protected:
  using Answer = core::Result<transport::Response>;

  NodeOfASpeakerTest() {
    Start("lender", 2, 1);
    speaker_.transport = network_.Add("home", &speaker_);
  }
  void Begin(transport::ConnectionId connection, const AnyRequest& request,
             std::optional<Answer>* answer, std::span<const std::byte> send = {},
             std::span<std::byte> receive = {}) {
    transport::Request call{.header = Encode(request), .send = send, .receive = receive};
    call.done = [answer](Answer received) { *answer = std::move(received); };
    ASSERT_TRUE(speaker_.transport->Call(connection, std::move(call)).ok());
  }
  Answer Ask(transport::ConnectionId connection, const AnyRequest& request,
             std::span<const std::byte> send = {}, std::span<std::byte> receive = {}) {
    std::optional<Answer> answer;
    Begin(connection, request, &answer, send, receive);
    Run(milliseconds(100));
    return answer.value();
  }
  transport::ConnectionId Connect() {
    const auto made = speaker_.transport->Connect("lender", "lender", network_.Now() + seconds(1));
    EXPECT_TRUE(Ask(*made, ChallengeRequest{}).ok());
    return *made;
  }
  Answer Open(transport::ConnectionId connection, uint64_t start) {
    return Ask(connection, OpenRequest{.home = {0, start}, .machine = {}});
  }

  Speaker speaker_;
};

// As its bytes come late, over a link that was cut, say.
TEST_F(NodeOfASpeakerTest, WhatAnEarlierStartSentDoesNotEndItsSuccessorsLoan) {
  const auto predecessors = Connect();
  const auto earlier = Connect();
  const auto newest = Connect();
  ASSERT_TRUE(Open(newest, 2).ok());
  ASSERT_TRUE(Ask(newest, BorrowRequest{.number = 1, .count = 1}).ok());
  for (const auto& late : {Open(predecessors, 1), Open(earlier, 2)}) {
    ASSERT_FALSE(late.ok());
    EXPECT_EQ(late.error().code, ErrorCode::kWrongState);
    EXPECT_TRUE(Ask(newest, OfferRequest{}).ok());
    EXPECT_EQ(machines_["lender"].node->lent(), kSizes.piece);
  }
}

// The rest of a chunk has no check of its own.
TEST_F(NodeOfASpeakerTest, WhatAnEarlierConnectionStillBringsIsNotWritten) {
  const auto earlier = Connect();
  ASSERT_TRUE(Open(earlier, 1).ok());
  const auto borrowed =
      DecodeBorrow(Ask(earlier, BorrowRequest{.number = 1, .count = 1})->header).value();
  ASSERT_EQ(borrowed.slots.size(), 1u);
  const WriteRequest write{.slot = borrowed.slots.front(), .offset = 0};
  const Buffer old = Bytes(KiB(64).count(), 2);
  const Buffer newer = Bytes(KiB(64).count(), 3);
  // A frame's header arrives immediately, its bytes two seconds later.
  network_.SetLink("home", "lender", {.bytes_per_second = 32e3});
  std::optional<Answer> late;
  Begin(earlier, write, &late, old);
  Run(milliseconds(100));
  network_.SetLink("home", "lender", {});
  const auto newest = Connect();
  ASSERT_TRUE(Open(newest, 1).ok());
  ASSERT_TRUE(Ask(newest, write, newer).ok());
  Run(seconds(3));
  ASSERT_TRUE(late);
  EXPECT_FALSE(late->ok());
  Buffer read(newer.size());
  const ReadRequest all{.slot = borrowed.slots.front(), .length = read.size()};
  ASSERT_TRUE(Ask(newest, all, {}, read).ok());
  EXPECT_EQ(read, newer);
}

TEST_F(NodeTest, ALenderThatHasForgottenTheConnectionIsConnectedToAgain) {
  Machine& machine = Start("home", 1, 0);
  Speaker lender;
  std::set<transport::ConnectionId> connections;
  lender.answer = [&](transport::ConnectionId connection,
                      const AnyRequest& request) -> core::Result<std::string> {
    connections.insert(connection);
    if (std::holds_alternative<ChallengeRequest>(request)) return Encode(ChallengeAnswer{});
    if (std::holds_alternative<OpenRequest>(request)) return Encode(OpenAnswer{});
    if (connections.size() == 1) {
      return core::Error{ErrorCode::kWrongState, "no loan is open on this connection"};
    }
    if (std::holds_alternative<RenewRequest>(request))
      return Encode(RenewAnswer{.lease = seconds(5)});
    return Encode(OfferAnswer{.slots = 3});
  };
  lender.transport = network_.Add("lender", &lender);
  machine.node->SetPeers({{"lender", {.address = "lender"}}});
  Run(seconds(1));
  EXPECT_EQ(connections.size(), 2u);
  EXPECT_EQ(machine.most, 3u);
  Stop("home");
}

TEST_F(NodeTest, WithAnotherKeyTheLeaseMustExpire) {
  Machine& lender = LendAPieceToAHomeThatChangesItsKey(/*slots=*/1);
  Run(seconds(10));
  // The bytes of an expired loan stay until their room is needed: now.
  EXPECT_TRUE(lender.HasEvent("cluster.home_expired"));
  EXPECT_EQ(lender.node->lent(), kSizes.piece);
  EXPECT_TRUE(Grow().ok());
}

TEST_F(NodeTest, ANodeHasOneShareWhateverItsKeys) {
  each_ = 1;
  LendAPieceToAHomeThatChangesItsKey(/*slots=*/3);
  // The earlier start's lease has expired.
  Run(seconds(10));
  EXPECT_TRUE(Grow().ok());
}

TEST_F(NodeTest, AnUnknownHomeIsRefusedAndReportedOnce) {
  stranger_ = "home";
  Machine& machine = Start("home", 1, 0);
  Machine& lender = Start("lender", 2, 1);
  Run(seconds(30));
  EXPECT_EQ(Grow().error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(std::ranges::count(machine.events, "cluster.refused"), 1);
  EXPECT_TRUE(lender.HasEvent("cluster.home_refused"));
}

TEST_F(NodeTest, ARefusedConnectionIsReportedOnceAMinute) {
  Machine& lender = Start("lender", 2, 1);
  const auto refuse = [&](ErrorCode code) {
    lender.node->OnLost(transport::ConnectionId{1}, {code, "the peer has another key"});
    return std::ranges::count(lender.events, "cluster.home_refused");
  };
  EXPECT_EQ(refuse(ErrorCode::kUnavailable), 0) << "it went by itself";
  EXPECT_EQ(refuse(ErrorCode::kPermission), 1);
  EXPECT_EQ(refuse(ErrorCode::kPermission), 1);
  Run(std::chrono::minutes(1));
  EXPECT_EQ(refuse(ErrorCode::kPermission), 2);
}

TEST_F(NodeTest, AMachineThatSleptRevalidatesItsLoan) {
  Machine& machine = Start("home", 1, 0);
  Start("lender", 2, 1);
  GrowAndWrite();
  clock_ += seconds(20);  // of which the transport knows nothing
  ExpectBytes();
  EXPECT_TRUE(machine.lost.empty());
}

TEST_F(NodeTest, ARestartedLenderHasNothingAnyMore) {
  Machine& machine = Start("home", 1, 0);
  Start("lender", 2, 1);
  GrowAndWrite();
  Stop("lender");
  Start("lender", 2, 1);
  Run(seconds(1));
  EXPECT_EQ(machine.lost, std::vector{kPiece});
  EXPECT_TRUE(Grow().ok());
}

TEST_F(NodeTest, AHomeHasNoMoreThanItsShareAndAnotherHasTheRest) {
  each_ = 2;
  Start("home", 1, 0);
  Start("other", 2, 0);
  Machine& lender = Start("lender", 3, 3);
  Run(seconds(1));
  EXPECT_EQ(machines_["home"].most, 2u);
  EXPECT_TRUE(Grow(PieceId{0}).ok());
  EXPECT_TRUE(Grow(PieceId{1}).ok());
  EXPECT_EQ(Grow(PieceId{2}).error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(machines_["home"].node->Lenders().at(0).offered, 0u);
  home_ = "other";
  EXPECT_TRUE(Grow(PieceId{0}).ok());
  EXPECT_EQ(Grow(PieceId{1}).error().code, ErrorCode::kOutOfMemory) << "there are three";
  EXPECT_EQ(lender.node->lent(), kSizes.piece * 3);
}

TEST_F(NodeTest, MemoryGoesBackToTheSystemBeforeAnotherHomeHasIt) {
  Start("home", 1, 0);
  Start("other", 2, 0);
  Machine& lender = Start("lender", 3, 1);
  GrowAndWrite();
  home().Shrink(kPiece);
  Run(seconds(6));
  EXPECT_EQ(lender.memory.released, 1);
  home_ = "other";
  ASSERT_TRUE(Grow().ok());
  EXPECT_EQ(lender.memory.made, 2);
  Buffer read(kSizes.granule.count());
  EXPECT_EQ(Read(&read).error().code, ErrorCode::kWrongState) << "it has written nothing";
}

TEST_F(NodeTest, BytesOfAnEarlierTensorAreNeverRead) {
  Start("home", 1, 0);
  Start("lender", 2, 1);
  GrowAndWrite();
  // Shorter than a granule, in the first one's place.
  const Buffer next = Bytes(100, 2);
  ASSERT_TRUE(Write(next).ok());
  Buffer beyond(kSizes.granule.count());
  EXPECT_EQ(Read(&beyond).error().code, ErrorCode::kWrongState);
  Buffer read(next.size());
  ASSERT_TRUE(Read(&read).ok());
  EXPECT_EQ(read, next);
  // The same of a piece that was given back meanwhile.
  home().Shrink(kPiece);
  Run(seconds(6));
  ASSERT_TRUE(Grow().ok());
  EXPECT_EQ(Read(&read).error().code, ErrorCode::kWrongState);
}

TEST_F(NodeTest, ALenderThatEndsHandsOverToAnother) {
  Machine& machine = Start("home", 1, 0);
  Machine& first = Start("first", 2, 1);
  GrowAndWrite();
  Start("second", 3, 1);
  Run(seconds(6));
  first.node->HandOver(seconds(5));
  Run(milliseconds(500));
  EXPECT_EQ(first.node->lent(), core::Bytes{});
  EXPECT_TRUE(machine.HasEvent("cluster.piece_moved"));
  first.node->SetLendable(kSizes.piece);
  Run(seconds(6));
  EXPECT_EQ(Grow(PieceId{1}).error().code, ErrorCode::kOutOfMemory) << "it lends no more";
  Stop("first");
  ExpectBytes();
  EXPECT_TRUE(machine.lost.empty());
}

TEST_F(NodeTest, WhatNoNodeTakesOverIsLostToItsHomeImmediately) {
  Machine& machine = Start("home", 1, 0);
  Machine& lender = Start("lender", 2, 2);
  GrowAndWrite();
  ASSERT_TRUE(Grow(PieceId{1}).ok());
  lender.node->HandOver(seconds(2));
  Run(milliseconds(300));
  EXPECT_EQ(machine.recalled, (std::vector{kPiece, PieceId{1}}));
  home().Shrink(PieceId{1});
  ExpectBytes();
  Run(milliseconds(300));
  EXPECT_EQ(lender.node->lent(), kSizes.piece);
  lender.node->End();
  EXPECT_TRUE(lender.node->HasPendingNotices());
  Run(milliseconds(20));
  EXPECT_FALSE(lender.node->HasPendingNotices());
  EXPECT_EQ(lender.node->lent(), core::Bytes{});
  EXPECT_EQ(machine.lost, std::vector{kPiece});
  EXPECT_TRUE(lender.HasEvent("cluster.taken"));
}

TEST_F(NodeTest, ALenderThatEndsWaitsForNoHomeThatIsSilent) {
  Start("home", 1, 0);
  Machine& lender = Start("lender", 2, 1);
  GrowAndWrite();
  network_.Cut("home", "lender");
  lender.node->End();
  Run(milliseconds(400));
  EXPECT_FALSE(lender.node->HasPendingNotices());
}

TEST_F(NodeTest, WhatANodeThatEndsHasBorrowedIsFreeImmediately) {
  Machine& ends = Start("home", 1, 0);
  Machine& lender = Start("lender", 2, 3);
  Machine& silent = Start("silent", 3, 1);
  Run(seconds(1));
  for (const uint32_t piece : {0, 1, 2, 3}) ASSERT_TRUE(Grow(PieceId{piece}).ok());
  ASSERT_TRUE(Write(bytes_).ok());
  EXPECT_EQ(lender.node->lent() + silent.node->lent(), kSizes.piece * 4);
  network_.Cut("home", "silent");
  ends.node->End();
  EXPECT_TRUE(ends.node->HasPendingNotices());
  Run(milliseconds(20));
  EXPECT_EQ(lender.node->lent(), core::Bytes{});
  EXPECT_TRUE(ends.node->HasPendingNotices());
  EXPECT_LE(ends.node->Next(), network_.Now() + milliseconds(300));
  Run(milliseconds(400));
  EXPECT_FALSE(ends.node->HasPendingNotices()) << "it waits for one that is silent";
  EXPECT_EQ(Grow(PieceId{1}).error().code, ErrorCode::kUnavailable);
}

TEST_F(NodeTest, TimeThatARecallLeftIsNoMoreThanTheNodeThatEndsHas) {
  Machine& machine = Start("home", 1, 0);
  Machine& lender = Start("lender", 2, 1);
  GrowAndWrite();
  lender.node->HandOver(seconds(10));
  Run(milliseconds(100));
  lender.node->HandOver(milliseconds(500));
  Run(milliseconds(600));
  EXPECT_EQ(lender.node->lent(), core::Bytes{});
  EXPECT_EQ(machine.lost, std::vector{kPiece}) << "it is reported without delay";
}

}  // namespace
}  // namespace ravenstore::cluster
