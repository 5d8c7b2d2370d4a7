#include "cluster/protocol.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

namespace ravenstore::cluster {
namespace {

using core::Duration;
using core::Error;
using core::ErrorCode;
using core::Result;

static_assert(std::endian::native == std::endian::little, "headers are little-endian");

constexpr Duration kLeaseMin = std::chrono::milliseconds(10);
constexpr Duration kLeaseMax = std::chrono::hours(1);

// Each message's fields, once for both directions: `io` writes them, or reads them.
void Fields(auto& io, Incarnation& x) {
  io(x.high, x.low);
}
void Fields(auto& io, MachineId& x) {
  io(x.high, x.low);
}
void Fields(auto& io, SlotRef& x) {
  io(x.slot, x.generation);
}
void Fields(auto& io, HeldSlot& x) {
  io(x.slot, x.left);
}
void Fields(auto&, ChallengeRequest&) {}
void Fields(auto& io, ChallengeAnswer& x) {
  io(x.lender, x.challenge);
}
void Fields(auto& io, OpenRequest& x) {
  io(x.home, x.machine, x.key, x.signature);
}
void Fields(auto& io, OpenAnswer& x) {
  io(x.machine);
}
void Fields(auto&, OfferRequest&) {}
void Fields(auto& io, OfferAnswer& x) {
  io(x.slots);
}
void Fields(auto& io, BorrowRequest& x) {
  io(x.number, x.count);
}
void Fields(auto& io, BorrowAnswer& x) {
  io(x.lease, x.slots);
}
void Fields(auto& io, WriteRequest& x) {
  io(x.slot, x.offset);
}
void Fields(auto& io, ReadRequest& x) {
  io(x.slot, x.offset, x.length);
}
void Fields(auto& io, RenewRequest& x) {
  io(x.settled, x.slots);
}
void Fields(auto& io, RenewAnswer& x) {
  io(x.lease, x.slots);
}
void Fields(auto& io, RecallRequest& x) {
  io(x.slots);
}

class Writer {
 public:
  void operator()(auto&... fields) { (Put(fields), ...); }
  std::string Take() { return std::move(bytes_); }

  template <typename T>
  void Put(T& value) {
    if constexpr (std::is_arithmetic_v<T>) {
      bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    } else {
      Fields(*this, value);
    }
  }
  template <size_t size>
  void Put(std::array<std::byte, size>& bytes) {
    bytes_.append(reinterpret_cast<const char*>(bytes.data()), size);
  }
  void Put(Duration& duration) {
    int64_t count = duration.count();
    Put(count);
  }
  template <typename T>
  void Put(std::vector<T>& list) {
    auto count = static_cast<uint32_t>(list.size());
    Put(count);
    for (T& item : list) Put(item);
  }

 private:
  std::string bytes_;
};

const SlotRef& SlotOf(const SlotRef& slot) {
  return slot;
}
const SlotRef& SlotOf(const HeldSlot& held) {
  return held.slot;
}

// A sender has each slot once. Receivers would count a slot that comes twice as two.
bool NamesOneTwice(const auto& list) {
  std::vector<SlotRef> slots;
  slots.reserve(list.size());
  for (const auto& item : list) slots.push_back(SlotOf(item));
  std::ranges::sort(slots);
  return std::ranges::adjacent_find(slots) != slots.end();
}

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  void operator()(auto&... fields) { (Take(fields), ...); }
  bool IsWhole() const { return ok_ && rest_.empty(); }

  template <typename T>
  void Take(T& value) {
    if constexpr (std::is_arithmetic_v<T>) {
      Copy(&value, sizeof(value));
    } else {
      Fields(*this, value);
    }
  }
  template <size_t size>
  void Take(std::array<std::byte, size>& bytes) {
    Copy(bytes.data(), size);
  }
  void Take(Duration& duration) {
    int64_t count = 0;
    Take(count);
    duration = Duration(count);
    ok_ &= count >= 0;
  }
  template <typename T>
  void Take(std::vector<T>& list) {
    uint32_t count = 0;
    Take(count);
    ok_ &= count <= kSlotsMax;
    for (uint32_t i = 0; ok_ && i < count; ++i) Take(list.emplace_back());
    ok_ &= !NamesOneTwice(list);
  }

 private:
  void Copy(void* to, size_t size) {
    ok_ &= rest_.size() >= size;
    if (!ok_) return;
    std::memcpy(to, rest_.data(), size);
    rest_.remove_prefix(size);
  }

  std::string_view rest_;
  bool ok_ = true;
};

template <typename T>
std::string EncodeFields(T message) {
  Writer writer;
  writer.Put(message);
  return writer.Take();
}

Error Malformed() {
  return {ErrorCode::kCorrupt, "the peer's header is none of the cluster's protocol"};
}

template <typename T>
Result<T> DecodeFields(std::string_view header) {
  T message{};
  Reader reader(header);
  reader.Take(message);
  if (!reader.IsWhole()) return Malformed();
  return message;
}

template <typename T>
Result<T> DecodeLease(std::string_view header) {
  auto answer = DecodeFields<T>(header);
  if (answer.ok() && (answer->lease < kLeaseMin || answer->lease > kLeaseMax)) return Malformed();
  return answer;
}

template <size_t kind = 0>
Result<AnyRequest> DecodeKind(size_t wanted, std::string_view fields) {
  if constexpr (kind < std::variant_size_v<AnyRequest>) {
    if (kind != wanted) return DecodeKind<kind + 1>(wanted, fields);
    auto request = DecodeFields<std::variant_alternative_t<kind, AnyRequest>>(fields);
    if (!request.ok()) return std::move(request).error();
    return AnyRequest(std::in_place_index<kind>, *std::move(request));
  } else {
    return Malformed();
  }
}

}  // namespace

std::string Encode(const AnyRequest& request) {
  std::string header(1, static_cast<char>(request.index()));
  return header + std::visit([](const auto& one) { return EncodeFields(one); }, request);
}

Result<AnyRequest> DecodeRequest(std::string_view header) {
  if (header.empty()) return Malformed();
  return DecodeKind(static_cast<unsigned char>(header.front()), header.substr(1));
}

std::string Encode(const ChallengeAnswer& answer) {
  return EncodeFields(answer);
}
std::string Encode(const OpenAnswer& answer) {
  return EncodeFields(answer);
}
std::string Encode(const OfferAnswer& answer) {
  return EncodeFields(answer);
}
std::string Encode(const BorrowAnswer& answer) {
  return EncodeFields(answer);
}
std::string Encode(const RenewAnswer& answer) {
  return EncodeFields(answer);
}
Result<ChallengeAnswer> DecodeChallenge(std::string_view header) {
  return DecodeFields<ChallengeAnswer>(header);
}
Result<OpenAnswer> DecodeOpen(std::string_view header) {
  return DecodeFields<OpenAnswer>(header);
}
Result<OfferAnswer> DecodeOffer(std::string_view header) {
  return DecodeFields<OfferAnswer>(header);
}
Result<BorrowAnswer> DecodeBorrow(std::string_view header) {
  return DecodeLease<BorrowAnswer>(header);
}
Result<RenewAnswer> DecodeRenew(std::string_view header) {
  return DecodeLease<RenewAnswer>(header);
}

std::string SignedMessage(std::string_view lender, const ChallengeAnswer& challenge,
                          std::string_view home, const OpenRequest& request) {
  OpenRequest unsigned_request = request;
  unsigned_request.signature = {};
  std::string message = "ravenstore: a home opens a loan";
  for (const std::string_view name : {lender, home}) {
    message += '\0';  // which no name has
    message += name;
  }
  message += '\0';
  return message + EncodeFields(challenge) + EncodeFields(unsigned_request);
}

}  // namespace ravenstore::cluster
