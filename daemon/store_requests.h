// Creates and fetches of the store's clients that are not answered yet.
//
// A create has its place when it is asked for, so that places follow from the order of the calls.
// It is answered when its pages are mapped; a fetch when its bytes are there, too. Requests that
// may not hold their pages yet wait in their order. A fetch on another device than the tensor's
// moves it there.
//
// Owns: the requests, and the moves between devices. The tables, rooms and views are its owner's
// and outlive it. Units: bytes. Threads: the planner loop. Errors: answers. Cost: O(log requests).
#pragma once

#include <cstdint>
#include <functional>

#include "core/events.h"
#include "core/schedule/page_scheduler.h"
#include "core/types.h"
#include "daemon/device_moves.h"
#include "daemon/store_rooms.h"
#include "daemon/store_tables.h"
#include "daemon/store_views.h"

namespace ravenstore::daemon {

class StoreRequests final : private DeviceMoves::Owner {
 public:
  struct Hooks {
    // The client's part of the device, which is made if it is not there.
    std::function<StoreTables::Part&(StoreTables::Client&, core::DeviceId)> part;
    std::function<void(core::Action)> answer;
  };
  StoreRequests(const device::Devices& devices, const TransferLane::Options& transfers,
                StoreTables* tables, StoreRooms* rooms, const StoreViews* views, Hooks hooks);

  void On(const core::CreateRequested& event);
  void On(const core::FetchRequested& event);
  void On(const core::TimePassed& event);

  // A call that waited for room holds its pages now.
  void Held(StoreTables::Part& part, core::SlotId slot);
  // The device's pages were divided, with these requests: those that fail fast and wait, fail.
  void RefuseFast(core::DeviceId device);
  // Its pages are there.
  void Answer(StoreTables::Part& part, core::SlotId slot);
  // Its bytes did not come.
  void Refused(StoreTables::Part& part, core::SlotId slot);
  // A fetch waits for the tensor, and may go on before its bytes are there.
  bool CanGrantEarly(const StoreTables::Part& part, core::SlotId slot) const;
  // The fetch goes on: the client's stream waits for the bytes. REQUIRES: CanGrantEarly().
  void NoteGrantedEarly(StoreTables::Part& part, core::SlotId slot);
  // The row is free.
  void EndRow(StoreTables::Part& part, core::SlotId slot);
  // The client's virtual time: without its waits for the store.
  core::Duration ClockOf(core::ClientId client) const override;
  // Why a call fails there. Of kWaits: if it waits no longer.
  core::Error ErrorOf(ClientPages* pages, core::TensorNumber tensor,
                      core::CallResult result) const override;
  // Its requests are none any more.
  void Forget(StoreTables::Client* client);
  DeviceMoves& moves() { return moves_; }
  const DeviceMoves& moves() const { return moves_; }
  // When the first request has waited too long; kNever: there is none.
  core::Tick NextWake() const;

 private:
  using Part = StoreTables::Part;
  using Client = StoreTables::Client;
  using Row = StoreTables::Row;
  using Request = StoreTables::Request;

  // ---- DeviceMoves::Owner.
  // A create has a place if its client may have the copies; it waits for those of others.
  core::CallResult Create(ClientPages* pages, core::TensorNumber tensor,
                          core::Bytes size) override {
    return Create(pages, tensor, size, core::kNoStream);
  }
  core::CallResult Get(ClientPages* pages, core::TensorNumber tensor) override;
  void Progressed(ClientPages* pages) override { tables_.Progressed(tables_.PartOf(pages)); }
  void Moved(core::ClientId client, core::TensorNumber tensor, ClientPages* to,
             bool recompute) override;
  void NotMoved(core::ClientId client, core::TensorNumber tensor, core::Error error) override;

  core::CallResult Create(ClientPages* pages, core::TensorNumber tensor, core::Bytes size,
                          core::StreamId stream);
  void Add(Client& client, core::SlotId slot, const Request& request);
  // The request is not one any more.
  Request Take(Part& part, core::SlotId slot);
  // Because it is answered.
  Request TakeAnswered(Part& part, core::SlotId slot);
  // What the scheduler says of the request.
  void Handle(Part& part, core::SlotId slot, core::CallResult result, bool fail_fast);
  void AnswerFetch(Part& part, core::SlotId slot, bool recompute);
  // A fetch on another device than the tensor's.
  void BeginMove(Client& client, core::SlotId slot, core::DeviceId device);
  // The request has waited too long.
  void Expire(Client& client, core::SlotId slot);
  void Fail(Part& part, core::SlotId slot, core::Error error);

  StoreTables& tables_;
  StoreRooms& rooms_;
  const StoreViews& views_;
  const Hooks hooks_;
  DeviceMoves moves_;
  std::vector<std::pair<core::ClientId, core::SlotId>> fails_fast_;  // those that may
};

}  // namespace ravenstore::daemon
