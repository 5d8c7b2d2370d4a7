// The tensors of one client on one device: on which units they are, and what their lease words say.
//
// A tensor's lease word is in memory that the client shares. The client changes it without asking:
// a get of an idle tensor, a put, a free. The report of it comes later. `uses` counts the gets and
// the create that were reported; the word has its own count. Where both are equal and the word is
// "idle", the client has not used the tensor since.
//
// Owns: the rows, and for each unit the tensors that live in it. Units: bytes. Threads: one at a
// time. Cost: O(units of the tensor) for Begin and End.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/chunked.h"
#include "core/events.h"
#include "core/plan/units.h"
#include "core/types.h"

namespace ravenstore::core {

// A tensor's number among those of its client.
using TensorNumber = uint32_t;

class PageTensors {
 public:
  enum class Life : uint8_t {
    kNone,    // the row is free
    kPlaced,  // no call holds it yet
    kBegins,  // a create, or a get of a tensor that has ended, holds it: its bytes will count
    kLives,   // its bytes count
    kEnded,
  };

  struct Row {
    plan::UnitSpan units;
    Bytes offset;  // where it begins in its first unit
    Bytes size;
    uint32_t uses = 0;
    Life life = Life::kNone;
    bool pinned = false;      // a get or create holds its units
    bool in_place = false;    // that call uses the copies of away units where they are
    bool away = false;        // its word is "away": a get has to ask
    bool recomputes = false;  // its client can recompute its bytes, which may then end unasked
    // Where it is in In() of its first and of its last unit. In others it is alone, or with a
    // tensor whose free the stream has not reached. Until it lives, the first is its place in
    // beginning().
    uint32_t in_first = 0;
    uint32_t in_last = 0;
    Priority priority = Priority::kNormal;

    bool lives() const { return life == Life::kLives; }
    // Its bytes have ended without a call: its next get begins it again.
    bool is_discarded() const { return recomputes && life == Life::kEnded; }
  };

  // `page`: the bytes of a page; a tensor's units after the first are whole but the last.
  explicit PageTensors(Bytes page) : page_(page) {}

  // The tensor has this place. REQUIRES: the number has no row.
  void Place(TensorNumber tensor, const plan::UnitSpan& units, Bytes offset, Bytes size);
  // A call holds it, and does not any more.
  void Hold(TensorNumber tensor);
  void EndHold(TensorNumber tensor);
  // The bytes of all tensors that calls hold.
  Bytes held() const { return held_; }
  // It lives in its units from now on.
  void Begin(TensorNumber tensor);
  // Its create or get has failed, and did not begin it.
  void AbortBegin(TensorNumber tensor);
  // It does not any more; the row remains until Remove().
  void End(TensorNumber tensor);
  void Remove(TensorNumber tensor);
  // There are none any more. The rows of very many take long to destroy: they are kept until the
  // end.
  void Clear();
  // A tensor that lives has a slot from now on.
  void Move(TensorNumber tensor, const plan::UnitSpan& slot);

  Row& operator[](TensorNumber tensor) { return rows_[tensor]; }
  const Row& operator[](TensorNumber tensor) const { return rows_[tensor]; }
  TensorNumber size() const { return static_cast<TensorNumber>(rows_.size()); }
  // As its client said at the last put.
  void SetPriority(TensorNumber tensor, Priority priority);
  // Some tensor has had another priority than the normal one.
  bool has_priorities() const { return has_priorities_; }
  // The highest of the tensors that live in a unit.
  Priority PriorityIn(plan::Unit unit) const;
  // The bytes of the tensor in its i-th unit.
  Bytes BytesIn(TensorNumber tensor, uint32_t i) const;
  // Those that calls hold and that do not live yet: kBegins.
  std::span<const TensorNumber> beginning() const { return beginning_; }
  // The tensors that live in a unit.
  std::span<const TensorNumber> In(plan::Unit unit) const {
    return unit < in_.size() ? std::span<const TensorNumber>(in_[unit])
                             : std::span<const TensorNumber>();
  }

 private:
  void EndBeginning(TensorNumber tensor);
  // Where the tensor is in In(unit), of its first or last unit; null of another one.
  uint32_t* IndexIn(plan::Unit unit, TensorNumber tensor);

  Bytes page_;
  Bytes held_;
  bool has_priorities_ = false;
  using Rows = Chunked<Row, 1024>;
  Rows rows_;
  Rows cleared_;
  std::vector<TensorNumber> beginning_;
  std::vector<std::vector<TensorNumber>> in_;  // by unit
};

}  // namespace ravenstore::core
