// A medium that is given up once every transfer fails.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "core/result.h"
#include "core/types.h"
#include "device/medium.h"

namespace ravenstore::device {

// Counts how many transfers of `medium` failed or fell short since the last that did not. At `most`
// it gives up the medium: from then on every transfer fails immediately with the words of that last
// failure, and the medium is not touched any more.
// Owns: the medium. Threads: any.
class WatchedMedium : public Medium {
 public:
  WatchedMedium(std::unique_ptr<Medium> medium, uint32_t most)
      : most_(most), medium_(std::move(medium)) {}

  // Ok, or why it was given up. Cheap.
  core::Status Health() const;

  const std::string& name() const override { return medium_->name(); }
  core::Bytes size() const override { return medium_->size(); }
  core::Bytes granularity() const override { return medium_->granularity(); }
  void Read(core::Bytes offset, std::byte* to, core::Bytes bytes, Completion completion) override;
  void Write(core::Bytes offset, const std::byte* from, core::Bytes bytes,
             Completion completion) override;

 private:
  // `completion`, behind a look at what came of the transfer.
  Completion Watch(core::Bytes bytes, Completion completion);
  void Note(const core::Result<core::Bytes>& moved, core::Bytes bytes);

  const uint32_t most_;
  std::atomic<uint32_t> failures_{0};  // in a row
  std::atomic<bool> given_up_{false};
  mutable std::mutex mutex_;
  core::Status why_ = core::Ok();         // set under mutex_, before given_up_
  const std::unique_ptr<Medium> medium_;  // last: its transfers use the others until it ends
};

}  // namespace ravenstore::device
