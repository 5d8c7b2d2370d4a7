#include "daemon/named_sets.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <optional>

#include "core/check.h"
#include "ipc/clock.h"
#include "proto/packet.h"

namespace ravenstore::daemon {

using core::Bytes;
using core::ClientId;
using core::Error;
using core::ErrorCode;
using core::ToInt;

namespace {

// Sets on one page of a list, and processes of each.
constexpr size_t kListed = 64;
constexpr int kPidsListed = 16;
// The kernel's stand-in for users that a namespace does not know.
constexpr uid_t kOverflowUser = 65534;
// A set comes to its devices within that at most, whatever its user says.
constexpr auto kUseMost = std::chrono::minutes(10);

core::Tick DeadlineOf(uint64_t deadline_ns) {
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  return core::Tick(core::Duration(static_cast<int64_t>(std::min(deadline_ns, kMost))));
}

std::string Quoted(const std::string& name) {
  return "'" + PrintableName(name) + "'";
}

}  // namespace

bool NamedSets::Handle(const Caller& caller, const proto::ClientPacket& packet) {
  using Body = proto::ClientPacket;
  const uint64_t request = packet.request();
  switch (packet.body_case()) {
    case Body::kSealSet: HandleSeal(caller, request, packet.seal_set()); return true;
    case Body::kOpenSet: HandleOpen(caller, request, packet.open_set()); return true;
    case Body::kUseSet: HandleUse(caller, request, packet.use_set()); return true;
    case Body::kSetPages: HandlePages(caller, request, packet.set_pages()); return true;
    case Body::kEndUseOfSet: HandleEndUse(caller, request, packet.end_use_of_set()); return true;
    case Body::kCloseSet:
      if (Find(caller, request, packet.close_set().open()) != nullptr)
        Close(packet.close_set().open());
      return true;
    case Body::kDropSet: HandleDrop(caller, request, packet.drop_set()); return true;
    case Body::kListSets: HandleList(caller, request, packet.list_sets()); return true;
    default: return false;
  }
}

void NamedSets::Answer(const Question& question, proto::DaemonPacket packet) {
  packet.set_request(question.request);
  connections_.Send(question.key, packet, {});
}

core::Status NamedSets::CheckName(const Caller& caller, const std::string& name) {
  const uid_t uid = caller.peer.uid;
  // The same number may stand for users of several namespaces.
  if (uid == kOverflowUser || (uid == 0 && caller.peer.pid == 0)) {
    return Error{ErrorCode::kPermission, "sets are shared by the processes of one user, and user " +
                                             std::to_string(uid) +
                                             " of another namespace may be several"};
  }
  if (name.empty() || name.size() > kNameBytesMax) {
    return Error{ErrorCode::kInvalidArgument,
                 "a set's name has 1 to " + std::to_string(kNameBytesMax) + " bytes"};
  }
  return core::Ok();
}

// ---- Publishing.

void NamedSets::HandleSeal(const Caller& caller, uint64_t request, const proto::SealSet& seal) {
  const Question question{caller.key, request};
  if (const core::Status checked = CheckName(caller, seal.name()); !checked.ok())
    return Fail(question, checked.error());
  if (caller.client == ClientId{})
    return Fail(question, {ErrorCode::kWrongState, "this connection has no tensors to hand over"});
  const auto name = names_.find({caller.peer.uid, seal.name()});
  const uint64_t load = name == names_.end() ? 0 : name->second.load;
  if (seal.load() != 0 ? seal.load() != load : load != 0) {
    return Fail(question,
                {ErrorCode::kWrongState,
                 seal.load() == 0 ? "another process loads " + Quoted(seal.name())
                                  : "this load of " + Quoted(seal.name()) + " has ended"});
  }
  connections_.PostToLoop(
      caller.key, Connections::kQuestion,
      [this, question, client = caller.client, uid = caller.peer.uid, seal] {
        auto tensors = std::make_shared<core::Result<std::vector<SealedClients::Tensor>>>(
            loop_.sealed().Seal(client));
        mailbox_.Post([this, question, client, uid, seal, tensors] {
          Sealed(question, client, {uid, seal.name()}, seal, std::move(*tensors));
        });
      });
}

void NamedSets::Sealed(const Question& question, ClientId client, const Name& name,
                       const proto::SealSet& seal,
                       core::Result<std::vector<SealedClients::Tensor>> tensors) {
  if (!tensors.ok()) return Fail(question, tensors.error());
  // Its process has ended meanwhile, and the client with it.
  if (!clients_.HandOver(question.key, client)) return;
  Names& names = names_[name];
  if (seal.load() != 0 && names.load == seal.load()) names.load = names.load_by = 0;
  const uint64_t version = ++names.last_version;
  ++names.sets;
  Set& set = sets_[{name, version}];
  set.name = name;
  set.version = version;
  set.client = client;
  set.layout = seal.layout();
  set.tensors = *std::move(tensors);
  for (const SealedClients::Tensor& tensor : set.tensors) set.bytes += tensor.bytes;
  by_client_[client] = &set;
  proto::DaemonPacket packet;
  packet.mutable_set_sealed()->set_version(version);
  packet.mutable_set_sealed()->set_open(AddOpen(question.key, &set));
  Answer(question, std::move(packet));
  // Older versions that were only kept are of no use.
  for (auto it = unopened_.begin(); it != unopened_.end();) {
    Set* const kept = *it++;
    if (kept->name == name) EndIfUnopened(kept);
  }
  Retry(name);
}

// ---- Opening.

void NamedSets::HandleOpen(const Caller& caller, uint64_t request, const proto::OpenSet& wanted) {
  const Question question{caller.key, request};
  if (const core::Status checked = CheckName(caller, wanted.name()); !checked.ok())
    return Fail(question, checked.error());
  const auto opens = of_connection_.find(caller.key);
  if (opens != of_connection_.end() && opens->second.size() >= kOpensMost) {
    return Fail(question, {ErrorCode::kLimit, "this connection has " + std::to_string(kOpensMost) +
                                                  " sets open: close some"});
  }
  const Name name{caller.peer.uid, wanted.name()};
  if (TryOpen(question, name, wanted)) return;
  const core::Tick deadline = DeadlineOf(wanted.deadline_ns());
  if (wanted.deadline_ns() == 0) {
    return Fail(question,
                {ErrorCode::kNotFound, "there is no set " + Quoted(wanted.name()) +
                                           (wanted.version() == 0 ? "" : " of that version") +
                                           ": ravenctl ls --named shows those there are"});
  }
  const auto waiting = std::count_if(waits_.begin(), waits_.end(), [&](const Wait& wait) {
    return wait.question.key == caller.key;
  });
  if (static_cast<size_t>(waiting) >= kWaitsMost) {
    return Fail(question, {ErrorCode::kLimit, "this connection waits for " +
                                                  std::to_string(kWaitsMost) + " sets already"});
  }
  waits_.push_back({question, name, wanted, deadline});
}

NamedSets::Set* NamedSets::FindSet(const Name& name, const proto::OpenSet& wanted) {
  const auto names = names_.find(name);
  if (names == names_.end()) return nullptr;
  // The newest that is there, unless a version is named.
  const uint64_t version = wanted.version() != 0 ? wanted.version() : names->second.last_version;
  const auto found = sets_.find({name, version});
  if (found == sets_.end() || found->second.is_dropped) return nullptr;
  return version < wanted.least_version() ? nullptr : &found->second;
}

bool NamedSets::TryOpen(const Question& question, const Name& name, const proto::OpenSet& wanted) {
  proto::DaemonPacket packet;
  proto::SetOpened& opened = *packet.mutable_set_opened();
  if (Set* const set = FindSet(name, wanted)) {
    opened.set_open(AddOpen(question.key, set));
    opened.set_version(set->version);
    opened.set_layout(set->layout);
    for (const SealedClients::Tensor& tensor : set->tensors) {
      proto::SetTensor& row = *opened.add_tensors();
      row.set_device(ToInt(tensor.device));
      row.set_bytes(tensor.bytes.count());
      row.set_page_bytes(tensor.page.count());
      row.set_offset(tensor.offset.count());
      row.set_pages(tensor.pages);
    }
    Answer(question, std::move(packet));
    return true;
  }
  if (!wanted.may_load()) return false;
  Names& names = names_[name];
  if (names.load != 0) return false;
  names.load = next_++;
  names.load_by = question.key;
  opened.set_load(names.load);
  Answer(question, std::move(packet));
  return true;
}

void NamedSets::Retry(const Name& name) {
  for (auto wait = waits_.begin(); wait != waits_.end();) {
    const auto next = std::next(wait);
    if (wait->name == name && TryOpen(wait->question, name, wait->wanted)) waits_.erase(wait);
    wait = next;
  }
  ForgetName(name);
}

core::Tick NamedSets::due() const {
  core::Tick due = core::kNever;
  for (const Wait& wait : waits_) due = std::min(due, wait.deadline);
  return due;
}

void NamedSets::OnTime(core::Tick now) {
  for (auto wait = waits_.begin(); wait != waits_.end();) {
    const auto next = std::next(wait);
    if (wait->deadline <= now) {
      const auto names = names_.find(wait->name);
      const bool is_loaded = names != names_.end() && names->second.load != 0;
      Fail(wait->question,
           {ErrorCode::kTimedOut, "the set " + Quoted(wait->name.second) + " did not come in time" +
                                      (is_loaded ? ": another process still loads it" : "")});
      waits_.erase(wait);
    }
    wait = next;
  }
}

// ---- Use.

NamedSets::Open* NamedSets::Find(const Caller& caller, uint64_t request, uint64_t open) {
  const auto found = opens_.find(open);
  if (found != opens_.end() && found->second.key == caller.key) return &found->second;
  Fail({caller.key, request}, {ErrorCode::kNotFound, "this connection has no such set open"});
  return nullptr;
}

void NamedSets::HandleUse(const Caller& caller, uint64_t request, const proto::UseSet& use) {
  Open* const open = Find(caller, request, use.open());
  if (open == nullptr) return;
  const Question question{caller.key, request};
  Set& set = *open->set;
  const auto waits = [&](const auto& user) { return user.second == use.open(); };
  if (open->is_used || std::any_of(set.users.begin(), set.users.end(), waits))
    return Fail(question, {ErrorCode::kWrongState, "the set is in use already"});
  ++set.uses;
  if (set.state == Set::State::kUsed) {
    open->is_used = true;
    proto::DaemonPacket packet;
    packet.mutable_set_used();
    return Answer(question, std::move(packet));
  }
  set.users.emplace_back(question, use.open());
  if (set.state == Set::State::kFetching) return;
  set.state = Set::State::kFetching;
  const core::Tick deadline = std::min(DeadlineOf(use.deadline_ns()), ipc::Now() + kUseMost);
  loop_.mailbox().Post([this, client = set.client, deadline] {
    loop_.sealed().Use(client, deadline, [this, client](const core::Status& status) {
      mailbox_.Post([this, client, status] { UseBegun(client, status); });
    });
  });
}

void NamedSets::UseBegun(ClientId client, const core::Status& status) {
  const auto found = by_client_.find(client);
  if (found == by_client_.end()) return;
  Set& set = *found->second;
  set.state = status.ok() ? Set::State::kUsed : Set::State::kUnused;
  for (const auto& [question, open] : std::exchange(set.users, {})) {
    if (!status.ok()) {
      --set.uses;
      Fail(question, status.error());
      continue;
    }
    opens_.at(open).is_used = true;
    proto::DaemonPacket packet;
    packet.mutable_set_used();
    Answer(question, std::move(packet));
  }
  // Those that waited have ended.
  if (set.uses == 0 && set.state == Set::State::kUsed) {
    set.state = Set::State::kUnused;
    loop_.mailbox().Post([this, client] { loop_.sealed().EndUse(client); });
  }
  EndIfUnopened(&set);
}

void NamedSets::HandlePages(const Caller& caller, uint64_t request, const proto::SetPages& pages) {
  const Open* const open = Find(caller, request, pages.open());
  if (open == nullptr) return;
  const Question question{caller.key, request};
  if (!open->is_used) return Fail(question, {ErrorCode::kWrongState, "the set is not in use"});
  const auto reply = [this, question](core::Result<std::vector<ipc::UniqueFd>> exported) {
    auto descriptors =
        std::make_shared<core::Result<std::vector<ipc::UniqueFd>>>(std::move(exported));
    mailbox_.Post([this, question, descriptors] {
      if (!descriptors->ok()) return Fail(question, descriptors->error());
      proto::DaemonPacket packet;
      packet.set_request(question.request);
      packet.mutable_set_pages_exported();
      connections_.Send(question.key, packet, *std::move(*descriptors));
    });
  };
  connections_.PostToLoop(caller.key, Connections::kQuestion,
                          [this, client = open->set->client, pages, reply] {
                            loop_.sealed().Export(client, pages.tensor(), pages.first(),
                                                  proto::kControlDescriptorsMax, reply);
                          });
}

void NamedSets::HandleEndUse(const Caller& caller, uint64_t request,
                             const proto::EndUseOfSet& end) {
  const Open* const open = Find(caller, request, end.open());
  if (open == nullptr) return;
  if (!open->is_used)
    return Fail({caller.key, request}, {ErrorCode::kWrongState, "the set is not in use"});
  EndUse(end.open());
  proto::DaemonPacket packet;
  packet.mutable_set_use_ended();
  Answer({caller.key, request}, std::move(packet));
}

void NamedSets::EndUse(uint64_t id) {
  Open& open = opens_.at(id);
  Set& set = *open.set;
  const auto waiting = std::find_if(set.users.begin(), set.users.end(),
                                    [&](const auto& user) { return user.second == id; });
  if (waiting != set.users.end()) {
    set.users.erase(waiting);
    --set.uses;
  } else if (std::exchange(open.is_used, false)) {
    --set.uses;
  }
  if (set.uses > 0 || set.state != Set::State::kUsed) return;
  set.state = Set::State::kUnused;
  loop_.mailbox().Post([this, client = set.client] { loop_.sealed().EndUse(client); });
}

// ---- Ends.

uint64_t NamedSets::AddOpen(uint64_t key, Set* set) {
  std::erase(unopened_, set);
  ++set->opens;
  const uint64_t open = next_++;
  opens_[open] = {.key = key, .set = set};
  of_connection_[key].push_back(open);
  return open;
}

void NamedSets::Close(uint64_t id) {
  EndUse(id);
  const Open open = opens_.extract(id).mapped();
  auto of = of_connection_.find(open.key);
  std::erase(of->second, id);
  if (of->second.empty()) of_connection_.erase(of);
  --open.set->opens;
  EndIfUnopened(open.set);
}

void NamedSets::EndIfUnopened(Set* set) {
  // One that comes ends once it is there, or is not.
  if (set->opens > 0 || set->state == Set::State::kFetching) return;
  std::erase(unopened_, set);
  const bool is_newest = names_.at(set->name).last_version == set->version;
  if (set->is_dropped || !is_newest || set->bytes > kept_) return End(set);
  unopened_.push_back(set);
  Bytes kept;
  for (const Set* const each : unopened_) kept += each->bytes;
  while (kept > kept_) {
    Set* const oldest = unopened_.front();
    kept -= oldest->bytes;
    unopened_.pop_front();
    End(oldest);
  }
}

void NamedSets::End(Set* set) {
  const Name name = set->name;
  by_client_.erase(set->client);
  clients_.End(set->client, core::TenantId{name.first});
  sets_.erase({name, set->version});
  --names_.at(name).sets;
  ForgetName(name);
}

void NamedSets::ForgetName(const Name& name) {
  const auto found = names_.find(name);
  if (found != names_.end() && found->second.sets == 0 && found->second.load == 0)
    names_.erase(found);
}

void NamedSets::Forget(uint64_t key) {
  waits_.remove_if([key](const Wait& wait) { return wait.question.key == key; });
  if (const auto opens = of_connection_.find(key); opens != of_connection_.end()) {
    for (const uint64_t open : std::vector(opens->second)) Close(open);
  }
  std::vector<Name> loads;
  for (auto& [name, names] : names_) {
    if (names.load_by != key || names.load == 0) continue;
    names.load = names.load_by = 0;
    loads.push_back(name);
  }
  for (const Name& name : loads) Retry(name);
}

void NamedSets::HandleDrop(const Caller& caller, uint64_t request, const proto::DropSet& drop) {
  const Name name{caller.peer.uid, drop.name()};
  uint64_t dropped = 0;
  for (auto it = sets_.lower_bound({name, drop.version()}); it != sets_.end();) {
    Set& set = it->second;
    ++it;
    if (set.name != name || (drop.version() != 0 && set.version != drop.version())) break;
    if (std::exchange(set.is_dropped, true)) continue;
    ++dropped;
    EndIfUnopened(&set);
  }
  if (dropped == 0) {
    return Fail({caller.key, request},
                {ErrorCode::kNotFound, "there is no set " + Quoted(drop.name())});
  }
  proto::DaemonPacket packet;
  packet.mutable_set_dropped()->set_sets(dropped);
  Answer({caller.key, request}, std::move(packet));
}

void NamedSets::AddPids(const Set& set, proto::SetRow* row) {
  for (const auto& [key, opens] : of_connection_) {
    const bool has_it = std::any_of(opens.begin(), opens.end(),
                                    [&](uint64_t open) { return opens_.at(open).set == &set; });
    if (!has_it) continue;
    if (row->pids_size() == kPidsListed) return;
    if (const Caller* const caller = connections_.FindCaller(key)) row->add_pids(caller->peer.pid);
  }
}

void NamedSets::HandleList(const Caller& caller, uint64_t request, const proto::ListSets& list) {
  proto::DaemonPacket packet;
  proto::Sets& sets = *packet.mutable_sets();
  const Audience audience = caller.audience();
  // The cursor is the client's number: sets that come and go between two pages change no other.
  for (auto it = by_client_.lower_bound(ClientId{static_cast<uint32_t>(list.cursor())});
       it != by_client_.end(); ++it) {
    const Set& set = *it->second;
    if (audience && *audience != set.name.first) continue;
    if (static_cast<size_t>(sets.sets_size()) == kListed) {
      sets.set_next_cursor(ToInt(set.client));
      break;
    }
    proto::SetRow& row = *sets.add_sets();
    row.set_name(set.name.second);
    row.set_version(set.version);
    row.set_uid(set.name.first);
    row.set_client(ToInt(set.client));
    row.set_bytes(set.bytes.count());
    row.set_opens(set.opens);
    row.set_uses(set.uses);
    AddPids(set, &row);
  }
  Answer({caller.key, request}, std::move(packet));
}

}  // namespace ravenstore::daemon
