// Gets of tensors on another device than theirs: the tensor moves there.
//
// It becomes resident on its device, as for a get there. When its streams have reached its puts,
// its bytes are copied to the host pool. From then on it may leave its device. It is created on the
// other device, its bytes are copied there, and it is freed on the first one.
//
// A tensor whose bytes were discarded is created on the other device without them.
//
// A step that fails leaves the tensor on its device, idle or away. A copy that is under way at the
// deadline ends first.
//
// Owns: the copies in the host pool. Sides outlive their client's moves. Threads: the planner loop.
// Errors: Owner::NotMoved. Cost: O(log moves) a call.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "core/execution/page_executor.h"
#include "core/result.h"
#include "core/schedule/page_scheduler.h"
#include "core/types.h"
#include "daemon/client_pages.h"
#include "daemon/page_pool.h"

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
    // Why a call fails there. Of kWaits: if it waits no longer.
    virtual core::Error ErrorOf(ClientPages* pages, core::TensorNumber tensor,
                                core::CallResult result) const = 0;
    // The scheduler of that device may have something to do.
    virtual void Progressed(ClientPages* pages) = 0;
    // The room that the client has in the host pool is to be set (PageBooks::SetPool).
    virtual void UpdateRoom(ClientPages* pages) = 0;
    // The tensor is in use on the other device. `recompute`: without its bytes.
    virtual void Moved(core::ClientId client, core::TensorNumber tensor, ClientPages* to,
                       bool recompute) = 0;
    virtual void NotMoved(core::ClientId client, core::TensorNumber tensor, core::Error error) = 0;
  };

  // Both outlive it.
  DeviceMoves(PagePool* pool, Owner* owner) : pool_(pool), owner_(owner) {}

  // `is_reached`: the streams have come to all its puts. REQUIRES: the tensor has a row in `from`,
  // is not in use and does not move.
  void Begin(core::ClientId client, core::TensorNumber tensor, const Side& from, const Side& to,
             bool is_reached);
  bool Moves(core::ClientId client, core::TensorNumber tensor) const {
    return moves_.contains({client, tensor});
  }
  // The device where the moving tensor is created; nullopt: it is not yet.
  std::optional<core::DeviceId> WaitsOn(core::ClientId client, core::TensorNumber tensor) const;
  // Bytes in the host pool of the client's tensors that move from there. O(moves of the client).
  core::Bytes CopiesOf(core::ClientId client, const ClientPages* from) const;
  // The moving tensor may leave its device: its bytes are in the host pool.
  bool MayLeave(core::ClientId client, core::TensorNumber tensor) const;

  // ---- Reports of a tensor that moves.
  void Reached(core::ClientId client, core::TensorNumber tensor);
  // Its call on that device holds its pages, which are resident.
  void Granted(core::ClientId client, core::TensorNumber tensor, const ClientPages* on);
  // Its call on that device has failed.
  void Refused(core::ClientId client, core::TensorNumber tensor, core::Error error);
  // The get has waited too long. It fails now, or after the copy that is under way.
  void Expire(core::ClientId client, core::TensorNumber tensor);
  // The client is gone: its moves are none any more, without a report.
  void Forget(core::ClientId client);

 private:
  using Key = std::pair<core::ClientId, core::TensorNumber>;
  enum class Stage : uint8_t {
    kComes,      // its pages on its device come
    kIsThere,    // it is in use there until its puts are reached
    kCopiesOut,  // it is copied to the host pool
    kWaits,      // its pages on the other device come
    kCopiesIn,   // it is copied there
  };
  struct Move {
    Side from;
    Side to;
    core::Bytes size;
    Stage stage = Stage::kComes;
    bool is_reached = false;
    bool has_expired = false;
    bool is_discarded = false;
    PagePool::Piece piece{};  // in kWaits
  };

  void Handle(const Key& key, const Side& side, core::CallResult result);
  void StartOut(const Key& key, Move* move);
  void EndOut(const Key& key, const core::Result<PagePool::Piece>& piece);
  void Create(const Key& key, Move* move);
  void StartIn(const Key& key, Move* move);
  void EndIn(const Key& key, const PagePool::Piece& piece, const core::Status& outcome);
  // It is not in use on its device any more.
  void Unpin(const Key& key, const Move& move);
  void Free(const Key& key, const Side& side);
  void Fail(const Key& key, core::Error error);

  PagePool* const pool_;
  Owner* const owner_;
  std::map<Key, Move> moves_;
};

}  // namespace ravenstore::daemon
