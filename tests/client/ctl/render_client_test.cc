#include "client/ctl/render_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/types.h"

namespace ravenstore::client::ctl {
namespace {

using testing::HasSubstr;
using testing::Not;

ClientView View() {
  ClientView view;
  view.client.set_client(3);
  view.client.set_pid(4711);
  view.client.set_name("train\x1b.py");
  view.client.set_device_bytes(core::GiB(3).count());
  view.client.set_device_budget(core::GiB(4).count());
  view.client.set_host_budget(core::GiB(8).count());
  for (uint64_t i = 1; i <= 7; ++i) {
    proto::TensorInfo tensor;
    tensor.set_id(i);
    tensor.set_bytes(core::MiB(i % 4).count());
    tensor.set_tier(i % 2 == 0 ? "host" : "device 0");
    tensor.set_state("idle");
    view.Add(tensor);
  }
  return view;
}

TEST(ClientTextTest, SaysWhatAClientHoldsAndWhere) {
  const std::string text = ClientText(View());
  EXPECT_THAT(text, HasSubstr("3 train?.py, process 4711 of user 0\n"));
  EXPECT_THAT(text, HasSubstr("3.0 GiB of 4.0 GiB at most on devices"));
  EXPECT_THAT(text,
              HasSubstr("tensors  4 of 8.0 MiB on device 0\n         3 of 4.0 MiB on host\n"));
  EXPECT_THAT(text, HasSubstr("largest  3 , 3.0 MiB, idle, on device 0\n         7 , 3.0 MiB"));
  EXPECT_THAT(text, Not(HasSubstr("why")));
}

TEST(ClientTextTest, OnlyTheLargestAreNamed) {
  EXPECT_EQ(View().largest.size(), ClientView::kLargest);
  EXPECT_EQ(View().largest.front().id(), 3u);
  EXPECT_EQ(View().largest.back().bytes(), core::MiB(1).count());
}

TEST(ClientTextTest, SaysWhatWouldHelp) {
  ClientView view = View();
  view.client.set_waiting(2);
  EXPECT_THAT(ClientText(view), HasSubstr("its calls wait for bytes that come"));
  view.client.set_in_use_bytes(core::MiB(3800).count());
  EXPECT_THAT(ClientText(view, 200), HasSubstr("limits --client 3 --device-budget SIZE"));
  view.client.set_waiting(0);
  view.client.set_host_bytes(core::GiB(8).count());
  EXPECT_THAT(ClientText(view, 200), HasSubstr("limits --client 3 --host-budget SIZE"));
}

TEST(ClientTextTest, JsonHasTheSame) {
  const std::string json = ClientJson(View());
  EXPECT_THAT(json, HasSubstr("{\"client\":{\"client\":3,\"pid\":4711,"));
  EXPECT_THAT(json, HasSubstr("{\"tier\":\"host\",\"tensors\":3,\"bytes\":4194304}"));
  EXPECT_THAT(json, HasSubstr("\"largest\":[{\"tensor\":3,"));
}

}  // namespace
}  // namespace ravenstore::client::ctl
