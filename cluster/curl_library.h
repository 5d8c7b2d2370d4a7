// libcurl's functions, from the library that the machine has. It is loaded at run time, so that a
// node without it runs with configured peers, and a daemon needs none of the libraries that libcurl
// takes with it.
//
// Compiled against libcurl 7.88; none but its stable interface is used.
#pragma once

#include <curl/curl.h>

#include "core/result.h"

namespace ravenstore::cluster {

#define RAVEN_CURL_FUNCTIONS(X) \
  X(curl_easy_cleanup)          \
  X(curl_easy_getinfo)          \
  X(curl_easy_init)             \
  X(curl_easy_setopt)           \
  X(curl_easy_strerror)         \
  X(curl_free)                  \
  X(curl_global_init)           \
  X(curl_multi_add_handle)      \
  X(curl_multi_cleanup)         \
  X(curl_multi_info_read)       \
  X(curl_multi_init)            \
  X(curl_multi_perform)         \
  X(curl_multi_poll)            \
  X(curl_multi_remove_handle)   \
  X(curl_slist_append)          \
  X(curl_slist_free_all)        \
  X(curl_url)                   \
  X(curl_url_cleanup)           \
  X(curl_url_get)               \
  X(curl_url_set)

// Each under the library's own name.
struct CurlLibrary {
#define RAVEN_CURL_MEMBER(name) decltype(&::name) name = nullptr;
  RAVEN_CURL_FUNCTIONS(RAVEN_CURL_MEMBER)
#undef RAVEN_CURL_MEMBER
};

// Loads libcurl for good, and sets it up; again: what was loaded. Threads: any.
// Errors: kUnsupported (it is not installed, or lacks a function).
core::Result<const CurlLibrary*> LoadCurl();

}  // namespace ravenstore::cluster
