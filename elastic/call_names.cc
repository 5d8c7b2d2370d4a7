#include "elastic/call_names.h"

namespace ravenstore::elastic {

CallNames::CallNames(void* (*find)(const char* symbol))
    : of_function_(reinterpret_cast<decltype(of_function_)>(find("cuFuncGetName"))),
      of_kernel_(reinterpret_cast<decltype(of_kernel_)>(find("cuKernelGetName"))) {}

std::string CallNames::Of(const Caller& caller) const {
  const char* name = nullptr;
  const CUfunction function = caller.function;
  const bool named = function != nullptr &&
                     ((of_function_ != nullptr && of_function_(&name, function) == CUDA_SUCCESS) ||
                      (of_kernel_ != nullptr &&
                       of_kernel_(&name, reinterpret_cast<CUkernel>(function)) == CUDA_SUCCESS));
  if (!named || name == nullptr || *name == 0) name = caller.kind;
  if (name == nullptr || *name == 0) name = "call";
  std::string text;
  for (; *name != 0 && text.size() < kLongest; ++name) {
    text += *name < ' ' || *name > '~' ? '?' : *name;
  }
  return text;
}

}  // namespace ravenstore::elastic
