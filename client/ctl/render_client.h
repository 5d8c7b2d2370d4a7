// What is known of one client: what it holds, where, and why its calls wait. Text for people and
// JSON for programs. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "client/ctl/render.h"
#include "proto/control.pb.h"

namespace ravenstore::client::ctl {

struct ClientView {
  struct Tier {
    uint64_t tensors = 0;
    uint64_t bytes = 0;
  };

  proto::ClientInfo client;
  std::map<std::string, Tier> tiers = {};       // of its tensors, by where they are
  std::vector<proto::TensorInfo> largest = {};  // the largest first; kLargest at most
  static constexpr size_t kLargest = 5;

  // A tensor of the client's, in any order.
  void Add(const proto::TensorInfo& tensor);
};

std::string ClientText(const ClientView& view, size_t columns = kColumns);
std::string ClientJson(const ClientView& view);

}  // namespace ravenstore::client::ctl
