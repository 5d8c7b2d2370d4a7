#include "cluster/node.h"

#include <type_traits>
#include <variant>

namespace ravenstore::cluster {
namespace {

using core::Error;
using core::Status;

constexpr core::Duration kRefusalReportInterval = std::chrono::minutes(1);

Home::Options HomeOptions(const Node::Options& options) {
  Home::Options home = options.home;
  home.sizes = options.sizes;
  home.loans.seed = options.random();
  home.loans.loan.home = options.name;
  home.loans.loan.identity = options.identity;
  home.loans.loan.lease_clock = options.lease_clock;
  return home;
}

Lender::Options LenderOptions(const Node::Options& options) {
  Lender::Options lender = options.lender;
  lender.name = options.name;
  lender.identity = options.identity;
  lender.sizes = options.sizes;
  lender.lease_clock = options.lease_clock;
  lender.random = options.random;
  return lender;
}

}  // namespace

std::string_view Name(Event::Kind kind) {
  switch (kind) {
    case Event::Kind::kJoined: return "cluster.joined";
    case Event::Kind::kRefused: return "cluster.refused";
    case Event::Kind::kLost: return "cluster.lost";
    case Event::Kind::kPieceRecalled: return "cluster.piece_recalled";
    case Event::Kind::kPieceKept: return "cluster.piece_kept";
    case Event::Kind::kPieceCorrupt: return "cluster.piece_corrupt";
    case Event::Kind::kPieceMoved: return "cluster.piece_moved";
    case Event::Kind::kPieceLost: return "cluster.piece_lost";
    case Event::Kind::kHomeJoined: return "cluster.home_joined";
    case Event::Kind::kHomeRefused: return "cluster.home_refused";
    case Event::Kind::kHomeExpired: return "cluster.home_expired";
    case Event::Kind::kHomeGone: return "cluster.home_gone";
    case Event::Kind::kRecalled: return "cluster.recalled";
    case Event::Kind::kTaken: return "cluster.taken";
  }
  return "cluster.unknown";
}

Node::Node(Options options, LentMemory* memory, Listener* listener)
    : sizes_(options.sizes),
      listener_(listener),
      home_(HomeOptions(options), this),
      lender_(LenderOptions(options), memory, this) {}

void Node::Attach(transport::Transport* transport) {
  transport_ = transport;
  home_.Attach(transport);
  lender_.Attach(transport);
}

void Node::SetLendable(core::Bytes bytes) {
  lender_.SetLimit(static_cast<uint32_t>(bytes.count() / sizes_.piece.count()));
}

void Node::End() {
  lender_.End();
  home_.End();
  notices_until_ = transport_->Now() + kNoticeTimeout;
}

bool Node::HasPendingNotices() const {
  return transport_->Now() < notices_until_ &&
         (lender_.HasPendingNotices() || home_.HasPendingNotices());
}

void Node::Advance() {
  lender_.Advance();
  home_.Advance();
}

core::Tick Node::Next() const {
  const core::Tick next = std::min(lender_.Next(), home_.Next());
  return HasPendingNotices() ? std::min(next, notices_until_) : next;
}

Home::Footprint Node::footprint() const {
  Home::Footprint all = home_.footprint();
  all.records += lender_.footprint();
  return all;
}

// ---- The transport's service

void Node::OnConnected(transport::ConnectionId connection, std::string_view) {
  home_.OnConnected(connection);  // those that others made say what they want
}

void Node::OnLost(transport::ConnectionId connection, const Error& why) {
  if (home_.OnLost(connection, why)) return;
  lender_.OnLost(connection);
  // Any peer that reaches the port can be refused as often as it likes.
  if (why.code != core::ErrorCode::kPermission || transport_->Now() < next_refusal_report_) return;
  next_refusal_report_ = transport_->Now() + kRefusalReportInterval;
  Report({.kind = Event::Kind::kHomeRefused, .why = why.message});
}

core::Result<transport::Sink> Node::OnRequest(const transport::IncomingCall& call) {
  RAVEN_ASSIGN_OR_RETURN(AnyRequest request, DecodeRequest(call.header));
  return std::visit(
      [&](auto& one) -> core::Result<transport::Sink> {
        if constexpr (std::is_same_v<std::decay_t<decltype(one)>, RecallRequest>) {
          if (call.bulk.count() != 0) {
            return Error{core::ErrorCode::kCorrupt, "a recall with bulk"};
          }
          recalls_.emplace(call.id, std::move(one));
          return transport::Sink{};
        } else {
          return lender_.OnRequest(call, HomeRequest(one));
        }
      },
      request);
}

void Node::OnReceived(transport::CallId call) {
  if (lender_.Serves(call)) return lender_.OnReceived(call);
  const RecallRequest request = recalls_.at(call);
  const Status status = home_.OnRecall(call.connection, request);
  if (status.ok()) {
    (void)transport_->Reply(call, {});  // unless it ended meanwhile
  } else {
    (void)transport_->Refuse(call, status.error());
  }
}

void Node::OnEnded(transport::CallId call, const Status&) {
  if (recalls_.erase(call) == 0) lender_.OnEnded(call);
}

// ---- Events

void Node::OnPieceRecalled(PieceId piece, core::Tick deadline) {
  Report({.kind = Event::Kind::kPieceRecalled, .piece = core::ToInt(piece)});
  listener_->OnPieceRecalled(piece, deadline);
}

void Node::OnPieceKept(PieceId piece) {
  Report({.kind = Event::Kind::kPieceKept, .piece = core::ToInt(piece)});
  listener_->OnPieceKept(piece);
}

void Node::OnPieceLost(PieceId piece, const Error& why) {
  Report({.kind = Event::Kind::kPieceLost, .piece = core::ToInt(piece), .why = why.message});
  listener_->OnPieceLost(piece, why);
}

void Node::OnPieceCorrupt(PieceId piece, std::string_view lender) {
  Report({.kind = Event::Kind::kPieceCorrupt,
          .peer = std::string(lender),
          .piece = core::ToInt(piece)});
}

void Node::OnPieceMoved(PieceId piece, std::string_view lender) {
  Report(
      {.kind = Event::Kind::kPieceMoved, .peer = std::string(lender), .piece = core::ToInt(piece)});
}

void Node::OnLenderJoined(std::string_view lender) {
  Report({.kind = Event::Kind::kJoined, .peer = std::string(lender)});
}

void Node::OnLenderRefused(std::string_view lender, const Error& why) {
  Report({.kind = Event::Kind::kRefused, .peer = std::string(lender), .why = why.message});
}

void Node::OnLenderLost(std::string_view lender, uint32_t slots, const Error& why) {
  Report({.kind = Event::Kind::kLost,
          .peer = std::string(lender),
          .count = slots,
          .why = why.message});
}

void Node::OnHomeJoined(std::string_view home) {
  Report({.kind = Event::Kind::kHomeJoined, .peer = std::string(home)});
}

void Node::OnHomeRefused(std::string_view home, const Error& why) {
  Report({.kind = Event::Kind::kHomeRefused, .peer = std::string(home), .why = why.message});
}

void Node::OnHomeExpired(std::string_view home, uint32_t slots) {
  Report({.kind = Event::Kind::kHomeExpired, .peer = std::string(home), .count = slots});
}

void Node::OnHomeGone(std::string_view home, uint32_t slots) {
  Report({.kind = Event::Kind::kHomeGone, .peer = std::string(home), .count = slots});
}

void Node::OnSlotsRecalled(std::string_view home, uint32_t slots) {
  Report({.kind = Event::Kind::kRecalled, .peer = std::string(home), .count = slots});
}

void Node::OnSlotsTaken(std::string_view home, uint32_t slots) {
  Report({.kind = Event::Kind::kTaken, .peer = std::string(home), .count = slots});
}

}  // namespace ravenstore::cluster
