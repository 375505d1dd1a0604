// SPDX-License-Identifier: Apache-2.0
// The key-value store that a launcher hosts, so that it outlives every rank.
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

/// The launcher's side of a c10d TCPStore: the launcher of host 0 serves it by a thread of this
/// process until destruction, those of other hosts join it.
class StoreServer : public RunStore {
 public:
  /// Serves on a socket that listens already; clients that came early wait in its backlog. Without
  /// a socket, connects. Throws ConfigError where that fails within the place's timeout.
  explicit StoreServer(StoreAddress place);
  ~StoreServer() override;

  /// Tells ranks that wait in `rendezvous` that `rank` is gone and how, so that they need not wait
  /// for the deadline.
  void publish_exit(int rank, std::string_view how) override;

  bool is_used() override;

 private:
  c10::intrusive_ptr<c10d::TCPStore> store_;
  std::string secret_;
  std::int64_t own_keys_ = 0;  // of exits
};

}  // namespace trireme::launch
