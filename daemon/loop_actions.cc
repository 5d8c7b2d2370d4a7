#include "daemon/loop_actions.h"

#include <spdlog/spdlog.h>

#include <utility>
#include <variant>

namespace ravenstore::daemon {

void LoopActions::Execute() {
  // By index and taken out: carrying out an action may apply events that append to the plan.
  for (size_t i = 0; i < state_.plan.size(); ++i) {
    core::Action action = std::move(state_.plan[i]);
    std::visit([this](auto& one) { Do(one); }, action);
  }
  state_.plan.clear();
}

void LoopActions::Do(const core::GrowPool& action) {
  const bool pins = action.pool == core::kHostPool;
  // Once it is pinned, the part that no client needs can be unpinned.
  if (pins) state_.pinned->BeginUnpin();
  harvests_.NoteChunk(action.pool, /*begins=*/true);
  workers_.Run(pools_.WorkOf(action.pool), [this, memory = pools_.Of(action.pool), action, pins,
                                            name = state_.views().NameOf(action.pool)] {
    const core::Status status = memory->Make(action.offset, action.size);
    if (!status.ok()) {
      spdlog::warn("{}: {} more bytes not had: {}", name, action.size.count(),
                   core::Describe(status.error()));
    }
    mailbox_.Post([this, memory, action, pins, ok = status.ok()] {
      harvests_.NoteChunk(action.pool, /*begins=*/false);
      if (ok) {
        memory->slabs.Add(action.offset, action.size);
        Apply(core::PoolGrown{action.pool, action.offset, action.size});
      } else {
        Apply(core::PoolGrowFailed{action.pool});
      }
      if (pins) state_.pinned->EndUnpin();
    });
  });
}

void LoopActions::Do(const core::ShrinkPool& action) {
  const bool pins = action.pool == core::kHostPool;
  AwayMemory* const memory = pools_.Of(action.pool);
  memory->slabs.Remove(action.offset);
  if (pins) state_.pinned->BeginUnpin();
  harvests_.NoteChunk(action.pool, /*begins=*/true);
  workers_.Run(pools_.WorkOf(action.pool), [this, memory, action, pins,
                                            name = state_.views().NameOf(action.pool)] {
    const core::Status destroyed = memory->Destroy(action.offset);
    if (!destroyed.ok())
      spdlog::error("{}: memory not released: {}", name, core::Describe(destroyed.error()));
    mailbox_.Post([this, action, pins, ok = destroyed.ok()] {
      harvests_.NoteChunk(action.pool, /*begins=*/false);
      // What could not be released is not used again, nor is anything made in its
      // place.
      if (ok) {
        Apply(core::PoolShrunk{action.pool, action.offset, action.size});
      } else {
        harvests_.Lose(action.pool, action.size);
        Apply(core::PoolShrinkFailed{action.pool, action.size, action.offset});
      }
      if (pins) state_.pinned->EndUnpin();
    });
  });
}

void LoopActions::Do(const core::ReclaimPinned& action) {
  state_.pinned->ReleaseIdle(action.tenant);
}

}  // namespace ravenstore::daemon
