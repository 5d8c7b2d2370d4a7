#include "client/torch.h"

#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/TensorImpl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#ifdef RAVENSTORE_TORCH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace ravenstore::torch {
namespace internal {
namespace {

// --- Streams ---

// A stream as the store and as torch know it. On the CPU both are empty: the calling thread.
struct StreamRef {
  Stream handle = nullptr;
  std::optional<c10::Stream> stream;
};

StreamRef CurrentStream(const at::Device& device) {
#ifdef RAVENSTORE_TORCH_CUDA
  if (device.is_cuda()) {
    c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device.index());
    return {stream.stream(), stream.unwrap()};
  }
#endif
  (void)device;
  return {};
}

// Lets later work on `later` run only after what `earlier` has now.
void Order(const StreamRef& earlier, const StreamRef& later) {
  if (earlier.handle == later.handle || !earlier.stream || !later.stream) return;
  c10::Event event(later.stream->device_type());
  event.record(*earlier.stream);
  event.block(*later.stream);
}

// Keeps torch's allocator from giving the block to another stream's work while `stream` reads it.
// Within one stream the order of its work already does.
void ProtectSource(const c10::Storage& storage, const StreamRef& stream) {
#ifdef RAVENSTORE_TORCH_CUDA
  if (stream.stream)
    c10::cuda::CUDACachingAllocator::recordStream(storage.data_ptr(),
                                                  c10::cuda::CUDAStream(*stream.stream));
#endif
  (void)storage;
  (void)stream;
}

// --- Shapes ---

// Bytes [begin, end) of a storage.
struct Region {
  uint64_t begin = 0;
  uint64_t end = 0;
  bool Contains(Region other) const { return begin <= other.begin && other.end <= end; }
};

// How a saved tensor lies in the region of its storage that the store has.
struct Layout {
  c10::SmallVector<int64_t, 5> sizes;
  c10::SmallVector<int64_t, 5> strides;
  int64_t offset = 0;  // elements from the region's begin
  caffe2::TypeMeta dtype;
};

// What of its storage a tensor touches.
Region SpanOf(const at::Tensor& tensor) {
  int64_t last = tensor.storage_offset();
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  const uint64_t item = tensor.itemsize();
  return {tensor.storage_offset() * item, (last + 1) * item};
}

// What of its storage to adopt for it. Views of one storage usually come together (q, k and v of
// one projection), so that one copy of all serves them; a small part of a large storage goes alone.
Region RegionFor(const at::Tensor& tensor) {
  constexpr uint64_t kAlignment = 512;  // the store's: keeps the address's alignment
  const uint64_t total = tensor.storage().nbytes();
  const Region span = SpanOf(tensor);
  if ((span.end - span.begin) * 2 >= total) return {0, total};
  return {span.begin / kAlignment * kAlignment, span.end};
}

Layout LayoutOf(const at::Tensor& tensor, Region region) {
  Layout layout;
  layout.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  layout.strides.assign(tensor.strides().begin(), tensor.strides().end());
  layout.offset = tensor.storage_offset() - static_cast<int64_t>(region.begin / tensor.itemsize());
  layout.dtype = tensor.dtype();
  return layout;
}

at::Tensor MakeTensor(c10::Storage storage, const at::Device& device, const Layout& layout) {
  const auto key = device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                         c10::DispatchKeySet(key), layout.dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(layout.sizes, layout.strides, layout.offset);
  return tensor;
}

// Whether both count the same tensor's versions. A tensor's views share its counter, while x.data
// has one of its own that starts at zero: equal numbers alone prove nothing.
bool SameCounter(const c10::VariableVersion& a, const c10::VariableVersion& b) {
  static_assert(sizeof(c10::VariableVersion) == sizeof(void*), "one reference to the counter");
  return std::memcmp(static_cast<const void*>(&a), static_cast<const void*>(&b), sizeof(a)) == 0;
}

// --- Errors ---

[[noreturn]] void Rethrow(const Error& error, const std::string& doing) {
  const std::string message = std::string(error.what()) + " (" + doing + ")";
  if (error.code() == RAVENSTORE_OUT_OF_MEMORY) throw OutOfMemory(error.code(), message);
  if (error.code() == RAVENSTORE_LOST) throw Lost(error.code(), message);
  throw Error(error.code(), message);
}

}  // namespace

class SavedBytes;

// The tensors of one scope: what to keep, what the store may hold, and the figures.
class Offload : public std::enable_shared_from_this<Offload> {
 public:
  Offload(std::shared_ptr<Store> store, const std::vector<at::Tensor>& parameters,
          const OffloadOptions& options);

  // Whether the saved tensor stays in torch's memory.
  bool Keeps(const at::Tensor& tensor) const;
  // What stands for the bytes of the tensor's storage: what does already, else a new one. Adopts
  // the oldest that torch holds if it now holds too many. Throws Error.
  std::shared_ptr<SavedBytes> Offer(const at::Tensor& tensor);

  void CountSave(uint64_t bytes) { Add(saved_, saved_bytes_, bytes); }
  void CountKept(uint64_t bytes) { Add(kept_, kept_bytes_, bytes); }
  void CountUnpacked() { unpacked_.fetch_add(1, std::memory_order_relaxed); }
  OffloadStats stats() const;

 private:
  friend class SavedBytes;

  struct Entry {
    // Keeps the StorageImpl's address from being given to another one, so that an address that is
    // found in the table is this very storage and never a later one in its place.
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    const void* data;  // where its bytes were: a storage may be resized
    c10::VariableVersion counter;
    uint32_t version;
    Region region;
    const SavedBytes* identity;
    std::weak_ptr<SavedBytes> saved;
  };

  static void Add(std::atomic<uint64_t>& count, std::atomic<uint64_t>& sum, uint64_t bytes) {
    count.fetch_add(1, std::memory_order_relaxed);
    sum.fetch_add(bytes, std::memory_order_relaxed);
  }
  std::shared_ptr<SavedBytes> Find(const at::Tensor& tensor);
  void Remember(const at::Tensor& tensor, const std::shared_ptr<SavedBytes>& saved);
  void Forget(const c10::StorageImpl* storage, const SavedBytes* saved);
  void AddLive(uint64_t bytes);
  void RemoveLive(uint64_t bytes);
  // Nothing saved is left: for the store an iteration ends. Where the options do not say it,
  // decides what torch may hold from now on.
  void StepEnded();
  // The oldest that torch holds when it holds more than it may, else null.
  std::shared_ptr<SavedBytes> NextToAdopt();
  // The smaller, the sooner it is needed: the backward pass wants the last saved first.
  int64_t NextOrder() { return -sequence_.fetch_add(1, std::memory_order_relaxed); }

  // Constant after construction.
  const std::shared_ptr<Store> store_;
  const OffloadOptions options_;
  at::DeviceType device_type_ = at::kCPU;
  std::vector<c10::Storage> parameter_storages_;  // so that no other storage gets their addresses
  std::unordered_set<const c10::StorageImpl*> parameters_;

  std::mutex mutex_;  // of table_ and held_
  std::unordered_map<const c10::StorageImpl*, std::vector<Entry>> table_;
  std::deque<std::weak_ptr<SavedBytes>> held_;  // by torch, oldest first

  std::atomic<uint64_t> held_bytes_{0};
  std::atomic<uint64_t> torch_bytes_;    // what torch may hold
  std::atomic<uint64_t> decided_on_{0};  // the peak that this was decided on
  std::atomic<uint64_t> stepped_at_{0};  // what was adopted at the end of the last iteration
  std::atomic<int64_t> sequence_{1};
  std::atomic<uint64_t> saved_{0}, saved_bytes_{0}, kept_{0}, kept_bytes_{0};
  std::atomic<uint64_t> deduplicated_{0}, deduplicated_bytes_{0}, offered_{0}, offered_bytes_{0};
  std::atomic<uint64_t> adopted_{0}, adopted_bytes_{0}, unpacked_{0};
  std::atomic<uint64_t> live_bytes_{0}, live_bytes_peak_{0}, failed_puts_{0};
};

// Bytes of a storage that autograd saved: torch holds them until Adopt, then the store. Released
// with the last saved tensor and the last tensor handed out that needs them.
class SavedBytes : public std::enable_shared_from_this<SavedBytes> {
 public:
  SavedBytes(std::shared_ptr<Offload> offload, const at::Tensor& tensor, Region region);
  ~SavedBytes();
  SavedBytes(const SavedBytes&) = delete;
  SavedBytes& operator=(const SavedBytes&) = delete;

  // Autograd saved them once more: its later save is read sooner.
  void SavedAgain();
  // Copies them into the store and lets go of torch's storage. Throws Error; then torch still
  // holds them.
  void Adopt();
  // A tensor over the memory where they are, readable by work on the device's current stream until
  // its storage dies. Throws Error.
  at::Tensor Unpack(const Layout& layout);
  Region region() const { return region_; }
  uint64_t bytes() const { return region_.end - region_.begin; }
  // Those that `tensor` was unpacked from and still equals, if any.
  static std::shared_ptr<SavedBytes> Behind(const at::Tensor& tensor);

 private:
  // What an unpacked storage holds: one get, given back by a put when the storage dies.
  struct UnpackedUse {
    std::shared_ptr<SavedBytes> saved;
    StreamRef stream;
  };
  static void Return(void* lease);
  PutOptions NextRead() const;

  const std::shared_ptr<Offload> offload_;
  const c10::StorageImpl* const key_;  // in the table; never followed
  const at::Device device_;
  const Region region_;
  const int64_t first_order_;

  std::mutex mutex_;             // of those below: the store wants one put of a tensor at a time
  std::vector<int64_t> orders_;  // one for each save not yet read, the soonest last
  c10::Storage storage_;         // while torch holds them
  Tensor tensor_;                // once the store does
  StreamRef last_;               // stream of the last use
};

SavedBytes::SavedBytes(std::shared_ptr<Offload> offload, const at::Tensor& tensor, Region region)
    : offload_(std::move(offload)),
      key_(tensor.storage().unsafeGetStorageImpl()),
      device_(tensor.device()),
      region_(region),
      first_order_(offload_->NextOrder()),
      orders_({first_order_}),
      storage_(tensor.storage()),
      last_(CurrentStream(device_)) {
  offload_->AddLive(bytes());
  offload_->held_bytes_.fetch_add(bytes(), std::memory_order_relaxed);
}

void SavedBytes::SavedAgain() {
  const int64_t order = offload_->NextOrder();
  std::lock_guard lock(mutex_);
  orders_.push_back(order);
  if (!tensor_ || !offload_->options_.hints) return;
  // The store knows the older save's place. One that it moved away already stays where it is: to
  // bring it back only to say so would cost more.
  try {
    if (!tensor_.ready()) return;
    offload_->store_->get(tensor_, last_.handle, {.access = Access::kReadOnly});
    PutOptions options = NextRead();
    options.not_modified = true;
    offload_->store_->put(tensor_, last_.handle, options);
  } catch (const Error& error) {
    // It left this very moment, and there is no room: only a hint is lost.
    if (error.code() == RAVENSTORE_OUT_OF_MEMORY || error.code() == RAVENSTORE_TIMED_OUT) return;
    Rethrow(error, "while a tensor was saved once more");
  }
}

// A graph that reads a tensor more often than it was saved (retain_graph) comes back after every
// tensor not yet read once. REQUIRES: mutex_.
PutOptions SavedBytes::NextRead() const {
  constexpr int64_t kSecondRound = int64_t{1} << 50;
  if (!offload_->options_.hints) return {};
  return {.order = orders_.empty() ? kSecondRound + first_order_ : orders_.back()};
}

SavedBytes::~SavedBytes() {
  offload_->Forget(key_, this);
  if (storage_) offload_->held_bytes_.fetch_sub(bytes(), std::memory_order_relaxed);
  try {
    if (tensor_) offload_->store_->free(std::move(tensor_), last_.handle);
  } catch (const Error&) {
    // The handle is gone either way, and the store that refused takes the bytes back by itself.
  }
  offload_->RemoveLive(bytes());
}

void SavedBytes::Adopt() {
  std::lock_guard lock(mutex_);
  if (!storage_) return;
  const StreamRef stream = CurrentStream(device_);
  Order(last_, stream);
  const auto* begin = static_cast<const std::byte*>(storage_.data_ptr().get()) + region_.begin;
  const int device = device_.is_cuda() ? device_.index() : offload_->options_.host_device;
  try {
    offload_->store_->check(stream.handle);
    tensor_ = offload_->store_->adopt(begin, bytes(), stream.handle, {.device = device});
    last_ = stream;
    offload_->store_->put(tensor_, stream.handle, NextRead());
  } catch (const Error& error) {
    Rethrow(error,
            "while saving a tensor of " + std::to_string(bytes()) + " bytes for the backward pass");
  }
  ProtectSource(storage_, stream);
  storage_ = {};
  offload_->held_bytes_.fetch_sub(bytes(), std::memory_order_relaxed);
  Offload::Add(offload_->adopted_, offload_->adopted_bytes_, bytes());
}

at::Tensor SavedBytes::Unpack(const Layout& layout) {
  auto lease =
      std::make_unique<UnpackedUse>(UnpackedUse{shared_from_this(), CurrentStream(device_)});
  void* address = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (!orders_.empty()) orders_.pop_back();
    if (storage_) {
      Layout whole = layout;
      whole.offset += static_cast<int64_t>(region_.begin / layout.dtype.itemsize());
      return MakeTensor(storage_, device_, whole);
    }
    try {
      offload_->store_->check(lease->stream.handle);
      address = offload_->store_->get(tensor_, lease->stream.handle, {.access = Access::kReadOnly});
    } catch (const Error& error) {
      Rethrow(error, "while the backward pass asked for a saved tensor");
    }
    Order(last_, lease->stream);
    last_ = lease->stream;
  }
  c10::DataPtr data(address, lease.release(), &SavedBytes::Return, device_);
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes(), std::move(data), /*allocator=*/nullptr,
      /*resizable=*/false));
  return MakeTensor(std::move(storage), device_, layout);
}

void SavedBytes::Return(void* context) {
  std::unique_ptr<UnpackedUse> lease(static_cast<UnpackedUse*>(context));
  SavedBytes& saved = *lease->saved;
  std::lock_guard lock(saved.mutex_);
  try {
    Order(saved.last_, lease->stream);
    saved.last_ = lease->stream;
    PutOptions options = saved.NextRead();
    options.not_modified = true;
    saved.offload_->store_->put(saved.tensor_, lease->stream.handle, options);
  } catch (const std::exception&) {
    // A deleter must not throw. The store answers this tensor's next get with what is wrong.
    saved.offload_->failed_puts_.fetch_add(1, std::memory_order_relaxed);
  }
}

std::shared_ptr<SavedBytes> SavedBytes::Behind(const at::Tensor& tensor) {
  const c10::DataPtr& data = tensor.storage().data_ptr();
  if (data.get_deleter() != &SavedBytes::Return || tensor._version() != 0) return nullptr;
  return static_cast<UnpackedUse*>(data.get_context())->saved;
}

Offload::Offload(std::shared_ptr<Store> store, const std::vector<at::Tensor>& parameters,
                 const OffloadOptions& options)
    : store_(std::move(store)), options_(options), torch_bytes_(options.torch_bytes.value_or(0)) {
  if (!store_ && !options.measure_only)
    throw Error(RAVENSTORE_INVALID_ARGUMENT, "OffloadScope needs a store, or measure_only");
  if (store_ && store_->backend() == "cuda") device_type_ = at::kCUDA;
#ifndef RAVENSTORE_TORCH_CUDA
  if (device_type_ == at::kCUDA)
    throw Error(RAVENSTORE_UNSUPPORTED,
                "the store's backend is \"cuda\", but this program's torch adapter was built "
                "without it: build client/torch.cc with -DRAVENSTORE_TORCH_CUDA against a torch "
                "with CUDA");
#endif
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.defined() || !parameter.has_storage()) continue;
    parameter_storages_.push_back(parameter.storage());
    parameters_.insert(parameter.storage().unsafeGetStorageImpl());
    // Without a store the parameters say which device the model is on.
    if (!store_) device_type_ = parameter.device().type();
  }
}

bool Offload::Keeps(const at::Tensor& tensor) const {
  // Only what is plain memory can be rebuilt from its bytes, sizes and strides.
  if (tensor.layout() != at::kStrided || !tensor.has_storage() || tensor.is_quantized() ||
      tensor.is_nested() || tensor.is_conj() || tensor.is_neg() || tensor.has_names() ||
      tensor.unsafeGetTensorImpl()->is_wrapped_number())
    return true;
  if (tensor.device().type() != device_type_ || tensor.numel() == 0) return true;
  if (tensor.storage().nbytes() < options_.min_bytes || !tensor.storage().data_ptr()) return true;
  if (parameters_.count(tensor.storage().unsafeGetStorageImpl())) return true;
  // A leaf that requires a gradient is a parameter; the graph's end holds it anyway.
  const at::TensorBase& base = tensor.is_view() ? tensor._base() : tensor;
  return base.is_leaf() && base.requires_grad();
}

std::shared_ptr<SavedBytes> Offload::Offer(const at::Tensor& tensor) {
  std::shared_ptr<SavedBytes> saved = SavedBytes::Behind(tensor);
  if (!saved) saved = Find(tensor);
  if (saved) {
    saved->SavedAgain();
    Add(deduplicated_, deduplicated_bytes_, tensor.nbytes());
    return saved;
  }
  // Two threads that save one storage at the same time offer it twice, which costs bytes and
  // nothing else.
  saved = std::make_shared<SavedBytes>(shared_from_this(), tensor, RegionFor(tensor));
  Remember(tensor, saved);
  Add(offered_, offered_bytes_, saved->bytes());
  // Not under the lock: it may wait for room.
  while (auto oldest = NextToAdopt()) oldest->Adopt();
  return saved;
}

std::shared_ptr<SavedBytes> Offload::Find(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
  const Region span = SpanOf(tensor);
  std::lock_guard lock(mutex_);
  auto row = table_.find(storage.unsafeGetStorageImpl());
  if (row == table_.end()) return nullptr;
  for (const Entry& entry : row->second) {
    if (entry.data != storage.data_ptr().get() || !entry.region.Contains(span)) continue;
    if (!SameCounter(entry.counter, counter) || entry.version != counter.current_version())
      continue;
    if (auto saved = entry.saved.lock()) return saved;
  }
  return nullptr;
}

void Offload::Remember(const at::Tensor& tensor, const std::shared_ptr<SavedBytes>& saved) {
  const c10::Storage& storage = tensor.storage();
  const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
  std::lock_guard lock(mutex_);
  table_[storage.unsafeGetStorageImpl()].push_back(
      Entry{storage.getWeakStorageImpl(), storage.data_ptr().get(), counter,
            counter.current_version(), saved->region(), saved.get(), saved});
  held_.push_back(saved);
}

void Offload::Forget(const c10::StorageImpl* storage, const SavedBytes* saved) {
  std::lock_guard lock(mutex_);
  while (!held_.empty() && held_.back().expired()) held_.pop_back();
  while (!held_.empty() && held_.front().expired()) held_.pop_front();
  auto row = table_.find(storage);
  if (row == table_.end()) return;
  std::erase_if(row->second, [&](const Entry& entry) { return entry.identity == saved; });
  if (row->second.empty()) table_.erase(row);
}

std::shared_ptr<SavedBytes> Offload::NextToAdopt() {
  if (options_.measure_only) return nullptr;
  std::lock_guard lock(mutex_);
  while (held_bytes_.load(std::memory_order_relaxed) >
             torch_bytes_.load(std::memory_order_relaxed) &&
         !held_.empty()) {
    auto oldest = held_.front().lock();
    held_.pop_front();
    if (oldest) return oldest;
  }
  return nullptr;
}

void Offload::AddLive(uint64_t bytes) {
  const uint64_t live = live_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  uint64_t peak = live_bytes_peak_.load(std::memory_order_relaxed);
  while (live > peak && !live_bytes_peak_.compare_exchange_weak(peak, live)) {
  }
}

void Offload::RemoveLive(uint64_t bytes) {
  if (live_bytes_.fetch_sub(bytes, std::memory_order_relaxed) == bytes) StepEnded();
}

void Offload::StepEnded() {
  const uint64_t adopted = adopted_.load(std::memory_order_relaxed);
  if (store_ && stepped_at_.exchange(adopted, std::memory_order_relaxed) != adopted) {
    try {
      store_->step();
    } catch (const Error&) {
      // The store is lost: the next save says so.
    }
  }
  if (options_.torch_bytes || options_.measure_only) return;
  const uint64_t peak = live_bytes_peak_.load(std::memory_order_relaxed);
  // Without news the answer is the same.
  if (decided_on_.exchange(peak, std::memory_order_relaxed) == peak) return;
  try {
    const bool fits = peak <= store_->stats().device_budget;
    torch_bytes_.store(fits ? peak : 0, std::memory_order_relaxed);
    if (fits) store_->trim();
  } catch (const Error&) {
    // The store is lost: the next save says so.
  }
}

OffloadStats Offload::stats() const {
  OffloadStats stats;
  stats.saved = saved_;
  stats.saved_bytes = saved_bytes_;
  stats.kept = kept_;
  stats.kept_bytes = kept_bytes_;
  stats.deduplicated = deduplicated_;
  stats.deduplicated_bytes = deduplicated_bytes_;
  stats.offered = offered_;
  stats.offered_bytes = offered_bytes_;
  stats.adopted = adopted_;
  stats.adopted_bytes = adopted_bytes_;
  stats.unpacked = unpacked_;
  stats.live_bytes = live_bytes_;
  stats.live_bytes_peak = live_bytes_peak_;
  stats.failed_puts = failed_puts_;
  return stats;
}

namespace {

// --- The engine and its hooks ---

// What stands in a graph for one saved tensor.
class Hooks : public ::torch::autograd::SavedVariableHooks {
 public:
  explicit Hooks(std::shared_ptr<Offload> offload) : offload_(std::move(offload)) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    counter_ = tensor.unsafeGetTensorImpl()->version_counter();
    version_ = counter_.current_version();
    const uint64_t bytes = tensor.layout() == at::kStrided ? tensor.nbytes() : 0;
    offload_->CountSave(bytes);
    if (offload_->Keeps(tensor)) {
      offload_->CountKept(bytes);
      // Without its place in the graph, else a node that saves its own result would hold itself.
      kept_ = tensor.tensor_data();
      return;
    }
    saved_ = offload_->Offer(tensor);
    layout_ = LayoutOf(tensor, saved_->region());
  }

  at::Tensor call_unpack_hook() override {
    // With hooks set torch leaves this check out.
    TORCH_CHECK(counter_.current_version() == version_,
                "one of the variables needed for gradient computation has been modified by an "
                "inplace operation: a saved tensor of shape ",
                kept_.defined() ? kept_.sizes() : c10::IntArrayRef(layout_.sizes),
                " is at version ", counter_.current_version(), "; expected version ", version_,
                " instead.");
    offload_->CountUnpacked();
    return kept_.defined() ? kept_ : saved_->Unpack(layout_);
  }

 private:
  std::shared_ptr<Offload> offload_;
  c10::VariableVersion counter_;
  uint32_t version_ = 0;
  at::Tensor kept_;  // else:
  std::shared_ptr<SavedBytes> saved_;
  Layout layout_;
};

// The scope that is alive, if any.
std::mutex active_mutex;
std::shared_ptr<Offload> active;      // guarded by active_mutex
std::atomic<bool> any_active{false};  // so that no call pays for the lock without a scope

class OffloadEngine : public ::torch::autograd::Engine {
 public:
  std::unique_ptr<::torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks()
      override {
    if (!any_active.load(std::memory_order_acquire)) return nullptr;
    std::lock_guard lock(active_mutex);
    if (!active) return nullptr;
    return std::make_unique<Hooks>(active);
  }
};

::torch::autograd::Engine& TheEngine() {
  // Never destroyed: its threads may outlive main().
  static auto* engine = new OffloadEngine;
  return *engine;
}

bool InsidePython() {
  auto* is_initialized = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "Py_IsInitialized"));
  return is_initialized && is_initialized() != 0;
}

// REQUIRES: active_mutex is held.
void InstallEngine() {
  using ::torch::autograd::Engine;
  Engine& current = Engine::get_default_engine();
  if (&current == &TheEngine()) return;
  if (InsidePython() || &current != &Engine::get_base_engine())
    throw Error(RAVENSTORE_UNSUPPORTED,
                "OffloadScope replaces autograd's default engine, which works only where that is "
                "libtorch's own. Here it is another one (Python's?): inside Python use "
                "torch.autograd.graph.saved_tensors_hooks instead");
  ::torch::autograd::set_default_engine_stub(&TheEngine);
}

}  // namespace
}  // namespace internal

OffloadScope::OffloadScope(std::shared_ptr<Store> store, const std::vector<at::Tensor>& parameters,
                           const OffloadOptions& options)
    : offload_(std::make_shared<internal::Offload>(std::move(store), parameters, options)) {
  std::lock_guard lock(internal::active_mutex);
  if (internal::active)
    throw Error(RAVENSTORE_WRONG_STATE, "another OffloadScope is alive in this process");
  internal::InstallEngine();
  internal::active = offload_;
  internal::any_active.store(true, std::memory_order_release);
}

OffloadScope::~OffloadScope() {
  std::lock_guard lock(internal::active_mutex);
  internal::any_active.store(false, std::memory_order_release);
  internal::active.reset();
}

OffloadStats OffloadScope::stats() const {
  return offload_->stats();
}

}  // namespace ravenstore::torch
