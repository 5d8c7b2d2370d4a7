// The expected calls, from the place in its past where the client is now.
//
// The calls that followed that place are expected again. After the last call the pass begins again.
// A role is replaced by the tensor that has it now. A tensor that will be created is placed in a
// copy of the client's places. A call is expected to touch nothing if its tensor lives longer than
// in the pass before, or died earlier. A create of a role whose tensor still lives frees that
// tensor first.
//
// Owns: plain data. Units: as core/plan/calls.h. Threads: one at a time; the inputs are only read.
// Cost: O(calls log tensors). Memory: about 100 bytes for each call of the forecast.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/chunked.h"
#include "core/plan/calls.h"
#include "core/plan/follower.h"
#include "core/plan/places.h"

namespace ravenstore::core::plan {

// A tensor of the client as it is now.
struct PlacedTensor {
  Place place;
  Bytes size;
  bool lives = false;
  bool in_use = false;
  bool unneeded = false;  // the client said that its bytes are not used any more
};

// By their indexes.
using PlacedTensors = Chunked<PlacedTensor, 256>;

struct CallForecast {
  std::vector<PlannedCall> calls;
  std::vector<std::optional<Place>> places;  // by position; none: the call touches nothing
  CallNumber base = 0;                       // the call of the history that comes again first
  std::vector<Position> positions;           // by call of the history, from `base` on
  Duration pass{0};                          // until the calls of a pass and a quarter are over

  // Where the call of the history comes again; nullopt: not in this forecast.
  std::optional<Position> PositionOf(CallNumber call) const;
};

class Forecaster {
 public:
  // All outlive it. REQUIRES: the follower has a counterpart.
  Forecaster(const Follower& follower, const Places& places, const PlacedTensors& tensors);

  // Covers a pass and a quarter and at least the time `least`, but at most kPassesMost passes.
  CallForecast Make(Duration least = {});

 private:
  // The reference is valid until the next call.
  PlacedTensor& TensorOf(RoleNumber role);
  void Add(const CallHistory::Call& past);
  void AddCreate(const CallHistory::Call& past, PlacedTensor* tensor);
  void Append(PlannedCall call, const PlacedTensor& tensor);

  const Follower& follower_;
  const CallHistory& history_;
  const PlacedTensors& tensors_;
  Places places_;
  std::vector<uint32_t> numbers_;       // by role: of its tensor in expected_, from 1; 0: none yet
  std::vector<PlacedTensor> expected_;  // of the roles in the order of their first calls
  Duration at_{0};
  CallForecast forecast_;
};

}  // namespace ravenstore::core::plan
