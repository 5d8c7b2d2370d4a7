#include "client/torch.h"

#include <dlfcn.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include "client/torch_saved.h"

namespace ravenstore::torch {
namespace internal {
namespace {

// --- The engine and its hooks ---

class Hooks : public ::torch::autograd::SavedVariableHooks {
 public:
  explicit Hooks(std::shared_ptr<Offload> offload) : offload_(std::move(offload)) {}

  void call_pack_hook(const at::Tensor& tensor) override { saved_.emplace(offload_, tensor); }
  at::Tensor call_unpack_hook() override { return saved_->Unpack(); }

 private:
  std::shared_ptr<Offload> offload_;
  std::optional<SavedTensor> saved_;
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

namespace {

std::shared_ptr<internal::Offload> MakeOffload(std::shared_ptr<Store> store,
                                               const std::vector<at::Tensor>& parameters,
                                               const OffloadOptions& options) {
#ifdef RAVENSTORE_TORCH_CUDA
  internal::UseCudaStreams();
#endif
  return std::make_shared<internal::Offload>(std::move(store), parameters, options);
}

}  // namespace

OffloadScope::OffloadScope(std::shared_ptr<Store> store, const std::vector<at::Tensor>& parameters,
                           const OffloadOptions& options)
    : offload_(MakeOffload(std::move(store), parameters, options)) {
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
