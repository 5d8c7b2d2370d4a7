#include "elastic/addresses.h"

#include <iterator>

namespace ravenstore::elastic {

using core::Bytes;

Addresses::Addresses(CUdeviceptr begin, Bytes size, Bytes granule)
    : begin_(begin),
      size_(size),
      granule_(granule),
      owners_(new std::atomic<uint32_t>[size.count() / granule.count()]()) {
  free_.emplace(begin, size);
}

std::optional<CUdeviceptr> Addresses::Take(Bytes size, uint32_t owner) {
  for (auto run = free_.begin(); run != free_.end(); ++run) {
    if (run->second < size) continue;
    const CUdeviceptr begin = run->first;
    const Bytes rest = run->second - size;
    free_.erase(run);
    if (rest > Bytes{0}) free_.emplace(begin + size.count(), rest);
    SetOwner(begin, size, owner);
    return begin;
  }
  return std::nullopt;
}

void Addresses::Give(CUdeviceptr begin, Bytes size) {
  SetOwner(begin, size, kNoOwner);
  auto after = free_.lower_bound(begin);
  if (after != free_.end() && after->first == begin + size.count()) {
    size += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second.count() == begin) {
      before->second += size;
      return;
    }
  }
  free_.emplace(begin, size);
}

uint32_t Addresses::At(CUdeviceptr address) const {
  if (address < begin_ || address >= end()) return kNoOwner;
  return owners_[(address - begin_) / granule_.count()].load(std::memory_order_acquire);
}

void Addresses::SetOwner(CUdeviceptr begin, Bytes size, uint32_t owner) {
  const size_t first = (begin - begin_) / granule_.count();
  for (size_t i = 0; i < size.count() / granule_.count(); ++i)
    owners_[first + i].store(owner, std::memory_order_release);
}

}  // namespace ravenstore::elastic
