#include "transport/ucx.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/check.h"
#include "ipc/clock.h"
#include "ipc/unique_fd.h"
#include "transport/address.h"

namespace ravenstore::transport {
namespace {

using core::Error;
using core::ErrorCode;
using core::Result;
using core::Status;
using core::Tick;
using ipc::UniqueFd;

constexpr unsigned kMessageId = 1;
// Messages each way that the other end has not acknowledged.
constexpr uint64_t kWindow = 8;
// A chunk, and its frame's header.
constexpr size_t kMessageMax = kChunk.count() + 64;
// A message is one segment of UCX's TCP, of which smaller ones cost more system calls.
constexpr const char* kTcpSegment = "272k";
static_assert(kMessageMax + 4096 <= 272 << 10);
constexpr uint64_t kNoNumber = UINT64_MAX;
// Calls of UCX's progress before the connections' turn.
constexpr int kTurn = 256;
// How long closing all connections may take when the transport ends.
constexpr core::Duration kClosing = std::chrono::seconds(1);

// Before the bytes of each message.
struct MessageHeader {
  uint64_t number = kNoNumber;  // from 0, of those with bytes; kNoNumber: there are none
  uint64_t consumed = 0;        // messages of the other end
};

// A message that goes out. It is UCX's from Send until `request` is done.
struct Outgoing {
  MessageHeader header;
  std::string bytes;
  ucs_status_ptr_t request = nullptr;
};

// A message that came: UCX's memory, until it is released.
struct Incoming {
  void* data = nullptr;
  size_t length = 0;
  size_t taken = 0;
};

Error Malformed() {
  return {ErrorCode::kCorrupt, "the peer's messages are not this transport's"};
}

class Ucx final : public UcxTransport {
 public:
  Ucx(UcxOptions options, Service* service, const UcxLibrary& ucx)
      : options_(std::move(options)), service_(service), ucx_(ucx) {}
  ~Ucx() override;

  Status Open();

  Result<ConnectionId> Connect(std::string_view node, std::string_view address,
                               Tick deadline) override;
  void Close(ConnectionId connection) override;
  void Poll(Tick until) override;
  void Wake() override {
    const uint64_t one = 1;
    // Full is awake.
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
  }
  Tick Now() const override { return ipc::Now(); }
  const std::string& address() const override { return address_; }

 protected:
  Multiplexer* Find(ConnectionId connection) override {
    const auto found = connections_.find(connection);
    return found == connections_.end() || !found->second->endpoint ? nullptr
                                                                   : found->second->calls.get();
  }
  void HasOutput(ConnectionId /*connection*/) override { has_output_ = true; }

 private:
  // A lost connection has no endpoint. It stays until UCX has released it and its messages.
  struct Connection {
    ConnectionId id{};
    bool accepted = false;
    ucp_ep_h endpoint = nullptr;
    ucs_status_ptr_t closing = nullptr;
    std::unique_ptr<Multiplexer> calls;
    Tick ready_until = core::kNever;
    std::optional<Error> failure = {};  // UCX's error, or what is wrong with its messages

    std::array<Outgoing, kWindow> outgoing = {};  // each at its number modulo kWindow
    uint64_t sent = 0;
    uint64_t acknowledged = 0;
    Outgoing notice = {};  // that has no bytes: only how much was consumed

    std::array<Incoming, kWindow> incoming = {};  // likewise: UCX promises no order
    uint64_t consumed = 0;
    uint64_t reported = 0;  // of which the other end knows
  };

  // UCX calls these from within its progress. They only store what they receive.
  static void OnConnectionRequest(ucp_conn_request_h request, void* self);
  static void OnEndpointError(void* self, ucp_ep_h endpoint, ucs_status_t status);
  static ucs_status_t OnMessage(void* self, const void* header, size_t header_length, void* data,
                                size_t length, const ucp_am_recv_param_t* param);
  // Whether the message's bytes are kept.
  bool Keep(Connection& connection, const MessageHeader& header, Incoming message, bool eager);

  Result<ucp_context_h> MakeContext(const std::string& transports, const std::string& devices);
  Status CheckEach();
  Status MakeWorker();
  Status Listen();
  std::string Words(ucs_status_t status) const { return ucx_.ucs_status_string(status); }
  Error Broken(ucs_status_t status) const {
    return {ErrorCode::kUnavailable, "the connection broke: " + Words(status)};
  }

  // `params` say whom to connect to, or whom to accept.
  Result<Connection*> Add(ucp_ep_params_t params, std::string peer);
  void Accept(ucp_conn_request_h request);
  bool MayAccept() const;

  // All: whether something was moved.
  bool Work();
  bool Progress();
  bool Pump(Connection& connection);
  bool Receive(Connection& connection);
  bool Send(Connection& connection);
  void SendNotice(Connection& connection);
  void Post(Connection& connection, Outgoing& message);

  // Whether UCX is done with the message, or with a lost connection.
  bool IsFree(Connection& connection, Outgoing& message);
  bool IsClosed(Connection& connection);
  void Release(Incoming& message);
  void Sweep();

  void Expire();
  Tick NextTimer() const;
  void Wait(Tick until);
  void Lose(Connection& connection, const Error& why, bool notify = true);

  const UcxOptions options_;
  Service* const service_;
  const UcxLibrary& ucx_;
  std::string address_;
  UniqueFd epoll_;
  UniqueFd wake_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_listener_h listener_ = nullptr;
  bool has_output_ = false;
  uint64_t last_connection_ = 0;
  std::vector<ucp_conn_request_h> requests_;
  std::map<ConnectionId, std::unique_ptr<Connection>> connections_;
  std::unordered_map<ucp_ep_h, Connection*> by_endpoint_;
};

// ---- Opening

Status Ucx::Open() {
  if (!options_.trusted_fabric) {
    return Error{ErrorCode::kPermission,
                 "UCX neither encrypts nor authenticates: whoever reaches its port owns the "
                 "daemon, so it needs trusted_fabric = true"};
  }
  if (!IsNodeName(options_.node)) {
    return Error{ErrorCode::kInvalidArgument, "\"" + options_.node + "\" is no name of a node"};
  }
  if (options_.transports.empty() || options_.devices.empty()) {
    return Error{ErrorCode::kInvalidArgument, "UCX needs its transports and devices by name"};
  }
  RAVEN_RETURN_IF_ERROR(CheckEach());
  RAVEN_ASSIGN_OR_RETURN(context_, MakeContext(options_.transports, options_.devices));
  RAVEN_RETURN_IF_ERROR(MakeWorker());
  return options_.listen.empty() ? core::Ok() : Listen();
}

Result<ucp_context_h> Ucx::MakeContext(const std::string& transports, const std::string& devices) {
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucx_.ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) {
    return Error{ErrorCode::kSystem, "UCX's configuration cannot be read: " + Words(status)};
  }
  ucp_context_h context = nullptr;
  status = ucx_.ucp_config_modify(config, "TLS", transports.c_str());
  if (status == UCS_OK) status = ucx_.ucp_config_modify(config, "NET_DEVICES", devices.c_str());
  // For the speed alone: a UCX that does not know them goes without.
  ucx_.ucp_config_modify(config, "TCP_TX_SEG_SIZE", kTcpSegment);
  ucx_.ucp_config_modify(config, "TCP_RX_SEG_SIZE", kTcpSegment);
  if (status == UCS_OK) {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
    status = ucx_.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context);
  }
  ucx_.ucp_config_release(config);
  if (status != UCS_OK) {
    return Error{ErrorCode::kUnsupported, "UCX has no transport " + transports + " on the device " +
                                              devices + " here: " + Words(status)};
  }
  return context;
}

// UCX goes on with those that it has of a list.
Status Ucx::CheckEach() {
  const auto names = [](std::string_view list) {
    std::vector<std::string> all;
    for (size_t end = 0; end != list.npos; list.remove_prefix(std::min(list.size(), end + 1))) {
      end = list.find(',');
      all.emplace_back(list.substr(0, end));
    }
    return all;
  };
  for (const std::string& transport : names(options_.transports)) {
    RAVEN_ASSIGN_OR_RETURN(ucp_context_h context, MakeContext(transport, options_.devices));
    ucx_.ucp_cleanup(context);
  }
  for (const std::string& device : names(options_.devices)) {
    RAVEN_ASSIGN_OR_RETURN(ucp_context_h context, MakeContext(options_.transports, device));
    ucx_.ucp_cleanup(context);
  }
  return core::Ok();
}

Status Ucx::MakeWorker() {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // opened on one thread, and polled on another
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessageId;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG | UCP_AM_FLAG_PERSISTENT_DATA;
  handler.cb = OnMessage;
  handler.arg = this;
  int events = -1;
  ucs_status_t status = ucx_.ucp_worker_create(context_, &params, &worker_);
  if (status == UCS_OK) status = ucx_.ucp_worker_set_am_recv_handler(worker_, &handler);
  if (status == UCS_OK) status = ucx_.ucp_worker_get_efd(worker_, &events);
  if (status != UCS_OK) {
    return Error{ErrorCode::kSystem, "UCX makes no worker: " + Words(status)};
  }
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event event{};
  event.events = EPOLLIN;
  for (const int descriptor : {events, wake_.get()}) {
    event.data.fd = descriptor;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) {
      return Error{ErrorCode::kSystem, "no epoll or eventfd: " + std::string(std::strerror(errno))};
    }
  }
  return core::Ok();
}

Status Ucx::Listen() {
  RAVEN_ASSIGN_OR_RETURN(Address address, ParseOwnAddress(options_.listen));
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr = {.addr = address.get(), .addrlen = address.length};
  params.conn_handler = {.cb = OnConnectionRequest, .arg = this};
  ucs_status_t status = ucx_.ucp_listener_create(worker_, &params, &listener_);
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  if (status == UCS_OK) status = ucx_.ucp_listener_query(listener_, &attributes);
  if (status != UCS_OK) {
    return Error{ErrorCode::kUnavailable,
                 "cannot listen at " + options_.listen + ": " + Words(status)};
  }
  address.bytes = attributes.sockaddr;
  address_ = FormatAddress(address);
  return core::Ok();
}

Ucx::~Ucx() {
  for (const auto& [id, connection] : connections_) Close(id);
  const Tick end = Now() + kClosing;
  for (Sweep(); worker_ != nullptr && !connections_.empty() && Now() < end; Sweep()) {
    if (!Progress()) Wait(Now() + std::chrono::milliseconds(1));
  }
  for (const ucp_conn_request_h request : requests_) ucx_.ucp_listener_reject(listener_, request);
  if (listener_ != nullptr) ucx_.ucp_listener_destroy(listener_);
  epoll_.reset();  // before the descriptor that it watches
  if (worker_ != nullptr) ucx_.ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucx_.ucp_cleanup(context_);
}

// ---- Callbacks of UCX

void Ucx::OnConnectionRequest(ucp_conn_request_h request, void* self) {
  static_cast<Ucx*>(self)->requests_.push_back(request);
}

void Ucx::OnEndpointError(void* self, ucp_ep_h endpoint, ucs_status_t status) {
  auto* const transport = static_cast<Ucx*>(self);
  const auto found = transport->by_endpoint_.find(endpoint);
  if (found == transport->by_endpoint_.end()) return;  // lost already
  found->second->failure = transport->Broken(status);
}

ucs_status_t Ucx::OnMessage(void* self, const void* header, size_t header_length, void* data,
                            size_t length, const ucp_am_recv_param_t* param) {
  auto* const transport = static_cast<Ucx*>(self);
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0) return UCS_OK;
  const auto found = transport->by_endpoint_.find(param->reply_ep);
  if (found == transport->by_endpoint_.end()) return UCS_OK;  // lost already
  Connection& connection = *found->second;
  MessageHeader read;
  if (header_length != sizeof(read)) {
    connection.failure = Malformed();
    return UCS_OK;
  }
  std::memcpy(&read, header, sizeof(read));
  const bool eager = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0;
  const Incoming message{.data = data, .length = length};
  return transport->Keep(connection, read, message, eager) ? UCS_INPROGRESS : UCS_OK;
}

bool Ucx::Keep(Connection& connection, const MessageHeader& header, Incoming message, bool eager) {
  Incoming& kept = connection.incoming[header.number % kWindow];
  const bool notice = header.number == kNoNumber && message.length == 0;
  const bool fits = eager && message.length > 0 && message.length <= kMessageMax &&
                    header.number - connection.consumed < kWindow && kept.data == nullptr;
  if (header.consumed > connection.sent || (!notice && !fits)) {
    connection.failure = Malformed();
    return false;
  }
  connection.acknowledged = std::max(connection.acknowledged, header.consumed);
  if (!notice) kept = message;
  return !notice;
}

// ---- Connections

Result<Ucx::Connection*> Ucx::Add(ucp_ep_params_t params, std::string peer) {
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = OnEndpointError, .arg = this};
  auto connection = std::make_unique<Connection>();
  const ucs_status_t status = ucx_.ucp_ep_create(worker_, &params, &connection->endpoint);
  if (status != UCS_OK) {
    return Error{ErrorCode::kSystem, "UCX makes no connection: " + Words(status)};
  }
  connection->id = ConnectionId{++last_connection_};
  connection->calls =
      std::make_unique<Multiplexer>(connection->id,
                                    Multiplexer::Options{.self = options_.node,
                                                         .peer = std::move(peer),
                                                         .patience = options_.patience,
                                                         .version = options_.version},
                                    service_, Now());
  Connection* const added = connection.get();
  by_endpoint_[added->endpoint] = added;
  connections_.emplace(added->id, std::move(connection));
  has_output_ = true;
  return added;
}

Result<ConnectionId> Ucx::Connect(std::string_view node, std::string_view address, Tick deadline) {
  if (!IsNodeName(node)) {
    return Error{ErrorCode::kInvalidArgument, "\"" + std::string(node) + "\" is no name of a node"};
  }
  RAVEN_ASSIGN_OR_RETURN(const Address to, ParseAddress(address));
  if (connections_.size() >= options_.connections_max) {
    return Error{ErrorCode::kLimit,
                 std::to_string(connections_.size()) + " connections to nodes are open"};
  }
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = {.addr = to.get(), .addrlen = to.length};
  RAVEN_ASSIGN_OR_RETURN(Connection * connection, Add(params, std::string(node)));
  connection->ready_until = deadline;
  return connection->id;
}

void Ucx::Close(ConnectionId id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Lose(*found->second, {ErrorCode::kUnavailable, "the connection was closed"}, false);
}

bool Ucx::MayAccept() const {
  const auto strangers = std::ranges::count_if(connections_, [](const auto& c) {
    return c.second->accepted && c.second->endpoint && c.second->ready_until != core::kNever;
  });
  return connections_.size() < options_.connections_max &&
         strangers < static_cast<ptrdiff_t>(options_.handshakes_max);
}

void Ucx::Accept(ucp_conn_request_h request) {
  if (!MayAccept()) {
    ucx_.ucp_listener_reject(listener_, request);
    return;
  }
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  const auto connection = Add(params, "");
  if (!connection.ok()) return;  // UCX notifies the node that connects
  (*connection)->accepted = true;
  (*connection)->ready_until = Now() + options_.handshake;
}

void Ucx::Lose(Connection& connection, const Error& why, bool notify) {
  if (connection.endpoint == nullptr) return;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;  // a peer that does not answer is not waited for
  by_endpoint_.erase(connection.endpoint);
  connection.closing = ucx_.ucp_ep_close_nbx(std::exchange(connection.endpoint, nullptr), &params);
  connection.calls->Fail(why);
  if (notify) service_->OnLost(connection.id, why);
}

// ---- Messages

void Ucx::Release(Incoming& message) {
  if (message.data != nullptr) ucx_.ucp_am_data_release(worker_, message.data);
  message = {};
}

bool Ucx::IsFree(Connection& connection, Outgoing& message) {
  if (message.request == nullptr) return true;
  ucs_status_t status = UCS_PTR_STATUS(message.request);
  if (UCS_PTR_IS_PTR(message.request)) {
    status = ucx_.ucp_request_check_status(message.request);
    if (status == UCS_INPROGRESS) return false;
    ucx_.ucp_request_free(message.request);
  }
  message.request = nullptr;
  if (status != UCS_OK && !connection.failure) connection.failure = Broken(status);
  return true;
}

bool Ucx::IsClosed(Connection& connection) {
  if (UCS_PTR_IS_PTR(connection.closing)) {
    if (ucx_.ucp_request_check_status(connection.closing) == UCS_INPROGRESS) return false;
    ucx_.ucp_request_free(connection.closing);
  }
  connection.closing = nullptr;
  return IsFree(connection, connection.notice) &&
         std::ranges::all_of(connection.outgoing,
                             [&](Outgoing& message) { return IsFree(connection, message); });
}

void Ucx::Post(Connection& connection, Outgoing& message) {
  message.header.consumed = connection.reported = connection.consumed;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_AM_SEND_FLAG_EAGER | UCP_AM_SEND_FLAG_REPLY;
  message.request =
      ucx_.ucp_am_send_nbx(connection.endpoint, kMessageId, &message.header, sizeof(message.header),
                           message.bytes.data(), message.bytes.size(), &params);
}

bool Ucx::Receive(Connection& connection) {
  bool any = false;
  while (connection.endpoint != nullptr) {
    Incoming& message = connection.incoming[connection.consumed % kWindow];
    if (message.data == nullptr) break;
    const auto taken = connection.calls->TakeInput(
        std::span(static_cast<const std::byte*>(message.data), message.length)
            .subspan(message.taken),
        Now());
    if (!taken.ok()) Lose(connection, taken.error());
    if (connection.calls->ready()) connection.ready_until = core::kNever;
    if (!taken.ok() || *taken == 0) break;
    any = true;
    message.taken += *taken;
    if (message.taken < message.length) continue;
    Release(message);
    ++connection.consumed;
  }
  return any;
}

bool Ucx::Send(Connection& connection) {
  bool any = false;
  while (connection.endpoint != nullptr && connection.sent - connection.acknowledged < kWindow) {
    Outgoing& message = connection.outgoing[connection.sent % kWindow];
    if (!IsFree(connection, message)) break;
    connection.calls->TakeOutput(kMessageMax, &message.bytes);
    if (message.bytes.empty() || connection.endpoint == nullptr) break;
    message.header.number = connection.sent++;
    Post(connection, message);
    any = true;
  }
  return any;
}

void Ucx::SendNotice(Connection& connection) {
  if (connection.endpoint == nullptr) return;
  if (connection.consumed - connection.reported < kWindow / 2) return;
  if (IsFree(connection, connection.notice)) Post(connection, connection.notice);
}

bool Ucx::Pump(Connection& connection) {
  bool moved = Receive(connection);
  moved |= Send(connection);
  SendNotice(connection);
  if (connection.endpoint != nullptr && connection.failure) {
    Lose(connection, *connection.failure);
    moved = true;
  }
  return moved;
}

// ---- Poll

bool Ucx::Progress() {
  int turns = 0;
  while (turns < kTurn && ucx_.ucp_worker_progress(worker_) != 0) ++turns;
  return turns > 0;
}

bool Ucx::Work() {
  bool moved = Progress();
  for (const ucp_conn_request_h request : std::exchange(requests_, {})) Accept(request);
  has_output_ = false;
  std::vector<Connection*> all;  // none goes before Sweep, while callbacks may add some
  for (const auto& [id, connection] : connections_) all.push_back(connection.get());
  for (Connection* connection : all) moved |= Pump(*connection);
  Sweep();
  return moved;
}

void Ucx::Sweep() {
  std::erase_if(connections_, [this](const auto& entry) {
    Connection& connection = *entry.second;
    if (connection.endpoint != nullptr) return false;
    // Not earlier: bytes that a callback was shown are stored in them.
    for (Incoming& message : connection.incoming) Release(message);
    return IsClosed(connection);
  });
}

Tick Ucx::NextTimer() const {
  Tick next = core::kNever;
  for (const auto& [id, connection] : connections_) {
    if (connection->endpoint == nullptr) continue;
    next = std::min({next, connection->ready_until, connection->calls->NextTimer()});
  }
  return next;
}

void Ucx::Expire() {
  const Tick now = Now();
  std::vector<Connection*> all;
  for (const auto& [id, connection] : connections_) {
    if (connection->endpoint != nullptr) all.push_back(connection.get());
  }
  for (Connection* connection : all) {
    if (connection->ready_until <= now) {
      Lose(*connection, {ErrorCode::kTimedOut, "the peer did not answer in time"});
    } else if (connection->calls->NextTimer() <= now) {
      if (const auto status = connection->calls->Expire(now); !status.ok()) {
        Lose(*connection, status.error());
      }
    }
  }
}

void Ucx::Wait(Tick until) {
  const Tick now = Now();
  // Not armed: something happened since the last progress.
  if (until <= now || ucx_.ucp_worker_arm(worker_) != UCS_OK) return;
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(
      std::min<core::Duration>(until - now, std::chrono::hours(1)));
  epoll_event event{};
  const int count = ::epoll_wait(epoll_.get(), &event, 1, static_cast<int>(wait.count()));
  if (count <= 0 || event.data.fd != wake_.get()) return;
  uint64_t wakes = 0;
  [[maybe_unused]] const ssize_t read = ::read(wake_.get(), &wakes, sizeof(wakes));
}

void Ucx::Poll(Tick until) {
  if (!Work() && !has_output_) {
    Wait(std::min(until, NextTimer()));
    Work();
  }
  Expire();
}

}  // namespace

Result<std::unique_ptr<UcxTransport>> OpenUcx(UcxOptions options, Service* service,
                                              const UcxLibrary& ucx) {
  auto transport = std::make_unique<Ucx>(std::move(options), service, ucx);
  RAVEN_RETURN_IF_ERROR(transport->Open());
  return std::unique_ptr<UcxTransport>(std::move(transport));
}

Result<std::unique_ptr<UcxTransport>> OpenUcx(UcxOptions options, Service* service) {
  RAVEN_ASSIGN_OR_RETURN(const UcxLibrary* ucx, LoadUcx());
  return OpenUcx(std::move(options), service, *ucx);
}

}  // namespace ravenstore::transport
