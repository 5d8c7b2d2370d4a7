// Fuzzes what comes over the control socket: the packets themselves, and the messages in them.
#include <fcntl.h>
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include "ipc/socket.h"
#include "proto/control.pb.h"
#include "proto/packet.h"
#include "tests/ipc/fuzz.h"

namespace ravenstore::ipc {
namespace {

std::string AsString(std::span<const uint8_t> bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// A message that parses must survive being written and read again, and may not have grown beyond
// what the wire can inflate to: a tag costs a byte, a default submessage at most two.
template <typename Message>
void CheckMessage(const std::string& bytes) {
  Message message;
  if (!message.ParseFromString(bytes)) return;
  const std::string written = message.SerializeAsString();
  Message again;
  ASSERT_TRUE(again.ParseFromString(written));
  EXPECT_EQ(again.SerializeAsString(), written);
  EXPECT_EQ(again.body_case(), message.body_case());
  EXPECT_LE(written.size(), 16 * bytes.size() + 16);
}

void CheckMessages(std::span<const uint8_t> input) {
  const std::string bytes = AsString(input);
  CheckMessage<proto::ClientPacket>(bytes);
  CheckMessage<proto::DaemonPacket>(bytes);
}

std::string RandomText(std::mt19937_64& random) {
  return AsString(RandomInput(random, random() % 16 == 0 ? 300 : 12));
}

proto::ClientPacket RandomClientPacket(std::mt19937_64& random) {
  proto::ClientPacket packet;
  packet.set_request(random() >> random() % 64);
  const uint64_t number = random() >> random() % 64;
  switch (random() % 12) {
    case 0:
      packet.mutable_hello()->set_protocol_version(static_cast<uint32_t>(number));
      packet.mutable_hello()->set_name("client");
      packet.mutable_hello()->set_device_budget(number);
      packet.mutable_hello()->set_control_only(number % 2);
      break;
    case 1: packet.mutable_intern_name()->set_name("layer3.mlp"); break;
    case 2: packet.mutable_explain_failure()->set_slot(static_cast<uint32_t>(number)); break;
    case 3: packet.mutable_trim(); break;
    case 4: packet.mutable_detach(); break;
    case 5: packet.mutable_stats()->set_whole_store(number % 2); break;
    case 6: packet.mutable_list_tensors()->set_cursor(number); break;
    case 7:
      packet.mutable_pinned_alloc()->set_block(number);
      packet.mutable_pinned_alloc()->set_bytes(random() >> random() % 64);
      packet.mutable_pinned_alloc()->set_deadline_ns(number);
      break;
    case 8:
      packet.mutable_pinned_free()->set_block(number);
      for (uint64_t i = 0; i < number % 5; ++i) packet.mutable_pinned_free()->add_tickets(random());
      break;
    case 9: packet.mutable_pinned_slab_released()->set_offset(number); break;
    case 10: packet.mutable_list_clients()->set_cursor(number); break;
    default: packet.mutable_set_limits()->set_device_budget(number); break;
  }
  return packet;
}

proto::DaemonPacket RandomDaemonPacket(std::mt19937_64& random) {
  proto::DaemonPacket packet;
  packet.set_request(random() >> random() % 64);
  const uint64_t number = random() >> random() % 64;
  switch (random() % 9) {
    case 0:
      packet.mutable_failure()->set_code(static_cast<uint32_t>(number));
      packet.mutable_failure()->set_message("device 0: no room");
      break;
    case 1:
      for (uint64_t i = 0; i < number % 4; ++i) {
        packet.mutable_welcome()->add_devices()->set_uuid("HOST-" + std::to_string(i));
      }
      packet.mutable_welcome()->set_device_budget(number);
      break;
    case 2: packet.mutable_memory_ready()->set_first(static_cast<uint32_t>(number)); break;
    case 3:
      for (uint64_t i = 0; i < number % 20; ++i) {
        packet.mutable_tensors()->add_tensors()->set_id(number + i);
      }
      break;
    case 4: packet.mutable_pinned_allocated()->set_offset(number); break;
    case 5: packet.mutable_pinned_slab()->set_bytes(number); break;
    case 6: packet.mutable_release_pinned_slab()->set_offset(number); break;
    case 7: packet.mutable_stats()->add_tiers()->set_used(number); break;
    default: packet.mutable_clients()->add_clients()->set_name("trainer"); break;
  }
  return packet;
}

Input RandomMessage(std::mt19937_64& random) {
  std::string bytes;
  switch (random() % 8) {
    case 0: bytes = AsString(RandomInput(random, 64)); break;
    case 1:
    case 2:
    case 3:
      bytes = RandomClientPacket(random).SerializeAsString();
      if (random() % 8 == 0) bytes += RandomText(random);
      break;
    default: bytes = RandomDaemonPacket(random).SerializeAsString(); break;
  }
  Input input(bytes.begin(), bytes.end());
  Mutate(random, &input);
  return input;
}

size_t OpenDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

// Sends packets of the sizes and with the numbers of descriptors that the input says (three bytes
// each), as a peer that keeps no bound, and checks what arrives of each.
void CheckPackets(std::span<const uint8_t> input) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd sender(ends[0]);
  const UniqueFd receiver(ends[1]);
  const size_t before = OpenDescriptors();
  for (; input.size() >= 3; input = input.subspan(3)) {
    const size_t size = 1 + (size_t{input[0]} << 8 | input[1]) * (input[2] % 32 == 0 ? 2 : 1);
    const size_t count = input[2] / 8 % 8;
    std::string body(size, static_cast<char>(input[1]));
    iovec vector{body.data(), body.size()};
    std::vector<int> numbers(count, sender.get());
    alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))];
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    if (count > 0) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(count * sizeof(int));
      cmsghdr* part = CMSG_FIRSTHDR(&message);
      part->cmsg_level = SOL_SOCKET;
      part->cmsg_type = SCM_RIGHTS;
      part->cmsg_len = CMSG_LEN(count * sizeof(int));
      std::memcpy(CMSG_DATA(part), numbers.data(), count * sizeof(int));
    }
    ASSERT_EQ(sendmsg(sender.get(), &message, MSG_DONTWAIT), static_cast<ssize_t>(size));
    auto packet = Receive(receiver.get(), false);
    if (size > proto::kControlPacketMax || count > proto::kControlDescriptorsMax) {
      ASSERT_FALSE(packet.ok());
      EXPECT_EQ(packet.error().code, core::ErrorCode::kCorrupt);
    } else {
      ASSERT_TRUE(packet.ok()) << core::Describe(packet.error());
      ASSERT_TRUE(packet->has_value());
      EXPECT_EQ((*packet)->bytes, body);
      EXPECT_EQ((*packet)->descriptors.size(), count);
    }
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(PacketFuzz, MessagesSurviveMutation) {
  // Protobuf complains on standard error of every string that is no UTF-8.
  google::protobuf::SetLogHandler(nullptr);
  Fuzz("tests/ipc/corpus/message", 200'000, RandomMessage, CheckMessages);
}

TEST(PacketFuzz, PacketsAreWholeOrCorruptAndLeakNothing) {
  const auto generate = [](std::mt19937_64& random) { return RandomInput(random, 24); };
  Fuzz("tests/ipc/corpus/packet", 2'000, generate, CheckPackets);
}

}  // namespace
}  // namespace ravenstore::ipc
