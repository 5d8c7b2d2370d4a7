#include "cluster/membership.h"

#include <algorithm>
#include <utility>

#include "cluster/hex.h"
#include "core/check.h"
#include "transport/transport.h"

namespace ravenstore::cluster {

using core::Error;
using core::ErrorCode;
using core::Result;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Instant = core::Tick;

namespace {

constexpr core::Duration kRetryMin = milliseconds(200);
constexpr core::Duration kRetryMax = seconds(5);
// After a store was away all nodes read it again, each some time within this.
constexpr core::Duration kSpread = seconds(1);
// Shorter failures are not reported: a store may answer only each third or second request.
constexpr core::Duration kNotice = seconds(3);
constexpr size_t kShownHex = 8;
// The longest that a lease is believed to live. Longer: a store that says so ends the keep-alives,
// and with centuries the sums of times overflow. Shorter than a lease that is configured:
// keep-alives more often than needed.
constexpr core::Duration kLeaseMax = std::chrono::hours(1);

std::string SecondsText(core::Duration duration) {
  return std::to_string(std::chrono::duration_cast<seconds>(duration).count()) + " s";
}

}  // namespace

Membership::Membership(MembershipOptions options, KeyValues* store, MembershipListener* listener)
    : options_(std::move(options)),
      key_(options_.prefix + options_.self.name),
      text_(ToText(options_.self)),
      store_(*store),
      listener_(*listener),
      table_(options_.table, listener),
      random_(options_.seed),
      now_(store->Now()),
      shown_since_(now_) {
  RAVEN_CHECK(transport::IsNodeName(options_.self.name));
}

Membership::~Membership() {
  store_.Unwatch(watch_);
}

std::optional<std::string> Membership::NameIn(const std::string& key) {
  if (!key.starts_with(options_.prefix)) {
    strange_ = true;
    return std::nullopt;
  }
  std::string name = key.substr(options_.prefix.size());
  if (!transport::IsNodeName(name)) return std::nullopt;
  return name;
}

template <typename T>
Callback<T> Membership::CallbackTo(void (Membership::*method)(const Result<T>&)) {
  return [this, method, alive = std::weak_ptr<int>(alive_)](const Result<T>& result) {
    if (alive.expired()) return;
    now_ = store_.Now();
    (this->*method)(result);
  };
}

core::Duration Membership::Random(core::Duration most) {
  return core::Duration(random_() % static_cast<uint64_t>(most.count()));
}

void Membership::Again(Retry* retry) {
  retry->pause = std::clamp(2 * retry->pause, kRetryMin, kRetryMax);
  retry->at = now_ + retry->pause / 2 + Random(retry->pause);
}

void Membership::Tick(Instant now) {
  now_ = now;
  if (now >= NextCheck()) ReadAgain(false);
  if (view_ == View::kNone && now >= read_.at && !registering_.open) Read();
  Register();
  KeepAlive();
  if (HasView() && !failing_since_) table_.ReportDue(now, confirmed_);
  ReportStatus();
}

Instant Membership::NextTick() const {
  Instant next = core::kNever;
  const auto at = [&next](bool matters, Instant when) {
    if (matters) next = std::min(next, when);
  };
  at(view_ == View::kNone && !registering_.open, read_.at);
  at(true, NextCheck());
  const Holder holder = FindHolder();
  at(HasView() && !registering_.open && !leaving_ && holder != Holder::kSelf &&
         holder != Holder::kOther,
     register_.at);
  at(lease_ != kNoLease && !keeping_.open && !leaving_, keep_.at);
  const Instant due = table_.Next();
  at(HasView() && !failing_since_ && (due > now_ || due <= confirmed_), due);
  at(shown_.registered, lease_end_);
  at(!shown_.failing && failing_since_, failing_since_.value_or(Instant{}) + kNotice);
  return std::max(next, now_);
}

// ---- The view

Instant Membership::NextCheck() const {
  if (view_ != View::kWatching) return core::kNever;
  const Instant check = std::min(confirmed_ + options_.recheck, reread_at_);
  // A node that seems gone waits for a proof, which a keep-alive mostly brings.
  const Instant due = table_.Next();
  if (due == core::kNever) return check;
  return std::min(check, std::max(due, confirmed_) + options_.patience);
}

void Membership::Read() {
  view_ = View::kReading;
  // This node's, and one that shows that there are more.
  store_.Range(options_.prefix, options_.table.nodes_max + 2, Deadline(),
               CallbackTo(&Membership::OnRead));
}

void Membership::OnRead(const Result<RangeRead>& read) {
  RecordContact(read.ok() ? nullptr : &read.error());
  if (!read.ok()) {
    view_ = View::kNone;
    lost_ = true;
    return Again(&read_);
  }
  bool restored =
      seen_.store != 0 && (read->at.store != seen_.store || read->at.revision < seen_.revision);
  std::vector<NodeTable::Entry> entries;
  std::optional<KeyValue> own;
  for (const KeyValue& value : read->values) {
    if (value.key == key_) {
      own = value;
    } else if (const auto name = NameIn(value.key)) {
      entries.push_back({*name, value.value});
      // It grew again before anybody looked: what is older than the view contradicts it.
      restored |= value.modified <= seen_.revision && !table_.overflowed() &&
                  !table_.Holds(*name, value.value);
    }
  }
  table_.Replace(entries, now_);
  if (restored) {
    table_.SuspectOldRecords(now_);
  } else if (lost_) {
    table_.RestartGrace(now_);
  }
  lost_ = false;
  seen_ = read->at;
  confirmed_ = now_;
  reread_at_ = now_ + options_.reread / 2 + Random(options_.reread / 2);
  own_revision_ = -1;
  SetOwn(std::move(own), seen_.revision);
  view_ = View::kBeginning;
  watch_ = store_.Watch(options_.prefix, seen_.revision + 1, Deadline(),
                        CallbackTo(&Membership::OnWatch));
}

void Membership::OnWatch(const Result<Changes>& changes) {
  if (!changes.ok()) {
    ReadAgain(true);
    return Again(&read_);
  }
  RecordContact(nullptr);
  if (view_ == View::kBeginning) {
    view_ = View::kWatching;
    read_ = {};
    return Compare(changes->at, seen_.revision);
  }
  for (const Change& change : changes->changes) {
    const KeyValue& value = change.now;
    // Only these changes are known to have arrived: others may still be on their way.
    seen_.revision = std::max(seen_.revision, value.modified);
    if (value.key == key_) {
      SetOwn(change.deleted ? std::nullopt : std::optional(value), value.modified);
      continue;
    }
    const auto name = NameIn(value.key);
    if (!name) continue;
    table_.Update(*name, change.deleted ? std::nullopt : std::optional(value.value), now_);
  }
  if (changes->changes.empty()) Compare(changes->at, seen_.revision);
}

void Membership::ReadAgain(bool lost) {
  lost_ |= lost;
  if (!HasView()) return;
  store_.Unwatch(watch_);
  view_ = View::kNone;
  read_.at = lost ? now_ + Random(kSpread) : now_;
}

void Membership::Compare(const Stamp& stamp, int64_t known) {
  if (!HasView()) return;
  if (stamp.store != seen_.store || stamp.revision < known) {
    ReadAgain(true);
  } else if (stamp.revision <= seen_.revision) {
    confirmed_ = now_;
  }
}

// ---- The registration

Membership::Holder Membership::FindHolder() const {
  if (!own_) return Holder::kNone;
  if (own_->value == text_) {
    return own_->lease == lease_ ? Holder::kSelf : Holder::kSelfByOtherLease;
  }
  const std::vector<Incarnation>& all = options_.predecessors;
  const bool predecessor =
      own_record_ && std::ranges::find(all, own_record_->incarnation) != all.end();
  return predecessor ? Holder::kPredecessor : Holder::kOther;
}

void Membership::SetOwn(std::optional<KeyValue> own, int64_t revision) {
  // The watch may report a change after the answer to the write that made it.
  if (revision <= own_revision_) return;
  own_revision_ = revision;
  own_ = std::move(own);
  own_record_.reset();
  if (!own_) return;
  auto record = ReadNodeRecord(options_.self.name, own_->value);
  if (record.ok()) own_record_ = std::move(*record);
}

// The revision that the store has reached, by its own answers. The answer to a write of this node
// arrives before the watch reports it. A store that answers with a lower revision was restored.
int64_t Membership::Known() const {
  return std::max(seen_.revision, own_revision_);
}

void Membership::Register() {
  if (!HasView() || leaving_ || registering_.open) return;
  const Holder holder = FindHolder();
  if (holder == Holder::kOther) lease_ = kNoLease;  // it holds nothing, and ends by itself
  if (holder == Holder::kOther || holder == Holder::kSelf || now_ < register_.at) return;
  registering_ = {.open = true, .at = now_, .known = Known()};
  if (lease_ == kNoLease) {
    return store_.Grant(options_.lease, Deadline(), CallbackTo(&Membership::OnGranted));
  }
  registering_.lease = lease_;
  store_.CompareAndSet({.key = key_,
                        .expected = own_ ? std::optional(own_->value) : std::nullopt,
                        .value = text_,
                        .lease = lease_},
                       Deadline(), CallbackTo(&Membership::OnWritten));
}

void Membership::OnGranted(const Result<LeaseAnswer>& answer) {
  registering_.open = false;
  RecordContact(answer.ok() ? nullptr : &answer.error());
  if (!answer.ok()) return Again(&register_);
  lease_ = answer->lease;
  const core::Duration lives = std::min(answer->duration, kLeaseMax);
  lease_end_ = registering_.at + lives;
  keep_ = {.at = registering_.at + lives / 3, .pause = {}};
  Compare(answer->at, registering_.known);
  Register();
}

void Membership::OnWritten(const Result<WriteAnswer>& answer) {
  registering_.open = false;
  const bool lease_gone = !answer.ok() && answer.error().code == ErrorCode::kNotFound;
  RecordContact(answer.ok() || lease_gone ? nullptr : &answer.error());
  if (lease_gone && lease_ == registering_.lease) lease_ = kNoLease;
  if (!answer.ok()) return Again(&register_);
  const int64_t revision = answer->at.revision;
  if (answer->written) {
    register_ = {};
    SetOwn(KeyValue{.key = key_, .value = text_, .modified = revision, .lease = registering_.lease},
           revision);
  } else {
    Again(&register_);
    // As of then it was as expected: this is another store's.
    if (revision <= registering_.known) return ReadAgain(true);
    SetOwn(answer->found, revision);
  }
  Compare(answer->at, registering_.known);
}

void Membership::KeepAlive() {
  if (lease_ == kNoLease || leaving_ || keeping_.open || now_ < keep_.at) return;
  keeping_ = {.open = true, .at = now_, .known = Known(), .lease = lease_};
  store_.KeepAlive(lease_, Deadline(), CallbackTo(&Membership::OnKept));
}

void Membership::OnKept(const Result<LeaseAnswer>& answer) {
  keeping_.open = false;
  const bool gone = !answer.ok() && answer.error().code == ErrorCode::kNotFound;
  RecordContact(answer.ok() || gone ? nullptr : &answer.error());
  if (lease_ != keeping_.lease) return;
  if (gone) {
    lease_ = kNoLease;
  } else if (!answer.ok()) {
    Again(&keep_);
  } else {
    const core::Duration lives = std::min(answer->duration, kLeaseMax);
    lease_end_ = keeping_.at + lives;
    keep_ = {.at = keeping_.at + lives / 3, .pause = {}};
    Compare(answer->at, keeping_.known);
  }
}

void Membership::Leave() {
  if (std::exchange(leaving_, true)) return;
  left_ = lease_ == kNoLease;
  if (left_) return;
  const auto on_revoked = [this, alive = std::weak_ptr<int>(alive_)](const Result<core::Done>&) {
    if (!alive.expired()) left_ = true;
  };
  store_.Revoke(lease_, Deadline(), on_revoked);
  lease_ = kNoLease;
}

bool Membership::HasLeft() const {
  return left_;
}

// ---- What is shown

void Membership::RecordContact(const Error* failure) {
  if (failure == nullptr) {
    ever_answered_ = true;
    // What the watch had on its way may have been lost with the rest.
    if (IsFailing()) ReadAgain(true);
    failing_since_.reset();
    return;
  }
  if (!failing_since_) failing_since_ = now_;
  failure_ = failure->message;
}

bool Membership::IsFailing() const {
  return failing_since_ && now_ - *failing_since_ >= kNotice;
}

bool Membership::IsRegistered() const {
  return lease_ != kNoLease && FindHolder() == Holder::kSelf && now_ < lease_end_;
}

void Membership::ReportStatus() {
  const Shown now{.registered = IsRegistered(),
                  .reachable = ever_answered_ && !IsFailing(),
                  .failing = IsFailing(),
                  .taken = FindHolder() == Holder::kOther,
                  .strange = strange_};
  if (now == shown_) return;
  shown_ = now;
  shown_since_ = now_;
  listener_.OnStatus(status());
}

MembershipStatus Membership::status() const {
  return {.registered = shown_.registered,
          .reachable = shown_.reachable,
          .since = shown_since_,
          .registration = RegistrationWords(),
          .store = StoreWords()};
}

std::string Membership::RegistrationWords() const {
  if (leaving_) return "this node gave its name back";
  if (IsRegistered()) return "registered as " + options_.self.name;
  if (FindHolder() != Holder::kOther) return "not registered yet as " + options_.self.name;
  if (!own_record_) {
    return "not registered: " + key_ + " in the store holds no node's record: delete that key";
  }
  return "not registered: another node of this name is alive, or was lately, at " +
         own_record_->address + " (incarnation " +
         ToHex(own_record_->incarnation).substr(0, kShownHex) +
         "): this one waits until that is gone; stop it, or give one of them another name";
}

std::string Membership::StoreWords() const {
  std::string words = store_.Describe();
  if (failing_since_) {
    words += " does not answer since " + SecondsText(now_ - *failing_since_) + " (" + failure_ +
             "); the nodes that are known stay known";
  } else {
    words += ever_answered_ ? " answers" : " is being asked";
  }
  if (strange_) words += "; it answered with keys that were not asked for, which are ignored";
  if (table_.overflowed()) {
    words += "; more nodes are registered there than the " +
             std::to_string(options_.table.nodes_max) + " that are looked at";
  }
  return words;
}

}  // namespace ravenstore::cluster
