// SPDX-License-Identifier: Apache-2.0
// Stages on fake accelerators whose activations are in host memory for a while: the bits of
// stages that keep them, no use of memory that a copy still needs, and the memory that is said.
#include <trireme/parallel/training_step.h>
#include <trireme/schedule/verifier/memory.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/fake_device/device.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/pipeline/networks.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace trireme {
namespace {

using test::Network;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::fake::take_races;

constexpr std::int64_t kMicroBatches = 6;
constexpr std::int64_t kRows = 2 * kMicroBatches;
constexpr std::int64_t kSteps = 3;

struct Case {
  std::string name;
  std::function<Network()> make;
  std::vector<std::string> recompute{};  // in some of the plans
  std::size_t target = 1;                // the device that takes it
  friend std::ostream& operator<<(std::ostream& out, const Case& test_case) {
    return out << test_case.name;
  }
};

std::vector<at::Device> devices() { return {testing::fake::device(0), testing::fake::device(1)}; }

Plan plan_of(const Network& network, const std::string& kind) {
  Plan plan{.schedule = kind, .micro_batches = kMicroBatches};
  const std::size_t stages = kind == "interleaved" || kind == "zb-v" ? 4 : 2;
  for (std::size_t stage = 0; stage < stages; ++stage) {
    plan.stages.emplace_back(network.modules[stage * network.modules.size() / stages],
                             static_cast<int>(stage));
  }
  return plan;
}

struct Trained {
  std::vector<torch::Tensor> losses{};
  std::vector<torch::Tensor> tensors{};  // parameters, then buffers
  pipeline::StepReport report{};
  std::vector<schedule::RankMemory> explained{};  // peaks, by what the last step has measured
  std::string text{};
};

// @param target the device of the targets, of batches that are where they are needed; nothing for
// those on the processor.
Trained train(const Network& network, const Plan& plan, std::optional<std::size_t> target) {
  TrainingStep pipeline(*network.module, network.forward, plan, comm::Group::self(),
                        {.devices = devices()});
  torch::optim::SGD optimizer(network.module->parameters(),
                              torch::optim::SGDOptions(0.1).momentum(0.9));
  Trained trained;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    optimizer.zero_grad(/*set_to_none=*/false);
    std::vector<torch::Tensor> batch = network.batch(kRows, step);
    if (target) {
      batch[0] = batch[0].to(devices()[0]);
      batch[1] = batch[1].to(devices()[*target]);
    }
    StepOutput result = pipeline.step(batch, {.report = true});
    trained.losses.push_back(result.loss.cpu().clone());
    trained.report = std::move(result.report).value();
    optimizer.step();
  }
  trained.explained = schedule::peak_memory(pipeline.schedule(), trained.report.stage_bytes);
  trained.text = pipeline.to_string();
  for (const auto& parameter : network.module->parameters()) {
    trained.tensors.push_back(parameter.detach().cpu().clone());
  }
  for (const auto& buffer : network.module->buffers()) {
    trained.tensors.push_back(buffer.cpu().clone());
  }
  return trained;
}

void expect_same_bits(const Trained& got, const Trained& expected) {
  ASSERT_EQ(got.tensors.size(), expected.tensors.size());
  for (std::size_t i = 0; i < got.losses.size(); ++i) {
    EXPECT_TRUE(torch::equal(got.losses[i], expected.losses[i])) << "loss " << i;
  }
  for (std::size_t i = 0; i < got.tensors.size(); ++i) {
    EXPECT_TRUE(torch::equal(got.tensors[i], expected.tensors[i])) << "tensor " << i;
  }
}

class OffloadedFromDevices : public ::testing::TestWithParam<Case> {
 protected:
  void TearDown() override { EXPECT_THAT(take_races(), IsEmpty()); }
};

TEST_P(OffloadedFromDevices, HasTheBitsOfWhatStaysThere) {
  for (const std::string kind : {"gpipe", "interleaved", "zb-h2", "zb-v"}) {
    SCOPED_TRACE(kind);
    const Network network = GetParam().make();
    Plan plan = plan_of(network, kind);
    const Trained expected = train(network, plan, GetParam().target);
    plan.offload_activations = true;
    const Trained own = train(GetParam().make(), plan, GetParam().target);
    EXPECT_THAT(own.text, HasSubstr("micro-batches wait for their backward in host memory"));
    expect_same_bits(own, expected);
    for (std::size_t rank = 0; rank < devices().size(); ++rank) {
      EXPECT_EQ(own.report.peak_bytes[rank], own.explained[rank].peak_bytes) << rank;
      EXPECT_LE(own.report.peak_bytes[rank], expected.report.peak_bytes[rank]) << rank;
    }
    if (kind == "gpipe") {
      EXPECT_LT(own.report.peak_bytes[0], expected.report.peak_bytes[0] * 2 / 3);
    }
  }
}

TEST_P(OffloadedFromDevices, GoesTogetherWithRecomputationAndBatchesFromTheProcessor) {
  const Network network = GetParam().make();
  Plan plan = plan_of(network, "gpipe");
  plan.recompute = GetParam().recompute;
  const Trained expected = train(network, plan, {});
  plan.offload_activations = true;
  expect_same_bits(train(GetParam().make(), plan, {}), expected);
}

INSTANTIATE_TEST_SUITE_P(
    Networks, OffloadedFromDevices,
    ::testing::Values(Case{"ResidualNet", test::residual_net, {"blocks.*.norm", "aten::conv2d"}},
                      // Their code flattens the target before it runs the network.
                      Case{"Dropout", [] { return test::language_model(0.2); }, {"blocks.*"}, 0},
                      Case{"TiedEmbedding", [] { return test::language_model(0, true); }, {"*"}, 0},
                      Case{"SkippingNet", test::skipping_net, {"first"}}),
    [](const auto& param_info) { return param_info.param.name; });

TEST(OffloadedFromDevice, ButNotFromTheProcessor) {
  const Network network = test::residual_net();
  Plan plan = plan_of(network, "gpipe");
  plan.offload_activations = true;
  EXPECT_THAT(test::usage_error([&] {
                const TrainingStep refused(*network.module, network.forward, plan,
                                           comm::Group::self(),
                                           {.devices = {testing::fake::device(0), at::kCPU}});
              }),
              HasSubstr("cannot have offload_activations for stages on the processor"));
}

}  // namespace
}  // namespace trireme
