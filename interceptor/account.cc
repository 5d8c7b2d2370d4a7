#include "interceptor/account.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "interceptor/backing.h"
#include "interceptor/hooks.h"
#include "interceptor/link.h"
#include "interceptor/pool.h"
#include "interceptor/sealed_page.h"
#include "interceptor/tenant.h"
#include "interceptor/turn.h"
#include "proto/elastic_page.h"
#include "proto/packet.h"

namespace ravenstore::interceptor {
namespace {

enum class Phase : uint32_t { kIdle, kStarted };

constinit std::atomic<Phase> phase{Phase::kIdle};
constinit pthread_mutex_t start_mutex = PTHREAD_MUTEX_INITIALIZER;
// Sums of a process that got no page of its own.
constinit proto::LedgerPage private_page{};
constinit std::atomic<proto::LedgerPage*> page{nullptr};
constinit SealedPage ledger_page{};
constinit SealedPage elastic_page{};
constinit std::atomic<char*> elastic_rows{nullptr};
constinit bool fork_handlers = false;  // guarded by start_mutex
constinit bool settings_read = false;  // guarded by start_mutex
constinit Settings settings{};

constexpr int kDevicesMax = 64;
constinit std::atomic<int8_t> rows[kDevicesMax]{};  // row + 1
constinit std::atomic<int> devices[proto::kLedgerDevices]{};

// Initial exec: no allocation on first use.
__attribute__((tls_model("initial-exec"))) thread_local int depth = 0;
__attribute__((tls_model("initial-exec"))) thread_local uint32_t hooks_seen = 0;
__attribute__((tls_model("initial-exec"))) thread_local CUcontext last_context = nullptr;
__attribute__((tls_model("initial-exec"))) thread_local int last_row = -1;
__attribute__((tls_model("initial-exec"))) thread_local uint64_t last_change = 0;
constinit std::atomic<uint64_t> context_changes{0};

void Copy(const char* variable, const char* otherwise, char* to, size_t room) {
  const char* value = getenv(variable);
  if (value == nullptr || *value == 0) value = otherwise;
  if (strlen(value) < room) strcpy(to, value);
}

uint64_t AskedSize(const char* variable, const char* without);

// $RAVENSTORE_WAIT is a number of seconds; -1: it is not there, or none.
int64_t AskedWait() {
  const char* text = getenv("RAVENSTORE_WAIT");
  if (text == nullptr || *text == 0) return -1;
  int64_t seconds = 0;
  for (const char* at = text; *at != 0; ++at) {
    const bool digit = *at >= '0' && *at <= '9' && seconds < INT32_MAX;
    if (!digit) {
      dprintf(STDERR_FILENO,
              "ravenstore[%d]: RAVENSTORE_WAIT=%.100s is no number of seconds: "
              "the job does not wait\n",
              getpid(), text);
      return -1;
    }
    seconds = seconds * 10 + (*at - '0');
  }
  return seconds;
}

bool AskedFlag(const char* variable) {
  const char* text = getenv(variable);
  return text != nullptr && *text != 0;
}

// REQUIRES start_mutex.
void ReadSettings() {
  if (settings_read) return;
  settings_read = true;
  Copy(proto::kSocketPathVariable, proto::kDefaultSocketPath, settings.socket,
       sizeof(settings.socket));
  Copy("RAVENSTORE_INTERCEPT_LOG", "", settings.log, sizeof(settings.log));
  settings.mode = AskedMode();
  settings.wait_seconds = AskedWait();
  if (settings.mode != Mode::kElastic) return;
  settings.elastic_host = AskedSize("RAVENSTORE_ELASTIC_HOST", "half of what is available");
  settings.elastic_part = AskedSize("RAVENSTORE_ELASTIC_PART", "the engine's own");
  settings.elastic_report = AskedFlag("RAVENSTORE_ELASTIC_REPORT");
  settings.elastic_still = AskedFlag("RAVENSTORE_ELASTIC_STILL");
  const char* away = getenv("RAVENSTORE_ELASTIC_AWAY");
  settings.elastic_maps_away = away != nullptr && strcmp(away, "mapped") == 0;
  Copy("RAVENSTORE_ELASTIC_RECORD", "", settings.elastic_record, sizeof(settings.elastic_record));
}

void MakePage() {
  void* mapped = ledger_page.Make("ravenstore-ledger", proto::kLedgerBytes);
  auto* made = mapped == nullptr ? &private_page : static_cast<proto::LedgerPage*>(mapped);
  made->magic = proto::kLedgerMagic;
  page.store(made, std::memory_order_release);
  if (settings.mode != Mode::kElastic) return;
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

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

// "1.5GiB", as core/size_text.h reads it; by hand, since the C library's reading depends on the
// program's locale.
bool ParseSize(const char* text, uint64_t* bytes) {
  static const char kPrefixes[] = "KMGT";
  if (!IsDigit(*text)) return false;
  double number = 0;
  for (; IsDigit(*text); ++text) number = number * 10 + (*text - '0');
  if (*text == '.') {
    double divisor = 1;
    for (++text; IsDigit(*text); ++text, divisor *= 10) number = number * 10 + (*text - '0');
    number /= divisor;
  }
  while (*text == ' ') ++text;
  if (*text != 0 && strcmp(text, "B") != 0) {
    const char upper = *text >= 'a' && *text <= 'z' ? static_cast<char>(*text - 'a' + 'A') : *text;
    const char* prefix = strchr(kPrefixes, upper);
    if (prefix == nullptr) return false;
    ++text;
    if (*text != 0 && strcmp(text, "B") != 0 && strcmp(text, "iB") != 0) return false;
    number *= static_cast<double>(uint64_t{1} << (10 * (prefix - kPrefixes + 1)));
  }
  if (number >= static_cast<double>(uint64_t{1} << 63)) return false;
  *bytes = static_cast<uint64_t>(number);
  return true;
}

// Who asked for a bound and has none must hear of it.
uint64_t AskedSize(const char* variable, const char* without) {
  const char* text = getenv(variable);
  uint64_t bytes = 0;
  if (text == nullptr || *text == 0 || ParseSize(text, &bytes)) return bytes;
  dprintf(STDERR_FILENO, "ravenstore[%d]: %s=%.100s is no size: %s\n", getpid(), variable, text,
          without);
  return 0;
}

// As the daemon prints them: a MIG instance's own is told by the newer function.
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

// A child has no context, no memory, no thread and no daemon of its own: it begins anew.
void InChild() {
  phase.store(Phase::kIdle);
  start_mutex = PTHREAD_MUTEX_INITIALIZER;
  ledger_page.ForgetInChild();
  elastic_page.ForgetInChild();
  elastic_rows.store(nullptr);
  page.store(nullptr);
  memset(static_cast<void*>(&private_page), 0, sizeof(private_page));
  for (auto& row : rows) row.store(0);
  last_context = nullptr;
  ledger.Reset();
  tenant::ForgetInChild();
  link::ForgetInChild();
  turn::ForgetInChild();
  pool::ForgetInChild();
  Serving().forget_in_child();
}

}  // namespace

Within::Within() : outermost_(depth++ == 0) {
  ++hooks_seen;
}
Within::~Within() {
  --depth;
}

uint32_t DriverHooksSeen() {
  return hooks_seen;
}

bool Start() {
  if (phase.load(std::memory_order_acquire) == Phase::kStarted) return true;
  if (depth > 1) return false;
  pthread_mutex_lock(&start_mutex);
  bool started = phase.load() == Phase::kStarted;
  if (!started) {
    const Within within;
    ReadSettings();
    // First, since another thread may fork at any time: its child must not find the mutex locked.
    if (!fork_handlers) pthread_atfork(nullptr, nullptr, InChild);
    fork_handlers = true;
    started = FindDevices();
    if (started) {
      link::Begin();
      phase.store(Phase::kStarted, std::memory_order_release);
    }
  }
  pthread_mutex_unlock(&start_mutex);
  return started;
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

uint64_t VisibleOf(int row) {
  if (row < 0) return 0;
  const proto::LedgerRow& at = Page()->row[row];
  const uint64_t granted = at.visible.load(std::memory_order_relaxed);
  const uint64_t asked = at.asked.load(std::memory_order_relaxed);
  if (granted == 0 || asked == 0) return granted + asked;
  return granted < asked ? granted : asked;
}

namespace {

// Adds to what the process holds; the sum before.
uint64_t Hold(int row, uint64_t bytes) {
  tenant::Hold(row, bytes);
  return Page()->row[row].used.fetch_add(bytes, std::memory_order_relaxed);
}

// What is left of a limit; 0 as a limit is none.
uint64_t Left(uint64_t limit, uint64_t used) {
  if (limit == 0) return ~uint64_t{0};
  return used < limit ? limit - used : 0;
}

uint64_t TogetherLimit(int row) {
  return Page()->row[row].together.load(std::memory_order_relaxed);
}

// What this job may still allocate: within its own size, and with its tenant's other jobs.
uint64_t Room(int row) {
  const uint64_t own = Left(VisibleOf(row), Page()->row[row].used.load(std::memory_order_relaxed));
  const uint64_t limit = TogetherLimit(row);
  const uint64_t together = limit == 0 ? Left(0, 0) : Left(limit, tenant::Together(row));
  return own < together ? own : together;
}

bool TryReserve(int row, uint64_t bytes) {
  const uint64_t visible = VisibleOf(row);
  const uint64_t limit = TogetherLimit(row);
  // First it stands in the sum, then the sum is looked at: of several that do so at once and do not
  // fit together, none overlooks the others. All of them may be refused then, though one of them
  // has room: it tries again.
  constexpr int kTries = 16;
  for (int i = 0; i < kTries; ++i) {
    const uint64_t before = Hold(row, bytes);
    const bool own = Left(visible, before) >= bytes;
    if (own && (limit == 0 || tenant::Together(row) <= limit)) return true;
    Hold(row, 0 - bytes);
    if (Room(row) < bytes) return false;
    sched_yield();
  }
  return false;
}

}  // namespace

uint64_t Excess(int row, uint64_t bytes) {
  const auto over = [bytes](uint64_t limit, uint64_t used) {
    return limit != 0 && used + bytes > limit ? used + bytes - limit : 0;
  };
  const uint64_t limit = TogetherLimit(row);
  const uint64_t own = over(VisibleOf(row), Page()->row[row].used.load(std::memory_order_relaxed));
  const uint64_t together = limit == 0 ? 0 : over(limit, tenant::Together(row));
  return own > together ? own : together;
}

void Show(int row, uint64_t* total, uint64_t* free) {
  const uint64_t visible = VisibleOf(row);
  const Backing& serving = Serving();
  if (free != nullptr) *free = serving.free_to_job(row, *free);
  if (visible == 0) return;
  if (total != nullptr && *total > visible) *total = visible;
  if (free == nullptr) return;
  pool::RefreshAll();
  const uint64_t left = serving.free_to_job(row, Room(row));
  if (*free > left) *free = left;
}

bool Reserve(int row, uint64_t bytes) {
  if (row < 0) return true;
  // What can never fit shall not stand in others' sums, not even for an instant.
  if (Left(VisibleOf(row), 0) < bytes || Left(TogetherLimit(row), 0) < bytes) return false;
  return TryReserve(row, bytes) || (pool::MakeRoom(row, bytes) && TryReserve(row, bytes));
}

void Unreserve(int row, uint64_t bytes) {
  if (row >= 0) Hold(row, 0 - bytes);
}

namespace {
// What a backing made that accounts for itself.
bool IsUncounted(const Entry& entry) {
  return entry.backing != nullptr && !entry.backing->counted;
}

// Of what is in the ledger, a mapping and a handle's second name hold nothing.
void AddToKind(const Entry& entry, uint64_t bytes) {
  if (entry.row < 0 || IsUncounted(entry)) return;
  proto::LedgerRow& row = Page()->row[entry.row];
  row.kinds[static_cast<int>(entry.kind)].fetch_add(bytes, std::memory_order_relaxed);
  if (entry.backing != nullptr) row.served.fetch_add(bytes, std::memory_order_relaxed);
}
}  // namespace

bool Commit(const Entry& entry) {
  // First the sums: once it is in the ledger another thread may free it.
  AddToKind(entry, entry.bytes);
  if (ledger.Add(entry)) return true;
  Uncharge(entry);
  return false;
}

void Uncharge(const Entry& entry) {
  if (IsUncounted(entry)) return;
  AddToKind(entry, 0 - entry.bytes);
  if (entry.pooled) {
    pool::RefreshUsage(entry.row, entry.bytes);
  } else {
    Unreserve(entry.row, entry.bytes);
  }
}

void Recharge(const Entry& entry) {
  if (entry.row >= 0) Hold(entry.row, entry.bytes);
  Commit(entry);
}

void Gauge(int row, LegacyKind kind, uint64_t bytes, uint64_t freed) {
  if (row < 0) return;
  proto::LedgerRow& at = Page()->row[row];
  const uint64_t before =
      at.kinds[static_cast<int>(kind)].exchange(bytes, std::memory_order_relaxed);
  Hold(row, bytes - before - freed);
}

const Settings& Asked() {
  return settings;
}

Mode AskedMode() {
  static std::atomic<int> known{-1};
  if (const int mode = known.load(std::memory_order_relaxed); mode >= 0) {
    return static_cast<Mode>(mode);
  }
  const char* text = getenv("RAVENSTORE_MODE");
  Mode mode = Mode::kAccount;
  for (const Mode other : {Mode::kStore, Mode::kElastic}) {
    if (text != nullptr && strcmp(text, NameOf(other)) == 0) mode = other;
  }
  known.store(static_cast<int>(mode), std::memory_order_relaxed);
  return mode;
}

const char* NameOf(Mode mode) {
  switch (mode) {
    case Mode::kAccount: return "account";
    case Mode::kStore: return "store";
    case Mode::kElastic: return "elastic";
  }
  return "";
}

void Log(const char* format, ...) {
  const char* where = settings.log;
  if (*where == 0) return;
  char text[512];
  const int head = snprintf(text, sizeof(text), "ravenstore[%d]: ", getpid());
  va_list arguments;
  va_start(arguments, format);
  int length =
      vsnprintf(text + head, sizeof(text) - static_cast<size_t>(head) - 1, format, arguments);
  va_end(arguments);
  length = head + (length < 0 ? 0 : length);
  if (length > static_cast<int>(sizeof(text)) - 2) length = static_cast<int>(sizeof(text)) - 2;
  text[length++] = '\n';
  const bool terminal = strcmp(where, "stderr") == 0 || strcmp(where, "1") == 0;
  const int file = terminal ? 2 : open(where, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return;
  [[maybe_unused]] const auto written = write(file, text, static_cast<size_t>(length));
  if (!terminal) close(file);
}

}  // namespace ravenstore::interceptor
