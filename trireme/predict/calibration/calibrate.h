// SPDX-License-Identifier: Apache-2.0
// calibrate(): measures the machine at hand, and describes it as a cluster for predictions.
#pragma once

#include <trireme/cluster/cluster.h>
#include <trireme/comm/group.h>

namespace trireme::predict {

/// Measures this host as the ranks of `group` see it, and returns its description. Every figure is
/// that of a rank while all ranks do the same: cores and memory bandwidth are shared as in a
/// training with as many ranks. Measured are
///
///   - operators of forward and backward in fp32 over a range of sizes (sample_network),
///   - the bandwidth of memory, and the time between two operators,
///   - the steps of LibTorch's SGD, SGD with momentum and Adam,
///   - the collectives and messages of the group by size, and what they take from computation.
///
/// Takes about a minute, in which nothing else should run. Collective and blocking; every rank
/// returns the same value. Only for CPUs. Throws UsageError if the ranks are on several hosts.
cluster::Cluster calibrate(const comm::Group& group);

}  // namespace trireme::predict
