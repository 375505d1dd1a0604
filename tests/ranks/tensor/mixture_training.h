// SPDX-License-Identifier: Apache-2.0
// Trainings of mixtures of experts, with and without a capacity, whose parameters are compared with
// those of one process.
#pragma once

#include <models/mixture.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/plan/expert_layouts.h>
#include <trireme/plan/transformer_layouts.h>
#include <trireme/tensor/distributed_tensor.h>

#include <gtest/gtest.h>
#include <tests/ranks/close_tensors.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace trireme::test {

/// Returns the plan of a mixture on a mesh, with the layouts that its axes need.
inline Plan plan_of_mixture(const models::MixtureGPT& model, std::vector<MeshAxis> mesh) {
  Plan plan = {.mesh = std::move(mesh), .layouts = expert_layouts(*model)};
  if (std::ranges::find(plan.mesh, "tensor", &MeshAxis::name) != plan.mesh.end()) {
    plan.layouts = join({plan.layouts, transformer_layouts(*model)});
  }
  return plan;
}

/// A mixture, and the loss of some of its rows.
struct MixtureTraining {
  std::function<models::MixtureGPT()> make;
  std::function<torch::Tensor(models::MixtureGPT&, std::int64_t begin, std::int64_t rows)> loss_of;
  std::int64_t rows = 0;  ///< of all ranks
};

/// Returns the parameters after three steps of AdamW, on the same rows for any plan. Collective
/// over `all`, the ranks of which `ranks` carry out the plan.
inline std::vector<torch::Tensor> trained_parameters(const MixtureTraining& training, Plan plan,
                                                     const comm::Group& ranks,
                                                     const comm::Group& all) {
  auto model = training.make();
  comm::barrier(all);
  plan.broadcast_buffers = false;  // each rank counts the tokens of its own rows
  Parallelized parallelized = parallelize(*model, plan, ranks);
  torch::optim::AdamW optimizer(model->parameters(), 1e-3);
  parallelized.shard(optimizer);
  const std::int64_t rows = training.rows / parallelized.data_group().size();
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    training.loss_of(model, parallelized.data_group().rank() * rows, rows).backward();
    optimizer.step();
  }
  parallelized.gather_parameters();
  std::vector<torch::Tensor> parameters;
  for (const auto& parameter : model->parameters()) {
    parameters.push_back(full(parameter.detach()).clone());
  }
  return parameters;
}

/// Expects that two ranks along `data` and two along `expert` train to the parameters of one
/// process at every ZeRO level. `group` has four ranks.
inline void expect_same_training_at_every_zero_level(const MixtureTraining& training,
                                                     const comm::Group& group) {
  const auto expected = trained_parameters(training, {}, comm::Group::self(), group);
  for (const int level : {0, 1, 2, 3}) {
    Plan plan = plan_of_mixture(training.make(), {{"data", 2}, {"expert", 2}});
    plan.zero_level = level;
    const auto parameters = trained_parameters(training, plan, group, group);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      // AdamW scales up the gradients of the biases of keys, which are zero but for rounding.
      EXPECT_LE(testing::largest(parameters[i] - expected[i]), 1e-9)
          << "ZeRO " << level << ": " << i;
    }
  }
}

}  // namespace trireme::test
