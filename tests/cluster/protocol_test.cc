#include "cluster/protocol.h"

#include <gtest/gtest.h>

#include <string>
#include <variant>

#include "tests/ipc/fuzz.h"

namespace ravenstore::cluster {
namespace {

using core::ErrorCode;

RenewRequest Renewal(uint32_t slots) {
  RenewRequest request{.settled = 7};
  for (uint32_t i = 0; i < slots; ++i) request.slots.push_back({.slot = i, .generation = i + 100});
  return request;
}

TEST(ProtocolTest, ARequestIsReadAsItWasWritten) {
  const auto renew = DecodeRequest(Encode(Renewal(3)));
  ASSERT_TRUE(renew.ok());
  const auto& read = std::get<RenewRequest>(*renew);
  EXPECT_EQ(read.settled, 7u);
  EXPECT_EQ(read.slots, Renewal(3).slots);
  const auto write = DecodeRequest(Encode(WriteRequest{.slot = {1, 2}, .offset = 3}));
  ASSERT_TRUE(write.ok());
  EXPECT_EQ(std::get<WriteRequest>(*write).slot, (SlotRef{1, 2}));
  EXPECT_EQ(std::get<WriteRequest>(*write).offset, 3u);
}

TEST(ProtocolTest, TheLongestHeadersFit) {
  EXPECT_LE(Encode(Renewal(kSlotsMax)).size(), 16u << 10);
  RecallRequest recall;
  recall.slots.resize(kSlotsMax);
  EXPECT_LE(Encode(recall).size(), 16u << 10);
  EXPECT_TRUE(DecodeRequest(Encode(Renewal(kSlotsMax))).ok());
  EXPECT_FALSE(DecodeRequest(Encode(Renewal(kSlotsMax + 1))).ok());
}

TEST(ProtocolTest, AHeaderIsReadWholeOrNotAtAll) {
  const std::string header = Encode(Renewal(2));
  for (size_t length = 0; length < header.size(); ++length) {
    EXPECT_EQ(DecodeRequest(header.substr(0, length)).error().code, ErrorCode::kCorrupt);
  }
  EXPECT_FALSE(DecodeRequest(header + "x").ok());
  EXPECT_FALSE(DecodeRequest("\xff").ok());
}

TEST(ProtocolTest, ALeaseBeyondAllSenseIsRefused) {
  using std::chrono::hours;
  using std::chrono::seconds;
  EXPECT_TRUE(DecodeRenew(Encode(RenewAnswer{.lease = seconds(5)})).ok());
  EXPECT_FALSE(DecodeRenew(Encode(RenewAnswer{.lease = hours(2)})).ok());
  EXPECT_FALSE(DecodeRenew(Encode(RenewAnswer{.lease = core::Duration(-1)})).ok());
  EXPECT_FALSE(DecodeBorrow(Encode(BorrowAnswer{.lease = core::Duration(1)})).ok());
}

// The tables of both ends have each slot once.
TEST(ProtocolTest, AListWithOneSlotTwiceIsRefused) {
  const SlotRef slot{};
  EXPECT_TRUE(
      DecodeBorrow(Encode(BorrowAnswer{.lease = std::chrono::seconds(5), .slots = {slot}})).ok());
  EXPECT_FALSE(
      DecodeBorrow(Encode(BorrowAnswer{.lease = std::chrono::seconds(5), .slots = {slot, slot}}))
          .ok());
  EXPECT_FALSE(
      DecodeRenew(Encode(RenewAnswer{.lease = std::chrono::seconds(5), .slots = {{slot}, {slot}}}))
          .ok());
  EXPECT_TRUE(DecodeRequest(Encode(RenewRequest{.slots = {slot}})).ok());
  EXPECT_FALSE(DecodeRequest(Encode(RenewRequest{.slots = {slot, slot}})).ok());
  EXPECT_FALSE(DecodeRequest(Encode(RecallRequest{.slots = {{slot}, {slot}}})).ok());
}

TEST(ProtocolTest, ASignatureIsOfBothEndsAndTheChallenge) {
  const OpenRequest request{.home = {1, 2}};
  const ChallengeAnswer challenge{.lender = {3, 4}};
  const std::string signed_text = SignedMessage("a", challenge, "b", request);
  EXPECT_NE(signed_text, SignedMessage("c", challenge, "b", request));
  EXPECT_NE(signed_text, SignedMessage("a", challenge, "c", request));
  EXPECT_NE(signed_text, SignedMessage("a", {.lender = {3, 5}}, "b", request));
  EXPECT_NE(signed_text, SignedMessage("a", challenge, "b", {.home = {1, 3}}));
  OpenRequest with_signature = request;
  with_signature.signature[0] = std::byte{1};
  EXPECT_EQ(signed_text, SignedMessage("a", challenge, "b", with_signature));
}

// What is read of any bytes is written as the same bytes.
TEST(ProtocolTest, AnyBytesAreReadOrRefused) {
  const auto generate = [](std::mt19937_64& random) {
    if (random() % 2 == 0) return ipc::RandomInput(random, 200);
    std::string header = Encode(Renewal(static_cast<uint32_t>(random() % 5)));
    header[random() % header.size()] ^= static_cast<char>(1 << random() % 8);
    header.front() = static_cast<char>(random() % 9);
    return ipc::Input(header.begin(), header.end());
  };
  ipc::Fuzz("tests/cluster/corpus/headers", 200'000, generate, [](auto input) {
    const std::string header(input.begin(), input.end());
    const auto request = DecodeRequest(header);
    if (request.ok()) EXPECT_EQ(Encode(*request), header);
    if (const auto answer = DecodeRenew(header); answer.ok()) EXPECT_EQ(Encode(*answer), header);
    if (const auto answer = DecodeOpen(header); answer.ok()) EXPECT_EQ(Encode(*answer), header);
  });
}

}  // namespace
}  // namespace ravenstore::cluster
