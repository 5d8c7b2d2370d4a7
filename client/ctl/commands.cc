#include "client/ctl/commands.h"

#include <pwd.h>

#include <algorithm>
#include <cerrno>
#include <ostream>
#include <string_view>
#include <tuple>
#include <vector>

#include "client/ctl/render_client.h"
#include "client/ctl/render_harvest.h"
#include "client/ctl/render_job.h"
#include "client/ctl/render_nodes.h"
#include "client/ctl/session.h"
#include "core/printable.h"
#include "core/size_text.h"
#include "proto/packet.h"

namespace ravenstore::client::ctl {
namespace {

using core::Error;
using core::Status;

int Report(const Common& common, const Error& error, Streams streams) {
  if (common.json) streams.out << ErrorJson(error);
  streams.err << "ravenctl: " << core::Printable(core::Describe(error)) << '\n';
  return kExitFailed;
}

int Misused(const std::string& message, Streams streams) {
  streams.err << "ravenctl: " << core::Printable(message) << '\n';
  return kExitUsage;
}

// A tensor in two places is found by either.
bool InTier(const proto::TensorInfo& tensor, std::string_view tier) {
  std::string_view rest = tensor.tier();
  constexpr std::string_view kAnd = " + ";
  for (;;) {
    const size_t end = std::min(rest.find(kAnd), rest.size());
    if (rest.substr(0, end) == tier) return true;
    if (end == rest.size()) return false;
    rest.remove_prefix(end + kAnd.size());
  }
}

// What is wrong with `tier` as a place of this daemon's tensors; empty: nothing.
core::Result<std::string> FaultOfTier(Session& session, const std::string& tier) {
  RAVEN_ASSIGN_OR_RETURN(const proto::Stats stats, session.Stats());
  if (tier == "nowhere") return std::string();
  std::string tiers;
  for (const proto::TierStats& one : stats.tiers()) {
    if (one.name() == tier) return std::string();
    const bool spaced = one.name().find(' ') != std::string::npos;
    tiers += spaced ? "\"" + one.name() + "\", " : one.name() + ", ";
  }
  return "there is no tier '" + tier + "': there are " + tiers + "and nowhere";
}

void Sort(std::vector<proto::TensorInfo>* tensors, SortBy by) {
  std::stable_sort(tensors->begin(), tensors->end(), [by](const auto& a, const auto& b) {
    switch (by) {
      case SortBy::kId: return a.id() < b.id();
      case SortBy::kClient: return a.client() < b.client();
      case SortBy::kTier: return a.tier() < b.tier();
      case SortBy::kSize: return a.bytes() > b.bytes();
      case SortBy::kName: return a.name() < b.name();
    }
    return false;
  });
}

std::optional<uint32_t> UidOf(const std::string& user) {
  if (const auto uid = core::ParseNumber(user); uid && *uid <= UINT32_MAX)
    return static_cast<uint32_t>(*uid);
  std::string buffer(1024, '\0');
  passwd entry{};
  passwd* found = nullptr;
  while (getpwnam_r(user.c_str(), &entry, buffer.data(), buffer.size(), &found) == ERANGE) {
    buffer.resize(buffer.size() * 2);
  }
  if (found == nullptr) return std::nullopt;
  return entry.pw_uid;
}

// "500ms" or "2s", of an hour at most.
std::optional<core::Duration> DurationOf(std::string_view text) {
  const bool milliseconds = text.ends_with("ms");
  if (!milliseconds && !text.ends_with('s')) return std::nullopt;
  const auto number = core::ParseNumber(text.substr(0, text.size() - (milliseconds ? 2 : 1)));
  if (!number || *number == 0 || *number > 3'600'000) return std::nullopt;
  const core::Duration time = milliseconds ? core::Duration(std::chrono::milliseconds(*number))
                                           : core::Duration(std::chrono::seconds(*number));
  return time > std::chrono::hours(1) ? std::nullopt : std::optional(time);
}

// The least that a device hands out is a page.
constexpr core::Bytes kLeastBudget = core::MiB(2);

// A budget of zero would mean "leave it" on the wire, so it cannot be asked for; a guarantee can.
std::optional<uint64_t> BudgetOf(const std::string& text) {
  if (text.empty()) return 0;
  if (text == "default") return proto::kLimitNotSet;
  const auto bytes = core::ParseBytes(text);
  if (!bytes || *bytes < kLeastBudget) return std::nullopt;
  return bytes->count();
}

// "file 0=64GiB".
std::optional<proto::PoolBudget> PoolBudgetOf(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == 0 || equals == std::string::npos) return std::nullopt;
  const auto bytes = BudgetOf(text.substr(equals + 1));
  if (!bytes || *bytes == 0) return std::nullopt;
  proto::PoolBudget budget;
  budget.set_pool(text.substr(0, equals));
  budget.set_bytes(*bytes);
  return budget;
}

// 0 takes a change back.
std::optional<uint32_t> WeightOf(const std::string& text) {
  if (text == "default") return 0;
  const auto number = core::ParseNumber(text);
  if (!number || *number == 0 || *number > proto::kWeightMost) return std::nullopt;
  return static_cast<uint32_t>(*number);
}

std::optional<proto::TenantPriority> PriorityOf(std::string_view text) {
  if (text == "default") return proto::PRIORITY_NOT_SET;
  for (const auto priority : {proto::PRIORITY_LOW, proto::PRIORITY_NORMAL, proto::PRIORITY_HIGH}) {
    if (text == PriorityText(priority)) return priority;
  }
  return std::nullopt;
}

// Takes weight and priority over. Returns what is wrong with them, or nothing.
std::string TakeShare(const LimitsOptions& options, proto::SetLimits* limits) {
  if (options.weight.empty() && options.priority.empty()) return {};
  if (options.client != 0)
    return "--weight and --priority need --user: they are for all clients of a user together";
  const auto weight = WeightOf(options.weight.empty() ? "default" : options.weight);
  if (!weight) {
    return "'" + options.weight + "' is no weight: give a whole number from 1 to " +
           std::to_string(proto::kWeightMost) + ", or default";
  }
  const auto priority = PriorityOf(options.priority.empty() ? "default" : options.priority);
  if (!priority)
    return "'" + options.priority + "' is no priority: give low, normal, high or default";
  if (!options.weight.empty()) limits->set_weight(*weight);
  if (!options.priority.empty()) limits->set_priority(*priority);
  return {};
}

// A daemon that knows no budgets of pools, weights or priorities passes over them.
Status CheckTaken(const proto::SetLimits& asked, const proto::LimitsSet& answer) {
  for (const proto::PoolBudget& budget : asked.pool_budgets()) {
    const auto is_same = [&](const auto& accepted) { return accepted.pool() == budget.pool(); };
    if (std::ranges::any_of(answer.pool_budgets(), is_same)) continue;
    return Error{core::ErrorCode::kUnsupported,
                 "the budget of " + budget.pool() +
                     " was not set: the daemon is older than ravenctl, or this is a legacy job"};
  }
  const bool shares = asked.has_weight() || asked.has_priority();
  if (shares && answer.priority() == proto::PRIORITY_NOT_SET) {
    return Error{core::ErrorCode::kUnsupported,
                 "weight and priority were not set: the daemon is older than ravenctl"};
  }
  return core::Ok();
}

int RunListNamed(const Common& common, Session& session, Streams streams) {
  const auto sets = session.Sets();
  if (!sets.ok()) return Report(common, sets.error(), streams);
  streams.out << (common.json ? SetsJson(*sets) : SetsText(*sets, common.columns));
  return kExitOk;
}

}  // namespace

int ReportUnreachable(const Common& common, Error error, Streams streams) {
  const std::string_view advice = AdviceAbout(error.code);
  if (!advice.empty()) (error.message += "; ") += advice;
  return Report(common, error, streams);
}

int RunStatus(const Common& common, Streams streams) {
  auto session = Session::Open(common.socket, common.timeout);
  if (!session.ok()) return ReportUnreachable(common, session.error(), streams);
  const auto stats = session->Stats();
  if (!stats.ok()) return Report(common, stats.error(), streams);
  const auto clients = session->Clients();
  if (!clients.ok()) return Report(common, clients.error(), streams);
  streams.out << (common.json ? StatusJson(session->welcome(), *stats, *clients)
                              : StatusText(session->welcome(), *stats, *clients, common.columns));
  return kExitOk;
}

int RunClients(const Common& common, Streams streams) {
  auto session = Session::Open(common.socket, common.timeout);
  if (!session.ok()) return ReportUnreachable(common, session.error(), streams);
  const auto clients = session->Clients();
  if (!clients.ok()) return Report(common, clients.error(), streams);
  const auto jobs = session->LegacyJobs();
  if (!jobs.ok()) return Report(common, jobs.error(), streams);
  streams.out << (common.json ? ClientsJson(*clients, *jobs)
                              : ClientsText(*clients, *jobs, common.columns));
  return kExitOk;
}

int RunNodes(const Common& common, Streams streams) {
  auto session = Session::Open(common.socket, common.timeout);
  if (!session.ok()) return ReportUnreachable(common, session.error(), streams);
  const auto stats = session->Stats();
  if (!stats.ok()) return Report(common, stats.error(), streams);
  streams.out << (common.json ? NodesJson(*stats) : NodesText(*stats, common.columns));
  return kExitOk;
}

int RunList(const Common& common, const ListOptions& options, Streams streams) {
  auto session = Session::Open(common.socket, common.timeout);
  if (!session.ok()) return ReportUnreachable(common, session.error(), streams);
  if (options.named) return RunListNamed(common, *session, streams);
  if (!options.tier.empty()) {
    const auto fault = FaultOfTier(*session, options.tier);
    if (!fault.ok()) return ReportUnreachable(common, fault.error(), streams);
    if (!fault->empty()) return Misused(*fault, streams);
  }
  std::vector<proto::TensorInfo> tensors;
  bool more = false;
  // What is to be sorted must be seen whole.
  const size_t enough = options.sort || options.limit == 0 ? SIZE_MAX : options.limit;
  const Status listed = session->List(options.client, [&](const proto::TensorInfo& tensor) {
    if (!options.tier.empty() && !InTier(tensor, options.tier)) return true;
    more = tensors.size() == enough;
    if (!more) tensors.push_back(tensor);
    return !more;
  });
  if (!listed.ok()) return Report(common, listed.error(), streams);
  if (options.sort) Sort(&tensors, *options.sort);
  if (options.limit != 0 && tensors.size() > options.limit) {
    tensors.resize(options.limit);
    more = true;
  }
  streams.out << (common.json ? TensorsJson(tensors, more)
                              : TensorsText(tensors, more, common.columns));
  return kExitOk;
}

namespace {

// Nullopt: there is no such job.
core::Result<std::optional<JobView>> FindJob(Session& session, uint64_t number) {
  if (number == 0 || number > UINT32_MAX) return std::optional<JobView>();
  auto pages = session.ExplainJob(static_cast<uint32_t>(number));
  // A daemon that explains no jobs.
  const bool none = !pages.ok() && (pages.error().code == core::ErrorCode::kNotFound ||
                                    pages.error().code == core::ErrorCode::kInvalidArgument);
  if (none) return std::optional<JobView>();
  if (!pages.ok()) return std::move(pages).error();
  JobView view{pages->front().job(), {}};
  for (const proto::JobExplained& page : *pages) {
    if (page.has_elastic()) view.devices.push_back(page.elastic());
  }
  return std::optional(std::move(view));
}

// Nullopt: there is no such tensor.
core::Result<std::optional<proto::TensorExplained>> FindTensor(Session& session,
                                                               const std::string& tensor) {
  using Found = std::optional<proto::TensorExplained>;
  if (const auto number = core::ParseNumber(tensor)) {
    auto explained = session.Explain(*number);
    if (explained.ok()) return Found(std::move(*explained));
    if (explained.error().code != core::ErrorCode::kNotFound) return std::move(explained).error();
  }
  uint64_t id = 0;
  RAVEN_RETURN_IF_ERROR(session.List(0, [&](const proto::TensorInfo& info) {
    if (info.name() == tensor) id = info.id();
    return id == 0;
  }));
  if (id == 0) return Found();
  RAVEN_ASSIGN_OR_RETURN(proto::TensorExplained explained, session.Explain(id));
  return Found(std::move(explained));
}

// Nullopt: there is no such client.
core::Result<std::optional<ClientView>> FindClient(Session& session, uint64_t number) {
  RAVEN_ASSIGN_OR_RETURN(const auto clients, session.Clients());
  for (const proto::ClientInfo& client : clients) {
    if (client.client() != number) continue;
    ClientView view{client};
    RAVEN_RETURN_IF_ERROR(session.List(client.client(), [&](const proto::TensorInfo& tensor) {
      view.Add(tensor);
      return true;
    }));
    return std::optional(std::move(view));
  }
  return std::optional<ClientView>();
}

std::string NothingIs(const std::string& what, Explained which) {
  const bool is_number = core::ParseNumber(what).has_value();
  if (which == Explained::kJob) return "no legacy job has the number " + what;
  if (which == Explained::kClient) return "no client has the number " + what;
  if (!is_number) return "no tensor is called '" + what + "'";
  return std::string("no tensor") + (which == Explained::kAny ? ", legacy job or client " : " ") +
         "has the number " + what + ", and none is called so";
}

}  // namespace

int RunExplain(const Common& common, const std::string& what, Explained which, Streams streams) {
  auto session = Session::Open(common.socket, common.timeout);
  if (!session.ok()) return ReportUnreachable(common, session.error(), streams);
  const auto number = core::ParseNumber(what);
  const auto wants = [&](Explained one) { return which == Explained::kAny || which == one; };
  std::vector<std::string> found;  // what has that number or name
  std::string text;
  if (wants(Explained::kTensor)) {
    const auto tensor = FindTensor(*session, what);
    if (!tensor.ok()) return Report(common, tensor.error(), streams);
    if (*tensor) {
      found.emplace_back("tensor");
      text = common.json ? ExplainedJson(**tensor) : ExplainedText(**tensor, common.columns);
    }
  }
  if (number && wants(Explained::kJob)) {
    const auto job = FindJob(*session, *number);
    if (!job.ok()) return Report(common, job.error(), streams);
    if (*job) {
      found.emplace_back("legacy job");
      text = common.json ? JobJson(**job) : JobText(**job, common.columns);
    }
  }
  if (number && wants(Explained::kClient)) {
    const auto client = FindClient(*session, *number);
    if (!client.ok()) return Report(common, client.error(), streams);
    if (*client) {
      found.emplace_back("client");
      text = common.json ? ClientJson(**client) : ClientText(**client, common.columns);
    }
  }
  if (found.empty())
    return Report(common, {core::ErrorCode::kNotFound, NothingIs(what, which)}, streams);
  if (found.size() > 1) {
    return Misused(what + " is a " + found.front() + " and a " + found.back() +
                       ": say --tensor, --job or --client",
                   streams);
  }
  streams.out << text;
  return kExitOk;
}

int RunLimits(const Common& common, const LimitsOptions& options, Streams streams) {
  if ((options.client != 0) == !options.user.empty()) {
    return Misused("limits needs either --client or --user", streams);
  }
  if (options.client != 0 && !options.device_guarantee.empty()) {
    return Misused("--device-guarantee needs --user: it is for all clients of a user together",
                   streams);
  }
  const auto device_budget = BudgetOf(options.device_budget);
  const auto host_budget = BudgetOf(options.host_budget);
  const bool no_guarantee = core::ParseBytes(options.device_guarantee) == core::Bytes(0);
  const auto device_guarantee =
      no_guarantee ? std::optional<uint64_t>(0) : BudgetOf(options.device_guarantee);
  const auto visible_memory = BudgetOf(options.visible_memory);
  for (const auto& [budget, text] :
       {std::tie(device_budget, options.device_budget), std::tie(host_budget, options.host_budget),
        std::tie(device_guarantee, options.device_guarantee),
        std::tie(visible_memory, options.visible_memory)}) {
    if (!budget) {
      return Misused("'" + text +
                         "' is no budget: give a size of at least 2MiB such as 12GiB or "
                         "512MiB, or default",
                     streams);
    }
  }
  proto::SetLimits limits;
  if (const std::string fault = TakeShare(options, &limits); !fault.empty())
    return Misused(fault, streams);
  for (const std::string& text : options.pool_budgets) {
    const auto budget = PoolBudgetOf(text);
    if (!budget) {
      return Misused("'" + text +
                         "' is no pool and its budget: say one such as 'file 0=64GiB' or "
                         "'peer 1=default'",
                     streams);
    }
    *limits.add_pool_budgets() = *budget;
  }
  limits.set_client(options.client);
  limits.set_device_budget(*device_budget);
  limits.set_host_budget(*host_budget);
  if (!options.device_guarantee.empty()) limits.set_device_guarantee(*device_guarantee);
  limits.set_visible_memory(*visible_memory);
  std::string subject = "client " + std::to_string(options.client);
  if (!options.user.empty()) {
    const auto uid = UidOf(options.user);
    if (!uid) return Misused("there is no user '" + options.user + "'", streams);
    limits.set_uid(*uid);
    subject = "user " + options.user;
  }
  auto session = Session::Open(common.socket, common.timeout);
  if (!session.ok()) return ReportUnreachable(common, session.error(), streams);
  const auto answer = session->SetLimits(limits);
  if (!answer.ok()) return Report(common, answer.error(), streams);
  if (const Status taken = CheckTaken(limits, *answer); !taken.ok())
    return Report(common, taken.error(), streams);
  streams.out << (common.json ? LimitsJson(subject, *answer) : LimitsText(subject, *answer));
  return kExitOk;
}

int RunHarvest(const Common& common, const HarvestOptions& options, Streams streams) {
  proto::ReturnHarvest wanted;
  if (!options.return_bytes.empty()) {
    const auto bytes = core::ParseBytes(options.return_bytes);
    const auto within = DurationOf(options.within);
    if (!options.device)
      return Misused("--give-back needs --device: whose memory is wanted", streams);
    if (!bytes || *bytes == core::Bytes(0))
      return Misused("'" + options.return_bytes + "' is no size above zero such as 8GiB", streams);
    if (!within) {
      return Misused("'" + options.within + "' is no time such as 500ms or 2s, an hour at most",
                     streams);
    }
    wanted.set_device(*options.device);
    wanted.set_bytes(bytes->count());
    wanted.set_within_ns(static_cast<uint64_t>(within->count()));
  }
  auto session = Session::Open(common.socket, common.timeout);
  if (!session.ok()) return ReportUnreachable(common, session.error(), streams);
  if (options.return_bytes.empty()) {
    const auto stats = session->Stats();
    if (!stats.ok()) return Report(common, stats.error(), streams);
    streams.out << (common.json ? HarvestJson(*stats, options.device)
                                : HarvestText(*stats, options.device, common.columns));
    return kExitOk;
  }
  const auto returned = session->ReturnHarvest(wanted);
  if (!returned.ok()) return Report(common, returned.error(), streams);
  streams.out << (common.json ? ReturnedJson(*returned) : ReturnedText(wanted, *returned));
  return returned->late().empty() ? kExitOk : kExitFailed;
}

int RunSleep(const Common& common, const SleepOptions& options, Streams streams) {
  proto::OrderJob order;
  order.set_job(options.job);
  order.set_tag(options.tag);
  order.set_wakes(options.wakes);
  order.set_keeps_nothing(options.keeps_nothing);
  const auto within = DurationOf(options.within);
  if (!within) {
    return Misused("'" + options.within + "' is no time such as 500ms or 30s, an hour at most",
                   streams);
  }
  order.set_timeout_ns(static_cast<uint64_t>(within->count()));
  if (!options.user.empty()) {
    const auto uid = UidOf(options.user);
    if (!uid) return Misused("there is no user '" + options.user + "'", streams);
    order.set_uid(*uid);
  }
  auto session = Session::Open(common.socket, common.timeout);
  if (!session.ok()) return ReportUnreachable(common, session.error(), streams);
  const auto answer = session->OrderJob(order);
  if (!answer.ok()) return Report(common, answer.error(), streams);
  streams.out << (common.json ? OrderedJson(order, *answer) : OrderedText(order, *answer));
  if (options.wakes || common.json) return kExitOk;
  for (const uint32_t job : answer->elastic_jobs()) {
    const auto found = FindJob(*session, job);
    if (found.ok() && *found) streams.out << PausedText(**found);
  }
  return kExitOk;
}

int RunDoctor(const Common& common, Environment& environment, Streams streams) {
  const std::vector<Finding> findings = Examine(environment);
  streams.out << (common.json ? FindingsJson(findings) : FindingsText(findings, common.columns));
  return Healthy(findings) ? kExitOk : kExitFailed;
}

}  // namespace ravenstore::client::ctl
