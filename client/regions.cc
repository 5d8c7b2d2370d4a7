#include "client/regions.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "client/blocks.h"
#include "client/orders.h"
#include "ipc/clock.h"

namespace ravenstore::client {

namespace {

constexpr std::chrono::nanoseconds kNothingToKeep{1};
constexpr std::chrono::nanoseconds kNoWait{1};
constexpr char kOfNoRegion[] = "the memory is of no region";
constexpr char kTooLate[] = "it came to no point where it could do that in time";

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

uint64_t OffsetIn(const Tensor& tensor, const void* begin, const void* address, uint64_t bytes) {
  const auto offset =
      static_cast<uint64_t>(static_cast<const char*>(address) - static_cast<const char*>(begin));
  if (offset >= tensor.size() || bytes > tensor.size() - offset)
    throw Error(RAVENSTORE_NOT_FOUND, kOfNoRegion);
  return offset;
}

thread_local Region* here = nullptr;
// How many regions sleep since they were ordered to.
std::atomic<uint64_t> asleep_by_order{0};

core::Error Converted(const Error& error) {
  return {static_cast<core::ErrorCode>(error.code()), error.what()};
}

}  // namespace

Region::Region(ConnectOptions options) : name_(options.name) {
  options.fixed_addresses = true;
  store_ = Store::connect(options);
}

Region::~Region() {
  const std::lock_guard lock(directory().mutex);
  std::erase_if(directory().regions, [this](const auto& entry) { return entry.second == this; });
  SetAsleepByOrder(false);
}

void Region::Enter(Region* region) noexcept {
  here = region;
}

Region* Region::Current() noexcept {
  return here;
}

Region* Region::Of(const void* address) noexcept {
  if (IsForked()) return nullptr;
  try {
    return Find(address).region;
  } catch (const Error&) {
    return nullptr;
  }
}

Region::Found Region::Find(const void* address, uint64_t bytes) {
  const std::lock_guard lock(directory().mutex);
  const auto& regions = directory().regions;
  const auto after = regions.upper_bound(const_cast<void*>(address));
  if (after == regions.begin()) throw Error(RAVENSTORE_NOT_FOUND, kOfNoRegion);
  const auto [begin, region] = *std::prev(after);
  std::unique_lock its(region->mutex_);
  Tensor& tensor = region->allocated_.at(begin);
  const uint64_t offset = OffsetIn(tensor, begin, address, bytes);
  return {region, begin, &tensor, offset, std::move(its)};
}

void* Region::AllocateInCurrent(uint64_t bytes, int device) noexcept {
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
  region->not_held_.erase(address);
  region->allocated_.erase(address);
  return true;
}

uint64_t Region::Sleep(const SleepOptions& options) {
  const std::lock_guard lock(mutex_);
  return SleepLocked(options);
}

uint64_t Region::SleepLocked(const SleepOptions& options) {
  if (is_asleep_) throw Error(RAVENSTORE_WRONG_STATE, "the region is asleep already");
  // What does not come sleeps.
  if (is_coming_) static_cast<void>(GetAll({.timeout = options.timeout}));
  PutAll(options);
  try {
    const uint64_t bytes = store_.sleep(options.timeout);
    is_asleep_ = true;
    is_coming_ = false;
    keeps_bytes_ = options.keeps_bytes;
    return bytes;
  } catch (const Error&) {
    BeginGets(options.timeout);
    static_cast<void>(GetAll({.timeout = options.timeout}));
    throw;
  }
}

void Region::PutAll(const SleepOptions& options) {
  for (auto& [address, tensor] : allocated_) {
    if (is_coming_ && not_held_.contains(address)) continue;
    store_.put(tensor, nullptr,
               {.not_modified = options.unchanged,
                .recompute = options.keeps_bytes ? std::chrono::nanoseconds{} : kNothingToKeep});
  }
}

void Region::Wake(const WakeOptions& options) {
  const std::lock_guard lock(mutex_);
  WakeLocked(options);
}

void Region::WakeLocked(const WakeOptions& options) {
  const bool was_asleep = is_asleep_;
  if (was_asleep) {
    store_.wake();
    is_asleep_ = false;
    BeginGets(options.timeout);
  }
  const bool waits = !options.in_order && is_coming_;
  const std::exception_ptr failure = waits ? GetAll(options) : nullptr;
  if (!failure) return SetAsleepByOrder(false);
  if (was_asleep) {
    PutAll({.keeps_bytes = keeps_bytes_, .unchanged = true});
    store_.sleep();
    is_asleep_ = true;
    is_coming_ = false;
  }
  std::rethrow_exception(failure);
}

void Region::SetAsleepByOrder(bool asleep) {
  if (asleep_by_order_ == asleep) return;
  asleep_by_order_ = asleep;
  asleep_by_order.fetch_add(asleep ? 1 : ~uint64_t{0}, std::memory_order_relaxed);
}

void Region::TakeOrders(std::string job, uint32_t run) {
  const std::lock_guard lock(mutex_);
  client::TakeOrders(store_.handle(), {.tag = name_, .job = std::move(job), .run = run});
}

bool Region::Obey() {
  if (IsForked()) return false;
  const std::lock_guard lock(mutex_);
  Orders& orders = OrdersOf(store_.handle());
  while (const auto order = orders.Take()) {
    if (order->wakes != is_asleep_) {
      orders.Finish(core::Ok(), /*changed=*/false, {});
      continue;
    }
    const auto now = static_cast<uint64_t>(ipc::Now().time_since_epoch().count());
    if (now >= order->deadline_ns) {
      orders.Finish(core::Error{core::ErrorCode::kTimedOut, kTooLate}, /*changed=*/false, {});
      continue;
    }
    const Timeout left = std::chrono::nanoseconds(order->deadline_ns - now);
    uint64_t bytes = 0;
    try {
      order->wakes
          ? WakeLocked({.timeout = left})
          : void(bytes = SleepLocked({.keeps_bytes = !order->keeps_nothing, .timeout = left}));
      SetAsleepByOrder(!order->wakes);
      orders.Finish(core::Ok(), /*changed=*/true, core::Bytes(bytes));
    } catch (const Error& error) {
      orders.Finish(Converted(error), /*changed=*/false, {});
    }
  }
  return asleep_by_order_;
}

bool Region::IsAnyOrdered() noexcept {
  return Orders::AnyWaits() || asleep_by_order.load(std::memory_order_relaxed) != 0;
}

void Region::BeginGets(Timeout timeout) {
  std::vector<ravenstore_tensor_t*> tensors;
  not_held_.clear();
  for (const auto& [address, tensor] : allocated_) {
    tensors.push_back(tensor.handle());
    not_held_.insert(address);
  }
  is_coming_ = true;
  ravenstore_get_options_t get{};
  get.struct_size = sizeof(get);
  get.timeout_ns = timeout ? static_cast<uint64_t>(timeout->count()) : 0;
  // Of an error the gets say more.
  static_cast<void>(
      ravenstore_begin_get_batch(store_.handle(), tensors.data(), tensors.size(), &get));
}

std::exception_ptr Region::GetAll(const WakeOptions& options) {
  std::exception_ptr failure;
  WakeOptions each = options;
  const auto begun = std::chrono::steady_clock::now();
  for (auto& [address, tensor] : allocated_) {
    try {
      GetOne(address, tensor, each);
    } catch (const Error&) {
      if (!failure) failure = std::current_exception();
    }
    if (options.timeout)
      each.timeout =
          std::max(*options.timeout - (std::chrono::steady_clock::now() - begun), kNoWait);
    if (failure) each.timeout = kNoWait;
  }
  is_coming_ = failure || !options.waits;
  return failure;
}

void Region::GetOne(void* address, Tensor& tensor, const WakeOptions& options) {
  const bool is_held = !not_held_.contains(address);
  void* const got =
      store_.get(tensor, options.stream, {.blocking = options.waits, .timeout = options.timeout});
  // For the stream's wait alone.
  if (is_held) store_.put(tensor, options.stream, {.not_modified = true});
  not_held_.erase(address);
  if (got != address) throw Error(RAVENSTORE_CORRUPT, "memory of the region is at another address");
}

void Region::Await(const void* address, Stream stream, Timeout timeout) {
  const Found found = Find(address);
  Region* const region = found.region;
  if (region->is_asleep_)
    throw Error(RAVENSTORE_WRONG_STATE, "the region is asleep: wake it first");
  if (region->is_coming_)
    region->GetOne(found.begin, *found.tensor,
                   {.stream = stream, .waits = false, .timeout = timeout});
}

void Region::Keep(void* address, bool stays) {
  const Found found = Find(address);
  Store& store = found.region->store_;
  stays ? store.keep_in_place(*found.tensor) : store.end_keep_in_place(*found.tensor);
}

void Region::Read(const void* address, uint64_t bytes, void* to, Timeout timeout) {
  const Found found = Find(address, bytes);
  const auto whole = std::make_unique_for_overwrite<char[]>(found.tensor->size());
  found.region->ReadAsleep(*found.tensor, whole.get(), timeout);
  std::memcpy(to, whole.get() + found.offset, bytes);
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
