#include "client/named_sets.h"

#include <algorithm>
#include <utility>

#include "client/lease.h"
#include "ipc/clock.h"

namespace ravenstore::client {

using core::Bytes;
using core::Error;
using core::ErrorCode;
using core::Result;
using core::Status;
using core::Tick;

namespace {

uint64_t NanosecondsOf(Tick at) {
  return static_cast<uint64_t>(at.time_since_epoch().count());
}

bool HaveOneLayout(const wire::SetOpened& one, const wire::SetOpened& other) {
  return one.layout == other.layout &&
         std::equal(one.tensors.begin(), one.tensors.end(), other.tensors.begin(),
                    other.tensors.end(), [](const wire::SetTensor& a, const wire::SetTensor& b) {
                      return a.device == b.device && a.bytes == b.bytes && a.pages == b.pages &&
                             a.page_bytes == b.page_bytes && a.offset == b.offset;
                    });
}

Result<wire::SetOpened> Ask(Session& session, const std::string& name, const SetOptions& options) {
  return session.calls().Ask<wire::SetOpened>(
      {.request = 0,
       .body = wire::OpenSet{name, options.version, options.least_version,
                             NanosecondsOf(options.deadline), options.may_load}},
      DeadlineAfter(std::max(options.deadline, ipc::Now()), kGrace),
      "the daemon did not say whether there is such a set");
}

}  // namespace

Result<uint64_t> SealSet(Session& session, const std::string& name, uint64_t load,
                         uint64_t layout) {
  RAVEN_RETURN_IF_ERROR(session.CheckUsable());
  const Tick deadline = DeadlineAfter(ipc::Now(), session.timeout());
  if (!session.streams().AwaitTickets(deadline)) {
    return Error{ErrorCode::kTimedOut,
                 "work that uses the store's tensors did not end in time: they are no set yet"};
  }
  RAVEN_ASSIGN_OR_RETURN(
      const auto sealed,
      session.calls().Ask<wire::SetSealed>(
          {.request = 0, .body = wire::SealSet{name, load, layout}},
          DeadlineAfter(deadline, kGrace), "the daemon did not say whether the set is sealed"));
  session.HandOver();
  return sealed.version;
}

Status DropSet(Session& session, const std::string& name, uint64_t version) {
  RAVEN_RETURN_IF_ERROR(session.CheckUsable());
  const auto dropped =
      session.calls().Ask<wire::SetDropped>({.request = 0, .body = wire::DropSet{name, version}},
                                            DeadlineAfter(ipc::Now(), session.timeout()),
                                            "the daemon did not say whether the set is dropped");
  return dropped.ok() ? core::Ok() : dropped.error();
}

OpenedSet::OpenedSet(Session& session, std::string name, wire::SetOpened opened)
    : session_(session),
      name_(std::move(name)),
      opened_(std::move(opened)),
      mappings_(opened_.tensors.size()) {}

Result<std::unique_ptr<OpenedSet>> OpenedSet::Open(Session& session, const std::string& name,
                                                   const SetOptions& options, uint64_t* load) {
  RAVEN_RETURN_IF_ERROR(session.CheckUsable());
  RAVEN_ASSIGN_OR_RETURN(wire::SetOpened opened, Ask(session, name, options));
  *load = opened.load;
  if (opened.load != 0) return std::unique_ptr<OpenedSet>();
  return std::unique_ptr<OpenedSet>(new OpenedSet(session, name, std::move(opened)));
}

OpenedSet::~OpenedSet() {
  // What cannot be unmapped stays so until the process ends.
  static_cast<void>(EndUse());
  Close(opened_.open);
}

void OpenedSet::Close(uint64_t open) {
  // A daemon that does not hear it learns it from the end of the connection.
  static_cast<void>(session_.calls().Send({.request = 0, .body = wire::CloseSet{open}}));
}

uint64_t OpenedSet::version() const {
  const std::lock_guard lock(mutex_);
  return opened_.version;
}

std::vector<OpenedSet::Part> OpenedSet::parts() const {
  const std::lock_guard lock(mutex_);
  std::vector<Part> parts;
  for (size_t i = 0; i < mappings_.size(); ++i) {
    const wire::SetTensor& tensor = opened_.tensors[i];
    const ClientDevice* const device = session_.devices().OfDaemon(tensor.device);
    const auto& range = mappings_[i].range;
    parts.push_back({.device = device == nullptr ? -1 : device->local_ordinal(),
                     .address = range == nullptr ? nullptr : range->base() + tensor.offset,
                     .bytes = tensor.bytes});
  }
  return parts;
}

Status OpenedSet::Use(Tick deadline) {
  const std::lock_guard lock(mutex_);
  return UseLocked(deadline);
}

Status OpenedSet::EndUse() {
  const std::lock_guard lock(mutex_);
  return EndUseLocked();
}

Status OpenedSet::AskForUse(uint64_t open, Tick deadline) {
  const auto used = session_.calls().Ask<wire::SetUsed>(
      {.request = 0, .body = wire::UseSet{open, NanosecondsOf(deadline)}},
      DeadlineAfter(deadline, kGrace), "the daemon did not say whether the set is in use");
  return used.ok() ? core::Ok() : used.error();
}

Status OpenedSet::UseLocked(Tick deadline) {
  RAVEN_RETURN_IF_ERROR(session_.CheckUsable());
  if (is_used_) return core::Ok();
  RAVEN_RETURN_IF_ERROR(AskForUse(opened_.open, deadline));
  return MapAll(deadline);
}

Status OpenedSet::EndUseLocked() {
  if (!is_used_) return core::Ok();
  // Pages that stay mapped here stay where they are.
  RAVEN_RETURN_IF_ERROR(UnmapAll());
  is_used_ = false;
  const auto ended = session_.calls().Ask<wire::SetUseEnded>(
      {.request = 0, .body = wire::EndUseOfSet{opened_.open}},
      DeadlineAfter(ipc::Now(), session_.timeout()),
      "the daemon did not say whether the use of the set has ended");
  return ended.ok() ? core::Ok() : ended.error();
}

Status OpenedSet::MapAll(Tick deadline) {
  is_used_ = true;
  for (uint32_t i = 0; i < mappings_.size(); ++i) {
    Status mapped = Map(i, deadline);
    if (mapped.ok()) continue;
    static_cast<void>(EndUseLocked());
    return mapped;
  }
  return core::Ok();
}

Status OpenedSet::Map(uint32_t index, Tick deadline) {
  const wire::SetTensor& tensor = opened_.tensors[index];
  Mapping& mapping = mappings_[index];
  if (mapping.range == nullptr) {
    mapping.device = session_.devices().OfDaemon(tensor.device);
    if (mapping.device == nullptr) {
      return Error{ErrorCode::kNotFound, "the set is on device " + std::to_string(tensor.device) +
                                             " of the daemon, which this process does not see "
                                             "(CUDA_VISIBLE_DEVICES)"};
    }
    RAVEN_ASSIGN_OR_RETURN(mapping.range, mapping.device->device().ReserveVaRange(
                                              Bytes(tensor.page_bytes * tensor.pages)));
  }
  const Bytes page(tensor.page_bytes);
  while (mapping.mapped < tensor.pages) {
    std::vector<ipc::UniqueFd> descriptors;
    const auto exported = session_.calls().Ask<wire::SetPagesExported>(
        {.request = 0, .body = wire::SetPages{opened_.open, index, mapping.mapped}},
        DeadlineAfter(deadline, kGrace), "the daemon did not give the set's pages", &descriptors);
    if (!exported.ok()) return exported.error();
    if (descriptors.empty() || descriptors.size() > tensor.pages - mapping.mapped)
      return Error{ErrorCode::kCorrupt, "the daemon gave another number of the set's pages"};
    for (ipc::UniqueFd& descriptor : descriptors) {
      RAVEN_ASSIGN_OR_RETURN(auto memory,
                             mapping.device->device().ImportMemory(std::move(descriptor), page));
      RAVEN_RETURN_IF_ERROR(mapping.range->MapReadOnly(page * mapping.mapped, std::move(memory)));
      ++mapping.mapped;
    }
  }
  return core::Ok();
}

Status OpenedSet::UnmapAll() {
  for (size_t i = 0; i < mappings_.size(); ++i) {
    Mapping& mapping = mappings_[i];
    const Bytes page(opened_.tensors[i].page_bytes);
    for (; mapping.mapped > 0; --mapping.mapped)
      RAVEN_RETURN_IF_ERROR(mapping.range->Unmap(page * (mapping.mapped - 1)));
  }
  return core::Ok();
}

Status OpenedSet::Advance(uint64_t least_version, Tick deadline) {
  const std::lock_guard lock(mutex_);
  RAVEN_RETURN_IF_ERROR(session_.CheckUsable());
  RAVEN_ASSIGN_OR_RETURN(
      wire::SetOpened next,
      Ask(session_, name_, {.least_version = least_version, .deadline = deadline}));
  const bool was_used = is_used_;
  const auto prepare = [&]() -> Status {
    if (!HaveOneLayout(opened_, next)) {
      return Error{ErrorCode::kInvalidArgument, "version " + std::to_string(next.version) +
                                                    " of the set '" + name_ +
                                                    "' has another layout: open it by itself"};
    }
    // Before this one is left: the new one may find no room.
    if (was_used) RAVEN_RETURN_IF_ERROR(AskForUse(next.open, deadline));
    return EndUseLocked();
  };
  if (Status prepared = prepare(); !prepared.ok()) {
    Close(next.open);
    return prepared;
  }
  Close(std::exchange(opened_, std::move(next)).open);
  return was_used ? MapAll(deadline) : core::Ok();
}

}  // namespace ravenstore::client
