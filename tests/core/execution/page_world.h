// A client, its stream, its lease words and its memory, for the executor on pages; with a ledger of
// bytes of its own.
//
// The client uses idle tensors without asking, and its reports come late. Mappings and copies end
// in any order and at any time, and may fail. A copy reads some of its bytes when it begins and
// some when it ends. Kernels run late, in the stream's order; each checks all bytes that it reads
// through the mappings of that moment, or where the copies are. The ledger knows what a tensor must
// hold from the kernels alone; it asks the executor for nothing but the address of a slot.
//
// Units: a cell is 512 bytes, the alignment of tensors. Threads: one. The same seed has the same
// course.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/execution/page_backend.h"
#include "core/execution/page_executor.h"
#include "core/plan/places.h"
#include "tests/core/plan/seeds.h"

namespace ravenstore::core {

class PageWorld : public PageBackend {
 public:
  struct Options {
    uint32_t pages = 8;
    uint32_t cells_per_page = 16;
    bool slots = false;                           // small tensors have slots, or get them later
    std::vector<Bytes> pools{Bytes(UINT64_MAX)};  // for copies: their capacities
    uint64_t failures = 0;                        // one copy in this number fails; 0: none
    uint64_t kills = 0;       // the client dies in one step of this number; 0: never
    uint32_t maps = 1;        // of pages that calls wait for, at a time
    uint64_t slowness = 1;    // a mapping or a copy ends in one of this number of trials
    uint64_t lateness = 1;    // a kernel runs in one of this number of trials
    bool plans = true;        // plans say nonsense; else there is none
    bool shares = false;      // the client's share of the device changes
    bool recomputes = false;  // some tensors can be recomputed
    bool in_place = false;    // kernels can use copies where they are
    bool ends_early =
        false;            // a fault: such a use is reported as ended before its kernels have run
    bool losses = false;  // pools lose and drop copies and change; pages are fetched
  };
  struct Counts {
    uint64_t reads = 0;  // of whole tensors by kernels
    uint64_t failures = 0;
    uint64_t refused = 0;
    uint64_t kills = 0;
    uint64_t stuck = 0;  // nothing could go on but a refusal
    Bytes in;
    Bytes out;
    uint64_t not_revoked = 0;
    uint64_t dropped_copies = 0;
    uint64_t released = 0;       // pages
    uint64_t to_slots = 0;       // tensors of away pages
    uint64_t lost = 0;           // tensors
    uint64_t fetched = 0;        // pages
    uint64_t moved = 0;          // copies, to another pool
    uint64_t recomputed = 0;     // tensors, after they were discarded
    uint64_t granted_early = 0;  // tensors, while their bytes were on their way
    uint64_t broken = 0;         // of these
    uint64_t in_place = 0;       // calls that used copies where they are; of these, creates
    uint64_t created_away = 0;
  };

  PageWorld(const Options& options, plan::Random* random);

  // One thing happens.
  void Step();
  // The client dies; another begins when what was under way has ended.
  void Kill();
  // All tensors are read again; then the client dies, and all memory is free.
  void Finish();
  // What is wrong; empty: nothing.
  const std::string& fault() const { return fault_; }
  const Counts& counts() const { return counts_; }

  // ---- PageBackend.
  bool Revoke(TensorNumber tensor, uint32_t uses) override;
  void Publish(TensorNumber tensor) override;
  void Grant(TensorNumber tensor) override;
  void Refuse(TensorNumber tensor) override;
  bool GrantEarly(TensorNumber tensor) override;
  void Arrived(TensorNumber tensor) override { granted_early_.erase(tensor); }
  void Break(TensorNumber tensor) override;
  bool Map(const MapOrder& order) override;
  void Unmap(plan::PhysicalPage page) override;
  uint32_t MapsMost() const override { return options_.maps; }
  void Release(const plan::PageSupply::Released& page) override;
  void CopyIn(const CopyOrder& order) override;
  void CopyOut(const CopyOrder& order) override;
  void FreeCopy(plan::Unit unit, plan::PoolNumber pool) override;
  void MakeCopy(plan::Unit unit, plan::PoolNumber pool) override;
  void MoveSlot(const PageMemory::SlotMove& move, Bytes bytes) override;
  bool MoveCopy(const CopyMove& move) override;
  bool CanCopyIn(plan::PoolNumber pool, bool demanded) const override;
  bool CanCopyOut(plan::PoolNumber pool) const override { return copies_out_[pool] < 2; }

 private:
  using Cells = std::vector<uint64_t>;
  // Of units, with their pools.
  using Copies = std::map<plan::Unit, plan::PoolNumber>;
  enum class Word : uint8_t { kAsked, kInUse, kIdle, kAway, kFreed };
  // As the client knows it.
  struct Tensor {
    Word word = Word::kAsked;
    uint32_t uses = 0;
    Bytes size = {};
    plan::Place place = {};
    plan::UnitSpan units = {};
    PageMemory::Place slot = {};  // its address; pages have theirs by the mappings
    // The units whose copies this use has where they are. They stay away until its kernels have
    // run.
    std::map<plan::Unit, plan::PoolNumber> in_place = {};
    Cells expected = {};  // after the kernels that have run
    bool created = false;
    bool has_request = false;  // a call waits
    bool writes = false;       // a kernel of this use writes
    bool is_kept = false;
    bool lost = false;    // the client does not know it yet
    bool broken = false;  // it was granted early, and its bytes did not come
  };
  struct Report {
    enum class Kind : uint8_t { kCreate, kGet, kGetAsked, kPut, kFree, kFreeIdle } kind;
    TensorNumber tensor;
    bool modified = false;
    uint64_t ticket = 0;
    bool unpins = false;    // known when it is handled, as the next
    bool in_place = false;  // kPut, kFree: of a use in place
  };
  struct Kernel {
    enum class Kind : uint8_t { kRead, kWrite, kFill, kAwait } kind;
    TensorNumber tensor;
    Copies in_place = {};  // its addresses, instead of those on the device
  };
  struct UnderWay {
    enum class Kind : uint8_t { kMap, kUnmap, kIn, kOut } kind;
    MapOrder map{};
    CopyOrder copy{};
    plan::PhysicalPage page = 0;
    Cells cells = {};   // kOut: the bytes that it read when it began
    bool lost = false;  // the pool loses the copy
  };

  void Begin();
  void Client();
  void Create();
  void Get(TensorNumber tensor);
  void End(TensorNumber tensor);
  void Keep(TensorNumber tensor);
  void EndKeeps();
  // Its copies are used where they are, if that may be.
  bool UseInPlace(TensorNumber tensor);
  // Returns false if there is none, or it waits for bytes of an early grant.
  bool RunKernel();
  // All kernels run. The copies that they wait for go on.
  void RunKernels();
  void HandleReports(uint64_t most);
  void HandleReport(const Report& report);
  void HandleTickets();
  void RefuseCreate(TensorNumber tensor);
  void HandleGrants();
  void CompleteOne();
  bool HasCopy(plan::Unit unit) const;
  void EndCopyIn(const UnderWay& of, bool fails);
  void EndCopyOut(const UnderWay& of, bool fails);
  // A pool changes, or loses a copy.
  void ChangePools();
  void SetPoolCapacity(plan::PoolNumber pool, Bytes capacity);
  void LoseCopy();
  void MoveACopy();
  void RemoveTensor(TensorNumber tensor);
  // The tensors of a page that has left move to slots.
  void MoveToSlots();
  void ChangePlan();
  void ChangeShare(uint32_t pages);
  void AnnounceNeeds();
  bool IsIdle() const;
  void RefuseIfStuck();
  // A random tensor with this word; false: there is none.
  bool Find(Word word, TensorNumber* tensor);
  // Where the tensor's slot is on the device. Nothing happens without a slot there.
  void SetSlot(Tensor* tensor) const;
  uint64_t* CellAt(const Tensor& tensor, const Copies& in_place, uint64_t cell);
  uint64_t CellsOf(plan::Unit unit) const;
  void Fail(const std::string& what);
  std::string Describe() const;

  const Options options_;
  plan::Random* const random_;
  const Bytes page_;
  std::unique_ptr<PageExecutor> executor_;
  std::unique_ptr<plan::Places> places_;
  std::vector<Cells> physical_;
  std::map<plan::Unit, plan::PhysicalPage> mapped_;  // pages
  // By the pool of the copy: one that is written to the wrong pool is not found.
  std::map<std::pair<plan::PoolNumber, plan::Unit>, Cells> copies_;
  std::vector<Tensor> tensors_;
  std::vector<TensorNumber> live_;  // of tensors_, those not freed
  std::deque<Report> reports_;
  std::deque<Kernel> stream_;
  std::vector<Report> pending_;  // puts and frees that were reported, until the stream comes there
  std::vector<TensorNumber> granted_;
  std::set<TensorNumber> granted_early_;
  std::vector<UnderWay> under_way_;
  std::map<plan::Unit, plan::PhysicalPage> kept_;
  uint64_t enqueued_ = 0;
  uint64_t executed_ = 0;
  uint64_t stamp_ = 0;
  std::vector<uint32_t> copies_in_;  // by pool
  std::vector<uint32_t> copies_out_;
  plan::Position position_ = 0;
  std::string fault_;
  Counts counts_;
};

}  // namespace ravenstore::core
