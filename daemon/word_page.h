// Words that the daemon's own copy channels write and the planner loop reads.
#pragma once

#include <memory>
#include <new>

#include "core/check.h"
#include "core/result.h"
#include "device/device.h"

namespace ravenstore::daemon {

// Owns: one page of zeroed words, registered with the devices. Threads: any, once created.
class WordPage {
 public:
  static constexpr size_t kWords = 4096 / sizeof(device::Word);

  // Errors: of Device::RegisterWords.
  static core::Result<std::unique_ptr<WordPage>> Create(device::Device& device) {
    std::unique_ptr<WordPage> page(new WordPage);
    RAVEN_ASSIGN_OR_RETURN(page->registration_,
                           device.RegisterWords(page->words_.get(), core::Bytes(4096)));
    return page;
  }

  device::Word* Word(size_t index) {
    RAVEN_CHECK(index < kWords);
    return &words_->words[index];
  }

 private:
  struct alignas(4096) Page {
    device::Word words[kWords]{};
  };
  WordPage() : words_(std::make_unique<Page>()) {}

  std::unique_ptr<Page> words_;
  std::unique_ptr<device::Registration> registration_;  // ends before the page does
};

}  // namespace ravenstore::daemon
