// SPDX-License-Identifier: Apache-2.0
// Ranks of a run whose cluster is described, or described in other ways on one of them; for
// cluster_test.cpp.
//
//   cluster_program          prints the latency of the links of the mesh
//   cluster_program differ   rank 1 has another description
//   cluster_program missing  rank 1 has none
#include <trireme/base/exception_text.h>
#include <trireme/comm/world.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/parallel/training_step.h>
#include <trireme/tensor/axis_links.h>

#include <torch/torch.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>

namespace {

using trireme::Plan;
using trireme::World;

Plan plan_of(const World& world) {
  Plan plan = {.mesh = {{"tensor", world.size}}};
  plan.layouts = {{"weight", {{"tensor", trireme::Shard{0}}}}};
  return plan;
}

void print_error(const World& world, const std::function<void()>& call) {
  try {
    call();
    std::cout << "rank " << world.rank << ": no error" << std::endl;
  } catch (const std::exception& error) {
    std::cout << "rank " << world.rank << ": " << trireme::message_of(error) << std::endl;
  }
}

torch::nn::Linear layer() { return torch::nn::Linear(torch::nn::LinearOptions(8, 8).bias(false)); }

void try_both(const World& world) {
  print_error(world, [&] {
    const auto parallel = trireme::parallelize(*layer(), plan_of(world), world.group);
  });
  auto module = layer();
  print_error(world, [&] {
    const trireme::TrainingStep step(
        *module,
        [&](const std::vector<at::Tensor>& inputs) -> std::vector<at::Tensor> {
          return {module->forward(inputs[0]).mean()};
        },
        plan_of(world), world.group);
  });
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string mode = argc > 1 ? argv[1] : "";
  const World world = trireme::init();
  if (world.rank == 1 && mode == "differ") ::setenv("TRIREME_CLUSTER", "h100-80", 1);
  if (world.rank == 1 && mode == "missing") ::unsetenv("TRIREME_CLUSTER");
  if (!mode.empty()) {
    try_both(world);
    return 0;
  }
  auto module = layer();
  const auto parallel = trireme::parallelize(*module, plan_of(world), world.group);
  const trireme::Link& link =
      trireme::tensor::link_along(*parallel.mesh().state(), 0, trireme::Collective::kAllGather);
  std::cout << "latency " << link.latency * 1e6 << " us" << std::endl;
  return 0;
} catch (const std::exception& error) {
  std::cerr << trireme::message_of(error) << '\n';
  return 3;
}
