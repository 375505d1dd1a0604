// SPDX-License-Identifier: Apache-2.0
// For builds without the headers of PMIx.
#include <trireme/base/error.h>
#include <trireme/launch/store/launcher_exchange.h>

namespace trireme::launch {

std::string pass_by_pmix(const Environment& /*environment*/, int rank,
                         const std::function<std::string()>& /*make*/,
                         std::chrono::milliseconds /*timeout*/) {
  throw ConfigError(
      join_message("rank ", rank,
                   " has no address where the ranks of several hosts meet: its "
                   "launcher offers PMIx, but this Trireme was built without it"),
      "set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there on all ranks "
      "(mpirun -x MASTER_ADDR=host0 -x MASTER_PORT=29500), or build Trireme with libpmix-dev");
}

}  // namespace trireme::launch
