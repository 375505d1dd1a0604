// SPDX-License-Identifier: Apache-2.0
// A barrier over the store that names the ranks which do not come. The group can still be used when
// it fails.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>

namespace c10d {
class Store;
}

namespace trireme::python {

/// The arguments of one monitored barrier.
struct MonitoredBarrier {
  c10::intrusive_ptr<c10d::Store> store;  ///< of the group
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{};
  std::uint64_t number = 1;    ///< counts the monitored barriers of the group
  bool waits_for_all = false;  ///< true to name all ranks that do not come, false for the first
};

/// Blocks until all ranks have come. Rank 0 waits for the others and tells them the result. Throws
/// CommError on every rank if a rank does not come within the timeout.
void monitored_barrier(const MonitoredBarrier& barrier);

}  // namespace trireme::python
