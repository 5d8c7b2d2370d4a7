#include "tests/core/fuzz_program.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <random>
#include <string>
#include <utility>

#include "tests/core/shrink.h"

namespace ravenstore::core {
namespace {

// A life and the text that it was written as.
#define WRITTEN(...) std::pair<Program, std::string>(Program __VA_ARGS__, #__VA_ARGS__)

std::string WithoutBlanks(std::string text) {
  std::erase_if(text, [](char c) { return c == ' ' || c == '\n'; });
  return text;
}

TEST(FuzzProgramTest, APrintedLifeIsItsSource) {
  const auto [fuzz, source] = WRITTEN({
      {Op::kSlabs, {4096}},
      {Op::kDevice, {32768, 65536}},
      {Op::kHabits, {1, 0, 0, 2, 8}},
      {Op::kTenant, {1, 8192, 65536, 4096, 3, 1}},
      {Op::kAttach, {1, 1, 8192, 65536}},
      {Op::kCreate, {1, 1, 512, 0, 1000000, 1}},
      {Op::kPut, {1, 2, -7, 0, 1}},
      {Op::kReadTickets},
      {Op::kQuiesce},
  });
  EXPECT_EQ(fuzz.size(), 9u);
  // The last comma is the printer's.
  EXPECT_EQ(WithoutBlanks(Describe(fuzz)), WithoutBlanks(source));
}

// Instructions without sense: any operands, in any order.
Program Nonsense(uint32_t seed, size_t length) {
  std::mt19937_64 random(seed);
  Program program;
  for (size_t i = 0; i < length; ++i) {
    Instruction one{static_cast<Op>(random() % (static_cast<size_t>(Op::kQuiesce) + 1))};
    if (one.op == Op::kQuiesce) continue;
    for (int64_t& operand : one.operands) operand = static_cast<int64_t>(random() % 9) - 2;
    program.push_back(one);
  }
  return program;
}

TEST(FuzzProgramTest, WhatCannotBeDoneIsSkipped) {
  for (uint32_t seed = 1; seed <= 200; ++seed) Play(Nonsense(seed, 300));
}

TEST(FuzzProgramTest, AProgramWithHolesIsALife) {
  const Program whole = {
      {Op::kDevice, {8192, 16384}},
      {Op::kTenant, {1, 8192, 65536}},
      {Op::kAttach, {1, 1, 8192, 65536}},
      {Op::kCreate, {1, 1, 4096, 0, 1000000}},
      {Op::kReadRequests, {1, 10}},
      {Op::kSlabEnds, {0, 1}},
      {Op::kWrite, {1}},
      {Op::kPut, {1}},
      {Op::kRun, {1}},
      {Op::kCreate, {2, 1, 8192, 0, 1000000}},
      {Op::kReadRequests, {1, 10}},
      {Op::kSlabEnds, {0, 1}},
      {Op::kCopyEnds, {1, 1}},
      {Op::kGet, {1, 0, 1000000}},
      {Op::kFree, {2}},
      {Op::kQuiesce},
  };
  for (size_t hole = 0; hole < whole.size(); ++hole) {
    Program rest = whole;
    rest.erase(rest.begin() + static_cast<ptrdiff_t>(hole));
    Play(rest);
  }
}

TEST(FuzzProgramTest, PlainerInstructionsComeToAnEnd) {
  for (const Instruction& start : Nonsense(7, 200)) {
    Instruction one = start;
    one.operands[1] *= 512 * 1001;
    int steps = 0;
    for (auto simpler = Simpler(one); !simpler.empty(); simpler = Simpler(one)) {
      EXPECT_NE(simpler.back(), one);
      one = simpler.back();
      ASSERT_LT(++steps, 300) << Describe(one);
    }
  }
}

TEST(FuzzProgramTest, LabelsAreOnlyNames) {
  const Program program = {{Op::kAttach, {70, 1, 5, 6}},
                           {Op::kCreate, {900, 70, 512}},
                           {Op::kCreate, {12, 70, 512}},
                           {Op::kFree, {900}}};
  const Program expected = {{Op::kAttach, {1, 1, 5, 6}},
                            {Op::kCreate, {1, 1, 512}},
                            {Op::kCreate, {2, 1, 512}},
                            {Op::kFree, {1}}};
  EXPECT_EQ(Relabelled(program), expected);
}

// A planted predicate: a long life in which, among much else, a tensor that is leaving is rescued.
Program BusyProgram() {
  Program program = {{Op::kSlabs, {4096}},
                     {Op::kDevice, {16384, 65536}},
                     {Op::kHost, {262144, 8192, 0}},
                     {Op::kTenant, {1, 65536, 262144}},
                     {Op::kAttach, {1, 1, 65536, 262144}}};
  std::mt19937_64 random(20261121);
  const auto below = [&random](uint32_t bound) { return static_cast<int64_t>(random() % bound); };
  for (int64_t tensor = 1; tensor <= 60; ++tensor) {
    program.push_back({Op::kCreate, {tensor, 1, 512 * (1 + below(8)), 0, 20000}});
    program.push_back({Op::kReadRequests, {1, 100}});
    program.push_back({Op::kSlabEnds, {0, 1}});
    for (int uses = 0; uses < 4; ++uses) {
      const int64_t used = 1 + below(static_cast<uint32_t>(tensor));
      program.push_back({Op::kGet, {used, 0, 20000}});
      program.push_back({Op::kReadRequests, {1, 100}});
      program.push_back({Op::kCopyEnds, {1 + below(static_cast<uint32_t>(tensor)), 1}});
      program.push_back({Op::kPass, {100 + below(900)}});
      program.push_back({Op::kRun, {used}});
      program.push_back({Op::kPut, {used, 2, below(30)}});
      program.push_back({Op::kRun, {used}});
      program.push_back({Op::kReadLog, {1, 100}});
    }
    program.push_back({Op::kPut, {tensor}});
    program.push_back({Op::kRun, {tensor}});
  }
  return program;
}

bool Rescues(const Program& program) {
  FuzzProgram fuzz(program);
  for (const Instruction& instruction : program) {
    fuzz.Do(instruction);
    if (fuzz.stats().rescues > 0) return true;
  }
  return false;
}

TEST(FuzzProgramTest, IsShrunkToTheFewInstructionsThatRescueATensor) {
  const Program whole = BusyProgram();
  ASSERT_TRUE(Rescues(whole));
  Shrinker<Instruction> shrinker({Rescues, Simpler}, whole);
  const Program small = Relabelled(shrinker.Run());
  EXPECT_TRUE(Rescues(small));
  EXPECT_LE(small.size(), 32u) << Describe(small);
  // Not one more can go.
  for (size_t hole = 0; hole < small.size(); ++hole) {
    Program rest = small;
    rest.erase(rest.begin() + static_cast<ptrdiff_t>(hole));
    EXPECT_FALSE(Rescues(rest)) << Describe(small[hole]);
  }
  // And again it is the same.
  Shrinker<Instruction> again({Rescues, Simpler}, whole);
  EXPECT_EQ(Relabelled(again.Run()), small);
  std::printf("%zu of %zu instructions after %zu replays: %s\n", small.size(), whole.size(),
              shrinker.replays(), Describe(small).c_str());
}

}  // namespace
}  // namespace ravenstore::core
