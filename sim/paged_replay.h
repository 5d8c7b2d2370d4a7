// Replays a trace of clients whose memory is in pages of one device, in virtual time.
//
// The scheduler of the device (core/schedule/page_scheduler.h) decides what moves and which call
// waits. The replay models the clients' CPUs and streams, the links, and the mappers.
//
// A client's CPU makes its calls in order, and its stream executes them in that order. A create
// or a get holds the units of its tensor from the call on. The stream waits until all of them are
// resident. A put or a free releases the units when the stream reaches it. ReplaySetup::foresight
// says which calls the plan knows. Mapping has the cost that was measured on an H100. The first
// mapping of each page is free: a job pays for those once, at its start.
//
// ReplaySetup::run_ahead limits how far the CPU runs ahead of the stream. Between two calls the CPU
// takes the recorded time (Op::program). It waits if the units in use would exceed the budget.
//
// With ReplaySetup::in_place, a create or a get for which there is no room uses its tensor's pages
// on the host. The kernel then takes longer by the time that the host's links need for these bytes.
//
// Owns: nothing. Units: simulated time, bytes. Threads: one at a time; the same input gives the
// same result. Errors: in the outcome: more in use than the budget, or more than kReplayMax.
#pragma once

#include "sim/outcome.h"
#include "sim/setup.h"
#include "sim/trace.h"

namespace ravenstore::sim {

Outcome ReplayPaged(const Trace& trace, const ReplaySetup& setup);

}  // namespace ravenstore::sim
