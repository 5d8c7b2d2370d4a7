// The module ravenstore._torch: torch's allocator over the store, and the hooks of saved tensors.
//
// CPython's stable ABI, so that it serves every CPython from 3.10 on, and libtorch, compiled for
// one minor version. Its functions are the inside of ravenstore/offload.py, which says what they
// mean; here is what is called for each tensor.
//
// Threads: the GIL guards the module's own state. It is released where a call may wait.
#define Py_LIMITED_API 0x030a0000
#include "python/native/torch_python.h"

#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/version.h>

#include "client/client.h"
#include "client/torch_allocator.h"
#include "client/torch_regions.h"
#include "client/torch_saved.h"

namespace ravenstore::python {
namespace {

using torch::internal::Kept;
using torch::internal::Offload;
using torch::internal::SavedTensor;

// --- The store of this process's torch ---

// One for the process, which outlives every block: torch frees its last ones when it ends.
std::shared_ptr<Store>* store = nullptr;
BlockAllocator* blocks = nullptr;

// --- Errors ---

// ravenstore.errors.from_code(code, message), set by the package: what the store's errors become.
PyObject* make_error = nullptr;

void SetError(ravenstore_code_t code, const std::string& message) {
  PyObject* error =
      PyObject_CallFunction(make_error, "is", static_cast<int>(code), message.c_str());
  if (error == nullptr) return;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error)), error);
  Py_DECREF(error);
}

// The error of torch's own allocator, so that programs that catch that and retry do so here.
void SetOutOfMemory(const std::string& message) {
  PyObject* torch = PyImport_ImportModule("torch");
  PyObject* kind = torch ? PyObject_GetAttrString(torch, "OutOfMemoryError") : nullptr;
  if (kind != nullptr) PyErr_SetString(kind, message.c_str());
  Py_XDECREF(kind);
  Py_XDECREF(torch);
}

// Python's error is set already.
struct PythonError {};

// Runs `function`, which returns a new reference or throws.
template <typename Function>
PyObject* Guarded(Function function) {
  try {
    return function();
  } catch (const OutOfMemory& error) {
    const bool host = store != nullptr && (*store)->backend() == "host";
    SetOutOfMemory(std::string(host ? "CPU" : "CUDA") + " out of memory. " + error.what());
  } catch (const Error& error) {
    SetError(error.code(), error.what());
  } catch (const PythonError&) {
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (...) {
    SetTorchError(std::current_exception());
  }
  return nullptr;
}

// Others run while this exists. Whatever happens inside must not touch Python.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() { PyEval_RestoreThread(state_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

// For threads that ask torch for memory, with the GIL or without.
void MayWait(const std::function<void()>& call) {
  if (HasGil()) {
    WithoutGil without;
    call();
  } else {
    call();
  }
}

// Of an object whose members are destroyed.
void FreeObject(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_Free(self);
  Py_DECREF(type);
}

// --- The saved tensor of one node ---

struct SavedObject {
  PyObject_HEAD std::unique_ptr<SavedTensor> saved;
};

void DeallocSaved(PyObject* self) {
  // The deleters of blocks take locks that are held while others wait for streams, never for
  // Python.
  reinterpret_cast<SavedObject*>(self)->saved.~unique_ptr();
  FreeObject(self);
}

PyTypeObject* saved_type = nullptr;

PyObject* NewSaved(std::unique_ptr<SavedTensor> saved) {
  auto* object = PyObject_New(SavedObject, saved_type);
  if (object == nullptr) return nullptr;
  new (&object->saved) std::unique_ptr<SavedTensor>(std::move(saved));
  return reinterpret_cast<PyObject*>(object);
}

PyType_Slot saved_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(&DeallocSaved)},
    {Py_tp_doc, const_cast<char*>("A tensor that autograd saved, in the store's care.")},
    {0, nullptr}};
PyType_Spec saved_spec = {"ravenstore._torch.Saved", sizeof(SavedObject), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, saved_slots};

// --- A scope ---

struct ScopeObject {
  PyObject_HEAD std::shared_ptr<Offload> offload;
};

Offload& OffloadOf(PyObject* self) {
  return *reinterpret_cast<ScopeObject*>(self)->offload;
}

const at::Tensor& GivenTensor(PyObject* object) {
  const at::Tensor* tensor = TensorOf(object);
  if (tensor == nullptr) throw Error(RAVENSTORE_INVALID_ARGUMENT, "a torch.Tensor is wanted");
  return *tensor;
}

// torch.nn.Parameter; borrowed.
PyTypeObject* ParameterType() {
  static PyObject* type = [] {
    PyObject* module = PyImport_ImportModule("torch.nn.parameter");
    PyObject* found = module ? PyObject_GetAttrString(module, "Parameter") : nullptr;
    Py_XDECREF(module);
    return found;
  }();
  if (type == nullptr) throw PythonError();
  return reinterpret_cast<PyTypeObject*>(type);
}

// Also of a frozen one: only its class distinguishes it from other tensors.
bool IsParameterOrView(PyObject* object, const at::Tensor& tensor) {
  if (PyObject_TypeCheck(object, ParameterType())) return true;
  if (!tensor.is_view()) return false;
  PyObject* base = Wrap(tensor._base());
  if (base == nullptr) throw PythonError();
  const bool is_parameter = PyObject_TypeCheck(base, ParameterType());
  Py_DECREF(base);
  return is_parameter;
}

PyObject* Pack(PyObject* self, PyObject* tensor) {
  return Guarded([&]() -> PyObject* {
    const at::Tensor& packed = GivenTensor(tensor);
    const bool is_parameter = IsParameterOrView(tensor, packed);
    auto offload = reinterpret_cast<ScopeObject*>(self)->offload;
    std::unique_ptr<SavedTensor> saved;
    if (offload->parks()) {
      // Nothing is copied and nothing waits.
      saved = std::make_unique<SavedTensor>(std::move(offload), packed, is_parameter);
    } else {
      WithoutGil without;
      saved = std::make_unique<SavedTensor>(std::move(offload), packed, is_parameter);
    }
    return NewSaved(std::move(saved));
  });
}

PyObject* Unpack(PyObject*, PyObject* object) {
  return Guarded([&]() -> PyObject* {
    if (Py_TYPE(object) != saved_type)
      throw Error(RAVENSTORE_INVALID_ARGUMENT, "unpack takes what pack returned");
    SavedTensor& saved = *reinterpret_cast<SavedObject*>(object)->saved;
    at::Tensor tensor;
    {
      WithoutGil without;
      tensor = saved.Unpack();
    }
    return Wrap(std::move(tensor));
  });
}

// {"saved": (tensors, bytes), ..., "kept": {reason: (tensors, bytes)}}
PyObject* ScopeStats(PyObject* self, PyObject*) {
  return Guarded([&]() -> PyObject* {
    const Offload& offload = OffloadOf(self);
    const torch::OffloadStats stats = offload.stats();
    const torch::internal::Tally parked = offload.Parked();
    const torch::internal::Reader reader = offload.LargestReader();
    PyObject* kept = PyDict_New();
    for (size_t i = 0; kept != nullptr && i < torch::internal::kKeptReasons; ++i) {
      const auto reason = static_cast<Kept>(i);
      const torch::internal::Tally tally = offload.KeptFor(reason);
      if (reason == Kept::kNo || tally.tensors == 0) continue;
      PyObject* pair = Py_BuildValue("(KK)", static_cast<unsigned long long>(tally.tensors),
                                     static_cast<unsigned long long>(tally.bytes));
      if (pair == nullptr || PyDict_SetItemString(kept, NameOf(reason), pair) != 0) {
        Py_XDECREF(pair);
        Py_CLEAR(kept);
        break;
      }
      Py_DECREF(pair);
    }
    if (kept == nullptr) return nullptr;
    return Py_BuildValue("{s:(KK),s:(KK),s:(KK),s:(KK),s:(KK),s:K,s:K,s:K,s:K,s:(sK),s:N}", "saved",
                         stats.saved, stats.saved_bytes, "offered", stats.offered,
                         stats.offered_bytes, "deduplicated", stats.deduplicated,
                         stats.deduplicated_bytes, "copied", stats.adopted, stats.adopted_bytes,
                         "parked", parked.tensors, parked.bytes, "unpacked", stats.unpacked,
                         "live_bytes", stats.live_bytes, "live_bytes_peak", stats.live_bytes_peak,
                         "failed_puts", stats.failed_puts, "largest_reader", reader.name.c_str(),
                         static_cast<unsigned long long>(reader.bytes), "kept", kept);
  });
}

void DeallocScope(PyObject* self) {
  reinterpret_cast<ScopeObject*>(self)->offload.~shared_ptr();
  FreeObject(self);
}

PyMethodDef scope_methods[] = {
    {"pack", &Pack, METH_O, "pack(tensor) -> Saved: the hook that autograd calls to save."},
    {"unpack", &Unpack, METH_O | METH_STATIC, "unpack(saved) -> tensor: the other hook."},
    {"stats", &ScopeStats, METH_NOARGS, "stats() -> dict: counts since the scope was made."},
    {nullptr, nullptr, 0, nullptr}};
PyType_Slot scope_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(&DeallocScope)},
    {Py_tp_methods, scope_methods},
    {Py_tp_doc, const_cast<char*>("What one offload() does with the tensors that autograd saves.")},
    {0, nullptr}};
PyType_Spec scope_spec = {"ravenstore._torch.Scope", sizeof(ScopeObject), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, scope_slots};
PyTypeObject* scope_type = nullptr;

// --- What the package calls ---

std::string Text(const char* text) {
  return text == nullptr ? std::string() : std::string(text);
}

// connect(socket, name, device_budget, host_budget, timeout_ns)
PyObject* Connect(PyObject*, PyObject* arguments) {
  const char* socket = nullptr;
  const char* name = nullptr;
  unsigned long long device_budget = 0;
  unsigned long long host_budget = 0;
  unsigned long long timeout_ns = 0;
  if (!PyArg_ParseTuple(arguments, "zzKKK", &socket, &name, &device_budget, &host_budget,
                        &timeout_ns))
    return nullptr;
  return Guarded([&]() -> PyObject* {
    ConnectOptions options{.socket = Text(socket),
                           .name = Text(name),
                           .device_budget = device_budget,
                           .host_budget = host_budget};
    if (timeout_ns > 0) options.timeout = std::chrono::nanoseconds(timeout_ns);
    std::shared_ptr<Store> connected;
    {
      WithoutGil without;
      connected = std::make_shared<Store>(Store::connect(options));
    }
    delete store;
    store = new std::shared_ptr<Store>(std::move(connected));
    return PyUnicode_FromStringAndSize((*store)->backend().data(),
                                       static_cast<Py_ssize_t>((*store)->backend().size()));
  });
}

Store& TheStore() {
  if (store == nullptr) throw Error(RAVENSTORE_WRONG_STATE, "connect() comes first");
  return **store;
}

// install(min_bytes, device_budget): torch's allocator from now on.
PyObject* Install(PyObject*, PyObject* arguments) {
  unsigned long long min_bytes = 0;
  unsigned long long device_budget = 0;
  if (!PyArg_ParseTuple(arguments, "KK", &min_bytes, &device_budget)) return nullptr;
  return Guarded([&]() -> PyObject* {
    TheStore();
    torch::TorchAllocatorOptions options;
    options.min_bytes = min_bytes;
    options.device_budget = device_budget;
    options.may_wait = &MayWait;
    blocks = &torch::InstallTorchAllocator(*store, options);
    Py_RETURN_NONE;
  });
}

// scope(min_bytes, hints, torch_bytes or -1, parks) -> Scope
PyObject* NewScope(PyObject*, PyObject* arguments) {
  unsigned long long min_bytes = 0;
  int hints = 1;
  long long torch_bytes = -1;
  int parks = 0;
  if (!PyArg_ParseTuple(arguments, "KpLp", &min_bytes, &hints, &torch_bytes, &parks))
    return nullptr;
  return Guarded([&]() -> PyObject* {
    TheStore();
    torch::OffloadOptions options{.min_bytes = min_bytes, .hints = hints != 0};
    if (torch_bytes >= 0) options.torch_bytes = static_cast<uint64_t>(torch_bytes);
    torch::internal::Parking parking;
    if (parks) {
      if (blocks == nullptr) throw Error(RAVENSTORE_WRONG_STATE, "install() comes first");
      parking = {blocks, &torch::BlockOf};
    }
    auto* object = PyObject_New(ScopeObject, scope_type);
    if (object == nullptr) return nullptr;
    new (&object->offload) std::shared_ptr<Offload>(
        std::make_shared<Offload>(*store, std::vector<at::Tensor>(), options, parking));
    return reinterpret_cast<PyObject*>(object);
  });
}

// store_stats() -> dict
PyObject* StoreStats(PyObject*, PyObject*) {
  return Guarded([&]() -> PyObject* {
    Stats stats{};
    {
      Store& asked = TheStore();
      WithoutGil without;
      stats = asked.stats();
    }
    return Py_BuildValue(
        "{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K}", "tensors", stats.tensors, "gets",
        stats.gets, "hits", stats.hits, "late_hits", stats.late_hits, "misses", stats.misses,
        "prefetches", stats.prefetches, "bytes_out", stats.bytes_out, "bytes_in", stats.bytes_in,
        "device_bytes", stats.device_bytes, "host_bytes", stats.host_bytes, "device_budget",
        stats.device_budget, "host_budget", stats.host_budget, "stall_ns", stats.stall_ns);
  });
}

// block_stats(device) -> dict, or None without the allocator.
PyObject* BlockStats(PyObject*, PyObject* argument) {
  const long device = PyLong_AsLong(argument);
  if (device == -1 && PyErr_Occurred()) return nullptr;
  if (blocks == nullptr) Py_RETURN_NONE;
  return Guarded([&]() -> PyObject* {
    const BlocksStats stats = blocks->stats(static_cast<int>(device));
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K}", "used", stats.used,
                         "parked", stats.parked, "idle", stats.idle, "used_peak", stats.used_peak,
                         "held_peak", stats.held_peak, "needed_peak", stats.needed_peak,
                         "used_blocks", stats.used_blocks, "allocations", stats.allocations,
                         "allocated_bytes", stats.allocated_bytes, "created", stats.created,
                         "parkings", stats.parkings, "failures", stats.failures);
  });
}

PyObject* ResetPeaks(PyObject*, PyObject* argument) {
  const long device = PyLong_AsLong(argument);
  if (device == -1 && PyErr_Occurred()) return nullptr;
  if (blocks != nullptr) blocks->ResetPeaks(static_cast<int>(device));
  Py_RETURN_NONE;
}

PyObject* EmptyMagazines(PyObject*, PyObject*) {
  return Guarded([&]() -> PyObject* {
    if (blocks != nullptr) {
      WithoutGil without;
      blocks->EmptyMagazines();
    }
    Py_RETURN_NONE;
  });
}

// check(stream): raises Lost once work on the stream may have run on undefined bytes.
PyObject* Check(PyObject*, PyObject* argument) {
  const unsigned long long stream = PyLong_AsUnsignedLongLong(argument);
  if (PyErr_Occurred()) return nullptr;
  return Guarded([&]() -> PyObject* {
    TheStore().check(reinterpret_cast<Stream>(stream));  // NOLINT: Python has it as a number
    Py_RETURN_NONE;
  });
}

PyObject* ExpectToStay(PyObject*, PyObject* argument) {
  const int stays = PyObject_IsTrue(argument);
  if (stays < 0) return nullptr;
  torch::Expect(stays != 0 ? Life::kLong : Life::kNotKnown);
  Py_RETURN_NONE;
}

PyObject* ServeCpuRegions(PyObject*, PyObject*) {
  torch::ServeCpuRegions();
  Py_RETURN_NONE;
}

PyObject* Step(PyObject*, PyObject*) {
  return Guarded([&]() -> PyObject* {
    TheStore().step();
    Py_RETURN_NONE;
  });
}

PyObject* SetErrorMaker(PyObject*, PyObject* maker) {
  Py_INCREF(maker);
  std::swap(make_error, maker);
  Py_XDECREF(maker);
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"set_error_maker", &SetErrorMaker, METH_O, "set_error_maker(f): f(code, message) -> error"},
    {"connect", &Connect, METH_VARARGS,
     "connect(socket, name, device_budget, host_budget, timeout_ns) -> backend"},
    {"install", &Install, METH_VARARGS, "install(min_bytes, device_budget)"},
    {"expect_to_stay", &ExpectToStay, METH_O,
     "expect_to_stay(bool): whether what this thread allocates from now on is expected to stay"},
    {"scope", &NewScope, METH_VARARGS, "scope(min_bytes, hints, torch_bytes, parks) -> Scope"},
    {"store_stats", &StoreStats, METH_NOARGS, "store_stats() -> dict"},
    {"block_stats", &BlockStats, METH_O, "block_stats(device) -> dict or None"},
    {"reset_peaks", &ResetPeaks, METH_O, "reset_peaks(device)"},
    {"empty_magazines", &EmptyMagazines, METH_NOARGS, "empty_magazines()"},
    {"check", &Check, METH_O, "check(stream)"},
    {"serve_cpu_regions", &ServeCpuRegions, METH_NOARGS, "serve_cpu_regions()"},
    {"step", &Step, METH_NOARGS, "step()"},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "ravenstore._torch",
                          "Torch's allocator over the store, and the hooks of saved tensors.",
                          -1,
                          methods,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

}  // namespace
}  // namespace ravenstore::python

PyMODINIT_FUNC PyInit__torch() {
  using namespace ravenstore::python;  // NOLINT
  saved_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&saved_spec));
  scope_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&scope_spec));
  if (saved_type == nullptr || scope_type == nullptr) return nullptr;
  PyObject* module = PyModule_Create(&definition);
  if (module == nullptr) return nullptr;
  // What it was compiled for: another minor version of torch has other virtual functions.
  PyModule_AddStringConstant(module, "compiled_for", TORCH_VERSION);
  return module;
}
