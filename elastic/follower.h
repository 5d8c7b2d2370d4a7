// Which earlier call of a program corresponds to its last one.
//
// Programs repeat steps of thousands of calls, of which parts repeat within: the same kernels for
// each layer, with other weights. A call has two keys: what it is and how large what it touches,
// and that together with where. The last four calls by the second key are looked up among all
// earlier ones; where addresses change from step to step, the last 64 by the first. What is found
// is followed call by call, as long as it holds: a few calls that are left out or are other ones
// are passed over, one that was inserted is waited out, and what leads elsewhere leads there if it
// has been seen before. The more often it is wrong, the longer it takes until the next try, so that
// a program that does not repeat itself costs little.
//
// Sources: the hash chains of Lempel and Ziv's coders (1977), of which only the last link is kept;
// DeepUM (Jung et al., ASPLOS 2023) for the identity of a call.
//
// Owns: 16 bytes a call that is remembered, and two tables of at most kMostPlaces places.
// Threads: one at a time. Cost: O(1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace ravenstore::elastic {

class Follower {
 public:
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;
  // Remembers at least `most_calls`.
  explicit Follower(size_t most_calls);

  // `kind`: the call without, `place`: with its addresses.
  void Add(uint64_t kind, uint64_t place);
  // Whether what followed from the correspondence of the last call was so.
  void Confirm(bool right);

  // The number of calls so far.
  uint64_t calls() const { return calls_; }
  // The earlier call that the last one corresponds to; none: not known. After an inserted call it
  // is that of the call before.
  std::optional<uint64_t> twin() const { return twin_; }
  // The last call is what came after the twin's predecessor: the twin is its own.
  bool Matches() const { return matches_; }
  bool IsTrusted() const { return twin_ && trust_ >= kTrusted; }

 private:
  static constexpr size_t kMostPlaces = size_t{1} << 18;
  static constexpr uint64_t kPlaces = 4;  // calls that must be the same, addresses included
  static constexpr uint64_t kKinds = 64;  // or without
  static constexpr uint64_t kPassedOver = 8;
  static constexpr int kTrustMost = 64;
  static constexpr int kTrusted = 8;
  static constexpr int kFirstTrust = 16;
  static constexpr int kWrongCosts = 3;
  static constexpr uint64_t kLongestWait = 1024;
  static constexpr uint64_t kGoodRun = 256;

  // The last call that the same `length` calls ended with, by one of the keys.
  struct Chain {
    const std::vector<uint64_t>& keys;
    uint64_t length;
    uint64_t outgoing = 1;  // the weight of the call that leaves the chain
    uint64_t hash = 0;
    std::vector<uint32_t> last = {};  // by hash; a call's number plus one
  };
  std::optional<uint64_t> Extend(Chain* chain, uint64_t call);
  bool Same(const Chain& chain, uint64_t a, uint64_t b) const;
  bool PassOver(uint64_t call);
  void Lose();
  uint64_t Kind(uint64_t call) const { return kinds_[call & mask_]; }
  uint64_t Place(uint64_t call) const { return places_[call & mask_]; }

  uint64_t mask_;
  std::vector<uint64_t> kinds_;
  std::vector<uint64_t> places_;
  Chain by_place_;
  Chain by_kind_;
  uint64_t calls_ = 0;
  std::optional<uint64_t> twin_;
  bool matches_ = false;
  int trust_ = 0;
  uint64_t run_ = 0;         // calls in a row that were right
  uint64_t wait_ = 1;        // after the next failure
  uint64_t not_before_ = 0;  // this call is another place looked for
};

}  // namespace ravenstore::elastic
