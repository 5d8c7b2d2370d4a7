// ravenctl's commands. Each writes its answer to `out` and its complaint to `err`, and returns the
// program's exit code.
#pragma once

#include <atomic>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

#include "client/ctl/doctor.h"
#include "client/ctl/render.h"
#include "core/result.h"
#include "core/types.h"

namespace ravenstore::client::ctl {

enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,  // the command failed, or the doctor found something broken
  kExitUsage = 2,
};

struct Common {
  std::string socket{};
  bool json = false;
  core::Duration timeout{std::chrono::seconds(10)};  // for each of the daemon's answers
  size_t columns = kColumns;                         // of the terminal
};

struct Streams {
  std::ostream& out;
  std::ostream& err;
};

// Of a daemon that cannot be asked: why, and what a person can do about it. The exit code.
int ReportUnreachable(const Common& common, core::Error error, Streams streams);

int RunStatus(const Common& common, Streams streams);
int RunClients(const Common& common, Streams streams);
int RunNodes(const Common& common, Streams streams);

struct TopOptions {
  core::Duration interval{std::chrono::seconds(2)};
  uint64_t count = 0;     // of looks; 0: until `stop` is set
  bool in_place = false;  // each look takes the last one's place on the terminal
  size_t rows = 0;        // of the terminal; 0: as many as it takes
  int keys = -1;          // where keys are read from, each as it is pressed; -1: nowhere
};
// Shows what the store does, again and again.
int RunTop(const Common& common, const TopOptions& options, const std::atomic<bool>& stop,
           Streams streams);

enum class SortBy { kId, kClient, kTier, kSize, kName };
struct ListOptions {
  uint32_t client = 0;  // 0: every client
  std::string tier{};   // only tensors there; empty: anywhere. "host" also finds "device 0 + host"
  size_t limit = 100;   // 0: no limit
  std::optional<SortBy> sort{};  // unset: as the daemon lists them, which needs no full listing
  bool named = false;            // named sets instead; no other option counts then
};
int RunList(const Common& common, const ListOptions& options, Streams streams);

struct LimitsOptions {
  uint32_t client = 0;  // or
  std::string user{};   // a name or a number
  // Empty: left as it is. With nothing given the command only shows the limits.
  std::string device_budget{};
  std::string host_budget{};
  std::vector<std::string> pool_budgets{};  // "file 0=64GiB", each of a further pool
  std::string device_guarantee{};           // a user's
  std::string weight{};                     // a user's: 1 to 1000, or "default"
  std::string priority{};                   // a user's: "low", "normal", "high" or "default"
  std::string visible_memory{};             // of legacy jobs
};
int RunLimits(const Common& common, const LimitsOptions& options, Streams streams);

struct HarvestOptions {
  std::optional<uint32_t> device{};
  std::string return_bytes{};  // bytes; empty: what is harvested is shown
  std::string within = "1s";
};
// What is harvested of the devices; or some of it is given back, which fails where it takes longer.
int RunHarvest(const Common& common, const HarvestOptions& options, Streams streams);

struct SleepOptions {
  bool wakes = false;
  std::string tag{};  // empty: all memory of the job, which may be an elastic one
  std::string job{};  // its name, its run, or the number of one of its clients
  bool keeps_nothing = false;
  std::string within = "30s";
  std::string user{};  // whose job; empty: any
};
// All processes of a job put their memory to sleep, or wake it; all or none of them.
int RunSleep(const Common& common, const SleepOptions& options, Streams streams);

enum class Explained { kAny, kTensor, kJob, kClient };
// `what`: a tensor's number, or a name, of several with that name the first; or a legacy job's
// number, or a client's. A number that several have is wrong usage, unless `which` says.
int RunExplain(const Common& common, const std::string& what, Explained which, Streams streams);

struct RecordOptions {
  std::string file{};
  uint32_t client = 0;  // 0: every client
  core::Duration time{std::chrono::seconds(10)};
};
// Records for `time`, or until `stop` is set. Opens "FILE.tmp" at the beginning and gives it its
// name at the end, whole.
int RunRecord(const Common& common, const RecordOptions& options, const std::atomic<bool>& stop,
              Streams streams);

int RunDoctor(const Common& common, Environment& environment, Streams streams);

}  // namespace ravenstore::client::ctl
