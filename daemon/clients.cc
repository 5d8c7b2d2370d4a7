#include "daemon/clients.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "daemon/packets.h"
#include "ipc/clock.h"
#include "proto/layout.h"
#include "proto/version.h"

namespace ravenstore::daemon {

using core::ClientId;
using core::Error;
using core::ErrorCode;
using core::ToInt;

namespace {

// Of a turn (daemon/turn_budget.h).
constexpr uint32_t kUnitsOfAttach = 16;
// Its segment and its doorbell.
constexpr size_t kDescriptorsOfClient = 2;

// The Welcome's: the segment's and the doorbell's, as long as the packet waits.
core::Result<std::vector<ipc::UniqueFd>> DescriptorsFor(const Attachment& attachment) {
  std::vector<ipc::UniqueFd> descriptors;
  for (const int descriptor : {attachment.segment.fd(), attachment.doorbell.fd()}) {
    descriptors.emplace_back(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
    if (!descriptors.back()) {
      return Error{ErrorCode::kLimit,
                   "the daemon has no file descriptors left: end some jobs, or raise LimitNOFILE "
                   "of its service"};
    }
  }
  return descriptors;
}

}  // namespace

Clients::Clients(Options options)
    : options_(std::move(options)),
      places_("clients (clients_max of the configuration)", options_.clients_max) {}

void Clients::HandleHello(Caller& caller, uint64_t request, const proto::Hello& hello) {
  const auto fail = [&](const Error& why) { options_.connections->Fail(caller.key, request, why); };
  if (caller.greeted) return fail({ErrorCode::kWrongState, "Hello was said already"});
  if (hello.protocol_version() != proto::kProtocolVersion) {
    return fail({ErrorCode::kVersionMismatch,
                 "this daemon speaks protocol " + std::to_string(proto::kProtocolVersion) +
                     ", the client " + std::to_string(hello.protocol_version()) + " (library " +
                     hello.library_version() + "): install the same version of both"});
  }
  if (hello.control_only()) {
    caller.greeted = true;
    return options_.connections->Send(caller.key, Welcome(request, nullptr), {});
  }
  if (const core::Status place = TakePlace(caller); !place.ok()) return fail(place.error());
  options_.turns->Spend(caller.user(), kUnitsOfAttach);
  const auto give_up = [&](const Error& why) {
    GivePlace(caller.user());
    fail(why);
  };
  auto attachment = MakeAttachment(caller, hello);
  if (!attachment.ok()) return give_up(attachment.error());
  auto descriptors = DescriptorsFor(**attachment);
  if (!descriptors.ok()) return give_up(descriptors.error());
  // Nothing fails from here on: the loop sees only clients that get a Welcome.
  caller.greeted = true;
  caller.client = (*attachment)->id;
  keys_[caller.client] = caller.key;
  if (options_.log->Allow(caller.peer.uid, ipc::Now()))
    spdlog::info("client {} attached: pid {}, uid {}, {}", ToInt(caller.client), caller.peer.pid,
                 caller.peer.uid, (*attachment)->name);
  // Posted before the Welcome goes out, so that the loop knows the client before its first request.
  options_.loop->mailbox().Post([loop = options_.loop, attachment = *attachment,
                                 budgets = options_.limits->Of(caller.peer.uid)] {
    loop->Apply(core::TenantLimits{attachment->tenant, budgets});
    loop->Attach(attachment);
  });
  options_.connections->Send(caller.key, Welcome(request, attachment->get()),
                             std::move(*descriptors));
}

core::Status Clients::TakePlace(const Caller& caller) {
  if (caller.reserved) {
    return Error{ErrorCode::kLimit,
                 "all connections of this user are taken; the last are kept for ravenctl"};
  }
  if (options_.single_user && places_.taken() > places_.Held(caller.user())) {
    return Error{ErrorCode::kLimit,
                 "this daemon serves one user at a time (limits.single_user of its configuration), "
                 "and another user's clients are attached: wait until they have ended"};
  }
  RAVEN_RETURN_IF_ERROR(places_.Take(caller.user()));
  core::Status descriptors = options_.descriptors->Take(caller.user(), kDescriptorsOfClient);
  if (!descriptors.ok()) places_.Give(caller.user());
  return descriptors;
}

void Clients::GivePlace(core::TenantId user) {
  places_.Give(user);
  options_.descriptors->Give(user, kDescriptorsOfClient);
}

core::Result<std::shared_ptr<Attachment>> Clients::MakeAttachment(const Caller& caller,
                                                                  const proto::Hello& hello) {
  const uint32_t id = *options_.next_client;
  RAVEN_ASSIGN_OR_RETURN(auto segment, ipc::ControlSegment::Create(id));
  RAVEN_ASSIGN_OR_RETURN(auto doorbell, ipc::Doorbell::Create());
  const core::Budgets& granted = options_.limits->Of(caller.peer.uid);
  const auto least = [](uint64_t asked, core::Bytes most) {
    return asked == 0 ? most : std::min(core::Bytes(asked), most);
  };
  core::Budgets budgets;
  budgets.device = least(hello.device_budget(), granted.device);
  budgets.host = least(hello.host_budget(), granted.host);
  auto attachment = std::make_shared<Attachment>(Attachment{ClientId{id},
                                                            caller.user(),
                                                            std::move(budgets),
                                                            caller.peer.pid,
                                                            caller.peer.uid,
                                                            PrintableName(hello.name()),
                                                            std::move(segment),
                                                            std::move(doorbell),
                                                            {},
                                                            hello.fixed_addresses()});
  attachment->arenas.resize(options_.devices.size());
  ++*options_.next_client;
  return attachment;
}

proto::DaemonPacket Clients::Welcome(uint64_t request, const Attachment* attachment) const {
  proto::DaemonPacket packet;
  packet.set_request(request);
  proto::Welcome* welcome = packet.mutable_welcome();
  welcome->set_protocol_version(proto::kProtocolVersion);
  welcome->set_backend(options_.backend);
  welcome->set_restart_timeout_ms(options_.restart_timeout_ms);
  welcome->set_daemon_version(proto::kVersion);
  for (size_t i = 0; i < options_.devices.size(); ++i) {
    const device::DeviceInfo& info = options_.devices[i]->info();
    proto::Device* device = welcome->add_devices();
    device->set_uuid(info.uuid);
    device->set_name(info.name);
    device->set_total_bytes(info.total.count());
    device->set_arena_bytes(options_.arenas[i].count());
    device->set_link_up(static_cast<uint64_t>(options_.links[i].up_bytes_per_second));
    device->set_link_down(static_cast<uint64_t>(options_.links[i].down_bytes_per_second));
  }
  if (attachment != nullptr) {
    welcome->set_client(ToInt(attachment->id));
    welcome->set_device_budget(attachment->budgets.device.count());
    welcome->set_host_budget(attachment->budgets.host.count());
  }
  return packet;
}

void Clients::HandleDetach(Caller& caller, uint64_t request) {
  if (caller.client == ClientId{}) {
    return options_.connections->Fail(
        caller.key, request, {ErrorCode::kWrongState, "this connection has no client to detach"});
  }
  if (options_.log->Allow(caller.peer.uid, ipc::Now()))
    spdlog::info("client {} detached", ToInt(caller.client));
  Leave(caller, [connections = options_.connections, key = caller.key, request] {
    proto::DaemonPacket answer;
    answer.set_request(request);
    answer.mutable_detached();
    connections->PostAnswer(key, std::move(answer));
  });
}

void Clients::Died(Caller& caller) {
  if (caller.client == ClientId{}) return;
  if (options_.log->Allow(caller.peer.uid, ipc::Now()))
    spdlog::info("client {} died: pid {}", ToInt(caller.client), caller.peer.pid);
  Leave(caller, [] {});
}

bool Clients::HandOver(uint64_t key, ClientId client) {
  Caller* const caller = options_.connections->FindCaller(key);
  if (caller == nullptr || caller->client != client) return false;
  keys_.erase(client);
  caller->client = ClientId{};
  return true;
}

void Clients::End(ClientId client, core::TenantId user) {
  Detach(client, user, [] {});
}

void Clients::Leave(Caller& caller, std::function<void()> done) {
  Detach(caller.client, caller.user(), std::move(done));
  keys_.erase(caller.client);
  caller.client = ClientId{};
}

void Clients::Detach(ClientId client, core::TenantId user, std::function<void()> done) {
  options_.loop->mailbox().Post([this, client, user, done = std::move(done)] {
    options_.loop->Detach(client, [this, user, done] {
      options_.mailbox->Post([this, user] { GivePlace(user); });
      done();
    });
  });
}

uint64_t Clients::KeyOf(ClientId client) const {
  const auto found = keys_.find(client);
  return found == keys_.end() ? 0 : found->second;
}

}  // namespace ravenstore::daemon
