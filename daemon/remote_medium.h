// The remote pool's memory, as copies reach it: what other nodes lend.
//
// The node's thread does all the work; calls here post to it.
//
// Owns: nothing of the node. Threads: any.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "cluster/node.h"
#include "core/result.h"
#include "core/types.h"
#include "daemon/rate_meter.h"
#include "device/medium.h"

namespace ravenstore::daemon {

class RemoteMedium final : public device::PiecedMedium {
 public:
  struct Options {
    core::Bytes size;
    cluster::Sizes sizes = {};
    core::Duration timeout{};  // of a piece that comes, and of each transfer
    // Runs work with the node, on its thread, or with null once there is none any more.
    std::function<void(std::function<void(cluster::Node*)>)> post;
    std::function<core::Tick()> now;
    std::shared_ptr<RateMeter> meter;  // of all transfers
  };

  explicit RemoteMedium(Options options) : options_(std::move(options)) {}
  ~RemoteMedium() override { options_.meter->Wait(); }

  const std::string& name() const override { return name_; }
  core::Bytes size() const override { return options_.size; }
  core::Bytes granularity() const override { return options_.sizes.granule; }
  core::Bytes piece() const override { return options_.sizes.piece; }
  void Read(core::Bytes offset, std::byte* to, core::Bytes bytes, Completion completion) override;
  void Write(core::Bytes offset, const std::byte* from, core::Bytes bytes,
             Completion completion) override;
  // Borrows the piece, and waits for it. REQUIRES: not on the node's thread.
  core::Status Make(core::Bytes offset) override;
  core::Status Destroy(core::Bytes offset) override;

 private:
  cluster::PieceId PieceAt(core::Bytes offset) const {
    return cluster::PieceId(static_cast<uint32_t>(offset.count() / piece().count()));
  }
  // Of a transfer that begins now: what ends it.
  cluster::Home::DoneCallback Begin(core::Bytes bytes, Completion completion);

  const Options options_;
  const std::string name_ = "other nodes' memory";
};

}  // namespace ravenstore::daemon
