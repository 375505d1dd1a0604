// SPDX-License-Identifier: Apache-2.0
// Finds a port for ranks that are started without a launcher.
#pragma once

#include <trireme/base/unique_fd.h>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

namespace trireme::test {

/// Returns a port that was free a moment ago. Whoever starts ranks without a launcher must choose
/// MASTER_PORT.
inline std::string free_port() {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  return std::to_string(::ntohs(address.sin_port));
}

}  // namespace trireme::test
