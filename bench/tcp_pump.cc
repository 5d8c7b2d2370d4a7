#include "bench/tcp_pump.h"

#include <cstdint>
#include <span>

#include "core/types.h"
#include "ipc/clock.h"

namespace ravenstore::bench {
namespace {

std::pair<LoopbackStream, LoopbackStream> MakeEnds() {
  std::string address;
  const ipc::UniqueFd listener = transport::LoopbackListener(&address);
  auto end = LoopbackStream::Connect(address, ipc::Now());
  RAVEN_CHECK(end.ok());
  ipc::UniqueFd accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  RAVEN_CHECK(static_cast<bool>(accepted));
  return {*std::move(end), LoopbackStream(std::move(accepted))};
}

}  // namespace

TcpPump::TcpPump(size_t bytes) : TcpPump(bytes, MakeEnds()) {}

TcpPump::TcpPump(size_t bytes, std::pair<LoopbackStream, LoopbackStream> ends)
    : buffer_(bytes),
      their_buffer_(bytes),
      end_(std::move(ends.first)),
      their_end_(std::move(ends.second)),
      thread_([this] { Serve(); }) {}

TcpPump::~TcpPump() {
  const uint64_t none = 0;
  end_.Write(std::as_bytes(std::span(&none, 1)));
  thread_.join();
}

double TcpPump::OutAndIn(size_t count) {
  const core::Tick begin = ipc::Now();
  const uint64_t buffers = count;
  end_.Write(std::as_bytes(std::span(&buffers, 1)));
  for (size_t i = 0; i < count; ++i) end_.Write(buffer_);
  for (size_t i = 0; i < count; ++i) end_.Read(buffer_);
  return core::Seconds(ipc::Now() - begin);
}

// Answers only when all has come, so that one direction is measured at a time.
void TcpPump::Serve() {
  for (;;) {
    uint64_t count = 0;
    their_end_.Read(std::as_writable_bytes(std::span(&count, 1)));
    if (count == 0) return;
    for (uint64_t i = 0; i < count; ++i) their_end_.Read(their_buffer_);
    for (uint64_t i = 0; i < count; ++i) their_end_.Write(their_buffer_);
  }
}

}  // namespace ravenstore::bench
