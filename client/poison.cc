#include "client/poison.h"

#include <algorithm>

namespace ravenstore::client {

using core::Bytes;
using core::Result;
using core::Status;

Status PoisonKeeper::Poison(uint32_t slot, ClientStream& stream, void* address, uint64_t bytes) {
  std::vector<std::byte> shadow(bytes);
  RAVEN_RETURN_IF_ERROR(stream.Synchronize());
  RAVEN_RETURN_IF_ERROR(stream.Copy(shadow.data(), address, Bytes(bytes)));
  RAVEN_RETURN_IF_ERROR(stream.Fill(address, kPoisonByte, Bytes(bytes)));
  RAVEN_RETURN_IF_ERROR(stream.Synchronize());
  shadows_[slot] = std::move(shadow);
  return core::Ok();
}

Result<std::optional<uint64_t>> PoisonKeeper::Restore(uint32_t slot, ClientStream& stream,
                                                      void* address) {
  const auto shadow = shadows_.find(slot);
  if (shadow == shadows_.end()) return std::optional<uint64_t>();
  const Bytes bytes(shadow->second.size());
  scratch_.resize(bytes.count());
  RAVEN_RETURN_IF_ERROR(stream.Synchronize());
  RAVEN_RETURN_IF_ERROR(stream.Copy(scratch_.data(), address, bytes));
  RAVEN_RETURN_IF_ERROR(stream.Synchronize());
  const auto written = std::find_if(scratch_.begin(), scratch_.end(),
                                    [](std::byte byte) { return byte != std::byte{kPoisonByte}; });
  if (written != scratch_.end()) {
    RAVEN_RETURN_IF_ERROR(stream.Fill(address, kPoisonByte, bytes));
    RAVEN_RETURN_IF_ERROR(stream.Synchronize());
    return std::optional<uint64_t>(written - scratch_.begin());
  }
  RAVEN_RETURN_IF_ERROR(stream.Copy(address, shadow->second.data(), bytes));
  RAVEN_RETURN_IF_ERROR(stream.Synchronize());
  shadows_.erase(shadow);
  return std::optional<uint64_t>();
}

}  // namespace ravenstore::client
