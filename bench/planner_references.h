// What each case of the planner's score is judged against: the least stall that anybody is known to
// reach who knows the whole future (sim/score.h). It is found once and kept in the tree, so that
// the measure does not move with the planner that it judges.
//
// A file of lines "trace machine percent from fingerprint compute_us stall_us"; '#' begins a
// comment. `from`: the first iteration that counts. The fingerprint is the trace's: of another
// trace by the same name nothing is known.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "core/result.h"
#include "core/types.h"

namespace ravenstore::bench {

class References {
 public:
  struct Key {
    std::string trace;
    std::string machine;
    int percent;  // of the footprint
    size_t from;

    auto operator<=>(const Key&) const = default;
  };
  struct Known {
    uint64_t fingerprint;
    core::Duration compute;
    core::Duration stall;
  };

  // Errors: kNotFound: no such file; kCorrupt, with the line.
  static core::Result<References> Read(const std::string& path);
  // Errors: kSystem.
  core::Status Write(const std::string& path) const;

  void Add(Key key, const Known& known) { known_[std::move(key)] = known; }
  // None for the case, or for another trace: then `why` says so.
  std::optional<Known> Find(const Key& key, uint64_t fingerprint, std::string* why) const;
  size_t size() const { return known_.size(); }

 private:
  std::map<Key, Known> known_;
};

}  // namespace ravenstore::bench
