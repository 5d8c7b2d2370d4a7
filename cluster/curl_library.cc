#include "cluster/curl_library.h"

#include <dlfcn.h>

#include <string>

namespace ravenstore::cluster {
namespace {

using core::Error;
using core::ErrorCode;
using core::Result;

Result<CurlLibrary> Load() {
  void* const library = ::dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Error{
        ErrorCode::kUnsupported,
        "libcurl cannot be loaded (install the package libcurl4): " + std::string(::dlerror())};
  }
  CurlLibrary curl;
  const char* missing = nullptr;
#define RAVEN_CURL_FIND(name)                                                 \
  curl.name = reinterpret_cast<decltype(curl.name)>(::dlsym(library, #name)); \
  if (curl.name == nullptr) missing = #name;
  RAVEN_CURL_FUNCTIONS(RAVEN_CURL_FIND)
#undef RAVEN_CURL_FIND
  if (missing != nullptr) {
    return Error{ErrorCode::kUnsupported,
                 "the libcurl that is installed has no " + std::string(missing) + "; 7.88 has it"};
  }
  const CURLcode ready = curl.curl_global_init(CURL_GLOBAL_DEFAULT);
  if (ready != CURLE_OK) {
    return Error{ErrorCode::kUnsupported,
                 "libcurl: " + std::string(curl.curl_easy_strerror(ready))};
  }
  return curl;
}

}  // namespace

Result<const CurlLibrary*> LoadCurl() {
  static const Result<CurlLibrary> loaded = Load();
  if (!loaded.ok()) return loaded.error();
  return &*loaded;
}

}  // namespace ravenstore::cluster
