// A table of ranges over the fake driver, with all that is below it and nothing that moves.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "elastic/addresses.h"
#include "elastic/call_clock.h"
#include "elastic/job_memory.h"
#include "elastic/parts.h"
#include "elastic/range_table.h"
#include "elastic/segment_table.h"
#include "elastic/streams.h"
#include "tests/elastic/testing.h"

namespace ravenstore::elastic {

class RangesFixture : public EngineTest {
 protected:
  static constexpr uint32_t kPages = 8;  // on the device, and on the host

  RangesFixture() {
    options_.part = kPart;
    CUdeviceptr begin = 0;
    RAVEN_CHECK(driver_.address_reserve(&begin, (kPart * 64).count(), kPart.count(), 0, 0) ==
                CUDA_SUCCESS);
    addresses_ = std::make_unique<Addresses>(begin, kPart * 64, core::MiB(2));
    memory_ = std::make_unique<JobMemory>(
        JobMemory::Options{.begin = *addresses_->Take(kPart * 32, Addresses::kNoOwner),
                           .addresses = kPart * 32,
                           .page = kPart,
                           .device = kPart * kPages,
                           .host = kPart * kPages,
                           .ended = [] {},
                           .plan_due = [] {},
                           .removed = [](uint32_t) {}},
        &parts_, &streams_);
    ranges_ =
        std::make_unique<RangeTable>(options_, memory_.get(), addresses_.get(), &segments_, &clock_,
                                     [this](core::Bytes live) { grew_.push_back(live); });
  }

  EngineOptions options_;
  Parts parts_{&driver_, 0, 0, PlaceLimits{kPart * kPages, {}, {}},
               PlaceLimits{kPart * kPages, {}, {}}};
  Streams streams_{&driver_};
  SegmentTable segments_{kPart, &streams_};
  CallClock clock_;
  std::unique_ptr<Addresses> addresses_;
  std::unique_ptr<JobMemory> memory_;
  std::vector<core::Bytes> grew_;  // what the table reported
  std::unique_ptr<RangeTable> ranges_;
};

}  // namespace ravenstore::elastic
