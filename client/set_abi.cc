// The C ABI of named sets.
#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "client/last_error.h"
#include "client/lease.h"
#include "client/named_sets.h"
#include "client/ravenstore.h"
#include "client/session.h"
#include "ipc/clock.h"

namespace {

namespace client = ravenstore::client;
namespace core = ravenstore::core;
namespace ipc = ravenstore::ipc;
using client::BadArgument;
using client::Guard;
using client::OpenedSet;
using client::Session;
using core::Status;

// What the handle is: an open, and the timeout of its store.
struct Handle {
  std::unique_ptr<OpenedSet> set;
  core::Duration timeout{};
};

Session* SessionOf(ravenstore_store_t* store) {
  return reinterpret_cast<Session*>(store);
}
Handle* HandleOf(ravenstore_set_t* set) {
  return reinterpret_cast<Handle*>(set);
}
const Handle* HandleOf(const ravenstore_set_t* set) {
  return reinterpret_cast<const Handle*>(set);
}

core::Tick DeadlineOf(uint64_t timeout_ns, core::Duration usual) {
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max() / 2;
  const core::Duration asked(static_cast<int64_t>(std::min(timeout_ns, kMost)));
  return client::DeadlineAfter(ipc::Now(), timeout_ns == 0 ? usual : asked);
}

Status CheckStore(const ravenstore_store_t* store, const char* name) {
  if (store == nullptr) return BadArgument("the store is NULL");
  if (name == nullptr || *name == 0) return BadArgument("a set needs a name");
  if (!client::wire::IsUtf8(name)) return BadArgument("a set's name must be UTF-8");
  return core::Ok();
}

Status CheckSet(const ravenstore_set_t* set) {
  return set == nullptr ? Status(BadArgument("the set is NULL")) : core::Ok();
}

}  // namespace

extern "C" {

ravenstore_code_t ravenstore_set_seal(ravenstore_store_t* store, const char* name, uint64_t load,
                                      uint64_t layout, uint64_t* version) {
  return Guard([&]() -> Status {
    RAVEN_RETURN_IF_ERROR(CheckStore(store, name));
    RAVEN_ASSIGN_OR_RETURN(const uint64_t sealed,
                           client::SealSet(*SessionOf(store), name, load, layout));
    if (version != nullptr) *version = sealed;
    return core::Ok();
  });
}

ravenstore_code_t ravenstore_set_drop(ravenstore_store_t* store, const char* name,
                                      uint64_t version) {
  return Guard([&]() -> Status {
    RAVEN_RETURN_IF_ERROR(CheckStore(store, name));
    return client::DropSet(*SessionOf(store), name, version);
  });
}

ravenstore_code_t ravenstore_set_open(ravenstore_store_t* store, const char* name,
                                      const ravenstore_set_options_t* given, ravenstore_set_t** set,
                                      uint64_t* load) {
  return Guard([&]() -> Status {
    if (set == nullptr) return BadArgument("the place for the set is NULL");
    *set = nullptr;
    if (load != nullptr) *load = 0;
    RAVEN_RETURN_IF_ERROR(CheckStore(store, name));
    ravenstore_set_options_t defaults{};
    RAVEN_ASSIGN_OR_RETURN(const ravenstore_set_options_t* const options,
                           client::Read(given, &defaults));
    RAVEN_RETURN_IF_ERROR(
        client::CheckFlags(options->flags, RAVENSTORE_MAY_LOAD | RAVENSTORE_SET_FAIL_FAST));
    const bool may_load = (options->flags & RAVENSTORE_MAY_LOAD) != 0;
    if (may_load && load == nullptr) return BadArgument("the place for the load is NULL");
    Session& session = *SessionOf(store);
    const bool waits = (options->flags & RAVENSTORE_SET_FAIL_FAST) == 0;
    uint64_t asked = 0;
    RAVEN_ASSIGN_OR_RETURN(
        auto opened,
        OpenedSet::Open(
            session, name,
            {.version = options->version,
             .least_version = options->least_version,
             .deadline = waits ? DeadlineOf(options->timeout_ns, session.timeout()) : core::Tick{},
             .may_load = may_load},
            &asked));
    if (load != nullptr) *load = asked;
    if (opened != nullptr) {
      *set = reinterpret_cast<ravenstore_set_t*>(
          new Handle{.set = std::move(opened), .timeout = session.timeout()});
    }
    return core::Ok();
  });
}

void ravenstore_set_close(ravenstore_set_t* set) {
  static_cast<void>(Guard([&]() -> Status {
    delete HandleOf(set);
    return core::Ok();
  }));
}

ravenstore_code_t ravenstore_set_use(ravenstore_set_t* set, uint64_t timeout_ns) {
  return Guard([&]() -> Status {
    RAVEN_RETURN_IF_ERROR(CheckSet(set));
    return HandleOf(set)->set->Use(DeadlineOf(timeout_ns, HandleOf(set)->timeout));
  });
}

ravenstore_code_t ravenstore_set_end_use(ravenstore_set_t* set) {
  return Guard([&]() -> Status {
    RAVEN_RETURN_IF_ERROR(CheckSet(set));
    return HandleOf(set)->set->EndUse();
  });
}

ravenstore_code_t ravenstore_set_advance(ravenstore_set_t* set, uint64_t least_version,
                                         uint64_t timeout_ns) {
  return Guard([&]() -> Status {
    RAVEN_RETURN_IF_ERROR(CheckSet(set));
    return HandleOf(set)->set->Advance(least_version,
                                       DeadlineOf(timeout_ns, HandleOf(set)->timeout));
  });
}

uint64_t ravenstore_set_version(const ravenstore_set_t* set) {
  return set == nullptr ? 0 : HandleOf(set)->set->version();
}

size_t ravenstore_set_parts(const ravenstore_set_t* set) {
  return set == nullptr ? 0 : HandleOf(set)->set->parts().size();
}

ravenstore_code_t ravenstore_set_get_part(const ravenstore_set_t* set, size_t index,
                                          ravenstore_set_part_t* part) {
  return Guard([&]() -> Status {
    RAVEN_RETURN_IF_ERROR(CheckSet(set));
    if (part == nullptr || part->struct_size < sizeof(size_t))
      return BadArgument("the place for the part is NULL, or has no struct_size");
    const std::vector<OpenedSet::Part> parts = HandleOf(set)->set->parts();
    if (index >= parts.size()) return BadArgument("the set has no such part");
    ravenstore_set_part_t filled{};
    filled.struct_size = part->struct_size;
    filled.bytes = parts[index].bytes;
    filled.address = parts[index].address;
    filled.device = parts[index].device;
    std::memcpy(part, &filled, std::min(part->struct_size, sizeof(filled)));
    return core::Ok();
  });
}

}  // extern "C"
