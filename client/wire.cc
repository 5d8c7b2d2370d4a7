#include "client/wire.h"

#include <algorithm>
#include <cstddef>

namespace ravenstore::client::wire {
namespace {

// https://protobuf.dev/programming-guides/encoding
enum class Type : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

class Writer {
 public:
  // Zeros and empty strings stay away, as proto3 has it.
  void Number(uint32_t field, uint64_t value) {
    if (value == 0) return;
    Tag(field, Type::kVarint);
    Varint(value);
  }
  void String(uint32_t field, std::string_view value) {
    if (!value.empty()) Message(field, value);
  }
  // Packed, as proto3 has it.
  void Numbers(uint32_t field, const std::vector<uint64_t>& values) {
    if (values.empty()) return;
    Writer packed;
    for (const uint64_t value : values) packed.Varint(value);
    Message(field, packed.bytes_);
  }
  void Message(uint32_t field, std::string_view value) {
    Tag(field, Type::kBytes);
    Varint(value.size());
    bytes_ += value;
  }
  std::string Take() { return std::move(bytes_); }

 private:
  void Tag(uint32_t field, Type type) { Varint(field << 3 | static_cast<uint32_t>(type)); }
  void Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

// One field of a message, as it stands on the wire.
struct Field {
  uint32_t number = 0;
  Type type = Type::kVarint;
  uint64_t value = 0;      // kVarint
  std::string_view bytes;  // kBytes

  template <typename Integer>
  void Into(Integer* to) const {
    if (type == Type::kVarint) *to = static_cast<Integer>(value);
  }
  void Into(std::string* to) const {
    if (type == Type::kBytes) *to = bytes;
  }
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  // False at the end, and when what follows makes no sense: see ok().
  bool Next(Field* field) {
    if (!ok_ || rest_.empty()) return false;
    uint64_t tag = 0;
    ok_ = Varint(&tag) && tag >> 3 != 0 && tag >> 3 < uint64_t{1} << 29 && Value(tag & 7, field);
    field->number = static_cast<uint32_t>(tag >> 3);
    return ok_;
  }
  bool ok() const { return ok_; }

 private:
  bool Varint(uint64_t* value) {
    constexpr int kMostBits = 64;
    *value = 0;
    for (int shift = 0; shift < kMostBits && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      *value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }
  bool Value(uint64_t type, Field* field) {
    field->type = static_cast<Type>(type);
    uint64_t size = 0;
    switch (field->type) {
      case Type::kVarint: return Varint(&field->value);
      case Type::kFixed64: size = 8; break;
      case Type::kFixed32: size = 4; break;
      case Type::kBytes:
        if (!Varint(&size)) return false;
        break;
      default: return false;  // groups are gone from proto3
    }
    if (size > rest_.size()) return false;
    field->bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return true;
  }

  std::string_view rest_;
  bool ok_ = true;
};

// Calls visit(field) for every field of `bytes`; false when they are malformed, or a visit is.
template <typename Visit>
bool ForEach(std::string_view bytes, Visit visit) {
  Reader reader(bytes);
  for (Field field; reader.Next(&field); field = {}) {
    if (!visit(field)) return false;
  }
  return reader.ok();
}

std::string Write(const Hello& hello) {
  Writer writer;
  writer.Number(1, hello.protocol_version);
  writer.String(2, hello.name);
  writer.Number(3, hello.device_budget);
  writer.Number(4, hello.host_budget);
  writer.Number(5, hello.control_only ? 1 : 0);
  writer.String(6, hello.library_version);
  writer.Number(7, hello.fixed_addresses ? 1 : 0);
  return writer.Take();
}
std::string Write(const InternName& intern) {
  Writer writer;
  writer.String(1, intern.name);
  return writer.Take();
}
std::string Write(const ExplainFailure& explain) {
  Writer writer;
  writer.Number(1, explain.slot);
  return writer.Take();
}
std::string Write(const Detach&) {
  return {};
}
std::string Write(const Trim&) {
  return {};
}
std::string Write(const StatsQuery& query) {
  Writer writer;
  writer.Number(1, query.whole_store ? 1 : 0);
  return writer.Take();
}
std::string Write(const PinnedAlloc& ask) {
  Writer writer;
  writer.Number(1, ask.block);
  writer.Number(2, ask.bytes);
  writer.Number(3, ask.device);
  writer.Number(4, ask.deadline_ns);
  return writer.Take();
}
std::string Write(const PinnedFree& free) {
  Writer writer;
  writer.Number(1, free.block);
  writer.Numbers(2, free.tickets);
  return writer.Take();
}
std::string Write(const PinnedSlabReleased& slab) {
  Writer writer;
  writer.Number(1, slab.pool);
  writer.Number(2, slab.offset);
  return writer.Take();
}

std::string Write(const KeepInPlace& keep) {
  Writer writer;
  writer.Number(1, keep.slot);
  writer.Number(2, keep.tensor);
  writer.Number(3, keep.ends ? 1 : 0);
  return writer.Take();
}

std::string Write(const Sleep& sleep) {
  Writer writer;
  writer.Number(1, sleep.deadline_ns);
  return writer.Take();
}
std::string Write(const Wake&) {
  return {};
}

std::string Write(const SealSet& seal) {
  Writer writer;
  writer.String(1, seal.name);
  writer.Number(2, seal.load);
  writer.Number(3, seal.layout);
  return writer.Take();
}
std::string Write(const OpenSet& open) {
  Writer writer;
  writer.String(1, open.name);
  writer.Number(2, open.version);
  writer.Number(3, open.least_version);
  writer.Number(4, open.deadline_ns);
  writer.Number(5, open.may_load ? 1 : 0);
  return writer.Take();
}
std::string Write(const UseSet& use) {
  Writer writer;
  writer.Number(1, use.open);
  writer.Number(2, use.deadline_ns);
  return writer.Take();
}
std::string Write(const SetPages& pages) {
  Writer writer;
  writer.Number(1, pages.open);
  writer.Number(2, pages.tensor);
  writer.Number(3, pages.first);
  return writer.Take();
}
std::string Write(const EndUseOfSet& end) {
  Writer writer;
  writer.Number(1, end.open);
  return writer.Take();
}
std::string Write(const CloseSet& close) {
  Writer writer;
  writer.Number(1, close.open);
  return writer.Take();
}
std::string Write(const DropSet& drop) {
  Writer writer;
  writer.String(1, drop.name);
  writer.Number(2, drop.version);
  return writer.Take();
}

std::string Write(const TakeOrders& take) {
  Writer writer;
  writer.String(1, take.tag);
  writer.String(2, take.job);
  writer.Number(3, take.run);
  return writer.Take();
}
std::string Write(const OrderDone& done) {
  Writer writer;
  writer.Number(1, done.order);
  writer.Number(2, done.code);
  writer.String(3, done.message);
  writer.Number(4, done.bytes);
  return writer.Take();
}
std::string Write(const OrderJob& order) {
  Writer writer;
  writer.String(1, order.job);
  writer.String(2, order.tag);
  writer.Number(3, order.wakes ? 1 : 0);
  writer.Number(4, order.keeps_nothing ? 1 : 0);
  writer.Number(5, order.timeout_ns);
  return writer.Take();
}

bool Read(std::string_view bytes, Failure* failure) {
  return ForEach(bytes, [&](const Field& field) {
    if (field.number == 1) field.Into(&failure->code);
    if (field.number == 2) field.Into(&failure->message);
    return true;
  });
}
bool Read(std::string_view bytes, Device* device) {
  return ForEach(bytes, [&](const Field& field) {
    switch (field.number) {
      case 1: field.Into(&device->uuid); break;
      case 2: field.Into(&device->name); break;
      case 3: field.Into(&device->total_bytes); break;
      case 4: field.Into(&device->arena_bytes); break;
    }
    return true;
  });
}
bool Read(std::string_view bytes, Welcome* welcome) {
  return ForEach(bytes, [&](const Field& field) {
    switch (field.number) {
      case 1: field.Into(&welcome->protocol_version); break;
      case 2: field.Into(&welcome->client); break;
      case 3: field.Into(&welcome->backend); break;
      case 4: return Read(field.bytes, &welcome->devices.emplace_back());
      case 5: field.Into(&welcome->device_budget); break;
      case 6: field.Into(&welcome->host_budget); break;
      case 7: field.Into(&welcome->restart_timeout_ms); break;
      case 8: field.Into(&welcome->daemon_version); break;
    }
    return true;
  });
}
bool Read(std::string_view bytes, NameInterned* interned) {
  return ForEach(bytes, [&](const Field& field) {
    if (field.number == 1) field.Into(&interned->id);
    return true;
  });
}
bool Read(std::string_view bytes, FailureExplained* explained) {
  return ForEach(bytes, [&](const Field& field) {
    if (field.number == 1) field.Into(&explained->message);
    return true;
  });
}
bool Read(std::string_view bytes, MemoryReady* memory) {
  return ForEach(bytes, [&](const Field& field) {
    if (field.number == 1) field.Into(&memory->first);
    return true;
  });
}
bool Read(std::string_view bytes, Detached*) {
  return ForEach(bytes, [](const Field&) { return true; });
}
bool Read(std::string_view bytes, KeptInPlace*) {
  return ForEach(bytes, [](const Field&) { return true; });
}
bool Read(std::string_view bytes, Asleep* asleep) {
  return ForEach(bytes, [&](const Field& field) {
    if (field.number == 1) field.Into(&asleep->bytes);
    return true;
  });
}
bool Read(std::string_view bytes, Awake*) {
  return ForEach(bytes, [](const Field&) { return true; });
}
bool Read(std::string_view bytes, SetSealed* sealed) {
  return ForEach(bytes, [&](const Field& field) {
    if (field.number == 1) field.Into(&sealed->version);
    if (field.number == 2) field.Into(&sealed->open);
    return true;
  });
}
bool Read(std::string_view bytes, SetTensor* tensor) {
  return ForEach(bytes, [&](const Field& field) {
    switch (field.number) {
      case 1: field.Into(&tensor->device); break;
      case 2: field.Into(&tensor->bytes); break;
      case 3: field.Into(&tensor->page_bytes); break;
      case 4: field.Into(&tensor->offset); break;
      case 5: field.Into(&tensor->pages); break;
    }
    return true;
  });
}
bool Read(std::string_view bytes, SetOpened* opened) {
  return ForEach(bytes, [&](const Field& field) {
    switch (field.number) {
      case 1: field.Into(&opened->open); break;
      case 2: field.Into(&opened->version); break;
      case 3: return Read(field.bytes, &opened->tensors.emplace_back());
      case 4: field.Into(&opened->load); break;
      case 5: field.Into(&opened->layout); break;
    }
    return true;
  });
}
bool Read(std::string_view bytes, SetUsed*) {
  return ForEach(bytes, [](const Field&) { return true; });
}
bool Read(std::string_view bytes, SetPagesExported*) {
  return ForEach(bytes, [](const Field&) { return true; });
}
bool Read(std::string_view bytes, SetUseEnded*) {
  return ForEach(bytes, [](const Field&) { return true; });
}
bool Read(std::string_view bytes, SetDropped* dropped) {
  return ForEach(bytes, [&](const Field& field) {
    if (field.number == 1) field.Into(&dropped->sets);
    return true;
  });
}
bool Read(std::string_view bytes, OrdersTaken*) {
  return ForEach(bytes, [](const Field&) { return true; });
}
bool Read(std::string_view bytes, SleepOrder* order) {
  return ForEach(bytes, [&](const Field& field) {
    switch (field.number) {
      case 1: field.Into(&order->number); break;
      case 2: field.Into(&order->wakes); break;
      case 3: field.Into(&order->keeps_nothing); break;
      case 4: field.Into(&order->deadline_ns); break;
      case 5: field.Into(&order->undoes); break;
    }
    return true;
  });
}
bool Read(std::string_view bytes, JobOrdered* ordered) {
  return ForEach(bytes, [&](const Field& field) {
    if (field.number == 1) field.Into(&ordered->clients);
    if (field.number == 2) field.Into(&ordered->bytes);
    return true;
  });
}
bool Read(std::string_view bytes, PinnedAllocated* place) {
  return ForEach(bytes, [&](const Field& field) {
    if (field.number == 1) field.Into(&place->pool);
    if (field.number == 2) field.Into(&place->numa_node);
    if (field.number == 3) field.Into(&place->pool_bytes);
    if (field.number == 4) field.Into(&place->offset);
    return true;
  });
}
bool Read(std::string_view bytes, PinnedSlab* slab) {
  return ForEach(bytes, [&](const Field& field) {
    if (field.number == 1) field.Into(&slab->pool);
    if (field.number == 2) field.Into(&slab->offset);
    if (field.number == 3) field.Into(&slab->bytes);
    return true;
  });
}
bool Read(std::string_view bytes, ReleasePinnedSlab* slab) {
  return ForEach(bytes, [&](const Field& field) {
    if (field.number == 1) field.Into(&slab->pool);
    if (field.number == 2) field.Into(&slab->offset);
    return true;
  });
}
bool Read(std::string_view bytes, TierStats* tier) {
  return ForEach(bytes, [&](const Field& field) {
    if (field.number == 1) field.Into(&tier->name);
    if (field.number == 4) field.Into(&tier->used);
    return true;
  });
}
bool Read(std::string_view bytes, Stats* stats) {
  return ForEach(bytes, [&](const Field& field) {
    switch (field.number) {
      case 1: return Read(field.bytes, &stats->tiers.emplace_back());
      case 2: field.Into(&stats->tensors); break;
      case 6: field.Into(&stats->gets); break;
      case 7: field.Into(&stats->hits); break;
      case 8: field.Into(&stats->late_hits); break;
      case 9: field.Into(&stats->misses); break;
      case 10: field.Into(&stats->prefetches); break;
      case 14: field.Into(&stats->bytes_out); break;
      case 15: field.Into(&stats->bytes_in); break;
      case 31: field.Into(&stats->pinned_bytes); break;
      case 32: field.Into(&stats->pinned_locked); break;
      case 35: field.Into(&stats->page_bytes); break;
    }
    return true;
  });
}

template <typename Body>
bool ReadBody(const Field& field, DaemonPacket* packet) {
  return field.type == Type::kBytes && Read(field.bytes, &packet->body.emplace<Body>());
}

bool Read(const Field& field, DaemonPacket* packet) {
  switch (field.number) {
    case 1: field.Into(&packet->request); return true;
    case 2: return ReadBody<Failure>(field, packet);
    case 3: return ReadBody<Welcome>(field, packet);
    case 4: return ReadBody<NameInterned>(field, packet);
    case 5: return ReadBody<FailureExplained>(field, packet);
    case 8: return ReadBody<Detached>(field, packet);
    case 9: return ReadBody<Stats>(field, packet);
    case 23: return ReadBody<PinnedAllocated>(field, packet);
    case 24: return ReadBody<PinnedSlab>(field, packet);
    case 25: return ReadBody<ReleasePinnedSlab>(field, packet);
    case 26: return ReadBody<MemoryReady>(field, packet);
    case 27: return ReadBody<KeptInPlace>(field, packet);
    case 28: return ReadBody<Asleep>(field, packet);
    case 29: return ReadBody<Awake>(field, packet);
    case 40: return ReadBody<SetSealed>(field, packet);
    case 41: return ReadBody<SetOpened>(field, packet);
    case 42: return ReadBody<SetUsed>(field, packet);
    case 43: return ReadBody<SetPagesExported>(field, packet);
    case 44: return ReadBody<SetUseEnded>(field, packet);
    case 46: return ReadBody<SetDropped>(field, packet);
    case 50: return ReadBody<OrdersTaken>(field, packet);
    case 51: return ReadBody<SleepOrder>(field, packet);
    case 52: return ReadBody<JobOrdered>(field, packet);
    default: return true;
  }
}

}  // namespace

std::string Encode(const ClientPacket& packet) {
  // In the order of the variant.
  constexpr uint32_t kBodyFields[] = {2,  3,  4,  6,  7,  20, 23, 24, 25, 26, 27,
                                      28, 40, 41, 42, 43, 44, 45, 46, 50, 51, 52};
  static_assert(std::size(kBodyFields) == std::variant_size_v<decltype(packet.body)>);
  Writer writer;
  writer.Number(1, packet.request);
  writer.Message(kBodyFields[packet.body.index()],
                 std::visit([](const auto& body) { return Write(body); }, packet.body));
  return writer.Take();
}

std::optional<DaemonPacket> Decode(std::string_view bytes) {
  DaemonPacket packet;
  if (!ForEach(bytes, [&](const Field& field) { return Read(field, &packet); })) {
    return std::nullopt;
  }
  return packet;
}

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const auto lead = static_cast<uint8_t>(text.front());
    const size_t length = lead < 0x80 ? 1 : lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : 4;
    if (length == 4 && lead >> 3 != 30) return false;
    if (text.size() < length) return false;
    uint32_t point = length == 1 ? lead : lead & (0xffu >> (length + 1));
    for (const char byte : text.substr(1, length - 1)) {
      if ((static_cast<uint8_t>(byte) & 0xc0) != 0x80) return false;
      point = point << 6 | (static_cast<uint8_t>(byte) & 0x3f);
    }
    constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};  // by length: no longer than needed
    const bool surrogate = point >= 0xd800 && point < 0xe000;
    if (point < kLeast[length] || point > 0x10ffff || surrogate) return false;
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace ravenstore::client::wire
