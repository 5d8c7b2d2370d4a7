// Holds the hand-written codec against the generated classes, which every other program uses.
#include "client/wire.h"

#include <gtest/gtest.h>

#include <random>

#include "proto/control.pb.h"

namespace ravenstore::client::wire {
namespace {

proto::ClientPacket Parsed(const ClientPacket& packet) {
  proto::ClientPacket parsed;
  EXPECT_TRUE(parsed.ParseFromString(Encode(packet)));
  return parsed;
}

template <typename Body>
Body DecodedBody(const proto::DaemonPacket& packet) {
  const auto decoded = Decode(packet.SerializeAsString());
  EXPECT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->request, packet.request());
  EXPECT_TRUE(std::holds_alternative<Body>(decoded->body));
  return std::get<Body>(decoded->body);
}

TEST(WireTest, HelloReadsAsWritten) {
  const auto parsed = Parsed({.request = 300,
                              .body = Hello{.protocol_version = 7,
                                            .name = "train",
                                            .device_budget = uint64_t{1} << 40,
                                            .host_budget = ~uint64_t{0},
                                            .library_version = "0.1.0"}});
  EXPECT_EQ(parsed.request(), 300u);
  ASSERT_TRUE(parsed.has_hello());
  EXPECT_EQ(parsed.hello().protocol_version(), 7u);
  EXPECT_EQ(parsed.hello().name(), "train");
  EXPECT_EQ(parsed.hello().device_budget(), uint64_t{1} << 40);
  EXPECT_EQ(parsed.hello().host_budget(), ~uint64_t{0});
  EXPECT_EQ(parsed.hello().library_version(), "0.1.0");
  EXPECT_FALSE(parsed.hello().control_only());
}

TEST(WireTest, EveryOtherRequestReadsAsWritten) {
  EXPECT_EQ(Parsed({1, InternName{"a name"}}).intern_name().name(), "a name");
  EXPECT_EQ(Parsed({1, ExplainFailure{12}}).explain_failure().slot(), 12u);
  EXPECT_TRUE(Parsed({1, Detach{}}).has_detach());
  EXPECT_TRUE(Parsed({1, StatsQuery{false}}).has_stats());
  EXPECT_TRUE(Parsed({1, StatsQuery{true}}).stats().whole_store());
}

TEST(WireTest, RequestsForPinnedMemoryReadAsWritten) {
  const auto ask = Parsed({4, PinnedAlloc{7, uint64_t{1} << 40, 2, ~uint64_t{0}}}).pinned_alloc();
  EXPECT_EQ(ask.block(), 7u);
  EXPECT_EQ(ask.bytes(), uint64_t{1} << 40);
  EXPECT_EQ(ask.device(), 2u);
  EXPECT_EQ(ask.deadline_ns(), ~uint64_t{0});
  const auto free = Parsed({0, PinnedFree{9, {1, 0, ~uint64_t{0}}}}).pinned_free();
  EXPECT_EQ(free.block(), 9u);
  ASSERT_EQ(free.tickets_size(), 3);
  EXPECT_EQ(free.tickets(1), 0u);
  EXPECT_EQ(free.tickets(2), ~uint64_t{0});
  EXPECT_EQ(Parsed({0, PinnedFree{9, {}}}).pinned_free().tickets_size(), 0);
  const auto keep = Parsed({0, KeepInPlace{7, uint64_t{1} << 40, true}}).keep_in_place();
  EXPECT_EQ(keep.slot(), 7u);
  EXPECT_EQ(keep.tensor(), uint64_t{1} << 40);
  EXPECT_TRUE(keep.ends());
  const auto released = Parsed({0, PinnedSlabReleased{1, 1 << 21}}).pinned_slab_released();
  EXPECT_EQ(released.pool(), 1u);
  EXPECT_EQ(released.offset(), 1u << 21);
}

TEST(WireTest, AnswersOfPinnedMemoryAreUnderstood) {
  proto::DaemonPacket packet;
  packet.mutable_kept_in_place();
  DecodedBody<KeptInPlace>(packet);
  packet.mutable_pinned_allocated()->set_pool(1);
  packet.mutable_pinned_allocated()->set_numa_node(-1);
  packet.mutable_pinned_allocated()->set_pool_bytes(uint64_t{1} << 41);
  packet.mutable_pinned_allocated()->set_offset(uint64_t{1} << 35);
  EXPECT_EQ(DecodedBody<PinnedAllocated>(packet).pool, 1u);
  EXPECT_EQ(DecodedBody<PinnedAllocated>(packet).numa_node, -1);
  EXPECT_EQ(DecodedBody<PinnedAllocated>(packet).pool_bytes, uint64_t{1} << 41);
  EXPECT_EQ(DecodedBody<PinnedAllocated>(packet).offset, uint64_t{1} << 35);
  packet.mutable_pinned_slab()->set_pool(2);
  packet.mutable_pinned_slab()->set_offset(1 << 21);
  packet.mutable_pinned_slab()->set_bytes(1 << 22);
  EXPECT_EQ(DecodedBody<PinnedSlab>(packet).pool, 2u);
  EXPECT_EQ(DecodedBody<PinnedSlab>(packet).offset, 1u << 21);
  EXPECT_EQ(DecodedBody<PinnedSlab>(packet).bytes, 1u << 22);
  packet.mutable_release_pinned_slab()->set_pool(3);
  packet.mutable_release_pinned_slab()->set_offset(1 << 23);
  EXPECT_EQ(DecodedBody<ReleasePinnedSlab>(packet).pool, 3u);
  EXPECT_EQ(DecodedBody<ReleasePinnedSlab>(packet).offset, 1u << 23);
}

TEST(WireTest, RequestsForNamedSetsReadAsWritten) {
  const auto seal = Parsed({1, SealSet{"weights", 7, ~uint64_t{0}}}).seal_set();
  EXPECT_EQ(seal.name(), "weights");
  EXPECT_EQ(seal.load(), 7u);
  EXPECT_EQ(seal.layout(), ~uint64_t{0});
  const auto open = Parsed({1, OpenSet{"weights", 1, 2, 3, true}}).open_set();
  EXPECT_EQ(open.name(), "weights");
  EXPECT_EQ(open.version(), 1u);
  EXPECT_EQ(open.least_version(), 2u);
  EXPECT_EQ(open.deadline_ns(), 3u);
  EXPECT_TRUE(open.may_load());
  const auto use = Parsed({1, UseSet{4, 5}}).use_set();
  EXPECT_EQ(use.open(), 4u);
  EXPECT_EQ(use.deadline_ns(), 5u);
  const auto pages = Parsed({1, SetPages{4, 5, 6}}).set_pages();
  EXPECT_EQ(pages.open(), 4u);
  EXPECT_EQ(pages.tensor(), 5u);
  EXPECT_EQ(pages.first(), 6u);
  EXPECT_EQ(Parsed({1, EndUseOfSet{4}}).end_use_of_set().open(), 4u);
  EXPECT_EQ(Parsed({0, CloseSet{4}}).close_set().open(), 4u);
  const auto drop = Parsed({1, DropSet{"weights", 2}}).drop_set();
  EXPECT_EQ(drop.name(), "weights");
  EXPECT_EQ(drop.version(), 2u);
}

TEST(WireTest, AnswersOfNamedSetsAreUnderstood) {
  proto::DaemonPacket packet;
  packet.mutable_set_sealed()->set_version(3);
  packet.mutable_set_sealed()->set_open(4);
  EXPECT_EQ(DecodedBody<SetSealed>(packet).version, 3u);
  EXPECT_EQ(DecodedBody<SetSealed>(packet).open, 4u);
  proto::SetOpened& opened = *packet.mutable_set_opened();
  opened.set_open(5);
  opened.set_version(6);
  opened.set_load(7);
  opened.set_layout(~uint64_t{0});
  for (uint32_t i = 0; i < 2; ++i) {
    proto::SetTensor& tensor = *opened.add_tensors();
    tensor.set_device(i);
    tensor.set_bytes(uint64_t{1} << 40);
    tensor.set_page_bytes(1 << 21);
    tensor.set_offset(512);
    tensor.set_pages(9);
  }
  const auto decoded = DecodedBody<SetOpened>(packet);
  EXPECT_EQ(decoded.open, 5u);
  EXPECT_EQ(decoded.version, 6u);
  EXPECT_EQ(decoded.load, 7u);
  EXPECT_EQ(decoded.layout, ~uint64_t{0});
  ASSERT_EQ(decoded.tensors.size(), 2u);
  EXPECT_EQ(decoded.tensors[1].device, 1u);
  EXPECT_EQ(decoded.tensors[1].bytes, uint64_t{1} << 40);
  EXPECT_EQ(decoded.tensors[1].page_bytes, uint64_t{1} << 21);
  EXPECT_EQ(decoded.tensors[1].offset, 512u);
  EXPECT_EQ(decoded.tensors[1].pages, 9u);
  packet.mutable_set_used();
  DecodedBody<SetUsed>(packet);
  packet.mutable_set_pages_exported();
  DecodedBody<SetPagesExported>(packet);
  packet.mutable_set_use_ended();
  DecodedBody<SetUseEnded>(packet);
  packet.mutable_set_dropped()->set_sets(2);
  EXPECT_EQ(DecodedBody<SetDropped>(packet).sets, 2u);
}

TEST(WireTest, OrdersReadAsWrittenAndAreUnderstood) {
  const auto take = Parsed({1, TakeOrders{"weights", "train.py", 4711}}).take_orders();
  EXPECT_EQ(take.tag(), "weights");
  EXPECT_EQ(take.job(), "train.py");
  EXPECT_EQ(take.run(), 4711u);
  const auto done = Parsed({0, OrderDone{~uint64_t{0}, 3, "late", uint64_t{1} << 40}}).order_done();
  EXPECT_EQ(done.order(), ~uint64_t{0});
  EXPECT_EQ(done.code(), 3u);
  EXPECT_EQ(done.message(), "late");
  EXPECT_EQ(done.bytes(), uint64_t{1} << 40);
  const auto asked = Parsed({1, OrderJob{"train.py", "cache", true, true, 5}}).order_job();
  EXPECT_EQ(asked.job(), "train.py");
  EXPECT_EQ(asked.tag(), "cache");
  EXPECT_TRUE(asked.wakes() && asked.keeps_nothing());
  EXPECT_EQ(asked.timeout_ns(), 5u);
  Hello hello;
  hello.control_only = true;
  EXPECT_TRUE(Parsed({1, hello}).hello().control_only());
  proto::DaemonPacket packet;
  packet.mutable_orders_taken();
  DecodedBody<OrdersTaken>(packet);
  proto::SleepOrder& sent = *packet.mutable_sleep_order();
  sent.set_number(7);
  sent.set_wakes(true);
  sent.set_keeps_nothing(true);
  sent.set_deadline_ns(~uint64_t{0});
  sent.set_undoes(6);
  const auto order = DecodedBody<SleepOrder>(packet);
  EXPECT_EQ(order.number, 7u);
  EXPECT_TRUE(order.wakes && order.keeps_nothing);
  EXPECT_EQ(order.deadline_ns, ~uint64_t{0});
  EXPECT_EQ(order.undoes, 6u);
  packet.mutable_job_ordered()->set_clients(3);
  packet.mutable_job_ordered()->set_bytes(uint64_t{1} << 40);
  EXPECT_EQ(DecodedBody<JobOrdered>(packet).clients, 3u);
  EXPECT_EQ(DecodedBody<JobOrdered>(packet).bytes, uint64_t{1} << 40);
}

TEST(WireTest, ZerosAreStillMessages) {
  EXPECT_TRUE(Parsed({0, InternName{}}).has_intern_name());
  EXPECT_TRUE(Parsed({0, PinnedSlabReleased{}}).has_pinned_slab_released());
  EXPECT_TRUE(Parsed({0, Hello{}}).has_hello());
}

TEST(WireTest, EncodingIsProtobufsOwn) {
  proto::ClientPacket generated;
  generated.set_request(5);
  generated.mutable_pinned_slab_released()->set_pool(2);
  generated.mutable_pinned_slab_released()->set_offset(1 << 21);
  EXPECT_EQ(Encode({5, PinnedSlabReleased{2, 1 << 21}}), generated.SerializeAsString());
}

TEST(WireTest, WelcomeIsUnderstood) {
  proto::DaemonPacket packet;
  packet.set_request(1);
  proto::Welcome& welcome = *packet.mutable_welcome();
  welcome.set_protocol_version(1);
  welcome.set_client(77);
  welcome.set_backend("host");
  for (int i = 0; i < 3; ++i) {
    proto::Device& device = *welcome.add_devices();
    device.set_uuid("HOST-" + std::to_string(i));
    device.set_name("simulated");
    device.set_total_bytes(uint64_t{80} << 30);
    device.set_arena_bytes(uint64_t{i + 1u} << 31);
  }
  welcome.set_device_budget(123);
  welcome.set_host_budget(456);
  welcome.set_restart_timeout_ms(5000);
  welcome.set_daemon_version("0.1.0");
  const auto decoded = DecodedBody<Welcome>(packet);
  EXPECT_EQ(decoded.protocol_version, 1u);
  EXPECT_EQ(decoded.client, 77u);
  EXPECT_EQ(decoded.backend, "host");
  ASSERT_EQ(decoded.devices.size(), 3u);
  EXPECT_EQ(decoded.devices[2].uuid, "HOST-2");
  EXPECT_EQ(decoded.devices[2].name, "simulated");
  EXPECT_EQ(decoded.devices[2].total_bytes, uint64_t{80} << 30);
  EXPECT_EQ(decoded.devices[2].arena_bytes, uint64_t{3} << 31);
  EXPECT_EQ(decoded.device_budget, 123u);
  EXPECT_EQ(decoded.host_budget, 456u);
  EXPECT_EQ(decoded.restart_timeout_ms, 5000u);
  EXPECT_EQ(decoded.daemon_version, "0.1.0");
}

TEST(WireTest, EveryOtherAnswerIsUnderstood) {
  proto::DaemonPacket packet;
  packet.set_request(9);
  packet.mutable_failure()->set_code(2);
  packet.mutable_failure()->set_message("no room");
  EXPECT_EQ(DecodedBody<Failure>(packet).code, 2u);
  EXPECT_EQ(DecodedBody<Failure>(packet).message, "no room");
  packet.mutable_name_interned()->set_id(70000);
  EXPECT_EQ(DecodedBody<NameInterned>(packet).id, 70000u);
  packet.mutable_failure_explained()->set_message("because");
  EXPECT_EQ(DecodedBody<FailureExplained>(packet).message, "because");
  packet.mutable_memory_ready()->set_first(1u << 31);
  EXPECT_EQ(DecodedBody<MemoryReady>(packet).first, 1u << 31);
  packet.mutable_detached();
  DecodedBody<Detached>(packet);
}

TEST(WireTest, StatsAreUnderstoodFieldByField) {
  proto::DaemonPacket packet;
  proto::Stats& stats = *packet.mutable_stats();
  proto::TierStats& tier = *stats.add_tiers();
  tier.set_name("device 0");
  tier.set_capacity(1);
  tier.set_held(2);
  tier.set_used(3);
  stats.set_tensors(11);
  stats.set_clients(12);
  stats.set_creates(13);
  stats.set_frees(14);
  stats.set_gets(15);
  stats.set_hits(16);
  stats.set_late_hits(17);
  stats.set_misses(18);
  stats.set_prefetches(19);
  stats.set_rescues(21);
  stats.set_bytes_out(23);
  stats.set_bytes_in(24);
  stats.set_uptime_ns(26);
  const auto decoded = DecodedBody<Stats>(packet);
  ASSERT_EQ(decoded.tiers.size(), 1u);
  EXPECT_EQ(decoded.tiers[0].name, "device 0");
  EXPECT_EQ(decoded.tiers[0].used, 3u);
  EXPECT_EQ(decoded.tensors, 11u);
  EXPECT_EQ(decoded.gets, 15u);
  EXPECT_EQ(decoded.hits, 16u);
  EXPECT_EQ(decoded.late_hits, 17u);
  EXPECT_EQ(decoded.misses, 18u);
  EXPECT_EQ(decoded.prefetches, 19u);
  EXPECT_EQ(decoded.bytes_out, 23u);
  EXPECT_EQ(decoded.bytes_in, 24u);
}

TEST(WireTest, UnknownPacketsAndFieldsAreSkipped) {
  proto::DaemonPacket packet;
  packet.set_request(4);
  packet.mutable_clients()->add_clients()->set_name("others");
  const auto decoded = Decode(packet.SerializeAsString());
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->request, 4u);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(decoded->body));
  // Fields 100 of every wire type, around a request number.
  const std::string later{
      "\xa0\x06\x01"
      "\xa1\x06"
      "12345678"
      "\x08\x07"
      "\xa2\x06\x02hi"
      "\xa5\x06"
      "1234"};
  ASSERT_TRUE(Decode(later).has_value());
  EXPECT_EQ(Decode(later)->request, 7u);
}

TEST(WireTest, MalformedBytesAreRefused) {
  EXPECT_FALSE(Decode("\x08").has_value()) << "a number that ends early";
  EXPECT_FALSE(Decode("\x12\x05zz").has_value()) << "a message longer than the packet";
  EXPECT_FALSE(Decode("\x0b").has_value()) << "a group";
  EXPECT_FALSE(Decode(std::string("\x00\x01", 2)).has_value()) << "field 0";
  EXPECT_FALSE(Decode("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01").has_value())
      << "a number of more than 64 bits";
  EXPECT_FALSE(Decode("\xd2\x01\x02\x08\xff").has_value()) << "malformed inside";
  EXPECT_TRUE(Decode("").has_value()) << "nothing is a message, too";
}

TEST(WireTest, RandomBytesNeverReadOutOfBounds) {
  constexpr uint32_t kSeed = 7;
  RecordProperty("seed", static_cast<int>(kSeed));
  std::mt19937 random(kSeed);
  proto::DaemonPacket packet;
  packet.set_request(1);
  packet.mutable_welcome()->set_backend("host");
  packet.mutable_welcome()->add_devices()->set_uuid("HOST-0");
  const std::string good = packet.SerializeAsString();
  for (int i = 0; i < 100'000; ++i) {
    std::string bytes = good.substr(0, random() % (good.size() + 1));
    for (int flips = static_cast<int>(random() % 4); flips > 0 && !bytes.empty(); --flips) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    const auto ours = Decode(bytes);
    proto::DaemonPacket theirs;
    if (theirs.ParseFromString(bytes) && ours) {
      EXPECT_EQ(ours->request, theirs.request());
      if (const auto* welcome = std::get_if<Welcome>(&ours->body)) {
        ASSERT_TRUE(theirs.has_welcome());
        EXPECT_EQ(welcome->backend, theirs.welcome().backend());
      }
    }
  }
}

TEST(WireTest, Utf8IsRecognized) {
  EXPECT_TRUE(IsUtf8(""));
  EXPECT_TRUE(IsUtf8("layer3.mlp"));
  EXPECT_TRUE(IsUtf8("\xc3\xa4\xe2\x82\xac\xf0\x9f\x90\xa6"));
  EXPECT_FALSE(IsUtf8("\x80")) << "a continuation alone";
  EXPECT_FALSE(IsUtf8("\xc3")) << "cut off";
  EXPECT_FALSE(IsUtf8("\xc0\xaf")) << "longer than needed";
  EXPECT_FALSE(IsUtf8("\xed\xa0\x80")) << "a surrogate";
  EXPECT_FALSE(IsUtf8("\xf4\x90\x80\x80")) << "beyond the last code point";
  EXPECT_FALSE(IsUtf8("\xff"));
}

}  // namespace
}  // namespace ravenstore::client::wire
