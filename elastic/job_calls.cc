#include "elastic/job_calls.h"

#include <utility>

namespace ravenstore::elastic {

using core::CallEnd;
using core::StreamId;
using core::TensorNumber;
using core::plan::UnitSpan;

JobCalls::JobCalls(Options options, core::PageScheduler* scheduler, OpenRanges* open,
                   Streams* streams)
    : options_(std::move(options)), scheduler_(scheduler), open_(open), ends_(streams) {}

void JobCalls::See(std::vector<LoggedCall>* calls) {
  using Kind = LoggedCall::Kind;
  for (LoggedCall& call : *calls) {
    const TensorNumber range = call.range;
    if (call.kind == Kind::kCreate) {
      SeeCreate(call);
      continue;
    }
    if (call.kind == Kind::kUse) {
      scheduler_->Use(options_.client, range, call.at);
      holds_[range] = Hold::kHeld;
      NoteUse(range, call.call);
      continue;
    }
    holds_[range] = Hold::kNone;
    const CallEnd end =
        call.kind == Kind::kFree
            ? scheduler_->Free(options_.client, range, call.at, StreamId{call.stream})
            : scheduler_->Put(options_.client, range, true, {}, call.at);
    open_->EndHold(range);
    ends_.Add(end, executor().tensors()[range].size, call.point, std::move(call.others));
  }
}

void JobCalls::SeeCreate(const LoggedCall& create) {
  scheduler_->Create(options_.client,
                     {.tensor = create.range,
                      .size = create.size,
                      .at = create.at,
                      .place = create.place,
                      .stream = StreamId{create.stream}},
                     core::PageScheduler::Creates::kInUse);
  holds_[create.range] = Hold::kHeld;
  Begin(create.range, create.call);
  const UnitSpan& units = executor().tensors()[create.range].units;
  for (uint32_t i = 0; i < units.count; ++i) open_->EndHoldOfPage(units[i]);
}

void JobCalls::Begin(TensorNumber range, int64_t call) {
  scheduler_->BeginUse(options_.client, range);
  const core::PageBooks& books = executor().books();
  const UnitSpan& units = executor().tensors()[range].units;
  for (uint32_t i = 0; i < units.count; ++i) {
    if (books[units[i]].live == 1) recent_.Created(units[i], call);
  }
}

void JobCalls::NoteUse(TensorNumber range, int64_t call) {
  const UnitSpan& units = executor().tensors()[range].units;
  for (uint32_t i = 0; i < units.count; ++i)
    recent_.Used(units[i], call, !executor().books()[units[i]].IsResident());
}

void JobCalls::TakePassed() {
  const size_t before = passed_.size();
  ends_.TakePassed(&passed_);
  for (size_t i = before; i < passed_.size(); ++i) {
    if (passed_[i].frees) open_->EndFree(passed_[i].tensor);
  }
}

bool JobCalls::EndPassed() {
  for (const CallEnd& end : passed_) {
    scheduler_->EndUse(options_.client, end);
    if (!end.frees) continue;
    open_->Close(end.tensor);
    options_.removed(end.tensor);
  }
  const bool any = !passed_.empty();
  passed_.clear();
  return any;
}

}  // namespace ravenstore::elastic
