#include "cluster/fake_key_values.h"

#include <algorithm>

#include "core/check.h"

namespace ravenstore::cluster {

using core::Error;
using core::ErrorCode;
using core::Result;
using core::Tick;

struct FakeStore::Copy {
  int64_t revision;
  std::map<std::string, KeyValue> values;
  std::map<StoreLease, Lease> leases;
};

namespace {

Error NoLease() {
  return {ErrorCode::kNotFound, "there is no such lease"};
}

}  // namespace

class FakeKeyValues final : public KeyValues {
 public:
  FakeKeyValues(FakeStore* store, std::string name, std::function<void()> wake)
      : store_(*store), name_(std::move(name)) {
    RAVEN_CHECK(store_.clients_.emplace(name_, std::move(wake)).second);
  }
  ~FakeKeyValues() override {
    store_.clients_.erase(name_);
    std::erase_if(store_.watchers_, [&](const auto& entry) { return entry.first.first == name_; });
  }

  void Range(std::string prefix, size_t most, Tick deadline,
             Callback<RangeRead> callback) override {
    Ask<RangeRead>(deadline, std::move(callback), [this, prefix, most]() -> Result<RangeRead> {
      return store_.DoRange(prefix, most);
    });
  }
  void CompareAndSet(Write write, Tick deadline, Callback<WriteAnswer> callback) override {
    Ask<WriteAnswer>(deadline, std::move(callback),
                     [this, write] { return store_.DoWrite(name_, write); });
  }
  void Grant(core::Duration duration, Tick deadline, Callback<LeaseAnswer> callback) override {
    Ask<LeaseAnswer>(deadline, std::move(callback), [this, duration]() -> Result<LeaseAnswer> {
      const StoreLease id{++store_.last_lease_};
      store_.leases_[id].duration = duration;
      store_.ArmLease(id);
      return LeaseAnswer{store_.stamp(), id, duration};
    });
  }
  void KeepAlive(StoreLease lease, Tick deadline, Callback<LeaseAnswer> callback) override {
    Ask<LeaseAnswer>(deadline, std::move(callback),
                     [this, lease] { return store_.DoKeepAlive(lease); });
  }
  void Revoke(StoreLease lease, Tick deadline, Callback<core::Done> callback) override {
    Ask<core::Done>(deadline, std::move(callback), [this, lease]() -> Result<core::Done> {
      if (!store_.leases_.contains(lease)) return NoLease();
      store_.EndLease(name_, lease);
      return core::Done{};
    });
  }

  WatchId Watch(std::string prefix, int64_t from, Tick deadline,
                Callback<Changes> callback) override {
    const WatchId id{++store_.last_watch_};
    const FakeStore::WatchKey key{name_, id};
    store_.watchers_[key] = {
        .prefix = std::move(prefix), .next = from, .callback = std::move(callback)};
    ++store_.requests_;
    FakeStore* const store = &store_;
    store->events_.Add(store->now_ + store->Delay(), [store, key] { store->BeginWatch(key); });
    const auto late = [store, key] {
      const auto found = store->watchers_.find(key);
      if (found == store->watchers_.end() || found->second.has_delivered) return;
      const Callback<Changes> last = std::move(found->second.callback);
      store->watchers_.erase(found);
      last(Error{ErrorCode::kTimedOut, "no answer in time"});
    };
    store->events_.Add(std::max(deadline, store->now_), [store, key, late] {
      const auto found = store->watchers_.find(key);
      if (found != store->watchers_.end() && !found->second.has_delivered)
        store->RunForClient(key.first, late);
    });
    return id;
  }
  void Unwatch(WatchId watch) override { store_.watchers_.erase({name_, watch}); }

  void Poll(Tick until) override { store_.RunUntil(std::max(until, store_.now_)); }
  Tick Now() const override { return store_.now_; }
  std::string Describe() const override { return "the simulated store"; }

 private:
  // Runs `what` when the request reaches the store, and `callback` when the answer is back.
  template <typename T>
  void Ask(Tick deadline, Callback<T> callback, std::function<Result<T>()> what) {
    struct Operation {
      Callback<T> callback;
      bool ended = false;
      void End(Result<T> result) {
        if (!std::exchange(ended, true)) callback(std::move(result));
      }
    };
    const auto operation = std::make_shared<Operation>(Operation{.callback = std::move(callback)});
    const std::weak_ptr<int> alive = alive_;
    ++store_.requests_;
    const auto end = [this, operation, alive](const Result<T>& result) {
      if (alive.expired() || operation->ended) return;
      store_.RunForClient(name_, [operation, alive, result] {
        if (!alive.expired()) operation->End(result);
      });
    };
    store_.events_.Add(std::max(deadline, store_.now_), [end] {
      end(Error{ErrorCode::kTimedOut, "no answer in time"});
    });
    store_.events_.Add(store_.now_ + store_.Delay(), [this, alive, end, what = std::move(what)] {
      if (alive.expired() || store_.Lost(name_)) return;
      const Result<T> result =
          store_.stopped_ ? Error{ErrorCode::kUnavailable, "nothing listens there"} : what();
      if (store_.Lost(name_)) return;
      store_.events_.Add(store_.now_ + store_.Delay(), [this, alive, end, result] {
        if (!alive.expired() && !store_.cut_.contains(name_)) end(result);
      });
    });
  }

  FakeStore& store_;
  const std::string name_;
  const std::shared_ptr<int> alive_ = std::make_shared<int>();
};

FakeStore::FakeStore(uint64_t seed) : random_(seed), store_(random_()) {}

FakeStore::~FakeStore() {
  RAVEN_CHECK(clients_.empty());
}

std::unique_ptr<KeyValues> FakeStore::Connect(const std::string& client,
                                              std::function<void()> wake) {
  return std::make_unique<FakeKeyValues>(this, client, std::move(wake));
}

// ---- Time

bool FakeStore::RunNext(Tick until) {
  const Tick next = Next();
  const auto action = events_.Take(until);
  if (!action) return false;
  now_ = std::max(now_, next);
  action();
  return true;
}

void FakeStore::RunUntil(Tick until) {
  while (RunNext(until)) {
  }
  now_ = std::max(now_, until);
}

core::Duration FakeStore::Delay() {
  if (jitter_.count() == 0) return delay_;
  return delay_ + core::Duration(random_() % static_cast<uint64_t>(jitter_.count()));
}

bool FakeStore::Lost(const std::string& client) {
  if (cut_.contains(client)) return true;
  return losses_ > 0 && std::uniform_real_distribution<>()(random_) < losses_;
}

void FakeStore::RunForClient(const std::string& client, std::function<void()> what) {
  if (const auto paused = paused_.find(client); paused != paused_.end()) {
    return paused->second.push_back(std::move(what));
  }
  what();
  const auto found = clients_.find(client);
  if (found != clients_.end() && found->second) found->second();
}

// ---- Faults

void FakeStore::Resume(const std::string& client) {
  auto waiting = paused_.extract(client);
  if (waiting.empty()) return;
  for (auto& what : waiting.mapped()) {
    events_.Add(now_, [this, client, what = std::move(what)] { RunForClient(client, what); });
  }
}

void FakeStore::SetDelay(core::Duration delay, core::Duration jitter) {
  delay_ = delay;
  jitter_ = jitter;
}

void FakeStore::Stop() {
  if (std::exchange(stopped_, true)) return;
  EndWatches({ErrorCode::kUnavailable, "the store stopped"});
}

void FakeStore::Start() {
  if (std::exchange(stopped_, false)) RenewLeases();
}

void FakeStore::Compact() {
  compacted_ = revision_;
}

void FakeStore::Silence() {
  for (auto& [key, watcher] : watchers_) watcher.silent = true;
}

std::shared_ptr<const FakeStore::Copy> FakeStore::Backup() const {
  return std::make_shared<Copy>(Copy{revision_, values_, leases_});
}

void FakeStore::Restore(const Copy& copy, bool same_store) {
  EndWatches({ErrorCode::kUnavailable, "the store was restored"});
  if (!same_store) store_ = random_();
  revision_ = copy.revision;
  values_ = copy.values;
  leases_ = copy.leases;
  compacted_ = revision_;
  log_.clear();
  RenewLeases();
}

const KeyValue* FakeStore::Find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

// ---- Watches

Changes FakeStore::ChangesFor(const Watcher& watcher) const {
  Changes changes{.at = stamp(), .changes = {}};
  for (const Change& change : log_) {
    if (change.now.modified < watcher.next || !change.now.key.starts_with(watcher.prefix)) continue;
    changes.changes.push_back(change);
  }
  return changes;
}

void FakeStore::BeginWatch(const WatchKey& key) {
  const auto found = watchers_.find(key);
  if (found == watchers_.end() || Lost(key.first)) return;
  if (stopped_) return Deliver(key, Error{ErrorCode::kUnavailable, "nothing listens there"});
  Watcher& watcher = found->second;
  Deliver(key, Changes{.at = stamp(), .changes = {}});
  if (watcher.next < compacted_) {
    if (random_() % 2 == 0) return;
    return Deliver(key, Error{ErrorCode::kUnavailable, "the store has forgotten what was then"});
  }
  watcher.begun = true;
  Changes changes = ChangesFor(watcher);
  watcher.next = std::max(watcher.next, revision_ + 1);
  if (!changes.changes.empty()) Deliver(key, std::move(changes));
}

void FakeStore::Apply(const std::string& client, KeyValue now, bool deleted) {
  const KeyValue* found = Find(now.key);
  now.modified = ++revision_;
  Change change{.now = now, .deleted = deleted};
  history_.push_back({now_, client, found ? std::optional(found->value) : std::nullopt, change});
  log_.push_back(change);
  if (deleted) {
    values_.erase(now.key);
  } else {
    values_[now.key] = now;
  }
  for (auto& [key, watcher] : watchers_) {
    if (!watcher.begun || revision_ < watcher.next || !now.key.starts_with(watcher.prefix))
      continue;
    Deliver(key, Changes{.at = stamp(), .changes = {change}});
  }
}

void FakeStore::Deliver(const WatchKey& key, Result<Changes> what) {
  Watcher& watcher = watchers_.at(key);
  if (watcher.silent) return;
  // What a cut took is not sent again, and TCP would not go on behind it.
  if (Lost(key.first)) {
    watcher.silent = true;
    return;
  }
  watcher.last_sent = std::max(watcher.last_sent, now_ + Delay());
  const auto deliver = [this, key, what = std::move(what)] {
    const auto found = watchers_.find(key);
    if (found == watchers_.end() || found->second.silent) return;
    found->second.has_delivered = true;
    const Callback<Changes> callback = found->second.callback;
    if (!what.ok()) watchers_.erase(found);
    callback(what);
  };
  events_.Add(watcher.last_sent, [this, key, deliver] { RunForClient(key.first, deliver); });
}

void FakeStore::EndWatches(const Error& why) {
  for (const auto& [key, watcher] : watchers_) Deliver(key, why);
}

// ---- Leases

void FakeStore::ArmLease(StoreLease id) {
  Lease& lease = leases_.at(id);
  lease.end = now_ + lease.duration;
  events_.Add(lease.end, [this, id] {
    const auto found = leases_.find(id);
    if (found != leases_.end() && !stopped_ && found->second.end <= now_) EndLease("", id);
  });
}

void FakeStore::RenewLeases() {
  for (const auto& [id, lease] : leases_) ArmLease(id);
}

void FakeStore::EndLease(const std::string& client, StoreLease id) {
  leases_.erase(id);
  std::vector<KeyValue> gone;
  for (const auto& [key, value] : values_) {
    if (value.lease == id) gone.push_back({.key = key});
  }
  for (KeyValue& value : gone) Apply(client, std::move(value), true);
}

// ---- Requests

RangeRead FakeStore::DoRange(const std::string& prefix, size_t most) const {
  RangeRead read{.at = stamp(), .values = {}};
  for (auto at = values_.lower_bound(prefix); at != values_.end(); ++at) {
    if (!at->first.starts_with(prefix)) break;
    read.more = read.values.size() == most;
    if (read.more) break;
    read.values.push_back(at->second);
  }
  return read;
}

Result<WriteAnswer> FakeStore::DoWrite(const std::string& client, const Write& write) {
  const KeyValue* found = Find(write.key);
  const bool expected =
      found == nullptr ? !write.expected.has_value() : write.expected == found->value;
  if (!expected) {
    return WriteAnswer{.at = stamp(),
                       .written = false,
                       .found = found == nullptr ? std::nullopt : std::optional(*found)};
  }
  if (write.lease != kNoLease && !leases_.contains(write.lease)) {
    return NoLease();
  }
  Apply(client, {.key = write.key, .value = write.value, .lease = write.lease}, false);
  return WriteAnswer{.at = stamp(), .written = true};
}

Result<LeaseAnswer> FakeStore::DoKeepAlive(StoreLease lease) {
  if (!leases_.contains(lease)) return NoLease();
  ArmLease(lease);
  return LeaseAnswer{stamp(), lease, leases_.at(lease).duration};
}

}  // namespace ravenstore::cluster
