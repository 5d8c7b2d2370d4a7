// The attacks, by name. Each is what one process of a hostile user does until its time is over.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/types.h"

namespace ravenstore::hostile {

// The input and the results of an attack.
class AttackContext {
 public:
  AttackContext(std::string socket, core::Tick end, uint64_t count)
      : socket_(std::move(socket)), end_(end), count_(count) {}

  const std::string& socket() const { return socket_; }
  // How much of it: of what, says the attack.
  uint64_t count(uint64_t usual) const { return count_ == 0 ? usual : count_; }
  bool running() const;
  // The attack is under way: prints "ready", once.
  void Ready();
  void AddDone(uint64_t n = 1) { done_ += n; }
  uint64_t done() const { return done_; }
  // The daemon's, or the kernel's, words of refusal; the first are kept.
  void Refused(const std::string& why);
  const std::string& refused() const { return refused_; }
  // This machine or user cannot do that: why.
  void Impossible(const std::string& why) { impossible_ = why; }
  const std::string& impossible() const { return impossible_; }
  // Stands still until the time is over.
  void Hold() const;
  // Stands still for so long, or until the time is over.
  void Pause(core::Duration duration) const;

 private:
  std::string socket_;
  core::Tick end_;
  uint64_t count_;
  bool ready_ = false;
  uint64_t done_ = 0;
  std::string refused_;
  std::string impossible_;
};

struct Attack {
  const char* name;
  void (*run)(AttackContext& context);
};

// By what they are after.
std::span<const Attack> ConnectionAttacks();
std::span<const Attack> HoldingAttacks();
std::span<const Attack> LegacyAttacks();
std::span<const Attack> MessageAttacks();
std::span<const Attack> StoreAttacks();
std::span<const Attack> StallingAttacks();

}  // namespace ravenstore::hostile
