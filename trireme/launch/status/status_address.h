// SPDX-License-Identifier: Apache-2.0
// Where the status of a run is served, and the file in which its user finds that.
#pragma once

#include <trireme/launch/role.h>

#include <filesystem>
#include <string>
#include <string_view>

namespace trireme::launch {

/// The name of the file with the address of the status, in the folder of a run.
inline constexpr std::string_view kStatusFile = "status_url";

/// The address of a status.
struct StatusAddress {
  HostAndPort place;          ///< the host and the port
  bool is_encrypted = false;  ///< true for HTTPS
  std::string token{};        ///< the token of the run; empty with HTTPS
};

/// Returns an address as a URL such as `http://127.0.0.1:4711/?token=0123`.
std::string url_of(const StatusAddress& address);

/// Parses a URL, or `host:port`, which means HTTP. Throws ConfigError that names `source`.
StatusAddress parse_status_address(const std::string& source, const std::string& text);

/// Parses the value of --status: a port at 127.0.0.1, or `address:port`. Port 0 means a free one.
/// Throws ConfigError.
HostAndPort parse_status_place(const std::string& text);

/// Writes a file that only this user can read, in place of an older one of the same name, and
/// flushes it to the disk. Throws ConfigError if that fails.
void write_private_file(const std::filesystem::path& file, std::string_view text);

/// Reads the address from a file that write_private_file() has written, or from the file
/// `status_url` in a folder. Throws ConfigError.
StatusAddress read_status_address(const std::filesystem::path& file_or_folder);

}  // namespace trireme::launch
