// Gets of tensors on another device than theirs: the tensor moves there.
//
// It is created on the other device. When its streams have reached its puts, its bytes are copied
// there: resident units from its device, the others from their pools. Then it is freed on the first
// device. Until the copy begins it may leave that device. If a unit cannot be copied so, the tensor
// becomes resident on its device first, as for a get there.
//
// A tensor whose bytes were discarded is created on the other device without them.
//
// A step that fails leaves the tensor on its device, idle or away. A copy that is under way at the
// deadline ends first.
//
// Owns: the links between the devices. Sides outlive their client's moves. Threads: the planner
// loop. Errors: Owner::NotMoved. Cost: O(log moves) a call.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "core/execution/page_executor.h"
#include "core/result.h"
#include "core/schedule/page_scheduler.h"
#include "core/types.h"
#include "daemon/client_pages.h"
#include "daemon/transfers.h"
#include "device/device.h"

namespace ravenstore::daemon {

class DeviceMoves {
 public:
  // A client on one device.
  struct Side {
    core::PageScheduler* scheduler = nullptr;
    ClientPages* pages = nullptr;
  };
  class Owner {
   public:
    virtual ~Owner() = default;
    // The client's virtual time.
    virtual core::Duration ClockOf(core::ClientId client) const = 0;
    // PageScheduler::Create on that device, with all copies that the client may have.
    virtual core::CallResult Create(ClientPages* pages, core::TensorNumber tensor,
                                    core::Bytes size) = 0;
    // PageScheduler::Get; kLost if its bytes are.
    virtual core::CallResult Get(ClientPages* pages, core::TensorNumber tensor) = 0;
    // Why a call fails there. Of kWaits: if it waits no longer.
    virtual core::Error ErrorOf(ClientPages* pages, core::TensorNumber tensor,
                                core::CallResult result) const = 0;
    // The scheduler of that device may have something to do.
    virtual void Progressed(ClientPages* pages) = 0;
    // The tensor is in use on the other device. `recompute`: without its bytes.
    virtual void Moved(core::ClientId client, core::TensorNumber tensor, ClientPages* to,
                       bool recompute) = 0;
    virtual void NotMoved(core::ClientId client, core::TensorNumber tensor, core::Error error) = 0;
  };

  // The owner outlives it.
  DeviceMoves(device::Devices devices, const TransferLane::Options& options, Owner* owner);

  // May take long. Errors: those of the devices.
  core::Status Open();

  // `is_reached`: the streams have come to all its puts. REQUIRES: the tensor has a row in `from`,
  // is not in use and does not move.
  void Begin(core::ClientId client, core::TensorNumber tensor, const Side& from, const Side& to,
             bool is_reached);
  bool Moves(core::ClientId client, core::TensorNumber tensor) const {
    return moves_.contains({client, tensor});
  }
  // The device on which the moving tensor waits to be created; nullopt: it is created.
  std::optional<core::DeviceId> WaitsOn(core::ClientId client, core::TensorNumber tensor) const;

  // ---- Reports of a tensor that moves.
  void Reached(core::ClientId client, core::TensorNumber tensor);
  // Its call on that device holds its pages, which are resident.
  void Granted(core::ClientId client, core::TensorNumber tensor, const ClientPages* on);
  // Its call on that device has failed.
  void Refused(core::ClientId client, core::TensorNumber tensor, core::Error error);
  // The get has waited too long. It fails now, unless its bytes are on their way to the device.
  void Expire(core::ClientId client, core::TensorNumber tensor);
  // The client is gone: its moves are none any more, without a report.
  void Forget(core::ClientId client);

  // ---- The links, as PagePool's.
  bool Poll(core::Tick now);
  bool IsCopying() const;
  core::Tick NextPump(core::Tick poll) const;
  void EndCopies() { links_.clear(); }

 private:
  using Key = std::pair<core::ClientId, core::TensorNumber>;
  enum class Stage : uint8_t {
    kCreates,    // its pages on the other device come
    kIsReached,  // its streams are to reach its puts
    kFetches,    // its pages on its device come
    kCopies,     // it is copied
  };
  struct Move {
    Side from;
    Side to;
    Stage stage = Stage::kCreates;
    bool is_reached = false;
    bool is_in_use = false;    // it is in use on its device
    bool has_expired = false;  // while its bytes were on their way
  };

  void Handle(const Key& key, const Side& side, core::CallResult result);
  // Its pages on the other device are there.
  void Created(const Key& key, Move* move);
  void Fetch(const Key& key, Move* move);
  // Its pages on its device are.
  void Fetched(const Key& key, Move* move);
  void Copy(const Key& key, Move* move);
  void EndCopy(const Key& key, Move* move, const core::Status& outcome);
  void End(const Key& key, bool recompute);
  // It is not in use on its device any more.
  void Unpin(const Key& key, const Move& move);
  void Free(const Key& key, const Side& side);
  void Fail(const Key& key, core::Error error);

  const device::Devices devices_;
  const TransferLane::Options options_;
  Owner* const owner_;
  std::map<Key, Move> moves_;
  std::map<core::DeviceId, std::unique_ptr<TransferLane>> links_;  // from it to the others
};

}  // namespace ravenstore::daemon
