// The life of a page's bytes, as one table: a state and an event give the next state, and what
// changes with it.
//
// A page here is a page of a client's range of addresses or a small tensor's slot (a unit of
// core/plan/units.h). It is empty while no tensor lives in it. At most two copies of its bytes
// exist: on the device and in another pool. Of a page with tensors the other copy exists in all
// states from kAway to kClean, and not in kDirty.
//
// Owns: nothing. Threads: any. Errors: an event that the state does not allow has no step; for a
// caller that is a broken invariant.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace ravenstore::core {

enum class PageState : uint8_t {
  kAway,            // no physical memory is beneath it
  kMapping,         // physical memory is being mapped
  kQueued,          // mapped; its bytes wait for the link
  kArriving,        // its bytes are being copied in
  kClean,           // resident; the copy is as new, or the page is empty
  kDirty,           // resident; there is no copy
  kLeaving,         // resident; its bytes are being copied out
  kLeavingChanged,  // the same, but the bytes have changed since: the copy is useless
  kLeavingEmpty,    // the same, but no tensor lives there any more
};
inline constexpr size_t kPageStates = 9;

enum class PageEvent : uint8_t {
  kMap,           // physical memory is found for it
  kMapped,        // the mapping is done, and tensors live there
  kMappedEmpty,   // the mapping is done, and no tensor lives there
  kCopyIn,        // the copy in begins
  kArrived,       // the copy in has ended well
  kArrivedEmpty,  // the copy in has ended, and no tensor lives there any more
  kNotArrived,    // the mapping or the copy in has failed, or is not wanted any more
  kTryAgain,      // the same, but a stream that was granted early may touch the memory
  kChange,        // the device's bytes are newer: a put after writes, or a new tensor
  kEmpty,         // the last tensor has died
  kCopyOut,       // the copy out begins
  kCopied,        // the copy out has ended well
  kNotCopied,     // the copy out has failed
  kDropCopy,      // the memory of the copy is needed for another page
  kRelease,       // the physical memory is released
  kCopyGiven,  // the first tensor's bytes are in a copy: it has left another unit, or begins there
};
inline constexpr size_t kPageEvents = 16;

struct PageStep {
  enum class Memory : uint8_t { kSame, kTake, kRelease };
  enum class Copy : uint8_t { kSame, kReserve, kFree };
  enum class Words : uint8_t { kSame, kRevoked, kPublish };

  PageState next = PageState::kAway;
  Memory memory = Memory::kSame;  // physical memory of the device
  Copy copy = Copy::kSame;        // memory of the other copy
  // kRevoked: the lease words of all tensors there are "away" before. kPublish: those of tensors
  // whose pages are all resident may become "idle" after.
  Words words = Words::kSame;

  bool operator==(const PageStep&) const = default;
};

struct PageLifeRow {
  PageState state;
  PageEvent event;
  PageStep step;
};

inline constexpr PageLifeRow kPageLife[] = {
    {PageState::kAway,
     PageEvent::kMap,
     {.next = PageState::kMapping, .memory = PageStep::Memory::kTake}},
    {PageState::kAway,
     PageEvent::kEmpty,
     {.next = PageState::kAway, .copy = PageStep::Copy::kFree}},
    {PageState::kAway,
     PageEvent::kCopyGiven,
     {.next = PageState::kAway, .copy = PageStep::Copy::kReserve}},

    {PageState::kMapping, PageEvent::kMapped, {.next = PageState::kQueued}},
    {PageState::kMapping,
     PageEvent::kNotArrived,
     {.next = PageState::kAway, .memory = PageStep::Memory::kRelease}},
    {PageState::kMapping,
     PageEvent::kMappedEmpty,
     {.next = PageState::kClean, .words = PageStep::Words::kPublish}},
    {PageState::kMapping,
     PageEvent::kEmpty,
     {.next = PageState::kMapping, .copy = PageStep::Copy::kFree}},

    {PageState::kQueued, PageEvent::kCopyIn, {.next = PageState::kArriving}},
    {PageState::kQueued,
     PageEvent::kNotArrived,
     {.next = PageState::kAway, .memory = PageStep::Memory::kRelease}},
    {PageState::kQueued,
     PageEvent::kEmpty,
     {.next = PageState::kClean,
      .copy = PageStep::Copy::kFree,
      .words = PageStep::Words::kPublish}},

    {PageState::kArriving,
     PageEvent::kArrived,
     {.next = PageState::kClean, .words = PageStep::Words::kPublish}},
    {PageState::kArriving,
     PageEvent::kArrivedEmpty,
     {.next = PageState::kClean,
      .copy = PageStep::Copy::kFree,
      .words = PageStep::Words::kPublish}},
    {PageState::kArriving,
     PageEvent::kNotArrived,
     {.next = PageState::kAway, .memory = PageStep::Memory::kRelease}},
    {PageState::kArriving, PageEvent::kTryAgain, {.next = PageState::kQueued}},
    // The copy in reads the other copy until its end.
    {PageState::kArriving, PageEvent::kEmpty, {.next = PageState::kArriving}},

    {PageState::kClean,
     PageEvent::kChange,
     {.next = PageState::kDirty, .copy = PageStep::Copy::kFree}},
    {PageState::kClean,
     PageEvent::kEmpty,
     {.next = PageState::kClean, .copy = PageStep::Copy::kFree}},
    {PageState::kClean,
     PageEvent::kDropCopy,
     {.next = PageState::kDirty, .copy = PageStep::Copy::kFree}},
    {PageState::kClean,
     PageEvent::kRelease,
     {.next = PageState::kAway,
      .memory = PageStep::Memory::kRelease,
      .words = PageStep::Words::kRevoked}},

    {PageState::kDirty, PageEvent::kChange, {.next = PageState::kDirty}},
    {PageState::kDirty, PageEvent::kEmpty, {.next = PageState::kClean}},
    {PageState::kDirty,
     PageEvent::kCopyOut,
     {.next = PageState::kLeaving, .copy = PageStep::Copy::kReserve}},

    {PageState::kLeaving, PageEvent::kChange, {.next = PageState::kLeavingChanged}},
    {PageState::kLeaving, PageEvent::kEmpty, {.next = PageState::kLeavingEmpty}},
    {PageState::kLeaving, PageEvent::kCopied, {.next = PageState::kClean}},
    {PageState::kLeaving,
     PageEvent::kNotCopied,
     {.next = PageState::kDirty, .copy = PageStep::Copy::kFree}},

    {PageState::kLeavingChanged, PageEvent::kChange, {.next = PageState::kLeavingChanged}},
    {PageState::kLeavingChanged, PageEvent::kEmpty, {.next = PageState::kLeavingEmpty}},
    {PageState::kLeavingChanged,
     PageEvent::kCopied,
     {.next = PageState::kDirty, .copy = PageStep::Copy::kFree}},
    {PageState::kLeavingChanged,
     PageEvent::kNotCopied,
     {.next = PageState::kDirty, .copy = PageStep::Copy::kFree}},

    {PageState::kLeavingEmpty, PageEvent::kChange, {.next = PageState::kLeavingChanged}},
    {PageState::kLeavingEmpty,
     PageEvent::kCopied,
     {.next = PageState::kClean, .copy = PageStep::Copy::kFree}},
    {PageState::kLeavingEmpty,
     PageEvent::kNotCopied,
     {.next = PageState::kClean, .copy = PageStep::Copy::kFree}},
};

// nullopt: the state does not allow the event.
constexpr std::optional<PageStep> StepOf(PageState state, PageEvent event) {
  for (const PageLifeRow& row : kPageLife) {
    if (row.state == state && row.event == event) return row.step;
  }
  return std::nullopt;
}

constexpr bool IsResident(PageState state) {
  return state >= PageState::kClean;
}
constexpr bool IsBeingCopiedOut(PageState state) {
  return state >= PageState::kLeaving;
}

}  // namespace ravenstore::core
