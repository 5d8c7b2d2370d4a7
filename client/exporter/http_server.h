// Serves short answers over HTTP on one thread, from which no connection can keep another one.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <vector>

#include "client/exporter/http.h"
#include "core/result.h"
#include "core/types.h"
#include "ipc/unique_fd.h"

namespace ravenstore::client::exporter {

// Never waits for a single connection. All requests that are complete at one time are passed to
// `answer` together. A new connection ends the oldest one if there are `connections_max`: a
// scrape arrives within milliseconds of its connection, a slow client does not.
// Owns: the listening socket and the connections.
// Threads: one.
class HttpServer {
 public:
  struct Options {
    // Lower: fewer slow connections end a scrape whose request is still on its way. Higher: more
    // descriptors, of which a process often has 1,024, and more memory for answers.
    size_t connections_max = 512;
    size_t head_bytes_max = 8192;
    // From accepting a connection until its answer is read. Shorter than a scrape over a slow
    // link ends that scrape; longer holds memory for clients that do not read.
    core::Duration connection_time = std::chrono::seconds(10);
  };
  // Returns one whole HTTP answer for each request, in their order.
  using Answer =
      std::function<std::vector<std::string>(const std::vector<HttpRequest>&, core::Tick now)>;

  // `address`: numeric, with a port; port 0 lets the system choose.
  // Errors: kInvalidArgument, kSystem.
  static core::Result<HttpServer> Listen(const std::string& address, Options options,
                                         Answer answer);

  uint16_t port() const { return port_; }

  // Serves until `stop` is readable. Errors: kSystem.
  core::Status Run(int stop);

 private:
  struct Connection {
    ipc::UniqueFd socket;
    core::Tick deadline;
    std::string head;    // the bytes read so far
    std::string answer;  // empty until the head is complete
    size_t sent = 0;
    bool over = false;
  };

  HttpServer(ipc::UniqueFd listener, uint16_t port, Options options, Answer answer)
      : listener_(std::move(listener)),
        port_(port),
        options_(options),
        answer_(std::move(answer)) {}

  // Returns whether `stop` is readable.
  core::Result<bool> Pass(int stop);
  void Accept(core::Tick now);
  void Read(Connection* connection);
  void AnswerComplete(core::Tick now);
  void Send(Connection* connection);

  ipc::UniqueFd listener_;
  uint16_t port_;
  Options options_;
  Answer answer_;
  std::list<Connection> connections_;  // the oldest first
};

}  // namespace ravenstore::client::exporter
