#include "elastic/events.h"

#include "tests/elastic/testing.h"

namespace ravenstore::elastic {
namespace {

class EventsTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(driver_.stream_create(&stream_, CU_STREAM_NON_BLOCKING), 0); }

  FakeContext context_;
  Driver driver_ = *LoadDriver(&FakeFunction);
  CUstream stream_ = nullptr;
  Events events_{&driver_, CU_EVENT_DISABLE_TIMING};
};

TEST_F(EventsTest, WhatIsGivenBackIsUsedAgain) {
  CUevent first = events_.Record(stream_);
  ASSERT_NE(first, nullptr);
  CUevent second = events_.Record(stream_);
  EXPECT_NE(second, first);
  events_.Give(first);
  EXPECT_EQ(events_.Record(stream_), first);
  events_.Give(first);
  events_.Give(second);
}

TEST_F(EventsTest, OnAStreamThatIsBeingCapturedThereIsNone) {
  driver_.is_capturing = [](CUstream, CUstreamCaptureStatus* status) {
    *status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
  };
  EXPECT_EQ(events_.Record(stream_), nullptr);
}

TEST_F(EventsTest, OneThatIsNotRecordedIsKeptForTheNext) {
  CUevent first = events_.Record(stream_);
  events_.Give(first);
  const auto record = driver_.event_record;
  driver_.event_record = [](CUevent, CUstream) { return CUDA_ERROR_INVALID_HANDLE; };
  EXPECT_EQ(events_.Record(stream_), nullptr);
  driver_.event_record = record;
  EXPECT_EQ(events_.Record(stream_), first);
  events_.Give(first);
}

}  // namespace
}  // namespace ravenstore::elastic
