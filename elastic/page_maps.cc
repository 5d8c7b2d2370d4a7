#include "elastic/page_maps.h"

namespace ravenstore::elastic {

using core::Status;

Status PageMaps::Detach(Page* page) const {
  if (page->mapped == nullptr) return core::Ok();
  RAVEN_RETURN_IF_ERROR(parts_->Unmap(page->begin, *page->mapped));
  page->mapped = nullptr;
  if (page->of != nullptr) page->of->at = nullptr;
  page->of = nullptr;
  return core::Ok();
}

Status PageMaps::MoveTo(Page* page, Memory* memory) const {
  if (memory->part == nullptr) {
    RAVEN_ASSIGN_OR_RETURN(memory->part, parts_->Take(Place::kDevice, page_));
  }
  if (memory->at == page && page != nullptr) return core::Ok();
  if (memory->at != nullptr) RAVEN_RETURN_IF_ERROR(Detach(memory->at));
  if (page == nullptr) return core::Ok();
  RAVEN_RETURN_IF_ERROR(Detach(page));
  RAVEN_RETURN_IF_ERROR(parts_->Map(page->begin, *memory->part));
  page->mapped = memory->part;
  page->of = memory;
  memory->at = page;
  return core::Ok();
}

Status PageMaps::MapHost(Page* page, Part** host) const {
  if (*host == nullptr) {
    RAVEN_ASSIGN_OR_RETURN(*host, parts_->Take(Place::kHost, page_));
  }
  if (page->mapped == *host) return core::Ok();
  RAVEN_RETURN_IF_ERROR(Detach(page));
  RAVEN_RETURN_IF_ERROR(parts_->Map(page->begin, **host));
  page->mapped = *host;
  return core::Ok();
}

}  // namespace ravenstore::elastic
