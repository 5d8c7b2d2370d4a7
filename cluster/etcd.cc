#include "cluster/etcd.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "cluster/curl_library.h"
#include "cluster/etcd_json.h"
#include "cluster/line_buffer.h"
#include "core/check.h"
#include "core/printable.h"
#include "ipc/clock.h"

namespace ravenstore::cluster {
namespace {

using core::Error;
using core::ErrorCode;
using core::Result;
using core::Status;
using core::Tick;

// Of one answer, or one line of a watch: thousands of nodes.
constexpr size_t kAnswerMax = size_t{16} << 20;
constexpr size_t kQuotedMax = 160;
// A connection of a watch on which nothing comes is tried after so long, and so often.
constexpr long kProbeSeconds = 20;
constexpr long kOk = 200;

// REQUIRES: it was loaded.
const CurlLibrary& Curl() {
  static const CurlLibrary* const curl = LoadCurl().value();
  return *curl;
}

template <auto kFree>
struct Freed {
  template <typename T>
  void operator()(T* what) const {
    (Curl().*kFree)(what);
  }
};
using Easy = std::unique_ptr<CURL, Freed<&CurlLibrary::curl_easy_cleanup>>;
using Multi = std::unique_ptr<CURLM, Freed<&CurlLibrary::curl_multi_cleanup>>;
using Headers = std::unique_ptr<curl_slist, Freed<&CurlLibrary::curl_slist_free_all>>;
using Url = std::unique_ptr<CURLU, Freed<&CurlLibrary::curl_url_cleanup>>;

// Without parts that would be lost, or that the gateway does not know.
bool IsEndpoint(const std::string& text) {
  if (!text.starts_with("http://") && !text.starts_with("https://")) return false;
  const Url url(Curl().curl_url());
  if (Curl().curl_url_set(url.get(), CURLUPART_URL, text.c_str(), CURLU_DISALLOW_USER) !=
      CURLUE_OK) {
    return false;
  }
  char* part = nullptr;
  for (const CURLUPart none : {CURLUPART_QUERY, CURLUPART_FRAGMENT}) {
    if (Curl().curl_url_get(url.get(), none, &part, 0) == CURLUE_OK)
      return Curl().curl_free(part), false;
  }
  if (Curl().curl_url_get(url.get(), CURLUPART_PATH, &part, 0) != CURLUE_OK) return false;
  const bool bare = std::string_view(part) == "/";
  Curl().curl_free(part);
  return bare;
}

Status CheckFile(const std::string& path, const char* what) {
  if (path.empty() || ::access(path.c_str(), R_OK) == 0) return core::Ok();
  return Error{
      errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kPermission,
      std::string("etcd's ") + what + " " + path + " cannot be read: " + std::strerror(errno)};
}

Status Check(const EtcdOptions& options) {
  if (options.endpoints.empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 "no endpoint of etcd is given: name at least one, as http://HOST:PORT"};
  }
  bool tls = false;
  for (const std::string& endpoint : options.endpoints) {
    if (!IsEndpoint(endpoint)) {
      return Error{ErrorCode::kInvalidArgument, "\"" + core::Printable(endpoint) +
                                                    "\" is no endpoint of etcd: write it as "
                                                    "http://HOST:PORT or https://HOST:PORT"};
    }
    tls |= endpoint.starts_with("https://");
  }
  if (options.certificate.empty() != options.key.empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 "of etcd's certificate and key only one is given: give both or none"};
  }
  if (!tls && !(options.authority.empty() && options.certificate.empty())) {
    return Error{ErrorCode::kInvalidArgument,
                 "files for TLS are given, and no endpoint of etcd begins with https://"};
  }
  RAVEN_RETURN_IF_ERROR(CheckFile(options.authority, "authority"));
  RAVEN_RETURN_IF_ERROR(CheckFile(options.certificate, "certificate"));
  return CheckFile(options.key, "key");
}

// What curl's failure means, in words.
Error Meaning(CURLcode code, const char* detail) {
  const std::string words =
      core::Printable(std::string_view(detail[0] != '\0' ? detail : Curl().curl_easy_strerror(code))
                          .substr(0, kQuotedMax));
  const auto mentions = [&](const char* what) { return words.find(what) != words.npos; };
  switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
      return {ErrorCode::kPermission,
              "has a certificate that the authority does not vouch for: " + words};
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CACERT_BADFILE:
      return {ErrorCode::kPermission, "cannot be asked with the files for TLS: " + words};
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_WEIRD_SERVER_REPLY:
      return {ErrorCode::kVersionMismatch, "is no etcd: it speaks no HTTP"};
    case CURLE_WRITE_ERROR: return {ErrorCode::kCorrupt, "answers more than etcd does"};
    default: break;
  }
  if (mentions("wrong version number") || mentions("packet length too long")) {
    return {ErrorCode::kVersionMismatch, "speaks no TLS: its endpoint begins with http://"};
  }
  if (mentions("alert")) {
    return {ErrorCode::kPermission,
            "refuses this client's certificate, or wants one that it trusts: " + words};
  }
  return {ErrorCode::kUnavailable, words};
}

}  // namespace

class Etcd final : public KeyValues {
 public:
  explicit Etcd(EtcdOptions options) : options_(std::move(options)) {
    for (std::string& endpoint : options_.endpoints) {
      if (endpoint.ends_with('/')) endpoint.pop_back();
    }
    versions_.resize(options_.endpoints.size());
    multi_.reset(Curl().curl_multi_init());
    headers_.reset(Curl().curl_slist_append(nullptr, "Content-Type: application/json"));
    RAVEN_CHECK(multi_ != nullptr);
    RAVEN_CHECK(headers_ != nullptr);
  }
  ~Etcd() override {
    while (!operations_.empty()) Forget(operations_.begin()->first);
  }

  void Range(std::string prefix, size_t most, Tick deadline,
             Callback<RangeRead> callback) override {
    Ask("/v3/kv/range", etcd_json::RangeBody(prefix, most), deadline, std::move(callback),
        etcd_json::ReadRange);
  }
  void CompareAndSet(Write write, Tick deadline, Callback<WriteAnswer> callback) override {
    Ask("/v3/kv/txn", etcd_json::WriteBody(write), deadline, std::move(callback),
        etcd_json::ReadWrite);
  }
  void Grant(core::Duration duration, Tick deadline, Callback<LeaseAnswer> callback) override {
    Ask("/v3/lease/grant", etcd_json::GrantBody(duration), deadline, std::move(callback),
        etcd_json::ReadGrant);
  }
  void KeepAlive(StoreLease lease, Tick deadline, Callback<LeaseAnswer> callback) override {
    Ask("/v3/lease/keepalive", etcd_json::LeaseBody(lease), deadline, std::move(callback),
        etcd_json::ReadKeepAlive);
  }
  void Revoke(StoreLease lease, Tick deadline, Callback<core::Done> callback) override {
    Ask("/v3/lease/revoke", etcd_json::LeaseBody(lease), deadline, std::move(callback),
        etcd_json::ReadRevoke);
  }
  WatchId Watch(std::string prefix, int64_t from, Tick deadline,
                Callback<Changes> callback) override {
    Operation operation{.path = "/v3/watch",
                        .body = etcd_json::WatchBody(prefix, from),
                        .deadline = deadline,
                        .watch = std::move(callback)};
    return WatchId{Begin(std::move(operation))};
  }
  void Unwatch(WatchId watch) override { Forget(static_cast<uint64_t>(watch)); }

  void Poll(Tick until) override;
  Tick Now() const override { return ipc::Now(); }
  std::string Describe() const override;

 private:
  struct Operation {
    std::string path;
    std::string body;
    Tick deadline;
    // Exactly one is set. `done` gets the whole answer, `watch` gets each line.
    std::function<void(Result<std::string_view>)> done = {};
    Callback<Changes> watch = {};

    Easy easy = {};
    LineBuffer received = {};
    char detail[CURL_ERROR_SIZE] = {};
    bool asks_version = false;
    size_t endpoint = 0;
    size_t tried = 0;
    std::string failures = {};  // of the endpoints that were tried
    ErrorCode failure = ErrorCode::kUnavailable;
  };

  template <typename T>
  void Ask(std::string path, std::string body, Tick deadline, Callback<T> callback,
           Result<T> (*read)(std::string_view)) {
    Begin({.path = std::move(path),
           .body = std::move(body),
           .deadline = deadline,
           .done = [callback = std::move(callback), read](Result<std::string_view> answer) {
             callback(answer.ok() ? read(*answer) : Result<T>(answer.error()));
           }});
  }

  uint64_t Begin(Operation operation);
  void Send(uint64_t id, Operation* operation);
  void SetTls(CURL* easy) const;
  void Forget(uint64_t id);
  void End(uint64_t id, const Error& why);
  // Whether there was something to deliver.
  bool DeliverEnded();
  bool DeliverLines();
  bool EndOverdue();
  void Finish(uint64_t id, CURLcode code);
  void TryNext(uint64_t id, const Error& why);
  bool DeliverLinesOf(uint64_t id);
  Tick NextDeadline() const;

  static size_t Receive(char* bytes, size_t size, size_t count, void* operation);

  EtcdOptions options_;
  Multi multi_;
  Headers headers_;
  uint64_t last_id_ = 0;
  std::map<uint64_t, std::unique_ptr<Operation>> operations_;
  size_t preferred_ = 0;
  std::vector<std::string> versions_;  // by endpoint; empty: to be asked
};

// ---- Beginning

uint64_t Etcd::Begin(Operation operation) {
  const uint64_t id = ++last_id_;
  auto& kept = operations_[id];
  kept = std::make_unique<Operation>(std::move(operation));
  kept->endpoint = preferred_;
  Send(id, kept.get());
  return id;
}

size_t Etcd::Receive(char* bytes, size_t size, size_t count, void* operation) {
  LineBuffer& received = static_cast<Operation*>(operation)->received;
  if (received.rest().size() + size * count > kAnswerMax) return 0;
  received.Append({bytes, size * count});
  return size * count;
}

void Etcd::SetTls(CURL* easy) const {
  const auto set = [easy](CURLoption option, const std::string& file) {
    if (!file.empty()) Curl().curl_easy_setopt(easy, option, file.c_str());
  };
  set(CURLOPT_CAINFO, options_.authority);
  set(CURLOPT_SSLCERT, options_.certificate);
  set(CURLOPT_SSLKEY, options_.key);
}

void Etcd::Send(uint64_t id, Operation* operation) {
  const std::string& endpoint = options_.endpoints[operation->endpoint];
  operation->asks_version = versions_[operation->endpoint].empty();
  operation->received.Clear();
  operation->detail[0] = '\0';
  operation->easy.reset(Curl().curl_easy_init());
  CURL* const easy = operation->easy.get();
  RAVEN_CHECK(easy != nullptr);
  const std::string url = endpoint + (operation->asks_version ? "/version" : operation->path);
  Curl().curl_easy_setopt(easy, CURLOPT_URL, url.c_str());
  Curl().curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  // What the environment says of proxies is for browsers.
  Curl().curl_easy_setopt(easy, CURLOPT_PROXY, "");
  Curl().curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  Curl().curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, operation->detail);
  Curl().curl_easy_setopt(easy, CURLOPT_PRIVATE, reinterpret_cast<void*>(id));
  Curl().curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &Etcd::Receive);
  Curl().curl_easy_setopt(easy, CURLOPT_WRITEDATA, operation);
  SetTls(easy);
  // Each endpoint that is left gets its part of the time.
  const size_t left = options_.endpoints.size() - operation->tried;
  const auto time = std::chrono::ceil<std::chrono::milliseconds>(operation->deadline - Now());
  Curl().curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS,
                          std::clamp<long>(time.count() / static_cast<long>(left), 1, 60'000));
  if (!operation->asks_version) {
    Curl().curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers_.get());
    Curl().curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE, static_cast<long>(operation->body.size()));
    Curl().curl_easy_setopt(easy, CURLOPT_POSTFIELDS, operation->body.c_str());
  }
  Curl().curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
  Curl().curl_easy_setopt(easy, CURLOPT_TCP_KEEPIDLE, kProbeSeconds);
  Curl().curl_easy_setopt(easy, CURLOPT_TCP_KEEPINTVL, kProbeSeconds);
  RAVEN_CHECK(Curl().curl_multi_add_handle(multi_.get(), easy) == CURLM_OK);
}

// ---- Ending

void Etcd::Forget(uint64_t id) {
  const auto found = operations_.find(id);
  if (found == operations_.end()) return;
  Curl().curl_multi_remove_handle(multi_.get(), found->second->easy.get());
  operations_.erase(found);
}

void Etcd::End(uint64_t id, const Error& why) {
  const auto found = operations_.find(id);
  const auto done = std::move(found->second->done);
  const Callback<Changes> watch = std::move(found->second->watch);
  Forget(id);
  if (done) done(why);
  if (watch) watch(why);
}

void Etcd::TryNext(uint64_t id, const Error& why) {
  Operation& operation = *operations_.at(id);
  versions_[operation.endpoint].clear();
  if (operation.tried == 0 || why.code != ErrorCode::kUnavailable) operation.failure = why.code;
  operation.failures += (operation.failures.empty() ? "" : "; ") +
                        options_.endpoints[operation.endpoint] + " " + why.message;
  const size_t next = (operation.endpoint + 1) % options_.endpoints.size();
  if (preferred_ == operation.endpoint) preferred_ = next;
  if (++operation.tried == options_.endpoints.size()) {
    return End(id, {operation.failure, operation.failures});
  }
  Curl().curl_multi_remove_handle(multi_.get(), operation.easy.get());
  operation.endpoint = next;
  Send(id, &operation);
}

void Etcd::Finish(uint64_t id, CURLcode code) {
  Operation& operation = *operations_.at(id);
  const std::string& endpoint = options_.endpoints[operation.endpoint];
  long http = 0;
  long sent = 0;
  Curl().curl_easy_getinfo(operation.easy.get(), CURLINFO_RESPONSE_CODE, &http);
  Curl().curl_easy_getinfo(operation.easy.get(), CURLINFO_REQUEST_SIZE, &sent);
  if (code != CURLE_OK) {
    const Error why = Meaning(code, operation.detail);
    if (operation.asks_version || sent == 0) return TryNext(id, why);
    versions_[operation.endpoint].clear();
    return End(id, {why.code, endpoint + " " + why.message});
  }
  if (operation.asks_version) {
    const auto version = http == kOk ? etcd_json::ReadVersion(operation.received.rest())
                                     : etcd_json::Refusal(http, operation.received.rest());
    if (!version.ok()) return TryNext(id, version.error());
    versions_[operation.endpoint] = *version;
    preferred_ = operation.endpoint;
    Curl().curl_multi_remove_handle(multi_.get(), operation.easy.get());
    return Send(id, &operation);
  }
  if (http != kOk) {
    const Error why = etcd_json::Refusal(http, operation.received.rest());
    // One member without the others refuses what another may do.
    if (why.code == ErrorCode::kUnavailable && preferred_ == operation.endpoint) {
      preferred_ = (preferred_ + 1) % options_.endpoints.size();
    }
    return End(id, {why.code, endpoint + " " + why.message});
  }
  if (operation.watch) return End(id, {ErrorCode::kUnavailable, endpoint + " ended the watch"});
  const auto done = std::move(operation.done);
  const LineBuffer received = std::move(operation.received);
  Forget(id);
  done(received.rest());
}

// ---- Polling

bool Etcd::DeliverEnded() {
  bool delivered = false;
  int left = 0;
  while (const CURLMsg* message = Curl().curl_multi_info_read(multi_.get(), &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    void* id = nullptr;
    Curl().curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &id);
    // First the lines that the watch received before it ended.
    const auto key = reinterpret_cast<uint64_t>(id);
    const CURLcode code = message->data.result;
    DeliverLinesOf(key);
    if (operations_.contains(key)) Finish(key, code);
    delivered = true;
  }
  return delivered;
}

bool Etcd::DeliverLinesOf(uint64_t id) {
  bool delivered = false;
  while (true) {
    const auto found = operations_.find(id);
    if (found == operations_.end()) return delivered;
    Operation& operation = *found->second;
    if (!operation.watch || operation.asks_version) return delivered;
    const auto line = operation.received.Next();
    if (!line) return delivered;
    auto changes = etcd_json::ReadWatch(*line);
    operation.deadline = core::kNever;
    delivered = true;
    if (!changes.ok()) {
      End(id, changes.error());
    } else {
      // It may end itself.
      const Callback<Changes> watch = operation.watch;
      watch(std::move(changes));
    }
  }
}

bool Etcd::DeliverLines() {
  std::vector<uint64_t> watches;
  for (const auto& [id, operation] : operations_) {
    if (operation->watch && !operation->received.rest().empty()) watches.push_back(id);
  }
  bool delivered = false;
  for (const uint64_t id : watches) delivered |= DeliverLinesOf(id);
  return delivered;
}

bool Etcd::EndOverdue() {
  const Tick now = Now();
  std::vector<uint64_t> late;
  for (const auto& [id, operation] : operations_) {
    if (operation->deadline <= now) late.push_back(id);
  }
  for (const uint64_t id : late) {
    if (!operations_.contains(id)) continue;
    Operation& operation = *operations_.at(id);
    std::string words = options_.endpoints[operation.endpoint] + " gave no answer in time";
    if (!operation.failures.empty()) words = operation.failures + "; " + words;
    // The next one may be where the others are.
    versions_[operation.endpoint].clear();
    if (preferred_ == operation.endpoint) {
      preferred_ = (preferred_ + 1) % options_.endpoints.size();
    }
    End(id, {ErrorCode::kTimedOut, words});
  }
  return !late.empty();
}

Tick Etcd::NextDeadline() const {
  Tick next = core::kNever;
  for (const auto& [id, operation] : operations_) next = std::min(next, operation->deadline);
  return next;
}

void Etcd::Poll(Tick until) {
  while (true) {
    int running = 0;
    Curl().curl_multi_perform(multi_.get(), &running);
    bool delivered = DeliverLines();
    delivered |= DeliverEnded();
    delivered |= EndOverdue();
    const Tick now = Now();
    if (delivered || now >= until) return;
    const core::Duration wait = std::min(until, NextDeadline()) - now;
    const auto whole = std::chrono::ceil<std::chrono::milliseconds>(wait);
    Curl().curl_multi_poll(multi_.get(), nullptr, 0,
                           static_cast<int>(std::clamp<int64_t>(whole.count(), 0, 60'000)),
                           nullptr);
  }
}

std::string Etcd::Describe() const {
  const std::string& version = versions_[preferred_];
  std::string words = "etcd";
  if (!version.empty()) words += " " + version;
  words += " at " + options_.endpoints[preferred_];
  if (const std::string_view warning = etcd_json::Warning(version); !warning.empty()) {
    words += " (" + std::string(warning) + ")";
  }
  return words;
}

Result<std::unique_ptr<KeyValues>> OpenEtcd(EtcdOptions options) {
  if (const auto curl = LoadCurl(); !curl.ok()) return curl.error();
  RAVEN_RETURN_IF_ERROR(Check(options));
  return std::unique_ptr<KeyValues>(std::make_unique<Etcd>(std::move(options)));
}

}  // namespace ravenstore::cluster
