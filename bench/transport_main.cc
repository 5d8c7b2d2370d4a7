// transport_bench: what calls between two nodes cost over the loopback, with TLS, one JSON object a
// line. bench/report runs it.
#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/figure.h"
#include "core/check.h"
#include "ipc/clock.h"
#include "transport/tls_socket.h"

namespace ravenstore::bench {
namespace {

using transport::ConnectionId;

constexpr core::Bytes kBulk = core::MiB(16);
constexpr size_t kInFlight = 4;

// Takes bulk into one buffer, and answers from another.
class BulkService : public transport::Service {
 public:
  void OnConnected(ConnectionId, std::string_view) override {}
  void OnLost(ConnectionId, const core::Error& why) override {
    if (!expects_loss) std::fprintf(stderr, "%s\n", Describe(why).c_str());
    RAVEN_CHECK(expects_loss);
  }
  core::Result<transport::Sink> OnRequest(const transport::IncomingCall& call) override {
    room_ = call.room.count();
    return transport::Sink{.bytes = std::span(sink_).first(call.bulk.count())};
  }
  void OnReceived(transport::CallId call) override {
    RAVEN_CHECK(
        transport->Reply(call, {.header = "", .send = std::span(source_).first(room_)}).ok());
  }
  void OnEnded(transport::CallId, const core::Status&) override {}

  transport::Transport* transport = nullptr;
  std::atomic<bool> expects_loss = false;

 private:
  std::vector<std::byte> sink_ = std::vector<std::byte>(kBulk.count());
  std::vector<std::byte> source_ = std::vector<std::byte>(kBulk.count());
  size_t room_ = 0;  // of the call that OnReceived answers: all calls of a measurement are alike
};

std::unique_ptr<transport::TlsSocketTransport> Open(const std::string& node,
                                                    const std::string& listen,
                                                    BulkService* service) {
  auto opened = transport::OpenTlsSocket(
      {.node = node, .key = transport::NodeKey({1, 2, 3}), .listen = listen}, service);
  RAVEN_CHECK(opened.ok());
  service->transport = opened->get();
  return *std::move(opened);
}

// A node on a thread of its own, and one on this thread that calls it.
class Nodes {
 public:
  Nodes()
      : server_(Open("server", "127.0.0.1:0", &server_service_)),
        client_(Open("client", "", &client_service_)),
        connection_(client_->Connect("server", server_->address(), core::kNever).value()),
        thread_([this] {
          while (!ends_) server_->Poll(core::kNever);
        }) {}
  ~Nodes() {
    server_service_.expects_loss = true;
    client_->Close(connection_);
    ends_ = true;
    server_->Wake();
    thread_.join();
  }

  // Makes `count` calls, at most `in_flight` at once. How long each took, in seconds.
  std::vector<double> Call(size_t count, size_t in_flight, size_t send, size_t receive) {
    std::vector<double> seconds;
    std::vector<std::byte> source(send);
    std::vector<std::byte> room(receive);  // shared: nobody reads it
    size_t begun = 0;
    while (seconds.size() < count) {
      while (begun < count && begun - seconds.size() < in_flight) {
        const auto call =
            client_->Call(connection_, {.header = "call",
                                        .send = source,
                                        .receive = room,
                                        .done = [&seconds, begin = ipc::Now()](const auto& result) {
                                          RAVEN_CHECK(result.ok());
                                          seconds.push_back(core::Seconds(ipc::Now() - begin));
                                        }});
        RAVEN_CHECK(call.ok());
        ++begun;
      }
      client_->Poll(core::kNever);
    }
    return seconds;
  }

  double GigabytesPerSecond(size_t count, size_t send, size_t receive) {
    const core::Tick begin = ipc::Now();
    Call(count, kInFlight, send, receive);
    return static_cast<double>(count * kBulk.count()) / 1e9 / core::Seconds(ipc::Now() - begin);
  }

 private:
  BulkService server_service_;
  BulkService client_service_;
  std::unique_ptr<transport::TlsSocketTransport> server_;
  std::unique_ptr<transport::TlsSocketTransport> client_;
  ConnectionId connection_;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

int Main(int argc, char** argv) {
  CLI::App app("Measures calls between two nodes over the loopback.", "transport_bench");
  double scale = 1;
  app.add_option("--scale", scale, "shortens (below 1) the runs")->check(CLI::Range(0.01, 10.0));
  CLI11_PARSE(app, argc, argv);
  std::signal(SIGPIPE, SIG_IGN);
  const auto report = [machine = Machine("no GPU")](const Figure& figure) {
    std::printf("%s\n", Json(figure, machine).c_str());
    std::fflush(stdout);
  };
  const auto bulk = static_cast<size_t>(1 + 200 * scale);
  const auto small = static_cast<size_t>(100 + 20'000 * scale);
  Nodes nodes;
  nodes.Call(kInFlight, kInFlight, kBulk.count(), kBulk.count());  // warms up
  const std::string detail = "16 MiB, four in flight, TLS 1.3";
  report({.name = "cluster.transport_put_gb_s",
          .unit = "GB/s",
          .value = nodes.GigabytesPerSecond(bulk, kBulk.count(), 0),
          .detail = detail});
  report({.name = "cluster.transport_get_gb_s",
          .unit = "GB/s",
          .value = nodes.GigabytesPerSecond(bulk, 0, kBulk.count()),
          .detail = detail});
  std::vector<double> seconds = nodes.Call(small, 1, 0, 0);
  report({.name = "cluster.transport_request_us_p50",
          .unit = "us",
          .value = Median(seconds) * 1e6,
          .detail = "no bulk, one at a time"});
  report({.name = "cluster.transport_request_us_p99",
          .unit = "us",
          .value = Quantile(seconds, 0.99) * 1e6,
          .detail = "no bulk, one at a time"});
  return 0;
}

}  // namespace
}  // namespace ravenstore::bench

int main(int argc, char** argv) {
  return ravenstore::bench::Main(argc, argv);
}
