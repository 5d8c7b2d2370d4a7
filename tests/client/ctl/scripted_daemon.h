// A daemon for ravenctl's tests: a real socket with a script behind it.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/types.h"
#include "ipc/socket.h"
#include "proto/control.pb.h"
#include "proto/layout.h"
#include "proto/version.h"
#include "tests/ipc/short_directory.h"

namespace ravenstore::client::ctl {

struct Reply {
  std::vector<std::string> packets{};  // as they go over the wire
  bool hang_up = false;
};
using Script = std::function<Reply(const proto::ClientPacket&)>;

// `answer` as the answer to `question`.
inline Reply Answer(const proto::ClientPacket& question, proto::DaemonPacket answer) {
  answer.set_request(question.request());
  return {.packets = {answer.SerializeAsString()}};
}
inline Reply Refuse(const proto::ClientPacket& question, core::ErrorCode code,
                    const std::string& message) {
  proto::DaemonPacket answer;
  answer.mutable_failure()->set_code(static_cast<uint32_t>(code));
  answer.mutable_failure()->set_message(message);
  return Answer(question, std::move(answer));
}

// Serves one connection at a time, until destroyed.
class ScriptedDaemon {
 public:
  explicit ScriptedDaemon(Script script) : script_(std::move(script)) {
    auto listener = ipc::Listen(path(), 0600, "");
    RAVEN_CHECK(listener.ok());
    listener_ = std::move(*listener);
    thread_ = std::thread([this] { Serve(); });
  }
  ~ScriptedDaemon() {
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }

  std::string path() const { return directory_ / "s"; }

 private:
  void Serve() {
    for (;;) {
      if (!ipc::WaitReadable(listener_.get(), core::kNever).ok()) return;
      auto connection = ipc::Accept(listener_.get());
      if (!connection.ok()) return;
      while (Serve(connection->get())) {
      }
    }
  }
  bool Serve(int connection) {
    auto packet = ipc::Receive(connection, true);
    if (!packet.ok() || !packet->has_value()) return false;
    proto::ClientPacket question;
    if (!question.ParseFromString((*packet)->bytes)) return false;
    const Reply reply = script_(question);
    for (const std::string& bytes : reply.packets) {
      if (!ipc::Send(connection, bytes).ok()) return false;
    }
    return !reply.hang_up;
  }

  ipc::ShortDirectory directory_;
  Script script_;
  ipc::Listener listener_;
  std::thread thread_;
};

// A daemon in good health, with a few clients and many tensors.
class GoodDaemon {
 public:
  GoodDaemon() {
    welcome.set_protocol_version(proto::kProtocolVersion);
    welcome.set_daemon_version(proto::kVersion);
    welcome.set_backend("host");
    for (int i = 0; i < 2; ++i) {
      proto::Device* device = welcome.add_devices();
      device->set_uuid("HOST-" + std::to_string(i));
      device->set_name("Simulated device");
      device->set_total_bytes(core::GiB(2).count());
      device->set_arena_bytes(core::GiB(64).count());
      device->set_link_up(i == 0 ? 54'500'000'000 : 12'000'000'000);
      device->set_link_down(i == 0 ? 24'000'000'000 : 13'000'000'000);
    }
    for (const char* name : {"device 0", "device 1", "host"}) {
      proto::TierStats* tier = stats.add_tiers();
      tier->set_name(name);
      tier->set_capacity(core::GiB(2).count());
      tier->set_held(core::MiB(512).count());
      tier->set_used(core::MiB(300).count());
    }
    stats.set_clients(3);
    stats.set_tensors(tensors_total);
    stats.set_gets(1000);
    stats.set_hits(900);
    stats.set_uptime_ns(90'000'000'000);
  }

  Reply operator()(const proto::ClientPacket& question) {
    proto::DaemonPacket answer;
    switch (question.body_case()) {
      case proto::ClientPacket::kHello: *answer.mutable_welcome() = welcome; break;
      case proto::ClientPacket::kStats: *answer.mutable_stats() = stats; break;
      case proto::ClientPacket::kExplainTensor: {
        if (question.explain_tensor().id() > tensors_total)
          return Refuse(question, core::ErrorCode::kNotFound, "there is no such tensor");
        proto::TensorExplained& explained = *answer.mutable_tensor_explained();
        explained.mutable_tensor()->set_id(question.explain_tensor().id());
        explained.set_future("learned from earlier iterations");
        explained.set_needed_in_ns(1'500'000);
        explained.set_confidence(0.87);
        explained.set_value(2.5);
        explained.set_priority("low");
        break;
      }
      case proto::ClientPacket::kExplainJob: {
        if (question.explain_job().client() != job)
          return Refuse(question, core::ErrorCode::kNotFound, "there is no such job");
        // Two devices, in as many answers.
        proto::JobExplained& explained = *answer.mutable_job_explained();
        explained.mutable_job()->set_client(job);
        explained.mutable_job()->set_mode("elastic");
        const uint32_t device = question.explain_job().cursor();
        explained.mutable_elastic()->set_uuid("GPU-" + std::to_string(device));
        explained.set_next_cursor(stuck_job ? 1 : 1 - device);
        break;
      }
      case proto::ClientPacket::kRecord: {
        proto::Recorded& recorded = *answer.mutable_recorded();
        if (!std::exchange(recorded_, true)) recorded.set_ops("the ops");
        recorded.set_ops_total(3);
        recorded.set_dropped(7);
        recorded.set_clients(2);
        break;
      }
      case proto::ClientPacket::kListTensors:
        FillTensors(question.list_tensors(), answer.mutable_tensors());
        break;
      case proto::ClientPacket::kListClients:
        FillClients(question.list_clients(), answer.mutable_clients());
        break;
      case proto::ClientPacket::kSetLimits: {
        const proto::SetLimits& limits = question.set_limits();
        const bool known = limits.client() != 0 ? limits.client() <= 3 : limits.uid() == 0;
        if (!known) return Refuse(question, core::ErrorCode::kNotFound, "no such client");
        if (limits.device_budget() != 0) limits_now.set_device_budget(limits.device_budget());
        if (limits.host_budget() != 0) limits_now.set_host_budget(limits.host_budget());
        if (limits.has_device_guarantee())
          limits_now.set_device_guarantee(limits.device_guarantee());
        if (knows_shares) TakeShare(limits);
        for (const proto::PoolBudget& asked : limits.pool_budgets()) {
          for (proto::PoolBudget& now : *limits_now.mutable_pool_budgets()) {
            if (now.pool() == asked.pool()) now.set_bytes(asked.bytes());
          }
        }
        *answer.mutable_limits_set() = limits_now;
        break;
      }
      case proto::ClientPacket::kReturnHarvest:
        *answer.mutable_harvest_returned() = ReturnedBy(question.return_harvest());
        break;
      default: return AnswerOrder(question);
    }
    return Answer(question, std::move(answer));
  }

  // Device 1 gives all of it, any other half.
  static proto::HarvestReturned ReturnedBy(const proto::ReturnHarvest& wanted) {
    const bool all = wanted.device() == 1;
    proto::HarvestReturned returned;
    returned.set_bytes(all ? wanted.bytes() : wanted.bytes() / 2);
    returned.set_took_ns(wanted.within_ns());
    returned.set_late(all ? "" : "a tensor is being copied");
    return returned;
  }

  static constexpr uint64_t kNamedInDigits = 40;

  proto::Welcome welcome;
  proto::Stats stats;
  static Reply AnswerOrder(const proto::ClientPacket& question) {
    if (!question.has_order_job())
      return Refuse(question, core::ErrorCode::kInvalidArgument, "what?");
    const proto::OrderJob& order = question.order_job();
    if (order.tag() == "cache")
      return Refuse(question, core::ErrorCode::kNotFound, "there is: 'train.py' with 'weights'");
    proto::DaemonPacket answer;
    proto::JobOrdered& ordered = *answer.mutable_job_ordered();
    if (order.tag().empty()) {
      ordered.add_elastic_jobs(2);
    } else {
      ordered.set_clients(3);
      ordered.set_bytes(order.wakes() ? 0 : core::GiB(1).count());
    }
    return Answer(question, std::move(answer));
  }
  void TakeShare(const proto::SetLimits& limits) {
    if (limits.has_weight()) limits_now.set_weight(limits.weight());
    if (limits.has_priority()) limits_now.set_priority(limits.priority());
    if (limits_now.priority() == proto::PRIORITY_NOT_SET)
      limits_now.set_priority(proto::PRIORITY_NORMAL);
  }

  proto::LimitsSet limits_now;
  bool knows_shares = true;  // weights and priorities
  uint64_t tensors_total = 300;
  uint32_t job = 1000;  // of legacy jobs the only one
  bool stuck_job = false;
  bool recorded_ = false;

 private:
  // Tensor i belongs to client i % 3 + 1, has (i * 7919) % 1000 KiB and every fifth is on the host.
  // Rows without one of the audience's make empty pages, as in the real daemon.
  void FillTensors(const proto::ListTensors& query, proto::Tensors* tensors) const {
    const uint64_t end = std::min(tensors_total, query.cursor() + std::min(query.limit(), 128u));
    for (uint64_t i = query.cursor(); i < end; ++i) {
      const auto client = static_cast<uint32_t>(i % 3 + 1);
      if (query.client() != 0 && query.client() != client) continue;
      proto::TensorInfo* tensor = tensors->add_tensors();
      tensor->set_id(i + 1);
      tensor->set_client(client);
      tensor->set_name(i == kNamedInDigits ? "2026" : "layer" + std::to_string(i));
      tensor->set_bytes(core::KiB(i * 7919 % 1000).count());
      tensor->set_state(i % 5 == 0 ? "away" : "idle");
      tensor->set_tier(i % 5 == 0 ? "host" : i % 5 == 1 ? "device 0 + host" : "device 0");
      tensor->set_dirty(i % 2 == 0);
    }
    tensors->set_next_cursor(end == tensors_total ? 0 : end);
  }
  // Two a page.
  static void FillClients(const proto::ListClients& query, proto::Clients* clients) {
    for (auto id = static_cast<uint32_t>(query.cursor() == 0 ? 1 : query.cursor()); id <= 3; ++id) {
      if (clients->clients_size() == 2) {
        clients->set_next_cursor(id);
        return;
      }
      proto::ClientInfo* client = clients->add_clients();
      client->set_client(id);
      client->set_pid(1000 + id);
      client->set_name("train_gpt " + std::to_string(id));
      client->set_tensors(100);
      client->set_device_bytes(core::MiB(100 * id).count());
      client->set_device_budget(core::GiB(1).count());
    }
  }
};

}  // namespace ravenstore::client::ctl
