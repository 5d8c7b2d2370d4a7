#include "interceptor/devices.h"

#include <stdlib.h>
#include <string.h>

#include <atomic>

#include "interceptor/driver.h"
#include "interceptor/sealed_page.h"
#include "interceptor/settings.h"
#include "proto/elastic_page.h"

namespace ravenstore::interceptor {
namespace {

// Sums of a process that got no page of its own.
constinit proto::LedgerPage private_page{};
constinit std::atomic<proto::LedgerPage*> page{nullptr};
constinit SealedPage ledger_page{};
constinit SealedPage elastic_page{};
constinit std::atomic<char*> elastic_rows{nullptr};

constexpr int kDevicesMax = 64;
constinit std::atomic<int8_t> rows[kDevicesMax]{};  // row + 1
constinit std::atomic<int> devices[proto::kLedgerDevices]{};

// Initial exec: no allocation on first use.
__attribute__((tls_model("initial-exec"))) thread_local CUcontext last_context = nullptr;
__attribute__((tls_model("initial-exec"))) thread_local int last_row = -1;
__attribute__((tls_model("initial-exec"))) thread_local uint64_t last_change = 0;
constinit std::atomic<uint64_t> context_changes{0};

void MakePage() {
  void* mapped = ledger_page.Make("ravenstore-ledger", proto::kLedgerBytes);
  auto* made = mapped == nullptr ? &private_page : static_cast<proto::LedgerPage*>(mapped);
  made->magic = proto::kLedgerMagic;
  page.store(made, std::memory_order_release);
  if (Asked().mode != Mode::kElastic) return;
  elastic_rows.store(
      static_cast<char*>(elastic_page.Make("ravenstore-elastic", proto::kElasticPageBytes)));
}

void Print(const CUuuid& uuid, const char* prefix, char* text) {
  static const char kDigits[] = "0123456789abcdef";
  strcpy(text, prefix);
  text += strlen(prefix);
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) *text++ = '-';
    const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    *text++ = kDigits[byte >> 4];
    *text++ = kDigits[byte & 15];
  }
  *text = 0;
}

// As the daemon prints them: the newer function returns a MIG instance's own.
bool FillUuid(CUdevice device, char* text) {
  using Function = CUresult(CUuuid*, CUdevice);
  auto* instance = reinterpret_cast<Function*>(DriverFunction("cuDeviceGetUuid_v2"));
  auto* whole = reinterpret_cast<Function*>(DriverFunction("cuDeviceGetUuid"));
  CUuuid own{};
  CUuuid gpu{};
  if (instance == nullptr) instance = whole;
  if (instance == nullptr || instance(&own, device) != CUDA_SUCCESS) return false;
  if (whole == nullptr || whole(&gpu, device) != CUDA_SUCCESS) gpu = own;
  Print(own, memcmp(&own, &gpu, sizeof(own)) == 0 ? "GPU-" : "MIG-", text);
  return true;
}

}  // namespace

bool FindDevices() {
  auto* get_count = reinterpret_cast<CUresult (*)(int*)>(DriverFunction("cuDeviceGetCount"));
  auto* get = reinterpret_cast<CUresult (*)(CUdevice*, int)>(DriverFunction("cuDeviceGet"));
  int count = 0;
  if (get_count == nullptr || get == nullptr || get_count(&count) != CUDA_SUCCESS) return false;
  MakePage();
  proto::LedgerPage* made = Page();
  const uint64_t asked = AskedSize("RAVENSTORE_BUDGET", "no budget");
  for (int i = 0; i < count && made->rows < proto::kLedgerDevices; ++i) {
    CUdevice device = 0;
    proto::LedgerRow& row = made->row[made->rows];
    if (get(&device, i) != CUDA_SUCCESS || device < 0 || device >= kDevicesMax) continue;
    if (!FillUuid(device, row.uuid)) continue;
    row.asked.store(asked);
    devices[made->rows].store(device);
    rows[device].store(static_cast<int8_t>(++made->rows));
  }
  return true;
}

void ForgetDevicesInChild() {
  ledger_page.ForgetInChild();
  elastic_page.ForgetInChild();
  elastic_rows.store(nullptr);
  page.store(nullptr);
  memset(static_cast<void*>(&private_page), 0, sizeof(private_page));
  for (auto& row : rows) row.store(0);
  last_context = nullptr;
}

proto::LedgerPage* Page() {
  proto::LedgerPage* made = page.load(std::memory_order_acquire);
  return made != nullptr ? made : &private_page;
}

int PageDescriptor() {
  return ledger_page.Descriptor();
}

int ElasticPageDescriptor() {
  return elastic_page.Descriptor();
}

void* ElasticPageRow(int row) {
  char* rows = elastic_rows.load(std::memory_order_acquire);
  return rows == nullptr || row < 0 ? nullptr
                                    : rows + static_cast<size_t>(row) * proto::kElasticRowBytes;
}

int RowOf(CUdevice device) {
  return device < 0 || device >= kDevicesMax ? -1
                                             : rows[device].load(std::memory_order_relaxed) - 1;
}

int RowOfUuid(const char* uuid) {
  proto::LedgerPage* made = Page();
  for (uint32_t i = 0; i < made->rows; ++i) {
    if (strncmp(made->row[i].uuid, uuid, sizeof(made->row[i].uuid)) == 0)
      return static_cast<int>(i);
  }
  return -1;
}

CUdevice DeviceOf(int row) {
  return row < 0 ? 0 : devices[row].load(std::memory_order_relaxed);
}

CUcontext CurrentContext() {
  using Function = CUresult(CUcontext*);
  static std::atomic<Function*> get{nullptr};
  Function* function = Cached(&get, "cuCtxGetCurrent");
  CUcontext context = nullptr;
  return function == nullptr || function(&context) != CUDA_SUCCESS ? nullptr : context;
}

int CurrentRow() {
  CUcontext context = CurrentContext();
  if (context == nullptr) return -1;
  // A context's address may come again for another device.
  const uint64_t change = context_changes.load(std::memory_order_acquire);
  if (context == last_context && last_row >= 0 && last_change == change) return last_row;
  using Function = CUresult(CUdevice*);
  static std::atomic<Function*> get{nullptr};
  Function* function = Cached(&get, "cuCtxGetDevice");
  CUdevice device = -1;
  if (function == nullptr || function(&device) != CUDA_SUCCESS) return -1;
  last_context = context;
  last_row = RowOf(device);
  last_change = change;
  return last_row;
}

CUcontext ContextOf(CUstream stream) {
  using Function = CUresult(CUstream, CUcontext*);
  static std::atomic<Function*> slot{nullptr};
  CUcontext own = CurrentContext();
  if (stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) return own;
  Function* get = Cached(&slot, "cuStreamGetCtx");
  CUcontext its = nullptr;
  return get == nullptr || get(stream, &its) != CUDA_SUCCESS ? own : its;
}

int RowOf(CUstream stream) {
  using Function = CUresult(CUcontext);
  static std::atomic<Function*> slot{nullptr};
  CUcontext before = CurrentContext();
  CUcontext own = ContextOf(stream);
  Function* set = own == before ? nullptr : Cached(&slot, "cuCtxSetCurrent");
  if (set == nullptr || set(own) != CUDA_SUCCESS) return CurrentRow();
  const int row = CurrentRow();
  set(before);
  return row;
}

void NoteContextChange() {
  context_changes.fetch_add(1, std::memory_order_release);
}

}  // namespace ravenstore::interceptor
