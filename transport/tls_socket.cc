#include "transport/tls_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <string_view>
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

// The connection's id otherwise.
constexpr uint64_t kListenerEvent = 0;
constexpr uint64_t kWakeEvent = UINT64_MAX;
// Records read, and chunks written, of one connection before the others' turn.
constexpr int kTurn = 16;
constexpr core::Duration kAcceptPause = std::chrono::milliseconds(100);
constexpr unsigned char kCipher[] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256

template <auto kFree>
struct Freed {
  template <typename T>
  void operator()(T* what) const {
    kFree(what);
  }
};
using Tls = std::unique_ptr<SSL, Freed<SSL_free>>;
using TlsContext = std::unique_ptr<SSL_CTX, Freed<SSL_CTX_free>>;

Error SystemError(const std::string& what) {
  return {ErrorCode::kSystem, what + ": " + std::strerror(errno)};
}

Result<UniqueFd> ListenAt(const Address& address) {
  UniqueFd socket(
      ::socket(address.get()->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return SystemError("no socket");
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(socket.get(), address.get(), address.length) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    return Error{ErrorCode::kUnavailable,
                 "this node cannot listen at " + FormatAddress(address) + " (" +
                     std::strerror(errno) +
                     "): it takes an address of this machine and a free port"};
  }
  return socket;
}

Error BrokenBy(int error) {
  return {ErrorCode::kUnavailable, "the connection broke: " + std::string(std::strerror(error))};
}

// What a failed handshake or read means, in words.
Error TlsFailure() {
  struct Meaning {
    int reason;
    ErrorCode code;
    const char* words;
  };
  constexpr const char* kOtherKey = "the peer has another key: both need the same";
  constexpr const char* kNoTls = "the peer speaks no TLS";
  static constexpr Meaning kMeanings[] = {
      {SSL_R_BINDER_DOES_NOT_VERIFY, ErrorCode::kPermission, kOtherKey},
      {SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER, ErrorCode::kPermission, kOtherKey},
      {SSL_R_TLSV1_ALERT_DECRYPT_ERROR, ErrorCode::kPermission, kOtherKey},
      {SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE, ErrorCode::kPermission,
       "the peer does not allow this node's name (its list of nodes lacks it), or has no key"},
      {SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM, ErrorCode::kPermission, "the peer offers no key"},
      {SSL_R_NO_SHARED_CIPHER, ErrorCode::kPermission, "the peer offers no key"},
      {SSL_R_WRONG_VERSION_NUMBER, ErrorCode::kCorrupt, kNoTls},
      {SSL_R_HTTP_REQUEST, ErrorCode::kCorrupt, kNoTls},
      {SSL_R_PACKET_LENGTH_TOO_LONG, ErrorCode::kCorrupt, kNoTls},
      {SSL_R_UNSUPPORTED_PROTOCOL, ErrorCode::kVersionMismatch, "the peer speaks no TLS 1.3"},
      {SSL_R_TLSV1_ALERT_PROTOCOL_VERSION, ErrorCode::kVersionMismatch,
       "the peer speaks no TLS 1.3"},
      {SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC, ErrorCode::kCorrupt,
       "damaged bytes came from the peer"},
      {SSL_R_SSLV3_ALERT_BAD_RECORD_MAC, ErrorCode::kCorrupt, "the peer got damaged bytes"},
  };
  const unsigned long error = ERR_peek_last_error();
  for (const Meaning& meaning : kMeanings) {
    if (ERR_GET_LIB(error) == ERR_LIB_SSL && ERR_GET_REASON(error) == meaning.reason) {
      return {meaning.code, meaning.words};
    }
  }
  const char* const words = ERR_reason_error_string(error);
  return {ErrorCode::kUnavailable,
          words ? "TLS failed: " + std::string(words) : "the peer ended the connection"};
}

class TlsSocket final : public TlsSocketTransport {
 public:
  TlsSocket(TlsSocketOptions options, Service* service)
      : options_(std::move(options)), service_(service) {}
  ~TlsSocket() override {
    for (const auto& [id, connection] : connections_) Close(id);
  }

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
    return found == connections_.end() || !found->second->tls ? nullptr
                                                              : found->second->calls.get();
  }
  void HasOutput(ConnectionId connection) override { busy_.insert(connection); }

 private:
  // One that is lost has neither socket nor TLS, and goes at the end of the Poll.
  struct Connection {
    ConnectionId id{};
    bool accepted = false;
    UniqueFd socket;
    Tls tls;
    std::string peer;                    // as its key's identity names it
    std::string refusal;                 // why that identity was refused
    std::unique_ptr<Multiplexer> calls;  // of an accepted one: once the handshake is over
    bool handshaken = false;
    Tick ready_until = core::kNever;
    uint32_t events = 0;     // what epoll watches
    size_t gathered = 4096;  // bytes that may wait, encrypted, for the socket: OpenSSL's default
  };

  Status MakeContext();
  static int UseKey(SSL* tls, const EVP_MD* hash, const unsigned char** identity, size_t* length,
                    SSL_SESSION** session);
  static int FindKey(SSL* tls, const unsigned char* identity, size_t length, SSL_SESSION** session);
  SSL_SESSION* KeySession(SSL* tls) const;
  bool Allows(std::string_view node) const;

  Result<Connection*> Add(UniqueFd socket, bool accepted);
  void MakeCalls(Connection& connection);
  void Accept();
  bool MayAccept() const;

  // Moves what can be moved; whether there was anything. Marks the connection busy when its turn
  // ended before that.
  bool Pump(Connection& connection);
  // Both: whether something was moved; `events` gets what has to be awaited.
  bool Read(Connection& connection, uint32_t* events);
  bool Write(Connection& connection, uint32_t* events);
  // Gives it room for `bytes` before the socket, as much as the most so far: most never carry bulk.
  static void Gather(Connection& connection, size_t bytes);
  // Gives the socket what is encrypted.
  void Flush(Connection& connection, uint32_t* events);
  // False: not over yet.
  bool Handshake(Connection& connection, uint32_t* events);
  // What a TLS call that moved nothing wants. Loses the connection if it failed.
  void Await(Connection& connection, int result, uint32_t* events);
  void Watch(int socket, uint64_t name, uint32_t events, uint32_t* watched);

  // Whether something was moved.
  bool PumpBusy();
  void Expire();
  Tick NextTimer() const;
  void Lose(Connection& connection, const Error& why, bool notify = true);

  const TlsSocketOptions options_;
  Service* const service_;
  std::string address_;
  TlsContext context_;
  UniqueFd epoll_;
  UniqueFd wake_;
  UniqueFd listener_;
  uint32_t listener_events_ = 0;
  Tick accept_from_{};  // paused for want of descriptors until then
  uint64_t last_connection_ = 0;
  std::map<ConnectionId, std::unique_ptr<Connection>> connections_;
  std::set<ConnectionId> busy_;
};

// ---- Opening

Status TlsSocket::Open() {
  if (!IsNodeName(options_.node)) {
    return Error{ErrorCode::kInvalidArgument, "\"" + options_.node + "\" is no name of a node"};
  }
  RAVEN_RETURN_IF_ERROR(MakeContext());
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_ || !wake_) return SystemError("no epoll or eventfd");
  uint32_t none = 0;
  Watch(wake_.get(), kWakeEvent, EPOLLIN, &none);
  if (options_.listen.empty()) return core::Ok();
  RAVEN_ASSIGN_OR_RETURN(Address address, ParseOwnAddress(options_.listen));
  RAVEN_ASSIGN_OR_RETURN(listener_, ListenAt(address));
  ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address.bytes), &address.length);
  address_ = FormatAddress(address);
  return core::Ok();
}

Status TlsSocket::MakeContext() {
  context_.reset(SSL_CTX_new(TLS_method()));
  SSL_CTX* const context = context_.get();
  if (context == nullptr || SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") != 1 ||
      SSL_CTX_set_num_tickets(context, 0) != 1) {
    return Error{ErrorCode::kSystem, "OpenSSL has no TLS 1.3 here"};
  }
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_read_ahead(context, 1);
  SSL_CTX_set_default_read_buffer_len(context, kChunk.count());
  SSL_CTX_set_psk_use_session_callback(context, UseKey);
  SSL_CTX_set_psk_find_session_callback(context, FindKey);
  SSL_CTX_set_app_data(context, this);
  return core::Ok();
}

SSL_SESSION* TlsSocket::KeySession(SSL* tls) const {
  SSL_SESSION* const session = SSL_SESSION_new();
  const auto key = options_.key.bytes();
  if (session == nullptr || SSL_SESSION_set1_master_key(session, key.data(), key.size()) != 1 ||
      SSL_SESSION_set_cipher(session, SSL_CIPHER_find(tls, kCipher)) != 1 ||
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) != 1) {
    SSL_SESSION_free(session);
    return nullptr;
  }
  return session;
}

int TlsSocket::UseKey(SSL* tls, const EVP_MD* /*hash*/, const unsigned char** identity,
                      size_t* length, SSL_SESSION** session) {
  const auto* self = static_cast<TlsSocket*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(tls)));
  *identity = reinterpret_cast<const unsigned char*>(self->options_.node.data());
  *length = self->options_.node.size();
  *session = self->KeySession(tls);
  return *session != nullptr ? 1 : 0;
}

int TlsSocket::FindKey(SSL* tls, const unsigned char* identity, size_t length,
                       SSL_SESSION** session) {
  const auto* self = static_cast<TlsSocket*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(tls)));
  auto* connection = static_cast<Connection*>(SSL_get_app_data(tls));
  const std::string_view name(reinterpret_cast<const char*>(identity), length);
  *session = nullptr;  // without one the handshake fails, as there is no certificate
  if (!IsNodeName(name)) {
    connection->refusal = "the peer's name is no name of a node";
  } else if (!self->Allows(name)) {
    connection->refusal = "the node " + std::string(name) + " is not allowed here";
  } else {
    connection->peer = name;
    *session = self->KeySession(tls);
  }
  return 1;
}

bool TlsSocket::Allows(std::string_view node) const {
  // Its own name comes back only from a reflected handshake.
  if (node == options_.node) return false;
  return options_.nodes.empty() || std::ranges::find(options_.nodes, node) != options_.nodes.end();
}

// ---- Connections

// Records gather before the socket: each by itself would be a system call for 16 KiB.
bool Attach(SSL* tls, int socket) {
  BIO* const in = BIO_new_socket(socket, BIO_NOCLOSE);
  BIO* const out = BIO_new_socket(socket, BIO_NOCLOSE);
  BIO* const gathered = BIO_new(BIO_f_buffer());
  if (in == nullptr || out == nullptr || gathered == nullptr) {
    for (BIO* const each : {in, out, gathered}) BIO_free(each);
    return false;
  }
  SSL_set_bio(tls, in, BIO_push(gathered, out));
  return true;
}

Result<TlsSocket::Connection*> TlsSocket::Add(UniqueFd socket, bool accepted) {
  Tls tls(SSL_new(context_.get()));
  if (!tls || !Attach(tls.get(), socket.get())) {
    return Error{ErrorCode::kSystem, "OpenSSL makes no connection"};
  }
  const int on = 1;
  const auto silence = static_cast<unsigned>(
      std::chrono::ceil<std::chrono::milliseconds>(options_.patience.silence).count());
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &silence, sizeof(silence));
  accepted ? SSL_set_accept_state(tls.get()) : SSL_set_connect_state(tls.get());
  auto connection = std::make_unique<Connection>();
  connection->id = ConnectionId{++last_connection_};
  connection->accepted = accepted;
  connection->socket = std::move(socket);
  connection->tls = std::move(tls);
  SSL_set_app_data(connection->tls.get(), connection.get());
  Connection* const added = connection.get();
  busy_.insert(added->id);
  connections_.emplace(added->id, std::move(connection));
  return added;
}

void TlsSocket::MakeCalls(Connection& connection) {
  connection.calls =
      std::make_unique<Multiplexer>(connection.id,
                                    Multiplexer::Options{.self = options_.node,
                                                         .peer = connection.peer,
                                                         .sums = false,  // each record's tag is one
                                                         .patience = options_.patience,
                                                         .version = options_.version},
                                    service_, Now());
}

Result<ConnectionId> TlsSocket::Connect(std::string_view node, std::string_view address,
                                        Tick deadline) {
  if (!IsNodeName(node)) {
    return Error{ErrorCode::kInvalidArgument, "\"" + std::string(node) + "\" is no name of a node"};
  }
  RAVEN_ASSIGN_OR_RETURN(const Address to, ParseAddress(address));
  if (connections_.size() >= options_.connections_max) {
    return Error{ErrorCode::kLimit,
                 std::to_string(connections_.size()) + " connections to nodes are open"};
  }
  UniqueFd socket(::socket(to.get()->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return SystemError("no socket");
  if (::connect(socket.get(), to.get(), to.length) != 0 && errno != EINPROGRESS) {
    return SystemError("cannot connect to " + std::string(address));
  }
  RAVEN_ASSIGN_OR_RETURN(Connection * connection, Add(std::move(socket), false));
  connection->peer = node;
  connection->ready_until = deadline;
  MakeCalls(*connection);
  return connection->id;
}

void TlsSocket::Close(ConnectionId id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Lose(*found->second, {ErrorCode::kUnavailable, "the connection was closed"}, false);
}

bool TlsSocket::MayAccept() const {
  if (!listener_ || connections_.size() >= options_.connections_max || Now() < accept_from_) {
    return false;
  }
  const auto strangers = std::ranges::count_if(connections_, [](const auto& c) {
    return c.second->accepted && c.second->ready_until != core::kNever;
  });
  return strangers < static_cast<ptrdiff_t>(options_.handshakes_max);
}

void TlsSocket::Accept() {
  while (MayAccept()) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      // Out of descriptors or memory: the listener stays readable, and Poll would retry
      // immediately.
      if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR) {
        accept_from_ = Now() + kAcceptPause;
      }
      return;
    }
    const auto connection = Add(std::move(socket), true);
    if (connection.ok()) (*connection)->ready_until = Now() + options_.handshake;
  }
}

void TlsSocket::Lose(Connection& connection, const Error& why, bool notify) {
  if (!connection.tls) return;
  ERR_clear_error();
  if (connection.handshaken) SSL_shutdown(connection.tls.get());
  ERR_clear_error();
  connection.tls.reset();
  connection.socket.reset();
  busy_.insert(connection.id);  // so that Poll takes it away
  if (connection.calls) connection.calls->Fail(why);
  if (notify) service_->OnLost(connection.id, why);
}

// ---- Bytes

void TlsSocket::Watch(int socket, uint64_t name, uint32_t events, uint32_t* watched) {
  if (events == *watched) return;
  epoll_event event{};
  event.events = events;
  event.data.u64 = name;
  const int how = *watched == 0 ? EPOLL_CTL_ADD : events == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
  RAVEN_CHECK(::epoll_ctl(epoll_.get(), how, socket, &event) == 0);
  *watched = events;
}

void TlsSocket::Await(Connection& connection, int result, uint32_t* events) {
  const int error = errno;
  switch (SSL_get_error(connection.tls.get(), result)) {
    case SSL_ERROR_WANT_READ: *events |= EPOLLIN; return;
    case SSL_ERROR_WANT_WRITE: *events |= EPOLLOUT; return;
    case SSL_ERROR_SYSCALL:
      if (error != 0 && ERR_peek_error() == 0) {
        return Lose(connection, BrokenBy(error));
      }
      [[fallthrough]];
    default: break;
  }
  if (connection.refusal.empty()) return Lose(connection, TlsFailure());
  Lose(connection, {ErrorCode::kPermission, connection.refusal});
}

bool TlsSocket::Handshake(Connection& connection, uint32_t* events) {
  ERR_clear_error();
  errno = 0;
  const int result = SSL_do_handshake(connection.tls.get());
  if (result != 1) {
    Await(connection, result, events);
    return false;
  }
  connection.handshaken = true;
  if (connection.accepted) MakeCalls(connection);
  return true;
}

bool TlsSocket::Read(Connection& connection, uint32_t* events) {
  const auto room = connection.calls->Room();
  if (room.empty()) return false;
  ERR_clear_error();
  errno = 0;
  size_t count = 0;
  const int result = SSL_read_ex(connection.tls.get(), room.data(), room.size(), &count);
  if (result != 1) {
    Await(connection, result, events);
    return false;
  }
  const auto status = connection.calls->Received(count, Now());
  if (!status.ok()) Lose(connection, status.error());
  if (connection.calls->ready()) connection.ready_until = core::kNever;
  return true;
}

bool TlsSocket::Write(Connection& connection, uint32_t* events) {
  size_t written = 0;
  while (connection.tls && written < kChunk.count()) {
    const auto output = connection.calls->Output();
    if (output.empty()) break;
    Gather(connection, connection.calls->OutputBytes());
    ERR_clear_error();
    errno = 0;
    size_t count = 0;
    const int result = SSL_write_ex(connection.tls.get(), output.data(), output.size(), &count);
    if (result != 1) {
      Await(connection, result, events);
      return written > 0;
    }
    written += count;
    connection.calls->Written(count);  // the service may close the connection
  }
  if (connection.tls) Flush(connection, events);
  return written > 0;
}

void TlsSocket::Gather(Connection& connection, size_t bytes) {
  BIO* const out = SSL_get_wbio(connection.tls.get());
  // Another buffer begins empty.
  if (bytes <= connection.gathered || BIO_wpending(out) != 0) return;
  const size_t with_records = bytes + bytes / 64;  // 22 bytes for each of 16 KiB
  if (BIO_set_write_buffer_size(out, static_cast<long>(with_records)) == 1)
    connection.gathered = bytes;
}

void TlsSocket::Flush(Connection& connection, uint32_t* events) {
  BIO* const out = SSL_get_wbio(connection.tls.get());
  if (BIO_wpending(out) == 0) return;
  errno = 0;
  if (BIO_flush(out) == 1) return;
  if (BIO_should_write(out)) {
    *events |= EPOLLOUT;
  } else {
    Lose(connection, BrokenBy(errno));
  }
}

bool TlsSocket::Pump(Connection& connection) {
  uint32_t events = 0;
  bool any = false;
  if (connection.handshaken || Handshake(connection, &events)) {
    // The hello goes out before what comes in may be a reason to end.
    any = Write(connection, &events);
    int turn = 0;
    for (bool moved = true; moved && connection.tls && turn < kTurn; ++turn) {
      events = 0;
      moved = Read(connection, &events);
      moved |= Write(connection, &events);
      any |= moved;
    }
    if (turn == kTurn) busy_.insert(connection.id);
  }
  if (!connection.tls) return true;
  Watch(connection.socket.get(), core::ToInt(connection.id), events, &connection.events);
  return any;
}

// ---- Poll

bool TlsSocket::PumpBusy() {
  bool moved = false;
  for (const ConnectionId id : std::exchange(busy_, {})) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) continue;
    if (found->second->tls) moved |= Pump(*found->second);
    if (!found->second->tls) connections_.erase(found);
  }
  return moved;
}

Tick TlsSocket::NextTimer() const {
  Tick next = listener_ && Now() < accept_from_ ? accept_from_ : core::kNever;
  for (const auto& [id, connection] : connections_) {
    next = std::min(next, connection->ready_until);
    if (connection->calls) next = std::min(next, connection->calls->NextTimer());
  }
  return next;
}

void TlsSocket::Expire() {
  const Tick now = Now();
  std::vector<Connection*> late;
  for (const auto& [id, connection] : connections_) {
    const bool calls = connection->calls && connection->calls->NextTimer() <= now;
    if (calls || connection->ready_until <= now) late.push_back(connection.get());
  }
  for (Connection* connection : late) {
    if (connection->ready_until <= now) {
      Lose(*connection, {ErrorCode::kTimedOut, "the peer did not prove itself in time"});
    } else if (const auto status = connection->calls->Expire(now); !status.ok()) {
      Lose(*connection, status.error());
    }
    busy_.insert(connection->id);
  }
}

void TlsSocket::Poll(Tick until) {
  const bool moved = PumpBusy();
  Watch(listener_.get(), kListenerEvent, MayAccept() ? uint32_t{EPOLLIN} : 0u, &listener_events_);
  const Tick next = !moved && busy_.empty() ? std::min(until, NextTimer()) : Tick::min();
  const Tick now = Now();
  const auto wait = next <= now ? std::chrono::milliseconds(0)
                                : std::chrono::ceil<std::chrono::milliseconds>(
                                      std::min<core::Duration>(next - now, std::chrono::hours(1)));
  std::array<epoll_event, 64> events;
  const int count =
      ::epoll_wait(epoll_.get(), events.data(), events.size(), static_cast<int>(wait.count()));
  for (int i = 0; i < count; ++i) {
    const uint64_t name = events[static_cast<size_t>(i)].data.u64;
    if (name == kListenerEvent) {
      Accept();
    } else if (name == kWakeEvent) {
      uint64_t wakes = 0;
      [[maybe_unused]] const ssize_t read = ::read(wake_.get(), &wakes, sizeof(wakes));
    } else {
      busy_.insert(ConnectionId{name});
    }
  }
  PumpBusy();
  Expire();
}

}  // namespace

Result<std::unique_ptr<TlsSocketTransport>> OpenTlsSocket(TlsSocketOptions options,
                                                          Service* service) {
  auto transport = std::make_unique<TlsSocket>(std::move(options), service);
  RAVEN_RETURN_IF_ERROR(transport->Open());
  return std::unique_ptr<TlsSocketTransport>(std::move(transport));
}

}  // namespace ravenstore::transport
