// Whether kernels read addresses out of memory: tables of pointers that other kernels wrote.
//
// A library's batched kernel gets a table of the matrices' addresses that another kernel wrote, so
// no parameter points to the matrices. After the first launch of each kind of kernel the beginnings
// of its arguments' memory are copied to the host, in stream order, and searched for addresses of
// movable memory. A table is found if the kernel reads or writes it. A launch may touch any memory
// until its kind has been searched, while any search is under way, and always after a table was
// found. So a job with such tables is known before a launch can fail.
//
// A kind is a kernel and the set of its parameter words that are addresses: one kernel may take
// matrices or tables of them. At most kPatterns kinds of a kernel are distinguished, because the
// padding between parameters is not always initialised.
//
// Not found: a table more than kBytes after each argument address, a table that is reached through
// another table, and a table whose writer and reader were both searched, as the same kinds, before
// they had one.
//
// Owns: the host memory and the events. Threads: one at a time (the engine's lock), but Enqueue.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "elastic/driver.h"

namespace ravenstore::elastic {

class TableFinder {
 public:
  static constexpr size_t kBytes = 512;
  static constexpr size_t kAddresses = 64;  // of one launch
  static constexpr size_t kPatterns = 8;

  // A launch's kernel. `code` identifies it while it is loaded; 0: no code, so that it follows no
  // address. `pattern`: which of its words are addresses.
  struct Kind {
    uint64_t code = 0;
    uint64_t pattern = 0;
  };
  // Memory that a launch names, from an address on.
  struct Named {
    CUdeviceptr address;
    size_t bytes;  // 0: to the end of the allocation
  };
  // One search, from Begin to the Poll that ends it.
  struct Search {
    Kind kind;
    std::vector<Named> named;
    std::byte* copies = nullptr;  // kBytes for each
    CUevent copied = nullptr;
    bool is_enqueued = false;
  };

  explicit TableFinder(const Driver* driver) : driver_(driver) {}
  ~TableFinder();
  TableFinder(const TableFinder&) = delete;
  TableFinder& operator=(const TableFinder&) = delete;

  // The launch may touch memory that it does not name.
  bool MayFollow(const Kind& kind) const {
    return kind.code != 0 && (found_ || !searches_.empty() || !IsKnown(kind));
  }
  // For a launch that is about to be made; null: none is needed, or there is no room for one now.
  // The caller fills in `named`. Ends with End. REQUIRES: a current context.
  Search* Begin(const Kind& kind);
  // Behind the launch, on its stream; false: the driver could not. Threads: the one that launched,
  // without the lock.
  bool Enqueue(Search* search, CUstream stream) const;
  // A search that was not enqueued is left to a later launch.
  void End(Search* search, bool enqueued);
  // Ends the searches whose copies have arrived. True: a table was found, for the first time.
  // `may_move`: whether the word is an address of movable memory.
  bool Poll(const std::function<bool(uint64_t)>& may_move);
  bool AnyUnderWay() const { return !searches_.empty(); }

  // A table was found, or is to be expected.
  bool found() const { return found_; }
  void Expect() { found_ = true; }

 private:
  static constexpr size_t kSearches = 16;
  static constexpr size_t kSearchBytes = kAddresses * kBytes;

  bool IsKnown(const Kind& kind) const;
  bool MakeRoom();
  static bool HasTable(const Search& search, const std::function<bool(uint64_t)>& may_move);

  const Driver* const driver_;
  bool found_ = false;
  bool refused_ = false;                                       // there is no memory for searches
  std::unordered_map<uint64_t, std::vector<uint64_t>> known_;  // patterns by code
  std::byte* memory_ = nullptr;
  std::vector<Search> all_;
  std::vector<Search*> unused_;
  std::deque<Search*> searches_;  // in the order of Begin
};

}  // namespace ravenstore::elastic
