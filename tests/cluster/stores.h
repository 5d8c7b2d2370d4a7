// Each store of keys and values that there is, with two clients, and what can happen to it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cluster/key_values.h"

namespace ravenstore::cluster {

class TestStore {
 public:
  virtual ~TestStore() = default;

  virtual KeyValues& client(size_t i) = 0;  // 0 and 1
  // Dies, and comes back with what it had.
  virtual void Stop() = 0;
  virtual void Start() = 0;
  // Answers nothing, and no client is notified.
  virtual void Freeze() = 0;
  virtual void Thaw() = 0;
  virtual void Compact() = 0;
  // What the store itself says, for a test that failed.
  virtual std::string Log() const { return ""; }

  core::Tick Now() { return client(0).Now(); }
  core::Tick In(core::Duration duration) { return Now() + duration; }
  // Runs both clients.
  bool Eventually(const std::function<bool()>& condition);
  void RunFor(core::Duration duration) {
    const core::Tick end = In(duration);
    while (Now() < end) Step();
  }

  void Step();

  // Runs until the operation that `begin` begins has ended.
  template <typename T>
  core::Result<T> Wait(const std::function<void(Callback<T>)>& begin) {
    const auto outcome = std::make_shared<std::optional<core::Result<T>>>();
    begin([outcome](core::Result<T> result) { *outcome = std::move(result); });
    if (!Eventually([&] { return outcome->has_value(); })) {
      return core::Error{core::ErrorCode::kTimedOut, "it was never told"};
    }
    return **outcome;
  }
};

std::vector<std::string> StoreNames();
// Why that store cannot be had here; empty where it can.
std::string WhyNoStore(const std::string& name);
// It answers. REQUIRES: WhyNoStore says nothing.
std::unique_ptr<TestStore> OpenStore(const std::string& name);

}  // namespace ravenstore::cluster
