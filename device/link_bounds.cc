#include "device/link_bounds.h"

#include <string.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/reservation.h"

namespace ravenstore::device {
namespace {

using Clock = std::chrono::steady_clock;

// A page of words that the device knows.
class WordPage {
 public:
  static constexpr Bytes kBytes = core::KiB(4);

  static Result<std::unique_ptr<WordPage>> Make(Device& device) {
    RAVEN_ASSIGN_OR_RETURN(Reservation range, Reservation::Make(kBytes));
    RAVEN_ASSIGN_OR_RETURN(auto memory, NewMemory(kBytes));
    RAVEN_RETURN_IF_ERROR(range.Map(Bytes{0}, kBytes, memory.get()));
    RAVEN_ASSIGN_OR_RETURN(auto registration, device.RegisterWords(range.base(), kBytes));
    return std::unique_ptr<WordPage>(new WordPage(std::move(range), std::move(registration)));
  }
  Word* word(size_t index) { return reinterpret_cast<Word*>(range_.base()) + index; }

 private:
  WordPage(Reservation range, std::unique_ptr<Registration> registration)
      : range_(std::move(range)), registration_(std::move(registration)) {}

  Reservation range_;
  std::unique_ptr<Registration> registration_;
};

// One direction: a channel that keeps copies of one size queued between two windows.
class Lane {
 public:
  Lane(Direction direction, std::unique_ptr<Channel> channel, std::byte* device, std::byte* host,
       Bytes window, Word* word)
      : direction_(direction),
        channel_(std::move(channel)),
        device_(device),
        host_(host),
        window_(window),
        word_(word) {}

  // Enqueues up to `copies` in all, of `size`, without getting more than 64 ahead.
  Status Feed(uint64_t copies, Bytes size) {
    channel_->Poll();
    while (queued_ < copies && queued_ < Done() + 64) {
      const Bytes at(queued_ * size.count() % window_.count());
      std::byte* const on_device = device_ + at.count();
      std::byte* const on_host = host_ + at.count();
      const bool up = direction_ == Direction::kHostToDevice;
      RAVEN_RETURN_IF_ERROR(
          channel_->Copy(up ? on_device : on_host, up ? on_host : on_device, size));
      ++queued_;
      // Every eighth, as often as anybody needs to know.
      if (queued_ % 8 == 0 || queued_ == copies) {
        RAVEN_RETURN_IF_ERROR(channel_->Signal(word_, base_ + queued_));
      }
    }
    return core::Ok();
  }
  uint64_t Done() const { return word_->load(std::memory_order_acquire) - base_; }
  Status Health() { return channel_->Health(); }
  // Words only rise: the next round counts on from here.
  void Restart() {
    base_ += queued_;
    queued_ = 0;
  }

 private:
  const Direction direction_;
  const std::unique_ptr<Channel> channel_;
  std::byte* const device_;
  std::byte* const host_;
  const Bytes window_;
  Word* const word_;
  uint64_t base_ = 0;
  uint64_t queued_ = 0;
};

// The best rate at which `lanes` together move options.per_round each in copies of `size`, before
// `deadline`.
Result<double> BestRate(std::vector<Lane*> lanes, Bytes size, const LinkBoundsOptions& options,
                        Clock::time_point deadline) {
  const uint64_t copies = std::max<uint64_t>(options.per_round.count() / size.count(), 1);
  double best = 0;
  for (int round = 0; round < options.rounds; ++round) {
    for (Lane* lane : lanes) lane->Restart();
    const auto begin = Clock::now();
    auto checked = begin;
    bool done = false;
    while (!done) {
      done = true;
      for (Lane* lane : lanes) {
        RAVEN_RETURN_IF_ERROR(lane->Feed(copies, size));
        done = done && lane->Done() == copies;
      }
      if (Clock::now() > deadline) {
        return core::Error{core::ErrorCode::kTimedOut, "its copies took too long"};
      }
      if (Clock::now() - checked > std::chrono::milliseconds(100)) {
        for (Lane* lane : lanes) RAVEN_RETURN_IF_ERROR(lane->Health());
        checked = Clock::now();
      }
    }
    const std::chrono::duration<double> took = Clock::now() - begin;
    const auto bytes = static_cast<double>((size * copies * lanes.size()).count());
    best = std::max(best, bytes / took.count());
  }
  return best;
}

double MedianNanoseconds(std::vector<Clock::duration> samples) {
  const auto middle = samples.begin() + static_cast<ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return std::chrono::duration<double, std::nano>(*middle).count();
}

}  // namespace

Result<LinkBounds> MeasureLink(Device& device, const LinkBoundsOptions& options) {
  const Bytes half(options.window.count() / 2);
  const bool fits = half.count() % options.large.count() == 0 &&
                    options.large.count() % options.small.count() == 0;
  if (!fits) {
    return core::Error{core::ErrorCode::kInvalidArgument,
                       "half of the window must be a multiple of the large copy, and that of the "
                       "small one"};
  }
  RAVEN_ASSIGN_OR_RETURN(auto words, WordPage::Make(device));
  RAVEN_ASSIGN_OR_RETURN(auto on_device, device.ReserveVaRange(options.window));
  RAVEN_ASSIGN_OR_RETURN(auto on_host, device.ReserveHostVaRange(options.window, -1));
  RAVEN_RETURN_IF_ERROR(on_device->Create(Bytes{0}, options.window));
  RAVEN_RETURN_IF_ERROR(on_host->Create(Bytes{0}, options.window));
  // The kernel hands pages out at the first touch, which no link should be charged for.
  memset(on_host->base(), 1, options.window.count());
  RAVEN_ASSIGN_OR_RETURN(auto up_channel, device.OpenChannel(Direction::kHostToDevice));
  RAVEN_ASSIGN_OR_RETURN(auto down_channel, device.OpenChannel(Direction::kDeviceToHost));
  Lane up(Direction::kHostToDevice, std::move(up_channel), on_device->base(), on_host->base(), half,
          words->word(0));
  Lane down(Direction::kDeviceToHost, std::move(down_channel), on_device->base() + half.count(),
            on_host->base() + half.count(), half, words->word(8));
  const auto deadline = Clock::now() + options.time_limit;
  const auto rate = [&](std::vector<Lane*> lanes, Bytes size) {
    return BestRate(std::move(lanes), size, options, deadline);
  };
  LinkBounds bounds;
  RAVEN_ASSIGN_OR_RETURN(bounds.up, rate({&up}, options.large));
  RAVEN_ASSIGN_OR_RETURN(bounds.down, rate({&down}, options.large));
  if (options.one_way) return bounds;
  RAVEN_ASSIGN_OR_RETURN(bounds.duplex, rate({&up, &down}, options.large));
  RAVEN_ASSIGN_OR_RETURN(bounds.up_queue, rate({&up}, options.small));
  RAVEN_ASSIGN_OR_RETURN(bounds.down_queue, rate({&down}, options.small));
  return bounds;
}

Result<StreamCosts> MeasureStreamCosts(Device& device, StreamHandle handle, int calls) {
  RAVEN_ASSIGN_OR_RETURN(auto words, WordPage::Make(device));
  RAVEN_ASSIGN_OR_RETURN(auto stream, device.WrapStream(handle));
  // Calls are made in small groups and the stream is let run dry in between: a full launch queue
  // would make a call wait for the device, and that is not its cost.
  const auto measure = [&](const std::function<Status(uint64_t)>& call) -> Result<double> {
    std::vector<Clock::duration> samples;
    for (int i = 1; i <= calls; ++i) {
      const auto begin = Clock::now();
      RAVEN_RETURN_IF_ERROR(call(static_cast<uint64_t>(i)));
      samples.push_back(Clock::now() - begin);
      if (i % 16 == 0) RAVEN_RETURN_IF_ERROR(stream->Synchronize());
    }
    return MedianNanoseconds(std::move(samples));
  };
  StreamCosts costs;
  RAVEN_ASSIGN_OR_RETURN(costs.signal_after, measure([&](uint64_t value) {
                           return stream->SignalAfter(words->word(0), value);
                         }));
  words->word(8)->store(1, std::memory_order_release);
  RAVEN_ASSIGN_OR_RETURN(costs.wait,
                         measure([&](uint64_t) { return stream->Wait(words->word(8), 1); }));
  RAVEN_ASSIGN_OR_RETURN(costs.capturing, measure([&](uint64_t) -> Status {
                           RAVEN_RETURN_IF_ERROR(stream->Capturing());
                           return core::Ok();
                         }));
  while (words->word(0)->load(std::memory_order_acquire) < static_cast<uint64_t>(calls)) {
    std::this_thread::yield();
  }
  return costs;
}

}  // namespace ravenstore::device
