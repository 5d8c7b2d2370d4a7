#include "sim/cluster_jobs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/check.h"

namespace ravenstore::sim {
namespace {

using cluster::PieceId;
using core::Bytes;
using core::TensorNumber;
using core::Tick;

constexpr core::Duration kTimeout = std::chrono::seconds(30);
constexpr core::Duration kRetry = std::chrono::seconds(1);
// Of what jobs are still to create: room for it is borrowed ahead. Less: creates wait for pieces.
// More: pieces are held and empty.
constexpr Bytes kAhead = core::MiB(512);

}  // namespace

ClusterJobs::Counts& ClusterJobs::Counts::operator+=(const Counts& other) {
  jobs += other.jobs;
  created += other.created;
  used += other.used;
  lost += other.lost;
  refused += other.refused;
  wrong += other.wrong;
  return *this;
}

ClusterJobs::ClusterJobs(Options options, cluster::Home* home, std::mt19937_64* random)
    : options_(std::move(options)),
      random_(*random),
      pages_(
          options_.memory, [this] { Run(); }, home),
      places_({.page = pages_.page()}) {}

Tick ClusterJobs::NextUse() {
  const double gap = -std::log(1 - static_cast<double>(random_() % (1 << 20)) / (1 << 20));
  return options_.memory.now() + core::FromSeconds(core::Seconds(options_.between_uses) * gap);
}

Bytes ClusterJobs::wanted() const {
  return core::Minus(size_, options_.memory.device + options_.memory.host);
}

Bytes ClusterJobs::useful() const {
  return std::min(wanted(), pages_.remote());
}

uint64_t ClusterJobs::RemoteTensors() const {
  return static_cast<uint64_t>(std::ranges::count_if(
      tensors_, [this](const auto& tensor) { return pages_.IsRemote(tensor.first); }));
}

// ---- Time

Tick ClusterJobs::Next() const {
  return std::min(pages_.Next(), later_.Next());
}

void ClusterJobs::Advance() {
  pages_.Advance();
  while (const auto what = later_.Take(options_.memory.now())) what();
}

// ---- What the home reports

void ClusterJobs::OnPieceRecalled(PieceId piece) {
  pages_.OnPieceRecalled(piece);
  Run();
}

void ClusterJobs::OnPieceKept(PieceId piece) {
  pages_.OnPieceKept(piece);
  Run();
}

void ClusterJobs::OnPieceLost(PieceId piece) {
  pages_.OnPieceLost(piece);
  Run();
}

void ClusterJobs::OnPiecesMost(uint32_t pieces) {
  pages_.OnPiecesMost(pieces);
  Run();
}

// ---- Jobs

void ClusterJobs::Begin(const std::vector<Bytes>& tensors, Tick end) {
  const JobNumber number = ++last_job_;
  Job& job = jobs_[number];
  for (const Bytes size : tensors) {
    job.rows.push_back({.size = size});
    job.size += size;
  }
  size_ += job.size;
  ++counts_.jobs;
  later_.Add(end, [this, number] { End(number); });
  ActAt(options_.memory.now(), number);
}

void ClusterJobs::End(JobNumber number) {
  Job job = std::move(jobs_.extract(number).mapped());
  size_ -= job.size;
  std::erase(waiting_, number);
  if (job.call && job.call->pinned) pages_.executor().Refuse(job.rows[job.call->row].tensor);
  for (Row& row : job.rows) Remove(&row);
  Run();
}

void ClusterJobs::ActAt(Tick when, JobNumber number) {
  later_.Add(when, [this, number] { Act(number); });
}

size_t ClusterJobs::NextRow(Job* job) {
  if (!job->missing.empty()) return job->missing.extract(job->missing.begin()).value();
  if (job->created < job->rows.size()) return job->created++;
  const size_t row = job->turn;
  job->turn = (row + 1) % job->rows.size();
  return row;
}

// Its next create or use; the end of that goes on from there.
void ClusterJobs::Act(JobNumber number) {
  const auto found = jobs_.find(number);
  if (found == jobs_.end()) return;
  Job& job = found->second;
  const size_t row = NextRow(&job);
  if (job.rows[row].state == Row::State::kLost) {
    ++counts_.lost;
    Remove(&job.rows[row]);
  }
  if (job.rows[row].state == Row::State::kNone) Place(number, row);
  job.call = {.number = ++last_call_, .row = row};
  waiting_.push_back(number);
  Run();
  if (!job.call) return;
  later_.Add(options_.memory.now() + kTimeout,
             [this, number, call = last_call_] { Expire(number, call); });
}

void ClusterJobs::Place(JobNumber number, size_t index) {
  Row& row = jobs_.at(number).rows[index];
  row.tensor = ++last_tensor_;
  row.version = 0;
  row.place = places_.Allocate(row.size);
  row.state = Row::State::kPlaced;
  pages_.executor().Place(row.tensor, places_.UnitsOf(row.place, row.size),
                          places_.OffsetOf(row.place), row.size);
  tensors_[row.tensor] = {number, index};
}

// REQUIRES: no call holds it.
void ClusterJobs::Remove(Row* row) {
  if (row->state == Row::State::kNone) return;
  if (row->state != Row::State::kPlaced) created_ -= row->size;
  if (row->state == Row::State::kLives) pages_.executor().End(row->tensor);
  pages_.executor().Remove(row->tensor);
  places_.Free(row->place, row->size);
  tensors_.erase(row->tensor);
  row->state = Row::State::kNone;
}

// ---- Calls

bool ClusterJobs::MayPin(const Job& job) const {
  const core::PageExecutor& executor = pages_.executor();
  const Row& row = job.rows[job.call->row];
  const bool creates = row.state == Row::State::kPlaced;
  if (creates && !executor.CanCreate(executor.tensors()[row.tensor].units)) return false;
  return core::decide::Admit(
             core::CallIn(executor.books(), executor.tensors()[row.tensor].units)) ==
         core::decide::Admission::kNow;
}

void ClusterJobs::PinWaiting() {
  std::vector<JobNumber> granted;
  std::erase_if(waiting_, [&](JobNumber number) {
    Job& job = jobs_.at(number);
    if (!MayPin(job)) return false;
    job.call->pinned = true;
    if (pages_.executor().Pin(job.rows[job.call->row].tensor)) granted.push_back(number);
    return true;
  });
  for (const JobNumber number : granted) Granted(number);
}

void ClusterJobs::Expire(JobNumber number, uint64_t call) {
  const auto found = jobs_.find(number);
  if (found == jobs_.end()) return;
  const auto& waits = found->second.call;
  if (!waits || waits->number != call) return;
  if (waits->pinned) {
    pages_.executor().Refuse(found->second.rows[waits->row].tensor);
  } else {
    std::erase(waiting_, number);
    Refused(number);
  }
  Run();
}

// The job has the tensor. It reads all, writes all or nothing, and puts the tensor.
void ClusterJobs::Granted(JobNumber number) {
  Job& job = jobs_.at(number);
  Row& row = job.rows[std::exchange(job.call, std::nullopt)->row];
  core::PageExecutor& executor = pages_.executor();
  const bool creates = row.state == Row::State::kPlaced;
  if (creates) {
    ++counts_.created;
    created_ += row.size;
    row.state = Row::State::kLives;
    executor.Begin(row.tensor);
    pages_.contents().Write(row.tensor, row.version);
  } else if (!pages_.contents().Holds(row.tensor, row.version)) {
    ++counts_.wrong;
  }
  ++counts_.used;
  executor.Unpin(row.tensor);
  if (random_() % 2 == 0) {
    pages_.contents().Write(row.tensor, ++row.version);
    executor.Modify(row.tensor);
  }
  executor.Reach(row.tensor);
  ActAt(creates ? options_.memory.now() : NextUse(), number);
}

void ClusterJobs::Refused(JobNumber number) {
  Job& job = jobs_.at(number);
  const size_t index = std::exchange(job.call, std::nullopt)->row;
  Row& row = job.rows[index];
  const bool is_lost = row.state == Row::State::kLost;
  ++(is_lost ? counts_.lost : counts_.refused);
  if (row.state != Row::State::kLives) {
    Remove(&row);
    job.missing.insert(index);
  }
  ActAt(options_.memory.now() + (is_lost ? core::Duration{} : kRetry), number);
}

Bytes ClusterJobs::Needed() const {
  Bytes needed = pages_.page() * pages_.executor().books().totals().occupied().pages() +
                 std::min(kAhead, core::Minus(size_, created_));
  for (const JobNumber number : waiting_) {
    const Job& job = jobs_.at(number);
    const Row& row = job.rows[job.call->row];
    if (row.state == Row::State::kPlaced) needed += row.size;
  }
  // A page that comes needs room for another.
  return needed + options_.memory.sizes.piece * options_.memory.scale;
}

void ClusterJobs::HandleEnds(const ClusterPages::Ends& ends) {
  counts_.wrong += ends.wrong;
  for (const TensorNumber tensor : ends.lost) {
    const auto name = tensors_.find(tensor);
    if (name == tensors_.end()) continue;
    const RowName row = name->second;
    Job& job = jobs_.at(row.job);
    job.rows[row.row].state = Row::State::kLost;
    if (!job.call || job.call->row != row.row || job.call->pinned) continue;
    std::erase(waiting_, row.job);
    Refused(row.job);
  }
  // A job may have ended meanwhile.
  for (const TensorNumber tensor : ends.refused) {
    if (const auto name = tensors_.find(tensor); name != tensors_.end()) Refused(name->second.job);
  }
  for (const TensorNumber tensor : ends.granted) {
    if (const auto name = tensors_.find(tensor); name != tensors_.end()) Granted(name->second.job);
  }
}

void ClusterJobs::Run() {
  changed_ = true;
  if (std::exchange(settling_, true)) return;
  while (std::exchange(changed_, false)) {
    PinWaiting();
    const ClusterPages::Ends ends = pages_.Run(Needed());
    HandleEnds(ends);
    changed_ |= !ends.empty();
  }
  settling_ = false;
}

}  // namespace ravenstore::sim
