#include "client/torch_saved.h"

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
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/variable.h>

namespace ravenstore::torch {
namespace internal {

StreamRef (*current_cuda_stream)(const at::Device&) = nullptr;

namespace {

// --- Streams ---

StreamRef CurrentStream(const at::Device& device) {
  if (device.is_cuda() && current_cuda_stream != nullptr) return current_cuda_stream(device);
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
  if (stream.stream)
    c10::impl::VirtualGuardImpl(stream.stream->device_type())
        .recordDataPtrOnStream(storage.data_ptr(), *stream.stream);
}

// --- Shapes ---

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

at::Tensor MakeTensor(c10::Storage storage, const at::Device& device, const Layout& layout,
                      const c10::VariableVersion& counter) {
  const auto key = device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                         c10::DispatchKeySet(key), layout.dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(layout.sizes, layout.strides, layout.offset);
  if (counter.enabled() && !tensor.is_inference())
    tensor.unsafeGetTensorImpl()->set_version_counter(counter);
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

SavedBytes::SavedBytes(std::shared_ptr<Offload> offload, const at::Tensor& tensor, Region region)
    : offload_(std::move(offload)),
      key_(tensor.storage().unsafeGetStorageImpl()),
      device_(tensor.device()),
      region_(region),
      first_order_(offload_->NextOrder()),
      block_(offload_->BlockOf(tensor)),
      orders_({first_order_}),
      last_(CurrentStream(device_)) {
  if (block_ != nullptr) {
    offload_->parking_.blocks->Save(block_, NextRead());
    Offload::Add(offload_->parked_, offload_->parked_bytes_, bytes());
  } else {
    storage_ = tensor.storage();
    offload_->held_bytes_.fetch_add(bytes(), std::memory_order_relaxed);
  }
  offload_->AddLive(bytes());
}

void SavedBytes::SavedAgain() {
  const int64_t order = offload_->NextOrder();
  std::lock_guard lock(mutex_);
  orders_.push_back(order);
  if (block_ != nullptr) return offload_->parking_.blocks->ReadNext(block_, NextRead());
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
  if (block_ != nullptr) offload_->parking_.blocks->Unsave(block_);
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

at::Tensor SavedBytes::Unpack(const Layout& layout, const c10::VariableVersion& counter) {
  auto lease = std::make_unique<UnpackedUse>();
  lease->saved = shared_from_this();
  lease->stream = CurrentStream(device_);
  void* address = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (!orders_.empty()) orders_.pop_back();
    if (storage_) {
      Layout whole = layout;
      whole.offset += static_cast<int64_t>(region_.begin / layout.dtype.itemsize());
      return MakeTensor(storage_, device_, whole, counter);
    }
    try {
      offload_->store_->check(lease->stream.handle);
      address = block_ != nullptr ? offload_->parking_.blocks->Open(block_, lease->stream.handle)
                                  : offload_->store_->get(tensor_, lease->stream.handle);
    } catch (const Error& error) {
      Rethrow(error, "while the backward pass asked for a saved tensor");
    }
    if (block_ == nullptr) Order(last_, lease->stream);
    last_ = lease->stream;
  }
  UnpackedUse& use = *lease;
  c10::DataPtr data(address, lease.release(), &SavedBytes::Return, device_);
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes(), std::move(data), /*allocator=*/nullptr,
      /*resizable=*/false));
  at::Tensor tensor = MakeTensor(std::move(storage), device_, layout, counter);
  use.counter = tensor.unsafeGetTensorImpl()->version_counter();
  if (use.counter.enabled()) use.version = use.counter.current_version();
  return tensor;
}

void SavedBytes::Return(void* context) {
  std::unique_ptr<UnpackedUse> lease(static_cast<UnpackedUse*>(context));
  SavedBytes& saved = *lease->saved;
  std::lock_guard lock(saved.mutex_);
  try {
    for (const StreamRef& stream : lease->recorded) Order(stream, lease->stream);
    PutOptions options = saved.NextRead();
    options.not_modified = lease->IsClean();
    if (saved.block_ != nullptr)
      return saved.offload_->parking_.blocks->Close(saved.block_, lease->stream.handle, options);
    Order(saved.last_, lease->stream);
    saved.last_ = lease->stream;
    saved.offload_->store_->put(saved.tensor_, lease->stream.handle, options);
  } catch (const std::exception&) {
    // A deleter must not throw. The store answers this tensor's next get with what is wrong.
    saved.offload_->failed_puts_.fetch_add(1, std::memory_order_relaxed);
  }
}

std::shared_ptr<SavedBytes> SavedBytes::Behind(const at::Tensor& tensor) {
  const c10::DataPtr& data = tensor.storage().data_ptr();
  if (data.get_deleter() != &SavedBytes::Return) return nullptr;
  const auto* lease = static_cast<UnpackedUse*>(data.get_context());
  const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
  return SameCounter(counter, lease->counter) && lease->IsClean() ? lease->saved : nullptr;
}

bool SavedBytes::Record(const c10::DataPtr& data, const StreamRef& stream) {
  if (data.get_deleter() != &SavedBytes::Return) return false;
  auto* lease = static_cast<UnpackedUse*>(data.get_context());
  std::lock_guard lock(lease->mutex);
  lease->recorded.push_back(stream);
  return true;
}

const char* NameOf(Kept reason) {
  switch (reason) {
    case Kept::kNo: return "moved";
    case Kept::kParameter: return "parameter";
    case Kept::kSmall: return "small";
    case Kept::kEmpty: return "empty";
    case Kept::kOtherDevice: return "other device";
    case Kept::kNotPlain: return "not plain memory";
    case Kept::kSubclass: return "subclass";
    case Kept::kForeign: return "not the store's memory";
    case Kept::kForked: return "a forked child";
  }
  return "";
}

Offload::Offload(std::shared_ptr<Store> store, const std::vector<at::Tensor>& parameters,
                 const OffloadOptions& options, const Parking& parking)
    : store_(std::move(store)),
      options_(options),
      parking_(parking),
      born_(CountForks()),
      torch_bytes_(options.torch_bytes.value_or(0)) {
  if (!store_ && !options.measure_only)
    throw Error(RAVENSTORE_INVALID_ARGUMENT, "OffloadScope needs a store, or measure_only");
  if (store_ && store_->backend() == "cuda") device_type_ = at::kCUDA;
  if (device_type_ == at::kCUDA && current_cuda_stream == nullptr)
    throw Error(RAVENSTORE_UNSUPPORTED,
                "the store's backend is \"cuda\", but this program's torch adapter was built "
                "without it: build client/torch.cc with -DRAVENSTORE_TORCH_CUDA against a torch "
                "with CUDA");
  // Without a store the parameters say which device the model is on.
  if (!store_ && !parameters.empty()) device_type_ = parameters.front().device().type();
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.defined() || !parameter.has_storage()) continue;
    if (parameters_.insert(parameter.storage().unsafeGetStorageImpl()).second)
      parameter_storages_.push_back(parameter.storage());
  }
}

Kept Offload::Keeps(const at::Tensor& tensor, bool is_parameter) const {
  // Before any lock: another thread may have held it.
  if (CountForks() != born_) return Kept::kForked;
  // Only what is plain memory can be rebuilt from its bytes, sizes and strides.
  const auto keys = tensor.key_set();
  if (keys.has(c10::DispatchKey::Python) || keys.has(c10::DispatchKey::FuncTorchGradWrapper) ||
      keys.has(c10::DispatchKey::Functionalize) || keys.has(c10::DispatchKey::FuncTorchBatched))
    return Kept::kSubclass;
  if (tensor.layout() != at::kStrided || !tensor.has_storage() || tensor.is_quantized() ||
      tensor.is_nested() || tensor.is_conj() || tensor.is_neg() || HasNames(tensor) ||
      tensor.unsafeGetTensorImpl()->is_wrapped_number())
    return Kept::kNotPlain;
  if (tensor.device().type() != device_type_) return Kept::kOtherDevice;
  if (tensor.numel() == 0 || !tensor.storage().data_ptr()) return Kept::kEmpty;
  if (tensor.storage().nbytes() < options_.min_bytes) return Kept::kSmall;
  // A leaf that requires a gradient is a parameter; the graph's end holds it anyway.
  const at::TensorBase& base = tensor.is_view() ? tensor._base() : tensor;
  if (is_parameter || (base.is_leaf() && base.requires_grad())) return Kept::kParameter;
  if (parameters_.count(tensor.storage().unsafeGetStorageImpl())) return Kept::kParameter;
  if (parking_.blocks != nullptr && BlockOf(tensor) == nullptr && !SavedBytes::Behind(tensor))
    return Kept::kForeign;
  return Kept::kNo;
}

Block* Offload::BlockOf(const at::Tensor& tensor) const {
  return parking_.blocks ? parking_.block_of(tensor.storage().data_ptr()) : nullptr;
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
  // A block is parked whole.
  const Region region = parking_.blocks ? Region{0, tensor.storage().nbytes()} : RegionFor(tensor);
  saved = std::make_shared<SavedBytes>(shared_from_this(), tensor, region);
  Remember(tensor, saved);
  Add(offered_, offered_bytes_, tensor.nbytes());
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
  if (parking_.blocks == nullptr) held_.push_back(saved);
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
  const uint64_t adopted = adopted_.load(std::memory_order_relaxed) + parked_.load();
  if (store_ && stepped_at_.exchange(adopted, std::memory_order_relaxed) != adopted) {
    try {
      store_->step();
    } catch (const Error&) {
      // The store is lost: the next save says so.
    }
  }
  if (options_.torch_bytes || options_.measure_only || parking_.blocks) return;
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

void Offload::CountKept(Kept reason, uint64_t bytes) {
  Add(kept_, kept_bytes_, bytes);
  const auto index = static_cast<size_t>(reason);
  Add(kept_for_[index], kept_for_bytes_[index], bytes);
}

void Offload::CountRead(uint64_t bytes) {
  const auto node = CurrentNode();
  if (!node) return;
  Reader reader;
  {
    std::lock_guard lock(readers_mutex_);
    // A node's address may be another one's later.
    if (node.get() != reader_ || node->sequence_nr() != reader_number_) reader_bytes_ = 0;
    reader_ = node.get();
    reader_number_ = node->sequence_nr();
    reader_bytes_ += bytes;
    if (reader_bytes_ <= largest_reader_.bytes) return;
    reader.bytes = reader_bytes_;
  }
  // A node of Python's takes the GIL for it, and who holds that may wait for the mutex.
  reader.name = node->name();
  std::lock_guard lock(readers_mutex_);
  if (reader.bytes > largest_reader_.bytes) largest_reader_ = std::move(reader);
}

Reader Offload::LargestReader() const {
  std::lock_guard lock(readers_mutex_);
  return largest_reader_;
}

Tally Offload::KeptFor(Kept reason) const {
  const auto index = static_cast<size_t>(reason);
  return {kept_for_[index], kept_for_bytes_[index]};
}

Tally Offload::Parked() const {
  return {parked_, parked_bytes_};
}

SavedTensor::SavedTensor(std::shared_ptr<Offload> offload, const at::Tensor& tensor,
                         bool is_parameter)
    : offload_(std::move(offload)) {
  if (!tensor.is_inference()) {
    counter_ = tensor.unsafeGetTensorImpl()->version_counter();
    version_ = counter_.current_version();
    // As it is, without the work that grad_fn() does for a view.
    if (auto* meta = ::torch::autograd::impl::get_autograd_meta(tensor)) {
      made_by_ = WeakNode(meta->grad_fn_);
      output_nr_ = meta->output_nr_;
    }
  }
  const uint64_t bytes = tensor.layout() == at::kStrided ? tensor.nbytes() : 0;
  offload_->CountSave(bytes);
  const Kept reason = offload_->Keeps(tensor, is_parameter);
  if (reason != Kept::kNo) {
    offload_->CountKept(reason, bytes);
    // Without its place in the graph, else a node that saves its own result would hold itself.
    kept_ = tensor.tensor_data();
    return;
  }
  saved_ = offload_->Offer(tensor);
  layout_ = LayoutOf(tensor, saved_->region());
}

void SavedTensor::CheckVersion() const {
  if (!counter_.enabled() || counter_.current_version() == version_) return;
  const auto maker = made_by_.lock();
  const std::string made =
      maker ? c10::str(", which is output ", output_nr_, " of ", NameInErrors(*maker), ",") : "";
  const std::string what = kept_.defined() ? c10::str(kept_.toString(), " ", kept_.sizes())
                                           : c10::str(saved_->is_cuda() ? "CUDA" : "CPU",
                                                      c10::typeMetaToScalarType(layout_.dtype),
                                                      "Type ", c10::IntArrayRef(layout_.sizes));
  const char* hint =
      ::torch::autograd::AnomalyMode::is_enabled()
          ? " Hint: the backtrace further above shows the operation that failed to compute its "
            "gradient. The variable in question was changed in there or anywhere later. Good luck!"
          : " Hint: enable anomaly detection to find the operation that failed to compute its "
            "gradient, with torch.autograd.set_detect_anomaly(" DETECT_ANOMALY_ARGUMENTS ").";
  TORCH_CHECK(false,
              "one of the variables needed for gradient computation has been modified by an "
              "inplace operation: [",
              what, "]", made, " is at version ", counter_.current_version(), "; expected version ",
              version_, " instead.", hint);
}

at::Tensor SavedTensor::Unpack() {
  CheckVersion();
  offload_->CountUnpacked();
  if (kept_.defined()) return kept_;
  offload_->CountRead(c10::multiply_integers(layout_.sizes) * layout_.dtype.itemsize());
  return saved_->Unpack(layout_, counter_);
}

}  // namespace internal
}  // namespace ravenstore::torch
