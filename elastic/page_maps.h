// What is mapped at the addresses of pages: parts of the device or of the host.
//
// One thread at a time changes a page, and each physical page that is mapped there: `mapped`, `of`,
// `part` and `at` are its. `was_at` is handed over with the end of the change. Nothing here takes a
// lock.
//
// Owns: nothing. Threads: as above. Errors: kDevice; the page then has no part mapped, or the one
// from before. kOutOfMemory: there is no part of that place.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "core/result.h"
#include "core/types.h"
#include "elastic/parts.h"

namespace ravenstore::elastic {

class PageMaps {
 public:
  struct Memory;
  // A page's address and what is mapped there.
  struct Page {
    CUdeviceptr begin = 0;
    Part* host = nullptr;  // its copy
    const Part* mapped = nullptr;
    Memory* of = nullptr;   // that has the mapped part; null: it is the host's
    uint32_t changing = 0;  // changes that have begun
  };
  // A physical page.
  struct Memory {
    Part* part = nullptr;      // null: it was mapped nowhere yet
    Page* at = nullptr;        // where it is mapped
    Page* expected = nullptr;  // where it is when all changes have ended
    Page* was_at = nullptr;    // where the last of its own changes left it
    bool has_part = false;     // after the changes that have ended
  };

  // The parts outlive it.
  PageMaps(Parts* parts, core::Bytes page) : parts_(parts), page_(page) {}

  // Nothing is mapped at the page afterwards.
  core::Status Detach(Page* page) const;
  // The memory is mapped at the page alone afterwards; null: nowhere.
  core::Status MoveTo(Page* page, Memory* memory) const;
  // The host's part is mapped there afterwards; one is taken if it is null.
  core::Status MapHost(Page* page, Part** host) const;

 private:
  Parts* const parts_;
  const core::Bytes page_;
};

}  // namespace ravenstore::elastic
