#include "sim/cluster_client.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "cluster/planted.h"

namespace ravenstore::sim {
namespace {

using cluster::PieceId;
using core::ErrorCode;
using core::Status;
using std::chrono::milliseconds;

// Fills or compares granule by granule.
uint64_t Word(uint64_t seed, uint64_t index) {
  uint64_t x = seed + index * 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  return x ^ (x >> 27);
}

std::vector<std::byte> Content(uint64_t seed, size_t length) {
  std::vector<std::byte> bytes(length);
  for (size_t at = 0; at < length; at += sizeof(uint64_t)) {
    const uint64_t word = Word(seed, at);
    std::memcpy(bytes.data() + at, &word, std::min(sizeof(word), length - at));
  }
  return bytes;
}

}  // namespace

ClusterClient::ClusterClient(Options options, cluster::Home* home, std::mt19937_64* random,
                             LenderLedger::Violation violation, ClusterCounts* counts)
    : options_(std::move(options)),
      home_(home),
      random_(random),
      violation_(std::move(violation)),
      counts_(counts),
      pieces_(options_.pieces) {
  const size_t granules = options_.sizes.piece.count() / options_.sizes.granule.count();
  for (Piece& piece : pieces_) piece.granules.resize(granules);
}

core::Tick ClusterClient::Deadline() {
  return options_.now() + milliseconds(20 + Random(Random(4) == 0 ? 3000 : 400));
}

void ClusterClient::Act() {
  if (closed_) return;
  const auto piece = static_cast<uint32_t>(Random(pieces_.size()));
  const uint64_t choice = Random(100);
  switch (pieces_[piece].state) {
    case State::kNone: return Grow(piece, Deadline(), false);
    case State::kGrowing:
      if (choice < 3) Give(piece);
      return;
    case State::kHeld:
      if (choice < 45) return Write(piece);
      if (choice < 98) return Read(piece);
      return Give(piece);
    case State::kLeaving:
      if (choice < 85) return Read(piece);
      return Give(piece);
  }
}

void ClusterClient::Grow(uint32_t piece, core::Tick deadline, bool last) {
  pieces_[piece].state = State::kGrowing;
  ++pieces_[piece].grown;
  Start({.kind = Kind::kGrow, .piece = piece, .deadline = deadline, .last = last});
}

void ClusterClient::Write(uint32_t index) {
  Piece& piece = pieces_[index];
  const size_t first = Random(piece.granules.size());
  const size_t most = 1 + Random(piece.granules.size() - first);
  const auto granule = static_cast<uint32_t>(options_.sizes.granule.count());
  Operation write{.kind = Kind::kWrite, .piece = index, .granule = first, .deadline = Deadline()};
  write.buffer = std::make_shared<std::vector<std::byte>>();
  for (size_t i = first; i < first + most; ++i) {
    Granule& to = piece.granules[i];
    if (to.reads > 0 || to.written) break;
    const bool partly = i + 1 == first + most && Random(4) == 0;
    const auto length = partly ? static_cast<uint32_t>(1 + Random(granule)) : granule;
    write.content.push_back({.seed = (*random_)() | 1, .length = length});
    const auto bytes = Content(write.content.back().seed, length);
    write.buffer->insert(write.buffer->end(), bytes.begin(), bytes.end());
    to = {.written = true};
  }
  if (!write.content.empty()) Start(std::move(write));
}

void ClusterClient::Read(uint32_t index) {
  Piece& piece = pieces_[index];
  const size_t first = Random(piece.granules.size());
  const size_t most = 1 + Random(piece.granules.size() - first);
  Operation read{.kind = Kind::kRead, .piece = index, .granule = first, .deadline = Deadline()};
  size_t bytes = 0;
  for (size_t i = first; i < first + most; ++i) {
    Granule& from = piece.granules[i];
    if (from.written || from.seed == 0) break;
    ++from.reads;
    read.content.push_back(from);
    bytes += from.length;
    if (from.length < options_.sizes.granule.count()) break;
  }
  read.buffer = std::make_shared<std::vector<std::byte>>(bytes);
  if (!read.content.empty()) Start(std::move(read));
}

void ClusterClient::Start(Operation operation) {
  const uint64_t id = ++last_operation_;
  operation.grown = pieces_[operation.piece].grown;
  if (cluster::Has(cluster::Planted::kCommitBeforeAnswer)) kept_.push_back(operation.buffer);
  const Operation& kept = operations_.emplace(id, std::move(operation)).first->second;
  const auto done = [this, id](const Status& status) { Done(id, status); };
  const core::Bytes offset =
      options_.sizes.piece * kept.piece + options_.sizes.granule * kept.granule;
  switch (kept.kind) {
    case Kind::kGrow: return home_->Grow(PieceId{kept.piece}, kept.deadline, done);
    case Kind::kWrite: return home_->Write(offset, *kept.buffer, kept.deadline, done);
    case Kind::kRead: return home_->Read(offset, *kept.buffer, kept.deadline, done);
  }
}

void ClusterClient::Give(uint32_t piece) {
  const bool growing = pieces_[piece].state == State::kGrowing;
  if (!growing) pieces_[piece].state = State::kNone;  // else once it is notified
  home_->Shrink(PieceId{piece});
}

void ClusterClient::OnPieceRecalled(PieceId piece) {
  pieces_[core::ToInt(piece)].state = State::kLeaving;
}

void ClusterClient::OnPieceKept(PieceId piece) {
  RAVEN_CHECK(pieces_[core::ToInt(piece)].state == State::kLeaving);
  pieces_[core::ToInt(piece)].state = State::kHeld;
}

void ClusterClient::OnPieceLost(PieceId piece) {
  ++counts_->pieces_lost;
  pieces_[core::ToInt(piece)].state = State::kNone;
}

void ClusterClient::Done(uint64_t id, const Status& status) {
  auto ended = operations_.extract(id);
  if (closed_) return;
  const Operation& operation = ended.mapped();
  if (status.ok()) ++counts_->operations;
  switch (operation.kind) {
    case Kind::kGrow: GrowDone(operation, status); break;
    case Kind::kWrite: WriteDone(operation, status); break;
    case Kind::kRead: ReadDone(operation, status); break;
  }
  if (operation.last) return Last(operation, status);
  // A client may go on from within its callbacks.
  if (Random(4) == 0) Act();
}

void ClusterClient::GrowDone(const Operation& operation, const Status& status) {
  Piece& piece = pieces_[operation.piece];
  piece.state = status.ok() ? State::kHeld : State::kNone;
  for (Granule& granule : piece.granules) granule = {};
}

void ClusterClient::WriteDone(const Operation& operation, const Status& status) {
  Piece& piece = pieces_[operation.piece];
  if (piece.grown != operation.grown) return;
  for (size_t i = 0; i < operation.content.size(); ++i) {
    piece.granules[operation.granule + i] = status.ok() ? operation.content[i] : Granule{};
  }
}

void ClusterClient::ReadDone(const Operation& operation, const Status& status) {
  Piece& piece = pieces_[operation.piece];
  if (piece.grown == operation.grown) {
    for (size_t i = 0; i < operation.content.size(); ++i) {
      --piece.granules[operation.granule + i].reads;
    }
  }
  if (!status.ok()) {
    const ErrorCode code = status.error().code;
    const bool may_be = code == ErrorCode::kLost || code == ErrorCode::kTimedOut ||
                        code == ErrorCode::kUnavailable ||
                        (code == ErrorCode::kCorrupt && options_.rots);
    if (!may_be) violation_(&ClusterCounts::wrong_bytes, Describe(status.error()));
    return;
  }
  if (options_.is_late()) {
    violation_(&ClusterCounts::served_late, "bytes were read after the end of their lease");
  }
  counts_->bytes_read += operation.buffer->size();
  size_t at = 0;
  for (const Granule& granule : operation.content) {
    const auto expected = Content(granule.seed, granule.length);
    if (!std::equal(expected.begin(), expected.end(),
                    operation.buffer->begin() + static_cast<std::ptrdiff_t>(at))) {
      return violation_(&ClusterCounts::wrong_bytes, "bytes that were not written there");
    }
    at += granule.length;
  }
}

void ClusterClient::CheckDeadlines(core::Tick now) {
  for (const auto& [id, operation] : operations_) {
    if (operation.deadline + milliseconds(1) >= now) continue;
    const char* const names[] = {"grow", "write", "read"};
    return violation_(&ClusterCounts::late_calls, std::string("a ") +
                                                      names[static_cast<size_t>(operation.kind)] +
                                                      " did not end by its deadline");
  }
}

// ---- The end

void ClusterClient::ReturnAll() {
  for (uint32_t piece = 0; piece < pieces_.size(); ++piece) {
    if (pieces_[piece].state != State::kNone) Give(piece);
  }
}

void ClusterClient::BeginLast(core::Tick deadline) {
  const bool is_free = pieces_[0].state == State::kNone;
  if (is_free && !last_succeeded_) Grow(0, deadline, true);
}

void ClusterClient::Last(const Operation& operation, const Status& status) {
  if (!status.ok()) {
    // The next node that is asked may not have answered yet: BeginLast is called again.
    if (status.error().code == ErrorCode::kOutOfMemory) return;
    return violation_(&ClusterCounts::late_calls,
                      "all is well again, but not for a client: " + Describe(status.error()));
  }
  if (operation.kind == Kind::kRead) {
    last_succeeded_ = true;
    return;
  }
  const size_t length = options_.sizes.granule.count();
  Operation next{.kind = operation.kind == Kind::kGrow ? Kind::kWrite : Kind::kRead,
                 .deadline = operation.deadline,
                 .last = true};
  if (next.kind == Kind::kWrite) {
    next.content.push_back({.seed = 1, .length = static_cast<uint32_t>(length)});
    next.buffer = std::make_shared<std::vector<std::byte>>(Content(1, length));
  } else {
    pieces_[0].granules[0].reads = 1;
    next.content = operation.content;
    next.buffer = std::make_shared<std::vector<std::byte>>(length);
  }
  Start(std::move(next));
}

}  // namespace ravenstore::sim
