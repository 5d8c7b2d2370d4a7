// Decides from a client's calls when to recompute its plan, and the client's position in it.
//
// It follows the calls (core/plan/follower.h). A plan is made at a jump, after half a period, and
// when the caller asks for one (the budget changed). It is also made when a tensor is
// elsewhere than the plan expected, but only after 1/256 of the plan's calls. Between plans each
// call that corresponds moves the position.
//
// Owns: the follower and the last forecast. Units: positions. Threads: one at a time.
// Cost: as Follower; a forecast as Forecaster.
#pragma once

#include <optional>
#include <span>

#include "core/plan/call_forecast.h"
#include "core/plan/calls.h"
#include "core/plan/follower.h"
#include "core/plan/places.h"

namespace ravenstore::core::plan {

class SequencePlanner {
 public:
  struct Guidance {
    bool discard = false;   // nothing is known any more
    bool jumped = false;    // a forecast from before is of calls that do not come
    bool remake = false;    // a plan is to be made, of Remake()
    Position position = 0;  // in the plan that there is, if it is not remade
  };
  struct Stats {
    uint64_t plans = 0;
    uint64_t creates = 0;    // that a plan expected
    uint64_t elsewhere = 0;  // of those, placed elsewhere than expected
  };

  // The client makes the call. Of a create `tensors` does not have the tensor's place yet.
  // `hinted`: the client has announced the next use of each idle tensor. A plan of calls that
  // create nothing then knows no more than the hints, and may be wrong: there is none. `fits`: so
  // does all that lives: no unit has to leave, and there is no plan either.
  Guidance Observe(const CallHistory::Call& call, Bytes size, bool hinted = false,
                   bool fits = false);
  // The call is done.
  void Done(const CallHistory::Call& call);
  void Step() { follower_.Step(); }

  // Forecasts the calls after the last one. If that one is matched, it is the first position.
  // `least`: as Forecaster::Make.
  const CallForecast& Remake(const Places& places, const PlacedTensors& tensors,
                             Duration least = {});
  // The next call remakes the plan.
  void RequestPlan() { remake_ = true; }

  // Where the forecast has the tensor that is created now; nullopt: it expected another call.
  std::optional<Place> ExpectedPlace() const;
  // It was created there.
  void Placed(const Place& place);
  // A tensor has another place from now on.
  void Moved() { elsewhere_ |= has_plan_; }

  bool has_plan() const { return has_plan_; }
  Position position() const { return position_; }
  const Follower& follower() const { return follower_; }
  const Stats& stats() const { return stats_; }

 private:
  bool IsOutdated() const;

  Follower follower_;
  CallForecast forecast_;
  bool has_plan_ = false;
  bool remake_ = false;
  bool elsewhere_ = false;  // a tensor is in another place than the plan has it
  Position position_ = 0;
  CallNumber period_ = 0;  // when the plan was made
  Stats stats_;
};

}  // namespace ravenstore::core::plan
