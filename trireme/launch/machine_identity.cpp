// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/machine_identity.h>

#include <trireme/base/machine.h>

#include <filesystem>
#include <system_error>

namespace trireme::launch {

std::string machine_identity() {
  std::error_code unreadable;
  const auto network = std::filesystem::read_symlink("/proc/self/ns/net", unreadable);
  return boot_id() + " " + network.string();
}

}  // namespace trireme::launch
