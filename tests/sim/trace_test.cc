#include "sim/trace.h"

#include <gtest/gtest.h>

#include <random>
#include <sstream>
#include <string>

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
       .next_use = {NextUse::Kind::kAt, core::Tick(core::Duration(777)), 0},
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
  EXPECT_EQ(read->ops[2].next_use.at, core::Tick(core::Duration(777)));
  EXPECT_EQ(read->ops[2].recompute, core::Duration(99));
  EXPECT_EQ(read->ops[2].priority, core::Priority::kLow);
  EXPECT_EQ(read->ops[4].priority, core::Priority::kNormal);
  EXPECT_EQ(read->ops[4].next_use.order, -5);
  EXPECT_EQ(read->ops[6].next_use.kind, core::NextUse::Kind::kNever);
  EXPECT_EQ(Written(*read), bytes);
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
  EXPECT_NE(ReadText(Written(trace)).error().message.find("get before the put"), std::string::npos);
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

}  // namespace
}  // namespace ravenstore::sim
