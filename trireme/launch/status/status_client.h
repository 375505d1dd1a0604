// SPDX-License-Identifier: Apache-2.0
// Asks a run for its status.
#pragma once

#include <trireme/launch/status/status_address.h>
#include <trireme/launch/tls/tls_files.h>

#include <chrono>
#include <optional>
#include <string>

namespace trireme::launch {

/// Returns what is served at a path of a status, such as `/status.json`. Blocks until the timeout
/// at most. Throws ConfigError if the token or the certificate is refused, or the files for TLS are
/// missing; CommError if nobody answers in time, or what answers is no status.
/// @param address where it is served.
/// @param path the path.
/// @param tls the files for TLS, which an encrypted status needs.
/// @param timeout the time for all of it.
std::string fetch_status(const StatusAddress& address, const std::string& path,
                         const std::optional<TlsFiles>& tls, std::chrono::milliseconds timeout);

}  // namespace trireme::launch
