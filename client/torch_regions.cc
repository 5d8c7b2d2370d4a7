#include "client/torch_regions.h"

#include <atomic>
#include <mutex>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include "client/client.h"

namespace ravenstore::torch {
namespace {

std::atomic<c10::DeleterFnPtr> free_other{nullptr};

void Free(void* address) {
  if (ravenstore_region_free(address, 0, 0, nullptr) == 0) free_other.load()(address);
}

class RegionAllocator final : public c10::Allocator {
 public:
  explicit RegionAllocator(c10::Allocator* before) : before_(before) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0 || ravenstore_region_here() == nullptr) return before_->allocate(bytes);
    void* const address = ravenstore_region_alloc(static_cast<ptrdiff_t>(bytes), 0, nullptr);
    TORCH_CHECK_WITH(OutOfMemoryError, address != nullptr, "CPU out of memory. ",
                     ravenstore_last_error());
    return {address, address, &Free, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  c10::Allocator* const before_;
};

}  // namespace

void ServeCpuRegions() {
  static std::once_flag once;
  std::call_once(once, [] {
    c10::Allocator* const before = c10::GetAllocator(c10::kCPU);
    free_other = before->raw_deleter();
    c10::SetAllocator(c10::kCPU, new RegionAllocator(before), /*priority=*/255);
  });
}

}  // namespace ravenstore::torch
