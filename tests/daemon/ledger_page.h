// A legacy job's page, as its interceptor makes it: a sealed memfd and its mapping.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "core/check.h"
#include "ipc/unique_fd.h"
#include "proto/ledger_page.h"

namespace ravenstore::daemon {

class LedgerPage {
 public:
  explicit LedgerPage(int seals = F_SEAL_SHRINK | F_SEAL_GROW, size_t bytes = proto::kLedgerBytes)
      : file_(::memfd_create("ledger", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    RAVEN_CHECK(::ftruncate(file_.get(), static_cast<off_t>(bytes)) == 0);
    RAVEN_CHECK(::fcntl(file_.get(), F_ADD_SEALS, seals) == 0);
    page_ = static_cast<proto::LedgerPage*>(
        ::mmap(nullptr, proto::kLedgerBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0));
    page_->magic = proto::kLedgerMagic;
  }
  ~LedgerPage() { ::munmap(page_, proto::kLedgerBytes); }
  LedgerPage(const LedgerPage&) = delete;
  LedgerPage& operator=(const LedgerPage&) = delete;

  // The page has rows up to this one.
  proto::LedgerRow& Row(uint32_t index, const char* uuid) {
    std::strcpy(page_->row[index].uuid, uuid);
    page_->rows = index + 1;
    return page_->row[index];
  }
  ipc::UniqueFd Descriptor() const { return ipc::UniqueFd(::dup(file_.get())); }

 private:
  ipc::UniqueFd file_;
  proto::LedgerPage* page_;
};

}  // namespace ravenstore::daemon
