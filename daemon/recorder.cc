#include "daemon/recorder.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>

namespace ravenstore::daemon {

using core::ClientId;
using core::Duration;
using core::NextUse;
using core::TensorId;
using core::TensorView;
using core::Tick;
using core::ToInt;
using proto::TraceOp;

namespace {
// Shorter pauses between calls are no compute.
constexpr Duration kPauseLeast = std::chrono::microseconds(1);

// A reader takes no times beyond a hundred days, and clients say what they like.
uint64_t Nanoseconds(Duration duration) {
  return static_cast<uint64_t>(std::clamp<int64_t>(duration.count(), 0, int64_t{1} << 53));
}
}  // namespace

Recorder::Client& Recorder::ClientOf(ClientId client, Tick now) {
  return clients_.try_emplace(client, Client{clients(), now}).first->second;
}

TraceOp Recorder::Op(TraceOp::Kind kind, ClientId client, TensorId tensor, Tick now) {
  Asked(client, now);
  TraceOp op;
  op.set_kind(kind);
  op.set_client(ClientOf(client, now).index);
  if (tensor != core::kNoTensor) op.set_tensor(ToInt(tensor));
  return op;
}

bool Recorder::Append(const TraceOp& op) {
  const size_t size = op.ByteSizeLong();
  const size_t framed =
      size + google::protobuf::io::CodedOutputStream::VarintSize32(static_cast<uint32_t>(size));
  if (bytes_ + framed > options_.bytes_max) {
    ++dropped_;
    return false;
  }
  if (chunks_.empty() || chunks_.back().size() + framed > kChunk) chunks_.emplace_back();
  google::protobuf::io::StringOutputStream stream(&chunks_.back());
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.WriteVarint32(static_cast<uint32_t>(size));
  op.SerializeToCodedStream(&coded);
  bytes_ += framed;
  ++ops_;
  return true;
}

std::string Recorder::Take() {
  if (chunks_.empty()) return {};
  std::string chunk = std::move(chunks_.front());
  chunks_.pop_front();
  bytes_ -= chunk.size();
  return chunk;
}

void Recorder::Asked(ClientId id, Tick now) {
  Client& client = ClientOf(id, now);
  const Duration pause = now - client.last;
  client.last = std::max(client.last, now);
  if (pause < kPauseLeast) return;
  TraceOp op;
  op.set_kind(TraceOp::COMPUTE);
  op.set_client(client.index);
  op.set_ns(Nanoseconds(pause));
  Append(op);
}

void Recorder::Answered(ClientId id, Tick now) {
  Client& client = ClientOf(id, now);
  client.last = std::max(client.last, now);
}

Recorder::Known* Recorder::KnownOf(const TensorView& tensor, Tick now) {
  if (const auto known = known_.find(tensor.id); known != known_.end()) return &known->second;
  TraceOp op = Op(TraceOp::CREATE, tensor.client, tensor.id, now);
  op.set_bytes(tensor.size.count());
  op.set_name(options_.name(tensor.client, tensor.name));
  if (!Append(op)) return nullptr;
  return &known_.emplace(tensor.id, Known{.in_use = true, .writes = 0}).first->second;
}

void Recorder::Created(const TensorView& tensor, Tick now) {
  KnownOf(tensor, now);
}

void Recorder::Got(const TensorView& tensor, Tick now) {
  const bool is_new = !known_.contains(tensor.id);
  Known* known = KnownOf(tensor, now);
  if (known == nullptr) return;
  if (is_new) {
    TraceOp put = Op(TraceOp::PUT, tensor.client, tensor.id, now);
    put.set_modified(true);
    if (!Append(put)) return;
    known->in_use = false;
  }
  // Of overlapping gets the trace has the first.
  if (!known->in_use) known->in_use = Append(Op(TraceOp::GET, tensor.client, tensor.id, now));
}

void Recorder::Put(const TensorView& tensor, const core::PutSeen& put, Tick now) {
  Known* known = KnownOf(tensor, now);
  if (known == nullptr) return;
  // Its get was not seen: the log was full.
  if (!known->in_use) known->in_use = Append(Op(TraceOp::GET, tensor.client, tensor.id, now));
  if (!known->in_use) return;
  TraceOp op = Op(TraceOp::PUT, tensor.client, tensor.id, now);
  op.set_modified(put.writes != known->writes);
  op.set_recompute_ns(Nanoseconds(put.recompute));
  op.set_priority(static_cast<TraceOp::Priority>(put.priority));
  switch (put.next_use.kind) {
    case NextUse::Kind::kUnknown: break;
    case NextUse::Kind::kIn: op.set_needed_in_ns(Nanoseconds(put.next_use.in)); break;
    case NextUse::Kind::kOrder: op.set_order(put.next_use.order); break;
    case NextUse::Kind::kNever: op.set_not_needed(true); break;
  }
  if (!Append(op)) return;
  known->in_use = false;
  known->writes = put.writes;
}

void Recorder::Freed(const TensorView& tensor, Tick now) {
  const auto known = known_.find(tensor.id);
  if (known == known_.end()) return;
  Append(Op(TraceOp::FREE, tensor.client, tensor.id, now));
  known_.erase(known);
}

void Recorder::Stepped(ClientId client, Tick now) {
  Append(Op(TraceOp::STEP, client, core::kNoTensor, now));
}

}  // namespace ravenstore::daemon
