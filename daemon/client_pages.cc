#include "daemon/client_pages.h"

#include <spdlog/spdlog.h>

#include <utility>

namespace ravenstore::daemon {

using core::Bytes;
using core::Status;
using core::plan::PoolNumber;

namespace {

// Maps under way for calls that wait; half of that ahead of need. Fewer: the client's mapper is
// idle while its last answer is read. More: the program's own calls of the driver wait for more
// maps.
constexpr uint32_t kMapsMost = 4;

}  // namespace

ClientPages::ClientPages(const Options& options, std::shared_ptr<Attachment> attachment,
                         std::shared_ptr<device::Device> device, std::vector<PagePool*> pools,
                         PoolNumber host, MapOrders* maps, WorkerPool* workers, Mailbox* mailbox,
                         Owner* owner)
    : device_(std::move(device)),
      owner_(owner),
      memory_({.device = options.device, .bytes = options.arena, .page = options.page}, attachment,
              device_, maps, workers, mailbox, owner, this),
      copies_({.turn = {attachment->tenant, attachment->id},
               .pools = std::move(pools),
               .host = host,
               .checks = options.checks},
              &memory_, mailbox, owner, this) {}

void ClientPages::SetExecutor(const core::PageExecutor* executor) {
  executor_ = executor;
  memory_.SetExecutor(executor);
  copies_.SetExecutor(executor);
}

Bytes ClientPages::CopyOffset(core::plan::Unit unit) const {
  const PageCopies::Copy* const copy = copies_.Find(unit);
  return copy != nullptr && !copy->piece.empty() ? copy->piece.front().offset : Bytes{};
}

uint32_t ClientPages::MapsMost() const {
  return kMapsMost;
}

// Its words are published when this returns: the bytes are there.
void ClientPages::MoveSlot(const core::PageMemory::SlotMove& move, Bytes bytes) {
  if (memory_.is_retired() || bytes == Bytes{}) return;
  const auto copy = [&]() -> Status {
    if (mover_ == nullptr) {
      RAVEN_ASSIGN_OR_RETURN(mover_, device_->OpenChannel(device::Direction::kHostToDevice));
    }
    RAVEN_RETURN_IF_ERROR(mover_->Copy(memory_.At(move.to), memory_.At(move.from), bytes));
    return mover_->Signal(&moved_, ++moves_);
  };
  Status copied = copy();
  while (copied.ok() && moved_.load(std::memory_order_acquire) < moves_) {
    mover_->Poll();
    if (moved_.load(std::memory_order_acquire) < moves_) copied = mover_->Health();
  }
  // The device is lost, and so is all that is on it.
  if (!copied.ok()) spdlog::error("a tensor was not moved: {}", core::Describe(copied.error()));
}

}  // namespace ravenstore::daemon
