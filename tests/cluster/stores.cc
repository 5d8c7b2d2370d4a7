#include "tests/cluster/stores.h"

#include <array>

#include "cluster/etcd.h"
#include "cluster/fake_key_values.h"
#include "core/check.h"
#include "tests/cluster/etcd_process.h"
#include "tests/timing/timing.h"

namespace ravenstore::cluster {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kSeed = 33;

class FakeTestStore final : public TestStore {
 public:
  KeyValues& client(size_t i) override { return *clients_[i]; }
  void Stop() override { store_.Stop(); }
  void Start() override { store_.Start(); }
  void Freeze() override {
    for (const char* client : {"a", "b"}) store_.Cut(client);
  }
  void Thaw() override {
    for (const char* client : {"a", "b"}) store_.Heal(client);
  }
  void Compact() override { store_.Compact(); }

 private:
  FakeStore store_{kSeed};
  std::array<std::unique_ptr<KeyValues>, 2> clients_ = {store_.Connect("a"), store_.Connect("b")};
};

class EtcdTestStore final : public TestStore {
 public:
  EtcdTestStore() {
    for (auto& client : clients_) {
      auto opened = OpenEtcd({.endpoints = {process_.endpoint()}});
      RAVEN_CHECK(opened.ok());
      client = std::move(*opened);
    }
    AwaitAnswers();
  }
  KeyValues& client(size_t i) override { return *clients_[i]; }
  void Stop() override { process_.Kill(); }
  void Start() override {
    process_.Start();
    AwaitAnswers();
  }
  void Freeze() override { process_.Freeze(); }
  void Thaw() override { process_.Thaw(); }
  void Compact() override { process_.Compact(); }
  std::string Log() const override { return process_.Log(); }

 private:
  void AwaitAnswers() {
    const bool answers = Eventually([&] {
      return Wait<RangeRead>([&](auto callback) {
               client(0).Range("/", 1, In(std::chrono::seconds(5)), callback);
             })
          .ok();
    });
    RAVEN_CHECK(answers);
  }

  EtcdProcess process_;
  std::array<std::unique_ptr<KeyValues>, 2> clients_;
};

}  // namespace

void TestStore::Step() {
  client(0).Poll(In(milliseconds(2)));
  client(1).Poll(core::Tick{});
}

bool TestStore::Eventually(const std::function<bool()>& condition) {
  return EventuallyWith(
      condition, [this] { Step(); }, kTestPatience);
}

std::vector<std::string> StoreNames() {
  return {"fake", "etcd"};
}

std::string WhyNoStore(const std::string& name) {
  return name == "etcd" ? WhyNoEtcd() : "";
}

std::unique_ptr<TestStore> OpenStore(const std::string& name) {
  if (name == "fake") return std::make_unique<FakeTestStore>();
  return std::make_unique<EtcdTestStore>();
}

}  // namespace ravenstore::cluster
