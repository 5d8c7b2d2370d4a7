#include "client/tensor.h"

#include <utility>

namespace ravenstore::client {

uint64_t MakeHandle(const TensorRecord& tensor) {
  return uint64_t{tensor.serial.load(std::memory_order_relaxed)} << 48 |
         reinterpret_cast<uint64_t>(&tensor);
}

std::string Describe(const TensorRecord& tensor) {
  std::string words = "tensor " + std::to_string(tensor.id);
  if (tensor.name != nullptr) words += " \"" + *tensor.name + "\"";
  return words + " (" + std::to_string(tensor.bytes) + " bytes)";
}

TensorTable::~TensorTable() {
  for (auto& chunk : chunks_) delete[] chunk.load(std::memory_order_relaxed);
}

TensorRecord& TensorTable::At(uint32_t slot) {
  const uint32_t chunk = slot / kPerChunk;
  TensorRecord* tensors = chunks_[chunk].load(std::memory_order_acquire);
  if (tensors == nullptr) tensors = Grow(chunk);
  return tensors[slot % kPerChunk];
}

TensorRecord* TensorTable::Grow(uint32_t chunk) {
  std::lock_guard lock(mutex_);
  TensorRecord* tensors = chunks_[chunk].load(std::memory_order_relaxed);
  if (tensors != nullptr) return tensors;
  tensors = new TensorRecord[kPerChunk];
  for (uint32_t i = 0; i < kPerChunk; ++i) {
    tensors[i].session = session_;
    tensors[i].slot = chunk * kPerChunk + i;
  }
  chunks_[chunk].store(tensors, std::memory_order_release);
  return tensors;
}

void TensorTable::RememberFree(Unfreed unfreed) {
  std::lock_guard lock(unfreed_mutex_);
  unfreed_.push_back(unfreed);
  any_unfreed_.store(true, std::memory_order_relaxed);
}

std::vector<TensorTable::Unfreed> TensorTable::TakeUnfreed() {
  std::lock_guard lock(unfreed_mutex_);
  any_unfreed_.store(false, std::memory_order_relaxed);
  return std::exchange(unfreed_, {});
}

}  // namespace ravenstore::client
