#include "tests/transport/pairs.h"

#include <csignal>

#include "core/check.h"
#include "ipc/clock.h"
#include "tests/transport/proxy.h"
#include "transport/fake.h"
#include "transport/tls_socket.h"

namespace ravenstore::transport {
namespace {

constexpr Patience kPatience{.ping = kTestSilence / 4, .silence = kTestSilence};

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
  FakeNetwork network_{1};
  std::unique_ptr<Transport> near_;
  std::unique_ptr<Transport> far_;
};

// Far is reached through a proxy.
class TlsSocketPair final : public TestPair {
 public:
  TlsSocketPair()
      : near_(Open("near", "", &near_service)),
        far_(Open("far", "127.0.0.1:0", &far_service)),
        proxy_(far_->address()) {}

  Transport* near() override { return near_.get(); }
  Transport* far() override { return far_.get(); }
  std::string address() const override { return proxy_.address(); }
  void Step() override {
    near_->Poll(core::Tick{});
    proxy_.Step();
    if (far_) far_->Poll(core::Tick{});
    proxy_.Step();
  }
  void KillFar() override { far_.reset(); }
  void Cut() override { proxy_.Cut(); }
  void Damage() override { proxy_.Damage(); }
  core::Tick Now() const override { return ipc::Now(); }

 private:
  static std::unique_ptr<TlsSocketTransport> Open(const std::string& node,
                                                  const std::string& listen, EchoService* service) {
    std::signal(SIGPIPE, SIG_IGN);
    auto transport = OpenTlsSocket(
        {.node = node, .key = NodeKey({1, 2, 3}), .listen = listen, .patience = kPatience},
        service);
    RAVEN_CHECK(transport.ok());
    service->transport = transport->get();
    return *std::move(transport);
  }

  std::unique_ptr<TlsSocketTransport> near_;
  std::unique_ptr<TlsSocketTransport> far_;
  Proxy proxy_;
};

}  // namespace

std::vector<std::string> PairNames() {
  return {"Fake", "TlsSocket"};
}

std::unique_ptr<TestPair> OpenPair(const std::string& name) {
  if (name == "TlsSocket") return std::make_unique<TlsSocketPair>();
  RAVEN_CHECK(name == "Fake");
  return std::make_unique<FakePair>();
}

}  // namespace ravenstore::transport
