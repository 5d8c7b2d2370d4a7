// Under --mode=elastic: reports what the job's calls touch to the engine, around the real call.
//
// Where no engine is open, which is always so in other modes, a call passes through after one load.
//
// Threads: any.
#pragma once

#include <cstdint>

#include "interceptor/elastic_backing.h"
#include "interceptor/start.h"

namespace ravenstore::interceptor {

// Larger copies are data, not tables.
inline constexpr uint64_t kLargestTable = uint64_t{1} << 20;

inline uint64_t Mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9fb21c651e98df25;
  return hash ^ hash >> 32;
}

// Distinguishes kinds of calls in a use's identity; copies and sets have their hook's number.
inline constexpr uint64_t kKernel = uint64_t{1} << 32;
inline constexpr uint64_t kGraph = uint64_t{2} << 32;

// The code that a call runs, and the other device memory among its arguments: the code may follow
// addresses that it reads there.
struct Code {
  static constexpr uint32_t kMostOthers = 64;
  uint64_t name = 0;     // the same for each call of the same code as long as it is loaded; 0: none
  uint64_t pattern = 0;  // which of the first words of its parameters may be addresses
  uint32_t words = 0;
  uint32_t other_count = 0;
  CUdeviceptr others[kMostOthers];
};

// The words of one call that may be addresses of ours, and the call's identity.
class Touched {
 public:
  // `kind`: a hook's number, or one of those below. `room` has place for `most` words, and is
  // another's.
  Touched(uint64_t kind, CUdeviceptr* room, uint32_t most)
      : kind_(kind), identity_(kind), room_(room), most_(most) {}

  // Any word: kept if it may be an address of ours.
  void Name(uint64_t word) {
    if (!elastic::MayBeOurs(word)) return NameOther(word);
    AddToPattern(2);
    if (count_ < most_) {
      room_[count_++] = word;
    } else {
      unknown_ = true;
    }
  }
  void Name(const void* pointer) { Name(reinterpret_cast<uint64_t>(pointer)); }
  // The aligned words of `bytes` that will lie at the offset `at` of an aligned place.
  void NameWords(const void* from, uint64_t bytes, uint64_t at);
  // Host memory that is copied to `to`: addresses in it are seen by kernels that do not name them.
  // Kept for later: a copy that fails need not have memory behind it.
  void Table(uint64_t to, const void* from, uint64_t bytes);
  // The same where the source may be device memory as well.
  void MaybeTable(uint64_t to, uint64_t from, uint64_t bytes);
  // Sizes and shapes, the same in each step.
  void Shape(uint64_t word) { identity_ = Mix(identity_, word); }
  void Unknown() { unknown_ = true; }
  // What is launched.
  void Function(CUfunction function) { function_ = function; }
  // It runs this code, too.
  void Runs(uint64_t name) { code_.name = Mix(code_.name, name) | 1; }
  void Runs(const Code& code) { code_ = code; }
  const Code& code() const { return code_; }

  // All that there is room for is named already.
  void NameAll() { count_ = most_; }

  // The call was made: tables are looked at from now on, and what they name stays where it is.
  void After() { is_after_ = true; }
  bool is_after() const { return is_after_; }

  uint64_t identity() const { return identity_; }
  const CUdeviceptr* addresses() const { return room_; }
  uint32_t count() const { return count_; }
  bool unknown() const { return unknown_; }

 private:
  friend class Touching;

  // An address has 48 bits at most, and none of the device's memory is below 4 GiB.
  static bool MayBeAddress(uint64_t word) { return word >> 32 != 0 && word >> 48 == 0; }
  void NameOther(uint64_t word) {
    if (code_.name == 0 || !MayBeAddress(word)) return AddToPattern(0);
    AddToPattern(1);
    if (code_.other_count < Code::kMostOthers) code_.others[code_.other_count++] = word;
  }
  void AddToPattern(uint64_t kind) {
    constexpr uint32_t kInPattern = 32;
    if (code_.words++ < kInPattern) code_.pattern = code_.pattern << 2 | kind;
  }

  uint64_t kind_;
  uint64_t identity_;
  CUfunction function_ = nullptr;
  CUdeviceptr* room_;
  uint32_t most_;
  uint32_t count_ = 0;
  Code code_;
  bool unknown_ = false;
  bool is_after_ = false;
};

// Nothing of what it names moves from here to End.
class Touching {
 public:
  Touching(Touched* touched, CUstream stream, bool per_thread);
  void End(CUresult result) {
    use_.End(result == CUDA_SUCCESS);
    elastic::NoteResult(result);
  }

 private:
  elastic::Use use_;
};

// Streams of the process are being captured: only then it is worth asking whether one is.
void CaptureBegan();
void CaptureEnded();

// The driver looks at the addresses of copies and sets as soon as they are part of a graph: where
// `name(touched)` names memory of ours, all of it can be reached from now on.
template <typename Name>
void ReachNamed(Name name) {
  if (!elastic::On()) return;
  CUdeviceptr room[4];
  Touched touched(kGraph, room, 4);
  name(touched);
  if (touched.count() > 0) elastic::ReachAll();
}

// Makes `call`, which touches what `name(touched)` names, on `stream`.
template <typename Name, typename Call>
CUresult Touch(uint64_t kind, CUstream stream, bool per_thread, Name name, Call call) {
  if (!elastic::On()) return call();
  const Within within;
  if (!within.outermost()) return call();
  // As many as the parameters of most kernels have words.
  constexpr uint32_t kMost = 512;
  CUdeviceptr room[kMost];
  Touched touched(kind, room, kMost);
  name(touched);
  Touching touching(&touched, stream, per_thread);
  const CUresult result = call();
  touching.End(result);
  if (result == CUDA_SUCCESS) {
    touched.After();
    name(touched);
  }
  return result;
}

}  // namespace ravenstore::interceptor
