// The C ABI: converts, and lets no exception out. What is behind it is in session.h, lifetime.h and
// access.h.
#include "client/ravenstore.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/access.h"
#include "client/call_recorder.h"
#include "client/last_error.h"
#include "client/lifetime.h"
#include "client/session.h"
#include "core/result.h"
#include "device/host_stream.h"
#include "proto/layout.h"

namespace {

namespace client = ravenstore::client;
namespace core = ravenstore::core;
using client::BadArgument;
using client::CallRecorder;
using client::CheckFlags;
using client::Guard;
using client::Read;
using client::Session;
using client::TensorRecord;
using core::Error;
using core::ErrorCode;
using core::Result;
using core::Status;
using ravenstore::device::HostStream;
using ravenstore::proto::HintPriority;

static_assert(RAVENSTORE_INVALID_ARGUMENT == static_cast<int>(ErrorCode::kInvalidArgument));
static_assert(RAVENSTORE_WRONG_STATE == static_cast<int>(ErrorCode::kWrongState));
static_assert(RAVENSTORE_IS_FORKED == static_cast<int>(ErrorCode::kForked));
static_assert(RAVENSTORE_UNSUPPORTED == static_cast<int>(ErrorCode::kUnsupported));

core::Duration DurationOf(uint64_t nanoseconds) {
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max() / 2;
  return core::Duration(static_cast<int64_t>(std::min(nanoseconds, kMost)));
}

Session* SessionOf(ravenstore_store_t* store) {
  return reinterpret_cast<Session*>(store);
}
uint64_t HandleOf(const ravenstore_tensor_t* tensor) {
  return reinterpret_cast<uint64_t>(tensor);
}

// The live record behind `tensor`, which must belong to `store`. `store` is only compared: it may
// be disconnected.
Result<TensorRecord*> Resolve(const ravenstore_store_t* store, const ravenstore_tensor_t* tensor) {
  if (tensor == nullptr) return BadArgument("the tensor is NULL");
  TensorRecord* record = client::RecordOf(HandleOf(tensor));
  if (reinterpret_cast<const ravenstore_store_t*>(record->session) != store) {
    return BadArgument("the tensor belongs to another store");
  }
  if (client::LiveRecordOf(HandleOf(tensor)) != nullptr) [[likely]]
    return record;
  return Error{ErrorCode::kWrongState,
               "used after free: the handle of what was " + Describe(*record)};
}

Result<std::vector<TensorRecord*>> ResolveAll(const ravenstore_store_t* store,
                                              ravenstore_tensor_t* const* tensors, size_t count) {
  if (count > 0 && tensors == nullptr) return BadArgument("the tensors are NULL");
  std::vector<TensorRecord*> records(count);
  for (size_t i = 0; i < count; ++i) {
    RAVEN_ASSIGN_OR_RETURN(records[i], Resolve(store, tensors[i]));
  }
  return records;
}

Result<client::CreateOptions> Convert(const ravenstore_create_options_t* given) {
  ravenstore_create_options_t defaults{};
  RAVEN_ASSIGN_OR_RETURN(const ravenstore_create_options_t* const options, Read(given, &defaults));
  const bool ordered = (options->flags & RAVENSTORE_STREAM_ORDERED) != 0;
  RAVEN_RETURN_IF_ERROR(CheckFlags(options->flags, RAVENSTORE_FAIL_FAST | RAVENSTORE_FAIL_STUCK |
                                                       RAVENSTORE_LONG_LIVED |
                                                       RAVENSTORE_STREAM_ORDERED));
  if (!ordered && options->stream != nullptr)
    return BadArgument("options: a stream without RAVENSTORE_STREAM_ORDERED");
  client::CreateOptions converted;
  converted.device = options->device;
  converted.fail_fast = (options->flags & RAVENSTORE_FAIL_FAST) != 0;
  converted.fail_stuck = (options->flags & RAVENSTORE_FAIL_STUCK) != 0;
  converted.long_lived = (options->flags & RAVENSTORE_LONG_LIVED) != 0;
  if (ordered) converted.ordered_on = options->stream;
  if (options->name != nullptr) converted.name = options->name;
  converted.timeout = DurationOf(options->timeout_ns);
  return converted;
}

Result<client::GetOptions> Convert(const ravenstore_get_options_t* given) {
  ravenstore_get_options_t defaults{};
  RAVEN_ASSIGN_OR_RETURN(const ravenstore_get_options_t* const options, Read(given, &defaults));
  RAVEN_RETURN_IF_ERROR(CheckFlags(
      options->flags, RAVENSTORE_READ_ONLY | RAVENSTORE_BLOCKING | RAVENSTORE_ON_DEVICE));
  const bool moves = (options->flags & RAVENSTORE_ON_DEVICE) != 0;
  // Without the flag -1 is valid too: programs had to pass it before the flag existed.
  if (moves ? options->device < 0 : options->device > 0) {
    return BadArgument(moves ? "options: the device is negative"
                             : "options: a device without RAVENSTORE_ON_DEVICE");
  }
  return client::GetOptions{.read_only = (options->flags & RAVENSTORE_READ_ONLY) != 0,
                            .blocking = (options->flags & RAVENSTORE_BLOCKING) != 0,
                            .device = moves ? options->device : -1,
                            .timeout = DurationOf(options->timeout_ns)};
}

Result<client::PutOptions> Convert(const ravenstore_put_options_t* given) {
  ravenstore_put_options_t defaults{};
  RAVEN_ASSIGN_OR_RETURN(const ravenstore_put_options_t* const options, Read(given, &defaults));
  RAVEN_RETURN_IF_ERROR(CheckFlags(options->flags, RAVENSTORE_NEEDED_IN | RAVENSTORE_ORDER |
                                                       RAVENSTORE_NOT_MODIFIED |
                                                       RAVENSTORE_NOT_NEEDED));
  client::PutOptions converted;
  if (options->flags & RAVENSTORE_NEEDED_IN)
    converted.needed_in = DurationOf(options->needed_in_ns);
  if (options->flags & RAVENSTORE_ORDER) converted.order = options->order;
  converted.not_modified = (options->flags & RAVENSTORE_NOT_MODIFIED) != 0;
  converted.not_needed = (options->flags & RAVENSTORE_NOT_NEEDED) != 0;
  converted.recompute = DurationOf(options->recompute_ns);
  switch (options->priority) {
    case RAVENSTORE_PRIORITY_LOW: converted.priority = HintPriority::kLow; break;
    case RAVENSTORE_PRIORITY_NORMAL: break;
    case RAVENSTORE_PRIORITY_HIGH: converted.priority = HintPriority::kHigh; break;
    default: return BadArgument("options: no such priority: -1, 0 and 1 are there");
  }
  return converted;
}

// One call of a session that records. The mark is where the call begins.
class RecordedCall {
 public:
  // `tensor`: one that the call names, null for a call without.
  RecordedCall(Session* session, const TensorRecord* tensor, ravenstore_stream_t stream)
      : recorder_(session->recorder()) {
    if (recorder_ == nullptr) [[likely]]
      return;
    stream_ = StreamOf(session, tensor, stream);
    begin_ = recorder_->MarkOn(stream_);
  }
  explicit operator bool() const { return recorder_ != nullptr; }
  CallRecorder* operator->() { return recorder_; }
  CallRecorder::Mark Begin() { return std::exchange(begin_, {}); }
  CallRecorder::Mark End() { return recorder_->MarkOn(stream_); }

 private:
  static client::ClientStream* StreamOf(Session* session, const TensorRecord* tensor,
                                        ravenstore_stream_t stream) {
    if (tensor == nullptr) return nullptr;
    const auto device = client::HomeOf(*tensor);
    if (!device.ok()) return nullptr;
    const auto found = session->streams().Find(stream, **device);
    return found.ok() ? *found : nullptr;
  }

  CallRecorder* const recorder_;
  client::ClientStream* stream_ = nullptr;
  CallRecorder::Mark begin_;
};

// The call ends before its first tensor is written down.
void RecordCreated(RecordedCall& call, const std::vector<uint64_t>& handles,
                   std::string_view name) {
  CallRecorder::Mark end = call.End();
  for (const uint64_t handle : handles) {
    const TensorRecord& tensor = *client::RecordOf(handle);
    call->Created(tensor.id, core::Bytes(tensor.bytes), name, call.Begin(), std::exchange(end, {}));
  }
}
void RecordGot(RecordedCall& call, const std::vector<TensorRecord*>& tensors,
               const client::GetOptions& options) {
  CallRecorder::Mark end = call.End();
  for (const TensorRecord* tensor : tensors)
    call->Got(tensor->id, options.read_only, call.Begin(), std::exchange(end, {}));
}
// Before they are free: others may have their rows then.
void RecordFreed(const std::vector<uint64_t>& handles, ravenstore_stream_t stream) {
  if (handles.empty()) return;
  const TensorRecord* first = client::RecordOf(handles[0]);
  RecordedCall call(first->session, first, stream);
  if (!call) [[likely]]
    return;
  for (const uint64_t handle : handles) call->Freed(client::RecordOf(handle)->id, call.Begin());
}

ravenstore_tensor_t* PublicHandle(uint64_t handle) {
  return reinterpret_cast<ravenstore_tensor_t*>(handle);
}

HostStream* HostStreamOf(ravenstore_host_stream_t stream) {
  return reinterpret_cast<HostStream*>(stream);
}

void ThrowUnless(const Status& status) {
  if (status.ok()) return;
  throw ravenstore::Error(static_cast<ravenstore_code_t>(status.error().code),
                          status.error().message);
}

}  // namespace

namespace ravenstore::client {

Orders& OrdersOf(ravenstore_store_t* store) {
  ThrowUnless(SessionOf(store)->CheckUsable());
  return SessionOf(store)->calls().orders();
}

void TakeOrders(ravenstore_store_t* store, wire::TakeOrders as) {
  ThrowUnless(SessionOf(store)->CheckUsable());
  ThrowUnless(SessionOf(store)->calls().TakeOrders(std::move(as)));
}

}  // namespace ravenstore::client

extern "C" {

const char* ravenstore_last_error(void) {
  return client::LastWords();
}

const char* ravenstore_code_name(ravenstore_code_t code) {
  if (code == RAVENSTORE_OK) return "OK";
  if (code == RAVENSTORE_RECOMPUTE) return "RECOMPUTE";
  return core::Name(static_cast<ErrorCode>(code)).data();
}

const char* ravenstore_version(void) {
  return RAVENSTORE_VERSION;
}

ravenstore_code_t ravenstore_connect(const ravenstore_connect_options_t* given,
                                     ravenstore_store_t** store) {
  return Guard([&]() -> Status {
    if (store == nullptr) return BadArgument("the place for the store is NULL");
    *store = nullptr;
    ravenstore_connect_options_t defaults{};
    RAVEN_ASSIGN_OR_RETURN(const ravenstore_connect_options_t* const options,
                           Read(given, &defaults));
    RAVEN_RETURN_IF_ERROR(CheckFlags(options->flags, RAVENSTORE_FIXED_ADDRESSES));
    client::ConnectOptions converted;
    if (options->socket != nullptr) converted.socket = options->socket;
    if (options->name != nullptr) converted.name = options->name;
    converted.device_budget = core::Bytes(options->device_budget);
    converted.host_budget = core::Bytes(options->host_budget);
    if (options->timeout_ns != 0) converted.timeout = DurationOf(options->timeout_ns);
    converted.fixed_addresses = (options->flags & RAVENSTORE_FIXED_ADDRESSES) != 0;
    RAVEN_ASSIGN_OR_RETURN(Session* const session, Session::Connect(converted));
    *store = reinterpret_cast<ravenstore_store_t*>(session);
    return core::Ok();
  });
}

void ravenstore_disconnect(ravenstore_store_t* store) {
  if (store == nullptr) return;
  static_cast<void>(Guard([&]() -> Status {
    SessionOf(store)->Disconnect();
    return core::Ok();
  }));
}

ravenstore_code_t ravenstore_create(ravenstore_store_t* store, uint64_t bytes,
                                    const ravenstore_create_options_t* options,
                                    ravenstore_tensor_t** tensor) {
  return ravenstore_create_batch(store, &bytes, 1, options, tensor);
}

ravenstore_code_t ravenstore_create_batch(ravenstore_store_t* store, const uint64_t* bytes,
                                          size_t count, const ravenstore_create_options_t* given,
                                          ravenstore_tensor_t** tensors) {
  return Guard([&]() -> Status {
    if (store == nullptr) return BadArgument("the store is NULL");
    if (count > 0 && tensors == nullptr) return BadArgument("the place for the tensors is NULL");
    if (count > 0 && bytes == nullptr) return BadArgument("the sizes are NULL");
    std::fill_n(tensors, count, nullptr);
    RAVEN_ASSIGN_OR_RETURN(const client::CreateOptions options, Convert(given));
    std::vector<uint64_t> handles(count);
    RecordedCall call(SessionOf(store), nullptr, nullptr);
    RAVEN_RETURN_IF_ERROR(
        client::CreateBatch(*SessionOf(store), {bytes, count}, options, handles.data()));
    if (call) [[unlikely]]
      RecordCreated(call, handles, options.name);
    std::transform(handles.begin(), handles.end(), tensors, PublicHandle);
    return core::Ok();
  });
}

ravenstore_code_t ravenstore_adopt(ravenstore_store_t* store, const void* from, uint64_t bytes,
                                   ravenstore_stream_t stream,
                                   const ravenstore_create_options_t* given,
                                   ravenstore_tensor_t** tensor) {
  return Guard([&]() -> Status {
    if (store == nullptr) return BadArgument("the store is NULL");
    if (tensor == nullptr) return BadArgument("the place for the tensor is NULL");
    *tensor = nullptr;
    if (from == nullptr) return BadArgument("the memory to adopt is NULL");
    RAVEN_ASSIGN_OR_RETURN(const client::CreateOptions options, Convert(given));
    RecordedCall call(SessionOf(store), nullptr, nullptr);
    RAVEN_ASSIGN_OR_RETURN(const uint64_t handle,
                           client::Adopt(*SessionOf(store), from, bytes, stream, options));
    if (call) [[unlikely]]
      RecordCreated(call, {handle}, options.name);
    *tensor = PublicHandle(handle);
    return core::Ok();
  });
}

ravenstore_code_t ravenstore_get(ravenstore_store_t* store, ravenstore_tensor_t* tensor,
                                 ravenstore_stream_t stream, const ravenstore_get_options_t* given,
                                 void** address) {
  bool recompute = false;
  const ravenstore_code_t code = Guard([&]() -> Status {
    if (address == nullptr) return BadArgument("the place for the address is NULL");
    *address = nullptr;
    RAVEN_ASSIGN_OR_RETURN(TensorRecord* const record, Resolve(store, tensor));
    RAVEN_ASSIGN_OR_RETURN(const client::GetOptions options, Convert(given));
    RecordedCall call(SessionOf(store), record, stream);
    RAVEN_ASSIGN_OR_RETURN(*address, client::Get(*record, stream, options));
    if (call) [[unlikely]]
      call->Got(record->id, options.read_only, call.Begin(), call.End());
    recompute = client::MustRecompute(*record);
    return core::Ok();
  });
  return recompute ? RAVENSTORE_RECOMPUTE : code;
}

ravenstore_code_t ravenstore_get_batch(ravenstore_store_t* store,
                                       ravenstore_tensor_t* const* tensors, size_t count,
                                       ravenstore_stream_t stream,
                                       const ravenstore_get_options_t* given, void** addresses) {
  bool recompute = false;
  const ravenstore_code_t code = Guard([&]() -> Status {
    if (count > 0 && addresses == nullptr) return BadArgument("the place for addresses is NULL");
    std::fill_n(addresses, count, nullptr);
    RAVEN_ASSIGN_OR_RETURN(const std::vector<TensorRecord*> records,
                           ResolveAll(store, tensors, count));
    RAVEN_ASSIGN_OR_RETURN(const client::GetOptions options, Convert(given));
    RecordedCall call(SessionOf(store), records.empty() ? nullptr : records[0], stream);
    Status status = client::GetBatch(records, stream, options, addresses);
    if (!status.ok()) std::fill_n(addresses, count, nullptr);
    if (call && status.ok()) [[unlikely]]
      RecordGot(call, records, options);
    recompute =
        status.ok() && std::any_of(records.begin(), records.end(), [](const TensorRecord* record) {
          return client::MustRecompute(*record);
        });
    return status;
  });
  return recompute ? RAVENSTORE_RECOMPUTE : code;
}

ravenstore_code_t ravenstore_begin_get_batch(ravenstore_store_t* store,
                                             ravenstore_tensor_t* const* tensors, size_t count,
                                             const ravenstore_get_options_t* given) {
  return Guard([&]() -> Status {
    RAVEN_ASSIGN_OR_RETURN(const std::vector<TensorRecord*> records,
                           ResolveAll(store, tensors, count));
    RAVEN_ASSIGN_OR_RETURN(const client::GetOptions options, Convert(given));
    return client::BeginGets(records, options);
  });
}

int32_t ravenstore_must_recompute(const ravenstore_tensor_t* tensor) {
  if (tensor == nullptr) return 0;
  const TensorRecord* record = client::LiveRecordOf(HandleOf(tensor));
  return record != nullptr && client::MustRecompute(*record) ? 1 : 0;
}

ravenstore_code_t ravenstore_get_into(ravenstore_store_t* store, ravenstore_tensor_t* tensor,
                                      void* to, ravenstore_stream_t stream,
                                      const ravenstore_get_options_t* given) {
  bool recompute = false;
  const ravenstore_code_t code = Guard([&]() -> Status {
    if (to == nullptr) return BadArgument("the memory to copy to is NULL");
    RAVEN_ASSIGN_OR_RETURN(TensorRecord* const record, Resolve(store, tensor));
    RAVEN_ASSIGN_OR_RETURN(const client::GetOptions options, Convert(given));
    RecordedCall call(SessionOf(store), record, stream);
    RAVEN_RETURN_IF_ERROR(client::GetInto(*record, to, stream, options));
    if (call) [[unlikely]] {
      call->Got(record->id, true, call.Begin(), call.End());
      call->Put(record->id, {.not_modified = true}, {});
    }
    recompute = client::MustRecompute(*record);
    return core::Ok();
  });
  return recompute ? RAVENSTORE_RECOMPUTE : code;
}

ravenstore_code_t ravenstore_put(ravenstore_store_t* store, ravenstore_tensor_t* tensor,
                                 ravenstore_stream_t stream,
                                 const ravenstore_put_options_t* given) {
  return Guard([&]() -> Status {
    RAVEN_ASSIGN_OR_RETURN(TensorRecord* const record, Resolve(store, tensor));
    RAVEN_ASSIGN_OR_RETURN(const client::PutOptions options, Convert(given));
    client::SharedTicket alone;
    RecordedCall call(SessionOf(store), record, stream);
    RAVEN_RETURN_IF_ERROR(client::Put(*record, stream, options, &alone));
    if (call) [[unlikely]]
      call->Put(record->id, options, call.Begin());
    return core::Ok();
  });
}

ravenstore_code_t ravenstore_put_batch(ravenstore_store_t* store,
                                       ravenstore_tensor_t* const* tensors, size_t count,
                                       ravenstore_stream_t stream,
                                       const ravenstore_put_options_t* given) {
  return Guard([&]() -> Status {
    RAVEN_ASSIGN_OR_RETURN(const std::vector<TensorRecord*> records,
                           ResolveAll(store, tensors, count));
    RAVEN_ASSIGN_OR_RETURN(const client::PutOptions options, Convert(given));
    client::SharedTicket shared;
    Status first = core::Ok();
    RecordedCall call(SessionOf(store), records.empty() ? nullptr : records[0], stream);
    for (TensorRecord* record : records) {
      Status put = client::Put(*record, stream, options, &shared);
      if (call && put.ok()) [[unlikely]]
        call->Put(record->id, options, call.Begin());
      if (first.ok() && !put.ok()) first = std::move(put);
    }
    return first;
  });
}

ravenstore_code_t ravenstore_free(ravenstore_store_t* store, ravenstore_tensor_t* tensor,
                                  ravenstore_stream_t stream) {
  if (tensor == nullptr) return RAVENSTORE_OK;
  return ravenstore_free_batch(store, &tensor, 1, stream);
}

ravenstore_code_t ravenstore_free_batch(ravenstore_store_t* store,
                                        ravenstore_tensor_t* const* tensors, size_t count,
                                        ravenstore_stream_t stream) {
  return Guard([&]() -> Status {
    if (count > 0 && tensors == nullptr) return BadArgument("the tensors are NULL");
    std::vector<uint64_t> handles;
    handles.reserve(count);
    Status first = core::Ok();
    for (size_t i = 0; i < count; ++i) {
      if (tensors[i] == nullptr) continue;
      const Result<TensorRecord*> record = Resolve(store, tensors[i]);
      if (record.ok()) {
        handles.push_back(HandleOf(tensors[i]));
      } else if (first.ok()) {
        first = record.error();
      }
    }
    RecordFreed(handles, stream);
    Status freed = client::FreeBatch(handles, stream);
    return first.ok() ? freed : first;
  });
}

void* ravenstore_data(const ravenstore_tensor_t* tensor) {
  if (tensor == nullptr) return nullptr;
  const TensorRecord* record = client::LiveRecordOf(HandleOf(tensor));
  return record != nullptr ? client::Address(*record) : nullptr;
}

uint64_t ravenstore_size(const ravenstore_tensor_t* tensor) {
  if (tensor == nullptr) return 0;
  const TensorRecord* record = client::LiveRecordOf(HandleOf(tensor));
  return record != nullptr ? record->bytes : 0;
}

uint64_t ravenstore_id(const ravenstore_tensor_t* tensor) {
  if (tensor == nullptr) return 0;
  const TensorRecord* record = client::LiveRecordOf(HandleOf(tensor));
  return record != nullptr ? record->id : 0;
}

int32_t ravenstore_device(const ravenstore_tensor_t* tensor) {
  if (tensor == nullptr) return -1;
  const TensorRecord* record = client::LiveRecordOf(HandleOf(tensor));
  return record != nullptr ? client::DeviceOf(*record) : -1;
}

int32_t ravenstore_ready(const ravenstore_tensor_t* tensor) {
  if (tensor == nullptr) return 0;
  const TensorRecord* record = client::LiveRecordOf(HandleOf(tensor));
  if (record == nullptr) return 0;
  switch (client::ReadinessOf(*record)) {
    case client::Readiness::kReady: return 1;
    case client::Readiness::kNotYet: return 0;
    case client::Readiness::kLost: break;
  }
  return -1;
}

ravenstore_code_t ravenstore_check(ravenstore_store_t* store, ravenstore_stream_t stream) {
  return Guard([&]() -> Status {
    if (store == nullptr) return BadArgument("the store is NULL");
    Session& session = *SessionOf(store);
    RAVEN_RETURN_IF_ERROR(session.CheckUsable());
    for (client::ClientStream* known : session.streams().Known(stream)) {
      if (!known->SawLoss()) continue;
      return Error{
          ErrorCode::kLost,
          "a tensor that this stream waited for was lost: its work ran on undefined bytes"};
    }
    return core::Ok();
  });
}

ravenstore_code_t ravenstore_pinned_alloc(ravenstore_store_t* store, uint64_t bytes,
                                          const ravenstore_pinned_options_t* options,
                                          void** address) {
  return Guard([&]() -> Status {
    if (store == nullptr || address == nullptr)
      return BadArgument("the store or the address is NULL");
    ravenstore_pinned_options_t defaults{};
    RAVEN_ASSIGN_OR_RETURN(const ravenstore_pinned_options_t* const given,
                           Read(options, &defaults));
    RAVEN_ASSIGN_OR_RETURN(
        *address,
        client::PinnedAlloc(*SessionOf(store), bytes,
                            {.device = given->device, .timeout = DurationOf(given->timeout_ns)}));
    return core::Ok();
  });
}

ravenstore_code_t ravenstore_pinned_free(ravenstore_store_t* store, void* address,
                                         const ravenstore_stream_t* streams, size_t count) {
  return Guard([&]() -> Status {
    if (address == nullptr) return core::Ok();
    if (store == nullptr) return BadArgument("the store is NULL");
    if (count > 0 && streams == nullptr) return BadArgument("the streams are NULL");
    return client::PinnedFree(*SessionOf(store), address, {streams, count});
  });
}

ravenstore_code_t ravenstore_step(ravenstore_store_t* store) {
  return Guard([&]() -> Status {
    if (store == nullptr) return BadArgument("the store is NULL");
    RAVEN_RETURN_IF_ERROR(SessionOf(store)->CheckUsable());
    if (RecordedCall call(SessionOf(store), nullptr, nullptr); call) [[unlikely]]
      call->Stepped(call.Begin());
    return SessionOf(store)->Step();
  });
}

ravenstore_code_t ravenstore_keep_in_place(ravenstore_store_t* store, ravenstore_tensor_t* tensor) {
  return Guard([&]() -> Status {
    RAVEN_ASSIGN_OR_RETURN(TensorRecord* const record, Resolve(store, tensor));
    return client::KeepInPlace(*record);
  });
}

ravenstore_code_t ravenstore_end_keep_in_place(ravenstore_store_t* store,
                                               ravenstore_tensor_t* tensor) {
  return Guard([&]() -> Status {
    RAVEN_ASSIGN_OR_RETURN(TensorRecord* const record, Resolve(store, tensor));
    return client::EndKeepInPlace(*record);
  });
}

ravenstore_code_t ravenstore_trim(ravenstore_store_t* store) {
  return Guard([&]() -> Status {
    if (store == nullptr) return BadArgument("the store is NULL");
    RAVEN_RETURN_IF_ERROR(SessionOf(store)->CheckUsable());
    return SessionOf(store)->calls().Trim();
  });
}

ravenstore_code_t ravenstore_sleep(ravenstore_store_t* store, uint64_t timeout_ns,
                                   uint64_t* bytes) {
  return Guard([&]() -> Status {
    if (store == nullptr) return BadArgument("the store is NULL");
    Session& session = *SessionOf(store);
    const core::Duration timeout = timeout_ns != 0 ? DurationOf(timeout_ns) : session.timeout();
    RAVEN_ASSIGN_OR_RETURN(const core::Bytes slept, client::Sleep(session, timeout));
    if (bytes != nullptr) *bytes = slept.count();
    return core::Ok();
  });
}

ravenstore_code_t ravenstore_wake(ravenstore_store_t* store) {
  return Guard([&]() -> Status {
    if (store == nullptr) return BadArgument("the store is NULL");
    RAVEN_RETURN_IF_ERROR(SessionOf(store)->CheckUsable());
    return SessionOf(store)->calls().Wake();
  });
}

ravenstore_code_t ravenstore_get_stats(ravenstore_store_t* store, ravenstore_stats_t* stats) {
  return Guard([&]() -> Status {
    if (store == nullptr || stats == nullptr) return BadArgument("the store or the stats are NULL");
    const size_t room = std::min(stats->struct_size, sizeof(*stats));
    if (room < sizeof(size_t)) return BadArgument("stats: set struct_size to sizeof(the struct)");
    RAVEN_RETURN_IF_ERROR(SessionOf(store)->CheckUsable());
    RAVEN_ASSIGN_OR_RETURN(const client::SessionStats asked, SessionOf(store)->Stats());
    ravenstore_stats_t filled{};
    filled.struct_size = stats->struct_size;
    filled.tensors = asked.daemon_stats.tensors;
    filled.gets = asked.daemon_stats.gets;
    filled.hits = asked.daemon_stats.hits;
    filled.late_hits = asked.daemon_stats.late_hits;
    filled.misses = asked.daemon_stats.misses;
    filled.prefetches = asked.daemon_stats.prefetches;
    filled.bytes_out = asked.daemon_stats.bytes_out;
    filled.bytes_in = asked.daemon_stats.bytes_in;
    filled.device_bytes = asked.device_bytes;
    filled.host_bytes = asked.host_bytes;
    filled.device_budget = asked.device_budget;
    filled.host_budget = asked.host_budget;
    filled.stall_ns = asked.stall_ns;
    filled.pinned_bytes = asked.daemon_stats.pinned_bytes;
    filled.pinned_locked = asked.daemon_stats.pinned_locked;
    filled.page_bytes = asked.daemon_stats.page_bytes;
    std::memcpy(stats, &filled, room);
    return core::Ok();
  });
}

const char* ravenstore_backend(const ravenstore_store_t* store) {
  if (store == nullptr) return "";
  return reinterpret_cast<const Session*>(store)->backend().c_str();
}

ravenstore_host_stream_t ravenstore_host_stream_create(void) {
  HostStream* stream = nullptr;
  static_cast<void>(Guard([&]() -> Status {
    stream = new HostStream;
    return core::Ok();
  }));
  return reinterpret_cast<ravenstore_host_stream_t>(stream);
}

void ravenstore_host_stream_destroy(ravenstore_host_stream_t stream) {
  delete HostStreamOf(stream);
}

void ravenstore_host_stream_run(ravenstore_host_stream_t stream, void (*function)(void*),
                                void* argument) {
  if (stream == nullptr || function == nullptr) return;
  static_cast<void>(Guard([&]() -> Status {
    HostStreamOf(stream)->Run([function, argument] { function(argument); });
    return core::Ok();
  }));
}

void ravenstore_host_stream_synchronize(ravenstore_host_stream_t stream) {
  if (stream == nullptr) return;
  static_cast<void>(Guard([&]() -> Status {
    HostStreamOf(stream)->Synchronize();
    return core::Ok();
  }));
}

}  // extern "C"
