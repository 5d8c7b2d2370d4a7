// Lives as text, and plainer ones: what the shrinker and its reader need.
#include <algorithm>
#include <span>

#include "core/check.h"
#include "tests/core/fuzz_program.h"

namespace ravenstore::core {
namespace {

constexpr int64_t kUnit = static_cast<int64_t>(kExtentAlignment.count());
constexpr int64_t kSecond = 1'000'000;
constexpr int64_t kAll = 1000;       // log entries or requests
constexpr int64_t kRoomy = 1 << 20;  // bytes
constexpr int64_t kLinkSpeed = 100'000'000;

struct Operand {
  enum class Kind : uint8_t { kNumber, kClient, kTensor, kFixed } kind = Kind::kNumber;
  int64_t plainest = 0;
};
constexpr Operand kClient{Operand::Kind::kClient, 0};
constexpr Operand kTensor{Operand::Kind::kTensor, 0};
constexpr Operand kFixed{Operand::Kind::kFixed, 0};
constexpr Operand Plainest(int64_t value) {
  return {Operand::Kind::kNumber, value};
}

struct Form {
  Op op;
  const char* name;
  std::vector<Operand> operands;
};

const Form& FormOf(Op op) {
  static const std::vector<Form> forms = {
      {Op::kSlabs, "kSlabs", {Plainest(8 * kUnit)}},
      {Op::kDevice, "kDevice", {Plainest(64 * kUnit), Plainest(128 * kUnit)}},
      {Op::kHost, "kHost", {Plainest(kRoomy), Plainest(16 * kUnit), Plainest(0)}},
      {Op::kInFlight, "kInFlight", {Plainest(kRoomy / 4), Plainest(64)}},
      {Op::kLink, "kLink", {Plainest(kLinkSpeed)}},
      {Op::kPool,
       "kPool",
       {Plainest(0), Plainest(kRoomy), Plainest(kLinkSpeed), Plainest(kLinkSpeed)}},
      {Op::kHabits, "kHabits", {Plainest(0), Plainest(0), Plainest(0), Plainest(0), Plainest(0)}},
      {Op::kLanes, "kLanes", {Plainest(1024)}},
      {Op::kTenant,
       "kTenant",
       {kFixed, Plainest(kRoomy), Plainest(kRoomy), Plainest(0), Plainest(0), Plainest(0)}},
      {Op::kAttach, "kAttach", {kClient, Plainest(1), Plainest(kRoomy), Plainest(kRoomy)}},
      {Op::kLimits, "kLimits", {kClient, Plainest(kRoomy), Plainest(kRoomy)}},
      {Op::kDeviceLimit, "kDeviceLimit", {kFixed, Plainest(0)}},
      {Op::kPoolLimit, "kPoolLimit", {kFixed, Plainest(0)}},
      {Op::kChunkGoes, "kChunkGoes", {kFixed, Plainest(0), Plainest(0)}},
      {Op::kPoolRate, "kPoolRate", {kFixed, Plainest(0)}},
      {Op::kPoolFails, "kPoolFails", {kFixed}},
      {Op::kTrim, "kTrim", {kClient}},
      {Op::kPin, "kPin", {kClient, Plainest(0)}},
      {Op::kKill, "kKill", {kClient}},
      {Op::kStep, "kStep", {kClient}},
      {Op::kCreate,
       "kCreate",
       {kTensor, kClient, Plainest(kUnit), Plainest(0), Plainest(kSecond), Plainest(0)}},
      {Op::kWrite, "kWrite", {kTensor}},
      {Op::kPut, "kPut", {kTensor, Plainest(0), Plainest(0), Plainest(0), Plainest(0)}},
      {Op::kGet, "kGet", {kTensor, Plainest(0), Plainest(kSecond)}},
      {Op::kFree, "kFree", {kTensor}},
      {Op::kRun, "kRun", {kTensor}},
      {Op::kCopyEnds, "kCopyEnds", {kTensor, Plainest(1)}},
      {Op::kSlabEnds, "kSlabEnds", {Plainest(0), Plainest(1)}},
      {Op::kReadLog, "kReadLog", {kClient, Plainest(kAll)}},
      {Op::kReadRequests, "kReadRequests", {kClient, Plainest(kAll)}},
      {Op::kReadTickets, "kReadTickets", {}},
      {Op::kPass, "kPass", {Plainest(1000)}},
      {Op::kQuiesce, "kQuiesce", {}},
  };
  const Form& form = forms.at(static_cast<size_t>(op));
  RAVEN_CHECK(form.op == op);
  return form;
}

// Between the two, whole units when `value` is so; never `value`.
int64_t Between(int64_t value, int64_t plainest) {
  const int64_t unit = value % kUnit == 0 && plainest % kUnit == 0 ? kUnit : 1;
  return plainest + (value - plainest) / unit / 2 * unit;
}

// A label's place in the order of appearance, from 1.
class Labels {
 public:
  int64_t Of(int64_t label) {
    const auto [entry, is_new] = known_.try_emplace(label, last_ + 1);
    if (is_new) ++last_;
    return entry->second;
  }

 private:
  std::map<int64_t, int64_t> known_;
  int64_t last_ = 0;
};

}  // namespace

std::vector<Instruction> Simpler(const Instruction& instruction) {
  std::vector<Instruction> simpler;
  const auto& operands = FormOf(instruction.op).operands;
  for (size_t i = 0; i < operands.size(); ++i) {
    const int64_t value = instruction.operands[i];
    const int64_t plainest = operands[i].plainest;
    if (operands[i].kind != Operand::Kind::kNumber || value == plainest) continue;
    for (const int64_t other : {plainest, Between(value, plainest)}) {
      Instruction one = instruction;
      one.operands[i] = other;
      if (simpler.empty() || simpler.back() != one) simpler.push_back(one);
    }
  }
  return simpler;
}

Program Relabelled(const Program& program) {
  Labels clients;
  Labels tensors;
  Program result = program;
  for (Instruction& instruction : result) {
    const auto& operands = FormOf(instruction.op).operands;
    for (size_t i = 0; i < operands.size(); ++i) {
      int64_t& label = instruction.operands[i];
      if (operands[i].kind == Operand::Kind::kClient) label = clients.Of(label);
      if (operands[i].kind == Operand::Kind::kTensor) label = tensors.Of(label);
    }
  }
  return result;
}

std::string Describe(const Instruction& instruction) {
  const Form& form = FormOf(instruction.op);
  std::string text = std::string("{Op::") + form.name;
  for (size_t i = 0; i < form.operands.size(); ++i) {
    text += (i == 0 ? ", {" : ", ") + std::to_string(instruction.operands[i]);
  }
  return text + (form.operands.empty() ? "}" : "}}");
}

std::string Describe(const Program& program) {
  std::string text = "{\n";
  for (const Instruction& instruction : program) text += "    " + Describe(instruction) + ",\n";
  return text + "}";
}

}  // namespace ravenstore::core
