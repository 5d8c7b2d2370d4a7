#include "tests/transport/pairs.h"

#include "core/check.h"
#include "transport/fake.h"

namespace ravenstore::transport {
namespace {

class FakePair final : public TestPair {
 public:
  FakePair()
      : near_(network_.Add("near", &near_service, kPatience)),
        far_(network_.Add("far", &far_service, kPatience)) {
    near_service.transport = near_.get();
    far_service.transport = far_.get();
  }

  Transport* near() override { return near_.get(); }
  Transport* far() override { return far_.get(); }
  std::string address() const override { return "far"; }
  void Step() override { near_->Poll(network_.Now() + std::chrono::milliseconds(1)); }
  void KillFar() override { far_.reset(); }
  void Cut() override { network_.Cut("near", "far"); }
  void Damage() override { network_.DamageNext("near", "far", transport::Damage::kFlippedBit); }
  core::Tick Now() const override { return network_.Now(); }

 private:
  static constexpr Patience kPatience{.ping = kTestSilence / 4, .silence = kTestSilence};
  FakeNetwork network_{1};
  std::unique_ptr<Transport> near_;
  std::unique_ptr<Transport> far_;
};

}  // namespace

std::vector<std::string> PairNames() {
  return {"Fake"};
}

std::unique_ptr<TestPair> OpenPair(const std::string& name) {
  RAVEN_CHECK(name == "Fake");
  return std::make_unique<FakePair>();
}

}  // namespace ravenstore::transport
