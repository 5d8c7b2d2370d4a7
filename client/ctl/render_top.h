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

struct Screen {
  size_t columns;
  size_t rows;  // what is too much is left out at the end, and said; 0: nothing is
};

// Rates are those between the two looks. Where the daemon was started anew between them, or at the
// first look, whose `before` is null, there are none.
std::string TopText(const proto::Welcome& welcome, const Look* before, const Look& now,
                    const std::function<std::string(uid_t)>& name_of, Screen screen);

}  // namespace ravenstore::client::ctl
