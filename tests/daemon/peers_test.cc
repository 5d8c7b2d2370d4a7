#include "daemon/peers.h"

#include <gtest/gtest.h>

#include <memory>

#include "core/check.h"

namespace ravenstore::daemon {
namespace {

constexpr core::Bytes kShare = core::MiB(4);

class PeersTest : public testing::Test {
 protected:
  core::Result<PeerRates> Check(const device::HostOptions& options) {
    devices_ = device::OpenHostDevices(options);
    share_ = std::move(*devices_[1]->ReserveVaRange(kShare));
    RAVEN_CHECK(share_->Create(core::Bytes{}, kShare).ok());
    return CheckPeer(*devices_[0], *devices_[1], *share_, kShare);
  }

  device::Devices devices_;
  std::unique_ptr<device::VaRange> share_;
};

TEST_F(PeersTest, BothWaysAreMeasured) {
  const auto rates = Check({.count = 2, .peer_bytes_per_second = 1e9});
  ASSERT_TRUE(rates.ok());
  for (const double rate : {rates->out, rates->in}) {
    EXPECT_GT(rate, 1e7);
    EXPECT_LE(rate, 1.01e9);
  }
}

TEST_F(PeersTest, BytesThatComeOverWrongAreSeenEitherWay) {
  // The third copy of each way takes the bytes to the host to be compared.
  for (const uint64_t compared : {uint64_t{3}, uint64_t{5}}) {
    const auto rates = Check({.count = 2, .fail_copy = [&](uint64_t n) {
                                if (n == compared) share_->base()[12345] ^= std::byte{1};
                                return false;
                              }});
    ASSERT_FALSE(rates.ok()) << compared;
    EXPECT_EQ(rates.error().code, core::ErrorCode::kCorrupt);
  }
}

TEST_F(PeersTest, ACopyThatFailsIsReported) {
  for (uint64_t nth = 1; nth <= 8; ++nth) {
    const auto rates = Check({.count = 2, .fail_copy = [nth](uint64_t n) { return n == nth; }});
    ASSERT_FALSE(rates.ok()) << nth;
    EXPECT_EQ(rates.error().code, core::ErrorCode::kDevice);
  }
}

// What it then still signals goes nowhere that another function uses: under AddressSanitizer.
TEST_F(PeersTest, ACopyThatTakesTooLongIsReported) {
  const auto rates = Check({.count = 2, .peer_bytes_per_second = 0.9e6});
  ASSERT_FALSE(rates.ok());
  EXPECT_EQ(rates.error().code, core::ErrorCode::kTimedOut);
}

}  // namespace
}  // namespace ravenstore::daemon
