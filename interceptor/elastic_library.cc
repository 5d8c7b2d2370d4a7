#include "interceptor/elastic_library.h"

#include "interceptor/near.h"
#include "interceptor/settings.h"

namespace ravenstore::interceptor::elastic {

bool Load(Library* library) {
  // In the same folder when it was installed, in the folder of its own when it was only built.
  void* loaded = LoadNear("libravenstore_elastic.so");
  if (loaded == nullptr) loaded = LoadNear("../elastic/libravenstore_elastic.so");
  if (loaded == nullptr) {
    Log("--mode=elastic: no libravenstore_elastic.so beside the interceptor: the driver serves");
    return false;
  }
#define RAVEN_TAKE(name) TakeFunction(loaded, "raven_elastic_" #name, &library->name)
  const bool whole = RAVEN_TAKE(open) && RAVEN_TAKE(close) && RAVEN_TAKE(forget) &&
                     RAVEN_TAKE(bounds) && RAVEN_TAKE(allocate) && RAVEN_TAKE(free) &&
                     RAVEN_TAKE(find) && RAVEN_TAKE(begin) && RAVEN_TAKE(end) && RAVEN_TAKE(pin) &&
                     RAVEN_TAKE(reach_all) && RAVEN_TAKE(illegal_address) &&
                     RAVEN_TAKE(stream_gone) && RAVEN_TAKE(limit) && RAVEN_TAKE(stats) &&
                     RAVEN_TAKE(recorded) && RAVEN_TAKE(reserve) && RAVEN_TAKE(unreserve) &&
                     RAVEN_TAKE(create_segment) && RAVEN_TAKE(destroy_segment) &&
                     RAVEN_TAKE(map_segment) && RAVEN_TAKE(unmap_segment) && RAVEN_TAKE(hand_over);
#undef RAVEN_TAKE
  if (!whole) Log("--mode=elastic: another version's libravenstore_elastic.so: the driver serves");
  return whole;
}

}  // namespace ravenstore::interceptor::elastic
