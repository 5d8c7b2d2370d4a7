// The store end to end with memory that other nodes lend: a whole daemon in this process, the real
// client library, and lenders that take memory back, lose it, fail, fall short and are slow.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/client.h"
#include "core/types.h"
#include "tests/daemon/daemon_process.h"
#include "tests/daemon/faulty_server.h"
#include "tests/daemon/held.h"
#include "tests/device/fake_pieces.h"

namespace ravenstore::daemon {
namespace {

using device::FakePieces;
using std::chrono::seconds;
using Fault = FakePieces::Fault;
using Way = FakePieces::Way;

// No multiple of the lenders' unit; of three some lie across pieces.
constexpr uint64_t kBytes = KiB(700) + 512;
constexpr core::Bytes kPiece = core::MiB(2);

class LentMemoryTest : public testing::Test {
 protected:
  // A device of 8 MiB and 6 of the host, beyond which the lenders' link is the only one. Of the
  // host's a quarter is kept for other users, and of the rest a page for exchanges.
  explicit LentMemoryTest(core::Bytes budget = {}) {
    auto pieces = std::make_unique<FakePieces>(core::MiB(32), kPiece);
    lenders_ = pieces.get();
    server_ =
        std::make_unique<FaultyServer>(FaultyServer::Options{.peers = FaultyServer::Peers::kNone,
                                                             .devices = 1,
                                                             .device = core::MiB(8),
                                                             .host = core::MiB(6),
                                                             .remote_budget = budget},
                                       RemoteMemory{std::move(pieces), core::Duration{}, 1e8, 1e8});
    pool_ = *server_->server().remote_pool();
    Lend(core::MiB(32));
  }
  ~LentMemoryTest() override {
    lenders_->SetSlow(false);
    lenders_->Release();
  }

  Store Connect() {
    return Store::connect(
        {.socket = server_->socket(), .name = "lent_memory_test", .timeout = seconds(10)});
  }
  Loop& loop() { return server_->server().loop(); }
  void Lend(core::Bytes most) { loop().PostEvent(core::PoolLimit{pool_, most}); }
  void Recall(core::Bytes piece) { loop().PostEvent(core::ChunkRecalled{pool_, piece}); }
  void Keep(core::Bytes piece) { loop().PostEvent(core::ChunkKept{pool_, piece}); }
  // Unless it was returned.
  void Lose(core::Bytes piece) {
    if (lenders_->Lose(piece)) loop().PostEvent(core::ChunkLost{pool_, piece});
  }
  core::Bytes Used() {
    return server_->Ask([this](Loop& loop) { return loop.store().OtherTier(pool_).used; });
  }
  core::TensorView ViewOf(const Held& held) {
    return server_->Ask(
        [&](Loop& loop) { return loop.store().View(core::TensorId{held.tensor.id()}); });
  }
  // The tensor is stored only on the lenders.
  bool IsLent(const Held& held) {
    const core::TensorView view = ViewOf(held);
    return view.residency == core::Residency::kAway && view.has_copy && view.away == pool_;
  }
  std::vector<Held> Make(Store& store, int count) {
    return MakeHeld(store, count, kBytes, &seeds_);
  }
  static Outcome Read(Store& store, Held& held) { return ReadHeld(store, held, kBytes); }
  // In use, so that its slab, which has room for more, does not leave for another client's.
  Held MakeInUse(Store& store) {
    Held held = std::move(Make(store, 1).front());
    store.get(held.tensor, nullptr, {.access = Access::kReadOnly, .blocking = true});
    return held;
  }
  // Of one that has a tensor in use.
  static void ExpectServed(Store& store) {
    uint64_t seeds = 1000;
    for (int i = 0; i < 5; ++i) {
      Held small = std::move(MakeHeld(store, 1, KiB(4), &seeds).front());
      EXPECT_EQ(ReadHeld(store, small, KiB(4)), Outcome::kRight);
      store.free(std::move(small.tensor), nullptr);
    }
  }
  static void ExpectAllRight(Store& store, std::vector<Held>& held) {
    for (Held& one : held) EXPECT_EQ(Read(store, one), Outcome::kRight) << one.seed;
  }
  // How many are lost; none is wrong.
  static int CountLost(Store& store, std::vector<Held>& held) {
    int lost = 0;
    for (Held& one : held) {
      const Outcome outcome = Read(store, one);
      EXPECT_NE(outcome, Outcome::kWrong) << one.seed;
      lost += outcome == Outcome::kLost ? 1 : 0;
    }
    return lost;
  }
  // Those that lie with the lenders alone.
  std::vector<Held*> Lent(std::vector<Held>& held) {
    std::vector<Held*> lent;
    for (Held& one : held) {
      if (IsLent(one)) lent.push_back(&one);
    }
    return lent;
  }
  void ExpectNothingIsLeft() {
    EXPECT_TRUE(Eventually([&] { return server_->IsEmpty(); }));
    server_->CheckInvariants();
  }

  FakePieces* lenders_ = nullptr;  // the server's
  std::unique_ptr<FaultyServer> server_;
  core::PoolId pool_{};
  uint64_t seeds_ = 0;
};

TEST_F(LentMemoryTest, TensorsComeBackWholeFromWhatOthersLend) {
  {
    Store store = Connect();
    std::vector<Held> held = Make(store, 30);
    EXPECT_GT(Used(), core::MiB(6));
    EXPECT_GT(lenders_->pieces().size(), 3u);
    for (int round = 0; round < 2; ++round) ExpectAllRight(store, held);
  }
  ExpectNothingIsLeft();
}

TEST_F(LentMemoryTest, NothingIsBorrowedWhileNothingLeavesItsDevice) {
  Store store = Connect();
  std::vector<Held> held = Make(store, 8);
  EXPECT_TRUE(lenders_->pieces().empty());
  ExpectAllRight(store, held);
}

TEST_F(LentMemoryTest, WhatLiesInRecalledPiecesMovesOnToTheHost) {
  Store store = Connect();
  std::vector<Held> held = Make(store, 20);
  // So that there is room for what is lent, of which five tensors fit on the host.
  std::erase_if(held, [&](const Held& one) { return !IsLent(one); });
  held.resize(std::min<size_t>(held.size(), 4));
  ASSERT_FALSE(Lent(held).empty());
  Lend(core::Bytes{});
  for (const core::Bytes piece : lenders_->pieces()) Recall(piece);
  EXPECT_TRUE(Eventually([&] { return lenders_->pieces().empty(); }));
  EXPECT_EQ(Used(), core::Bytes{});
  ExpectAllRight(store, held);
}

TEST_F(LentMemoryTest, WhatHasNoRoomStaysInARecalledPieceUntilItIsLost) {
  Store store = Connect();
  std::vector<Held> held = Make(store, 30);
  Lend(core::Bytes{});
  const std::vector<core::Bytes> pieces = lenders_->pieces();
  for (const core::Bytes piece : pieces) Recall(piece);
  EXPECT_GT(Used(), core::Bytes{});
  for (const core::Bytes piece : pieces) Lose(piece);
  EXPECT_TRUE(Eventually([&] { return lenders_->pieces().empty(); }));
  // So that there is room to bring others back.
  std::erase_if(
      held, [&](const Held& one) { return ViewOf(one).residency == core::Residency::kOnDevice; });
  const int lost = CountLost(store, held);
  EXPECT_GT(lost, 0);
  EXPECT_LT(lost, static_cast<int>(held.size()));
}

TEST_F(LentMemoryTest, RecalledPiecesThatAreKeptAreOfUseAgain) {
  {
    Store store = Connect();
    std::vector<Held> held = Make(store, 30);
    Lend(core::Bytes{});
    for (const core::Bytes piece : lenders_->pieces()) Recall(piece);
    const core::Bytes lent = Used();
    EXPECT_GT(lent, core::Bytes{});
    for (const core::Bytes piece : lenders_->pieces()) Keep(piece);
    Lend(core::MiB(32));
    for (int round = 0; round < 2; ++round) ExpectAllRight(store, held);
  }
  ExpectNothingIsLeft();
}

TEST_F(LentMemoryTest, OfALostPieceTheTensorsAreLostAndNoOthers) {
  {
    Store store = Connect();
    std::vector<Held> held = Make(store, 30);
    const size_t lent = Lent(held).size();
    Lose(lenders_->pieces().front());
    const int lost = CountLost(store, held);
    EXPECT_GE(lost, 1);
    EXPECT_LE(lost, 4) << "what a piece of 2 MiB holds, whole or in part";
    EXPECT_LT(static_cast<size_t>(lost), lent);
    // What is lost makes room, and the piece is borrowed again.
    std::erase_if(held, [&](Held& one) { return Read(store, one) == Outcome::kLost; });
    std::vector<Held> more = Make(store, 4);
    ExpectAllRight(store, more);
    ExpectAllRight(store, held);
  }
  ExpectNothingIsLeft();
}

TEST_F(LentMemoryTest, APieceThatIsLostWhileAGetReadsItFailsThatGetAlone) {
  Store other = Connect();
  Held others = MakeInUse(other);
  Store store = Connect();
  std::vector<Held> held = Make(store, 24);
  const std::vector<Held*> lent = Lent(held);
  ASSERT_FALSE(lent.empty());
  lenders_->Hold(Way::kRead);
  auto got = std::async(std::launch::async, [&] { return Read(store, *lent.front()); });
  ASSERT_TRUE(lenders_->AwaitHeld(1));
  ExpectServed(other);  // meanwhile
  for (const core::Bytes piece : lenders_->pieces()) Lose(piece);
  EXPECT_EQ(got.get(), Outcome::kLost);
  EXPECT_EQ(Read(store, *lent.front()), Outcome::kLost) << "for good";
  lenders_->Release();
  EXPECT_LT(CountLost(store, held), 24);
  other.put(others.tensor, nullptr);
  EXPECT_EQ(Read(other, others), Outcome::kRight);
}

TEST_F(LentMemoryTest, APieceThatIsLostWhileTensorsAreCopiedThereLeavesNoWrongBytes) {
  Store store = Connect();
  // From the first on: some may be copied there before their room is wanted.
  lenders_->Hold(Way::kWrite);
  std::vector<Held> held = Make(store, 14);
  auto more = std::async(std::launch::async, [&] { return Make(store, 6); });
  ASSERT_TRUE(lenders_->AwaitHeld(1));
  for (const core::Bytes piece : lenders_->pieces()) Lose(piece);
  lenders_->Release();
  std::vector<Held> made = more.get();
  EXPECT_LT(CountLost(store, held) + CountLost(store, made), 14);
}

// Its bytes stay in their pool. The other get waits for the same link.
TEST_F(LentMemoryTest, ATransferThatFailsOrFallsShortFailsItsGetAlone) {
  for (const Fault fault : {Fault::kFails, Fault::kFallsShort}) {
    Store store = Connect();  // a new one: nothing comes ahead of its get
    std::vector<Held> held = Make(store, 24);
    // Tensors of which all pages are lent.
    std::vector<Held*> lent;
    for (size_t i = 1; i + 1 < held.size(); ++i) {
      if (IsLent(held[i - 1]) && IsLent(held[i]) && IsLent(held[i + 1])) lent.push_back(&held[i]);
    }
    ASSERT_GE(lent.size(), 5u);
    lenders_->Hold(Way::kRead);
    auto got = std::async(std::launch::async, [&] { return Read(store, *lent.front()); });
    ASSERT_TRUE(lenders_->AwaitHeld(1));
    auto concurrent_read =
        std::async(std::launch::async, [&] { return Read(store, *lent.back()); });
    ASSERT_TRUE(lenders_->AwaitHeld(2));
    // The first transfer is the first get's.
    lenders_->SetFault([fault, failed = false](Way, core::Bytes) mutable {
      return std::exchange(failed, true) ? Fault::kNone : fault;
    });
    lenders_->Release();
    EXPECT_THROW(got.get(), Error);
    EXPECT_EQ(concurrent_read.get(), Outcome::kRight);
    lenders_->SetFault(nullptr);
    ExpectAllRight(store, held);
  }
}

TEST_F(LentMemoryTest, ACopyThatFailsLeavesItsTensorWhereItIs) {
  Store store = Connect();
  std::vector<Held> held = Make(store, 14);
  lenders_->SetFault([n = 0](Way way, core::Bytes) mutable {
    return way == Way::kWrite && ++n <= 3 ? Fault::kFails : Fault::kNone;
  });
  std::vector<Held> more = Make(store, 8);
  EXPECT_EQ(CountLost(store, held) + CountLost(store, more), 0);
  EXPECT_GT(Used(), core::Bytes{});
}

TEST_F(LentMemoryTest, ASlowLenderKeepsOnlyThoseWaitingThatNeedIt) {
  Store store = Connect();
  std::vector<Held> held = Make(store, 10);
  Store other = Connect();
  const Held others = MakeInUse(other);
  lenders_->SetSlow(true);
  auto more = std::async(std::launch::async, [&] { return Make(store, 12); });
  ASSERT_TRUE(lenders_->AwaitMake());
  ExpectServed(other);
  lenders_->SetSlow(false);
  std::vector<Held> made = more.get();
  ExpectAllRight(store, made);
  ExpectAllRight(store, held);
}

TEST_F(LentMemoryTest, WhereNoNodeLendsACreateSaysSo) {
  lenders_->SetLends(false);
  Store store = Connect();
  // They fit into the device's four pages. With six, of which the host has room for two, a create
  // is refused as soon as the lenders have refused a copy: no page would be free for exchanges.
  std::vector<Held> held = Make(store, 11);
  const CreateOptions options{.timeout = std::chrono::milliseconds(300)};
  std::vector<Tensor> in_use;
  EXPECT_THROW(for (int i = 0; i < 12; ++i) in_use.push_back(store.create(kBytes, options)),
               OutOfMemory);
  in_use.clear();
  lenders_->SetLends(true);
  // The daemon asks the lenders again after a second.
  std::vector<Held> more;
  EXPECT_TRUE(Eventually([&] {
    try {
      more = Make(store, 8);
      return true;
    } catch (const OutOfMemory&) {
      return false;
    }
  }));
  ExpectAllRight(store, more);
  ExpectAllRight(store, held);
}

TEST_F(LentMemoryTest, APieceThatIsRecalledWhileItIsMadeIsReturned) {
  Store store = Connect();
  std::vector<Held> held = Make(store, 10);
  lenders_->SetSlow(true);
  auto more = std::async(std::launch::async, [&] { return Make(store, 6); });
  ASSERT_TRUE(lenders_->AwaitMake());
  Recall(core::Bytes{});
  Lend(core::MiB(4));
  lenders_->SetSlow(false);
  std::vector<Held> made = more.get();
  ExpectAllRight(store, made);
  ExpectAllRight(store, held);
}

class LentBudgetTest : public LentMemoryTest {
 protected:
  LentBudgetTest() : LentMemoryTest(core::MiB(4)) {}
};

TEST_F(LentBudgetTest, AUserHasNoMoreWithLendersThanItsBudget) {
  Store store = Connect();
  std::vector<Held> held = Make(store, 17);
  std::vector<Tensor> more;
  const CreateOptions options{.timeout = std::chrono::milliseconds(300)};
  EXPECT_THROW(
      for (int i = 0; i < 12; ++i) {
        more.push_back(store.create(kBytes, options));
        store.put(more.back(), nullptr);
      },
      OutOfMemory);
  EXPECT_GE(Used(), core::MiB(2));
  EXPECT_LE(Used(), core::MiB(4));
  more.clear();
  ExpectAllRight(store, held);
}

}  // namespace
}  // namespace ravenstore::daemon
