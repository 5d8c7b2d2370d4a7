// What autograd saved, on its way through the store: the state machine behind OffloadScope and the
// Python package.
//
// Bytes that autograd saved are held by one of three: by a parked block, where torch's memory is
// the store's (torch_allocator.h), so that nothing is copied; by torch, until they are copied into
// the store; or by the store.
//
// Threads: everything here may be called from any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <c10/core/TensorImpl.h>
#include <torch/csrc/autograd/function.h>

#ifdef RAVENSTORE_TORCH_CUDA
#include <c10/cuda/CUDAStream.h>
#endif

#include "client/blocks.h"
#include "client/torch.h"
#include "client/torch_version.h"

namespace ravenstore::torch::internal {

// A stream as the store and as torch know it. On the CPU both are empty: the calling thread.
struct StreamRef {
  Stream handle = nullptr;
  std::optional<c10::Stream> stream;
};

// The current stream of torch on a CUDA device. torch_saved.cc is compiled without CUDA, to serve a
// torch that has none. So code compiled with CUDA sets this function, before the first Offload of a
// store whose backend is "cuda"; until then it is null.
extern StreamRef (*current_cuda_stream)(const at::Device& device);

#ifdef RAVENSTORE_TORCH_CUDA
inline void UseCudaStreams() {
  current_cuda_stream = [](const at::Device& device) -> StreamRef {
    const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device.index());
    return {stream.stream(), stream.unwrap()};
  };
}
#endif

// Bytes [begin, end) of a storage.
struct Region {
  uint64_t begin = 0;
  uint64_t end = 0;
  bool Contains(Region other) const { return begin <= other.begin && other.end <= end; }
};

// A saved tensor's layout in the region of its storage that the store has.
struct Layout {
  c10::SmallVector<int64_t, 5> sizes;
  c10::SmallVector<int64_t, 5> strides;
  int64_t offset = 0;  // elements from the region's begin
  caffe2::TypeMeta dtype;
};

// Why a saved tensor stays in torch's memory.
enum class Kept : uint8_t {
  kNo,
  kParameter,    // or another leaf that requires a gradient, or a view of one
  kSmall,        // its storage is smaller than min_bytes
  kEmpty,        // no bytes, or none of its own
  kOtherDevice,  // than the store's
  kNotPlain,     // sparse, quantized, nested, conjugate, negative, named, a wrapped number
  kSubclass,     // with a way of its own: DTensor, FakeTensor and others
  kForeign,      // parking: its memory is not a block, since it was there before the allocator
  kForked,       // this is a child of fork(), and the store its parent's
};
constexpr size_t kKeptReasons = 9;
// One word or two, as a dictionary's key.
const char* NameOf(Kept reason);

struct Tally {
  uint64_t tensors = 0;
  uint64_t bytes = 0;
};

// A node of a graph, by its name, and the bytes that it asked for in its part of a backward pass.
struct Reader {
  std::string name;
  uint64_t bytes = 0;
};

// Torch's memory, where it is the store's.
struct Parking {
  BlockAllocator* blocks = nullptr;
  Block* (*block_of)(const c10::DataPtr&) = nullptr;
};

class SavedBytes;

// The tensors of one scope: what to keep, what the store may hold, and the figures.
class Offload : public std::enable_shared_from_this<Offload> {
 public:
  // With `parking` blocks are parked, and what is none stays where it is. Without, all is copied.
  Offload(std::shared_ptr<Store> store, const std::vector<at::Tensor>& parameters,
          const OffloadOptions& options, const Parking& parking = {});

  // Whether the saved tensor stays in torch's memory, and why. `is_parameter`: the caller knows it
  // to be one, or a view of one.
  Kept Keeps(const at::Tensor& tensor, bool is_parameter) const;
  // What stands for the bytes of the tensor's storage: what does already, else a new one. Adopts
  // the oldest that torch holds if it now holds too many. Throws Error.
  std::shared_ptr<SavedBytes> Offer(const at::Tensor& tensor);

  void CountSave(uint64_t bytes) { Add(saved_, saved_bytes_, bytes); }
  void CountKept(Kept reason, uint64_t bytes);
  void CountUnpacked() { unpacked_.fetch_add(1, std::memory_order_relaxed); }
  OffloadStats stats() const;
  Tally KeptFor(Kept reason) const;
  bool parks() const { return parking_.blocks != nullptr; }
  // Of those offered: are parked, not copied.
  Tally Parked() const;
  // The node that asked for the most of what was taken. A region that is compiled as a whole is one
  // node: it saves all of its tensors at its end, and wants all of them together.
  Reader LargestReader() const;
  void CountRead(uint64_t bytes);

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
  // The block that holds the tensor's storage, with parking and if any.
  Block* BlockOf(const at::Tensor& tensor) const;
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
  const Parking parking_;
  const uint64_t born_;  // the process's forks
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
  std::atomic<uint64_t> parked_{0}, parked_bytes_{0};
  std::array<std::atomic<uint64_t>, kKeptReasons> kept_for_{}, kept_for_bytes_{};

  mutable std::mutex readers_mutex_;  // of those below
  const void* reader_ = nullptr;      // the last node that asked; never followed
  uint64_t reader_number_ = 0;
  uint64_t reader_bytes_ = 0;
  Reader largest_reader_;
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
  // Copies them into the store and releases torch's storage. Throws Error; then torch still holds
  // them.
  void Adopt();
  // A tensor over the memory where they are, for work on the device's current stream until its
  // storage dies. It counts its versions with `counter`, if that is enabled, so that a change of
  // it is seen as one of the tensor that was saved. Throws Error.
  at::Tensor Unpack(const Layout& layout, const c10::VariableVersion& counter);
  bool is_cuda() const { return device_.is_cuda(); }
  Region region() const { return region_; }
  uint64_t bytes() const { return region_.end - region_.begin; }
  // Those that `tensor` was unpacked from and still equals, if any.
  static std::shared_ptr<SavedBytes> Behind(const at::Tensor& tensor);
  // If the memory is that of an unpacked tensor: `stream` uses it as well. Else false.
  static bool Record(const c10::DataPtr& data, const StreamRef& stream);

 private:
  // What an unpacked storage holds: one get, given back by a put when the storage dies.
  struct UnpackedUse {
    std::shared_ptr<SavedBytes> saved;
    StreamRef stream;
    c10::VariableVersion counter;
    uint32_t version = 0;
    // Whether nothing wrote since.
    bool IsClean() const { return !counter.enabled() || counter.current_version() == version; }
    std::mutex mutex;
    std::vector<StreamRef> recorded;  // guarded by mutex
  };
  static void Return(void* lease);
  PutOptions NextRead() const;

  const std::shared_ptr<Offload> offload_;
  const c10::StorageImpl* const key_;  // in the table; never followed
  const at::Device device_;
  const Region region_;
  const int64_t first_order_;
  Block* const block_;  // while parked or to be; null: what follows holds the bytes

  std::mutex mutex_;             // of those below: the store wants one put of a tensor at a time
  std::vector<int64_t> orders_;  // one for each save not yet read, the soonest last
  c10::Storage storage_;         // while torch holds them
  Tensor tensor_;                // once the store does
  StreamRef last_;               // stream of the last use
};

// What stands in a graph for one saved tensor.
class SavedTensor {
 public:
  // Throws Error when the store fails.
  SavedTensor(std::shared_ptr<Offload> offload, const at::Tensor& tensor,
              bool is_parameter = false);

  // The tensor, without its place in the graph. Throws c10::Error, in torch's words, when it was
  // changed in place since, and Error when the store fails.
  at::Tensor Unpack();

 private:
  // With hooks set torch leaves this check out.
  void CheckVersion() const;

  const std::shared_ptr<Offload> offload_;
  // Disabled for what was made in inference mode, which has no versions.
  c10::VariableVersion counter_ = c10::VariableVersion(c10::VariableVersion::DISABLED);
  uint32_t version_ = 0;
  WeakNode made_by_{NodePointer()};
  uint32_t output_nr_ = 0;
  at::Tensor kept_;  // else:
  std::shared_ptr<SavedBytes> saved_;
  Layout layout_;
};

}  // namespace ravenstore::torch::internal
