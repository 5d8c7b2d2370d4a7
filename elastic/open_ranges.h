// What a job's calls do with its ranges without the scheduler's lock, in their order, and the log
// of it that the scheduler sees later.
//
// A range, and a page, is open while it is resident and mapped at its address. A call may then use
// the range, or create one in the page, immediately. A range or page that a call holds this way is
// not closed before the scheduler has seen the call. Only a closed one may leave. The places are
// chosen here, by the scheduler's rules (job_places.h).
//
// Owns: words, places, the log. Units: bytes; the job's virtual time for `at`; calls by number.
// Threads: the lock of calls, but where it says so. Cost: O(log ranges) a create, else O(1).
// Errors: none.
#pragma once

#include <cuda.h>

#include <atomic>
#include <vector>

#include "core/types.h"
#include "elastic/call_log.h"
#include "elastic/hold_words.h"
#include "elastic/job_places.h"
#include "elastic/point.h"

namespace ravenstore::elastic {

class OpenRanges {
 public:
  struct Options {
    CUdeviceptr begin = 0;
    core::Bytes page;
    core::Bytes addresses;
  };
  explicit OpenRanges(const Options& options);

  // There are ranges up to before this number. With both locks.
  void Grow(core::TensorNumber end) { ranges_.Grow(end); }

  // ---- Places.
  // Gives the range one. `stream`: for whose work it is; 0: for any. Returns false if there are no
  // addresses.
  bool Place(core::TensorNumber range, core::Bytes size, uint32_t stream);
  // The scheduler has refused the range.
  void ForgetPlace(core::TensorNumber range) { places_.Forget(range); }
  // All streams have passed its free.
  void EndFree(core::TensorNumber range) { places_.EndFree(range); }
  core::plan::Place PlaceOf(core::TensorNumber range) const { return places_.PlaceOf(range); }
  CUdeviceptr AddressOf(core::TensorNumber range) const {
    return options_.begin + places_.PlaceOf(range).at;
  }
  // The placed range lives, until End().
  void Begin(core::TensorNumber range);
  void End(core::TensorNumber range);
  // Pages in which ranges live, by the order of calls.
  uint32_t live_pages() const { return live_pages_; }
  // Sets how many pages the device may hold. Threads: any.
  void SetPages(uint32_t pages) { pages_most_.store(pages, std::memory_order_relaxed); }

  // ---- Calls.
  // The placed range lives, and no call holds it. Returns false if a page of it is not open.
  bool TryCreate(core::TensorNumber range, core::Duration at, int64_t call);
  bool IsOpen(core::TensorNumber range) const { return ranges_.IsOpen(range); }
  // A call holds it, and is the first to. Returns false if it is not open.
  bool TryUse(core::TensorNumber range, core::Duration at, int64_t call);
  // The same of a range that may have to come first. The caller reports the call to the scheduler.
  void Hold(core::TensorNumber range) { ranges_.Hold(range); }
  // No call holds it any more. Takes the points out, and leaves their memory.
  void Put(core::TensorNumber range, core::Duration at, std::vector<Point>* points);
  // Nor will one. `stream`: behind whose work it is freed; 0: behind that of all.
  void Free(core::TensorNumber range, core::Duration at, uint32_t stream,
            std::vector<Point>* points);

  // ---- The log.
  size_t logged() const { return log_.size(); }
  void TakeLog(std::vector<LoggedCall>* calls) { log_.Take(calls); }

  // ---- For the scheduler. Threads: its lock alone.
  void Open(core::TensorNumber range) { ranges_.Open(range); }
  bool Close(core::TensorNumber range) { return ranges_.Close(range); }
  // It has seen the end of a hold, by a put or a free.
  void EndHold(core::TensorNumber range) { ranges_.EndHold(range); }
  void OpenPage(core::plan::Unit page) { pages_.Open(page / 2); }
  bool ClosePage(core::plan::Unit page) { return pages_.Close(page / 2); }
  // It has seen a create in the page.
  void EndHoldOfPage(core::plan::Unit page) { pages_.EndHold(page / 2); }

 private:
  const Options options_;
  std::atomic<uint32_t> pages_most_{0};
  HoldWords ranges_;
  HoldWords pages_;
  JobPlaces places_;
  std::vector<uint32_t> live_;  // ranges, by page
  uint32_t live_pages_ = 0;
  CallLog log_;
};

}  // namespace ravenstore::elastic
