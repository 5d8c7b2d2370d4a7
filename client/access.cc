#include "client/access.h"

#include <algorithm>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/lease.h"
#include "ipc/clock.h"

namespace ravenstore::client {
namespace {

using core::Error;
using core::ErrorCode;
using core::Result;
using core::Status;
using core::Tick;
using proto::LeaseState;

constexpr auto kTurnPoll = std::chrono::microseconds(50);
constexpr uint16_t kHoldersMax = std::numeric_limits<uint16_t>::max();

// How far a get came with one tensor.
enum class Hold {
  kNone,
  kTaken,     // in use, one holder is ours
  kAsk,       // moved to kFetching by us; the daemon is to be asked
  kAwait,     // the daemon was asked for it; its answer is ours
  kElsewhere  // another thread or the daemon moves it: wait and begin again
};

Error WrongState(const TensorRecord& tensor, const char* what) {
  return {ErrorCode::kWrongState, Describe(tensor) + ": " + what};
}
// Asks the daemon why.
Error LostBytes(const TensorRecord& tensor) {
  const std::string words = tensor.session->calls().Explain(tensor.slot);
  return {ErrorCode::kLost,
          Describe(tensor) + ": its bytes are lost for ever" + (words.empty() ? "" : ": " + words)};
}

// Why the daemon denied the last request of this row.
ErrorCode ErrorOf(const proto::LeaseSlot& row) {
  const uint32_t code = row.error.load(std::memory_order_relaxed);
  const bool known = code >= static_cast<uint32_t>(ErrorCode::kInvalidArgument) &&
                     code <= static_cast<uint32_t>(ErrorCode::kUnsupported);
  return known ? static_cast<ErrorCode>(code) : ErrorCode::kCorrupt;
}

bool AcquireFetchTurn(TensorRecord& tensor, FetchTurn from) {
  return tensor.turn.compare_exchange_strong(from, FetchTurn::kTaken, std::memory_order_acq_rel);
}

// Settles what a get that gave up left behind. True when the answer it waited for is now ours.
bool InheritAnswer(TensorRecord& tensor, LeaseState state) {
  if (tensor.turn.load(std::memory_order_acquire) != FetchTurn::kAbandoned) return false;
  if (state == LeaseState::kInUse || state == LeaseState::kFetching) {
    return AcquireFetchTurn(tensor, FetchTurn::kAbandoned);
  }
  // The daemon denied it meanwhile: nothing came of it.
  FetchTurn abandoned = FetchTurn::kAbandoned;
  tensor.turn.compare_exchange_strong(abandoned, FetchTurn::kFree, std::memory_order_acq_rel);
  return false;
}

struct Begun {
  Hold hold = Hold::kNone;
  LeaseState from = LeaseState::kFree;  // the state it was in
};

// One step of a get. `target` is null for "where it is".
Result<Begun> Begin(Session& session, TensorRecord& tensor, const ClientDevice* target) {
  proto::LeaseSlot& row = session.Row(tensor);
  uint64_t word = row.word.load(std::memory_order_acquire);
  while (true) {
    const proto::LeaseWord lease = proto::UnpackLease(word);
    if (tensor.turn.load(std::memory_order_relaxed) != FetchTurn::kFree) [[unlikely]] {
      if (InheritAnswer(tensor, lease.state)) return Begun{Hold::kAwait, lease.state};
      // A denial that another thread has not read yet: if we took the tensor now, that thread would
      // take our holder for the answer to its own get.
      if (tensor.turn.load(std::memory_order_acquire) == FetchTurn::kTaken &&
          lease.state == LeaseState::kIdle) {
        return Begun{Hold::kElsewhere, LeaseState::kIdle};
      }
    }
    if (IsResident(lease.state)) {
      const bool here = target == nullptr ||
                        row.device.load(std::memory_order_relaxed) == target->daemon_ordinal();
      if (here) {
        if (lease.holders == kHoldersMax) {
          return Error{ErrorCode::kLimit, Describe(tensor) + ": too many gets without a put"};
        }
        if (!CasLease(row, &word, LeaseState::kInUse, lease.holders + 1)) continue;
        session.log().Append(tensor.slot, proto::AccessOp::kGet);
        return Begun{Hold::kTaken, lease.state};
      }
      if (lease.state == LeaseState::kInUse) {
        return WrongState(tensor, "it is in use on another device: put it there first");
      }
    } else if (lease.state == LeaseState::kFetching) {
      return Begun{Hold::kElsewhere, lease.state};
    } else if (lease.state == LeaseState::kLost) {
      return LostBytes(tensor);
    } else if (lease.state != LeaseState::kAway) {
      return WrongState(tensor, "get after free");
    }
    if (!AcquireFetchTurn(tensor, FetchTurn::kFree)) return Begun{Hold::kElsewhere, lease.state};
    if (CasLease(row, &word, LeaseState::kFetching, 0)) return Begun{Hold::kAsk, lease.state};
    tensor.turn.store(FetchTurn::kFree, std::memory_order_release);
  }
}

// Undoes a move to kFetching that the daemon does not know of. The last put's record stands.
void CancelFetch(Session& session, TensorRecord& tensor, LeaseState from) {
  proto::LeaseSlot& row = session.Row(tensor);
  uint64_t word = row.word.load(std::memory_order_acquire);
  CasLease(row, &word, from, 0);
  // The daemon moves a tensor out of Idle only from a put's very word, and this is another.
  if (from == LeaseState::kIdle) session.log().Append(tensor.slot, proto::AccessOp::kPut);
  tensor.turn.store(FetchTurn::kFree, std::memory_order_release);
}

// Releases a holder that was taken for nothing: the last put's record stands, but for tickets of
// the other threads that used it with us.
void ReturnHolder(Session& session, TensorRecord& tensor) {
  proto::LeaseSlot& row = session.Row(tensor);
  uint64_t word = row.word.load(std::memory_order_acquire);
  while (true) {
    const proto::LeaseWord lease = proto::UnpackLease(word);
    if (lease.state != LeaseState::kInUse || lease.holders == 0) return;
    const bool last = lease.holders == 1;
    // The early ticket stays: a get that comes between must find it, and a wait too many is none.
    if (const uint64_t early = tensor.early_ticket.load(std::memory_order_relaxed);
        last && early != 0) {
      row.ticket.store(early, std::memory_order_relaxed);
    }
    if (CasLease(row, &word, last ? LeaseState::kIdle : LeaseState::kInUse, lease.holders - 1)) {
      if (last) session.log().Append(tensor.slot, proto::AccessOp::kPut);
      return;
    }
  }
}

// Whether the daemon gave the bytes up. The row's word on it is taken over into the record, where
// it stays until a put of new bytes. REQUIRES: a holder is ours.
bool TakeRecompute(proto::LeaseSlot& row, TensorRecord& tensor) {
  if (row.error.load(std::memory_order_acquire) == proto::kMustRecompute) [[unlikely]] {
    tensor.must_recompute.store(true, std::memory_order_relaxed);
    // Another get that finds it 0 finds the record's word.
    row.error.store(0, std::memory_order_release);
  }
  return tensor.must_recompute.load(std::memory_order_relaxed);
}

// Waits for the daemon's answer. REQUIRES: the turn is ours; it no longer is afterwards.
Status AwaitFetch(Session& session, TensorRecord& tensor, Tick deadline) {
  proto::LeaseSlot& row = session.Row(tensor);
  const Tick begun = ipc::Now();
  proto::LeaseWord answer;
  const Waited waited = AwaitAnswer(row, LeaseState::kFetching, DeadlineAfter(deadline, kGrace),
                                    session.phase(), &answer);
  session.CountStall(ipc::Now() - begun);
  if (waited != Waited::kAnswered) {
    tensor.turn.store(FetchTurn::kAbandoned, std::memory_order_release);
    RAVEN_RETURN_IF_ERROR(session.CheckUsable());
    return Error{ErrorCode::kTimedOut,
                 Describe(tensor) + ": the daemon is unresponsive, it did not answer the get"};
  }
  if (answer.state == LeaseState::kInUse) {
    TakeRecompute(row, tensor);
    tensor.turn.store(FetchTurn::kFree, std::memory_order_release);
    return core::Ok();
  }
  const ErrorCode code = ErrorOf(row);
  // Asked before the turn goes on: another get's failure would replace the words.
  // Idle: it was to change devices, and stays where it is.
  const bool denied = answer.state == LeaseState::kAway || answer.state == LeaseState::kIdle;
  const std::string words = denied ? session.calls().Explain(tensor.slot) : std::string();
  tensor.turn.store(FetchTurn::kFree, std::memory_order_release);
  if (answer.state == LeaseState::kLost) return LostBytes(tensor);
  if (!denied) return WrongState(tensor, "freed while it was fetched");
  return Error{code, Describe(tensor) + ": " + (words.empty() ? "the get was denied" : words)};
}

// Waits until another thread or the daemon may be done with the tensor.
Status AwaitOthers(Session& session, const TensorRecord& tensor, LeaseState pending,
                   Tick deadline) {
  if (ipc::Now() < deadline) {
    if (pending != LeaseState::kFetching) {
      // A thread of ours is about to ask, or reads its answer: no change of the word may follow.
      std::this_thread::sleep_for(kTurnPoll);
      return session.CheckUsable();
    }
    proto::LeaseWord answer;
    const Waited waited =
        AwaitAnswer(session.Row(tensor), pending, deadline, session.phase(), &answer);
    if (waited == Waited::kAnswered) return core::Ok();
    RAVEN_RETURN_IF_ERROR(session.CheckUsable());
  }
  return Error{ErrorCode::kTimedOut, Describe(tensor) +
                                         ": it was moved for longer than the get "
                                         "was willing to wait"};
}

// Where a get is to happen.
struct GetTarget {
  ClientDevice* target = nullptr;  // null: where it is
  ClientDevice* device = nullptr;  // where it is expected
  ClientStream* stream = nullptr;
  bool awaits = false;  // the bytes, on the CPU
};

Result<GetTarget> ResolveTarget(Session& session, const TensorRecord& tensor,
                                device::StreamHandle stream, const GetOptions& options) {
  GetTarget destination;
  if (options.device >= 0) {
    RAVEN_ASSIGN_OR_RETURN(destination.target, session.devices().Local(options.device));
    RAVEN_RETURN_IF_ERROR(destination.target->Prepare());
    destination.device = destination.target;
  } else {
    RAVEN_ASSIGN_OR_RETURN(destination.device, HomeOf(tensor));
  }
  RAVEN_ASSIGN_OR_RETURN(destination.stream, session.streams().Find(stream, *destination.device));
  RAVEN_RETURN_IF_ERROR(destination.stream->CheckNotCapturing());
  destination.awaits = options.blocking || destination.stream->synchronous();
  return destination;
}

proto::Request FetchRequest(Session& session, const TensorRecord& tensor,
                            const GetTarget& destination, Tick deadline) {
  proto::Request request{};
  request.op = static_cast<uint32_t>(proto::RequestOp::kFetch);
  request.slot = tensor.slot;
  request.id = tensor.id;
  request.device = static_cast<uint16_t>(destination.device->daemon_ordinal());
  request.flags = destination.awaits ? proto::kAwaits : 0;
  request.deadline_ns = deadline.time_since_epoch().count();
  request.ticket = session.Row(tensor).ticket.load(std::memory_order_relaxed);
  return request;
}

// Takes a holder, whatever it takes.
Status Take(Session& session, TensorRecord& tensor, const GetTarget& destination,
            Deadline& deadline) {
  while (true) {
    RAVEN_ASSIGN_OR_RETURN(const Begun begun, Begin(session, tensor, destination.target));
    if (begun.hold == Hold::kTaken) return core::Ok();
    if (begun.hold == Hold::kAwait) {
      Status inherited = AwaitFetch(session, tensor, deadline.at());
      // It was asked for with another deadline.
      if (inherited.ok() || ipc::Now() >= deadline.at()) return inherited;
      RAVEN_RETURN_IF_ERROR(session.CheckUsable());
      continue;
    }
    if (begun.hold == Hold::kAsk) {
      const proto::Request request = FetchRequest(session, tensor, destination, deadline.at());
      size_t sent = 0;
      Status asked = session.calls().CheckAwake();
      if (asked.ok()) asked = session.requests().Send({&request, 1}, deadline.at(), &sent);
      if (!asked.ok()) {
        CancelFetch(session, tensor, begun.from);
        return asked;
      }
      return AwaitFetch(session, tensor, deadline.at());
    }
    RAVEN_RETURN_IF_ERROR(AwaitOthers(session, tensor, begun.from, deadline.at()));
  }
}

Status RestorePoisoned(Session& session, TensorRecord& tensor, ClientStream& stream,
                       void* address) {
  const auto lock = session.poison()->Lock();
  RAVEN_ASSIGN_OR_RETURN(const auto written,
                         session.poison()->Restore(tensor.slot, stream, address));
  if (!written) return core::Ok();
  return Error{ErrorCode::kCorrupt,
               Describe(tensor) + ": written after put, at byte " + std::to_string(*written)};
}

// Its bytes were discarded, the kept ones with them.
void ForgetPoisoned(Session& session, const TensorRecord& tensor) {
  const auto lock = session.poison()->Lock();
  session.poison()->Forget(tensor.slot);
}

// The GPU's half of a get: maps, orders `stream`, and blocks if asked. REQUIRES: a holder is ours.
Result<void*> BindToStream(Session& session, TensorRecord& tensor, device::StreamHandle handle,
                           const GetTarget& destination, const GetOptions& options,
                           Deadline& deadline) {
  proto::LeaseSlot& row = session.Row(tensor);
  ClientDevice* device = destination.device;
  ClientStream* stream = destination.stream;
  if (row.device.load(std::memory_order_relaxed) != device->daemon_ordinal()) [[unlikely]] {
    RAVEN_ASSIGN_OR_RETURN(device, HomeOf(tensor));
    RAVEN_ASSIGN_OR_RETURN(stream, session.streams().Find(handle, *device));
  }
  const uint64_t offset = row.place.load(std::memory_order_relaxed) * proto::kPlaceUnit;
  if (!device->Mapped(offset, tensor.bytes)) [[unlikely]] {
    RAVEN_RETURN_IF_ERROR(device->EnsureMapped(
        offset, tensor.bytes, DeadlineAfter(deadline.at(), kGrace), session.phase()));
  }
  void* address = device->base() + offset;
  const uint64_t ticket = row.ticket.load(std::memory_order_relaxed);
  const uint64_t arrival = row.arrival.load(std::memory_order_relaxed);
  // Of puts while others still hold the tensor.
  const uint64_t early = tensor.early_ticket.load(std::memory_order_relaxed);
  if (stream->MustOrder(ticket)) RAVEN_RETURN_IF_ERROR(stream->WaitForTicket(ticket, deadline));
  if (stream->MustOrder(early)) RAVEN_RETURN_IF_ERROR(stream->WaitForTicket(early, deadline));
  if (arrival != 0) RAVEN_RETURN_IF_ERROR(stream->WaitForArrival(tensor.slot, arrival, deadline));
  if (options.blocking) {
    RAVEN_RETURN_IF_ERROR(stream->Block(ticket, arrival, deadline));
    RAVEN_RETURN_IF_ERROR(stream->Block(early, 0, deadline));
  }
  if (arrival != 0) {
    // Arrivals are let through, without any bytes, when the session or the tensor is lost.
    RAVEN_RETURN_IF_ERROR(session.CheckUsable());
    if (proto::UnpackLease(row.word.load(std::memory_order_acquire)).state == LeaseState::kLost) {
      return LostBytes(tensor);
    }
  }
  const bool recompute = TakeRecompute(row, tensor);
  if (session.poison() != nullptr) [[unlikely]] {
    if (recompute) ForgetPoisoned(session, tensor);
    RAVEN_RETURN_IF_ERROR(RestorePoisoned(session, tensor, *stream, address));
  }
  if (!options.read_only) tensor.writable_use.store(true, std::memory_order_relaxed);
  return address;
}

uint64_t HintOf(const PutOptions& options) {
  proto::Hint hint{.priority = options.priority};
  if (options.not_needed) {
    hint.kind = proto::HintKind::kNotNeeded;
  } else if (options.needed_in) {
    const Tick at = DeadlineAfter(ipc::Now(), *options.needed_in);
    hint.kind = proto::HintKind::kNeededAt;
    hint.value = static_cast<uint64_t>(at.time_since_epoch().count()) >> 10;
  } else if (options.order) {
    const int64_t order = std::clamp(*options.order, -proto::kOrderBias, proto::kOrderBias - 1);
    hint.kind = proto::HintKind::kOrder;
    hint.value = static_cast<uint64_t>(order + proto::kOrderBias);
  }
  return proto::Pack(hint);
}

// The answer to a put of a tensor that is not held.
Error NotHeld(const TensorRecord& tensor, LeaseState state) {
  if (state == LeaseState::kLost) return LostBytes(tensor);
  if (state == LeaseState::kFree || state == LeaseState::kFreeing) {
    return WrongState(tensor, "put after free");
  }
  return WrongState(tensor, "put without a get: it is not in Userspace (put twice?)");
}

// The shared half of a put. `ticket` covers the stream's work and that of earlier puts in this use.
Status Release(Session& session, TensorRecord& tensor, uint64_t ticket, const PutOptions& options) {
  proto::LeaseSlot& row = session.Row(tensor);
  const uint64_t hint = HintOf(options);
  const uint16_t recompute =
      proto::PackRecompute(static_cast<uint64_t>(std::max(options.recompute.count(), int64_t{0})));
  const bool recomputed =
      !options.not_modified && tensor.must_recompute.load(std::memory_order_relaxed);
  if (recomputed) tensor.must_recompute.store(false, std::memory_order_relaxed);
  const bool wrote = session.poison() != nullptr || recomputed ||
                     (!options.not_modified && tensor.writable_use.load(std::memory_order_relaxed));
  if (wrote) row.writes.fetch_add(1, std::memory_order_relaxed);
  uint64_t word = row.word.load(std::memory_order_acquire);
  while (true) {
    const proto::LeaseWord lease = proto::UnpackLease(word);
    if (lease.state != LeaseState::kInUse || lease.holders == 0)
      return NotHeld(tensor, lease.state);
    // Also while others hold the tensor: a get that fails may be the one that ends this use.
    row.hint.store(hint, std::memory_order_relaxed);
    row.recompute.store(recompute, std::memory_order_relaxed);
    if (lease.holders > 1) {
      tensor.early_ticket.store(ticket, std::memory_order_relaxed);
      if (CasLease(row, &word, LeaseState::kInUse, lease.holders - 1)) return core::Ok();
      continue;
    }
    row.ticket.store(ticket, std::memory_order_relaxed);
    tensor.early_ticket.store(0, std::memory_order_relaxed);
    tensor.writable_use.store(false, std::memory_order_relaxed);
    if (CasLease(row, &word, LeaseState::kIdle, 0)) break;
    // A get came between and may have set it for itself before we cleared it: any doubt is a write.
    tensor.writable_use.store(true, std::memory_order_relaxed);
  }
  session.log().Append(tensor.slot, proto::AccessOp::kPut);
  return core::Ok();
}

// The gets of one call: all are asked for before any is waited for.
class Batch {
 public:
  Batch(Session& session, std::span<TensorRecord* const> tensors, device::StreamHandle stream,
        const GetOptions& options, Deadline& deadline)
      : session_(session),
        tensors_(tensors),
        stream_(stream),
        options_(options),
        deadline_(deadline),
        destinations_(tensors.size()),
        begun_(tensors.size()) {}

  Status Run(void** addresses) {
    Status status = BeginAll();
    if (status.ok()) status = Ask();
    // Those that were asked for are answered, whatever became of the others.
    for (size_t i = 0; i < tensors_.size(); ++i) {
      Status taken = Finish(i, status.ok());
      if (status.ok() && !taken.ok()) status = std::move(taken);
    }
    for (size_t i = 0; i < tensors_.size() && status.ok(); ++i) {
      Result<void*> address =
          BindToStream(session_, *tensors_[i], stream_, destinations_[i], options_, deadline_);
      if (address.ok()) {
        addresses[i] = *address;
      } else {
        status = std::move(address).error();
      }
    }
    if (!status.ok()) {
      for (size_t i = 0; i < tensors_.size(); ++i) {
        if (begun_[i].hold == Hold::kTaken) ReturnHolder(session_, *tensors_[i]);
      }
    }
    return status;
  }

  // Afterwards the answers belong to the next gets.
  Status Begin() {
    Status status = BeginAll();
    if (status.ok()) status = Ask();
    for (size_t i = 0; i < tensors_.size(); ++i) {
      TensorRecord& tensor = *tensors_[i];
      switch (std::exchange(begun_[i].hold, Hold::kNone)) {
        case Hold::kAwait:
          tensor.turn.store(FetchTurn::kAbandoned, std::memory_order_release);
          break;
        case Hold::kAsk: CancelFetch(session_, tensor, begun_[i].from); break;
        case Hold::kTaken: ReturnHolder(session_, tensor); break;
        case Hold::kElsewhere:
        case Hold::kNone: break;
      }
    }
    return status;
  }

 private:
  Status BeginAll() {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      RAVEN_ASSIGN_OR_RETURN(destinations_[i],
                             ResolveTarget(session_, *tensors_[i], stream_, options_));
      RAVEN_ASSIGN_OR_RETURN(begun_[i],
                             client::Begin(session_, *tensors_[i], destinations_[i].target));
    }
    return core::Ok();
  }

  Status Ask() {
    std::vector<proto::Request> requests;
    std::vector<size_t> asked;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (begun_[i].hold != Hold::kAsk) continue;
      requests.push_back(FetchRequest(session_, *tensors_[i], destinations_[i], deadline_.at()));
      asked.push_back(i);
    }
    if (requests.empty()) return core::Ok();
    RAVEN_RETURN_IF_ERROR(session_.calls().CheckAwake());
    size_t sent = 0;
    Status status = session_.requests().Send(requests, deadline_.at(), &sent);
    for (size_t i = 0; i < sent; ++i) begun_[asked[i]].hold = Hold::kAwait;
    return status;
  }

  // Afterwards the hold is kTaken or kNone. Without `wanted` only what must not stay is settled.
  Status Finish(size_t i, bool wanted) {
    Begun& begun = begun_[i];
    TensorRecord& tensor = *tensors_[i];
    const Hold hold = std::exchange(begun.hold, Hold::kNone);
    if (hold == Hold::kAsk) CancelFetch(session_, tensor, begun.from);
    if (hold == Hold::kAwait) RAVEN_RETURN_IF_ERROR(AwaitFetch(session_, tensor, deadline_.at()));
    if (hold == Hold::kElsewhere) {
      if (!wanted) return core::Ok();
      RAVEN_RETURN_IF_ERROR(Take(session_, tensor, destinations_[i], deadline_));
    }
    if (hold != Hold::kNone && hold != Hold::kAsk) begun.hold = Hold::kTaken;
    return core::Ok();
  }

  Session& session_;
  const std::span<TensorRecord* const> tensors_;
  const device::StreamHandle stream_;
  const GetOptions& options_;
  Deadline& deadline_;
  std::vector<GetTarget> destinations_;
  std::vector<Begun> begun_;
};

core::Duration WaitOf(const Session& session, const GetOptions& options) {
  return options.timeout > core::Duration(0) ? options.timeout : session.timeout();
}

// Keeps the bytes of a tensor whose last holder is about to put it.
Status BuryPoisoned(Session& session, TensorRecord& tensor, ClientStream& stream) {
  const uint64_t word = session.Row(tensor).word.load(std::memory_order_acquire);
  if (proto::UnpackLease(word).holders != 1 || session.poison()->Holds(tensor.slot)) {
    return core::Ok();
  }
  return session.poison()->Poison(tensor.slot, stream, Address(tensor), tensor.bytes);
}

}  // namespace

Result<void*> Get(TensorRecord& tensor, device::StreamHandle stream, const GetOptions& options) {
  Session& session = *tensor.session;
  RAVEN_RETURN_IF_ERROR(session.CheckUsable());
  Deadline deadline(WaitOf(session, options));
  RAVEN_ASSIGN_OR_RETURN(const GetTarget destination,
                         ResolveTarget(session, tensor, stream, options));
  RAVEN_RETURN_IF_ERROR(Take(session, tensor, destination, deadline));
  Result<void*> address = BindToStream(session, tensor, stream, destination, options, deadline);
  if (!address.ok()) [[unlikely]]
    ReturnHolder(session, tensor);
  return address;
}

Status GetBatch(std::span<TensorRecord* const> tensors, device::StreamHandle stream,
                const GetOptions& options, void** addresses) {
  if (tensors.empty()) return core::Ok();
  Session& session = *tensors[0]->session;
  RAVEN_RETURN_IF_ERROR(session.CheckUsable());
  Deadline deadline(WaitOf(session, options));
  return Batch(session, tensors, stream, options, deadline).Run(addresses);
}

Status BeginGets(std::span<TensorRecord* const> tensors, const GetOptions& options) {
  if (tensors.empty()) return core::Ok();
  Session& session = *tensors[0]->session;
  RAVEN_RETURN_IF_ERROR(session.CheckUsable());
  Deadline deadline(WaitOf(session, options));
  return Batch(session, tensors, nullptr, options, deadline).Begin();
}

Status GetInto(TensorRecord& tensor, void* to, device::StreamHandle handle,
               const GetOptions& options) {
  GetOptions reading = options;
  reading.read_only = true;
  RAVEN_ASSIGN_OR_RETURN(void* const address, Get(tensor, handle, reading));
  Session& session = *tensor.session;
  const auto copy = [&]() -> Status {
    if (MustRecompute(tensor)) return core::Ok();
    RAVEN_ASSIGN_OR_RETURN(ClientDevice* const device, HomeOf(tensor));
    RAVEN_ASSIGN_OR_RETURN(ClientStream* const stream, session.streams().Find(handle, *device));
    RAVEN_RETURN_IF_ERROR(stream->Copy(to, address, core::Bytes(tensor.bytes)));
    return options.blocking ? stream->Synchronize() : core::Ok();
  };
  Status copied = copy();
  SharedTicket alone;
  Status put = Put(tensor, handle, {.not_modified = true}, &alone);
  return copied.ok() ? put : copied;
}

Result<uint64_t> TicketFor(ClientStream& stream, std::span<const uint64_t> also, Deadline& deadline,
                           SharedTicket* shared) {
  const bool plain = std::none_of(also.begin(), also.end(),
                                  [&](uint64_t ticket) { return stream.MustOrder(ticket); });
  // Another thread may have put by the same stream since the shared one was taken.
  const auto later = [&](uint64_t ticket) {
    return stream.Open(ticket) &&
           proto::UnpackWordValue(ticket).value > proto::UnpackWordValue(shared->ticket).value;
  };
  if (plain && shared->stream == &stream && std::none_of(also.begin(), also.end(), later)) {
    return shared->ticket;
  }
  RAVEN_ASSIGN_OR_RETURN(const uint64_t ticket, stream.TakeTicket(also, deadline));
  // On the calling thread a ticket stands for others' work only.
  if (plain || !stream.synchronous()) *shared = {&stream, ticket};
  return ticket;
}

Status Put(TensorRecord& tensor, device::StreamHandle handle, const PutOptions& options,
           SharedTicket* shared) {
  Session& session = *tensor.session;
  RAVEN_RETURN_IF_ERROR(session.CheckUsable());
  const proto::LeaseSlot& row = session.Row(tensor);
  const proto::LeaseWord lease = proto::UnpackLease(row.word.load(std::memory_order_acquire));
  if (lease.state != LeaseState::kInUse) [[unlikely]]
    return NotHeld(tensor, lease.state);
  RAVEN_ASSIGN_OR_RETURN(ClientDevice* const device, HomeOf(tensor));
  RAVEN_ASSIGN_OR_RETURN(ClientStream* const stream, session.streams().Find(handle, *device));
  RAVEN_RETURN_IF_ERROR(stream->CheckNotCapturing());
  std::unique_lock<std::mutex> poisoning;
  if (session.poison() != nullptr) [[unlikely]] {
    poisoning = session.poison()->Lock();
    RAVEN_RETURN_IF_ERROR(BuryPoisoned(session, tensor, *stream));
  }
  Deadline deadline(session.timeout());
  const uint64_t early = tensor.early_ticket.load(std::memory_order_relaxed);
  const Result<uint64_t> ticket =
      TicketFor(*stream, {&early, early == 0 ? 0u : 1u}, deadline, shared);
  if (ticket.ok()) [[likely]]
    return Release(session, tensor, *ticket, options);
  if (poisoning) {  // it stays in Userspace, with its bytes
    static_cast<void>(session.poison()->Restore(tensor.slot, *stream, Address(tensor)));
  }
  return ticket.error();
}

Result<ClientDevice*> HomeOf(const TensorRecord& tensor) {
  Session& session = *tensor.session;
  ClientDevice* device =
      session.devices().OfDaemon(session.Row(tensor).device.load(std::memory_order_relaxed));
  if (device != nullptr) [[likely]]
    return device;
  return Error{ErrorCode::kNotFound,
               Describe(tensor) + ": it is on a device that this process does not see"};
}

namespace {

// The rows are there: not in a fork, not after disconnect.
bool HasRows(const TensorRecord& tensor) {
  const Phase phase = tensor.session->phase().load(std::memory_order_acquire);
  return phase == Phase::kAttached || phase == Phase::kLost;
}

}  // namespace

Status KeepInPlace(TensorRecord& tensor) {
  RAVEN_RETURN_IF_ERROR(tensor.session->CheckUsable());
  if (Address(tensor) == nullptr)
    return Error{ErrorCode::kWrongState, Describe(tensor) + " is not in use: get it first"};
  RAVEN_RETURN_IF_ERROR(tensor.session->calls().KeepInPlace(
      {.slot = tensor.slot, .tensor = tensor.id, .ends = false}));
  tensor.is_kept.store(true, std::memory_order_relaxed);
  return core::Ok();
}

Status EndKeepInPlace(TensorRecord& tensor) {
  RAVEN_RETURN_IF_ERROR(tensor.session->CheckUsable());
  RAVEN_RETURN_IF_ERROR(tensor.session->calls().KeepInPlace(
      {.slot = tensor.slot, .tensor = tensor.id, .ends = true}));
  tensor.is_kept.store(false, std::memory_order_relaxed);
  return core::Ok();
}

Result<core::Bytes> Sleep(Session& session, core::Duration timeout) {
  RAVEN_RETURN_IF_ERROR(session.CheckUsable());
  for (uint32_t slot = 0; slot < session.requests().rows(); ++slot) {
    const uint64_t word = session.RowAt(slot).word.load(std::memory_order_acquire);
    const LeaseState state = proto::UnpackLease(word).state;
    if (state == LeaseState::kFree || state == LeaseState::kRequested) continue;
    const TensorRecord& tensor = session.tensors().At(slot);
    const char* why = nullptr;
    if (tensor.is_kept.load(std::memory_order_relaxed)) why = " is kept in place";
    if (state == LeaseState::kInUse) why = " is in use: put it first";
    if (why != nullptr) return Error{ErrorCode::kWrongState, Describe(tensor) + why};
  }
  return session.calls().Sleep(DeadlineAfter(ipc::Now(), timeout));
}

bool MustRecompute(const TensorRecord& tensor) {
  return tensor.must_recompute.load(std::memory_order_relaxed);
}

void* Address(const TensorRecord& tensor) {
  if (!HasRows(tensor)) return nullptr;
  const proto::LeaseSlot& row = tensor.session->Row(tensor);
  const uint64_t word = row.word.load(std::memory_order_acquire);
  if (proto::UnpackLease(word).state != LeaseState::kInUse) return nullptr;
  const Result<ClientDevice*> device = HomeOf(tensor);
  if (!device.ok() || (*device)->base() == nullptr) return nullptr;
  return (*device)->base() + row.place.load(std::memory_order_relaxed) * proto::kPlaceUnit;
}

int DeviceOf(const TensorRecord& tensor) {
  if (!HasRows(tensor)) return -1;
  const Result<ClientDevice*> device = HomeOf(tensor);
  return device.ok() ? (*device)->local_ordinal() : -1;
}

Readiness ReadinessOf(const TensorRecord& tensor) {
  if (!tensor.session->CheckUsable().ok()) return Readiness::kLost;
  const proto::LeaseSlot& row = tensor.session->Row(tensor);
  const LeaseState state = proto::UnpackLease(row.word.load(std::memory_order_acquire)).state;
  if (state == LeaseState::kLost) return Readiness::kLost;
  if (!IsResident(state) || MustRecompute(tensor)) return Readiness::kNotYet;
  const uint64_t arrival = row.arrival.load(std::memory_order_relaxed);
  return tensor.session->HasArrived(arrival) ? Readiness::kReady : Readiness::kNotYet;
}

}  // namespace ravenstore::client
