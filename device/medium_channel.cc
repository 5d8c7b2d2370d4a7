#include "device/medium_channel.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/check.h"

namespace ravenstore::device {
namespace {

// Between looks at what a channel that ends waits for.
void Nap() {
  std::this_thread::sleep_for(std::chrono::microseconds(20));
}

// What a channel leads from, or to.
enum class End : uint8_t { kMemory, kMedium };

// A pipeline of one stage, between the CPU's memory and a medium; or of two, through a ring, each
// of them a medium or a device.
class MediumChannel : public Channel {
 public:
  MediumChannel(End from, End to, const MediumChannelOptions& options)
      : from_(from), to_(to), options_(options) {
    stages_.emplace_back();
  }
  // `ring` is pinned memory of options.chunk * options.depth bytes. Devices that are null are
  // media.
  MediumChannel(Device* from, Device* to, const MediumChannelOptions& options,
                std::unique_ptr<VaRange> ring)
      : from_(from == nullptr ? End::kMedium : End::kMemory),
        to_(to == nullptr ? End::kMedium : End::kMemory),
        options_(options),
        ring_(std::move(ring)) {
    for (Device* device : {from, to}) {
      stages_.emplace_back().granularity = device == nullptr ? Bytes{} : device->granularity();
    }
  }
  // Opens the channels between the ring and the devices.
  Status Open(Device* from, Device* to) {
    if (from != nullptr) {
      RAVEN_ASSIGN_OR_RETURN(stages_.front().device, from->OpenChannel(Direction::kDeviceToHost));
    }
    if (to != nullptr) {
      RAVEN_ASSIGN_OR_RETURN(stages_.back().device, to->OpenChannel(Direction::kHostToDevice));
    }
    return core::Ok();
  }

  ~MediumChannel() override {
    while (Health().ok() && retired_ < queued_) Nap();
    // What the medium has begun still touches the memory.
    for (const Stage& stage : stages_) {
      if (stage.device != nullptr) continue;
      for (uint64_t i = stage.ended; i < stage.begun; ++i) {
        while (!ChunkAt(i).over.load(std::memory_order_acquire)) Nap();
      }
    }
  }

  Status Copy(Target to, Source from, Bytes bytes) override {
    RAVEN_RETURN_IF_ERROR(failure_);
    RAVEN_RETURN_IF_ERROR(Check(to, from, bytes));
    for (Bytes done; done < bytes; done += options_.chunk) {
      chunks_.emplace_back(to + done, from + done, std::min(options_.chunk, bytes - done));
      ++queued_;
    }
    Advance();
    return core::Ok();
  }

  Status Signal(Word* word, uint64_t value) override {
    RAVEN_RETURN_IF_ERROR(failure_);
    signals_.push_back({queued_, word, value});
    return core::Ok();
  }

  void Poll() override { Advance(); }

  Status OutcomeOf(uint64_t value) override {
    Status outcome = core::Ok();
    for (; !failed_.empty() && failed_.front().value <= value; failed_.pop_front())
      outcome = std::move(failed_.front().why);
    return outcome;
  }

  Status Health() override {
    Advance();
    for (Stage& stage : stages_) {
      if (failure_.ok() && stage.device != nullptr) failure_ = stage.device->Health();
    }
    return failure_;
  }

 private:
  struct Chunk {
    Chunk(Target target, Source source, Bytes size) : to(target), from(source), bytes(size) {}

    const Target to;
    const Source from;
    const Bytes bytes;
    Result<Bytes> moved{Bytes{}};   // by the medium, once it is over
    std::atomic<bool> over{false};  // set last, by the medium's thread
  };
  struct Stage {
    // Between the ring and a device, whose pages meet at multiples of `granularity`; null: a
    // medium's stage.
    std::unique_ptr<Channel> device;
    Bytes granularity;
    Word copied{0};      // chunks that have gone over `device`
    uint64_t begun = 0;  // chunks, in order
    uint64_t ended = 0;
  };
  struct FailedCopy {
    uint64_t value;  // of the signal behind it
    core::Error why;
  };
  struct DueSignal {
    uint64_t after;  // chunks retired
    Word* word;
    uint64_t value;
  };

  Status Check(Target to, Source from, Bytes bytes) const {
    const auto is = [](const auto& end, End kind) {
      return (end.medium() != nullptr) == (kind == End::kMedium);
    };
    if (!is(from, from_) || !is(to, to_)) {
      const auto name = [](End end) {
        return std::string(end == End::kMedium ? "a medium" : "memory");
      };
      return core::Error{core::ErrorCode::kInvalidArgument,
                         "this channel copies from " + name(from_) + " to " + name(to_)};
    }
    RAVEN_RETURN_IF_ERROR(CheckPlace(from.medium(), from.offset(), bytes));
    return CheckPlace(to.medium(), to.offset(), bytes);
  }
  Status CheckPlace(const Medium* medium, Bytes offset, Bytes bytes) const {
    if (medium == nullptr) return core::Ok();
    const uint64_t unit = medium->granularity().count();
    if (offset.count() % unit != 0 || options_.chunk.count() % unit != 0) {
      return core::Error{core::ErrorCode::kInvalidArgument,
                         medium->name() + ": places and chunks must be multiples of " +
                             std::to_string(unit) + " bytes"};
    }
    if (offset > medium->size() || bytes > medium->size() - offset) {
      return core::Error{core::ErrorCode::kInvalidArgument,
                         medium->name() + ": " + std::to_string(bytes.count()) + " bytes at " +
                             std::to_string(offset.count()) + " reach past its " +
                             std::to_string(medium->size().count())};
    }
    return core::Ok();
  }

  Chunk& ChunkAt(uint64_t number) { return chunks_[number - retired_]; }
  std::byte* SlotOf(uint64_t number) const {
    return ring_->base() + number % options_.depth * options_.chunk.count();
  }
  bool IsFirst(const Stage& stage) const { return &stage == &stages_.front(); }
  bool IsLast(const Stage& stage) const { return &stage == &stages_.back(); }

  void Advance() {
    if (!failure_.ok()) return;
    for (Stage& stage : stages_) {
      if (stage.device != nullptr) stage.device->Poll();
      EndChunks(stage);
    }
    Retire();
    uint64_t ready = std::min(queued_, retired_ + options_.depth);
    for (Stage& stage : stages_) {
      BeginChunks(stage, ready);
      ready = stage.ended;
    }
  }

  // A failure counts once all before it is done, so that what precedes it is signalled.
  void EndChunks(Stage& stage) {
    for (; stage.ended < stage.begun; ++stage.ended) {
      if (stage.device != nullptr) {
        if (stage.copied.load(std::memory_order_acquire) <= stage.ended) return;
        continue;
      }
      const Chunk& chunk = ChunkAt(stage.ended);
      if (!chunk.over.load(std::memory_order_acquire)) return;
      if (options_.goes_on) continue;  // until it is retired
      const Status moved = Outcome(chunk);
      if (!moved.ok()) {
        if (stage.ended == retired_) failure_ = moved;
        return;
      }
    }
  }

  Status Outcome(const Chunk& chunk) const {
    RAVEN_RETURN_IF_ERROR(chunk.moved);
    if (*chunk.moved == chunk.bytes) return core::Ok();
    const bool reads = from_ == End::kMedium;
    const Medium& medium = *(reads ? chunk.from.medium() : chunk.to.medium());
    const Bytes offset = reads ? chunk.from.offset() : chunk.to.offset();
    return core::Error{core::ErrorCode::kSystem,
                       medium.name() + (reads ? ": a read of " : ": a write of ") +
                           std::to_string(chunk.bytes.count()) + " bytes at " +
                           std::to_string(offset.count()) + " ended after " +
                           std::to_string(chunk.moved->count())};
  }

  void Retire() {
    for (; retired_ < stages_.back().ended; ++retired_) {
      if (options_.goes_on) NoteOutcome(chunks_.front());
      chunks_.pop_front();
    }
    Signalled();
  }

  // The signal after a failed copy reports the failure. The signals before that copy go first.
  void NoteOutcome(const Chunk& chunk) {
    Signalled();
    const Status moved = Outcome(chunk);
    if (!moved.ok() && !unsignalled_) unsignalled_ = moved.error();
  }
  void Signalled() {
    for (; !signals_.empty() && signals_.front().after <= retired_; signals_.pop_front()) {
      const DueSignal& due = signals_.front();
      if (unsignalled_) failed_.push_back({due.value, *std::exchange(unsignalled_, std::nullopt)});
      due.word->store(due.value, std::memory_order_release);
    }
  }

  // Chunks before number `ready` have come so far.
  void BeginChunks(Stage& stage, uint64_t ready) {
    while (failure_.ok() && stage.begun < ready) {
      if (stage.device != nullptr) {
        failure_ = BeginDevice(stage, stage.begun);
      } else if (Conflicts(stage)) {
        return;
      } else {
        BeginMedium(stage, stage.begun);
      }
      ++stage.begun;
    }
  }

  // A medium's transfers are done in any order, but those to one place must not be.
  bool Conflicts(const Stage& stage) {
    const Chunk& next = ChunkAt(stage.begun);
    for (uint64_t i = stage.ended; i < stage.begun; ++i) {
      if (Overlap(ChunkAt(i), next)) return true;
    }
    return false;
  }
  static bool Overlap(const Chunk& a, const Chunk& b) {
    if (a.to.medium() != b.to.medium()) return false;
    const auto begin = [](const Chunk& chunk) {
      return chunk.to.medium() == nullptr ? reinterpret_cast<uintptr_t>(chunk.to.address())
                                          : chunk.to.offset().count();
    };
    const auto end = [&](const Chunk& chunk) {
      const Medium* medium = chunk.to.medium();
      return begin(chunk) +
             (medium == nullptr ? chunk.bytes : chunk.bytes.RoundUp(medium->granularity())).count();
    };
    return begin(a) < end(b) && begin(b) < end(a);
  }

  void BeginMedium(const Stage& stage, uint64_t number) {
    Chunk& chunk = ChunkAt(number);
    const auto completion = [&chunk](Result<Bytes> moved) {
      chunk.moved = std::move(moved);
      chunk.over.store(true, std::memory_order_release);
    };
    if (from_ == End::kMedium) {
      std::byte* to = IsLast(stage) ? chunk.to.address() : SlotOf(number);
      chunk.from.medium()->Read(chunk.from.offset(), to, chunk.bytes, completion);
    } else {
      const std::byte* from = IsFirst(stage) ? chunk.from.address() : SlotOf(number);
      chunk.to.medium()->Write(chunk.to.offset(), from, chunk.bytes, completion);
    }
  }

  // One copy must not run across two pages.
  Status BeginDevice(Stage& stage, uint64_t number) {
    const Chunk& chunk = ChunkAt(number);
    const bool first = IsFirst(stage);
    std::byte* to = first ? SlotOf(number) : chunk.to.address();
    const std::byte* from = first ? chunk.from.address() : SlotOf(number);
    for (Bytes left = chunk.bytes; left > Bytes{};) {
      const auto on_device = reinterpret_cast<uintptr_t>(first ? from : to);
      const uint64_t unit = stage.granularity.count();
      const Bytes part = std::min(left, Bytes(unit - on_device % unit));
      RAVEN_RETURN_IF_ERROR(stage.device->Copy(to, from, part));
      to += part.count();
      from += part.count();
      left -= part;
    }
    return stage.device->Signal(&stage.copied, number + 1);
  }

  const End from_;
  const End to_;
  const MediumChannelOptions options_;
  const std::unique_ptr<VaRange> ring_;  // null: one stage
  std::deque<Stage> stages_;             // before the ring, which their channels copy from and to
  std::deque<Chunk> chunks_;             // those not retired; their addresses stay
  uint64_t queued_ = 0;
  uint64_t retired_ = 0;
  std::deque<DueSignal> signals_;           // oldest first
  std::optional<core::Error> unsignalled_;  // of a chunk that was retired since the last signal
  std::deque<FailedCopy> failed_;           // that OutcomeOf has not reported
  Status failure_ = core::Ok();
};

// Devices that are null are media.
Result<std::unique_ptr<Channel>> OpenStaged(Device* from, Device* to,
                                            const MediumChannelOptions& options) {
  RAVEN_CHECK(options.chunk > Bytes{});
  RAVEN_CHECK(options.depth > 0);
  Device& near = *(from == nullptr ? to : from);
  const Bytes bytes = (options.chunk * options.depth).RoundUp(near.granularity());
  RAVEN_ASSIGN_OR_RETURN(auto ring, near.ReserveHostVaRange(bytes, near.info().numa_node));
  RAVEN_RETURN_IF_ERROR(ring->Create(Bytes{}, bytes));
  auto channel = std::make_unique<MediumChannel>(from, to, options, std::move(ring));
  RAVEN_RETURN_IF_ERROR(channel->Open(from, to));
  return std::unique_ptr<Channel>(std::move(channel));
}

}  // namespace

std::unique_ptr<Channel> OpenMediumChannel(MediumAccess access,
                                           const MediumChannelOptions& options) {
  RAVEN_CHECK(options.chunk > Bytes{});
  RAVEN_CHECK(options.depth > 0);
  return access == MediumAccess::kRead
             ? std::make_unique<MediumChannel>(End::kMedium, End::kMemory, options)
             : std::make_unique<MediumChannel>(End::kMemory, End::kMedium, options);
}

Result<std::unique_ptr<Channel>> OpenMediumChannel(Device& device, MediumAccess access,
                                                   const MediumChannelOptions& options) {
  return access == MediumAccess::kRead ? OpenStaged(nullptr, &device, options)
                                       : OpenStaged(&device, nullptr, options);
}

Result<std::unique_ptr<Channel>> OpenStagedChannel(Device& from, Device& to,
                                                   const MediumChannelOptions& options) {
  return OpenStaged(&from, &to, options);
}

}  // namespace ravenstore::device
