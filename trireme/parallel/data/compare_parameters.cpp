// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/data/compare_parameters.h>

#include <trireme/comm/check_values.h>
#include <trireme/parallel/tensor/local_memory.h>

namespace trireme::detail {
namespace {

std::vector<comm::NamedValue> values_of(const std::vector<NamedTensor>& parameters) {
  std::vector<comm::NamedValue> values;
  for (const NamedTensor& item : parameters) values.push_back({item.name, memory_of(item.tensor)});
  return values;
}

}  // namespace

void compare_parameters(const std::vector<NamedTensor>& whole,
                        const std::vector<NamedTensor>& slices, const DataGroups& groups,
                        const DeviceMesh& mesh, const std::string& what) {
  const auto compare_slices = [&] {
    comm::check_equal_values(values_of(slices), groups.replicas, "slices of " + what);
  };
  // Each comparison is made by some of the ranks; all ranks learn its result.
  succeed_together(mesh.defined() ? mesh.group() : comm::Group::self(), "compare parameters", [&] {
    comm::check_equal_values(values_of(whole), groups.all, what);
    succeed_together(groups.all, "compare its slices of parameters", compare_slices);
  });
  if (!mesh.defined()) return;
  succeed_together(groups.all, "compare parameters",
                   [&] { check_equal_on_mesh(whole, mesh, what); });
}

}  // namespace trireme::detail
