// Nodes in one process, with virtual time and faults: a transport for tests and simulations. The
// same multiplexers as on sockets run here, over pipes of bytes that are slow, fall silent, break
// or do harm. A run depends on the seed and on what is called, on nothing else.
//
// Threads: one, for a network and all of its transports. Poll of one transport runs all nodes, and
// moves the virtual time on to `until`.
//
// Owns: the network outlives its transports.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "core/types.h"
#include "transport/event_queue.h"
#include "transport/multiplexer.h"
#include "transport/transport.h"

namespace ravenstore::transport {

// How bytes travel between two nodes.
struct FakeLink {
  core::Duration delay = std::chrono::microseconds(50);
  core::Duration jitter{};      // up to this much more; each connection keeps its own order
  double bytes_per_second = 0;  // of each connection and direction; 0: no limit
};

enum class Damage : uint8_t {
  kFlippedBit,
  kMissingBytes,
};

class FakeTransport;

class FakeNetwork {
 public:
  // Without `sums` connections are as over TLS: bytes that were damaged end theirs as they come,
  // and chunks are not copied.
  explicit FakeNetwork(uint64_t seed, bool sums = true) : random_(seed), sums_(sums) {}
  ~FakeNetwork();

  // A node that listens; its address is its name. REQUIRES: no living transport has that name. When
  // the transport is destroyed, its peers are notified after the link's delay, as if a process had
  // died.
  std::unique_ptr<Transport> Add(const std::string& node, Service* service, Patience patience = {},
                                 uint32_t version = kProtocolVersion);

  core::Tick Now() const { return now_; }
  // When the next thing happens, or kNever.
  core::Tick Next() const { return events_.Next(); }
  // Runs all that happens until `until`, and then it is `until`.
  void RunUntil(core::Tick until);
  // Runs the next thing that happens, if that is not after `until`. Whether there was one.
  bool RunNext(core::Tick until);

  // Of the links below none has a direction, except where it says `from` and `to`.
  void SetLink(const std::string& a, const std::string& b, FakeLink link);
  // The node has one port, over which no more goes out a second, and no more comes in, of all its
  // connections together. 0: no limit.
  void SetPort(const std::string& node, double bytes_per_second);
  // From now on nothing arrives and no node is notified. This includes new connections.
  void Cut(const std::string& a, const std::string& b);
  // What was sent meanwhile arrives, as with TCP.
  void Heal(const std::string& a, const std::string& b);
  // Breaks all connections between them; both are notified.
  void Drop(const std::string& a, const std::string& b);
  // The node's process stands still: what comes waits for it, and its own timers. What was asked of
  // it to send goes once it runs again.
  void Pause(const std::string& node);
  void Resume(const std::string& node);
  // Frames that went by themselves without a payload: a ping, its answer, the end of a call.
  uint64_t bare_frames() const { return bare_frames_; }
  // Damages the next bytes of bulk from one to the other.
  void DamageNext(const std::string& from, const std::string& to, Damage damage);

 private:
  friend class FakeTransport;
  struct Wire;
  struct End;
  struct Port {
    double bytes_per_second = 0;
    core::Tick out{};  // when what was sent before is out
    core::Tick in{};
  };
  using Nodes = std::pair<std::string, std::string>;
  static Nodes Between(const std::string& a, const std::string& b) { return std::minmax(a, b); }

  // After the link's delay, or when it is healed. In order for one `last`, the time of its
  // previous.
  void Send(const Nodes& nodes, size_t bytes, core::Tick* last, std::function<void()> what);

  // When bytes that are sent now have gone through both ports.
  core::Tick ReservePorts(const std::string& from, const std::string& to, size_t bytes);

  void Establish(const std::shared_ptr<Wire>& wire);
  // Pump: writes what the end has to write and reads what has come, until it can do neither.
  void Pump(const std::shared_ptr<Wire>& wire, bool first);
  bool Write(const std::shared_ptr<Wire>& wire, bool first);
  bool Read(const std::shared_ptr<Wire>& wire, bool first);
  void SchedulePump(const std::shared_ptr<Wire>& wire, bool first);
  void Lose(const std::shared_ptr<Wire>& wire, bool first, const core::Error& why, bool notify);
  // Whether it did.
  bool ApplyDamage(const std::string& from, const std::string& to, std::string* bytes);

  core::Tick now_{};
  uint64_t bare_frames_ = 0;
  std::mt19937_64 random_;
  const bool sums_;
  EventQueue events_;
  std::map<std::string, FakeTransport*> nodes_;
  std::map<Nodes, FakeLink> links_;
  std::map<std::string, Port> ports_;
  std::map<Nodes, std::vector<std::function<void()>>> cut_;  // and what waits to be sent there
  // Paused nodes, and the callbacks that run when they resume.
  std::map<std::string, std::vector<std::function<void()>>> paused_;
  std::map<Nodes, Damage> damages_;  // by from and to
};

}  // namespace ravenstore::transport
