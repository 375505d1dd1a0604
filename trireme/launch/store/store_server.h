// SPDX-License-Identifier: Apache-2.0
// The key-value store that a launcher hosts, so that it outlives every rank.
#pragma once

#include <trireme/base/unique_fd.h>

#include <c10/util/intrusive_ptr.h>

#include <string_view>

namespace c10d {
class TCPStore;
}

namespace trireme::launch {

/// A c10d TCPStore served by a thread of this process, until destruction. Safe to call from several
/// threads.
class StoreServer {
 public:
  /// Serves on a socket that listens already; clients that came early wait in its backlog.
  /// Throws ConfigError where the store cannot start.
  StoreServer(UniqueFd listening_socket, int port);
  ~StoreServer();

  /// Tells ranks that wait in `meet` that `rank` is gone and how (`exited with code 3`), so that
  /// they need not wait for the deadline.
  void publish_exit(int rank, std::string_view how);

 private:
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

}  // namespace trireme::launch
