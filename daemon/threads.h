// Threads that end the daemon loudly when they end by themselves, and the pool that does the slow
// calls.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/types.h"

namespace ravenstore::daemon {

// Runs `body` on a named thread. If it throws, or returns before `expected_to_end` is set, the
// process logs why and aborts: a daemon that lost one of its threads must not go on half alive.
std::thread Supervise(std::string name, const std::atomic<bool>& expected_to_end,
                      std::function<void()> body);

// Whose work it is that is done for no user.
inline constexpr core::TenantId kNoUser{~uint32_t{0}};
// The same, where other nodes are waited for: pinning memory waits for none of it.
inline constexpr core::TenantId kOtherNodes{~uint32_t{1}};

// Slow work (slab creation, export, unmapping, pinning) off the planner loop, shared by users.
//
// Owners are served in turn, one job each. The jobs of one owner begin in the order given and
// overlap; those of RunFirst() begin before its others. Of several workers, one owner uses at most
// all but one, even if no other owner has work: the next owner does not wait for those jobs.
//
// Threads: Run from any thread; work runs on one of `threads` workers.
class WorkerPool {
 public:
  WorkerPool(std::string name, size_t threads);
  // Finishes what was given.
  ~WorkerPool();
  void Run(core::TenantId owner, std::function<void()> work) {
    Add(owner, &Owner::work, std::move(work));
  }
  void RunFirst(core::TenantId owner, std::function<void()> work) {
    Add(owner, &Owner::first, std::move(work));
  }

 private:
  using Queue = std::deque<std::function<void()>>;
  struct Owner {
    Queue first;  // before `work`
    Queue work;
    size_t running = 0;

    bool waits() const { return !first.empty() || !work.empty(); }
  };
  using Owners = std::map<core::TenantId, Owner>;

  void Add(core::TenantId owner, Queue Owner::*queue, std::function<void()> work);
  void Work();
  // The owner whose turn it is; the end while no owner has work that may begin. REQUIRES: mutex_ is
  // held.
  Owners::iterator Next();
  bool MayBegin(const Owner& owner) const { return owner.waits() && owner.running < running_most_; }

  const size_t running_most_;  // of one owner's jobs
  std::atomic<bool> ending_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  Owners owners_;          // with work or running; guarded by mutex_
  core::TenantId last_{};  // who was served last; guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace ravenstore::daemon
