#include "client/mapper.h"

#include <pthread.h>

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

#include "client/no_signals.h"

namespace ravenstore::client {

using core::Bytes;
using core::Error;
using core::ErrorCode;
using core::Status;
using proto::MapInstruction;
using proto::MapOp;

Mapper::Mapper(proto::MapRing* ring, DeviceSet* devices, Hooks hooks)
    : ring_(ring), devices_(devices), hooks_(std::move(hooks)) {}

Status Mapper::Start() {
  try {
    const NoSignals blocked;
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error& error) {
    return Error{ErrorCode::kSystem, std::string("starting the mapper: ") + error.what()};
  }
  return core::Ok();
}

void Mapper::Stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true, std::memory_order_seq_cst);
  ring_.Wake();
  thread_.join();
}

void Mapper::Offer(uint32_t first, std::vector<ipc::UniqueFd> descriptors) {
  {
    std::lock_guard lock(mutex_);
    for (ipc::UniqueFd& descriptor : descriptors) offered_[first++] = std::move(descriptor);
    offered_end_ = std::max(offered_end_, first);
  }
  ring_.Wake();
}

void Mapper::NoteMissedPacket(const Error& why) {
  std::lock_guard lock(mutex_);
  missed_ = why.message;
}

void Mapper::LockForFork() {
  importing_.lock();
  mutex_.lock();
}

void Mapper::UnlockAfterFork() {
  mutex_.unlock();
  importing_.unlock();
}

void Mapper::Run() {
  pthread_setname_np(pthread_self(), "raven-mapper");
  while (!stopping_.load(std::memory_order_seq_cst)) {
    const uint64_t seen = ring_.wake();
    MapInstruction next;
    const ipc::Take take = ring_.Next(&next);
    if (take == ipc::Take::kCorrupt) return hooks_.failed();
    if (take == ipc::Take::kEmpty) {
      if (!stopping_.load(std::memory_order_seq_cst)) ring_.Sleep(seen);
      continue;
    }
    Status done = core::Ok();
    try {
      done = Execute(next);
    } catch (const std::bad_alloc&) {
      return hooks_.failed();
    }
    if (stopping_.load(std::memory_order_seq_cst)) return;
    ring_.Acknowledge(done.ok() ? 0 : static_cast<uint32_t>(done.error().code));
    hooks_.acknowledged();
  }
}

Status Mapper::Execute(const MapInstruction& instruction) {
  ClientDevice* device = devices_->OfDaemon(instruction.device);
  if (device == nullptr) {
    return Error{ErrorCode::kNotFound,
                 "the daemon maps memory of a device that is not visible here"};
  }
  switch (static_cast<MapOp>(instruction.op)) {
    case MapOp::kImport: return Import(*device, instruction);
    case MapOp::kMap: return device->Map(instruction.memory, instruction.offset, instruction.bytes);
    case MapOp::kUnmap: return device->Unmap(instruction.offset);
    case MapOp::kRelease: return device->Release(instruction.memory);
  }
  return Error{ErrorCode::kCorrupt, "no instruction to map is " + std::to_string(instruction.op)};
}

Status Mapper::Import(ClientDevice& device, const MapInstruction& instruction) {
  const Status received = AwaitDescriptor(instruction.memory);
  // A fork finds the descriptor in the list, or imported.
  std::lock_guard lock(importing_);
  if (!received.ok())
    return device.Import(instruction.memory, Bytes(instruction.bytes), received.error());
  return device.Import(instruction.memory, Bytes(instruction.bytes),
                       TakeDescriptor(instruction.memory));
}

Status Mapper::AwaitDescriptor(uint32_t memory) {
  while (true) {
    const uint64_t seen = ring_.wake();
    {
      std::lock_guard lock(mutex_);
      if (offered_.contains(memory)) return core::Ok();
      if (offered_end_ > memory || stopping_.load(std::memory_order_seq_cst)) {
        return Error{ErrorCode::kTimedOut,
                     "its descriptor did not arrive" + (missed_.empty() ? "" : ": " + missed_)};
      }
    }
    ring_.Sleep(seen);
  }
}

ipc::UniqueFd Mapper::TakeDescriptor(uint32_t memory) {
  std::lock_guard lock(mutex_);
  return std::move(offered_.extract(memory).mapped());
}

}  // namespace ravenstore::client
