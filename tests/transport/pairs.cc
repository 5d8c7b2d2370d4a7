#include "tests/transport/pairs.h"

#include <csignal>
#include <map>

#include "core/check.h"
#include "ipc/clock.h"
#include "tests/transport/proxy.h"
#include "transport/fake.h"
#include "transport/tls_socket.h"
#include "transport/ucx.h"

namespace ravenstore::transport {
namespace {

constexpr Patience kPatience{.ping = kTestSilence / 4, .silence = kTestSilence};

class FakePair final : public TestPair {
 public:
  explicit FakePair(bool sums)
      : network_(1, sums),
        near_(network_.Add("near", &near_service, kPatience)),
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
  FakeNetwork network_;
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

// Over UCX's TCP. What UCX sends goes through a function that loses or damages it.
class UcxPair final : public TestPair {
 public:
  UcxPair()
      : near_(Open("near", "", &near_service, NearSends)),
        far_(Open("far", "127.0.0.1:0", &far_service, FarSends)) {
    cut_ = damage_ = false;
  }

  Transport* near() override { return near_.get(); }
  Transport* far() override { return far_.get(); }
  std::string address() const override { return far_->address(); }
  void Step() override {
    near_->Poll(core::Tick{});
    if (far_) far_->Poll(core::Tick{});
  }
  void KillFar() override { far_.reset(); }
  void Cut() override { cut_ = true; }
  void Damage() override { damage_ = true; }
  core::Tick Now() const override { return ipc::Now(); }

 private:
  static constexpr size_t kLong = 4 << 10;

  static ucs_status_ptr_t NearSends(ucp_ep_h to, unsigned id, const void* header,
                                    size_t header_length, const void* bytes, size_t count,
                                    const ucp_request_param_t* params) {
    if (damage_ && count >= kLong) {
      // It is the transport's own buffer that UCX is given.
      static_cast<char*>(const_cast<void*>(bytes))[count / 2] ^= 1;
      damage_ = false;
    }
    return FarSends(to, id, header, header_length, bytes, count, params);
  }
  static ucs_status_ptr_t FarSends(ucp_ep_h to, unsigned id, const void* header,
                                   size_t header_length, const void* bytes, size_t count,
                                   const ucp_request_param_t* params) {
    if (cut_) return nullptr;
    return (*LoadUcx())->ucp_am_send_nbx(to, id, header, header_length, bytes, count, params);
  }

  static std::unique_ptr<UcxTransport> Open(const std::string& node, const std::string& listen,
                                            EchoService* service,
                                            decltype(UcxLibrary::ucp_am_send_nbx) send) {
    static std::map<std::string, UcxLibrary> libraries;
    UcxLibrary& library = libraries[node] = *LoadUcx().value();
    library.ucp_am_send_nbx = send;
    auto transport = OpenUcx({.node = node,
                              .trusted_fabric = true,
                              .transports = "tcp",
                              .devices = "lo",
                              .listen = listen,
                              .patience = kPatience},
                             service, library);
    RAVEN_CHECK(transport.ok());
    service->transport = transport->get();
    return *std::move(transport);
  }

  // For functions that get no pointer to the pair: there is one at a time.
  static inline bool cut_ = false;
  static inline bool damage_ = false;

  std::unique_ptr<UcxTransport> near_;
  std::unique_ptr<UcxTransport> far_;
};

}  // namespace

std::vector<std::string> PairNames() {
  return {"Fake", "FakeWithoutCopies", "TlsSocket", "Ucx"};
}

std::string WhyNoPair(const std::string& name) {
  if (name != "Ucx") return "";
  const auto ucx = LoadUcx();
  return ucx.ok() ? "" : ucx.error().message;
}

std::unique_ptr<TestPair> OpenPair(const std::string& name) {
  if (name == "Ucx") return std::make_unique<UcxPair>();
  if (name == "TlsSocket") return std::make_unique<TlsSocketPair>();
  RAVEN_CHECK(name == "Fake" || name == "FakeWithoutCopies");
  return std::make_unique<FakePair>(name == "Fake");
}

}  // namespace ravenstore::transport
