// What can be seen of an engine from outside its process: a row of the job's page
// (proto/elastic_page.h), rewritten about once a second.
//
// Owns: nothing of the row, which outlives it. Threads: one at a time (the engine's lock), except
// Publish, which may run at the same time as Note.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "core/types.h"
#include "elastic/call_names.h"
#include "proto/elastic_page.h"

namespace ravenstore::elastic {

class Shown {
 public:
  Shown(proto::ElasticPageRow* row, CallNames names) : row_(row), names_(names) {}
  // The row is empty again.
  ~Shown();
  Shown(const Shown&) = delete;
  Shown& operator=(const Shown&) = delete;

  // Of a call: what of it is worth telling.
  struct Event {
    core::Duration waited{};
    core::Bytes in_place{};
    bool unknown = false;
  };
  // `identity`: of the call; kAllocations: allocations that waited for room.
  static constexpr uint64_t kAllocations = 0;
  void Note(uint64_t identity, const Caller& caller, const Event& event, core::Tick now);

  // A row in the making. Of live ranges the largest are kept.
  class View {
   public:
    struct Range {
      uint64_t address;
      core::Bytes size;
      core::Bytes away;
      uint64_t calls;
      core::Tick allocated;
      core::Tick used;  // last, or as `allocated`
      bool pinned;
    };
    explicit View(core::Tick now);
    void Add(const Range& range);
    proto::ElasticPageRow& row() { return row_; }

   private:
    friend class Shown;
    core::Tick now_;
    proto::ElasticPageRow row_{};
  };
  // The calls that were noted go into the view.
  void AddCalls(View* view) const;
  void Publish(const View& view);

 private:
  struct Call {
    uint64_t identity;
    core::Tick last{};  // zero: no such call
    proto::ElasticPageCall shown{};
  };

  proto::ElasticPageRow* const row_;
  const CallNames names_;
  std::array<Call, proto::kElasticCalls> calls_{};
};

}  // namespace ravenstore::elastic
