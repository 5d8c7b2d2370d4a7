// sd_notify without libsystemd: one datagram to $NOTIFY_SOCKET.
// Source of the protocol: sd_notify(3).
#pragma once

#include <string_view>

namespace ravenstore::daemon {

// Sends e.g. "READY=1" to the service manager; does nothing where there is none. True when it was
// sent.
bool NotifyServiceManager(std::string_view state);
// Says that the configuration is being read again; "READY=1" ends that.
bool NotifyReloading();

}  // namespace ravenstore::daemon
