// transport_bench: what calls between two nodes cost over the loopback, with TLS or over UCX, one
// JSON object a line. bench/report runs it.
#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/figure.h"
#include "bench/ucx_pump.h"
#include "core/check.h"
#include "ipc/clock.h"
#include "transport/tls_socket.h"
#include "transport/ucx.h"

namespace ravenstore::bench {
namespace {

using transport::ConnectionId;

constexpr core::Bytes kBulk = core::MiB(16);
constexpr size_t kInFlight = 4;
constexpr size_t kRounds = 5;

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

// A node, and where it listens.
struct Node {
  std::unique_ptr<transport::Transport> transport;
  std::string address;
};

template <typename Opened>
Node Take(Opened opened, BulkService* service) {
  RAVEN_CHECK(opened.ok());
  service->transport = opened->get();
  const std::string address = (*opened)->address();
  return {*std::move(opened), address};
}

using Opener = Node (*)(const std::string& node, const std::string& listen, BulkService* service);

Node OpenTls(const std::string& node, const std::string& listen, BulkService* service) {
  return Take(transport::OpenTlsSocket(
                  {.node = node, .key = transport::NodeKey({1, 2, 3}), .listen = listen}, service),
              service);
}

Node OpenUcx(const std::string& node, const std::string& listen, BulkService* service) {
  return Take(transport::OpenUcx({.node = node,
                                  .trusted_fabric = true,
                                  .transports = "tcp",
                                  .devices = "lo",
                                  .listen = listen},
                                 service),
              service);
}

// A node on a thread of its own, and one on this thread that calls it.
class Nodes {
 public:
  explicit Nodes(Opener open)
      : server_(open("server", "127.0.0.1:0", &server_service_)),
        client_(open("client", "", &client_service_)),
        connection_(client_.transport->Connect("server", server_.address, core::kNever).value()),
        thread_([this] {
          while (!ends_) server_.transport->Poll(core::kNever);
        }) {}
  ~Nodes() {
    server_service_.expects_loss = true;
    client_.transport->Close(connection_);
    ends_ = true;
    server_.transport->Wake();
    thread_.join();
  }

  // Makes `count` calls, at most `in_flight` at the same time. How long each took, in seconds.
  std::vector<double> Call(size_t count, size_t in_flight, size_t send, size_t receive) {
    std::vector<double> seconds;
    std::vector<std::byte> source(send);
    std::vector<std::byte> room(receive);  // shared: it is never read
    size_t begun = 0;
    while (seconds.size() < count) {
      while (begun < count && begun - seconds.size() < in_flight) {
        const auto call = client_.transport->Call(
            connection_, {.header = "call",
                          .send = source,
                          .receive = room,
                          .done = [&seconds, begin = ipc::Now()](const auto& result) {
                            RAVEN_CHECK(result.ok());
                            seconds.push_back(core::Seconds(ipc::Now() - begin));
                          }});
        RAVEN_CHECK(call.ok());
        ++begun;
      }
      client_.transport->Poll(core::kNever);
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
  Node server_;
  Node client_;
  ConnectionId connection_;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

void ReportRequests(Nodes& nodes, const std::string& name, size_t count, const Report& report) {
  std::vector<double> seconds = nodes.Call(count, 1, 0, 0);
  const std::string detail = "no bulk, one at a time";
  report({.name = name + "_request_us_p50",
          .unit = "us",
          .value = Median(seconds) * 1e6,
          .detail = detail});
  report({.name = name + "_request_us_p99",
          .unit = "us",
          .value = Quantile(seconds, 0.99) * 1e6,
          .detail = detail});
}

void MeasureTls(size_t bulk, size_t small, const Report& report) {
  Nodes nodes(OpenTls);
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
  ReportRequests(nodes, "cluster.transport", small, report);
}

// In turn with UCX's own active messages.
void MeasureUcx(size_t bulk, size_t small, const Report& report) {
  auto pump = OpenUcxPump(kBulk.count());
  if (!pump.ok()) {
    report({.name = "cluster.ucx_vs_am", .unit = "x", .skipped = pump.error().message});
    return;
  }
  Nodes nodes(OpenUcx);
  nodes.Call(kInFlight, kInFlight, kBulk.count(), kBulk.count());  // both warm up
  (*pump)->OutAndIn(kInFlight, kInFlight, kBulk.count());
  std::vector<double> ours;
  std::vector<double> theirs;
  std::vector<double> ratios;
  const size_t count = 1 + bulk / kRounds;
  const double gigabytes = static_cast<double>(2 * count * kBulk.count()) / 1e9;
  for (size_t round = 0; round < kRounds; ++round) {
    const core::Tick begin = ipc::Now();
    nodes.Call(count, kInFlight, kBulk.count(), 0);
    nodes.Call(count, kInFlight, 0, kBulk.count());
    ours.push_back(gigabytes / core::Seconds(ipc::Now() - begin));
    theirs.push_back(gigabytes / (*pump)->OutAndIn(count, kInFlight, kBulk.count()));
    ratios.push_back(ours.back() / theirs.back());
  }
  const std::string detail = "16 MiB out and in, four in flight, UCX over TCP, median of five";
  report({.name = "cluster.ucx_gb_s", .unit = "GB/s", .value = Median(ours), .detail = detail});
  report({.name = "cluster.ucx_vs_am",
          .unit = "x",
          .value = Median(ratios),
          .bound = Median(theirs),
          .target = 0.7,
          .at_least = true,
          .detail = detail + "; UCX's active messages in turn"});
  ReportRequests(nodes, "cluster.ucx", small, report);
}

int Main(int argc, char** argv) {
  CLI::App app("Measures calls between two nodes over the loopback.", "transport_bench");
  double scale = 1;
  std::string transport = "tls";
  app.add_option("--scale", scale, "shortens (below 1) the runs")->check(CLI::Range(0.01, 10.0));
  app.add_option("--transport", transport, "what carries the calls")
      ->check(CLI::IsMember({"tls", "ucx"}))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  std::signal(SIGPIPE, SIG_IGN);
  const Report report = PrintEach(Machine("no GPU"));
  const auto bulk = static_cast<size_t>(1 + 200 * scale);
  const auto small = static_cast<size_t>(100 + 20'000 * scale);
  const auto measure = transport == "ucx" ? MeasureUcx : MeasureTls;
  measure(bulk, small, report);
  return 0;
}

}  // namespace
}  // namespace ravenstore::bench

int main(int argc, char** argv) {
  return ravenstore::bench::Main(argc, argv);
}
