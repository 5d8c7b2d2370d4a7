#include "elastic/table_finder.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

namespace ravenstore::elastic {

TableFinder::~TableFinder() {
  // Does not wait for the GPU: memory that copies may still write is not freed.
  Poll([](uint64_t) { return false; });
  if (AnyUnderWay()) return;
  for (const Search& search : all_) {
    if (search.copied != nullptr) driver_->event_destroy(search.copied);
  }
  if (memory_ == nullptr) return;
  driver_->host_unregister(memory_);
  ::munmap(memory_, kSearches * kSearchBytes);
}

bool TableFinder::IsKnown(const Kind& kind) const {
  const auto known = known_.find(kind.code);
  if (known == known_.end()) return false;
  const auto& patterns = known->second;
  return patterns.size() >= kPatterns ||
         std::find(patterns.begin(), patterns.end(), kind.pattern) != patterns.end();
}

bool TableFinder::MakeRoom() {
  if (memory_ != nullptr || refused_) return memory_ != nullptr;
  refused_ = true;
  constexpr size_t kAll = kSearches * kSearchBytes;
  void* pages = ::mmap(nullptr, kAll, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return false;
  const RelaxedCapture relaxed(*driver_);
  if (driver_->host_register(pages, kAll, 0) != CUDA_SUCCESS) {
    ::munmap(pages, kAll);
    return false;
  }
  memory_ = static_cast<std::byte*>(pages);
  all_.resize(kSearches);
  for (size_t i = 0; i < kSearches; ++i) {
    Search& search = all_[i];
    search.copies = memory_ + i * kSearchBytes;
    if (driver_->event_create(&search.copied, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS)
      unused_.push_back(&search);
  }
  return true;
}

TableFinder::Search* TableFinder::Begin(const Kind& kind) {
  if (kind.code == 0 || found_ || IsKnown(kind) || !MakeRoom() || unused_.empty()) return nullptr;
  Search* search = unused_.back();
  unused_.pop_back();
  search->kind = kind;
  search->named.clear();
  search->is_enqueued = false;
  searches_.push_back(search);
  return search;
}

bool TableFinder::Enqueue(Search* search, CUstream stream) const {
  const RelaxedCapture relaxed(*driver_);
  std::byte* to = search->copies;
  std::vector<Named> copied;
  for (Named named : search->named) {
    CUdeviceptr begin = 0;
    size_t bytes = 0;
    if (named.bytes == 0) {
      // No address at all, or one of the host's, where the driver would wait for the copy.
      unsigned type = 0;
      if (driver_->pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, named.address) !=
              CUDA_SUCCESS ||
          type != CU_MEMORYTYPE_DEVICE ||
          driver_->address_range(&begin, &bytes, named.address) != CUDA_SUCCESS) {
        continue;
      }
      named.bytes = begin + bytes - named.address;
    }
    named.bytes = std::min(named.bytes, kBytes);
    if (driver_->copy_async(reinterpret_cast<CUdeviceptr>(to), named.address, named.bytes,
                            stream) != CUDA_SUCCESS) {
      return false;
    }
    copied.push_back(named);
    to += kBytes;
  }
  search->named = std::move(copied);
  return driver_->event_record(search->copied, stream) == CUDA_SUCCESS;
}

void TableFinder::End(Search* search, bool enqueued) {
  search->is_enqueued = enqueued;
  if (enqueued) return;
  searches_.erase(std::find(searches_.begin(), searches_.end(), search));
  unused_.push_back(search);
}

bool TableFinder::HasTable(const Search& search, const std::function<bool(uint64_t)>& may_move) {
  const std::byte* copy = search.copies;
  for (const Named& named : search.named) {
    constexpr size_t kWord = sizeof(uint64_t);
    for (size_t i = (kWord - named.address % kWord) % kWord; i + kWord <= named.bytes; i += kWord) {
      uint64_t word = 0;
      std::memcpy(&word, copy + i, kWord);
      if (may_move(word)) return true;
    }
    copy += kBytes;
  }
  return false;
}

bool TableFinder::Poll(const std::function<bool(uint64_t)>& may_move) {
  const bool before = found_;
  std::erase_if(searches_, [&](Search* search) {
    if (!search->is_enqueued) return false;
    const CUresult result = driver_->event_query(search->copied);
    if (result == CUDA_ERROR_NOT_READY) return false;
    // Else its context is broken, and nothing is to be learned any more.
    if (result == CUDA_SUCCESS) {
      found_ = found_ || HasTable(*search, may_move);
      auto& patterns = known_[search->kind.code];
      if (patterns.size() < kPatterns) patterns.push_back(search->kind.pattern);
    }
    unused_.push_back(search);
    return true;
  });
  return found_ && !before;
}

}  // namespace ravenstore::elastic
