// What this job holds of each device, and what it may: the sums on the page that the daemon reads
// (proto/ledger_page.h), the budgets it writes there, and the steps every allocation goes through.
//
// Threads: any. The sums cost three atomic additions and no system call; a budget costs reading a
// word for each of the tenant's processes.
#pragma once

#include <atomic>
#include <cstdint>

#include "interceptor/cuda_api.h"
#include "interceptor/ledger.h"
#include "proto/ledger_page.h"

namespace ravenstore::interceptor {

// Begins the accounting, once in each process: after the first cuInit that succeeded. Attaches to
// the daemon (bounded), so that budgets hold before the first allocation. Cheap when done. False
// while the driver cannot be asked, and within itself.
bool Start();
// This process is in the middle of Start(), or of a hook that calls another hooked function.
class Within {
 public:
  Within();
  ~Within();
  // True for the outermost one of the thread: only that one counts.
  bool outermost() const { return outermost_; }

 private:
  bool outermost_;
};

// How many hooks of the driver this thread has been in: a hook of the runtime tells by it whether
// the driver's saw what it did.
uint32_t DriverHooksSeen();

proto::LedgerPage* Page();
// The memfd of the page, or -1.
int PageDescriptor();
// Of the page on which engines show themselves, in elastic mode: its memfd, or -1; and a device's
// row on it, or null.
int ElasticPageDescriptor();
void* ElasticPageRow(int row);

// The page's row of a device; -1: unknown.
int RowOf(CUdevice device);
int RowOfUuid(const char* uuid);
CUdevice DeviceOf(int row);
// Of the calling thread's context.
int CurrentRow();
CUcontext CurrentContext();
// Of the stream, whatever context is the thread's.
CUcontext ContextOf(CUstream stream);
int RowOf(CUstream stream);
// A context began or ended: what threads remember of its address may be another's.
void NoteContextChange();

// The size of the device that the job is shown; 0: its own.
uint64_t VisibleOf(int row);
// Bounds what the driver said about a device to what the job is shown. Does it no harm twice.
void Show(int row, uint64_t* total, uint64_t* free);

// By how much what is held and `bytes` more exceed the budgets.
uint64_t Excess(int row, uint64_t bytes);

// Takes `bytes` of the budgets, the job's and its tenant's, for an allocation that is about to be
// made; false: over one of them.
bool Reserve(int row, uint64_t bytes);
void Unreserve(int row, uint64_t bytes);
// The allocation was made and its bytes reserved: it is counted. `true` when the ledger took it;
// else its bytes are no longer reserved.
bool Commit(const Entry& entry);
// The entry, taken out of the ledger, no longer counts / counts again.
void Uncharge(const Entry& entry);
void Recharge(const Entry& entry);
// Sets the absolute figure of a kind, and in the same step gives `freed` reserved bytes back.
void Gauge(int row, LegacyKind kind, uint64_t bytes, uint64_t freed = 0);

// Who serves what the job allocates: backing.h.
enum class Mode : uint8_t { kAccount, kStore, kElastic };

// What the environment asks for, as it was when Start first began: a thread of ours must not read
// it while the program changes it.
struct Settings {
  char socket[256];  // empty: too long
  char log[4096];    // empty: nowhere
  Mode mode;
  uint64_t elastic_host;  // what may be pinned; 0: not said
  uint64_t elastic_part;  // what is moved at once; 0: not said
  bool elastic_report;
  bool elastic_still;  // nothing is moved
  bool elastic_maps_away;
  char elastic_record[4096];  // the file; empty: none, or too long
  int64_t wait_seconds;       // for its turn; 0: however long; -1: not at all
};
const Settings& Asked();
// Of the mode alone, also before Start.
Mode AskedMode();
const char* NameOf(Mode mode);

// Says something, once asked by $RAVENSTORE_INTERCEPT_LOG ("stderr" or a file).
void Log(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace ravenstore::interceptor
