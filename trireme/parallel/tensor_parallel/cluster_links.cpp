// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/tensor_parallel/cluster_links.h>

#include <trireme/base/environment.h>
#include <trireme/base/error.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/plan/rank_groups.h>
#include <trireme/tensor/axis_links.h>

#include <c10/util/hash.h>

#include <utility>

namespace trireme::detail {

std::optional<cluster::Cluster> cluster_of_environment() {
  const std::string name = Settings::from(Environment::of_process()).cluster;
  if (name.empty()) return {};
  try {
    return cluster::read_cluster(name);
  } catch (const ConfigError& error) {  // its text contains a hint
    throw ConfigError(
        join_message("environment variable TRIREME_CLUSTER is '", name, "': ", error.what()), "");
  }
}

std::string line_of(const std::optional<cluster::Cluster>& description) {
  constexpr const char* kLabel = "TRIREME_CLUSTER      ";
  if (!description) return join_message(kLabel, "not set\n");
  // The digest tells files apart that have the same name in them.
  return join_message(kLabel, description->name, ", digest ",
                      c10::sha1(cluster::to_toml(*description)).str(), "\n");
}

void set_links(const DeviceMesh& mesh, const Plan& plan, const cluster::Cluster& description) {
  if (!mesh.defined()) return;
  const cluster::Cluster used = cluster_for(plan, description);
  const RankGroups groups(plan, used);
  tensor::AxisLinks links;
  for (const MeshAxis& axis : mesh.state()->axes) links.push_back(groups.links(axis.name));
  tensor::set_axis_links(mesh, std::move(links));
}

cluster::Cluster cluster_for(const Plan& plan, const cluster::Cluster& description) {
  cluster::Cluster used = description.with_ranks(num_ranks(plan.mesh));
  cluster::check_cluster(used);
  return used;
}

}  // namespace trireme::detail
