#include "elastic/engine.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "elastic/own_thread.h"
#include "ipc/clock.h"

namespace ravenstore::elastic {

using core::Bytes;
using core::Error;
using core::ErrorCode;
using core::Result;
using core::Status;

namespace {

// Addresses are plenty.
constexpr Bytes kAddressesLeast = core::GiB(64);
constexpr uint64_t kAddressesShare = 8;  // times what may be held

// While moves are under way, or what should move may not yet, the engine looks again this often.
constexpr std::chrono::microseconds kPoll{100};
constexpr std::chrono::microseconds kRetry{200};
// How often the engine asks for its limit, and for the GPU's progress where nothing waits for it.
constexpr std::chrono::milliseconds kAskLimit{50};
// The same while other engines share the device: they wait for what this one does not need.
constexpr core::Duration kAskShare = std::chrono::milliseconds(1);
// After a plan the thread rests for kPlanRest times its duration. Less: a job that does not repeat
// itself takes a CPU for plans. More: one that does follows an old plan for longer.
constexpr int kPlanRest = 2;
// How often Show() publishes, and how many ranges it looks at before it yields the lock.
constexpr std::chrono::seconds kShow{1};
constexpr size_t kShownAtOnce = 256;

core::Duration AskAfter(const JobShare& share) {
  return share.is_shared() ? kAskShare : core::Duration(kAskLimit);
}

}  // namespace

Engine::Engine(EngineOptions options, const Driver& driver)
    : options_(std::move(options)),
      driver_(driver),
      streams_(&driver_),
      segments_(options_.part, &streams_),
      waits_(options_, &streams_) {}

Result<std::unique_ptr<Engine>> Engine::Create(EngineOptions options, const Driver& driver) {
  std::unique_ptr<Engine> engine(new Engine(std::move(options), driver));
  RAVEN_RETURN_IF_ERROR(engine->Init());
  return engine;
}

Status Engine::Init() {
  CUresult result = driver_.ctx_get_current(&context_);
  if (result != CUDA_SUCCESS) return DriverError("cuCtxGetCurrent", result);
  if (context_ == nullptr) return Error{ErrorCode::kWrongState, "no context is current"};
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, options_.device};
  size_t granule = 0;
  result = driver_.granularity(&granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (result != CUDA_SUCCESS) return DriverError("cuMemGetAllocationGranularity", result);
  granule_ = Bytes(granule);
  if (options_.part.RoundDown(granule_) != options_.part || options_.part == Bytes{0}) {
    return Error{ErrorCode::kInvalidArgument, "a part of " + std::to_string(options_.part.count()) +
                                                  " bytes is no multiple of the driver's " +
                                                  std::to_string(granule)};
  }
  const Bytes held = options_.on_device.most + options_.on_host.most;
  const Bytes reach = std::max(kAddressesLeast, (held * kAddressesShare).RoundUp(options_.part));
  CUdeviceptr begin = 0;
  result = driver_.address_reserve(&begin, reach.count(), options_.part.count(), 0, 0);
  if (result != CUDA_SUCCESS) return DriverError("cuMemAddressReserve", result);
  addresses_ = std::make_unique<Addresses>(begin, reach, granule_);
  const Bytes room = Bytes(reach.count() / 2).RoundUp(options_.part);
  parts_ = std::make_unique<Parts>(&driver_, options_.device, options_.node, options_.on_device,
                                   options_.on_host);
  memory_ = std::make_unique<JobMemory>(
      JobMemory::Options{.begin = *addresses_->Take(room, Addresses::kNoOwner),
                         .addresses = room,
                         .page = options_.part,
                         .device = options_.on_device.most,
                         .host = options_.on_host.most,
                         .ended = [this] { residency_->NotifyEnded(); },
                         .plan_due = [this] { plan_due_.notify_one(); },
                         .removed = [this](uint32_t number) { residency_->NoteRemoved(number); }},
      parts_.get(), &streams_);
  return MakeWorkers();
}

Status Engine::MakeWorkers() {
  ranges_ = std::make_unique<RangeTable>(options_, memory_.get(), addresses_.get(), &segments_,
                                         &clock_, [this](Bytes live) { residency_->PinFor(live); });
  residency_ = std::make_unique<Residency>(
      options_,
      Residency::Uses{parts_.get(), memory_.get(), &segments_, &streams_, ranges_.get(), &clock_});
  RAVEN_ASSIGN_OR_RETURN(mover_, Mover::Create(&driver_, parts_.get(), context_,
                                               [this](const auto& move, const auto& replaced) {
                                                 job_segments_->EndMove(move, replaced);
                                               }));
  memory_->pages().SetMover(mover_.get());
  pinner_ = std::make_unique<Pinner>(&driver_, parts_.get(), context_, options_.part);
  residency_->SetPinner(pinner_.get());
  reachability_ = std::make_unique<Reachability>(
      options_, Reachability::Uses{&driver_, parts_.get(), memory_.get(), &segments_, ranges_.get(),
                                   residency_.get(), mover_.get()});
  allocator_ = std::make_unique<RangeAllocator>(
      options_, granule_,
      RangeAllocator::Uses{parts_.get(), memory_.get(), ranges_.get(), residency_.get(),
                           reachability_.get(), &waits_, &streams_, pinner_.get(), &clock_});
  job_segments_ = std::make_unique<JobSegments>(
      options_, granule_,
      JobSegments::Uses{&driver_, parts_.get(), addresses_.get(), memory_.get(), &segments_,
                        ranges_.get(), residency_.get(), &waits_, &streams_, mover_.get()});
  submissions_ = std::make_unique<Submissions>(
      options_,
      Submissions::Uses{&driver_, memory_.get(), &segments_, ranges_.get(), residency_.get(),
                        reachability_.get(), &streams_, &clock_, [this] { return HasWork(); }});
  thread_ = OwnThread("raven-elastic", &driver_, context_, [this] { Run(); });
  plan_thread_ = OwnThread("raven-plan", &driver_, context_, [this] { MakePlans(); });
  return core::Ok();
}

// What ends moves needs all the rest: who begins any goes first, then they.
Engine::~Engine() {
  if (residency_) {
    const Lock lock(residency_->locks());
    stopping_ = true;
    residency_->WakeEngine();
    plan_due_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
  if (plan_thread_.joinable()) plan_thread_.join();
  mover_.reset();
  pinner_.reset();
}

std::optional<Engine::Allocation> Engine::Find(CUdeviceptr address) const {
  const std::lock_guard lock(residency_->locks().calls());
  const uint32_t number = ranges_->At(address);
  if (number == Addresses::kNoOwner) return std::nullopt;
  return Allocation{(*ranges_)[number].begin, (*ranges_)[number].asked};
}

void Engine::ReachAll() {
  Lock lock(residency_->locks());
  reachability_->MapAll(lock);
}

void Engine::StreamGone(CUstream stream) {
  const std::lock_guard lock(residency_->locks().calls());
  streams_.Gone(stream);
}

void Engine::SetDeviceLimit(Bytes most) {
  parts_->SetLimit(Place::kDevice, most);
  const Lock lock(residency_->locks());
  residency_->SetPages();
  residency_->PinFor(ranges_->LiveBytes());
  residency_->WakeEngine();
}

void Engine::NoteIllegalAddress() {
  const Lock lock(residency_->locks());
  LogIllegalAddress();
}

void Engine::LogIllegalAddress() {
  if (reachability_->maps_away() || !options_.log || std::exchange(illegal_logged_, true)) return;
  options_.log(
      "an illegal address was met: a kernel may have reached memory that it did not name, and that "
      "lay on the host. RAVENSTORE_ELASTIC_AWAY=mapped keeps all memory reachable");
}

EngineStats Engine::stats() const {
  const Lock lock(residency_->locks());
  return Stats();
}

EngineStats Engine::Stats() const {
  const RangeTable::Stats& ranges = ranges_->stats();
  const Submissions::Stats& calls = submissions_->stats();
  const JobPages::Stats& pages = memory_->pages().stats();
  const JobSegments::Stats& segments = job_segments_->stats();
  return {.live = ranges.live,
          .away = memory_->Away() + segments_.away(),
          .pinned = ranges.pinned,
          .peak = ranges.peak,
          .enough = ranges.most,
          .moved_in = segments.moved_in + pages.moved_in,
          .moved_out = segments.moved_out + pages.moved_out,
          .dropped = pages.dropped,
          .uses = calls.uses,
          .uses_in_place = calls.uses_in_place,
          .bytes_in_place = calls.bytes_in_place,
          .waits = calls.waits,
          .waited = calls.waited,
          .paces = calls.paces,
          .room_waits = waits_.stats().waits,
          .room_waited = waits_.stats().waited};
}

// ---- The engine's thread, which decides what is moved, and when.

void Engine::Run() {
  Lock lock(residency_->locks());
  while (!stopping_) {
    AskLimit(lock);
    Show(lock);
    Look();
    if (streams_.saw_illegal_address()) LogIllegalAddress();
    residency_->EndShortage();
    residency_->Advance();
    if (!stopping_ && !residency_->broken() && (TakeHostPart(lock) || job_segments_->Start(lock)))
      continue;
    const bool idle = !HasWork();
    const bool is_quiet = memory_->IsQuiet() && segments_.moving() == 0;
    residency_->Sleep(idle       ? AskAfter(job_share_)
                      : is_quiet ? core::Duration(kRetry)
                                 : core::Duration(kPoll),
                      idle, lock);
  }
}

bool Engine::HasWork() {
  if (!memory_->IsQuiet() || segments_.moving() > 0 || submissions_->IsUnderWay()) return true;
  if (residency_->broken()) return false;
  const bool over = parts_->held(Place::kDevice) > parts_->limit(Place::kDevice);
  const bool any_ends = memory_->open().logged() > 0 || memory_->calls().HasEnds();
  const bool waits = any_ends && (memory_->IsShort() || memory_->IsAnyAway());
  return waits || over || segments_.wanted() > Bytes{0} || job_segments_->Next().has_value();
}

// Pinning takes milliseconds: not on a thread that calls wait for.
bool Engine::TakeHostPart(Lock& lock) {
  if (!memory_->pages().WantsHostPart()) return false;
  const auto part = residency_->TakePart(Place::kHost, options_.part, lock);
  if (part.ok()) {
    memory_->pages().GiveHostPart(*part);
    return true;
  }
  if (memory_->books().copies().pools().redundant(0) == Bytes{0}) return false;
  memory_->DropCopies(options_.part);
  return true;
}

void Engine::AskLimit(Lock& lock) {
  const core::Tick now = ipc::Now();
  if (!options_.limit || now - limit_asked_ < AskAfter(job_share_)) return;
  limit_asked_ = now;
  const JobShare::Demand demand =
      memory_->Demand({.segments = segments_.on_device(), .held = parts_->held(Place::kDevice)});
  lock.unlock();
  const auto device = options_.share ? options_.share(demand) : std::nullopt;
  const Bytes most = job_share_.Of(device, options_.limit(), now - core::Tick{});
  const Bytes before = parts_->limit(Place::kDevice);
  // Less than a part more makes no difference.
  if (most < before || most - before >= options_.part) SetDeviceLimit(most);
  lock.lock();
}

// Other threads do not ask the driver: they may be capturing, which that would break. The queries
// run next to the job's own driver calls: where all fits, they are made only now and then.
void Engine::Look() {
  const bool waits = !residency_->is_all_there() || segments_.moving() > 0 ||
                     submissions_->IsUnderWay() || residency_->AnyUnknown() || !memory_->IsQuiet();
  const core::Tick now = ipc::Now();
  if (!waits && now - looked_ < kAskLimit) return;
  looked_ = now;
  submissions_->Poll();
}

void Engine::Show(Lock& lock) {
  const core::Tick now = ipc::Now();
  if (!options_.shown || now - shown_ < kShow) return;
  shown_ = now;
  Shown::View view(now);
  for (uint32_t number = 1; number < ranges_->size(); ++number) {
    if (number % kShownAtOnce == 0) {
      lock.unlock();
      lock.lock();
    }
    const RangeTable::Range& range = (*ranges_)[number];
    if (!range.live) continue;
    view.Add({range.begin, range.size, ranges_->AwayOf(number), range.calls, range.allocated,
              range.used, range.pinned});
  }
  const EngineStats stats = Stats();
  proto::ElasticPageRow& row = view.row();
  row.limit = parts_->limit(Place::kDevice).count();
  row.device = parts_->held(Place::kDevice).count();
  row.host = parts_->held(Place::kHost).count();
  row.host_limit = parts_->limit(Place::kHost).count();
  row.live = stats.live.count();
  row.away = stats.away.count();
  row.pinned = stats.pinned.count();
  row.peak = stats.peak.count();
  row.enough = stats.enough.count();
  row.moved_in = stats.moved_in.count();
  row.moved_out = stats.moved_out.count();
  row.dropped = stats.dropped.count();
  row.uses = stats.uses;
  row.in_place = stats.uses_in_place;
  row.in_place_bytes = stats.bytes_in_place.count();
  row.waits = stats.waits;
  row.waited_ns = static_cast<uint64_t>(stats.waited.count());
  row.room_waits = stats.room_waits;
  row.room_waited_ns = static_cast<uint64_t>(stats.room_waited.count());
  row.learned = memory_->IsLearned() ? 1 : 0;
  row.broken = residency_->broken() ? 1 : 0;
  options_.shown->AddCalls(&view);
  lock.unlock();
  options_.shown->Publish(view);
  lock.lock();
}

// ---- The thread of plans.

void Engine::MakePlans() {
  Lock lock(residency_->locks());
  while (true) {
    plan_due_.wait(lock, [this] { return stopping_ || memory_->HasPlanWork(); });
    if (stopping_) return;
    const core::Tick began = ipc::Now();
    const std::shared_ptr<core::PlanWork> work = memory_->TakePlanWork();
    lock.unlock();
    work->Make();
    lock.lock();
    {
      const BothLocks::WithoutCalls without(&residency_->locks());
      memory_->PlanMade(work);
    }
    residency_->WakeEngine();
    plan_due_.wait_for(lock, (ipc::Now() - began) * kPlanRest, [this] { return stopping_; });
  }
}

}  // namespace ravenstore::elastic
