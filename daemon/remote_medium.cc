#include "daemon/remote_medium.h"

#include <future>

namespace ravenstore::daemon {
namespace {

using core::Bytes;

core::Error Left() {
  return {core::ErrorCode::kUnavailable, "this node has left the cluster"};
}

}  // namespace

cluster::Home::DoneCallback RemoteMedium::Begin(Bytes bytes, Completion completion) {
  options_.meter->Begin(options_.now());
  return [bytes, completion = std::move(completion), meter = options_.meter,
          now = options_.now](const core::Status& status) {
    completion(status.ok() ? core::Result<Bytes>(bytes) : core::Result<Bytes>(status.error()));
    meter->End(now(), status.ok() ? bytes : Bytes{});
  };
}

void RemoteMedium::Read(Bytes offset, std::byte* to, Bytes bytes, Completion completion) {
  const core::Tick deadline = options_.now() + options_.timeout;
  options_.post([=, done = Begin(bytes, std::move(completion))](cluster::Node* node) {
    if (node == nullptr) return done(Left());
    node->home().Read(offset, {to, bytes.count()}, deadline, done);
  });
}

void RemoteMedium::Write(Bytes offset, const std::byte* from, Bytes bytes, Completion completion) {
  const core::Tick deadline = options_.now() + options_.timeout;
  options_.post([=, done = Begin(bytes, std::move(completion))](cluster::Node* node) {
    if (node == nullptr) return done(Left());
    node->home().Write(offset, {from, bytes.count()}, deadline, done);
  });
}

core::Status RemoteMedium::Make(Bytes offset) {
  // Shared: the thread that sets the value may still be in set_value as this returns.
  const auto made = std::make_shared<std::promise<core::Status>>();
  const core::Tick deadline = options_.now() + options_.timeout;
  options_.post([made, piece = PieceAt(offset), deadline](cluster::Node* node) {
    if (node == nullptr) return made->set_value(Left());
    node->home().Grow(piece, deadline,
                      [made](const core::Status& status) { made->set_value(status); });
  });
  return made->get_future().get();
}

core::Status RemoteMedium::Destroy(Bytes offset) {
  options_.post([piece = PieceAt(offset)](cluster::Node* node) {
    if (node != nullptr) node->home().Shrink(piece);
  });
  return core::Ok();
}

}  // namespace ravenstore::daemon
