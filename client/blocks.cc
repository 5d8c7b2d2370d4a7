#include "client/blocks.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <exception>
#include <functional>
#include <optional>
#include <utility>

namespace ravenstore {
namespace {

std::atomic<uint64_t> forks{0};

// Sizes that differ by little share a magazine: each power of two has 32 sizes, so that at most
// 1/32 is rounded up to, and nothing below the store's alignment.
uint64_t RoundUp(uint64_t bytes) {
  constexpr uint64_t kAlignment = 512;
  const uint64_t step = std::max(kAlignment, std::bit_floor(bytes) / 32);
  return (bytes + step - 1) / step * step;
}

// Where a block has to be made, idle blocks may exceed a program's peak by a sixteenth of it, and
// in a small program by 32 MiB. Every size has its peak at another moment: all of them would add
// up.
constexpr uint64_t kWasteShare = 16;
constexpr uint64_t kWasteLeast = MiB(32);

std::string Size(uint64_t bytes) {
  const uint64_t tenths = (bytes * 10 + MiB(1) / 2) / MiB(1);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " MiB";
}

// Of what was asked for, 0 being anything, and what is granted.
uint64_t Lesser(uint64_t asked, uint64_t granted) {
  return asked == 0 ? granted : std::min(asked, granted);
}

// What others' puts and frees would mend.
bool IsForRoom(const Error& error) {
  return error.code() == RAVENSTORE_OUT_OF_MEMORY || error.code() == RAVENSTORE_TIMED_OUT;
}

}  // namespace

uint64_t CountForks() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { ++forks; });
  static_cast<void>(registered);
  return forks.load(std::memory_order_relaxed);
}

size_t BlockAllocator::MagazineHash::operator()(const MagazineKey& key) const {
  const size_t mixed = std::hash<const void*>()(key.stream) * 31 + static_cast<size_t>(key.device);
  return mixed * 0x9e3779b97f4a7c15u + std::hash<uint64_t>()(key.bytes);
}

BlockAllocator::BlockAllocator(std::shared_ptr<Store> store, StreamOrder* order,
                               uint64_t device_budget)
    : BlockAllocator(store, order, device_budget, store->stats()) {}

BlockAllocator::BlockAllocator(std::shared_ptr<Store> store, StreamOrder* order,
                               uint64_t device_budget, const Stats& granted)
    : store_(std::move(store)),
      order_(order),
      device_budget_(Lesser(device_budget, granted.device_budget)),
      born_(CountForks()) {}

BlockAllocator::~BlockAllocator() {
  if (IsForked()) return;
  for (auto& [device, ledger] : ledgers_) {
    for (Block* block : ledger.idle) delete block;
  }
}

bool BlockAllocator::IsForked() const {
  return CountForks() != born_;
}

// --- The ledger ---

void BlockAllocator::AddUser(Block* block) {
  if (block->users_++ > 0) return;
  Ledger& ledger = ledgers_[block->device_];
  BlocksStats& stats = ledger.stats;
  if (block->saves_ > 0) stats.parked -= block->bytes_;
  stats.used += block->bytes_;
  ++stats.used_blocks;
  stats.used_peak = std::max(stats.used_peak, stats.used);
  stats.used_blocks_peak = std::max(stats.used_blocks_peak, stats.used_blocks);
  stats.held_peak = std::max(stats.held_peak, stats.used + stats.idle);
  stats.needed_peak = std::max(stats.needed_peak, stats.used + stats.parked);
  ledger.needed_ever = std::max(ledger.needed_ever, stats.needed_peak);
}

void BlockAllocator::RemoveUser(Block* block) {
  if (--block->users_ > 0) return;
  BlocksStats& stats = ledgers_[block->device_].stats;
  stats.used -= block->bytes_;
  --stats.used_blocks;
  if (block->saves_ > 0) stats.parked += block->bytes_;
}

void BlockAllocator::CountAllocation(Block* block) {
  AddUser(block);
  BlocksStats& stats = ledgers_[block->device_].stats;
  ++stats.allocations;
  stats.allocated_bytes += block->bytes_;
}

void BlockAllocator::BecomeIdle(Block* block) {
  Ledger& ledger = ledgers_[block->device_];
  ledger.stats.idle += block->bytes_;
  block->by_age_ = ledger.idle.insert(ledger.idle.end(), block);
  magazines_[{block->device_, block->stream_, block->bytes_}].push_back(block);
}

// For the daemon idle blocks are in use, and cannot leave. It reuses places in the stream's order
// itself. Where bytes move none is idle: which calls the daemon sees would depend on what is idle
// when, and it could not foresee them.
uint64_t BlockAllocator::MostIdle(const Ledger& ledger, uint64_t others) const {
  if (std::max(ledger.needed_ever, others) > device_budget_) return 0;
  return device_budget_ - others;
}

bool BlockAllocator::BecomeIdleFromParked(Block* block) noexcept {
  const Ledger& ledger = ledgers_[block->device_];
  const BlocksStats& stats = ledger.stats;
  if (stats.idle + block->bytes_ > MostIdle(ledger, stats.used + stats.parked)) return false;
  try {
    // A get of what is on the device does not wait; of what is on its way out it may not, either.
    constexpr std::chrono::nanoseconds kDoNotWait{1};
    if (!block->tensor_.ready()) return false;
    block->address_ = store_->get(block->tensor_, block->stream_, {.timeout = kDoNotWait});
    BecomeIdle(block);
    return true;
  } catch (const Error&) {
    return false;
  }
}

Block* BlockAllocator::Take(uint64_t bytes, int device, Stream stream) {
  const auto magazine = magazines_.find({device, stream, bytes});
  if (magazine == magazines_.end()) return nullptr;
  // The newest: its bytes are the likeliest to be in a cache.
  Block* block = magazine->second.back();
  magazine->second.pop_back();
  if (magazine->second.empty()) magazines_.erase(magazine);
  Ledger& ledger = ledgers_[device];
  ledger.idle.erase(block->by_age_);
  ledger.stats.idle -= bytes;
  return block;
}

std::vector<Block*> BlockAllocator::TakeUntilFits(uint64_t more, int device) {
  Ledger& ledger = ledgers_[device];
  const BlocksStats& stats = ledger.stats;
  const uint64_t others = stats.used + stats.parked + more;
  const uint64_t most = MostIdle(ledger, others);
  std::vector<Block*> taken;
  TakeIdleFrom(ledger, stats.idle - std::min(stats.idle, most), Victim::kOldest, &taken);
  const uint64_t needed = std::max(ledger.needed_ever, others);
  const uint64_t spare = needed - others + std::max(needed / kWasteShare, kWasteLeast);
  // Of few large ones more is had back, at the price of fewer calls, than of many small ones.
  TakeIdleFrom(ledger, stats.idle - std::min(stats.idle, spare), Victim::kLargest, &taken);
  return taken;
}

void BlockAllocator::TakeIdleFrom(Ledger& ledger, uint64_t bytes, Victim victim,
                                  std::vector<Block*>* taken) {
  for (uint64_t sum = 0; sum < bytes && !ledger.idle.empty(); sum += taken->back()->bytes_) {
    auto chosen = ledger.idle.begin();
    if (victim == Victim::kLargest) {
      chosen =
          std::max_element(ledger.idle.begin(), ledger.idle.end(),
                           [](const Block* a, const Block* b) { return a->bytes_ < b->bytes_; });
    }
    Block* block = *chosen;
    ledger.idle.erase(chosen);
    ledger.stats.idle -= block->bytes_;
    // Of those of its size and stream it is the oldest, either way.
    const auto magazine = magazines_.find({block->device_, block->stream_, block->bytes_});
    magazine->second.pop_front();
    if (magazine->second.empty()) magazines_.erase(magazine);
    taken->push_back(block);
  }
}

void BlockAllocator::Destroy(const std::vector<Block*>& blocks) noexcept {
  for (Block* block : blocks) {
    try {
      store_->free(std::move(block->tensor_), block->stream_);
    } catch (const Error&) {
      // The handle is gone either way, and the store that refused takes the bytes back by itself.
    }
    delete block;
  }
}

// --- Allocations ---

Block* BlockAllocator::TakeIdle(uint64_t bytes, int device, Stream stream) {
  if (IsForked()) return nullptr;
  std::lock_guard lock(mutex_);
  Block* block = Take(RoundUp(bytes), device, stream);
  if (block != nullptr) CountAllocation(block);
  return block;
}

Tensor BlockAllocator::Create(uint64_t bytes, int device, Stream stream, Life life) {
  CreateOptions options{.device = device,
                        .long_lived = life == Life::kLong,
                        .stream = stream,
                        .stream_ordered = true};
  // What is in use does not leave: where that alone is too much, no wait would help.
  bool too_much = false;
  bool any_idle = false;
  {
    std::lock_guard lock(mutex_);
    const BlocksStats& stats = ledgers_[device].stats;
    too_much = stats.used + bytes > device_budget_;
    any_idle = stats.idle > 0;
    // Libraries ask for more than there may be, and for less when there is not: cuDNN does, for
    // each of a convolution's algorithms. Several threads may wait for each other.
    options.fail_stuck = !several_save_;
  }
  if (any_idle) {
    try {
      options.fail_fast = true;
      return store_->create(bytes, options);
    } catch (const OutOfMemory&) {
      // Idle blocks lie between others: with all of them gone there may be one long run.
      EmptyMagazines();
    }
  }
  options.fail_fast = too_much;
  return store_->create(bytes, options);
}

Block* BlockAllocator::Allocate(uint64_t bytes, int device, Stream stream) {
  Block* idle = TakeIdle(bytes, device, stream);
  return idle != nullptr ? idle : AllocateNew(bytes, device, stream);
}

Block* BlockAllocator::AllocateNew(uint64_t bytes, int device, Stream stream, Life life) {
  CheckNotForked();
  auto block = std::make_unique<Block>();
  block->bytes_ = RoundUp(bytes);
  block->device_ = device;
  block->stream_ = stream;
  std::vector<Block*> evicted;
  {
    std::lock_guard lock(mutex_);
    evicted = TakeUntilFits(block->bytes_, device);
  }
  Destroy(evicted);
  try {
    block->tensor_ = Create(block->bytes_, device, stream, life);
  } catch (const Error& error) {
    Fail(error, block->bytes_, device);
  }
  block->address_ = block->tensor_.data();
  std::lock_guard lock(mutex_);
  CountAllocation(block.get());
  ++ledgers_[device].stats.created;
  return block.release();
}

void BlockAllocator::CheckNotForked() const {
  if (IsForked())
    throw Error(RAVENSTORE_IS_FORKED, "this process is a child of fork(): connect again in it");
}

void BlockAllocator::Fail(const Error& error, uint64_t bytes, int device) {
  {
    std::lock_guard lock(mutex_);
    ++ledgers_[device].stats.failures;
  }
  if (!IsForRoom(error)) throw;
  throw OutOfMemory(RAVENSTORE_OUT_OF_MEMORY,
                    DescribeHolders(bytes, device) + " The store says: " + error.what());
}

void BlockAllocator::Record(Block* block, Stream stream) {
  if (IsForked()) return;
  std::lock_guard lock(mutex_);
  AddRecorded(block, stream);
}

void BlockAllocator::AddRecorded(Block* block, Stream stream) {
  auto& recorded = block->recorded_;
  if (stream == block->stream_ ||
      std::find(recorded.begin(), recorded.end(), stream) != recorded.end())
    return;
  recorded.push_back(stream);
}

void BlockAllocator::JoinRecorded(Block* block) noexcept {
  for (const Stream stream : block->recorded_)
    order_->Order(stream, block->stream_, block->device_);
  block->recorded_.clear();
}

void BlockAllocator::Release(Block* block) noexcept {
  if (IsForked()) return;
  std::unique_lock lock(mutex_);
  const PutOptions next_read = block->next_read_;
  EndUse(block, block->stream_, next_read, std::move(lock));
}

void BlockAllocator::Close(Block* block, Stream stream, const PutOptions& next_read) noexcept {
  if (IsForked()) return;
  EndUse(block, stream, next_read, std::unique_lock(mutex_));
}

void BlockAllocator::EndUse(Block* block, Stream stream, const PutOptions& next_read,
                            std::unique_lock<std::mutex> lock) noexcept {
  AddRecorded(block, stream);
  RemoveUser(block);
  if (block->users_ > 0) return Put(block, stream, {.not_modified = next_read.not_modified});
  JoinRecorded(block);
  if (block->saves_ > 0) {
    ++ledgers_[block->device_].stats.parkings;
    return Put(block, block->stream_, next_read);
  }
  BecomeIdle(block);
  const std::vector<Block*> evicted = TakeUntilFits(0, block->device_);
  lock.unlock();
  Destroy(evicted);
}

// --- Parking ---

void BlockAllocator::Put(Block* block, Stream stream, const PutOptions& options) noexcept {
  try {
    store_->put(block->tensor_, stream, options);
  } catch (const Error&) {
    // The store answers the tensor's next get with what is wrong.
  }
}

void BlockAllocator::Save(Block* block, const PutOptions& next_read) {
  CheckNotForked();
  std::lock_guard lock(mutex_);
  ++block->saves_;
  block->next_read_ = next_read;
  const auto saver = std::this_thread::get_id();
  several_save_ = several_save_ || (saver_ != std::thread::id() && saver_ != saver);
  saver_ = saver;
}

void BlockAllocator::ReadNext(Block* block, const PutOptions& next_read) {
  if (IsForked()) return;
  std::lock_guard lock(mutex_);
  block->next_read_ = next_read;
}

void BlockAllocator::Unsave(Block* block) noexcept {
  if (IsForked()) return;
  {
    std::lock_guard lock(mutex_);
    if (--block->saves_ > 0 || block->users_ > 0) return;
    ledgers_[block->device_].stats.parked -= block->bytes_;
    if (BecomeIdleFromParked(block)) return;
  }
  Destroy({block});
}

void* BlockAllocator::Get(Block* block, Stream stream) {
  if (!block->tensor_.ready()) {
    // It needs room on the device, which for the daemon idle blocks are not.
    std::vector<Block*> evicted;
    {
      std::lock_guard lock(mutex_);
      TakeIdleFrom(ledgers_[block->device_], block->bytes_, Victim::kOldest, &evicted);
    }
    Destroy(evicted);
  }
  // Idle blocks lie between others: with all of them gone there may be one long run.
  bool any_idle = false;
  {
    std::lock_guard lock(mutex_);
    any_idle = ledgers_[block->device_].stats.idle > 0;
  }
  if (any_idle) {
    try {
      constexpr std::chrono::milliseconds kPatience{20};
      return store_->get(block->tensor_, stream, {.timeout = kPatience});
    } catch (const Error& error) {
      if (!IsForRoom(error)) throw;
      EmptyMagazines();
    }
  }
  return store_->get(block->tensor_, stream);
}

void* BlockAllocator::Open(Block* block, Stream stream) {
  CheckNotForked();
  bool alone = false;
  {
    std::lock_guard lock(mutex_);
    alone = block->users_ == 0;
    AddUser(block);
  }
  void* address = nullptr;
  try {
    address = Get(block, stream);
  } catch (const Error& error) {
    {
      std::lock_guard lock(mutex_);
      RemoveUser(block);
    }
    Fail(error, block->bytes_, block->device_);
  }
  std::lock_guard lock(mutex_);
  if (alone) {
    block->stream_ = stream;
    block->address_ = address;
  } else if (stream != block->stream_) {
    order_->Order(block->stream_, stream, block->device_);
  }
  return address;
}

// --- Figures ---

bool BlockAllocator::EmptyMagazines() {
  if (IsForked()) return false;
  std::vector<Block*> all;
  {
    std::lock_guard lock(mutex_);
    magazines_.clear();
    for (auto& [device, ledger] : ledgers_) {
      all.insert(all.end(), ledger.idle.begin(), ledger.idle.end());
      ledger.idle.clear();
      ledger.stats.idle = 0;
    }
  }
  Destroy(all);
  return !all.empty();
}

BlocksStats BlockAllocator::stats(int device) const {
  std::lock_guard lock(mutex_);
  const auto ledger = ledgers_.find(device);
  return ledger == ledgers_.end() ? BlocksStats{} : ledger->second.stats;
}

void BlockAllocator::ResetPeaks(int device) {
  std::lock_guard lock(mutex_);
  BlocksStats& stats = ledgers_[device].stats;
  stats.used_peak = stats.used;
  stats.used_blocks_peak = stats.used_blocks;
  stats.held_peak = stats.used + stats.idle;
  stats.needed_peak = stats.used + stats.parked;
}

std::string BlockAllocator::DescribeHolders(uint64_t bytes, int device) const {
  const BlocksStats held = stats(device);
  const uint64_t needed = held.used + bytes;
  const std::string mend =
      needed > device_budget_
          ? "device_budget is too small for this by at least " + Size(needed - device_budget_) +
                ", and later allocations may need more."
          : "Its budget has room for that, but other clients hold the memory, or blocks in use "
            "occupy each page of it.";
  return "The store found no room for " + Size(bytes) + " on device " + std::to_string(device) +
         ": of its budget of " + Size(device_budget_) + " this process uses " + Size(held.used) +
         " in " + std::to_string(held.used_blocks) + " blocks, and has " + Size(held.parked) +
         " parked, which may leave. " + mend;
}

}  // namespace ravenstore
