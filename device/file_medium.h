// A file as a medium.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/result.h"
#include "core/types.h"
#include "device/medium.h"
#include "ipc/unique_fd.h"

namespace ravenstore::device {

// One file, read and written by threads of its own, past the page cache where its file system can
// (O_DIRECT). Memory and sizes that are not multiples of the granularity go through a buffer.
// Owns: the file and the threads. Destroying it waits for the transfers under way.
// Threads: any.
// Errors of a transfer: kSystem with the system's words; of a file that was made shorter, also when
// a later write made it longer again.
class FileMedium : public Medium {
 public:
  struct Options {
    uint32_t threads = 4;  // concurrent transfers
  };

  // A file of `size` bytes in `folder`, rounded up to the granularity, that has all its room, no
  // name and no other user. Its bytes are undefined. It is gone when this is.
  // Errors: kOutOfMemory when the file system has too little room, kSystem with the system's words
  // when the folder is not there, may not be written to, or its file system cannot reserve room.
  static core::Result<std::unique_ptr<FileMedium>> Create(const std::string& folder,
                                                          core::Bytes size, const Options& options);
  // Over a file made by Create: Duplicate() of another one, or what another process handed over.
  // Errors: kInvalidArgument for one that is too short to be that.
  static core::Result<std::unique_ptr<FileMedium>> Adopt(ipc::UniqueFd file, std::string name,
                                                         const Options& options);
  ~FileMedium() override;

  // A descriptor of the file, closed on exec.
  core::Result<ipc::UniqueFd> Duplicate() const;
  // Whether transfers pass by the page cache.
  bool direct() const { return direct_; }

  const std::string& name() const override { return name_; }
  core::Bytes size() const override { return size_; }
  core::Bytes granularity() const override { return kUnit; }
  void Read(core::Bytes offset, std::byte* to, core::Bytes bytes, Completion completion) override;
  void Write(core::Bytes offset, const std::byte* from, core::Bytes bytes,
             Completion completion) override;

 private:
  // What every disk asks for of places, sizes and memory.
  static constexpr core::Bytes kUnit = core::KiB(4);
  class Worker;

  FileMedium(ipc::UniqueFd file, std::string name, core::Bytes size, const Options& options);
  Worker& Next();

  const ipc::UniqueFd file_;
  const std::string name_;
  const core::Bytes size_;
  const bool direct_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<uint64_t> transfers_{0};  // workers have them in turn
};

}  // namespace ravenstore::device
