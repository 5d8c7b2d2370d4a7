// A client in the same process, whose mapper executes the daemon's instructions; and a ledger of
// what each tensor has to hold.
#include "daemon/client_pages.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "core/check.h"
#include "core/plan/places.h"
#include "daemon/away_memory.h"
#include "ipc/clock.h"
#include "tests/device/fake_pieces.h"

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::KiB;
using core::MiB;
using core::TensorNumber;

constexpr Bytes kPage = MiB(2);
constexpr Bytes kArena = MiB(1024);
constexpr Bytes kPiece = MiB(4);  // of other nodes' memory
constexpr core::DeviceId kDevice{0};

class ClientPagesTest : public testing::Test, public ClientPages::Owner {
 protected:
  enum class Word : uint8_t { kFree, kInUse, kIdle, kAway };
  struct Tensor {
    Word word = Word::kFree;
    core::plan::Place place;
    Bytes size;
    uint8_t mark = 0;
  };

  // `slots`: small tensors have slots. `remote`: of other nodes' memory; nearer than the host.
  void Begin(uint32_t pages, Bytes pool, bool slots = false, Bytes remote = {}) {
    device::HostOptions host;
    host.fault = [this](device::HostStep step) {
      using Kind = device::HostStep::Kind;
      const bool copies = step.kind == Kind::kUp || step.kind == Kind::kDown;
      if (!copies || fail_copies_ == 0) return device::HostFault::kNone;
      return --fail_copies_, device::HostFault::kBreaksOff;
    };
    host.fail_create = [this](uint64_t) {
      if (!is_short_) return false;
      ++no_memory_;
      return true;
    };
    devices_ = device::OpenHostDevices(host);
    attachment_ =
        std::make_shared<Attachment>(Attachment{core::ClientId{1},
                                                core::TenantId{1},
                                                {},
                                                0,
                                                0,
                                                "a test",
                                                std::move(*ipc::ControlSegment::Create(1)),
                                                std::move(*ipc::Doorbell::Create()),
                                                {}});
    attachment_->arenas.resize(1);
    maps_ = std::make_unique<MapOrders>(&attachment_->segment->maps);
    mapper_ = std::make_unique<ipc::MapConsumer>(&attachment_->segment->maps);
    arena_ = std::move(*devices_[0]->ReserveVaRange(kArena));
    memory_ = HostMemory(devices_, std::move(*devices_[0]->ReservePoolVaRange(pool, -1)));
    PagePool::Options of_pool;
    of_pool.name = "the host pool";
    of_pool.memory = {
        .range = pool, .step = MiB(4), .unit = core::kExtentAlignment, .ahead = MiB(2)};
    pool_ = std::make_unique<PagePool>(
        of_pool, memory_.get(),
        PagePool::Hooks{.grow = [this](const CopyPieces::Part& part) { grows_ = part; },
                        .release = [](const CopyPieces::Part&) {}},
        pool);
    RAVEN_CHECK(pool_->AddDevice(kDevice, "device 0").ok());
    std::vector<PagePool*> pools = {pool_.get()};
    if (remote > Bytes{}) pools.insert(pools.begin(), MakeRemote(remote));
    places_ = std::make_unique<core::plan::Places>(core::plan::SmallTensorRule{
        .page = kPage, .largest_slot = slots ? Bytes(kPage.count() / 4) : Bytes{}});
    ClientPages::Options options;
    options.device = kDevice;
    options.arena = kArena;
    options.page = kPage;
    core::PageBooks::Options books;
    books.limits = {.page = kPage,
                    .pages = pages,
                    .pools = {{.capacity = pool, .in_rate = 1e10, .out_rate = 1e10}}};
    if (remote_ != nullptr)
      books.limits.pools.insert(books.limits.pools.begin(),
                                {.capacity = remote, .in_rate = 2e10, .out_rate = 2e10});
    books.coming_most = kPage * 2;
    pages_ = std::make_unique<ClientPages>(options, attachment_, devices_[0], pools,
                                           static_cast<core::plan::PoolNumber>(pools.size() - 1),
                                           maps_.get(), workers_.get(), &mailbox_, this);
    executor_ = std::make_unique<core::PageExecutor>(books, pages_.get());
    pages_->SetExecutor(executor_.get());
  }
  ~ClientPagesTest() override {
    if (pages_ == nullptr) return;
    pages_->Retire();
    executor_->Retire();
    executor_->SetShare(0);
    PumpUntil([this] {
      return pages_->IsQuiet() && executor_->IsQuiet() && executor_->books().memory().pages() == 0;
    });
    EXPECT_TRUE(bare_ || pages_->made() == 0);
    EXPECT_EQ(pool_->memory().used(), Bytes{}) << "a piece is not freed";
    EXPECT_TRUE(remote_ == nullptr || remote_->memory().used() == Bytes{});
    pages_.reset();
    workers_.reset();
  }

  PagePool* MakeRemote(Bytes bytes) {
    auto pieces = std::make_unique<device::FakePieces>(bytes, kPiece);
    lenders_ = pieces.get();
    remote_memory_ = MemoryInPieces(devices_, std::move(pieces));
    PagePool::Options options;
    options.name = "other nodes";
    options.memory = {.range = bytes,
                      .granularity = remote_memory_->granularity(),
                      .step = kPiece,
                      .unit = kPiece};
    remote_ = std::make_unique<PagePool>(
        options, remote_memory_.get(),
        PagePool::Hooks{
            .grow = [this](const CopyPieces::Part& part) { remote_grows_ = part; },
            .release = [this](const CopyPieces::Part& part) { remote_releases_.push_back(part); }},
        bytes);
    RAVEN_CHECK(remote_->AddDevice(kDevice, "device 0").ok());
    RAVEN_CHECK(remote_->AddHost(pool_.get(), false).ok());
    return remote_.get();
  }

  // No page of the client is made or destroyed meanwhile.
  class BlockedWorkers {
   public:
    explicit BlockedWorkers(const ClientPagesTest& test) {
      test.workers_->Run(test.attachment_->tenant,
                         [ended = ended_.get_future().share()] { ended.wait(); });
    }
    ~BlockedWorkers() { ended_.set_value(); }

   private:
    std::promise<void> ended_;
  };

  // ---- ClientPages::Owner.
  bool Revoke(ClientPages*, TensorNumber tensor) override {
    if (tensors_[tensor].word != Word::kIdle) return false;
    tensors_[tensor].word = Word::kAway;
    return true;
  }
  void Publish(ClientPages*, TensorNumber tensor) override { tensors_[tensor].word = Word::kIdle; }
  void Grant(ClientPages*, TensorNumber tensor) override { granted_.insert(tensor); }
  void Refuse(ClientPages*, TensorNumber tensor) override { refused_.insert(tensor); }
  bool GrantEarly(ClientPages*, TensorNumber) override { return false; }
  void Arrived(ClientPages*, TensorNumber) override {}
  void Break(ClientPages*, TensorNumber) override {}
  void Mapped(ClientPages*, core::plan::Unit unit) override {
    if (bare_) {
      ++mapped_;
    } else {
      executor_->Mapped(unit);
    }
  }
  void Unmapped(ClientPages*, core::plan::PhysicalPage page) override {
    if (bare_) {
      ++unmapped_;
    } else {
      executor_->Unmapped(page);
    }
  }
  void CopiedIn(ClientPages*, core::plan::Unit unit, bool ok) override {
    std::vector<TensorNumber> refused;
    executor_->CopiedIn(unit, ok, &refused);
  }
  void CopiedOut(ClientPages*, core::plan::Unit unit, bool ok) override {
    executor_->CopiedOut(unit, ok);
  }
  void MapsQueued(ClientPages*) override {
    MapOrders::Batch batch = maps_->Send();
    for (ipc::UniqueFd& descriptor : batch.descriptors)
      offered_[batch.first++] = std::move(descriptor);
  }
  void Progressed(ClientPages*) override {}
  void PageDestroyed(ClientPages*) override { ++destroyed_; }
  void RetryAt(ClientPages*, core::Tick) override {
    ASSERT_TRUE(is_short_) << "the device has memory";
    ++retries_;
  }
  void CopyMoved(ClientPages*, core::plan::Unit unit, core::plan::PoolNumber pool) override {
    executor_->books().MoveCopy(unit, pool);
  }
  void DropCopy(ClientPages*, core::plan::Unit unit) override {
    std::vector<TensorNumber> lost;
    executor_->Lose(unit, &lost);
  }
  bool MayMakePage(ClientPages*) override { return true; }
  void UpdateRoom(ClientPages*) override {}
  bool IsUnused(ClientPages*, TensorNumber) const override { return true; }

  // ---- The client's mapper.
  void Map() {
    proto::MapInstruction next;
    while (mapper_->Next(&next) == ipc::Take::kEntry) {
      const Bytes offset(next.offset);
      switch (static_cast<proto::MapOp>(next.op)) {
        case proto::MapOp::kImport:
          imported_[next.memory] = *devices_[0]->ImportMemory(
              std::move(offered_.extract(next.memory).mapped()), Bytes(next.bytes));
          break;
        case proto::MapOp::kMap:
          ASSERT_TRUE(arena_->Map(offset, imported_.at(next.memory)).ok());
          break;
        case proto::MapOp::kUnmap: ASSERT_TRUE(arena_->Unmap(offset).ok()); break;
        case proto::MapOp::kRelease: ASSERT_EQ(imported_.erase(next.memory), 1u); break;
      }
      mapper_->Acknowledge(0);
    }
  }
  void Pump() {
    mailbox_.RunSome(mailbox_.size());
    Map();
    std::vector<MapOrders::Ended> ended;
    ASSERT_TRUE(maps_->Poll(&ended));
    for (const auto& one : ended) pages_->Ended(one);
    if (const auto part = std::exchange(grows_, std::nullopt)) {
      ASSERT_TRUE(memory_->Make(part->offset, part->bytes).ok());
      memory_->slabs.Add(part->offset, part->bytes);
      pool_->Grown(ipc::Now(), true);
    }
    pool_->Poll(ipc::Now());
    if (remote_ != nullptr) PumpRemote();
    executor_->Start();
    core::CheckBooks(executor_->books());
    std::this_thread::yield();
  }
  void PumpRemote() {
    if (const auto part = std::exchange(remote_grows_, std::nullopt)) {
      ASSERT_TRUE(remote_memory_->Make(part->offset, part->bytes).ok());
      remote_memory_->slabs.Add(part->offset, part->bytes);
      remote_->Grown(ipc::Now(), true);
    }
    for (const CopyPieces::Part& part : std::exchange(remote_releases_, {})) {
      remote_memory_->slabs.Remove(part.offset);
      ASSERT_TRUE(remote_memory_->Destroy(part.offset).ok());
      ++released_;
      remote_->Released(part.offset, true);
    }
    remote_->Poll(ipc::Now());
    if (remote_->memory().HasClosed()) pages_->DrainPool(0);
    core::PageBooks& books = executor_->books();
    core::plan::CopyPool remote = books.view().limits.pools[0];
    remote.capacity = books.copies().pools().used(0) + remote_->Room();
    books.SetPool(0, remote);
  }
  // A lender wants a piece back, changes its mind, or dies.
  void Disturb(std::mt19937& random) {
    const Bytes piece = kPiece * (random() % (remote_->memory().limit().count() / kPiece.count()));
    const uint32_t choice = random() % 8;
    if (choice < 5) return remote_->Recall(piece);
    if (choice < 7) return remote_->Keep(piece);
    if (!lenders_->Lose(piece)) return;
    remote_->Lose(piece);
    std::vector<TensorNumber> lost;
    for (const core::plan::Unit unit : pages_->LoseCopies(0)) executor_->Lose(unit, &lost);
    for (const TensorNumber tensor : lost) {
      EXPECT_EQ(tensors_[tensor].word, Word::kAway);
      executor_->Remove(tensor);
      places_->Free(tensors_[tensor].place, tensors_[tensor].size);
      tensors_[tensor] = {};
      ++lost_;
    }
  }
  void PumpUntil(const std::function<bool()>& done) {
    for (int i = 0; i < 1'000'000; ++i) {
      if (done()) return;
      Pump();
    }
    FAIL() << "it does not happen";
  }

  // ---- The client's calls. False: there is no room.
  std::byte* Address(TensorNumber tensor) {
    return arena_->base() + pages_->AddressOf(tensor).count();
  }
  bool Pin(TensorNumber tensor) {
    core::PageExecutor& executor = *executor_;
    if (core::decide::Admit(core::CallIn(executor.books(), executor.tensors()[tensor].units)) !=
        core::decide::Admission::kNow)
      return false;
    if (!executor.Pin(tensor))
      PumpUntil([&] { return granted_.erase(tensor) > 0 || refused_.count(tensor) > 0; });
    if (refused_.erase(tensor) > 0) return false;
    tensors_[tensor].word = Word::kInUse;
    return true;
  }
  bool PlaceFor(TensorNumber tensor, Bytes size) {
    Tensor& of = tensors_[tensor];
    of.place = places_->Allocate(size);
    of.size = size;
    const auto units = places_->UnitsOf(of.place, size);
    core::PageExecutor& executor = *executor_;
    if (!executor.CanCreate(units)) return places_->Free(of.place, size), false;
    executor.Place(tensor, units, places_->OffsetOf(of.place), size);
    return true;
  }
  bool Create(TensorNumber tensor, Bytes size) {
    Tensor& of = tensors_[tensor];
    core::PageExecutor& executor = *executor_;
    if (!PlaceFor(tensor, size)) return false;
    if (!Pin(tensor)) {
      executor.Remove(tensor);
      return places_->Free(of.place, size), false;
    }
    executor.Begin(tensor);
    Fill(tensor);
    return true;
  }
  void Fill(TensorNumber tensor) {
    ++tensors_[tensor].mark;
    std::memset(Address(tensor), tensors_[tensor].mark, tensors_[tensor].size.count());
  }
  void ExpectHolds(TensorNumber tensor) {
    const Tensor& of = tensors_[tensor];
    const std::vector<std::byte> expected(of.size.count(), std::byte{of.mark});
    ASSERT_EQ(std::memcmp(Address(tensor), expected.data(), expected.size()), 0) << tensor;
  }
  void Put(TensorNumber tensor, bool modified) {
    if (modified) Fill(tensor);
    tensors_[tensor].word = Word::kIdle;
    executor_->Unpin(tensor);
    if (modified) executor_->Modify(tensor);
    executor_->Reach(tensor);
  }
  void Free(TensorNumber tensor) {
    executor_->End(tensor);
    executor_->Remove(tensor);
    places_->Free(tensors_[tensor].place, tensors_[tensor].size);
    tensors_[tensor] = {};
  }
  // Creates, uses and frees tensors of which a part fits.
  void Play(uint32_t seed, int steps, TensorNumber tensors) {
    std::mt19937 random(seed);
    tensors_.resize(tensors);
    for (int i = 0; i < steps; ++i) {
      const auto tensor = static_cast<TensorNumber>(random() % tensors);
      Tensor& of = tensors_[tensor];
      if (of.word == Word::kFree) {
        const Bytes size(1 + random() % (random() % 3 == 0 ? MiB(5) : KiB(600)).count());
        if (Create(tensor, size)) Put(tensor, true);
      } else if (random() % 6 == 0) {
        Free(tensor);
      } else if (Pin(tensor)) {
        ExpectHolds(tensor);
        Put(tensor, random() % 2 == 0);
      }
      if (remote_ != nullptr && random() % 20 == 0) Disturb(random);
      if (random() % 3 == 0) Pump();
      if (HasFatalFailure()) return;
    }
  }

  std::atomic<int> fail_copies_{0};
  std::atomic<bool> is_short_{false};  // the device has no memory
  std::atomic<int> no_memory_{0};      // pages that it was asked for meanwhile
  int retries_ = 0;
  device::Devices devices_;
  std::shared_ptr<Attachment> attachment_;
  Mailbox mailbox_;
  std::unique_ptr<WorkerPool> workers_ = std::make_unique<WorkerPool>("test", 2);
  std::unique_ptr<AwayMemory> memory_;
  std::optional<CopyPieces::Part> grows_;
  std::optional<CopyPieces::Part> remote_grows_;
  std::vector<CopyPieces::Part> remote_releases_;
  device::FakePieces* lenders_ = nullptr;
  std::unique_ptr<AwayMemory> remote_memory_;
  int released_ = 0;
  int lost_ = 0;
  std::unique_ptr<PagePool> pool_;
  std::unique_ptr<PagePool> remote_;
  std::unique_ptr<MapOrders> maps_;
  std::unique_ptr<ipc::MapConsumer> mapper_;
  std::map<uint32_t, ipc::UniqueFd> offered_;
  std::map<uint32_t, std::shared_ptr<const device::PhysicalMemory>> imported_;
  std::unique_ptr<device::VaRange> arena_;
  std::unique_ptr<core::plan::Places> places_;
  std::vector<Tensor> tensors_;
  std::set<TensorNumber> granted_;
  std::set<TensorNumber> refused_;
  int destroyed_ = 0;
  bool bare_ = false;  // a test is the executor
  int mapped_ = 0;
  int unmapped_ = 0;
  std::unique_ptr<core::PageExecutor> executor_;
  std::unique_ptr<ClientPages> pages_;
};

TEST_F(ClientPagesTest, BytesComeBackWhereverTheyWent) {
  Begin(8, MiB(64));
  Play(1, 3000, 24);
  EXPECT_GT(executor_->stats().in, MiB(100));
}

TEST_F(ClientPagesTest, SoDoThoseOfSmallTensorsInSlots) {
  Begin(8, MiB(64), /*slots=*/true);
  Play(2, 3000, 48);
  EXPECT_GT(executor_->stats().in, MiB(50));
}

TEST_F(ClientPagesTest, APoolThatIsNearlyFullHasPiecesOfSeveralParts) {
  Begin(6, MiB(12));
  Play(3, 3000, 24);
}

TEST_F(ClientPagesTest, ACopyThatFailsIsTriedAgainAndNeverBringsWrongBytes) {
  Begin(6, MiB(64));
  tensors_.resize(24);
  for (uint32_t i = 0; i < 40; ++i) {
    fail_copies_ = 2;
    Play(10 + i, 60, 24);
  }
}

TEST_F(ClientPagesTest, BytesComeBackFromMemoryThatComesAndGoes) {
  Begin(6, MiB(64), false, MiB(24));
  Play(6, 4000, 24);
  EXPECT_GT(released_, 10);
  EXPECT_GT(lost_, 5);
}

TEST_F(ClientPagesTest, SoDoThoseOfSmallTensorsInMemoryThatComesAndGoes) {
  Begin(4, MiB(64), true, MiB(24));
  Play(7, 4000, 64);
  EXPECT_GT(released_, 10);
  EXPECT_GT(lost_, 5);
}

TEST_F(ClientPagesTest, PagesBeyondTheShareAreDestroyed) {
  Begin(8, MiB(64));
  Play(4, 500, 24);
  executor_->SetShare(3);
  PumpUntil([&] { return destroyed_ == 5; });
  EXPECT_EQ(imported_.size(), executor_->books().memory().pages());
  for (int i = 0; i < 5; ++i) executor_->AddPage();
  executor_->SetShare(8);
  Play(5, 500, 24);
}

TEST_F(ClientPagesTest, BytesComeBackWhileTheShareChanges) {
  constexpr uint32_t kPages = 8;
  Begin(kPages, MiB(64));
  std::mt19937 random(8);
  uint32_t missing = 0;  // pages that are gone and have not come again
  for (uint32_t i = 0; i < 150; ++i) {
    const auto share = static_cast<uint32_t>(3 + random() % (kPages - 2));
    executor_->SetShare(share);
    missing += static_cast<uint32_t>(std::exchange(destroyed_, 0));
    for (; missing > 0 && executor_->books().memory().pages() < share; --missing)
      executor_->AddPage();
    Play(200 + i, 20, 24);
    ASSERT_LE(pages_->held() + missing + static_cast<uint32_t>(destroyed_), kPages);
  }
  EXPECT_GT(executor_->stats().in, MiB(50));
}

TEST_F(ClientPagesTest, ACreateTakesAPageThatWasMadeAheadOfIt) {
  Begin(8, MiB(64));
  tensors_.resize(2);
  ASSERT_TRUE(Create(0, kPage));
  PumpUntil([this] { return pages_->made() == 2 && imported_.size() == 2; });
  const BlockedWorkers blocked(*this);
  ASSERT_TRUE(Create(1, kPage));
}

TEST_F(ClientPagesTest, ThePagesOfOneCreateAreMadeTogether) {
  Begin(8, MiB(64));
  tensors_.resize(2);
  ASSERT_TRUE(Create(0, kPage));
  PumpUntil([this] { return pages_->made() == 2; });
  auto blocked = std::make_unique<BlockedWorkers>(*this);
  PlaceFor(1, kPage * 5);
  executor_->Pin(1);
  executor_->Start();
  EXPECT_EQ(pages_->held(), 6u) << "four are in making";
  blocked.reset();
  PumpUntil([this] { return granted_.count(1) > 0; });
  executor_->Begin(1);
  Fill(1);
}

TEST_F(ClientPagesTest, SparesGoWhenTheClientMayHaveNoMore) {
  Begin(8, MiB(64));
  tensors_.resize(1);
  ASSERT_TRUE(Create(0, kPage * 3));
  PumpUntil([this] { return pages_->made() == 4; });
  executor_->SetShare(4);
  PumpUntil([this] { return destroyed_ == 4; });
  EXPECT_EQ(pages_->made(), 4u);
  executor_->SetShare(3);
  PumpUntil([this] { return destroyed_ == 5; });
  EXPECT_EQ(pages_->made(), 3u);
}

// The destructor expects that no page is left.
TEST_F(ClientPagesTest, SoDoThoseThatTheClientHasNotReleasedWhenItEnds) {
  Begin(8, MiB(64));
  tensors_.resize(1);
  ASSERT_TRUE(Create(0, kPage * 3));
  PumpUntil([this] { return pages_->made() == 4; });
  executor_->SetShare(3);
  executor_->Start();
  EXPECT_EQ(destroyed_, 4) << "the fifth waits for the client's mapper";
}

TEST_F(ClientPagesTest, SoDoThoseThatAreBeingMade) {
  Begin(8, MiB(64));
  tensors_.resize(2);
  ASSERT_TRUE(Create(0, kPage));
  PumpUntil([this] { return pages_->made() == 2; });
  auto blocked = std::make_unique<BlockedWorkers>(*this);
  ASSERT_TRUE(Create(1, kPage));
  ASSERT_EQ(pages_->held(), 3u);
  executor_->SetShare(2);
  executor_->Start();
  EXPECT_EQ(destroyed_, 5) << "the sixth has memory, or will have";
  blocked.reset();
  PumpUntil([this] { return destroyed_ == 6; });
  EXPECT_EQ(pages_->held(), 2u);
}

// The page that was to be destroyed is used.
TEST_F(ClientPagesTest, ButAreUsedIfTheClientMayHaveThemAgain) {
  Begin(8, MiB(64));
  tensors_.resize(3);
  ASSERT_TRUE(Create(0, kPage));
  PumpUntil([this] { return pages_->made() == 2; });
  auto blocked = std::make_unique<BlockedWorkers>(*this);
  ASSERT_TRUE(Create(1, kPage));
  executor_->SetShare(2);
  executor_->Start();
  executor_->SetShare(3);
  executor_->AddPage();
  PlaceFor(2, kPage);
  executor_->Pin(2);
  executor_->Start();
  EXPECT_EQ(destroyed_, 5);
  blocked.reset();
  PumpUntil([this] { return granted_.count(2) > 0 && destroyed_ == 6 && pages_->IsQuiet(); });
  EXPECT_EQ(pages_->held(), 3u);
  executor_->Begin(2);
}

TEST_F(ClientPagesTest, ADeviceWithoutMemoryIsAskedAgainWhileACallWaits) {
  Begin(8, MiB(64));
  tensors_.resize(3);
  ASSERT_TRUE(Create(0, kPage));
  PumpUntil([this] { return pages_->made() == 2; });
  is_short_ = true;
  ASSERT_TRUE(Create(1, kPage));
  PumpUntil([this] { return no_memory_ == 1 && pages_->IsQuiet(); });
  EXPECT_EQ(retries_, 0) << "no call waits";
  PlaceFor(2, kPage);
  executor_->Pin(2);
  PumpUntil([this] { return retries_ == 1; });
  EXPECT_EQ(no_memory_, 2);
  pages_->Retry();
  PumpUntil([this] { return retries_ == 2; });
  EXPECT_EQ(no_memory_, 3);
  is_short_ = false;
  pages_->Retry();
  PumpUntil([this] { return granted_.count(2) > 0; });
  executor_->Begin(2);
}

// The address of a page that has left is needed before the mapping there is gone.
TEST_F(ClientPagesTest, AStaleMappingMakesWayForAnotherPageAtItsAddress) {
  Begin(8, MiB(64));
  bare_ = true;
  EXPECT_FALSE(pages_->Map({.unit = 4, .page = 0, .steps = {}}));
  PumpUntil([this] { return mapped_ == 1; });
  arena_->base()[2 * kPage.count()] = std::byte{1};
  EXPECT_FALSE(pages_->Map({.unit = 4, .page = 1, .steps = {}}));
  PumpUntil([this] { return mapped_ == 2; });
  EXPECT_EQ(arena_->base()[2 * kPage.count()], std::byte{0}) << "it is another page";
  pages_->Unmap(0);
  PumpUntil([this] { return unmapped_ == 1; });
  EXPECT_FALSE(pages_->Map({.unit = 6, .page = 0, .steps = {.unmap = true, .map = true}}));
  PumpUntil([this] { return mapped_ == 3; });
  EXPECT_EQ(arena_->base()[3 * kPage.count()], std::byte{1});
}

}  // namespace
}  // namespace ravenstore::daemon
