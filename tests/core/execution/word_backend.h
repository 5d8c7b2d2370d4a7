// A backend that knows lease words alone: it begins no move, and any may begin.
//
// Owns: the tensors that it granted, refused and granted early, in order. Threads: one.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "core/execution/page_backend.h"

namespace ravenstore::core {

class WordBackend : public PageBackend {
 public:
  bool Revoke(TensorNumber tensor, uint32_t) override {
    if (in_use.count(tensor) > 0) return false;
    away.insert(tensor);
    return true;
  }
  void Publish(TensorNumber tensor) override { away.erase(tensor); }
  void Grant(TensorNumber tensor) override { granted.push_back(tensor); }
  void Refuse(TensorNumber tensor) override { refused.push_back(tensor); }
  bool GrantEarly(TensorNumber tensor) override {
    if (grants_early) granted_early.push_back(tensor);
    return grants_early;
  }
  void Arrived(TensorNumber tensor) override { arrived.push_back(tensor); }
  void Break(TensorNumber tensor) override { broken.push_back(tensor); }
  bool Map(const MapOrder&) override { return true; }
  void Unmap(plan::PhysicalPage) override {}
  void Release(const plan::PageSupply::Released&) override {}
  void CopyIn(const CopyOrder&) override {}
  void CopyOut(const CopyOrder&) override {}
  void FreeCopy(plan::Unit, plan::PoolNumber) override {}
  void MoveSlot(const PageMemory::SlotMove&, Bytes) override {}
  bool MoveCopy(const CopyMove&) override { return true; }
  bool CanCopyIn(plan::PoolNumber, bool) const override { return true; }
  bool CanCopyOut(plan::PoolNumber) const override { return true; }

  std::set<TensorNumber> in_use;  // as the client's words say
  std::set<TensorNumber> away;
  std::vector<TensorNumber> granted;
  std::vector<TensorNumber> refused;
  bool grants_early = false;
  std::vector<TensorNumber> granted_early;
  std::vector<TensorNumber> arrived;
  std::vector<TensorNumber> broken;
};

}  // namespace ravenstore::core
