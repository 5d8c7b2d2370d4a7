// The port of PageScheduler. Each client's memory has a port of its own
// (core/execution/page_backend.h).
//
// Threads: the scheduler's calls it. It ends what it begins on the same thread.
#pragma once

#include <memory>

#include "core/schedule/plan_work.h"
#include "core/schedule/scheduled_client.h"
#include "core/types.h"

namespace ravenstore::core {

class PageMaker {
 public:
  virtual ~PageMaker() = default;
  // A physical page begins to be made for the client; it ends with PageScheduler::PageMade, never
  // from within this call.
  virtual void MakePage(ClientId client) = 0;
  // PlanWork::Make() is to be called, on any thread. Returns the work if that is done. Else it
  // returns null, and ends with PageScheduler::PlanMade, never from within this call.
  virtual std::shared_ptr<PlanWork> MakePlan(DeviceId /*device*/, std::shared_ptr<PlanWork> work) {
    work->Make();
    return work;
  }
  // The client is gone, and its memory is released. It may take long to destroy.
  virtual void Discard(std::unique_ptr<ScheduledClient> /*client*/) {}
};

}  // namespace ravenstore::core
