// The screen of `ravenctl top`: what the store does now, by two looks at the daemon. Pure.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "client/ctl/session.h"
#include "core/types.h"
#include "proto/control.pb.h"

namespace ravenstore::client::ctl {

struct Look {
  core::Tick at{};
  Snapshot seen;
};

// What users are shown by, the most first.
enum class TopOrder { kMemory, kClients, kWaiting, kName };

// What keys say. Threads: one.
struct TopView {
  TopOrder order = TopOrder::kMemory;
  bool help = false;
  bool ends = false;

  // False: the key means nothing.
  bool Take(char key);
};

struct Screen {
  size_t columns;
  size_t rows;  // what is too much is left out at the end, and said; 0: nothing is
  TopView view = {};
  bool has_keys = false;
};

// Rates are those between the two looks. There are none if the daemon was restarted between them,
// or at the first look, whose `before` is null.
std::string TopText(const proto::Welcome& welcome, const Look* before, const Look& now,
                    const std::function<std::string(uid_t)>& name_of, Screen screen);

}  // namespace ravenstore::client::ctl
