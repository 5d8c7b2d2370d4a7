// Decides what a request may see, and makes the page.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "client/exporter/http.h"
#include "client/exporter/metrics.h"
#include "client/exporter/token.h"
#include "core/types.h"

namespace ravenstore::client::exporter {

// Who may connect to a TCP port is not known, so a request without the token sees sums only.
// Threads: one.
class Pages {
 public:
  struct Options {
    std::function<std::optional<Seen>()> look;  // nothing: the daemon does not answer
    NameOfUser name_of;                         // as MetricsOf has it
    std::optional<Token> token;                 // nothing: no request sees single users
  };
  // A look at the daemon serves requests for this long. Lower: many requests keep the daemon
  // busy. Higher: a page is that much older than its scrape.
  static constexpr core::Duration kLookAge = std::chrono::milliseconds(100);

  explicit Pages(Options options) : options_(std::move(options)) {}

  // One whole HTTP answer for each request, of at most one look at the daemon.
  std::vector<std::string> Answer(const std::vector<HttpRequest>& requests, core::Tick now);

 private:
  std::string AnswerOne(const HttpRequest& request, core::Tick now);
  const std::string& Page(bool with_users, core::Tick now);

  const Options options_;
  std::optional<core::Tick> looked_;
  std::optional<Seen> seen_;
  std::optional<std::string> page_of_[2];  // of seen_: without single users, and with them
};

}  // namespace ravenstore::client::exporter
