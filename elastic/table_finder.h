// Whether kernels read addresses out of memory: tables of pointers that other kernels wrote.
//
// A batched kernel of a library gets a table of the matrices' addresses, which another kernel made:
// no parameter names the matrices. So behind the first launch of each kind of kernel the beginnings
// of all memory that it names are copied to the host, in the order of its stream, and searched for
// addresses of movable memory. A table is seen whether the kernel read or wrote it. Until a kind
// has been searched, while any search is under way, and for good once a table was found, a launch
// may touch any memory. So a job with such tables is found out before a launch can go wrong.
//
// A kind is a kernel together with which of its parameters' words are addresses: one kernel may
// take matrices or tables of them. Of one kernel kPatterns kinds are told apart: what lies between
// parameters is not always initialised.
//
// Not seen: a table further than kBytes behind each address that a kernel gets, one that a kernel
// reaches through a table of other tables, and one whose maker and reader both were searched, as
// the same kinds, when they had none.
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

  // What a launch runs. `code` is the kernel while it is loaded; 0: no code, so that it follows
  // nothing. `pattern`: which of its words are addresses.
  struct Kind {
    uint64_t code = 0;
    uint64_t pattern = 0;
  };
  // Memory that a launch names, from an address on.
  struct Named {
    CUdeviceptr address;
    size_t bytes;  // 0: as many as there are
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
  // What was not enqueued is done by a later launch.
  void End(Search* search, bool enqueued);
  // Ends the searches whose copies are there. True: a table was found, for the first time.
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
