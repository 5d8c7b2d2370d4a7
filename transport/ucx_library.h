// UCX's functions, from the library that the machine has. UCX is loaded at run time, so that a node
// without it runs with the other transports.
//
// Compiled against UCX 1.13. Each structure that is passed has a mask of the fields that are set,
// so that newer libraries of the same name (libucp.so.0) take it. There is no function of remote
// memory access in the table: with none that packs an rkey, none is given out.
#pragma once

#include <ucp/api/ucp.h>
#include <ucs/config/global_opts.h>

#include "core/result.h"

namespace ravenstore::transport {

#define RAVEN_UCP_FUNCTIONS(X)      \
  X(ucp_init_version)               \
  X(ucp_cleanup)                    \
  X(ucp_config_read)                \
  X(ucp_config_modify)              \
  X(ucp_config_release)             \
  X(ucp_worker_create)              \
  X(ucp_worker_destroy)             \
  X(ucp_worker_progress)            \
  X(ucp_worker_get_efd)             \
  X(ucp_worker_arm)                 \
  X(ucp_worker_set_am_recv_handler) \
  X(ucp_listener_create)            \
  X(ucp_listener_destroy)           \
  X(ucp_listener_query)             \
  X(ucp_listener_reject)            \
  X(ucp_ep_create)                  \
  X(ucp_ep_close_nbx)               \
  X(ucp_am_send_nbx)                \
  X(ucp_am_data_release)            \
  X(ucp_request_check_status)       \
  X(ucp_request_free)
#define RAVEN_UCS_FUNCTIONS(X) \
  X(ucs_status_string)         \
  X(ucs_global_opts_set_value)

// Each under the library's own name.
struct UcxLibrary {
#define RAVEN_UCX_MEMBER(name) decltype(&::name) name = nullptr;
  RAVEN_UCP_FUNCTIONS(RAVEN_UCX_MEMBER)
  RAVEN_UCS_FUNCTIONS(RAVEN_UCX_MEMBER)
#undef RAVEN_UCX_MEMBER
};

// Loads UCX for good; again: what was loaded. The process keeps its own handlers of SIGSEGV and the
// like, which UCX would replace, and UCX's log is silent unless UCX_LOG_LEVEL is set.
// Threads: any.
// Errors: kUnsupported (it is not installed, or lacks a function).
core::Result<const UcxLibrary*> LoadUcx();

}  // namespace ravenstore::transport
