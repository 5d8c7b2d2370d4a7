// The devices that the driver shows, and the page with a row for each (proto/ledger_page.h): the
// sums of what this job holds there, which the daemon reads, and the budgets that it writes.
//
// Threads: any; FindDevices by one at a time.
#pragma once

#include <cstdint>

#include "interceptor/cuda_api.h"
#include "proto/ledger_page.h"

namespace ravenstore::interceptor {

// Makes the page and a row for each device. False: the driver cannot be asked. REQUIRES:
// ReadSettings().
bool FindDevices();

// Before FindDevices one without rows.
proto::LedgerPage* Page();
// The memfd of the page, or -1.
int PageDescriptor();
// Of the page on which engines show themselves, in elastic mode: its memfd, or -1; and a device's
// row on it, or null.
int ElasticPageDescriptor();
void* ElasticPageRow(int row);

// The page's row of a device; -1: unknown.
int RowOf(CUdevice device);
int RowOfUuid(const char* uuid);
CUdevice DeviceOf(int row);
// Of the calling thread's context.
int CurrentRow();
CUcontext CurrentContext();
// Of the stream, whatever context is the thread's.
CUcontext ContextOf(CUstream stream);
int RowOf(CUstream stream);
// A context began or ended: what threads remember of its address may be another's.
void NoteContextChange();

// A child of fork has no page and knows no device until it finds them again.
void ForgetDevicesInChild();

}  // namespace ravenstore::interceptor
