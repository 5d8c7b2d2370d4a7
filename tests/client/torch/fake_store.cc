#include "tests/client/torch/fake_store.h"

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

struct ravenstore_store {};

// Present in Userspace (`address`) while holders > 0, else only `away` has the bytes.
struct ravenstore_tensor {
  uint64_t bytes = 0;
  uint64_t holders = 0;
  void* address = nullptr;
  void* away = nullptr;
};

namespace ravenstore::fake {
namespace {

std::mutex mutex;
Counts totals;
std::vector<int64_t> put_orders;
ravenstore_code_t fail_adopt = RAVENSTORE_OK;
ravenstore_code_t fail_get = RAVENSTORE_OK;
uint64_t device_budget = 0;
bool lost = false;
thread_local std::string last_error;

ravenstore_code_t Fail(ravenstore_code_t code, const char* words) {
  last_error = words;
  return code;
}
ravenstore_code_t Misuse(const char* words) {
  ++totals.misuses;
  return Fail(RAVENSTORE_WRONG_STATE, words);
}
void* Allocate(uint64_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, 512, bytes)) std::abort();
  return memory;
}
void Discard(void* memory, uint64_t bytes) {
  if (!memory) return;
  std::memset(memory, 0xff, bytes);  // NaN as a float, an absurd index as an integer
  std::free(memory);
}

}  // namespace

void SetDeviceBudget(uint64_t bytes) {
  std::lock_guard lock(mutex);
  device_budget = bytes;
}
Counts counts() {
  std::lock_guard lock(mutex);
  return totals;
}
std::vector<int64_t> orders() {
  std::lock_guard lock(mutex);
  return put_orders;
}
void FailNextAdopt(ravenstore_code_t code) {
  std::lock_guard lock(mutex);
  fail_adopt = code;
}
void FailNextGet(ravenstore_code_t code) {
  std::lock_guard lock(mutex);
  fail_get = code;
}
void LoseBytes() {
  std::lock_guard lock(mutex);
  lost = true;
}
std::shared_ptr<Store> Connect() {
  {
    std::lock_guard lock(mutex);
    totals = {};
    put_orders.clear();
    fail_adopt = fail_get = RAVENSTORE_OK;
    device_budget = 0;
    lost = false;
  }
  return std::make_shared<Store>(Store::connect());
}

}  // namespace ravenstore::fake

namespace fake = ravenstore::fake;

extern "C" {

const char* ravenstore_last_error(void) {
  return fake::last_error.c_str();
}
const char* ravenstore_backend(const ravenstore_store_t*) {
  return "host";
}
ravenstore_code_t ravenstore_connect(const ravenstore_connect_options_t*,
                                     ravenstore_store_t** store) {
  *store = new ravenstore_store;
  return RAVENSTORE_OK;
}
void ravenstore_disconnect(ravenstore_store_t* store) {
  delete store;
}

ravenstore_code_t ravenstore_adopt(ravenstore_store_t*, const void* from, uint64_t bytes,
                                   ravenstore_stream_t, const ravenstore_create_options_t*,
                                   ravenstore_tensor_t** tensor) {
  std::lock_guard lock(fake::mutex);
  if (auto code = std::exchange(fake::fail_adopt, RAVENSTORE_OK))
    return fake::Fail(code, "as the test asked");
  *tensor = new ravenstore_tensor{bytes, 1, fake::Allocate(bytes), nullptr};
  std::memcpy((*tensor)->address, from, bytes);
  ++fake::totals.adopts;
  ++fake::totals.tensors;
  ++fake::totals.in_use;
  return RAVENSTORE_OK;
}

ravenstore_code_t ravenstore_get(ravenstore_store_t*, ravenstore_tensor_t* tensor,
                                 ravenstore_stream_t, const ravenstore_get_options_t*,
                                 void** address) {
  std::lock_guard lock(fake::mutex);
  if (auto code = std::exchange(fake::fail_get, RAVENSTORE_OK))
    return fake::Fail(code, "as the test asked");
  if (tensor->holders++ == 0) {
    tensor->address = fake::Allocate(tensor->bytes);
    std::memcpy(tensor->address, tensor->away, tensor->bytes);
    fake::Discard(std::exchange(tensor->away, nullptr), tensor->bytes);
  }
  *address = tensor->address;
  ++fake::totals.gets;
  ++fake::totals.in_use;
  return RAVENSTORE_OK;
}

ravenstore_code_t ravenstore_put(ravenstore_store_t*, ravenstore_tensor_t* tensor,
                                 ravenstore_stream_t, const ravenstore_put_options_t* options) {
  std::lock_guard lock(fake::mutex);
  if (tensor->holders == 0) return fake::Misuse("put without a get");
  if (options->flags & RAVENSTORE_ORDER) fake::put_orders.push_back(options->order);
  ++fake::totals.puts;
  --fake::totals.in_use;
  if (--tensor->holders > 0) return RAVENSTORE_OK;
  tensor->away = fake::Allocate(tensor->bytes);
  std::memcpy(tensor->away, tensor->address, tensor->bytes);
  fake::Discard(std::exchange(tensor->address, nullptr), tensor->bytes);
  return RAVENSTORE_OK;
}

ravenstore_code_t ravenstore_free(ravenstore_store_t*, ravenstore_tensor_t* tensor,
                                  ravenstore_stream_t) {
  if (!tensor) return RAVENSTORE_OK;
  std::lock_guard lock(fake::mutex);
  if (tensor->holders > 0) ++fake::totals.misuses;
  ++fake::totals.frees;
  --fake::totals.tensors;
  fake::Discard(tensor->address, tensor->bytes);
  fake::Discard(tensor->away, tensor->bytes);
  delete tensor;
  return RAVENSTORE_OK;
}

int32_t ravenstore_ready(const ravenstore_tensor_t*) {
  return 1;
}

ravenstore_code_t ravenstore_check(ravenstore_store_t*, ravenstore_stream_t) {
  std::lock_guard lock(fake::mutex);
  return fake::lost ? fake::Fail(RAVENSTORE_LOST, "as the test asked") : RAVENSTORE_OK;
}

ravenstore_code_t ravenstore_step(ravenstore_store_t*) {
  std::lock_guard lock(fake::mutex);
  ++fake::totals.steps;
  return RAVENSTORE_OK;
}

ravenstore_code_t ravenstore_trim(ravenstore_store_t*) {
  std::lock_guard lock(fake::mutex);
  ++fake::totals.trims;
  return RAVENSTORE_OK;
}
ravenstore_code_t ravenstore_get_stats(ravenstore_store_t*, ravenstore_stats_t* stats) {
  std::lock_guard lock(fake::mutex);
  stats->tensors = fake::totals.tensors;
  stats->gets = fake::totals.gets;
  stats->misses = fake::totals.gets;
  stats->device_budget = fake::device_budget;
  return RAVENSTORE_OK;
}

}  // extern "C"
