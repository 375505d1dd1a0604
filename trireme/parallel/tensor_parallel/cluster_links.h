// SPDX-License-Identifier: Apache-2.0
// The links along the axes of a plan's mesh, from the description of a cluster. Layouts are chosen
// by them, in a run as in a prediction.
#pragma once

#include <trireme/cluster/cluster.h>
#include <trireme/mesh/device_mesh.h>
#include <trireme/plan/plan.h>

#include <optional>
#include <string>

namespace trireme::detail {

/// Returns the description that TRIREME_CLUSTER names in the environment of this process, or
/// nothing if it is not set: links are the default Link then. Not collective. Throws ConfigError as
/// cluster::read_cluster does, with the name of the variable.
std::optional<cluster::Cluster> cluster_of_environment();

/// Returns a line that is equal for equal descriptions only. Ranks compare it together with their
/// plans, since they decide by these links without asking each other.
std::string line_of(const std::optional<cluster::Cluster>& description);

/// Sets the links of a mesh whose axes are axes of the plan; no effect on an undefined mesh. Ranks
/// of the plan lie on devices in order, host by host. Not collective: all ranks give the same plan
/// and description. Throws UsageError as cluster_for() and tensor::set_axis_links().
void set_links(const DeviceMesh& mesh, const Plan& plan, const cluster::Cluster& description);

/// Returns the part of a cluster on which a plan runs, with one rank on each device. Throws
/// UsageError if the cluster has fewer devices, or lacks a figure that they need, such as the links
/// between hosts.
/// @param plan has a mesh.
cluster::Cluster cluster_for(const Plan& plan, const cluster::Cluster& description);

/// The hint for ranks that differ in their plans or in line_of().
inline constexpr const char* kSamePlanHint =
    "give every rank the same plan and the same TRIREME_CLUSTER";

}  // namespace trireme::detail
