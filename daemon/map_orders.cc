#include "daemon/map_orders.h"

#include <utility>

#include "proto/packet.h"

namespace ravenstore::daemon {

using core::Bytes;
using core::DeviceId;
using proto::MapInstruction;
using proto::MapOp;

namespace {

MapInstruction Of(MapOp op, DeviceId device, uint32_t memory) {
  MapInstruction instruction{};
  instruction.op = static_cast<uint16_t>(op);
  instruction.device = core::ToInt(device);
  instruction.memory = memory;
  return instruction;
}

bool IsImport(const MapInstruction& instruction) {
  return static_cast<MapOp>(instruction.op) == MapOp::kImport;
}

MapOrders::Ended EndOf(const MapInstruction& done, bool ok) {
  return {.op = static_cast<MapOp>(done.op),
          .device = DeviceId{done.device},
          .memory = done.memory,
          .offset = Bytes(done.offset),
          .ok = ok};
}

}  // namespace

void MapOrders::Append(MapInstruction instruction, ipc::UniqueFd descriptor) {
  waiting_.push_back({instruction, std::move(descriptor)});
}

uint32_t MapOrders::Import(DeviceId device, Bytes bytes, ipc::UniqueFd descriptor) {
  MapInstruction import = Of(MapOp::kImport, device, memories_);
  import.bytes = bytes.count();
  Append(import, std::move(descriptor));
  ++imports_waiting_;
  return memories_++;
}

void MapOrders::Map(DeviceId device, uint32_t memory, Bytes offset, Bytes bytes) {
  MapInstruction map = Of(MapOp::kMap, device, memory);
  map.offset = offset.count();
  map.bytes = bytes.count();
  Append(map);
}

void MapOrders::Unmap(DeviceId device, uint32_t memory, Bytes offset) {
  MapInstruction unmap = Of(MapOp::kUnmap, device, memory);
  unmap.offset = offset.count();
  Append(unmap);
}

void MapOrders::Release(DeviceId device, uint32_t memory) {
  Append(Of(MapOp::kRelease, device, memory));
}

bool MapOrders::MayImport(size_t ahead) const {
  return under_way_ + imports_waiting_ + ahead < proto::kMemoryUnderWayMax;
}

MapOrders::Batch MapOrders::Send() {
  Batch batch;
  if (is_executed_here_) return batch;
  bool any = false;
  while (!waiting_.empty() && ring_.Room() > 0) {
    Order& next = waiting_.front();
    if (IsImport(next.instruction)) {
      if (under_way_ == proto::kMemoryUnderWayMax) break;
      ++under_way_;
      --imports_waiting_;
      if (batch.descriptors.empty()) batch.first = next.instruction.memory;
      batch.descriptors.push_back(std::move(next.descriptor));
    }
    ring_.Push(next.instruction);
    sent_.push_back(next.instruction);
    waiting_.pop_front();
    any = true;
  }
  if (any) ring_.Wake();
  return batch;
}

void MapOrders::EndAll(std::vector<Ended>* ended) {
  for (Order& order : waiting_) sent_.push_back(order.instruction);
  waiting_.clear();
  for (const MapInstruction& done : sent_) ended->push_back(EndOf(done, /*ok=*/true));
  sent_.clear();
  imports_waiting_ = 0;
  under_way_ = 0;
}

bool MapOrders::Poll(std::vector<Ended>* ended) {
  if (is_executed_here_) {
    EndAll(ended);
    return true;
  }
  uint32_t result = 0;
  while (true) {
    const ipc::Take take = ring_.NextResult(&result);
    if (take != ipc::Take::kEntry) return take == ipc::Take::kEmpty;
    const MapInstruction done = sent_.front();
    sent_.pop_front();
    if (IsImport(done)) --under_way_;
    ended->push_back(EndOf(done, result == 0));
  }
}

}  // namespace ravenstore::daemon
