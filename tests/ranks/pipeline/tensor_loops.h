// SPDX-License-Identifier: Apache-2.0
// Training loops over pipelines whose stages are shared by ranks along a tensor axis.
#pragma once

#include <trireme/parallel/distribute_module.h>
#include <trireme/parallel/training_step.h>
#include <trireme/tensor/distributed_tensor.h>

#include <gtest/gtest.h>
#include <tests/ranks/pipeline/loops.h>
#include <tests/ranks/pipeline/networks.h>
#include <torch/torch.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

namespace trireme::test {

inline constexpr double kBound = 1e-9;  ///< relative and absolute, of doubles after a few steps

/// A GPT in double precision.
inline Network language_model_in_double(bool is_tied) {
  Network network = language_model(/*dropout=*/0, is_tied);
  network.module->to(torch::kDouble);
  return network;
}

/// Of 11 words one rank has 6, and the head likewise.
inline ParameterLayouts layouts_of_language_model(bool is_tied) {
  ParameterLayouts layouts =
      join({vocabulary_parallel("token_embedding"), column_parallel("*.attention.input"),
            row_parallel("*.attention.output"), column_parallel("*.mlp_input"),
            row_parallel("*.mlp_output")});
  return is_tied ? layouts : join({layouts, vocabulary_parallel("head")});
}

struct Shared {
  std::vector<MeshAxis> mesh{};
  std::string schedule = "1f1b";
  int zero_level = 0;
  bool is_tied = false;
  std::string optimizer = "adamw";
  std::int64_t rows = 5;  ///< of each rank along data, in three micro-batches
};

inline std::ostream& operator<<(std::ostream& out, const Shared& setting) {
  for (const MeshAxis& axis : setting.mesh) out << axis.name << "=" << axis.size << " ";
  return out << setting.schedule << ", ZeRO " << setting.zero_level
             << (setting.is_tied ? ", tied" : "");
}

inline int ranks_of(const Shared& setting) {
  std::int64_t ranks = 1;
  for (const MeshAxis& axis : setting.mesh) ranks *= axis.size;
  return static_cast<int>(ranks);
}

inline Plan plan_of(const Shared& setting, const Network& network) {
  Plan plan;
  plan.mesh = setting.mesh;
  plan.schedule = setting.schedule;
  const int chunks = setting.schedule == "interleaved" || setting.schedule == "zb-v" ? 2 : 1;
  const int num_stages = stage_ranks(plan) * chunks;
  for (int stage = 0; stage < num_stages; ++stage) {
    const auto place = static_cast<std::size_t>(stage) * network.modules.size() /
                       static_cast<std::size_t>(num_stages);
    plan.stages.emplace_back(network.modules[place], stage);
  }
  plan.layouts = layouts_of_language_model(setting.is_tied);
  plan.micro_batches = 3;
  plan.zero_level = setting.zero_level;
  plan.bucket_bytes = plan.first_bucket_bytes = 1024;
  return plan;
}

inline Arranged arranged_of(const Shared& setting) {
  Plan plan;
  plan.mesh = setting.mesh;
  return {.data = data_ranks(plan, 1),
          .micro_batches = 3,
          .optimizer = setting.optimizer,
          .rows = setting.rows};
}

/// All of what is distributed, on every rank of its mesh.
inline std::vector<torch::Tensor> whole(const std::vector<torch::Tensor>& tensors) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> all;
  for (const torch::Tensor& tensor : tensors) all.push_back(full(tensor.detach()).clone());
  return all;
}

inline void expect_close(const std::vector<torch::Tensor>& got,
                         const std::vector<torch::Tensor>& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(torch::allclose(got[i], expected[i], kBound, kBound)) << what << " " << i;
  }
}

inline Outcome train(const Network& network, const Shared& setting, const comm::Group& group) {
  const Arranged arranged = arranged_of(setting);
  const auto optimizer = make_optimizer(setting.optimizer, network.module->parameters());
  TrainingStep pipeline(*network.module, network.forward, plan_of(setting, network), group);
  pipeline.shard(*optimizer);
  const comm::Group& data = pipeline.data_group();
  Outcome outcome;
  outcome.losses.resize(static_cast<std::size_t>(data.size()));
  for (int step = 0; step < arranged.steps; ++step) {
    optimizer->zero_grad();
    const auto batch = network.batch(setting.rows * data.size(), step);
    outcome.losses[static_cast<std::size_t>(data.rank())].push_back(
        pipeline.step(part_of(batch, data.rank(), data.size())).loss.clone());
    optimizer->step();
  }
  pipeline.gather_parameters();
  outcome.parameters = whole(network.module->parameters());
  return outcome;
}

}  // namespace trireme::test
