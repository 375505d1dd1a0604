// SPDX-License-Identifier: Apache-2.0
// The comparison of parameters over ranks in the check mode (comm/check_values.h).
#pragma once

#include <trireme/mesh/device_mesh.h>
#include <trireme/parallel/agreement.h>
#include <trireme/parallel/data/data_groups.h>

#include <string>
#include <vector>

namespace trireme::detail {

/// Compares parameters over all ranks that hold the same values. Throws UsageError on every rank if
/// some differ. Collective and blocking.
/// @param whole the parameters that are not sharded along `data` (ZeRO).
/// @param slices this rank's slices of the others. Only slices that several ranks hold (hybrid
/// sharding) are compared, because whole parameters come from one all-gather.
/// @param groups the ranks along `data`.
/// @param mesh the mesh of the parameters; may be undefined.
/// @param what the values, for messages: `parameters before step 1`.
void compare_parameters(const std::vector<NamedTensor>& whole,
                        const std::vector<NamedTensor>& slices, const DataGroups& groups,
                        const DeviceMesh& mesh, const std::string& what);

}  // namespace trireme::detail
