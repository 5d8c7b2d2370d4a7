#include "bench/unaware_owner.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "core/idle_memory.h"
#include "daemon/config.h"
#include "daemon/harvest.h"
#include "sim/trace_builder.h"

namespace ravenstore::bench {

namespace {

using core::Bytes;
using core::Duration;
using core::MiB;
using core::Tick;

constexpr Bytes kContext = MiB(512);
constexpr Bytes kGranularity = MiB(2);
constexpr Duration kCopied = std::chrono::milliseconds(5);  // a whole chunk
constexpr Duration kChanged = std::chrono::microseconds(4200);
constexpr Duration kMinute = std::chrono::minutes(1);
constexpr double kLeastPiece = 20 * 0x1p20;
constexpr double kLargestPiece = 2 * 0x1p30;

// What is harvested of the GPU, and the daemon that decides it.
class Harvested {
 public:
  explicit Harvested(const UnawareOptions& options)
      : chunk_(daemon::Config().harvest_step),
        idle_(core::IdleMemory::Make({.reserve = options.reserve,
                                      .rise_time = daemon::Config().harvest_rise,
                                      .step = chunk_},
                                     options.memory)
                  .value()),
        harvest_({.name = "harvest", .reserve = options.reserve}) {}

  // With what is there and what comes or goes.
  Bytes held() const { return held_; }
  // When Work has something to do.
  Tick next() const { return std::min(copied_at_, changed_at_); }

  void Look(Tick now, Bytes free) {
    idle_.Look(now, free);
    const bool stale = changing_ || now <= changed_;
    most_ = harvest_.Look(now, held_, {free, idle_.idle(), stale});
    Begin(now);
  }
  void Work(Tick now) {
    if (now >= copied_at_) {
      copied_at_ = core::kNever;
      emptied_.push_back(*std::exchange(copying_, std::nullopt));
    }
    if (now >= changed_at_) {
      changed_at_ = core::kNever;
      changed_ = now;
      const auto [size, is_new] = *std::exchange(changing_, std::nullopt);
      if (is_new) {
        chunks_.push_back(size);
        open_ += size;
      } else {
        held_ -= size;
      }
    }
    Begin(now);
    harvest_.Update(now, held_, [] { return std::string(); });
  }

 private:
  struct Changing {
    Bytes size;
    bool is_new;
  };

  void Begin(Tick now) {
    if (!copying_ && open_ > most_) {
      copying_ = chunks_.front();
      chunks_.pop_front();
      open_ -= *copying_;
      copied_at_ = now + core::FromSeconds(core::Seconds(kCopied) * Share(*copying_));
    }
    if (changing_) return;
    if (!emptied_.empty()) {
      changing_ = {emptied_.front(), false};
      emptied_.pop_front();
    } else {
      const Bytes room = core::Minus(most_, held_).RoundDown(kGranularity);
      if (room == Bytes{0}) return;
      changing_ = {std::min(room, chunk_), true};
      held_ += changing_->size;
    }
    changed_at_ = now + kChanged;
  }
  double Share(Bytes size) const {
    return static_cast<double>(size.count()) / static_cast<double>(chunk_.count());
  }

  const Bytes chunk_;
  core::IdleMemory idle_;
  daemon::Harvest harvest_;
  Bytes most_;
  Bytes held_;
  Bytes open_;                // of chunks_
  std::deque<Bytes> chunks_;  // that are not given back
  std::optional<Bytes> copying_;
  Tick copied_at_ = core::kNever;
  std::deque<Bytes> emptied_;
  std::optional<Changing> changing_;
  Tick changed_at_ = core::kNever;
  Tick changed_{};
};

class Owner {
 public:
  Owner(const std::vector<Bytes>& used, const UnawareOptions& options)
      : used_(used), rate_(options.rate), random_(options.seed) {
    Plan();
  }

  Bytes held() const { return held_; }
  const UnawareOutcome& outcome() const { return outcome_; }
  // When Work has something to do; a piece that did not fit is not waited for.
  Tick next() const { return std::min(change_at_, failed_ ? core::kNever : piece_at_); }

  void Work(Tick now, Bytes free) {
    if (now >= change_at_) Change(now);
    if (now >= piece_at_) Allocate(now, free);
  }

 private:
  void Plan() {
    change_at_ = core::kNever;
    if (minute_ == used_.size()) return;
    const double into = core::Seconds(kMinute) * sim::Unit(random_);
    change_at_ = Tick(kMinute * static_cast<int64_t>(minute_)) + core::FromSeconds(into);
  }
  void Change(Tick now) {
    goal_ = used_[minute_++];
    held_ = std::min(held_, goal_);
    failed_ = false;
    piece_at_ = core::kNever;
    TakeNext(now);
    Plan();
  }
  void TakeNext(Tick at) {
    if (held_ == goal_) return;
    const double size = kLeastPiece * std::pow(kLargestPiece / kLeastPiece, sim::Unit(random_));
    piece_ = std::min(Bytes(static_cast<uint64_t>(size)), goal_ - held_);
    piece_at_ = at;
    ++outcome_.pieces;
  }
  void Allocate(Tick now, Bytes free) {
    if (piece_ > free) {
      if (!std::exchange(failed_, true)) ++outcome_.errors;
      return;
    }
    failed_ = false;
    held_ += piece_;
    piece_at_ = core::kNever;
    TakeNext(now + core::FromSeconds(static_cast<double>(piece_.count()) / rate_));
  }

  const std::vector<Bytes>& used_;
  const double rate_;
  std::mt19937_64 random_;
  size_t minute_ = 0;
  Tick change_at_{};
  Bytes held_;
  Bytes goal_;
  Bytes piece_;
  Tick piece_at_ = core::kNever;
  bool failed_ = false;
  UnawareOutcome outcome_;
};

}  // namespace

UnawareOutcome SimulateUnawareOwner(const std::vector<Bytes>& used, const UnawareOptions& options) {
  const Duration interval = daemon::Config().harvest_sample;
  const Tick end(kMinute * static_cast<int64_t>(used.size() + 1));
  Harvested harvested(options);
  Owner owner(used, options);
  double held = 0;
  Tick now{};
  Tick look{};
  while (now < end) {
    const Tick next = std::min({look, harvested.next(), owner.next(), end});
    held += static_cast<double>(harvested.held().count()) * core::Seconds(next - now);
    now = next;
    if (now >= harvested.next()) harvested.Work(now);
    const auto free = [&] {
      return core::Minus(options.memory, kContext + owner.held() + harvested.held());
    };
    owner.Work(now, free());
    if (now < look) continue;
    harvested.Look(now, free());
    look += interval;
  }
  UnawareOutcome outcome = owner.outcome();
  outcome.harvested = held / core::Seconds(end - Tick{});
  return outcome;
}

}  // namespace ravenstore::bench
