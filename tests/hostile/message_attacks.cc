// Each message of the protocol, as often as the sockets take it and at its dearest: with all that
// the user may have for it to look at. hostile.py names the attack of each.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "client/client.h"
#include "tests/hostile/attacks.h"
#include "tests/hostile/raw.h"

namespace ravenstore::hostile {
namespace {

using std::chrono::milliseconds;

constexpr size_t kConnections = 64;
constexpr size_t kClients = 16;
constexpr uint32_t kTensors = 4096;
// A command's key (daemon/job_history.h), and how many of them the daemon remembers of a user.
constexpr size_t kKeyDigits = 32;
constexpr size_t kRecords = 512;

std::string KeyOf(size_t number) {
  char digits[kKeyDigits + 1];
  std::snprintf(digits, sizeof(digits), "%032zx", number);
  return digits;
}

std::vector<Connection> Greeted(AttackContext& context, size_t most) {
  std::vector<Connection> made;
  while (made.size() < most) {
    auto connection = Connection::Open(context.socket());
    if (!connection.ok()) {
      context.Refused(connection.error().message);
      break;
    }
    const auto answer = connection->Ask(HelloPacket(true));
    if (!answer || !answer->has_welcome()) {
      context.Refused(answer ? answer->failure().message() : "hung up");
      break;
    }
    made.push_back(std::move(*connection));
  }
  return made;
}

using Question = std::function<std::string()>;

// Sends questions until the sockets are full; answers are read and discarded.
void FloodOn(AttackContext& context, const std::vector<Connection*>& connections,
             const Question& question) {
  constexpr int kBurst = 32;
  context.Ready();
  while (context.running()) {
    bool any = false;
    for (Connection* connection : connections) {
      for (int i = 0; i < kBurst && connection->Send(question()); ++i) {
        any = true;
        context.AddDone();
      }
      connection->Drain();
    }
    if (!any) context.Pause(milliseconds(1));
  }
}

void Flood(AttackContext& context, const Question& question) {
  std::vector<Connection> made = Greeted(context, kConnections);
  std::vector<Connection*> connections;
  for (Connection& connection : made) connections.push_back(&connection);
  FloodOn(context, connections, question);
}

std::vector<RawClient> Attached(AttackContext& context, size_t most) {
  std::vector<RawClient> clients;
  while (clients.size() < most) {
    std::string why;
    auto client = RawClient::Attach(context.socket(), &why);
    if (!client) {
      context.Refused(why);
      break;
    }
    clients.push_back(std::move(*client));
  }
  return clients;
}

// By clients with tensors.
void FloodByClients(AttackContext& context, const Question& question) {
  std::vector<RawClient> clients = Attached(context, kClients);
  std::vector<Connection*> connections;
  for (RawClient& client : clients) {
    for (uint32_t slot = 0; slot < kTensors / kClients && context.running();)
      slot += client.Create(slot, KiB(4)) ? 1 : 0;
    connections.push_back(&client.connection());
  }
  FloodOn(context, connections, question);
}

// Always the same.
template <typename Fill>
Question Same(Fill fill) {
  proto::ClientPacket packet;
  packet.set_request(1);
  fill(packet);
  return [text = packet.SerializeAsString()] { return text; };
}

void FloodOfNames(AttackContext& context) {
  // Names of its own: 2^18 is a user's bound, and beyond it each is refused.
  const std::string prefix = "name of " + std::to_string(::getpid()) + " ";
  uint64_t next = 0;
  Flood(context, [&] { return InternPacket(prefix + std::to_string(next++)); });
}

// Of some names, some of which it is to load; half of the others wait for ever.
void FloodOfSetOpens(AttackContext& context) {
  uint64_t n = 0;
  FloodByClients(context, [&n] {
    proto::ClientPacket packet;
    packet.set_request(1);
    proto::OpenSet& open = *packet.mutable_open_set();
    open.set_name("set " + std::to_string(++n % 1000));
    open.set_may_load(n % 3 == 0);
    open.set_deadline_ns(n % 2 == 0 ? 1 : ~uint64_t{0});
    return packet.SerializeAsString();
  });
}

// Packets that cannot be parsed, or that no client may send.
void FloodOfNonsense(AttackContext& context) {
  const std::string nonsense(60000, '\xff');
  Flood(context, [&] { return nonsense; });
}

// With tensors of its own to list.
void FloodOfTensors(AttackContext& context) {
  std::string why;
  auto client = RawClient::Attach(context.socket(), &why);
  for (uint32_t slot = 0; client && slot < kTensors && context.running();)
    slot += client->Create(slot, KiB(4)) ? 1 : 0;
  Flood(context, Same([](auto& packet) { packet.mutable_list_tensors(); }));
}

void FloodOfClients(AttackContext& context) {
  const std::vector<RawClient> clients = Attached(context, 256);
  Flood(context, Same([](auto& packet) { packet.mutable_list_clients(); }));
}

void FloodOfTensorExplanations(AttackContext& context) {
  std::string why;
  auto client = RawClient::Attach(context.socket(), &why);
  for (uint32_t slot = 0; client && slot < kTensors && context.running();)
    slot += client->Create(slot, KiB(4)) ? 1 : 0;
  uint64_t id = 0;
  Flood(context, [&] {
    proto::ClientPacket packet;
    packet.set_request(1);
    packet.mutable_explain_tensor()->set_id(id++ % kTensors);
    return packet.SerializeAsString();
  });
}

// Clients come, fill their rings and say that they are done.
void Detaches(AttackContext& context) {
  const Question detach = Same([](auto& packet) { packet.mutable_detach(); });
  while (context.running()) {
    std::vector<RawClient> clients = Attached(context, kClients);
    for (RawClient& client : clients) {
      for (uint32_t slot = 0; slot < 256; ++slot) client.Create(slot, KiB(4));
      client.connection().Ask(detach());
      context.AddDone();
    }
    context.Ready();
  }
}

// Small blocks, each freed behind tickets that no stream ever reaches.
void PinnedFrees(AttackContext& context) {
  constexpr int kTickets = 64;
  uint64_t block = 0;
  bool frees = false;
  FloodByClients(context, [&] {
    frees = !frees;
    proto::ClientPacket packet;
    packet.set_request(1);
    if (frees) {
      packet.mutable_pinned_alloc()->set_block(++block);
      packet.mutable_pinned_alloc()->set_bytes(1);
      packet.mutable_pinned_alloc()->set_deadline_ns(std::numeric_limits<int64_t>::max());
      return packet.SerializeAsString();
    }
    packet.mutable_pinned_free()->set_block(block);
    for (int i = 0; i < kTickets; ++i)
      packet.mutable_pinned_free()->add_tickets(
          proto::Pack({static_cast<uint16_t>(i), proto::kWordValueMask}));
    return packet.SerializeAsString();
  });
}

// It records only its own tensors.
void FloodOfRecords(AttackContext& context) {
  std::vector<RawClient> clients = Attached(context, 1);
  uint32_t slot = 0;
  const Question record = Same([](auto& packet) { packet.mutable_record(); });
  Flood(context, [&] {
    if (!clients.empty()) clients[0].Create(slot++ % kTensors, KiB(4));
    return record();
  });
}

// Iterations that begin as fast as the ring takes them.
void Steps(AttackContext& context) {
  std::vector<RawClient> clients = Attached(context, 1);
  if (clients.empty()) return;
  context.Ready();
  proto::Request request{};
  request.op = static_cast<uint32_t>(proto::RequestOp::kStep);
  while (context.running()) {
    for (int i = 0; i < 1000; ++i) context.AddDone(clients[0].Push(request) ? 1 : 0);
  }
}

// Elastic jobs of one command, whose pages have every row filled. A job is a process.
class Jobs {
 public:
  Jobs(AttackContext& context, size_t most) : command_(KeyOf(::getpid())) {
    const ipc::UniqueFd page = FullLedgerPage(FirstDevice(context.socket()));
    const ipc::UniqueFd elastic = FullElasticPage();
    if (::pipe(attached_) != 0) {
      context.Impossible("no pipe");
      return;
    }
    while (children_.size() < most && context.running()) {
      const pid_t child = ::fork();
      if (child == 0) Be(context, page, elastic);
      if (child < 0) break;
      children_.push_back(child);
    }
    for (size_t i = 0; i < children_.size(); ++i) {
      uint32_t client = 0;
      if (::read(attached_[0], &client, sizeof(client)) != sizeof(client) || client == 0) {
        context.Refused("a job was refused");
        continue;
      }
      clients_.push_back(client);
    }
  }
  ~Jobs() {
    for (const pid_t child : children_) ::kill(child, SIGKILL);
    for (const pid_t child : children_) ::waitpid(child, nullptr, 0);
  }
  Jobs(const Jobs&) = delete;
  Jobs& operator=(const Jobs&) = delete;

  const std::string& command() const { return command_; }
  const std::vector<uint32_t>& clients() const { return clients_; }

 private:
  [[noreturn]] void Be(AttackContext& context, const ipc::UniqueFd& page,
                       const ipc::UniqueFd& elastic) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::string why;
    uint32_t client = 0;
    const auto job = AttachLegacy(context.socket(), page, &why, nullptr, command_, &client);
    auto brings = Connection::Open(context.socket());
    proto::ClientPacket packet;
    packet.mutable_legacy_elastic();
    if (brings.ok()) brings->Send(packet.SerializeAsString(), {elastic.get()});
    [[maybe_unused]] const auto said = ::write(attached_[1], &client, sizeof(client));
    context.Hold();
    ::_exit(0);
  }

  const std::string command_;
  int attached_[2] = {-1, -1};
  std::vector<pid_t> children_;
  std::vector<uint32_t> clients_;
};

void IdleJobs(AttackContext& context) {
  const Jobs jobs(context, context.count(400));
  context.AddDone(jobs.clients().size());
  context.Ready();
  context.Hold();
}

// The user's jobs and their peaks.
void JobQueries(AttackContext& context) {
  const Jobs jobs(context, context.count(8));
  const Question query =
      Same([&](auto& packet) { packet.mutable_job_query()->set_job(jobs.command()); });
  const Question list = Same([](auto& packet) { packet.mutable_list_legacy(); });
  bool lists = false;
  Flood(context, [&] {
    lists = !lists;
    return lists ? list() : query();
  });
}

// The whole store's figures need a read of each job's page.
void FloodOfStats(AttackContext& context) {
  const Jobs jobs(context, context.count(8));
  Flood(context, Same([](auto& packet) { packet.mutable_stats()->set_whole_store(true); }));
}

void FloodOfJobExplanations(AttackContext& context) {
  const Jobs jobs(context, context.count(8));
  const uint32_t client = jobs.clients().empty() ? 0 : jobs.clients()[0];
  Flood(context, Same([&](auto& packet) { packet.mutable_explain_job()->set_client(client); }));
}

// Its own jobs are to pause and to go on, which is written on their pages.
void FloodOfOrdersToJobs(AttackContext& context) {
  const Jobs jobs(context, context.count(8));
  if (jobs.clients().empty()) return;
  size_t next = 0;
  Flood(context, [&] {
    proto::ClientPacket packet;
    packet.set_request(1);
    const uint32_t job = jobs.clients()[next++ % jobs.clients().size()];
    packet.mutable_order_job()->set_job(std::to_string(job));
    packet.mutable_order_job()->set_wakes(next % 2 == 0);
    return packet.SerializeAsString();
  });
}

// Its own clients order each other to sleep, and undo it, since none does in time.
void FloodOfOrders(AttackContext& context) {
  uint64_t next = 0;
  FloodByClients(context, [&] {
    proto::ClientPacket packet;
    packet.set_request(1);
    switch (++next % 3) {
      case 0:
        packet.mutable_take_orders()->set_job("job");
        packet.mutable_take_orders()->set_tag(std::string(255, 't'));
        break;
      case 1:
        packet.mutable_order_job()->set_job("job");
        packet.mutable_order_job()->set_timeout_ns(1);
        break;
      default: packet.mutable_order_done()->set_order(next / 3);
    }
    return packet.SerializeAsString();
  });
}

// With a history as long as a user's may be.
void FloodOfRecordsOfJobs(AttackContext& context) {
  const ipc::UniqueFd page = FullLedgerPage(FirstDevice(context.socket()));
  for (size_t i = 0; i < kRecords && context.running(); ++i) {
    std::string why;
    if (!AttachLegacy(context.socket(), page, &why, nullptr, KeyOf(i))) context.Refused(why);
  }
  const Question records = Same([](auto& packet) { packet.mutable_list_job_records(); });
  const Question query = Same([](auto& packet) {
    packet.mutable_job_query()->set_job(KeyOf(kRecords));
    packet.mutable_job_query()->set_model(KeyOf(kRecords));
  });
  bool lists = false;
  Flood(context, [&] {
    lists = !lists;
    return lists ? records() : query();
  });
}

// Asks to be admitted with all free memory, and hangs up.
void Admissions(AttackContext& context) {
  const Question admit = Same([](auto& packet) {
    packet.mutable_admit_job()->set_bytes(MiB(256));
    packet.mutable_admit_job()->set_source("history");
    packet.mutable_admit_job()->set_name(std::string(1024, 'n'));
  });
  context.Ready();
  while (context.running()) {
    auto connection = Connection::Open(context.socket());
    if (connection.ok() && connection->Send(admit())) {
      context.AddDone();
    } else {
      context.Refused(connection.ok() ? "no room" : connection.error().message);
    }
  }
}

constexpr Attack kAttacks[] = {
    {"flood_names", FloodOfNames},
    {"flood_nonsense", FloodOfNonsense},
    {"flood_tensors", FloodOfTensors},
    {"flood_clients", FloodOfClients},
    {"flood_stats", FloodOfStats},
    {"flood_records", FloodOfRecords},
    {"flood_steps", Steps},
    {"flood_failures",
     [](AttackContext& context) {
       FloodByClients(context,
                      Same([](auto& packet) { packet.mutable_explain_failure()->set_slot(7); }));
     }},
    {"flood_trims",
     [](AttackContext& context) {
       FloodByClients(context, Same([](auto& packet) { packet.mutable_trim(); }));
     }},
    {"flood_pinned_slabs_released",
     [](AttackContext& context) {
       FloodByClients(context, Same([](auto& packet) {
                        packet.mutable_pinned_slab_released()->set_offset(1);
                      }));
     }},
    {"flood_keeps",
     [](AttackContext& context) {
       FloodByClients(context,
                      Same([](auto& packet) { packet.mutable_keep_in_place()->set_slot(7); }));
     }},
    {"flood_sleeps",
     [](AttackContext& context) {
       FloodByClients(context,
                      Same([](auto& packet) { packet.mutable_sleep()->set_deadline_ns(1); }));
     }},
    {"flood_wakes",
     [](AttackContext& context) {
       FloodByClients(context, Same([](auto& packet) { packet.mutable_wake(); }));
     }},
    {"flood_set_opens", FloodOfSetOpens},
    {"flood_set_seals",
     [](AttackContext& context) {
       FloodByClients(context,
                      Same([](auto& packet) { packet.mutable_seal_set()->set_name("set"); }));
     }},
    {"flood_set_uses",
     [](AttackContext& context) {
       FloodByClients(context, Same([](auto& packet) { packet.mutable_use_set()->set_open(1); }));
     }},
    {"flood_set_pages",
     [](AttackContext& context) {
       FloodByClients(context, Same([](auto& packet) { packet.mutable_set_pages()->set_open(1); }));
     }},
    {"flood_set_use_ends",
     [](AttackContext& context) {
       FloodByClients(context,
                      Same([](auto& packet) { packet.mutable_end_use_of_set()->set_open(1); }));
     }},
    {"flood_set_closes",
     [](AttackContext& context) {
       FloodByClients(context, Same([](auto& packet) { packet.mutable_close_set()->set_open(1); }));
     }},
    {"flood_set_drops",
     [](AttackContext& context) {
       FloodByClients(context,
                      Same([](auto& packet) { packet.mutable_drop_set()->set_name("set"); }));
     }},
    {"flood_set_lists",
     [](AttackContext& context) {
       FloodByClients(context, Same([](auto& packet) { packet.mutable_list_sets(); }));
     }},
    {"flood_limits",
     [](AttackContext& context) {
       Flood(context, Same([](auto& packet) { packet.mutable_set_limits()->set_client(1); }));
     }},
    {"flood_harvest_returns",
     [](AttackContext& context) {
       Flood(context, Same([](auto& packet) {
               packet.mutable_return_harvest()->set_bytes(MiB(1));
               packet.mutable_return_harvest()->set_within_ns(1);
             }));
     }},
    {"pinned_frees", PinnedFrees},
    {"detaches", Detaches},
    {"explain_tensors", FloodOfTensorExplanations},
    {"idle_jobs", IdleJobs},
    {"job_queries", JobQueries},
    {"explain_jobs", FloodOfJobExplanations},
    {"job_orders", FloodOfOrdersToJobs},
    {"flood_orders", FloodOfOrders},
    {"job_records", FloodOfRecordsOfJobs},
    {"admissions", Admissions},
};

}  // namespace

std::span<const Attack> MessageAttacks() {
  return kAttacks;
}

}  // namespace ravenstore::hostile
