#include "sim/cluster_contents.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace ravenstore::sim {

using core::Bytes;
using core::TensorNumber;
using core::plan::PhysicalPage;

uint32_t GranulesOf(const ClusterParts& parts) {
  uint32_t granules = 0;
  for (const ClusterPart& part : parts) granules += part.granules;
  return granules;
}

// Of each granule the first bytes: which tensor, which version, and which of its granules.
void FillGranules(const ClusterParts& parts, uint32_t begin, uint32_t end, size_t granule,
                  std::vector<std::byte>* buffer) {
  uint32_t number = 0;  // of all granules of the copy
  for (const ClusterPart& part : parts) {
    for (uint32_t i = 0; i < part.granules; ++i, ++number) {
      if (number < begin || number >= end) continue;
      const std::array<uint64_t, 2> words = {part.tensor,
                                             uint64_t{part.version} << 32 | (part.first + i)};
      std::memcpy(buffer->data() + granule * (number - begin), words.data(),
                  std::min(sizeof(words), granule));
    }
  }
}

ClusterPart ClusterContents::PartOf(TensorNumber tensor, uint32_t unit) const {
  const auto& row = executor_.tensors()[tensor];
  const Bytes first = unit == 0 ? Bytes{} : page_ * unit - row.offset;
  const Bytes bytes = executor_.tensors().BytesIn(tensor, unit);
  return {.tensor = tensor,
          .first = static_cast<uint32_t>(first.count() / granule_.count()),
          .granules = static_cast<uint32_t>(bytes.count() / granule_.count())};
}

ClusterParts ClusterContents::PartsOf(PhysicalPage page) const {
  ClusterParts parts = pages_[page];
  std::erase_if(parts,
                [this](const ClusterPart& of) { return !executor_.tensors()[of.tensor].lives(); });
  return parts;
}

void ClusterContents::Write(TensorNumber tensor, uint32_t version) {
  const auto& units = executor_.tensors()[tensor].units;
  for (uint32_t i = 0; i < units.count; ++i) {
    const PhysicalPage page = core::PlaceOf(executor_.books(), units[i]).page;
    ClusterParts parts = PartsOf(page);
    std::erase_if(parts, [tensor](const ClusterPart& of) { return of.tensor == tensor; });
    parts.push_back(PartOf(tensor, i));
    parts.back().version = version;
    pages_[page] = std::move(parts);
  }
}

bool ClusterContents::Holds(TensorNumber tensor, uint32_t version) const {
  const auto& units = executor_.tensors()[tensor].units;
  for (uint32_t i = 0; i < units.count; ++i) {
    const ClusterPart part = PartOf(tensor, i);
    const auto is_same = [&](const ClusterPart& of) {
      return of.tensor == tensor && of.version == version && of.first == part.first &&
             of.granules == part.granules;
    };
    if (!std::ranges::any_of(pages_[core::PlaceOf(executor_.books(), units[i]).page], is_same))
      return false;
  }
  return true;
}

}  // namespace ravenstore::sim
