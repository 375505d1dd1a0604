// SPDX-License-Identifier: Apache-2.0
// Model on accelerators: whole on each rank, and in stages with a device per rank, against the same
// program on the CPU.
#include <tests/ranks/devices/test_device.h>
#include <tests/ranks/train/in_stages.h>

#include <vector>

namespace trireme {
namespace {

using comm::Group;
using test::in_stages;
using test::kPerceptronStages;
using test::perceptron;
using test::Program;
using test::run_program;
using test::Trained;
using testing::name_of_way;
using testing::OnDevices;

class ModelOnDevices : public OnDevices {
 protected:
  static void compare(const Program& program, const Plan& plan, int ranks) {
    compare_with_cpu(ranks, [&](const Group& group, at::Device device) {
      Program on_device = program;
      on_device.device = device;
      const Trained trained = run_program(perceptron(), {6}, on_device, plan, group);
      std::vector<torch::Tensor> values = trained.parameters;
      for (const torch::Tensor& buffer : trained.buffers) values.push_back(buffer);
      values.push_back(trained.predicted);
      values.push_back(torch::tensor(trained.losses));
      values.push_back(torch::scalar_tensor(trained.evaluation.loss));
      return values;
    });
  }
};
INSTANTIATE_TEST_SUITE_P(, ModelOnDevices, ::testing::Bool(), name_of_way);

TEST_P(ModelOnDevices, TrainsEvaluatesAndPredictsAsOnTheCpu) {
  for (const int zero_level : {0, 1, 2, 3}) compare({}, {.zero_level = zero_level}, 2);
  compare({.moves_batches_ahead = false}, {.micro_batches = 2}, 2);
}

TEST_P(ModelOnDevices, InStagesWithADeviceForEachRank) {
  for (const char* schedule : {"1f1b", "gpipe", "zb-h1"}) {
    Plan plan = in_stages(2, 1, kPerceptronStages);
    plan.schedule = schedule;
    plan.micro_batches = 2;
    compare({}, plan, 2);
  }
  for (const int zero_level : {0, 1, 2}) {
    Plan plan = in_stages(2, 2, kPerceptronStages);
    plan.micro_batches = 2;
    plan.zero_level = zero_level;
    compare({}, plan, 4);
  }
}

TEST_P(ModelOnDevices, RecomputesInBackward) {
  Plan plan = in_stages(2, 1, kPerceptronStages);
  plan.micro_batches = 2;
  plan.recompute = {"first", "third"};
  compare({}, plan, 2);
}

// Offloading needs an accelerator: what it gives is compared with the same plan without it.
TEST_P(ModelOnDevices, MovesActivationsToTheHost) {
  Plan plan = in_stages(2, 1, kPerceptronStages);
  plan.micro_batches = 4;
  plan.schedule = "gpipe";
  testing::run_device_ranks(2, [&](const Group& group, at::Device device) {
    const Program program{.device = device};
    const Trained kept = run_program(perceptron(), {6}, program, plan, group);
    Plan offloaded = plan;
    offloaded.offload_activations = true;
    test::expect_same(run_program(perceptron(), {6}, program, offloaded, group), kept);
  });
}

}  // namespace
}  // namespace trireme
