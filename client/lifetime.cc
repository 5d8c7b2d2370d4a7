#include "client/lifetime.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
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

constexpr size_t kFreesPerPart = 64;
// Half of what addresses can name: sums of two sizes do not overflow.
constexpr uint64_t kBytesMax = uint64_t{1} << 47;

// The ticket of a free on `handle`; without a stream nothing was ever enqueued for the tensor.
Result<uint64_t> FreeTicket(TensorRecord& tensor, std::optional<device::StreamHandle> handle,
                            SharedTicket* shared) {
  if (!handle) return 0;
  Session& session = *tensor.session;
  RAVEN_ASSIGN_OR_RETURN(ClientDevice* const device, HomeOf(tensor));
  RAVEN_ASSIGN_OR_RETURN(ClientStream* const stream, session.streams().Find(*handle, *device));
  RAVEN_RETURN_IF_ERROR(stream->CheckNotCapturing());
  const std::array also = {tensor.early_ticket.load(std::memory_order_relaxed),
                           session.Row(tensor).ticket.load(std::memory_order_relaxed)};
  Deadline deadline(session.timeout());
  return TicketFor(*stream, also, deadline, shared);
}

// Moves one tensor to kFreeing; `*free` is then to be sent. REQUIRES: its handle is ended.
Status BeginFree(TensorRecord& tensor, std::optional<device::StreamHandle> handle,
                 SharedTicket* shared, proto::Request* free) {
  const Result<uint64_t> ticket = FreeTicket(tensor, handle, shared);
  if (!ticket.ok()) {
    tensor.session->tensors().RememberFree({&tensor, *handle});
    return ticket.error();
  }
  proto::LeaseSlot& row = tensor.session->Row(tensor);
  uint64_t word = row.word.load(std::memory_order_acquire);
  do {
    const LeaseState state = proto::UnpackLease(word).state;
    if (state == LeaseState::kFetching) {
      tensor.session->requests().Orphan(tensor.slot);
      return Error{ErrorCode::kWrongState,
                   Describe(tensor) + ": freed while a get of it was under way"};
    }
    if (!IsResident(state) && state != LeaseState::kAway && state != LeaseState::kLost) {
      return Error{ErrorCode::kWrongState, Describe(tensor) + ": freed twice"};
    }
  } while (!CasLease(row, &word, LeaseState::kFreeing, 0));
  *free = {};
  free->op = static_cast<uint32_t>(proto::RequestOp::kFree);
  free->slot = tensor.slot;
  free->id = tensor.id;
  free->ticket = *ticket;
  return core::Ok();
}

// In poison mode a free looks as well, so that nothing planted stays unseen.
Status LookForPoison(TensorRecord& tensor, device::StreamHandle stream) {
  PoisonKeeper& poison = *tensor.session->poison();
  {
    const auto lock = poison.Lock();
    if (!poison.Holds(tensor.slot)) return core::Ok();
  }
  const Result<void*> looked = Get(tensor, stream, {.read_only = true, .blocking = true});
  const auto lock = poison.Lock();
  poison.Forget(tensor.slot);
  // Away and no room to look is no fault of this tensor's users.
  if (looked.ok() || looked.error().code != ErrorCode::kCorrupt) return core::Ok();
  return looked.error();
}

// Ends every handle; frees the tensors once the work on `stream`, if any, is done.
Status FreeAll(std::span<const uint64_t> handles, std::optional<device::StreamHandle> stream) {
  Status first = core::Ok();
  const auto note = [&first](Status status) {
    if (first.ok() && !status.ok()) first = std::move(status);
  };
  if (!handles.empty()) RetryFrees(*RecordOf(handles[0])->session);
  SharedTicket shared;
  std::vector<proto::Request> frees;
  std::vector<Session*> ended;
  const auto send = [&] {
    if (frees.empty()) return;
    size_t sent = 0;
    Session& session = *ended.back();
    note(session.requests().Send(frees, DeadlineAfter(ipc::Now(), session.timeout()), &sent));
    frees.clear();
  };
  for (const uint64_t handle : handles) {
    TensorRecord& tensor = *RecordOf(handle);
    uint16_t serial = SerialOf(handle);
    // The thread that raises the serial ends the handle; a second free finds it raised.
    if (!tensor.serial.compare_exchange_strong(serial, static_cast<uint16_t>(serial + 1))) {
      note(Error{ErrorCode::kWrongState, "free of a tensor that was freed already"});
      continue;
    }
    ended.push_back(tensor.session);
    if (Status usable = tensor.session->CheckUsable(); !usable.ok()) {
      note(std::move(usable));
      continue;
    }
    if (tensor.session->poison() != nullptr && stream) note(LookForPoison(tensor, *stream));
    proto::Request free;
    Status begun = BeginFree(tensor, stream, &shared, &free);
    if (begun.ok()) frees.push_back(free);
    note(std::move(begun));
    // In parts: the daemon takes one while the next is made.
    if (frees.size() >= kFreesPerPart) send();
  }
  send();
  for (Session* session : ended) {
    if (session->phase().load(std::memory_order_acquire) != Phase::kForked) session->Unref();
  }
  return first;
}

// The error for the caller of a create that failed.
Error Refused(Session& session, uint32_t slot, uint64_t bytes, const InternedName& name) {
  const uint32_t code = session.RowAt(slot).error.load(std::memory_order_relaxed);
  const bool known = code >= static_cast<uint32_t>(ErrorCode::kInvalidArgument) &&
                     code <= static_cast<uint32_t>(ErrorCode::kUnsupported);
  std::string words = "create of " + std::to_string(bytes) + " bytes";
  if (name.name != nullptr) words += " \"" + *name.name + "\"";
  const std::string why = session.calls().Explain(slot);
  return {known ? static_cast<ErrorCode>(code) : ErrorCode::kCorrupt,
          words + ": " + (why.empty() ? "refused by the daemon" : why)};
}

// The record of a tensor just created. No other thread has its handle yet.
TensorRecord& Enrol(Session& session, uint32_t slot, uint64_t bytes, const InternedName& name) {
  TensorRecord& tensor = session.tensors().At(slot);
  proto::LeaseSlot& row = session.RowAt(slot);
  tensor.bytes = bytes;
  tensor.id = row.id.load(std::memory_order_relaxed);
  tensor.name = name.name;
  tensor.early_ticket.store(0, std::memory_order_relaxed);
  tensor.turn.store(FetchTurn::kFree, std::memory_order_relaxed);
  tensor.must_recompute.store(false, std::memory_order_relaxed);
  tensor.is_kept.store(false, std::memory_order_relaxed);
  // Its bytes are the caller's to write, until the first put.
  tensor.writable_use.store(true, std::memory_order_relaxed);
  row.ticket.store(0, std::memory_order_relaxed);
  row.hint.store(0, std::memory_order_relaxed);
  row.recompute.store(0, std::memory_order_relaxed);
  if (session.poison() != nullptr) {
    const auto lock = session.poison()->Lock();
    session.poison()->Forget(slot);
  }
  session.Ref();
  return tensor;
}

// Waits for the answer to one create and makes its tensor usable.
Result<uint64_t> AwaitCreate(Session& session, ClientDevice& device, const proto::Request& request,
                             const InternedName& name, Deadline& deadline) {
  proto::LeaseSlot& row = session.RowAt(request.slot);
  const Tick bound = DeadlineAfter(deadline.at(), kGrace);
  proto::LeaseWord answer;
  const Waited waited = AwaitAnswer(row, LeaseState::kRequested, bound, session.phase(), &answer);
  if (waited != Waited::kAnswered) {
    session.requests().Orphan(request.slot);
    RAVEN_RETURN_IF_ERROR(session.CheckUsable());
    return Error{ErrorCode::kTimedOut,
                 "the daemon is unresponsive: it did not answer a create of " +
                     std::to_string(request.bytes) + " bytes"};
  }
  if (answer.state == LeaseState::kFailed) {
    Error error = Refused(session, request.slot, request.bytes, name);
    session.requests().Recycle(request.slot);
    return error;
  }
  if (answer.state != LeaseState::kInUse) {
    session.requests().Orphan(request.slot);
    return Error{ErrorCode::kCorrupt, "the daemon answered a create with nonsense"};
  }
  TensorRecord& tensor = Enrol(session, request.slot, request.bytes, name);
  const uint64_t handle = MakeHandle(tensor);
  const uint64_t offset = row.place.load(std::memory_order_relaxed) * proto::kPlaceUnit;
  if (!device.Mapped(offset, tensor.bytes)) {
    if (Status mapped = device.EnsureMapped(offset, tensor.bytes, bound, session.phase());
        !mapped.ok()) {
      static_cast<void>(FreeAll({&handle, 1}, std::nullopt));
      return std::move(mapped).error();
    }
  }
  return handle;
}

Status CheckSizes(std::span<const uint64_t> sizes) {
  for (const uint64_t bytes : sizes) {
    if (bytes == 0 || bytes > kBytesMax) {
      return Error{ErrorCode::kInvalidArgument,
                   "a tensor of " + std::to_string(bytes) + " bytes cannot be created"};
    }
  }
  return core::Ok();
}

// Names the stream to the daemon; 0: there is none whose order says enough. What a captured stream
// does is done when its graph is launched, on any stream.
Result<uint32_t> NameOfStream(Session& session, ClientDevice& device,
                              std::optional<device::StreamHandle> handle) {
  if (!handle) return 0;
  RAVEN_ASSIGN_OR_RETURN(ClientStream* const stream, session.streams().Find(*handle, device));
  const auto word = stream->OrderedWord();
  if (!word || !stream->CheckNotCapturing().ok()) return 0;
  return *word + 1U;
}

Status CreateBatchOnce(Session& session, std::span<const uint64_t> sizes,
                       const CreateOptions& options, ClientDevice* device, Deadline& deadline,
                       uint64_t* handles) {
  RAVEN_ASSIGN_OR_RETURN(const InternedName name,
                         session.calls().Intern(options.name, deadline.at()));
  RAVEN_ASSIGN_OR_RETURN(const uint32_t stream, NameOfStream(session, *device, options.ordered_on));
  std::vector<proto::Request> requests(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    requests[i].op = static_cast<uint32_t>(proto::RequestOp::kCreate);
    requests[i].bytes = sizes[i];
    requests[i].device = static_cast<uint16_t>(device->daemon_ordinal());
    requests[i].flags = static_cast<uint16_t>((options.fail_fast ? proto::kFailFast : 0) |
                                              (options.fail_stuck ? proto::kFailStuck : 0) |
                                              (options.long_lived ? proto::kLongLived : 0));
    requests[i].name = name.id;
    requests[i].stream = stream;
    requests[i].deadline_ns = deadline.at().time_since_epoch().count();
  }
  size_t sent = 0;
  Status status = session.requests().Create(requests, deadline.at(), &sent);
  std::vector<uint64_t> created;
  created.reserve(sent);
  const Tick begun = ipc::Now();
  constexpr size_t kAhead =
      8;  // rows that the daemon's core wrote last: fetched while others are looked at
  for (size_t i = 0; i < sent; ++i) {
    if (i + kAhead < sent) __builtin_prefetch(&session.RowAt(requests[i + kAhead].slot), 1);
    Result<uint64_t> handle = AwaitCreate(session, *device, requests[i], name, deadline);
    if (handle.ok()) {
      created.push_back(*handle);
    } else if (status.ok()) {
      status = std::move(handle).error();
    }
  }
  session.CountStall(ipc::Now() - begun);
  if (!status.ok()) {
    static_cast<void>(FreeAll(created, std::nullopt));
    return status;
  }
  std::copy(created.begin(), created.end(), handles);
  return core::Ok();
}

}  // namespace

Status CreateBatch(Session& session, std::span<const uint64_t> sizes, const CreateOptions& options,
                   uint64_t* handles) {
  RAVEN_RETURN_IF_ERROR(session.CheckUsable());
  RAVEN_RETURN_IF_ERROR(session.calls().CheckAwake());
  RAVEN_RETURN_IF_ERROR(CheckSizes(sizes));
  RetryFrees(session);
  RAVEN_ASSIGN_OR_RETURN(ClientDevice* const device, session.devices().Local(options.device));
  RAVEN_RETURN_IF_ERROR(device->Prepare());
  Deadline deadline(options.timeout > core::Duration(0) ? options.timeout : session.timeout());
  for (;;) {
    // The daemon does not know of frees before the client's streams have come to them.
    const bool awaits_frees = options.fail_stuck && !options.fail_fast;
    const uint64_t reached = awaits_frees ? session.streams().Reached() : 0;
    Status status = CreateBatchOnce(session, sizes, options, device, deadline, handles);
    if (!awaits_frees || status.ok() || status.error().code != ErrorCode::kOutOfMemory)
      return status;
    if (!session.streams().AwaitBeyond(reached, deadline.at())) return status;
  }
}

Result<uint64_t> Create(Session& session, uint64_t bytes, const CreateOptions& options) {
  uint64_t handle = 0;
  RAVEN_RETURN_IF_ERROR(CreateBatch(session, {&bytes, 1}, options, &handle));
  return handle;
}

Result<uint64_t> Adopt(Session& session, const void* from, uint64_t bytes,
                       device::StreamHandle stream, const CreateOptions& options) {
  RAVEN_ASSIGN_OR_RETURN(const uint64_t handle, Create(session, bytes, options));
  TensorRecord& tensor = *RecordOf(handle);
  bool enqueued = false;
  const auto copy = [&]() -> Status {
    RAVEN_ASSIGN_OR_RETURN(ClientDevice* const device, HomeOf(tensor));
    RAVEN_ASSIGN_OR_RETURN(ClientStream* const target, session.streams().Find(stream, *device));
    RAVEN_RETURN_IF_ERROR(target->CheckNotCapturing());
    enqueued = true;
    return target->Copy(Address(tensor), from, core::Bytes(bytes));
  };
  if (Status copied = copy(); !copied.ok()) {
    static_cast<void>(FreeAll({&handle, 1}, enqueued ? std::optional(stream) : std::nullopt));
    return std::move(copied).error();
  }
  return handle;
}

void RetryFrees(Session& session) {
  if (!session.tensors().AnyUnfreed() || !session.CheckUsable().ok()) return;
  std::vector<proto::Request> frees;
  for (const TensorTable::Unfreed& unfreed : session.tensors().TakeUnfreed()) {
    SharedTicket alone;
    proto::Request free;
    // One that fails again is remembered again.
    if (BeginFree(*unfreed.tensor, unfreed.stream, &alone, &free).ok()) frees.push_back(free);
  }
  if (frees.empty()) return;
  size_t sent = 0;
  static_cast<void>(
      session.requests().Send(frees, DeadlineAfter(ipc::Now(), session.timeout()), &sent));
}

Status FreeBatch(std::span<const uint64_t> handles, device::StreamHandle stream) {
  return FreeAll(handles, stream);
}

}  // namespace ravenstore::client
