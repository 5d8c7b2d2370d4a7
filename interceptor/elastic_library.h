// The elastic engine's library, by its C ABI (elastic/elastic.h).
//
// Threads: one loads it; any may call its functions.
#pragma once

#include "elastic/elastic.h"

namespace ravenstore::interceptor::elastic {

struct Library {
  decltype(&raven_elastic_open) open;
  decltype(&raven_elastic_close) close;
  decltype(&raven_elastic_forget) forget;
  decltype(&raven_elastic_bounds) bounds;
  decltype(&raven_elastic_allocate) allocate;
  decltype(&raven_elastic_free) free;
  decltype(&raven_elastic_find) find;
  decltype(&raven_elastic_begin) begin;
  decltype(&raven_elastic_end) end;
  decltype(&raven_elastic_pin) pin;
  decltype(&raven_elastic_reach_all) reach_all;
  decltype(&raven_elastic_illegal_address) illegal_address;
  decltype(&raven_elastic_stream_gone) stream_gone;
  decltype(&raven_elastic_limit) limit;
  decltype(&raven_elastic_stats) stats;
  decltype(&raven_elastic_recorded) recorded;
  decltype(&raven_elastic_reserve) reserve;
  decltype(&raven_elastic_unreserve) unreserve;
  decltype(&raven_elastic_create_segment) create_segment;
  decltype(&raven_elastic_destroy_segment) destroy_segment;
  decltype(&raven_elastic_map_segment) map_segment;
  decltype(&raven_elastic_unmap_segment) unmap_segment;
  decltype(&raven_elastic_hand_over) hand_over;
};

// Loads the library from the folder of this one. False, and the log says why: there is none, or it
// is another version's.
bool Load(Library* library);

}  // namespace ravenstore::interceptor::elastic
