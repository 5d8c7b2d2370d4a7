// What homes and lenders say to each other: the headers of calls over transport/transport.h.
//
// Little-endian, a kind and then fields of fixed size; lists have their length before them. A
// header is read whole or not at all. A header that is short, long, over a bound or of an unknown
// kind is kCorrupt, from any sender. Answers have no kind: the caller knows it.
//
// A connection is a home's: it asks for a Challenge, and then Opens it. There is no message that
// gives a slot back: a Renew names all that the home holds, and what it does not name is free.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "cluster/ids.h"
#include "core/result.h"
#include "core/types.h"

namespace ravenstore::cluster {

// Slots of one loan: a header has room for this many.
inline constexpr uint32_t kSlotsMax = 768;

struct ChallengeRequest {};
struct ChallengeAnswer {
  Incarnation lender;
  Challenge challenge{};
};

// Makes the connection the home's newest, whose calls alone are served; unless the home has opened
// one by a later challenge.
struct OpenRequest {
  Incarnation home;
  MachineId machine;
  PublicKey key{};
  Signature signature{};  // of SignedMessage
};
struct OpenAnswer {
  MachineId machine;
};

struct OfferRequest {};
struct OfferAnswer {
  uint32_t slots = 0;
};

// Renews the lease as well, unless it expired.
struct BorrowRequest {
  uint64_t number = 0;  // counted up by the home, on each connection
  uint32_t count = 0;
};
struct BorrowAnswer {
  core::Duration lease{};
  std::vector<SlotRef> slots = {};  // zeroed
};

// With bulk for the slot.
struct WriteRequest {
  SlotRef slot;
  uint64_t offset = 0;
};
// The answer's bulk is `length` bytes.
struct ReadRequest {
  SlotRef slot;
  uint64_t offset = 0;
  uint64_t length = 0;
};

struct RenewRequest {
  // Borrows up to this number have ended: what they reserved and is not in `slots` is free.
  uint64_t settled = 0;
  std::vector<SlotRef> slots = {};  // all that the home holds
};
// In how long a recalled slot is taken.
inline constexpr core::Duration kNotRecalled = core::Duration::max();
struct HeldSlot {
  SlotRef slot;
  core::Duration left = kNotRecalled;
};
struct RenewAnswer {
  core::Duration lease{};
  std::vector<HeldSlot> slots = {};  // of those named, that the lender still has
};

// A node that ends waits so long until others know.
inline constexpr core::Duration kNoticeTimeout = std::chrono::milliseconds(300);

// Of the lender, on the home's connection. What has no time left is taken already.
struct RecallRequest {
  std::vector<HeldSlot> slots = {};
};

using HomeRequest = std::variant<ChallengeRequest, OpenRequest, OfferRequest, BorrowRequest,
                                 WriteRequest, ReadRequest, RenewRequest>;
using AnyRequest = std::variant<ChallengeRequest, OpenRequest, OfferRequest, BorrowRequest,
                                WriteRequest, ReadRequest, RenewRequest, RecallRequest>;

std::string Encode(const AnyRequest& request);
core::Result<AnyRequest> DecodeRequest(std::string_view header);

std::string Encode(const ChallengeAnswer& answer);
std::string Encode(const OpenAnswer& answer);
std::string Encode(const OfferAnswer& answer);
std::string Encode(const BorrowAnswer& answer);
std::string Encode(const RenewAnswer& answer);
core::Result<ChallengeAnswer> DecodeChallenge(std::string_view header);
core::Result<OpenAnswer> DecodeOpen(std::string_view header);
core::Result<OfferAnswer> DecodeOffer(std::string_view header);
// Errors: also for a lease beyond all sense.
core::Result<BorrowAnswer> DecodeBorrow(std::string_view header);
core::Result<RenewAnswer> DecodeRenew(std::string_view header);

// What a home signs: it names both ends, so that no node can pass on another's signature.
std::string SignedMessage(std::string_view lender, const ChallengeAnswer& challenge,
                          std::string_view home, const OpenRequest& request);

}  // namespace ravenstore::cluster
