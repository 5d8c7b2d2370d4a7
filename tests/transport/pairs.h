// Two nodes, "near" and "far", on each transport that there is, and what can happen between them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/types.h"
#include "tests/timing/timing.h"
#include "tests/transport/testing.h"
#include "transport/transport.h"

namespace ravenstore::transport {

class TestPair {
 public:
  virtual ~TestPair() = default;

  // Null once it was destroyed.
  virtual Transport* near() = 0;
  virtual Transport* far() = 0;
  // Where near reaches far.
  virtual std::string address() const = 0;

  // Runs both nodes a little.
  virtual void Step() = 0;

  virtual void KillFar() = 0;
  // From now on no byte arrives and no node is notified.
  virtual void Cut() = 0;
  // The next bulk from near to far arrives damaged.
  virtual void Damage() = 0;

  // The time of this pair, which may be virtual.
  virtual core::Tick Now() const = 0;

  EchoService near_service;
  EchoService far_service;

  bool Eventually(const std::function<bool()>& condition) {
    return EventuallyWith(
        condition, [this] { Step(); }, kTestPatience);
  }
};

// How long the pairs' nodes hear nothing until they give a connection up.
inline constexpr core::Duration kTestSilence = std::chrono::seconds(20);

std::vector<std::string> PairNames();
// Why this machine has no such pair; empty: it has.
std::string WhyNoPair(const std::string& name);
std::unique_ptr<TestPair> OpenPair(const std::string& name);

}  // namespace ravenstore::transport
