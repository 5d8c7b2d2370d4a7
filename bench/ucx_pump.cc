#include "bench/ucx_pump.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <poll.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "core/check.h"
#include "ipc/clock.h"
#include "transport/ucx_library.h"

namespace ravenstore::bench {
namespace {

using transport::UcxLibrary;

constexpr unsigned kAsk = 1;  // its header: how many bytes to answer with
constexpr unsigned kAnswer = 2;
constexpr int kWaitMs = 10;

// One end: it takes messages into a buffer of its own. What asks is answered.
class End {
 public:
  End(const UcxLibrary& ucx, size_t bytes_max)
      : ucx_(ucx),
        receive_(reinterpret_cast<decltype(&::ucp_am_recv_data_nbx)>(
            ::dlsym(::dlopen("libucp.so.0", RTLD_NOW), "ucp_am_recv_data_nbx"))),
        source_(bytes_max),
        sink_(bytes_max) {
    RAVEN_CHECK(receive_ != nullptr);
    MakeWorker();
    SetHandler(kAsk, OnAsk);
    SetHandler(kAnswer, OnAnswer);
  }
  ~End() {
    if (endpoint_ != nullptr) {
      ucp_request_param_t params{};
      params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
      params.flags = UCP_EP_CLOSE_FLAG_FORCE;
      const ucs_status_ptr_t closing = ucx_.ucp_ep_close_nbx(endpoint_, &params);
      while (UCS_PTR_IS_PTR(closing) && ucx_.ucp_request_check_status(closing) == UCS_INPROGRESS) {
        ucx_.ucp_worker_progress(worker_);
      }
      if (UCS_PTR_IS_PTR(closing)) ucx_.ucp_request_free(closing);
    }
    if (listener_ != nullptr) ucx_.ucp_listener_destroy(listener_);
    ucx_.ucp_worker_destroy(worker_);
    ucx_.ucp_cleanup(context_);
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  sockaddr_in Listen() {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    ucp_listener_params_t params{};
    params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
    params.sockaddr = {.addr = reinterpret_cast<sockaddr*>(&at), .addrlen = sizeof(at)};
    params.conn_handler = {.cb = [](ucp_conn_request_h request,
                                    void* self) { static_cast<End*>(self)->request_ = request; },
                           .arg = this};
    RAVEN_CHECK(ucx_.ucp_listener_create(worker_, &params, &listener_) == UCS_OK);
    ucp_listener_attr_t attributes{};
    attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
    RAVEN_CHECK(ucx_.ucp_listener_query(listener_, &attributes) == UCS_OK);
    std::memcpy(&at, &attributes.sockaddr, sizeof(at));
    return at;
  }
  void Connect(sockaddr_in to) {
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
    params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
    params.sockaddr = {.addr = reinterpret_cast<sockaddr*>(&to), .addrlen = sizeof(to)};
    Create(params);
  }

  // Moves what there is, or waits for it a little.
  void Step() {
    if (ucx_.ucp_worker_progress(worker_) == 0 && ucx_.ucp_worker_arm(worker_) == UCS_OK) {
      pollfd event{.fd = events_, .events = POLLIN, .revents = 0};
      ::poll(&event, 1, kWaitMs);
    }
    if (request_ != nullptr) {
      ucp_ep_params_t params{};
      params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
      params.conn_request = std::exchange(request_, nullptr);
      Create(params);
    }
    for (const size_t bytes : std::exchange(answers_, {})) Send(kAnswer, bytes, &no_bytes_);
  }

  void Ask(size_t bytes, size_t bytes_back) {
    asked_ = bytes_back;
    Send(kAsk, bytes, &asked_);
  }
  // Answers that came.
  size_t answered() const { return answered_; }

 private:
  void MakeWorker() {
    ucp_config_t* config = nullptr;
    RAVEN_CHECK(ucx_.ucp_config_read(nullptr, nullptr, &config) == UCS_OK);
    RAVEN_CHECK(ucx_.ucp_config_modify(config, "TLS", "tcp") == UCS_OK);
    RAVEN_CHECK(ucx_.ucp_config_modify(config, "NET_DEVICES", "lo") == UCS_OK);
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
    RAVEN_CHECK(ucx_.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_) ==
                UCS_OK);
    ucx_.ucp_config_release(config);
    ucp_worker_params_t worker{};
    worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    RAVEN_CHECK(ucx_.ucp_worker_create(context_, &worker, &worker_) == UCS_OK);
    RAVEN_CHECK(ucx_.ucp_worker_get_efd(worker_, &events_) == UCS_OK);
  }

  void SetHandler(unsigned id, ucp_am_recv_callback_t callback) {
    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                         UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = id;
    handler.cb = callback;
    handler.arg = this;
    RAVEN_CHECK(ucx_.ucp_worker_set_am_recv_handler(worker_, &handler) == UCS_OK);
  }

  void Create(ucp_ep_params_t params) {
    params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    RAVEN_CHECK(ucx_.ucp_ep_create(worker_, &params, &endpoint_) == UCS_OK);
  }

  // `header` stays until the message is sent.
  void Send(unsigned id, size_t bytes, const uint64_t* header) {
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK;
    params.cb.send = [](void* request, ucs_status_t /*status*/, void* /*none*/) {
      (*transport::LoadUcx())->ucp_request_free(request);
    };
    RAVEN_CHECK(!UCS_PTR_IS_ERR(ucx_.ucp_am_send_nbx(endpoint_, id, header, sizeof(*header),
                                                     source_.data(), bytes, &params)));
  }

  static ucs_status_t OnAsk(void* self, const void* header, size_t /*header_length*/, void* data,
                            size_t length, const ucp_am_recv_param_t* param) {
    auto* const end = static_cast<End*>(self);
    std::memcpy(&end->asked_, header, sizeof(end->asked_));
    return end->Take(data, length, *param,
                     [](void* request, ucs_status_t status, size_t /*length*/, void* of) {
                       auto* const end = static_cast<End*>(of);
                       end->Took(request, status);
                       end->answers_.push_back(end->asked_);
                     });
  }
  static ucs_status_t OnAnswer(void* self, const void* /*header*/, size_t /*header_length*/,
                               void* data, size_t length, const ucp_am_recv_param_t* param) {
    return static_cast<End*>(self)->Take(
        data, length, *param, [](void* request, ucs_status_t status, size_t /*length*/, void* of) {
          auto* const end = static_cast<End*>(of);
          end->Took(request, status);
          ++end->answered_;
        });
  }
  void Took(void* request, ucs_status_t status) {
    RAVEN_CHECK(status == UCS_OK);
    if (request != nullptr) ucx_.ucp_request_free(request);
  }

  // Into the buffer, and then `arrived`.
  ucs_status_t Take(void* data, size_t length, const ucp_am_recv_param_t& param,
                    ucp_am_recv_data_nbx_callback_t arrived) {
    if ((param.recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0) {
      std::memcpy(sink_.data(), data, length);
      arrived(nullptr, UCS_OK, length, this);
      return UCS_OK;
    }
    ucp_request_param_t params{};
    params.op_attr_mask =
        UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    params.cb.recv_am = arrived;
    params.user_data = this;
    RAVEN_CHECK(UCS_PTR_IS_PTR(receive_(worker_, data, sink_.data(), length, &params)));
    return UCS_INPROGRESS;
  }

  const UcxLibrary& ucx_;
  decltype(&::ucp_am_recv_data_nbx) const receive_;
  std::vector<std::byte> source_;
  std::vector<std::byte> sink_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int events_ = -1;
  ucp_listener_h listener_ = nullptr;
  ucp_conn_request_h request_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  uint64_t no_bytes_ = 0;
  uint64_t asked_ = 0;
  size_t answered_ = 0;
  std::vector<size_t> answers_;  // to be sent outside of callbacks
};

class Pump final : public UcxPump {
 public:
  Pump(const UcxLibrary& ucx, size_t bytes_max) : server_(ucx, bytes_max), client_(ucx, bytes_max) {
    client_.Connect(server_.Listen());
    thread_ = std::thread([this] {
      while (!ends_) server_.Step();
    });
  }
  ~Pump() override {
    ends_ = true;
    thread_.join();
  }

  double OutAndIn(size_t count, size_t in_flight, size_t bytes) override {
    const core::Tick begin = ipc::Now();
    Ask(count, in_flight, bytes, 0);
    Ask(count, in_flight, 0, bytes);
    return core::Seconds(ipc::Now() - begin);
  }

 private:
  void Ask(size_t count, size_t in_flight, size_t bytes, size_t bytes_back) {
    const size_t before = client_.answered();
    size_t begun = 0;
    for (size_t done = 0; done < count; done = client_.answered() - before) {
      for (; begun < count && begun - done < in_flight; ++begun) client_.Ask(bytes, bytes_back);
      client_.Step();
    }
  }

  End server_;
  End client_;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

}  // namespace

core::Result<std::unique_ptr<UcxPump>> OpenUcxPump(size_t bytes_max) {
  RAVEN_ASSIGN_OR_RETURN(const UcxLibrary* ucx, transport::LoadUcx());
  return std::unique_ptr<UcxPump>(std::make_unique<Pump>(*ucx, bytes_max));
}

}  // namespace ravenstore::bench
