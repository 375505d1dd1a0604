// SPDX-License-Identifier: Apache-2.0
// calibrate(): measures the machine at hand, and describes it as a cluster for predictions.
#pragma once

#include <trireme/cluster/cluster.h>
#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

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
/// On an accelerator, also the rates of large products in fp16 and bf16, of fused attention, and of
/// copies between the device and host memory. Operators that run there under other names than on
/// the CPU have no curves of their own; these rates describe them.
///
/// Takes about a minute, in which nothing else should run. Collective and blocking; every rank
/// returns the same value. Throws UsageError on all ranks, before anything is measured, if the
/// ranks are on several hosts, if some are on the CPU and some on accelerators, or if an
/// accelerator does not say how much memory it has and `memory_gib` is 0.
/// @param device that this rank measures, one of its own.
/// @param memory_gib memory of an accelerator in GiB; 0: what its allocator says.
cluster::Cluster calibrate(const comm::Group& group, const c10::Device& device = at::kCPU,
                           double memory_gib = 0);

}  // namespace trireme::predict
