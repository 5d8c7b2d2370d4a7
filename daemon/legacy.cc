#include "daemon/legacy.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <utility>

#include "daemon/elastic_page.h"
#include "proto/elastic_page.h"
#include "proto/packet.h"

namespace ravenstore::daemon {

using core::Bytes;
using core::Error;
using core::ErrorCode;
using core::Minus;
using core::Tick;

namespace {

constexpr size_t kJobsPerPage = 64;
// Of an answer's jobs; what else is said of them, and is in its packet, takes less than the rest.
constexpr size_t kBytesPerPage = proto::kControlPacketMax - 16384;

uint64_t Word(const char* page, size_t offset) {
  uint64_t value = 0;
  std::memcpy(&value, page + offset, sizeof(value));
  return value;
}

// The inode of a page of that size; nullopt: it is none that may be read.
std::optional<ino_t> InodeOfPage(int descriptor, size_t bytes = proto::kLedgerBytes) {
  struct stat status {};
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  // The seals first: a file system of the stranger's own may let who looks at its files wait.
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  const bool is_page = seals >= 0 && (seals & kSeals) == kSeals &&
                       ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) &&
                       status.st_size == static_cast<off_t>(bytes);
  return is_page ? std::optional(status.st_ino) : std::nullopt;
}

constexpr size_t RowOffset(size_t row) {
  return offsetof(proto::LedgerPage, row) + row * sizeof(proto::LedgerRow);
}

// A row out of its bytes: a stranger's, so its text is cut and checked.
LegacyRow RowAt(const char* at, size_t index) {
  LegacyRow row;
  row.index = index;
  row.uuid.assign(at, strnlen(at, sizeof(proto::LedgerRow::uuid)));
  for (char& c : row.uuid) {
    if (c < ' ' || c > '~') c = '?';
  }
  const uint64_t granted = Word(at, offsetof(proto::LedgerRow, visible));
  const uint64_t asked = Word(at, offsetof(proto::LedgerRow, asked));
  row.visible = granted == 0 || asked == 0 ? granted + asked : std::min(granted, asked);
  row.used = Word(at, offsetof(proto::LedgerRow, used));
  row.served = Word(at, offsetof(proto::LedgerRow, served));
  for (size_t kind = 0; kind < proto::kLegacyKinds; ++kind) {
    row.kinds[kind] = Word(at, offsetof(proto::LedgerRow, kinds) + kind * sizeof(uint64_t));
  }
  return row;
}

}  // namespace

bool LegacyLedger::IsPage(int descriptor) {
  return InodeOfPage(descriptor).has_value();
}

core::Result<ProcessSlots::Slot> LegacyLedger::Add(uint64_t key, Newcomer job) {
  const auto inode = job.page ? InodeOfPage(job.page.get()) : std::nullopt;
  if (!inode) return Error{ErrorCode::kInvalidArgument, kNoPage};
  RAVEN_ASSIGN_OR_RETURN(const ProcessSlots::Slot process_slot,
                         process_slots_.Take(key, job.uid, {job.pid, job.start_time}, *inode));
  // It attaches again when it lost its socket; its old connection says nothing more.
  if (job.pid != 0) jobs_.erase(KeyOfProcess(job.pid));
  const auto [added, is_new] =
      jobs_.insert_or_assign(key, Job{std::move(job), std::nullopt, false, {}});
  WriteBudgets(added->second);
  return process_slot;
}

bool LegacyLedger::HangUp(uint64_t key) {
  jobs_.erase(key);
  return process_slots_.Has(key);
}

void LegacyLedger::Remove(uint64_t key) {
  jobs_.erase(key);
  process_slots_.Release(key);
}

uint64_t LegacyLedger::KeyOfProcess(pid_t pid) const {
  for (const auto& [key, job] : jobs_) {
    if (job.about.pid == pid) return key;
  }
  return 0;
}

const LegacyLedger::Job* LegacyLedger::FindClient(uint32_t client) const {
  for (const auto& [key, job] : jobs_) {
    if (job.about.client == client) return &job;
  }
  return nullptr;
}

Bytes LegacyLedger::VisibleOfTenant(uid_t uid) const {
  const auto found = tenants_.find(uid);
  return found == tenants_.end() ? visible_ : found->second;
}

Bytes LegacyLedger::VisibleOfClient(uint32_t client) const {
  const Job* job = FindClient(client);
  return job == nullptr ? Bytes{0} : VisibleOf(*job);
}

Bytes LegacyLedger::VisibleOf(const Job& job) const {
  return job.own_visible ? *job.own_visible : VisibleOfTenant(job.about.uid);
}

void LegacyLedger::SetTenant(uid_t uid, std::optional<Bytes> visible) {
  if (visible) {
    tenants_[uid] = *visible;
  } else {
    tenants_.erase(uid);
  }
  for (const auto& [key, job] : jobs_) {
    if (job.about.uid == uid) WriteBudgets(job);
  }
}

void LegacyLedger::SetClient(uint32_t client, std::optional<Bytes> visible) {
  for (auto& [key, job] : jobs_) {
    if (job.about.client != client) continue;
    job.own_visible = visible;
    WriteBudgets(job);
  }
}

void LegacyLedger::LowerRun(const WaitQueue::Process& process, core::TenantId user, Bytes visible) {
  for (auto& [key, job] : jobs_) {
    const Newcomer& about = job.about;
    const bool is_of = about.pid == process.pid || static_cast<pid_t>(about.run) == process.pid;
    const Bytes now = VisibleOf(job);
    if (!is_of || about.uid != core::ToInt(user) || (now != Bytes{0} && now <= visible)) continue;
    job.own_visible = visible;
    WriteBudgets(job);
  }
}

core::Status LegacyLedger::SetPaused(uint32_t client, bool paused) {
  for (auto& [key, job] : jobs_) {
    if (job.about.client != client) continue;
    if (job.about.mode != "elastic") {
      return Error{ErrorCode::kInvalidArgument,
                   "job " + std::to_string(client) + " runs in mode " + job.about.mode +
                       ": only one under ravenrun --mode elastic can give its memory up"};
    }
    job.paused = paused;
    WriteBudgets(job);
    return core::Ok();
  }
  return Error{ErrorCode::kNotFound, "no legacy job " + std::to_string(client) + " is attached"};
}

void LegacyLedger::WriteBudgets(const Job& job) const {
  const uint64_t tenants = VisibleOfTenant(job.about.uid).count();
  const uint64_t visible = job.own_visible ? job.own_visible->count() : tenants;
  // What one job was granted beyond its tenant's it may use; the others see the tenant's used up.
  const uint64_t together = tenants == 0 || visible == 0 ? 0 : std::max(tenants, visible);
  // Not by pwrite: that waits while the job writes the file, from a page of its own that never
  // comes. No process can shrink the mapped file.
  void* page = ::mmap(nullptr, proto::kLedgerBytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                      job.about.page.get(), 0);
  if (page == MAP_FAILED) return;
  // Every row, also those that the job adds later.
  for (proto::LedgerRow& row : static_cast<proto::LedgerPage*>(page)->row) {
    row.together.store(together);
    row.visible.store(visible);
    row.paused.store(job.paused ? 1 : 0);
  }
  ::munmap(page, proto::kLedgerBytes);
}

template <typename Visit>
void LegacyLedger::ForRows(const Job& job, Visit visit) const {
  std::array<char, proto::kLedgerBytes> page;
  const ssize_t size = ::pread(job.about.page.get(), page.data(), page.size(), 0);
  if (size != static_cast<ssize_t>(page.size())) return;
  if (Word(page.data(), offsetof(proto::LedgerPage, magic)) != proto::kLedgerMagic) return;
  std::vector<bool> seen(devices_.size());
  for (size_t i = 0; i < proto::kLedgerDevices; ++i) {
    const char* row = page.data() + RowOffset(i);
    const std::string_view uuid(row, strnlen(row, sizeof(proto::LedgerRow::uuid)));
    if (uuid.empty()) return;
    const auto found = std::find(devices_.begin(), devices_.end(), uuid);
    const auto device = static_cast<size_t>(found - devices_.begin());
    const bool counts = found != devices_.end() && !seen[device];
    if (counts) seen[device] = true;
    visit(row, i, counts ? std::optional(device) : std::nullopt);
  }
}

std::vector<Bytes> LegacyLedger::HeldByDevice() const {
  std::vector<Bytes> held(devices_.size());
  for (const auto& [key, job] : jobs_) {
    ForRows(job, [&](const char* row, size_t, std::optional<size_t> device) {
      if (!device) return;
      // A job may say anything: the sum does not overflow.
      Bytes& sum = held[*device];
      const Bytes own = Minus(Bytes(Word(row, offsetof(proto::LedgerRow, used))),
                              Bytes(Word(row, offsetof(proto::LedgerRow, served))));
      sum = std::min(sum, Bytes(UINT64_MAX) - own) + own;
    });
  }
  return held;
}

std::vector<std::vector<WaitQueue::Use>> LegacyLedger::UsesByDevice() const {
  std::vector<std::vector<WaitQueue::Use>> uses(devices_.size());
  for (const auto& [key, of_job] : jobs_) {
    ForRows(of_job, [&, &job = of_job](const char* row, size_t, std::optional<size_t> device) {
      if (!device) return;
      uses[*device].push_back({.process = {job.about.pid, job.about.start_time},
                               .user = core::TenantId{job.about.uid},
                               .run = static_cast<pid_t>(job.about.run),
                               .bytes = Bytes(Word(row, offsetof(proto::LedgerRow, used))),
                               .peak = Bytes(Word(row, offsetof(proto::LedgerRow, peak)))});
    });
  }
  return uses;
}

Bytes LegacyLedger::PeakOf(const Job& job) const {
  constexpr size_t kContext = offsetof(proto::LedgerRow, kinds) +
                              static_cast<size_t>(proto::LegacyKind::kContext) * sizeof(uint64_t);
  uint64_t peak = 0;
  ForRows(job, [&](const char* row, size_t index, std::optional<size_t> device) {
    peak = std::max(peak, Word(row, offsetof(proto::LedgerRow, peak)));
    if (!job.elastic || !device) return;
    const uint64_t enough = ReadElasticTotals(job.elastic.get(), index).enough;
    const uint64_t context = Word(row, kContext);
    if (enough > 0) peak = std::max(peak, std::min(enough, UINT64_MAX - context) + context);
  });
  return Bytes(peak);
}

std::vector<JobUses::Holding> LegacyLedger::Holdings() const {
  std::vector<JobUses::Holding> holdings;
  for (const auto& [of_job, at] : jobs_) {
    ForRows(at, [&, key = of_job, &job = at](const char* row, size_t index,
                                             std::optional<size_t> device) {
      if (!device || Word(row, offsetof(proto::LedgerRow, used)) == 0) return;
      JobUses::Holding holding{.job = key, .device = *device};
      if (job.elastic) {
        const ElasticTotals engine = ReadElasticTotals(job.elastic.get(), index);
        holding.moved_in = Bytes(engine.moved_in);
        holding.moved_out = Bytes(engine.moved_out);
      }
      holdings.push_back(holding);
    });
  }
  return holdings;
}

std::optional<LegacyLedger::Taken> LegacyLedger::TakenBy(uint64_t key) const {
  const auto found = jobs_.find(key);
  if (found == jobs_.end() || found->second.about.job.empty()) return std::nullopt;
  const Newcomer& about = found->second.about;
  return Taken{.pid = about.pid,
               .uid = about.uid,
               .job = about.job,
               .run = about.run,
               .name = about.name,
               .peak = PeakOf(found->second)};
}

Bytes LegacyLedger::RunningPeak(uid_t uid, const std::string& command) const {
  Bytes peak;
  for (const auto& [key, job] : jobs_) {
    if (job.about.uid == uid && job.about.job == command) peak = std::max(peak, PeakOf(job));
  }
  return peak;
}

std::vector<LegacyRow> LegacyLedger::Read(uint64_t key) const {
  const auto found = jobs_.find(key);
  if (found == jobs_.end()) return {};
  return RowsOf(found->second);
}

std::vector<LegacyRow> LegacyLedger::RowsOf(const Job& job) const {
  std::vector<LegacyRow> rows;
  ForRows(job, [&](const char* at, size_t index, std::optional<size_t> device) {
    rows.push_back(RowAt(at, index));
    rows.back().device = device;
  });
  return rows;
}

void LegacyLedger::FillJob(const Job& job, const std::vector<LegacyRow>& rows,
                           proto::LegacyJob* to) const {
  to->set_client(job.about.client);
  to->set_pid(static_cast<uint32_t>(job.about.pid));
  to->set_uid(job.about.uid);
  to->set_name(job.about.name);
  to->set_mode(job.about.mode);
  to->set_paused(job.paused);
  to->set_run(job.about.run);
  to->set_peak(PeakOf(job).count());
  for (const LegacyRow& row : rows) {
    if (row.used == 0 && row.visible == 0) continue;
    proto::LegacyDevice* device = to->add_devices();
    device->set_uuid(row.uuid);
    device->set_used(row.used);
    device->set_served(row.served);
    device->set_visible_memory(row.visible);
    for (const uint64_t bytes : row.kinds) device->add_kinds(bytes);
  }
}

void LegacyLedger::Fill(std::optional<uid_t> audience, const proto::ListLegacy& query,
                        proto::LegacyJobs* answer) const {
  uint64_t last = query.cursor();
  for (auto next = jobs_.upper_bound(query.cursor()); next != jobs_.end(); ++next) {
    const Newcomer& about = next->second.about;
    if (audience && *audience != about.uid) continue;
    if (answer->jobs_size() == static_cast<int>(kJobsPerPage)) {
      return answer->set_next_cursor(last);
    }
    FillJob(next->second, RowsOf(next->second), answer->add_jobs());
    if (answer->ByteSizeLong() > kBytesPerPage) {
      answer->mutable_jobs()->RemoveLast();
      return answer->set_next_cursor(last);
    }
    last = next->first;
  }
}

bool LegacyLedger::IsElasticPage(int descriptor) {
  return InodeOfPage(descriptor, proto::kElasticPageBytes).has_value();
}

bool LegacyLedger::SetElasticPage(uint64_t key, ipc::UniqueFd page) {
  Job& job = jobs_.at(key);
  if (job.elastic) return false;
  job.elastic = std::move(page);
  return true;
}

core::Result<proto::JobExplained> LegacyLedger::Explain(std::optional<uid_t> audience,
                                                        const proto::ExplainJob& query,
                                                        core::Tick now) const {
  const auto found = std::find_if(jobs_.begin(), jobs_.end(), [&](const auto& entry) {
    const Newcomer& about = entry.second.about;
    return about.client == query.client() && (!audience || *audience == about.uid);
  });
  if (found == jobs_.end()) {
    return Error{ErrorCode::kNotFound,
                 "no legacy job " + std::to_string(query.client()) + " is attached"};
  }
  proto::JobExplained answer;
  const Job& job = found->second;
  const std::vector<LegacyRow> rows = RowsOf(job);
  FillJob(job, rows, answer.mutable_job());
  if (!job.elastic) return answer;
  for (size_t row = query.cursor(); row < rows.size(); ++row) {
    auto device = ReadElasticRow(job.elastic.get(), row, now);
    if (!device) continue;
    *answer.mutable_elastic() = std::move(*device);
    answer.mutable_elastic()->set_uuid(rows[row].uuid);
    if (row + 1 < rows.size()) answer.set_next_cursor(static_cast<uint32_t>(row + 1));
    break;
  }
  return answer;
}

}  // namespace ravenstore::daemon
