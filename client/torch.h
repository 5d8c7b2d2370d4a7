// Ravenstore for libtorch programs: one object moves the tensors that autograd saves for the
// backward pass into the store, without touching the model.
//
//     auto store = std::make_shared<ravenstore::Store>(
//         ravenstore::Store::connect({.device_budget = ravenstore::GiB(12)}));
//     {
//       ravenstore::torch::OffloadScope offload(store, model->parameters());
//       auto loss = model->forward(batch);  // what autograd saves goes to the store ...
//       loss.backward();                    // ... and is read from there
//     }
//
// How: libtorch asks its autograd engine for hooks each time it saves a tensor. The first scope
// installs an engine of ours, a subclass of the usual one that differs in nothing but those hooks.
// It stays installed for the life of the process and does nothing while no scope is alive.
//
// What stays in torch's memory ("kept"): the parameters that the scope was given and every view of
// them (a transposed weight), other leaves that require a gradient, tensors whose storage is
// smaller than `min_bytes`, and what is not plain memory of the store's devices (sparse, quantized,
// conjugate, named, on another kind of device). Everything else is copied into the store once per
// storage, however many views of it autograd saves, and torch's own memory is free as soon as the
// program drops it. The backward pass reads the store's memory itself, not a copy.
//
// Gradients are the same bit for bit. A tensor that is changed in place after it was saved makes
// the backward pass throw, as without the scope. Like torch, the scope does not see changes made
// behind autograd's back (through .data).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "client/client.h"

namespace ravenstore::torch {

struct OffloadOptions {
  // Tensors whose storage is smaller stay in torch's memory: a transfer of so few bytes costs more
  // than it frees.
  uint64_t min_bytes = KiB(128);
  // The store's device that CPU tensors belong to when the store's backend is "host".
  int host_device = 0;
  // At most this many bytes of saved tensors may wait in torch's memory. Beyond that the oldest,
  // which the backward pass needs last, are copied into the store. Where everything fits that
  // spares the copies. Where it does not, the store can neither prefetch into memory that torch
  // holds nor lend it to other jobs, and 0 is right. Unset: 0 until all tensors that are saved at
  // the same time are seen to fit into the store's device budget. From the next step on it is the
  // number of bytes seen, instead of the budget: the store's own empty pages go back to the daemon.
  std::optional<uint64_t> torch_bytes = {};
  // Tell the store in which order the backward pass will want the tensors. Without, it learns that
  // from one iteration to the next.
  bool hints = true;
  // Adopts nothing and needs no store: everything waits in torch's memory and the figures say what
  // a store would have held.
  bool measure_only = false;
};

// Counts since the scope began: saved = kept + deduplicated + offered, in tensors and in bytes.
// Bytes of these four are those of the tensors; the others are those of their storages.
struct OffloadStats {
  uint64_t saved = 0;  // tensors that autograd saved
  uint64_t saved_bytes = 0;
  uint64_t kept = 0;  // of these: stay in torch's memory
  uint64_t kept_bytes = 0;
  uint64_t deduplicated = 0;  // of these: one of the same bytes was offered already
  uint64_t deduplicated_bytes = 0;
  uint64_t offered = 0;  // of these: the store's to hold
  uint64_t offered_bytes = 0;
  uint64_t adopted = 0;  // of those offered: were copied into the store
  uint64_t adopted_bytes = 0;
  uint64_t unpacked = 0;         // times that autograd asked for one back
  uint64_t live_bytes = 0;       // offered and not released yet
  uint64_t live_bytes_peak = 0;  // the most that ever were: 100% of a budget
  uint64_t failed_puts = 0;      // returns that the store refused (its next call says why)
};

namespace internal {
class Offload;
}

// While alive, tensors that autograd saves on any thread of this process go to the store.
//
// Owns: a share of the store, which every graph built under the scope holds as well: a graph may
//   outlive the scope. The parameters' storages stay alive with the scope and such graphs.
// Threads: one scope at a time in a process; create and destroy it where no thread runs a forward
//   pass. The hooks run on whichever threads autograd uses.
// Streams: the copy into the store runs on the current stream of the tensor's device; so do the
//   wait for the bytes' return and the work that reads them. The memory belongs, like that of
//   torch's allocator, to the stream it was handed out on: a program that passes saved tensors
//   between streams synchronises them as it must without the scope.
// Errors: the constructor throws Error (UNSUPPORTED inside a Python process, where libtorch has
//   another engine and torch.autograd.graph.saved_tensors_hooks; WRONG_STATE while another scope is
//   alive). Saving and the backward pass throw Error when the store fails, with its words; Lost
//   also once earlier work on the stream read bytes that never came. Only Store::check after a
//   synchronize reports failures of the last step's work: call it before a checkpoint is written.
class OffloadScope {
 public:
  OffloadScope(std::shared_ptr<Store> store, const std::vector<at::Tensor>& parameters,
               const OffloadOptions& options = {});
  ~OffloadScope();
  OffloadScope(const OffloadScope&) = delete;
  OffloadScope& operator=(const OffloadScope&) = delete;

  OffloadStats stats() const;

 private:
  std::shared_ptr<internal::Offload> offload_;
};

}  // namespace ravenstore::torch
