#include "daemon/job_history.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "proto/packet.h"

namespace ravenstore::daemon {

using core::Bytes;
using core::Error;
using core::ErrorCode;

namespace {

// A file begins with this and a checksum of the rest.
constexpr std::string_view kMagic = "RAVENSTORE JOBS 1\n";
constexpr size_t kHeader = kMagic.size() + sizeof(uint64_t);
constexpr size_t kRecordsPerPage = 64;
// Of an answer's records; what else is in its packet takes less than the rest.
constexpr size_t kBytesPerPage = proto::kControlPacketMax - 256;

uint64_t ChecksumOf(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

void NoteEstimate(const JobHistory::Estimate& estimate, proto::JobRecord* record) {
  auto& all = *record->mutable_estimates();
  auto known = std::find_if(all.begin(), all.end(),
                            [&](const auto& one) { return one.source() == estimate.source; });
  proto::JobEstimate& one = known == all.end() ? *record->add_estimates() : *known;
  one.set_source(estimate.source);
  one.set_bytes(estimate.bytes.count());
  one.set_reserved(estimate.reserved.count());
  one.set_actual(record->last());
}

}  // namespace

bool JobHistory::IsKey(const std::string& text) {
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

bool JobHistory::IsSource(const std::string& text) {
  constexpr std::array kSources = {"formula", "capture", "history", "running", "given"};
  return std::find(kSources.begin(), kSources.end(), text) != kSources.end();
}

bool JobHistory::Varies(const proto::JobRecord& record) {
  if (record.runs() < 2) return false;
  const uint64_t least = std::min(record.least(), record.last());
  return record.peak() - least > record.peak() / 20;
}

void JobHistory::Add(const Process& process) {
  if (process.peak == Bytes{0}) return;
  const auto [at, is_new] = records_.try_emplace({process.uid, process.job});
  proto::JobRecord& record = at->second;
  const uint64_t peak = process.peak.count();
  const bool same_run = !is_new && record.run() == process.run && process.run != 0;
  if (is_new) {
    ++counts_[process.uid];
    record.set_uid(process.uid);
    record.set_job(process.job);
  }
  if (!same_run) {
    if (!is_new)
      record.set_least(record.runs() == 1 ? record.last()
                                          : std::min(record.least(), record.last()));
    record.set_runs(record.runs() + 1);
    record.set_run(process.run);
    record.set_last(0);
  }
  // The process that took the most gives the run its name.
  if (peak >= record.last()) record.set_name(process.name);
  record.set_last(std::max(record.last(), peak));
  record.set_peak(std::max(record.peak(), peak));
  if (!process.model.empty()) record.set_model(process.model);
  const auto since = process.seen.time_since_epoch();
  record.set_seen_s(
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(since).count()));
  if (process.use.compute) record.set_compute(*process.use.compute);
  if (process.use.link) record.set_link(*process.use.link);
  if (process.estimate) NoteEstimate(*process.estimate, &record);
  ++version_;
  if (is_new) MakeRoom(process.uid);
}

void JobHistory::MakeRoom(uid_t uid) {
  if (counts_[uid] > kJobsOfUser) return EvictOldest(uid);
  if (records_.size() <= kJobs) return;
  const auto most =
      std::max_element(counts_.begin(), counts_.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  EvictOldest(most->first);
}

void JobHistory::EvictOldest(uid_t uid) {
  auto oldest = records_.end();
  for (auto at = records_.lower_bound({uid, ""}); at != records_.end() && at->first.first == uid;
       ++at) {
    if (oldest == records_.end() || at->second.seen_s() < oldest->second.seen_s()) oldest = at;
  }
  records_.erase(oldest);
  if (--counts_[uid] == 0) counts_.erase(uid);
}

const proto::JobRecord* JobHistory::Find(uid_t uid, const std::string& job,
                                         const std::string& model) const {
  if (const auto found = records_.find({uid, job}); found != records_.end()) return &found->second;
  const proto::JobRecord* largest = nullptr;
  if (model.empty()) return largest;
  for (auto at = records_.lower_bound({uid, ""}); at != records_.end() && at->first.first == uid;
       ++at) {
    const proto::JobRecord& record = at->second;
    if (record.model() == model && (largest == nullptr || largest->peak() < record.peak()))
      largest = &record;
  }
  return largest;
}

void JobHistory::Fill(std::optional<uid_t> audience, const proto::ListJobRecords& query,
                      proto::JobRecords* answer) const {
  uint64_t passed = 0;
  for (const auto& [key, record] : records_) {
    if (audience && *audience != key.first) continue;
    if (passed++ < query.cursor()) continue;
    if (answer->records_size() == static_cast<int>(kRecordsPerPage))
      return answer->set_next_cursor(passed - 1);
    *answer->add_records() = record;
    if (answer->ByteSizeLong() > kBytesPerPage) {
      answer->mutable_records()->RemoveLast();
      return answer->set_next_cursor(passed - 1);
    }
  }
}

std::string JobHistory::Serialize() const {
  proto::JobHistory all;
  for (const auto& [key, record] : records_) *all.add_jobs() = record;
  const std::string body = all.SerializeAsString();
  const uint64_t checksum = ChecksumOf(body);
  std::string text(kMagic);
  text.append(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
  return text + body;
}

core::Result<JobHistory> JobHistory::Parse(const std::string& text) {
  if (!text.starts_with(kMagic) || text.size() < kHeader)
    return Error{ErrorCode::kCorrupt, "it does not begin as a history of jobs"};
  const std::string body = text.substr(kHeader);
  uint64_t checksum = 0;
  std::memcpy(&checksum, text.data() + kMagic.size(), sizeof(checksum));
  proto::JobHistory all;
  if (checksum != ChecksumOf(body) || !all.ParseFromString(body))
    return Error{ErrorCode::kCorrupt, "its checksum is wrong"};
  JobHistory history;
  for (proto::JobRecord& record : *all.mutable_jobs()) {
    const uid_t uid = record.uid();
    std::string job = record.job();
    if (!history.records_.try_emplace({uid, std::move(job)}, std::move(record)).second) continue;
    ++history.counts_[uid];
    history.MakeRoom(uid);
  }
  return history;
}

}  // namespace ravenstore::daemon
