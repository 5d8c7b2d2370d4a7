#include "sim/trace.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <istream>
#include <map>
#include <numeric>
#include <ostream>
#include <unordered_map>

#include "proto/trace.pb.h"
#include "sim/hash.h"

namespace ravenstore::sim {

using core::Bytes;
using core::Duration;
using core::ErrorCode;
using core::NextUse;
using core::Result;
using core::Status;

namespace {

constexpr uint32_t kMessageMax = 64 << 10;
constexpr uint32_t kClientsMax = 4096;
constexpr uint64_t kBytesMax = uint64_t{1} << 40;
constexpr uint64_t kNanosecondsMax = uint64_t{1} << 53;
// What one client may have at one time, so that sums over all of them fit 63 bits: 1 PiB.
constexpr Bytes kLiveMax{uint64_t{1} << 50};

core::Error Corrupt(size_t index, const std::string& what) {
  return {ErrorCode::kCorrupt, "message " + std::to_string(index) + " of the trace: " + what};
}

// The next message's bytes; empty at the end, which is inside a message if that `may_be_cut`.
Result<std::string> NextMessage(std::istream& from, size_t index, bool may_be_cut, bool* end) {
  const auto cut = [&]() -> Result<std::string> {
    *end = true;
    if (may_be_cut) return std::string();
    return Corrupt(index, "the file ends inside it");
  };
  uint32_t length = 0;
  for (int shift = 0;; shift += 7) {
    const int byte = from.get();
    if (byte == std::istream::traits_type::eof()) {
      if (shift > 0) return cut();
      *end = true;
      return std::string();
    }
    if (shift > 28 || (shift == 28 && byte > 0x0f))
      return Corrupt(index, "its length is no varint of 32 bits");
    length |= static_cast<uint32_t>(byte & 0x7f) << shift;
    if ((byte & 0x80) == 0) break;
  }
  if (length > kMessageMax) return Corrupt(index, "longer than any message is");
  std::string bytes(length, '\0');
  if (!from.read(bytes.data(), length)) return cut();
  return bytes;
}

NextUse HintOf(const proto::TraceOp& op) {
  if (op.not_needed()) return {NextUse::Kind::kNever, {}, 0};
  if (op.has_order()) return {NextUse::Kind::kOrder, {}, op.order()};
  if (op.has_needed_in_ns()) return {NextUse::Kind::kIn, Duration(op.needed_in_ns()), 0};
  return {};
}

// What the store allows, call by call in the order of the trace.
class Rules {
 public:
  explicit Rules(uint32_t clients) : computed_(clients), live_(clients) {}

  // What is wrong with the trace's next call; empty when nothing is.
  std::string Add(const Trace& trace, const Op& op) {
    if (op.kind == OpKind::kCompute) {
      computed_[op.client] += op.time;
      return computed_[op.client] > kComputeMax
                 ? "its client's compute times sum to more than 2^49 ns (6 days)"
                 : "";
    }
    if (op.kind > OpKind::kFree) return "";
    const TraceTensor& tensor = trace.tensors[op.tensor];
    if (tensor.client != op.client) return "a use by another client than the tensor's";
    if (states_.size() < trace.tensors.size()) states_.resize(trace.tensors.size(), State::kNone);
    const State was = states_[op.tensor];
    switch (op.kind) {
      case OpKind::kCreate: states_[op.tensor] = State::kInUse; break;
      case OpKind::kGet: states_[op.tensor] = State::kInUse; break;
      case OpKind::kPut: states_[op.tensor] = State::kIdle; break;
      default: states_[op.tensor] = State::kFreed; break;
    }
    if (op.kind == OpKind::kCreate) {
      live_[op.client] += tensor.bytes;
      if (was != State::kNone) return "a second create";
      return live_[op.client] > kLiveMax ? "its client has more than 1 PiB at once" : "";
    }
    if (was == State::kNone) return "a use before the create";
    if (was == State::kFreed)
      return op.kind == OpKind::kFree ? "a second free" : "a use after the free";
    if (op.kind == OpKind::kGet && was != State::kIdle) return "a get before the put";
    if (op.kind == OpKind::kPut && was != State::kInUse) return "a put before the get";
    if (op.kind == OpKind::kFree) live_[op.client] -= tensor.bytes;
    return "";
  }

 private:
  enum class State : uint8_t { kNone, kInUse, kIdle, kFreed };
  std::vector<State> states_;       // by tensor
  std::vector<Duration> computed_;  // by client
  std::vector<Bytes> live_;         // by client
};

class Reader {
 public:
  explicit Reader(Trace* trace) : trace_(trace), rules_(trace->clients) {}

  Status Add(const proto::TraceOp& message, size_t index) {
    if (message.kind() < 0 || message.kind() > 5) return Corrupt(index, "an unknown kind of call");
    if (message.client() >= trace_->clients) {
      return Corrupt(index, "client " + std::to_string(uint64_t{message.client()} + 1) + " of " +
                                std::to_string(trace_->clients));
    }
    if (std::max({message.ns(), message.recompute_ns(), message.needed_in_ns(), message.waited_ns(),
                  message.program_ns(), message.blocked_ns()}) > kNanosecondsMax)
      return Corrupt(index, "a time beyond a hundred days");
    if (message.not_needed() + message.has_order() + message.has_needed_in_ns() > 1)
      return Corrupt(index, "more than one hint");
    Op op;
    op.kind = static_cast<OpKind>(message.kind());
    op.client = message.client();
    op.time = Duration(message.ns());
    if (op.kind == OpKind::kCompute) {
      op.call = CallOf(message);
      op.unknown = message.unknown();
    }
    op.read_only = message.read_only();
    op.modified = message.modified();
    op.next_use = HintOf(message);
    op.recompute = Duration(message.recompute_ns());
    op.waited = Duration(message.waited_ns());
    op.program = Duration(message.program_ns());
    op.blocked = Duration(message.blocked_ns());
    if (message.priority() < 0 || message.priority() > 2)
      return Corrupt(index, "an unknown priority");
    op.priority = static_cast<core::Priority>(message.priority());
    const bool names_tensor = op.kind <= OpKind::kFree;
    if (op.kind == OpKind::kCreate) {
      if (message.bytes() == 0 || message.bytes() > kBytesMax)
        return Corrupt(index, "a tensor has from 1 byte to 1 TiB");
      const auto row = static_cast<uint32_t>(trace_->tensors.size());
      if (!rows_.emplace(message.tensor(), row).second)
        return Corrupt(index, "tensor " + std::to_string(message.tensor()) + " is created twice");
      trace_->tensors.push_back({op.client, Bytes(message.bytes()), message.name()});
      op.tensor = row;
    } else if (names_tensor) {
      const auto found = rows_.find(message.tensor());
      if (found == rows_.end())
        return Corrupt(index, "tensor " + std::to_string(message.tensor()) + " was not created");
      op.tensor = found->second;
    }
    trace_->ops.push_back(op);
    if (const std::string wrong = rules_.Add(*trace_, op); !wrong.empty()) {
      return Corrupt(
          index, names_tensor ? wrong + " of tensor " + std::to_string(message.tensor()) : wrong);
    }
    return core::Ok();
  }

 private:
  // What the number stands for; a name comes with its first.
  uint32_t CallOf(const proto::TraceOp& message) {
    if (message.call() == 0) return 0;
    const auto [entry, is_new] =
        calls_.try_emplace(message.call(), static_cast<uint32_t>(trace_->calls.size()));
    if (is_new) trace_->calls.push_back(message.name());
    return entry->second;
  }

  Trace* trace_;
  Rules rules_;
  std::unordered_map<uint32_t, uint32_t> calls_;
  std::unordered_map<uint64_t, uint32_t> rows_;
};

// `is_first`: of its kind of call.
proto::TraceOp ToMessage(const Trace& trace, const Op& op, bool is_first) {
  proto::TraceOp message;
  message.set_kind(static_cast<proto::TraceOp::Kind>(op.kind));
  message.set_client(op.client);
  message.set_ns(static_cast<uint64_t>(op.time.count()));
  if (op.kind <= OpKind::kFree) message.set_tensor(op.tensor);
  if (op.kind == OpKind::kCreate) {
    message.set_bytes(trace.tensors[op.tensor].bytes.count());
    message.set_name(trace.tensors[op.tensor].name);
  }
  if (op.kind == OpKind::kCompute) {
    message.set_call(op.call);
    message.set_unknown(op.unknown);
    if (is_first) message.set_name(trace.calls[op.call]);
  }
  message.set_read_only(op.read_only);
  message.set_modified(op.modified);
  message.set_recompute_ns(static_cast<uint64_t>(op.recompute.count()));
  message.set_waited_ns(static_cast<uint64_t>(op.waited.count()));
  message.set_program_ns(static_cast<uint64_t>(op.program.count()));
  message.set_blocked_ns(static_cast<uint64_t>(op.blocked.count()));
  message.set_priority(static_cast<proto::TraceOp::Priority>(op.priority));
  switch (op.next_use.kind) {
    case NextUse::Kind::kUnknown: break;
    case NextUse::Kind::kIn:
      message.set_needed_in_ns(static_cast<uint64_t>(op.next_use.in.count()));
      break;
    case NextUse::Kind::kOrder: message.set_order(op.next_use.order); break;
    case NextUse::Kind::kNever: message.set_not_needed(true); break;
  }
  return message;
}

void WriteDelimited(const google::protobuf::MessageLite& message, std::ostream& to) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.WriteVarint32(static_cast<uint32_t>(message.ByteSizeLong()));
    message.SerializeToCodedStream(&coded);
  }
  to.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace

Result<Trace> Read(std::istream& from) {
  Trace trace;
  bool end = false;
  RAVEN_ASSIGN_OR_RETURN(const std::string first, NextMessage(from, 0, false, &end));
  proto::TraceHeader header;
  if (end || !header.ParseFromString(first)) return Corrupt(0, "it is no trace's header");
  if (header.version() != kTraceVersion)
    return Corrupt(0, "the trace has version " + std::to_string(header.version()) +
                          ", this program reads " + std::to_string(kTraceVersion));
  if (header.clients() == 0 || header.clients() > kClientsMax)
    return Corrupt(0, "a trace has 1 to " + std::to_string(kClientsMax) + " clients");
  trace.name = header.name();
  trace.clients = header.clients();
  Reader reader(&trace);
  for (size_t index = 1;; ++index) {
    RAVEN_ASSIGN_OR_RETURN(const std::string bytes,
                           NextMessage(from, index, header.may_be_cut(), &end));
    if (end) break;
    proto::TraceOp message;
    if (!message.ParseFromString(bytes)) return Corrupt(index, "it is no call");
    RAVEN_RETURN_IF_ERROR(reader.Add(message, index));
  }
  return trace;
}

void Write(const Trace& trace, std::ostream& to) {
  proto::TraceHeader header;
  header.set_version(kTraceVersion);
  header.set_name(trace.name);
  header.set_clients(trace.clients);
  WriteDelimited(header, to);
  std::vector<bool> named(trace.calls.size());
  for (const Op& op : trace.ops) {
    const bool is_first = op.kind == OpKind::kCompute && !named[op.call];
    if (is_first) named[op.call] = true;
    WriteDelimited(ToMessage(trace, op, is_first), to);
  }
}

Status Validate(const Trace& trace) {
  Rules rules(trace.clients);
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    const std::string wrong = rules.Add(trace, trace.ops[i]);
    if (wrong.empty()) continue;
    return core::Error{ErrorCode::kCorrupt,
                       "call " + std::to_string(i) + " of the trace: " + wrong};
  }
  return core::Ok();
}

std::vector<StepTimes> Trace::TimesByStep(uint32_t client) const {
  std::vector<StepTimes> steps(1);
  for (const Op& op : ops) {
    if (op.client != client) continue;
    if (op.kind == OpKind::kStep) steps.emplace_back();
    if (op.kind == OpKind::kCompute) steps.back().compute += op.time;
    if (op.kind == OpKind::kCreate) steps.back().waited_for_creates += op.waited;
    if (op.kind == OpKind::kGet) steps.back().waited_for_gets += op.waited;
    steps.back().program += op.program;
    steps.back().blocked += op.blocked;
  }
  return steps;
}

// Clients are independent: each may have its most when the others have theirs.
std::vector<Bytes> Trace::FootprintByClient() const {
  std::vector<Bytes> live(clients);
  std::vector<Bytes> most(clients);
  for (const Op& op : ops) {
    if (op.kind == OpKind::kCreate) live[op.client] += tensors[op.tensor].bytes;
    if (op.kind == OpKind::kFree) live[op.client] -= tensors[op.tensor].bytes;
    most[op.client] = std::max(most[op.client], live[op.client]);
  }
  return most;
}

Bytes Trace::Footprint() const {
  const std::vector<Bytes> most = FootprintByClient();
  return std::accumulate(most.begin(), most.end(), Bytes{});
}

Bytes Trace::LargestStep() const {
  std::vector<Bytes> used(clients);
  std::vector<Bytes> most(clients);
  std::vector<bool> in_use(tensors.size());
  for (const Op& op : ops) {
    if (op.kind > OpKind::kFree) continue;
    const bool now = op.kind == OpKind::kCreate || op.kind == OpKind::kGet;
    if (now && !in_use[op.tensor]) used[op.client] += tensors[op.tensor].bytes;
    if (!now && in_use[op.tensor]) used[op.client] -= tensors[op.tensor].bytes;
    in_use[op.tensor] = now;
    most[op.client] = std::max(most[op.client], used[op.client]);
  }
  return std::accumulate(most.begin(), most.end(), Bytes{});
}

uint64_t Trace::Fingerprint() const {
  Hash hash;
  for (const TraceTensor& tensor : tensors) {
    hash.Add(tensor.client);
    hash.Add(tensor.bytes.count());
  }
  for (const Op& op : ops) {
    hash.Add(static_cast<uint64_t>(op.kind) | uint64_t{op.read_only} << 8 |
             uint64_t{op.modified} << 9 | uint64_t{op.unknown} << 10 |
             static_cast<uint64_t>(op.priority) << 16 | uint64_t{op.client} << 32);
    hash.Add(op.tensor);
  }
  return hash.value();
}

Trace Trace::Only(uint32_t client) const {
  Trace only;
  only.name = name;
  only.calls = calls;
  std::vector<uint32_t> numbers(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].client != client) continue;
    numbers[i] = static_cast<uint32_t>(only.tensors.size());
    only.tensors.push_back({0, tensors[i].bytes, tensors[i].name});
  }
  for (Op op : ops) {
    if (op.client != client) continue;
    op.client = 0;
    op.tensor = op.tensor < numbers.size() ? numbers[op.tensor] : 0;
    only.ops.push_back(op);
  }
  return only;
}

std::vector<std::pair<std::string, uint64_t>> Trace::UnknownCalls() const {
  // Kinds of one name differ in what people do not see.
  std::map<std::string, uint64_t> counts;
  for (const Op& op : ops) {
    if (op.unknown) ++counts[calls[op.call]];
  }
  std::vector<std::pair<std::string, uint64_t>> sorted(counts.begin(), counts.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return sorted;
}

}  // namespace ravenstore::sim
