#include "client/ctl/render_client.h"

#include <algorithm>
#include <utility>

#include "client/ctl/json.h"
#include "core/printable.h"
#include "core/size_text.h"
#include "core/text_table.h"

namespace ravenstore::client::ctl {
namespace {

using core::Printable;

std::string Size(uint64_t bytes) {
  return core::SizeText(core::Bytes(bytes));
}

// "3.0 GiB of 4.0 GiB at most"; a budget of 0 was not said.
std::string OfBudget(uint64_t bytes, uint64_t budget) {
  return Size(bytes) + (budget == 0 ? "" : " of " + Size(budget) + " at most");
}

std::string Advice(const ClientView& view) {
  const proto::ClientInfo& client = view.client;
  const std::string raise = "ravenctl limits --client " + std::to_string(client.client());
  if (client.waiting() > 0 && client.device_budget() > 0 &&
      client.in_use_bytes() >= client.device_budget() / 10 * 9)
    return "what is in use fills its device budget: put tensors earlier, or " + raise +
           " --device-budget SIZE";
  if (client.host_budget() > 0 && client.host_bytes() >= client.host_budget() / 10 * 9)
    return "its host budget is nearly full, so that little more can leave its devices: " + raise +
           " --host-budget SIZE";
  if (client.waiting() > 0)
    return "its calls wait for bytes that come, or for room that others' or its own leave";
  return "";
}

}  // namespace

void ClientView::Add(const proto::TensorInfo& tensor) {
  Tier& tier = tiers[tensor.tier()];
  ++tier.tensors;
  tier.bytes += tensor.bytes();
  const auto larger = [](const proto::TensorInfo& a, const proto::TensorInfo& b) {
    return a.bytes() > b.bytes();
  };
  largest.insert(std::upper_bound(largest.begin(), largest.end(), tensor, larger), tensor);
  if (largest.size() > kLargest) largest.pop_back();
}

std::string ClientText(const ClientView& view, size_t columns) {
  const proto::ClientInfo& client = view.client;
  core::TextTable table("<|");
  table.Row({"client", std::to_string(client.client()) + " " + Printable(client.name()) +
                           ", process " + std::to_string(client.pid()) + " of user " +
                           std::to_string(client.uid())});
  table.Row({"holds", OfBudget(client.device_bytes(), client.device_budget()) + " on devices, " +
                          OfBudget(client.host_bytes(), client.host_budget()) +
                          " in host memory, " + Size(client.pinned_bytes()) + " pinned"});
  table.Row({"in use", Size(client.in_use_bytes()) + ", which cannot leave"});
  table.Row(
      {"waiting", std::to_string(client.waiting()) + (client.waiting() == 1 ? " call" : " calls")});
  std::string first = "tensors";
  for (const auto& [tier, of] : view.tiers) {
    table.Row({std::exchange(first, ""),
               std::to_string(of.tensors) + " of " + Size(of.bytes) + " on " + Printable(tier)});
  }
  first = "largest";
  for (const proto::TensorInfo& tensor : view.largest) {
    table.Row({std::exchange(first, ""),
               std::to_string(tensor.id()) + " " + Printable(tensor.name()) + ", " +
                   Size(tensor.bytes()) + ", " + Printable(tensor.state()) + ", on " +
                   Printable(tensor.tier())});
  }
  if (const std::string advice = Advice(view); !advice.empty()) table.Row({"why", advice});
  return table.Text(columns);
}

std::string ClientJson(const ClientView& view) {
  JsonWriter json;
  json.BeginObject();
  AddClient(json, "client", view.client);
  json.BeginArray("tiers");
  for (const auto& [tier, of] : view.tiers) {
    json.BeginObject()
        .Field("tier", tier)
        .Field("tensors", of.tensors)
        .Field("bytes", of.bytes)
        .EndObject();
  }
  json.EndArray().BeginArray("largest");
  for (const proto::TensorInfo& tensor : view.largest) {
    json.BeginObject()
        .Field("tensor", tensor.id())
        .Field("name", tensor.name())
        .Field("bytes", tensor.bytes())
        .Field("state", tensor.state())
        .Field("tier", tensor.tier())
        .EndObject();
  }
  return json.EndArray().EndObject().Take();
}

}  // namespace ravenstore::client::ctl
