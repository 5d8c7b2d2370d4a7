// Ravenstore's C++ interface: RAII over the C ABI of ravenstore.h, header-only, so that it never
// depends on the C++ library that libravenstore.so was built with. See ravenstore.h for threads,
// streams and fork.
//
//     auto store = ravenstore::Store::connect({.device_budget = ravenstore::GiB(12)});
//     auto t = store.create(ravenstore::MiB(64), {.name = "layer3.mlp", .stream = stream});
//     forward<<<g, b, 0, stream>>>(t.data());          // Userspace
//     store.put(t, stream, {.needed_in = 80ms});       // Ravenspace: data() throws
//     void* p = store.get(t, stream);                  // ordered on stream; the address may differ
//     backward<<<g, b, 0, stream>>>(p);
//     store.free(std::move(t), stream);
//
// Errors: every call that can fail throws Error; destructors and free-in-destructor do not.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/ravenstore.h"

namespace ravenstore {

constexpr uint64_t KiB(uint64_t n) {
  return n << 10;
}
constexpr uint64_t MiB(uint64_t n) {
  return n << 20;
}
constexpr uint64_t GiB(uint64_t n) {
  return n << 30;
}

// What a call failed with: code() to act on, what() to read.
class Error : public std::runtime_error {
 public:
  Error(ravenstore_code_t code, const std::string& message)
      : std::runtime_error(message), code_(code) {}
  ravenstore_code_t code() const noexcept { return code_; }

 private:
  ravenstore_code_t code_;
};

// The errors that callers most often handle apart.
class OutOfMemory : public Error {
  using Error::Error;
};
class Lost : public Error {
  using Error::Error;
};

namespace internal {
inline void ThrowIf(ravenstore_code_t code) {
  if (code == RAVENSTORE_OK) return;
  const char* message = ravenstore_last_error();
  if (code == RAVENSTORE_OUT_OF_MEMORY) throw OutOfMemory(code, message);
  if (code == RAVENSTORE_LOST) throw Lost(code, message);
  throw Error(code, message);
}
}  // namespace internal

using Stream = ravenstore_stream_t;
using Timeout = std::optional<std::chrono::nanoseconds>;  // none: the store's

namespace internal {
// Zero means "the default" in the C ABI; "do not wait" is one nanosecond.
inline uint64_t NanosecondsOf(const Timeout& timeout) {
  return timeout ? static_cast<uint64_t>(std::max<int64_t>(timeout->count(), 1)) : 0;
}
}  // namespace internal

struct ConnectOptions {
  std::string socket = {};     // empty: $RAVENSTORE_SOCKET, else the default path
  std::string name = {};       // empty: the program's name
  uint64_t device_budget = 0;  // bytes on each device; 0: the tenant's
  uint64_t host_budget = 0;
  Timeout timeout = {};  // none: 30 s
  // Each tensor has one address for life. Without it those of less than a quarter of a page may
  // have another after each put.
  bool fixed_addresses = false;
};

struct CreateOptions {
  int device = 0;
  const char* name = nullptr;  // read during the call
  bool fail_fast = false;      // throw OutOfMemory rather than wait for room
  // The same once nothing of the client's can leave any more, all its streams' work is done and no
  // other client holds what it wants: only a put or free by another of its threads could help.
  bool fail_stuck = false;
  // It will stay in use for long, as parameters do: it gets a place apart from what comes and goes.
  bool long_lived = false;
  Timeout timeout = {};
  // Of the work that will use it first: where ~Tensor frees it until another call named a stream.
  Stream stream = nullptr;
  // Only work that comes later on `stream` uses it, or work that waits for that. So it may have the
  // memory of a tensor that was created like this and freed on this stream, which has not come
  // there: a program that frees and creates does not wait for the device.
  bool stream_ordered = false;
};

enum class Access { kReadWrite, kReadOnly };

struct GetOptions {
  Access access = Access::kReadWrite;
  int device = -1;        // -1: where it is or was last
  bool blocking = false;  // return only when the bytes are there
  Timeout timeout = {};
};

// Which of a client's tensors keep their place on the device when some have to leave. One of low
// priority leaves before one of normal priority that is needed up to 16 times as late, and so does
// that before one of high priority. Between clients it says nothing.
enum class Priority : int32_t {
  kLow = RAVENSTORE_PRIORITY_LOW,
  kNormal = RAVENSTORE_PRIORITY_NORMAL,
  kHigh = RAVENSTORE_PRIORITY_HIGH
};

// What holds until the next put.
struct PutOptions {
  std::optional<std::chrono::nanoseconds> needed_in = {};  // from this point of the stream
  std::optional<int64_t> order = {};  // among this client's tensors the smaller is needed sooner
  bool not_modified = false;          // not written since the last put, whatever the get said
  bool not_needed = false;            // will not be read again
  // What recomputing the bytes would take; 0: they cannot be. With it they may be dropped: look at
  // Tensor::must_recompute() after each get.
  std::chrono::nanoseconds recompute = {};
  Priority priority = Priority::kNormal;
};

using Stats = ravenstore_stats_t;

// A tensor's handle. Move-only. Owns the tensor. Must not outlive its Store.
//
// One that is destroyed without Store::free, by an exception for instance, is freed once the work
// is done that was enqueued so far on the stream that its last adopt, get, get_into or put named,
// or, before any of these, CreateOptions::stream. That stream must still exist. Of other streams'
// work only what was enqueued before a put there is waited for. No stream (nullptr) is the legacy
// default stream, which waits for blocking streams but not for those that were made with
// cudaStreamNonBlocking: name the stream at the create when its work begins there.
class Tensor {
 public:
  Tensor() = default;
  Tensor(Tensor&& other) noexcept { swap(other); }
  Tensor& operator=(Tensor&& other) noexcept {
    Tensor(std::move(other)).swap(*this);
    return *this;
  }
  ~Tensor() {
    if (handle_) ravenstore_free(store_, handle_, stream_);
  }

  // The address in Userspace. Throws WRONG_STATE in Ravenspace.
  void* data() const {
    void* address = handle_ ? ravenstore_data(handle_) : nullptr;
    if (!address)
      throw Error(RAVENSTORE_WRONG_STATE,
                  "data() of a tensor that is not in Userspace: get it first");
    return address;
  }
  uint64_t size() const { return handle_ ? ravenstore_size(handle_) : 0; }
  uint64_t id() const { return handle_ ? ravenstore_id(handle_) : 0; }
  int device() const { return handle_ ? ravenstore_device(handle_) : -1; }
  // True when a get would find the bytes on their device. Throws Lost.
  bool ready() const {
    int32_t ready = handle_ ? ravenstore_ready(handle_) : 0;
    if (ready < 0) throw Lost(RAVENSTORE_LOST, "the tensor's bytes are lost");
    return ready > 0;
  }
  // True from a get that found the bytes discarded (PutOptions::recompute) until the put of new
  // ones: write all of them at the address that the get returned.
  bool must_recompute() const { return handle_ && ravenstore_must_recompute(handle_) != 0; }
  explicit operator bool() const { return handle_ != nullptr; }
  ravenstore_tensor_t* handle() const { return handle_; }

 private:
  friend class Store;
  Tensor(ravenstore_store_t* store, ravenstore_tensor_t* handle, Stream stream)
      : store_(store), handle_(handle), stream_(stream) {}
  void swap(Tensor& other) noexcept {
    std::swap(store_, other.store_);
    std::swap(handle_, other.handle_);
    std::swap(stream_, other.stream_);
  }

  ravenstore_store_t* store_ = nullptr;
  ravenstore_tensor_t* handle_ = nullptr;
  Stream stream_ = nullptr;  // of the last put, get, get_into or adopt, at first of the create
};

struct PinnedOptions {
  int device = 0;        // the memory is on the NUMA node that this device is nearest to
  Timeout timeout = {};  // the store's
};

// A block of pinned host memory. Move-only. Owns the block; must not outlive its Store. Destroying
// it frees it behind all work that this process enqueued so far, on whatever stream.
class PinnedBlock {
 public:
  PinnedBlock() = default;
  PinnedBlock(PinnedBlock&& other) noexcept { swap(other); }
  PinnedBlock& operator=(PinnedBlock&& other) noexcept {
    PinnedBlock(std::move(other)).swap(*this);
    return *this;
  }
  ~PinnedBlock() {
    if (data_) ravenstore_pinned_free(store_, data_, nullptr, 0);
  }

  void* data() const { return data_; }
  uint64_t size() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  friend class Store;
  PinnedBlock(ravenstore_store_t* store, void* data, uint64_t bytes)
      : store_(store), data_(data), bytes_(bytes) {}
  void swap(PinnedBlock& other) noexcept {
    std::swap(store_, other.store_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  ravenstore_store_t* store_ = nullptr;
  void* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// One attachment to the daemon. Move-only; destroying it frees its tensors and detaches.
class Store {
 public:
  static Store connect(const ConnectOptions& options = {}) {
    ravenstore_connect_options_t c{};
    c.struct_size = sizeof(c);
    c.socket = options.socket.empty() ? nullptr : options.socket.c_str();
    c.name = options.name.empty() ? nullptr : options.name.c_str();
    c.device_budget = options.device_budget;
    c.host_budget = options.host_budget;
    c.timeout_ns = internal::NanosecondsOf(options.timeout);
    c.flags = options.fixed_addresses ? RAVENSTORE_FIXED_ADDRESSES : 0;
    ravenstore_store_t* store = nullptr;
    internal::ThrowIf(ravenstore_connect(&c, &store));
    return Store(store);
  }
  Store() = default;
  Store(Store&& other) noexcept : store_(std::exchange(other.store_, nullptr)) {}
  Store& operator=(Store&& other) noexcept {
    std::swap(store_, other.store_);
    return *this;
  }
  ~Store() { ravenstore_disconnect(store_); }

  // A tensor of `bytes` in Userspace. Waits (bounded) for room unless fail_fast.
  Tensor create(uint64_t bytes, const CreateOptions& options = {}) {
    auto c = Convert(options);
    ravenstore_tensor_t* tensor = nullptr;
    internal::ThrowIf(ravenstore_create(store_, bytes, &c, &tensor));
    return Tensor(store_, tensor, options.stream);
  }
  std::vector<Tensor> create(std::span<const uint64_t> bytes, const CreateOptions& options = {}) {
    auto c = Convert(options);
    std::vector<ravenstore_tensor_t*> handles(bytes.size());
    internal::ThrowIf(
        ravenstore_create_batch(store_, bytes.data(), bytes.size(), &c, handles.data()));
    std::vector<Tensor> tensors;
    tensors.reserve(bytes.size());
    for (auto* handle : handles) tensors.push_back(Tensor(store_, handle, options.stream));
    return tensors;
  }
  // A tensor with a copy, made on `stream`, of memory that was not born in the store. The stream of
  // the options is not looked at.
  Tensor adopt(const void* from, uint64_t bytes, Stream stream, const CreateOptions& options = {}) {
    auto c = Convert(options);
    ravenstore_tensor_t* tensor = nullptr;
    internal::ThrowIf(ravenstore_adopt(store_, from, bytes, stream, &c, &tensor));
    return Tensor(store_, tensor, stream);
  }

  // Userspace: the address is valid for work on `stream` until the put. Of tensors that were put
  // with `recompute` ask must_recompute() then.
  void* get(Tensor& tensor, Stream stream, const GetOptions& options = {}) {
    auto c = Convert(options);
    void* address = nullptr;
    const ravenstore_code_t code = ravenstore_get(store_, tensor.handle_, stream, &c, &address);
    if (code != RAVENSTORE_RECOMPUTE) internal::ThrowIf(code);
    tensor.stream_ = stream;
    return address;
  }
  // Copies the tensor to `to` on `stream` and leaves it in Ravenspace. Throws an Error of code
  // RECOMPUTE, having copied nothing, when its bytes must be recomputed.
  void get_into(Tensor& tensor, void* to, Stream stream, const GetOptions& options = {}) {
    auto c = Convert(options);
    const ravenstore_code_t code = ravenstore_get_into(store_, tensor.handle_, to, stream, &c);
    if (code == RAVENSTORE_RECOMPUTE)
      throw Error(code,
                  "get_into of a tensor whose bytes were discarded: get it and recompute them");
    internal::ThrowIf(code);
    tensor.stream_ = stream;
  }

  // Ravenspace, once the work enqueued on `stream` so far is done.
  void put(Tensor& tensor, Stream stream, const PutOptions& options = {}) {
    auto c = Convert(options);
    internal::ThrowIf(ravenstore_put(store_, tensor.handle_, stream, &c));
    tensor.stream_ = stream;
  }

  // Frees once the work enqueued on `stream` so far is done.
  void free(Tensor&& tensor, Stream stream) {
    internal::ThrowIf(ravenstore_free(store_, std::exchange(tensor.handle_, nullptr), stream));
  }
  void free(std::vector<Tensor>&& tensors, Stream stream) {
    std::vector<ravenstore_tensor_t*> handles;
    handles.reserve(tensors.size());
    for (auto& tensor : tensors) handles.push_back(std::exchange(tensor.handle_, nullptr));
    tensors.clear();
    internal::ThrowIf(ravenstore_free_batch(store_, handles.data(), handles.size(), stream));
  }

  // A block of pinned host memory; its bytes are undefined. Waits, bounded, only while some is on
  // its way. Throws OutOfMemory that says who holds it.
  PinnedBlock pinned(uint64_t bytes, const PinnedOptions& options = {}) {
    ravenstore_pinned_options_t c{};
    c.struct_size = sizeof(c);
    c.device = options.device;
    c.timeout_ns = internal::NanosecondsOf(options.timeout);
    void* address = nullptr;
    internal::ThrowIf(ravenstore_pinned_alloc(store_, bytes, &c, &address));
    return PinnedBlock(store_, address, bytes);
  }
  // Frees it once the work enqueued on these streams so far is done; without any as its end does.
  void free(PinnedBlock&& block, std::span<const Stream> streams = {}) {
    internal::ThrowIf(ravenstore_pinned_free(store_, std::exchange(block.data_, nullptr),
                                             streams.data(), streams.size()));
  }

  // Throws Lost when work on `stream` may have run on undefined bytes. Never blocks.
  void check(Stream stream) { internal::ThrowIf(ravenstore_check(store_, stream)); }

  // The next iteration begins: lets the store learn when each tensor is needed.
  void step() { internal::ThrowIf(ravenstore_step(store_)); }

  // The physical memory beneath a tensor in use stays there, also after its put, until its free or
  // end_keep_in_place(): for network cards that have registered its address. It counts as in use.
  // Waits for the daemon's answer. Throws Error: WRONG_STATE if the tensor is not in use;
  // UNSUPPORTED unless the daemon has memory in pages.
  void keep_in_place(const Tensor& tensor) {
    internal::ThrowIf(ravenstore_keep_in_place(store_, tensor.handle_));
  }
  void end_keep_in_place(const Tensor& tensor) {
    internal::ThrowIf(ravenstore_end_keep_in_place(store_, tensor.handle_));
  }

  // Gives device memory that holds no tensor back to the daemon, now and as more comes free, until
  // this client next needs some. Does not wait.
  void trim() { internal::ThrowIf(ravenstore_trim(store_)); }

  // All tensors leave the devices, and the device memory goes back to the driver; returns how much.
  // None may be in use. Until wake(), creates and gets throw WRONG_STATE. Waits, bounded. Throws
  // Error: WRONG_STATE, which tensor is in use; TIMED_OUT, and the store is awake.
  uint64_t sleep(const Timeout& timeout = {}) {
    uint64_t bytes = 0;
    internal::ThrowIf(ravenstore_sleep(store_, internal::NanosecondsOf(timeout), &bytes));
    return bytes;
  }
  // Gets work again, and bring tensors back. No error if the store is awake.
  void wake() { internal::ThrowIf(ravenstore_wake(store_)); }

  // ---- Named sets: see ravenstore.h.
  // The tensors are a set of that name; its version. All are put. Other calls throw WRONG_STATE
  // from now on. `load`: of NamedSet::open_or_load, else 0. `layout`: another number for sets whose
  // bytes mean something else.
  uint64_t seal(const std::string& name, uint64_t load = 0, uint64_t layout = 0) {
    uint64_t version = 0;
    internal::ThrowIf(ravenstore_set_seal(store_, name.c_str(), load, layout, &version));
    return version;
  }
  // No process opens the set any more; version 0: any. Throws Error: NOT_FOUND.
  void drop(const std::string& name, uint64_t version = 0) {
    internal::ThrowIf(ravenstore_set_drop(store_, name.c_str(), version));
  }

  Stats stats() {
    Stats stats{};
    stats.struct_size = sizeof(stats);
    internal::ThrowIf(ravenstore_get_stats(store_, &stats));
    return stats;
  }
  // "cuda" or "host".
  std::string_view backend() const { return ravenstore_backend(store_); }
  ravenstore_store_t* handle() const { return store_; }

 private:
  explicit Store(ravenstore_store_t* store) : store_(store) {}

  static ravenstore_create_options_t Convert(const CreateOptions& options) {
    ravenstore_create_options_t c{};
    c.struct_size = sizeof(c);
    c.device = options.device;
    c.flags = (options.fail_fast ? RAVENSTORE_FAIL_FAST : 0) |
              (options.fail_stuck ? RAVENSTORE_FAIL_STUCK : 0) |
              (options.long_lived ? RAVENSTORE_LONG_LIVED : 0) |
              (options.stream_ordered ? RAVENSTORE_STREAM_ORDERED : 0);
    c.stream = options.stream_ordered ? options.stream : nullptr;
    c.name = options.name;
    c.timeout_ns = internal::NanosecondsOf(options.timeout);
    return c;
  }
  static ravenstore_get_options_t Convert(const GetOptions& options) {
    ravenstore_get_options_t c{};
    c.struct_size = sizeof(c);
    c.flags = (options.access == Access::kReadOnly ? RAVENSTORE_READ_ONLY : 0) |
              (options.blocking ? RAVENSTORE_BLOCKING : 0) |
              (options.device >= 0 ? RAVENSTORE_ON_DEVICE : 0);
    c.device = std::max(options.device, 0);
    c.timeout_ns = internal::NanosecondsOf(options.timeout);
    return c;
  }
  static ravenstore_put_options_t Convert(const PutOptions& options) {
    ravenstore_put_options_t c{};
    c.struct_size = sizeof(c);
    if (options.needed_in) {
      c.flags |= RAVENSTORE_NEEDED_IN;
      c.needed_in_ns = static_cast<uint64_t>(std::max<int64_t>(options.needed_in->count(), 0));
    }
    if (options.order) {
      c.flags |= RAVENSTORE_ORDER;
      c.order = *options.order;
    }
    if (options.not_modified) c.flags |= RAVENSTORE_NOT_MODIFIED;
    if (options.not_needed) c.flags |= RAVENSTORE_NOT_NEEDED;
    c.recompute_ns = static_cast<uint64_t>(std::max<int64_t>(options.recompute.count(), 0));
    c.priority = static_cast<int32_t>(options.priority);
    return c;
  }

  ravenstore_store_t* store_ = nullptr;
};

struct SetOptions {
  uint64_t version = 0;        // 0: the newest
  uint64_t least_version = 0;  // of the newest: it is waited for
  bool fail_fast = false;      // no wait for a set that is not there
  Timeout timeout = {};        // of that wait; none: the store's
};

// A set that this process has open (ravenstore.h). Move-only; destroying it ends the use and closes
// it, before its Store ends.
class NamedSet {
 public:
  using Part = ravenstore_set_part_t;

  // Waits, bounded, for a set of that name. Throws Error: TIMED_OUT, NOT_FOUND, PERMISSION.
  static NamedSet open(Store& store, const std::string& name, const SetOptions& options = {}) {
    uint64_t load = 0;
    return NamedSet(store, name, options, 0, &load);
  }
  // The same; or, if there is no such set and no process loads it, an empty one with `*load`, for
  // Store::seal of the store into which this process loads it.
  static NamedSet open_or_load(Store& store, const std::string& name, uint64_t* load,
                               const SetOptions& options = {}) {
    return NamedSet(store, name, options, RAVENSTORE_MAY_LOAD, load);
  }
  NamedSet() = default;
  NamedSet(NamedSet&& other) noexcept : set_(std::exchange(other.set_, nullptr)) {}
  NamedSet& operator=(NamedSet&& other) noexcept {
    std::swap(set_, other.set_);
    return *this;
  }
  ~NamedSet() { ravenstore_set_close(set_); }

  // The bytes are at part().address from now on, until end_use(). Throws OutOfMemory that says who
  // holds the memory.
  void use(const Timeout& timeout = {}) {
    internal::ThrowIf(ravenstore_set_use(set_, internal::NanosecondsOf(timeout)));
  }
  // REQUIRES, here and below: work that reads the set has ended.
  void end_use() { internal::ThrowIf(ravenstore_set_end_use(set_)); }
  // The newest version, of at least `least_version`, at the same addresses. Throws Error:
  // INVALID_ARGUMENT, of another layout.
  void advance(uint64_t least_version, const Timeout& timeout = {}) {
    internal::ThrowIf(
        ravenstore_set_advance(set_, least_version, internal::NanosecondsOf(timeout)));
  }
  uint64_t version() const { return ravenstore_set_version(set_); }
  size_t parts() const { return ravenstore_set_parts(set_); }
  Part part(size_t index) const {
    Part part{};
    part.struct_size = sizeof(part);
    internal::ThrowIf(ravenstore_set_get_part(set_, index, &part));
    return part;
  }
  explicit operator bool() const { return set_ != nullptr; }

 private:
  NamedSet(Store& store, const std::string& name, const SetOptions& options, uint32_t flags,
           uint64_t* load) {
    ravenstore_set_options_t c{};
    c.struct_size = sizeof(c);
    c.version = options.version;
    c.least_version = options.least_version;
    c.timeout_ns = internal::NanosecondsOf(options.timeout);
    c.flags = flags | (options.fail_fast ? RAVENSTORE_SET_FAIL_FAST : 0);
    internal::ThrowIf(ravenstore_set_open(store.handle(), name.c_str(), &c, &set_, load));
  }

  ravenstore_set_t* set_ = nullptr;
};

}  // namespace ravenstore
