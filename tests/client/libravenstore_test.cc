// libravenstore.so as a user links it, in a process that has another protobuf.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>

#include "client/client.h"
#include "proto/control.pb.h"
#include "tests/client/mini_daemon.h"

namespace ravenstore {
namespace {

TEST(LibravenstoreTest, WorksAlongWithTheProcesssOwnProtobuf) {
  client::MiniDaemon daemon;  // speaks through libprotobuf
  proto::DaemonPacket packet;
  packet.mutable_welcome()->set_backend("host");
  EXPECT_FALSE(packet.SerializeAsString().empty());
  Store store = Store::connect({.socket = daemon.socket()});
  Tensor tensor = store.create(KiB(64), {.name = "shared"});
  std::memset(tensor.data(), 3, KiB(64));
  store.put(tensor, nullptr);
  ASSERT_TRUE(daemon.Evict(tensor.id()));
  EXPECT_EQ(static_cast<const char*>(store.get(tensor, nullptr))[KiB(64) - 1], 3);
}

TEST(LibravenstoreTest, ComesFromTheSharedLibrary) {
  Dl_info info{};
  ASSERT_NE(dladdr(reinterpret_cast<void*>(&ravenstore_connect), &info), 0);
  EXPECT_NE(std::strstr(info.dli_fname, "libravenstore.so"), nullptr) << info.dli_fname;
}

TEST(LibravenstoreTest, StaysLoadedBecauseItsForkHandlersDo) {
  Dl_info info{};
  ASSERT_NE(dladdr(reinterpret_cast<void*>(&ravenstore_connect), &info), 0);
  void* again = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(again, nullptr);
  for (int i = 0; i < 5; ++i) dlclose(again);
  EXPECT_STREQ(ravenstore_version(), RAVENSTORE_VERSION);
}

}  // namespace
}  // namespace ravenstore
