// What the fuzzers of this folder share: a bounded run from a printed seed, and a corpus of inputs
// that once mattered, replayed first.
//
// An input is a string of bytes. Corpus files hold it as hexadecimal text: blanks are ignored and a
// '#' comments out the rest of its line.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace ravenstore::ipc {

using Input = std::vector<uint8_t>;

inline std::string ToHex(std::span<const uint8_t> input) {
  std::string text;
  char digits[3];
  for (const uint8_t byte : input) {
    std::snprintf(digits, sizeof(digits), "%02x", byte);
    text += digits;
  }
  return text;
}

inline Input FromHex(std::istream& file) {
  std::string digits;
  for (std::string line; std::getline(file, line);) {
    for (const char c : line.substr(0, line.find('#'))) {
      if (std::isxdigit(static_cast<unsigned char>(c))) digits += c;
    }
  }
  Input input;
  for (size_t i = 0; i + 1 < digits.size(); i += 2) {
    input.push_back(static_cast<uint8_t>(std::stoul(digits.substr(i, 2), nullptr, 16)));
  }
  return input;
}

// The value of the environment variable `name`, or `otherwise`.
inline uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 0) : otherwise;
}

// RAVENSTORE_FUZZ_SEED, or else a fresh seed of 32 bits each time. The caller prints it.
inline uint64_t FreshSeed() {
  return FromEnvironment("RAVENSTORE_FUZZ_SEED", std::random_device()());
}

// Runs `check` on every file of `corpus` (a folder, relative to the workspace), then on `runs`
// inputs from `generate`, and stops at the first that fails a test, printing it for the corpus.
// RAVENSTORE_FUZZ_SEED and RAVENSTORE_FUZZ_RUNS override the seed and the number;
// RAVENSTORE_FUZZ_SECONDS goes on for so long instead.
inline void Fuzz(const std::string& corpus, uint64_t runs,
                 const std::function<Input(std::mt19937_64&)>& generate,
                 const std::function<void(std::span<const uint8_t>)>& check) {
  using Clock = std::chrono::steady_clock;
  size_t replayed = 0;
  for (const auto& entry : std::filesystem::directory_iterator(corpus)) {
    std::ifstream file(entry.path());
    check(FromHex(file));
    ASSERT_FALSE(testing::Test::HasFailure()) << "corpus file " << entry.path();
    ++replayed;
  }
  ASSERT_GT(replayed, 0u) << "no corpus in " << corpus;
  const uint64_t seed = FromEnvironment("RAVENSTORE_FUZZ_SEED", 20260714);
  const uint64_t seconds = FromEnvironment("RAVENSTORE_FUZZ_SECONDS", 0);
  runs = seconds != 0 ? UINT64_MAX : FromEnvironment("RAVENSTORE_FUZZ_RUNS", runs);
  const auto deadline = Clock::now() + std::chrono::seconds(seconds);
  std::printf("seed %llu, %zu corpus files\n", static_cast<unsigned long long>(seed), replayed);
  std::mt19937_64 random(seed);
  uint64_t run = 0;
  for (; run < runs && (seconds == 0 || run % 64 != 0 || Clock::now() < deadline); ++run) {
    const Input input = generate(random);
    check(input);
    ASSERT_FALSE(testing::Test::HasFailure())
        << "RAVENSTORE_FUZZ_SEED=" << seed << " run " << run << ": " << ToHex(input);
  }
  std::printf("%llu runs\n", static_cast<unsigned long long>(run));
}

// Up to `most` random bytes.
inline Input RandomInput(std::mt19937_64& random, size_t most) {
  Input input(random() % (most + 1));
  std::generate(input.begin(), input.end(), [&] { return static_cast<uint8_t>(random()); });
  return input;
}

// Flips, cuts, repeats and inserts.
inline void Mutate(std::mt19937_64& random, Input* input) {
  const size_t times = random() % 5;
  for (size_t i = 0; i < times && !input->empty(); ++i) {
    const size_t at = random() % input->size();
    const auto there = input->begin() + static_cast<std::ptrdiff_t>(at);
    switch (random() % 5) {
      case 0: (*input)[at] ^= static_cast<uint8_t>(1u << random() % 8); break;
      case 1: (*input)[at] = static_cast<uint8_t>(random()); break;
      case 2: input->resize(at); break;
      case 3: input->insert(there, static_cast<uint8_t>(random())); break;
      default: {
        const Input tail(there, input->end());
        input->insert(input->end(), tail.begin(), tail.end());
      }
    }
  }
}

}  // namespace ravenstore::ipc
