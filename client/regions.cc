#include "client/regions.h"

#include <cstring>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "client/blocks.h"

namespace ravenstore::client {

namespace {

constexpr std::chrono::nanoseconds kNothingToKeep{1};
constexpr char kOfNoRegion[] = "the memory is of no region";

// Which region an address is of. Never destroyed: allocators free at the end of the process.
struct Directory {
  const uint64_t born = CountForks();
  std::mutex mutex;
  std::map<void*, Region*> regions;  // guarded by mutex
};
Directory& directory() {
  static auto* const only = new Directory;
  return *only;
}

// Then no lock of the parent's may be taken: another of its threads may have held it.
bool IsForked() {
  return directory().born != CountForks();
}

// The region's allocation that has the range, by the address where it begins. REQUIRES: the
// directory is locked.
std::pair<void*, Region*> Find(const void* address) {
  const auto& regions = directory().regions;
  const auto after = regions.upper_bound(const_cast<void*>(address));
  if (after == regions.begin()) throw Error(RAVENSTORE_NOT_FOUND, kOfNoRegion);
  return *std::prev(after);
}

uint64_t OffsetIn(const Tensor& tensor, const void* begin, const void* address, uint64_t bytes) {
  const auto offset =
      static_cast<uint64_t>(static_cast<const char*>(address) - static_cast<const char*>(begin));
  if (offset >= tensor.size() || bytes > tensor.size() - offset)
    throw Error(RAVENSTORE_NOT_FOUND, kOfNoRegion);
  return offset;
}

thread_local Region* here = nullptr;

}  // namespace

Region::Region(ConnectOptions options) {
  options.fixed_addresses = true;
  store_ = Store::connect(options);
}

Region::~Region() {
  const std::lock_guard lock(directory().mutex);
  std::erase_if(directory().regions, [this](const auto& entry) { return entry.second == this; });
}

void Region::Enter(Region* region) noexcept {
  here = region;
}

Region* Region::Here() noexcept {
  return here;
}

void* Region::AllocateHere(uint64_t bytes, int device) noexcept {
  if (here == nullptr || IsForked()) return nullptr;
  try {
    void* const address = here->Allocate(bytes, device);
    const std::lock_guard lock(directory().mutex);
    directory().regions[address] = here;
    return address;
  } catch (const std::exception&) {
    return nullptr;
  }
}

void* Region::Allocate(uint64_t bytes, int device) {
  const std::lock_guard lock(mutex_);
  Tensor tensor = store_.create(bytes, {.device = device, .long_lived = true});
  void* const address = tensor.data();
  allocated_.emplace(address, std::move(tensor));
  return address;
}

bool Region::Free(void* address) noexcept {
  if (IsForked()) return true;
  Region* region = nullptr;
  {
    const std::lock_guard lock(directory().mutex);
    const auto found = directory().regions.extract(address);
    if (!found) return false;
    region = found.mapped();
  }
  const std::lock_guard lock(region->mutex_);
  region->allocated_.erase(address);
  return true;
}

uint64_t Region::Sleep(const SleepOptions& options) {
  const std::lock_guard lock(mutex_);
  if (is_asleep_) throw Error(RAVENSTORE_WRONG_STATE, "the region is asleep already");
  PutAll(options);
  try {
    const uint64_t bytes = store_.sleep(options.timeout);
    is_asleep_ = true;
    keeps_bytes_ = options.keeps_bytes;
    return bytes;
  } catch (const Error&) {
    GetAll({});
    throw;
  }
}

void Region::PutAll(const SleepOptions& options) {
  for (auto& [address, tensor] : allocated_) {
    store_.put(tensor, nullptr,
               {.not_modified = options.unchanged,
                .recompute = options.keeps_bytes ? std::chrono::nanoseconds{} : kNothingToKeep});
  }
}

void Region::Wake(const WakeOptions& options) {
  const std::lock_guard lock(mutex_);
  if (!is_asleep_) return;
  store_.wake();
  try {
    GetAll(options);
  } catch (const Error&) {
    store_.sleep();
    throw;
  }
  is_asleep_ = false;
}

// All or none.
void Region::GetAll(const WakeOptions& options) {
  std::vector<ravenstore_tensor_t*> tensors;
  for (const auto& [address, tensor] : allocated_) tensors.push_back(tensor.handle());
  std::vector<void*> addresses(tensors.size());
  ravenstore_get_options_t get{};
  get.struct_size = sizeof(get);
  get.flags = options.waits ? RAVENSTORE_BLOCKING : 0;
  get.timeout_ns = options.timeout ? static_cast<uint64_t>(options.timeout->count()) : 0;
  const ravenstore_code_t code = ravenstore_get_batch(
      store_.handle(), tensors.data(), tensors.size(), options.stream, &get, addresses.data());
  if (code != RAVENSTORE_RECOMPUTE) internal::ThrowIf(code);
  auto address = addresses.begin();
  for (const auto& [expected, tensor] : allocated_) {
    if (*address++ != expected)
      throw Error(RAVENSTORE_CORRUPT, "memory of the region is at another address");
  }
}

void Region::Keep(void* address, bool stays) {
  const std::lock_guard lock(directory().mutex);
  const auto [begin, region] = Find(address);
  const std::lock_guard its(region->mutex_);
  const Tensor& tensor = region->allocated_.at(begin);
  OffsetIn(tensor, begin, address, 0);
  stays ? region->store_.keep_in_place(tensor) : region->store_.end_keep_in_place(tensor);
}

void Region::Read(const void* address, uint64_t bytes, void* to, Timeout timeout) {
  std::unique_lock lock(directory().mutex);
  const auto [begin, region] = Find(address);
  const std::lock_guard its(region->mutex_);
  lock.unlock();
  Tensor& tensor = region->allocated_.at(begin);
  const uint64_t offset = OffsetIn(tensor, begin, address, bytes);
  const auto whole = std::make_unique_for_overwrite<char[]>(tensor.size());
  region->ReadAsleep(tensor, whole.get(), timeout);
  std::memcpy(to, whole.get() + offset, bytes);
}

void Region::ReadAsleep(Tensor& tensor, void* to, Timeout timeout) {
  if (!is_asleep_) throw Error(RAVENSTORE_WRONG_STATE, "the region is awake: read it in place");
  if (!keeps_bytes_) throw Error(RAVENSTORE_NOT_FOUND, "the region sleeps without its bytes");
  store_.wake();
  try {
    store_.get_into(tensor, to, nullptr, {.blocking = true, .timeout = timeout});
  } catch (const Error&) {
    store_.sleep();
    throw;
  }
  store_.sleep();
}

Region::View Region::view() const {
  const std::lock_guard lock(mutex_);
  View view{.allocations = allocated_.size(), .is_asleep = is_asleep_};
  for (const auto& [address, tensor] : allocated_) {
    view.bytes += tensor.size();
    view.devices |= uint64_t{1} << tensor.device();
  }
  return view;
}

}  // namespace ravenstore::client
