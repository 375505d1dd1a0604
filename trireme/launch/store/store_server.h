// SPDX-License-Identifier: Apache-2.0
// The key-value store that a launcher serves, so that it outlives every rank.
#pragma once

#include <trireme/launch/run/run.h>

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace c10d {
class TCPStore;
}

namespace trireme::launch {

/// The launcher's side of a c10d TCPStore. The launcher of host 0 serves it with a thread of this
/// process until destruction. Launchers of other hosts join it.
class StoreServer : public RunStore {
 public:
  /// Serves on a socket that already listens; clients that connected early wait in its backlog.
  /// Without a socket, connects to the store. Throws ConfigError if that fails within the timeout
  /// of `place`.
  explicit StoreServer(StoreAddress place);
  ~StoreServer() override;

  /// Publishes that `rank` has ended and how, so that ranks waiting in rendezvous() need not wait
  /// for their timeout.
  void publish_exit(int rank, std::string_view how) override;

  /// Returns true if the store has keys that this launcher did not write.
  bool is_used() override;

 private:
  c10::intrusive_ptr<c10d::TCPStore> store_;
  std::string secret_;
  int attempt_ = 0;
  std::int64_t own_keys_ = 0;  // keys that publish_exit() has written
};

}  // namespace trireme::launch
