// How much of a device's kernels' time and of its link each legacy job uses, where this can be
// attributed to one job. Kernel time counts while the job is the only one that holds something
// there. Link use is what its elastic engine moved. The largest of each is kept.
//
// Pure. Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/link_model.h"
#include "core/types.h"
#include "daemon/admission.h"

namespace ravenstore::daemon {

class JobUses {
 public:
  // Of each device.
  explicit JobUses(std::vector<core::LinkModel> links) : links_(std::move(links)) {}

  // What a job holds of a device, and its engine moved there so far.
  struct Holding {
    uint64_t job = 0;
    size_t device = 0;
    core::Bytes moved_in{};
    core::Bytes moved_out{};
  };
  // All that there are, and the part of the time in which each device computes. What was moved is
  // known from the second look on. REQUIRES: `now` is after that of the last look.
  void Look(core::Tick now, const std::vector<std::optional<double>>& compute,
            const std::vector<Holding>& holdings);
  // The largest that was seen of the job.
  ResourceUse Of(uint64_t job) const;
  // By all jobs, between the last two looks; not set: not known yet.
  std::optional<double> LinkOf(size_t device) const;
  void Forget(uint64_t job);

 private:
  struct Moved {
    core::Bytes in{};
    core::Bytes out{};
  };
  using Place = std::pair<uint64_t, size_t>;  // a job on a device

  double PartOf(size_t device, const Moved& moved, core::Duration time) const;

  const std::vector<core::LinkModel> links_;
  core::Tick looked_{};
  std::map<Place, Moved> moved_;
  std::map<uint64_t, ResourceUse> largest_;
  std::map<size_t, double> link_;
};

}  // namespace ravenstore::daemon
