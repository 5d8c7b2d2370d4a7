#include "sim/trace.h"

#include <gtest/gtest.h>

#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "proto/trace.pb.h"
#include "sim/generators.h"

namespace ravenstore::sim {
namespace {

std::string Written(const Trace& trace) {
  std::ostringstream to;
  Write(trace, to);
  return to.str();
}

core::Result<Trace> ReadText(const std::string& bytes) {
  std::istringstream from(bytes);
  return Read(from);
}

Trace Small() {
  Trace trace;
  trace.name = "small";
  trace.tensors = {{0, core::MiB(4), "weights"}, {0, core::KiB(3), ""}};
  using core::NextUse;
  trace.ops = {
      {.kind = OpKind::kCreate, .tensor = 0},
      {.kind = OpKind::kCompute, .time = core::Duration(1234567)},
      {.kind = OpKind::kPut,
       .tensor = 0,
       .modified = true,
       .next_use = {NextUse::Kind::kIn, core::Duration(777), 0},
       .recompute = core::Duration(99),
       .priority = core::Priority::kLow},
      {.kind = OpKind::kCreate, .tensor = 1},
      {.kind = OpKind::kPut, .tensor = 1, .next_use = {NextUse::Kind::kOrder, {}, -5}},
      {.kind = OpKind::kGet, .tensor = 0, .read_only = true},
      {.kind = OpKind::kPut, .tensor = 0, .next_use = {NextUse::Kind::kNever, {}, 0}},
      {.kind = OpKind::kFree, .tensor = 1},
      {.kind = OpKind::kStep},
  };
  return trace;
}

TEST(TraceTest, ReadsWhatItWrote) {
  const std::string bytes = Written(Small());
  const auto read = ReadText(bytes);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->name, "small");
  ASSERT_EQ(read->tensors.size(), 2u);
  EXPECT_EQ(read->tensors[0].name, "weights");
  EXPECT_EQ(read->tensors[0].bytes, core::MiB(4));
  ASSERT_EQ(read->ops.size(), Small().ops.size());
  EXPECT_EQ(read->ops[2].next_use.in, core::Duration(777));
  EXPECT_EQ(read->ops[2].recompute, core::Duration(99));
  EXPECT_EQ(read->ops[2].priority, core::Priority::kLow);
  EXPECT_EQ(read->ops[4].priority, core::Priority::kNormal);
  EXPECT_EQ(read->ops[4].next_use.order, -5);
  EXPECT_EQ(read->ops[6].next_use.kind, core::NextUse::Kind::kNever);
  EXPECT_EQ(Written(*read), bytes);
}

TEST(TraceTest, NamesOfKernelsAreWrittenOnceAndReadBack) {
  Trace trace;
  trace.calls = {"", "gemm", "opaque", ""};
  for (const uint32_t call : {1, 0, 2, 1, 2, 2, 3}) {
    trace.ops.push_back(
        {.kind = OpKind::kCompute, .time = core::Duration(5), .call = call, .unknown = call >= 2});
  }
  const std::string bytes = Written(trace);
  EXPECT_EQ(bytes.find("gemm"), bytes.rfind("gemm"));
  const auto read = ReadText(bytes);
  ASSERT_TRUE(read.ok()) << read.error().message;
  std::string names;
  for (const Op& op : read->ops) names += read->calls[op.call] + (op.unknown ? "! " : " ");
  EXPECT_EQ(names, "gemm  opaque! gemm opaque! opaque! ! ");
  EXPECT_EQ(Written(*read), bytes);
  const std::vector<std::pair<std::string, uint64_t>> unknown = {{"opaque", 3}, {"", 1}};
  EXPECT_EQ(read->UnknownCalls(), unknown);
  EXPECT_TRUE(Small().UnknownCalls().empty());
}

TEST(TraceTest, EveryGeneratorsTraceComesBackTheSame) {
  for (const std::string& name : GeneratorNames()) {
    const Trace trace = WithHints(Generate(name, kHardware[0], 2), Hints::kOrder);
    ASSERT_TRUE(Validate(trace).ok()) << name;
    const std::string bytes = Written(trace);
    const auto read = ReadText(bytes);
    ASSERT_TRUE(read.ok()) << name << ": " << read.error().message;
    EXPECT_EQ(Written(*read), bytes) << name;
    // Compact: a handful of bytes for a call.
    EXPECT_LT(bytes.size(), trace.ops.size() * 24) << name;
  }
}

TEST(TraceTest, SaysWhatIsWrong) {
  EXPECT_NE(ReadText("").error().message.find("header"), std::string::npos);
  Trace trace = Small();
  std::string bytes = Written(trace);
  EXPECT_NE(ReadText(bytes.substr(0, bytes.size() - 1)).error().message.find("ends inside"),
            std::string::npos);
  bytes[2] = 9;  // the version, after the message's length and the field's tag
  EXPECT_NE(ReadText(bytes).error().message.find("version 9"), std::string::npos);
  trace.ops.pop_back();
  trace.ops.push_back({.kind = OpKind::kFree, .tensor = 1});
  EXPECT_NE(ReadText(Written(trace)).error().message.find("second free"), std::string::npos);
  trace.ops.back() = {.kind = OpKind::kGet, .tensor = 1};
  EXPECT_NE(ReadText(Written(trace)).error().message.find("use after the free"), std::string::npos);
}

// A file of one client with `ops` after the header.
std::string FileOf(const std::vector<proto::TraceOp>& ops, uint32_t clients = 1) {
  Trace empty;
  empty.clients = clients;
  std::string bytes = Written(empty);
  for (const proto::TraceOp& op : ops) {
    const std::string message = op.SerializeAsString();
    (bytes += static_cast<char>(message.size())) += message;
  }
  return bytes;
}
proto::TraceOp Call(proto::TraceOp::Kind kind, uint64_t tensor, uint32_t client = 0) {
  proto::TraceOp op;
  op.set_kind(kind);
  op.set_tensor(tensor);
  op.set_client(client);
  if (kind == proto::TraceOp::CREATE) op.set_bytes(512);
  return op;
}
std::string WrongIn(const std::vector<proto::TraceOp>& ops, uint32_t clients = 1) {
  const auto read = ReadText(FileOf(ops, clients));
  if (read.ok()) return "";
  EXPECT_EQ(read.error().code, core::ErrorCode::kCorrupt);
  return read.error().message;
}

TEST(TraceTest, NamesTheMessageAndTheTensorOfTheFile) {
  using proto::TraceOp;
  EXPECT_EQ(WrongIn({Call(TraceOp::CREATE, 7), Call(TraceOp::CREATE, 4242), Call(TraceOp::STEP, 0),
                     Call(TraceOp::GET, 4242)}),
            "message 4 of the trace: a get before the put of tensor 4242");
  EXPECT_EQ(WrongIn({Call(TraceOp::CREATE, 9), Call(TraceOp::FREE, 9), Call(TraceOp::PUT, 9)}),
            "message 3 of the trace: a use after the free of tensor 9");
}

TEST(TraceTest, ClientsAreCountedFromOneInWhatPeopleRead) {
  EXPECT_EQ(WrongIn({Call(proto::TraceOp::STEP, 0, 2)}, 2),
            "message 1 of the trace: client 3 of 2");
}

TEST(TraceTest, APutHasOneHintAtMost) {
  proto::TraceOp put = Call(proto::TraceOp::PUT, 1);
  put.set_order(5);
  EXPECT_EQ(WrongIn({Call(proto::TraceOp::CREATE, 1), put}), "");
  proto::TraceOp both = put;
  both.set_not_needed(true);
  EXPECT_EQ(WrongIn({Call(proto::TraceOp::CREATE, 1), both}),
            "message 2 of the trace: more than one hint");
  both = put;
  both.set_needed_in_ns(0);  // said, though it is zero
  EXPECT_EQ(WrongIn({Call(proto::TraceOp::CREATE, 1), both}),
            "message 2 of the trace: more than one hint");
}

TEST(TraceTest, SumsThatWouldOverflowAreRefused) {
  proto::TraceOp compute = Call(proto::TraceOp::COMPUTE, 0);
  compute.set_ns(uint64_t{1} << 48);
  const std::string wrong = WrongIn({compute, compute, compute});
  EXPECT_NE(wrong.find("message 3 of the trace: its client's compute times sum"), std::string::npos)
      << wrong;
  std::vector<proto::TraceOp> creates;
  for (uint64_t i = 0; i <= 1024; ++i) {
    creates.push_back(Call(proto::TraceOp::CREATE, i + 1));
    creates.back().set_bytes(uint64_t{1} << 40);
  }
  EXPECT_NE(WrongIn(creates).find("message 1025 of the trace: its client has more than 1 PiB"),
            std::string::npos);
}

TEST(TraceTest, ALengthBeyondThirtyTwoBitsIsNone) {
  EXPECT_NE(ReadText("\x80\x80\x80\x80\x10").error().message.find("no varint"), std::string::npos);
}

TEST(TraceTest, BytesOfAnyKindNeverHurt) {
  const uint64_t seed = 20261121;
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const std::string good = Written(Small());
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = good;
    const size_t changes = 1 + random() % 4;
    for (size_t i = 0; i < changes; ++i) {
      const size_t at = random() % bytes.size();
      switch (random() % 3) {
        case 0: bytes[at] = static_cast<char>(random()); break;
        case 1: bytes.erase(at, 1 + random() % 3); break;
        default: bytes.insert(at, 1, static_cast<char>(random())); break;
      }
      if (bytes.empty()) bytes = good;
    }
    const auto read = ReadText(bytes);
    if (!read.ok()) {
      EXPECT_FALSE(read.error().message.empty());
      continue;
    }
    ++accepted;
    // What is accepted is valid, and its sums are such as a simulator can work with.
    ASSERT_TRUE(Validate(*read).ok());
    EXPECT_GE(read->Footprint(), read->LargestStep());
  }
  EXPECT_GT(accepted, 0);
}

TEST(TraceTest, AFingerprintDependsOnCallsAndSizes) {
  const Trace trace = Small();
  Trace other = trace;
  other.name = "another name";
  for (Op& op : other.ops) op.time *= 2;
  EXPECT_EQ(other.Fingerprint(), trace.Fingerprint());
  other.tensors.back().bytes += core::Bytes{1};
  EXPECT_NE(other.Fingerprint(), trace.Fingerprint());
  other = trace;
  std::swap(other.ops.front(), other.ops.back());
  EXPECT_NE(other.Fingerprint(), trace.Fingerprint());
}

TEST(TraceTest, OnesClientsPartIsATraceOfItsOwn) {
  const Trace both = Generate("two-tenants", kHardware[0], 2);
  size_t ops = 0;
  for (uint32_t client = 0; client < both.clients; ++client) {
    const Trace only = both.Only(client);
    EXPECT_EQ(only.clients, 1u);
    ASSERT_TRUE(Validate(only).ok());
    EXPECT_EQ(only.Footprint(), both.FootprintByClient()[client]);
    ops += only.ops.size();
  }
  EXPECT_EQ(ops, both.ops.size());
}

TEST(TraceTest, OnlyAHeaderThatSaysSoMakesACutFileWhole) {
  proto::TraceHeader header;
  header.set_version(kTraceVersion);
  header.set_clients(1);
  Trace small = Small();
  small.name.clear();
  const std::string rest = Written(small).substr(Written(Trace()).size());
  for (const bool may_be_cut : {false, true}) {
    header.set_may_be_cut(may_be_cut);
    const std::string first = header.SerializeAsString();
    const std::string bytes = std::string(1, static_cast<char>(first.size())) + first + rest;
    const auto cut = ReadText(bytes.substr(0, bytes.size() - 1));
    EXPECT_EQ(cut.ok(), may_be_cut);
    // What is wrong within is wrong all the same, and so is a header that is cut.
    EXPECT_FALSE(ReadText(bytes + std::string("\x02\x08\x09", 3)).ok());
    EXPECT_FALSE(ReadText(bytes.substr(0, first.size())).ok());
  }
}

TEST(TraceTest, TimesAreSummedByStep) {
  const auto at = [](OpKind kind, int64_t time, int64_t waited, uint32_t client) {
    return Op{.kind = kind,
              .client = client,
              .time = core::Duration(time),
              .waited = core::Duration(waited)};
  };
  Trace trace;
  trace.clients = 2;
  trace.ops = {at(OpKind::kCompute, 3, 0, 0), at(OpKind::kStep, 0, 0, 0),
               at(OpKind::kCreate, 0, 5, 0),  at(OpKind::kCompute, 70, 0, 1),
               at(OpKind::kGet, 0, 7, 0),     at(OpKind::kCompute, 11, 0, 0),
               at(OpKind::kGet, 0, 2, 0)};
  const std::vector<StepTimes> steps = trace.TimesByStep(0);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].compute, core::Duration(3));
  EXPECT_EQ(steps[1].compute, core::Duration(11));
  EXPECT_EQ(steps[1].waited_for_creates, core::Duration(5));
  EXPECT_EQ(steps[1].waited_for_gets, core::Duration(9));
}

}  // namespace
}  // namespace ravenstore::sim
