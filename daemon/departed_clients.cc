#include "daemon/departed_clients.h"

#include <memory>
#include <utility>

namespace ravenstore::daemon {

void DepartedClients::Release() {
  for (auto each = on_released_.begin(); each != on_released_.end();) {
    const core::ClientId client = each->first;
    if (!state_.store->Forget(client)) {
      ++each;
      continue;
    }
    Session& session = *sessions_.Find(client);
    charges_.Refund(session, session.charged);
    // Its tables may be large, too.
    const core::TenantId tenant = session.attachment().tenant;
    workers_.Run(tenant, [this, removed = sessions_.Remove(client),
                          done = std::move(each->second)]() mutable {
      removed.reset();
      if (done) done();
      mailbox_.Post([this] { timer_.Freed(state_.now); });
    });
    each = on_released_.erase(each);
  }
}

void DepartedClients::ReturnMemory() {
  if (state_.now < timer_.due()) return;
  timer_.Begin(state_.now);
  TakeMemory();
}

void DepartedClients::TakeMemory() {
  auto chunks = heap_trim_.Take();
  if (chunks.empty()) return PutBackMemory();
  workers_.Run(kNoUser, [this, chunks = std::move(chunks)] {
    HeapTrim::Release(chunks);
    mailbox_.Post([this] { TakeMemory(); });
  });
}

void DepartedClients::PutBackMemory() {
  if (heap_trim_.PutBack()) return timer_.End();
  // By way of a worker: posted here it would be done in the same pass.
  workers_.Run(kNoUser, [this] { mailbox_.Post([this] { PutBackMemory(); }); });
}

}  // namespace ravenstore::daemon
