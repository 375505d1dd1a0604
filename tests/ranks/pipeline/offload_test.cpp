// SPDX-License-Identifier: Apache-2.0
// Schedules that have what forward keeps in host memory for a while: the bits of those that have
// not, and the memory that they say. With the processor as the device everything is as on another,
// but that copies are done when they are asked for.
#include <trireme/base/error.h>
#include <trireme/parallel/pipeline/executor.h>
#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/passes.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/pipeline/chain.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <vector>

namespace trireme::pipeline::test {
namespace {

using comm::Group;
using schedule::ActionKind;
using schedule::Schedule;
using ::testing::HasSubstr;
using testing::message_of;
using testing::run_ranks;
using testing::run_ranks_catching;

constexpr int kMicroBatches = 8;

std::vector<int> all_stages(const Schedule& plan) {
  std::vector<int> stages(static_cast<std::size_t>(plan.num_stages()));
  std::iota(stages.begin(), stages.end(), 0);
  return stages;
}

Schedule offloaded(const Schedule& plan, int ahead = 1) {
  return with_offloading(plan, all_stages(plan), ahead);
}

std::int64_t count(const Schedule& plan, ActionKind kind) {
  std::int64_t number = 0;
  for (const auto& actions : plan.ranks) {
    number += std::ranges::count(actions, kind, &schedule::Action::kind);
  }
  return number;
}

struct Alone {
  std::map<int, ChainStage> modules;
  std::vector<at::Tensor> losses;
};

Alone run_chain_alone(int num_stages, const std::vector<std::int64_t>& samples,
                      const std::vector<double>& weights = {}) {
  std::vector<int> stages(static_cast<std::size_t>(num_stages));
  std::iota(stages.begin(), stages.end(), 0);
  Alone alone{.modules = modules_of(stages), .losses = {}};
  alone.losses = run_alone(codes_of(alone.modules, num_stages), inputs_of_chain(samples), weights);
  return alone;
}

void expect_bits_of(Alone& alone, std::map<int, ChainStage>& modules, const StepResult& result,
                    const Schedule& plan) {
  for (auto& [stage, module] : modules) {
    EXPECT_EQ(difference(module, alone.modules.at(stage)), "") << plan.name << ", stage " << stage;
  }
  for (std::size_t i = 0; i < result.losses.size(); ++i) {
    EXPECT_TRUE(torch::equal(result.losses[i], alone.losses[i])) << plan.name;
  }
}

class PipelineOffload : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Schedules, PipelineOffload,
                         ::testing::Values("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2",
                                           "zb-v"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST_P(PipelineOffload, GivesTheBitsOfOneProcess) {
  const Schedule plain = schedule::generate(GetParam(), 3, kMicroBatches);
  const std::vector<std::int64_t> samples(kMicroBatches, 4);
  Alone alone = run_chain_alone(plain.num_stages(), samples);
  std::vector<int> every_other;
  for (int stage = 0; stage < plain.num_stages(); stage += 2) every_other.push_back(stage);
  run_ranks(3, [&](const Group& group) {
    for (const int ahead : {0, 1}) {
      for (const Schedule& made : {plain, with_recomputation(plain, every_other),
                                   with_recomputation(plain, all_stages(plain))}) {
        const Schedule plan = offloaded(made, ahead);
        EXPECT_GT(count(plan, ActionKind::kOffload), 0);
        std::map<int, ChainStage> modules = modules_of(stages_of(plan, group.rank()));
        Executor executor(program_of_chain(plan), codes_of(modules, plan.num_stages()), group);
        const StepResult result = executor.step(inputs_of_chain(samples), 0);
        expect_bits_of(alone, modules, result, plan);
      }
    }
  });
}

// All of a chain of stages is offloaded, so it must all be counted.
TEST_P(PipelineOffload, KeepsTheBytesThatTheVerifierPredicts) {
  const Schedule plain = schedule::generate(GetParam(), 3, kMicroBatches);
  const std::vector<std::int64_t> samples(kMicroBatches, 4);
  run_ranks(3, [&](const Group& group) {
    std::int64_t before = 0;
    for (const Schedule& plan : {plain, offloaded(plain, 1), offloaded(plain, 0),
                                 offloaded(with_recomputation(plain, all_stages(plain)), 0)}) {
      std::map<int, ChainStage> modules = modules_of(stages_of(plan, group.rank()));
      Executor executor(program_of_chain(plan), codes_of(modules, plan.num_stages()), group);
      executor.step(inputs_of_chain(samples), 0);  // for gradients to have their memory
      const std::int64_t host_bytes = executor.host_bytes();
      const StepReport report =
          executor.step(inputs_of_chain(samples), 1, {.report = true}).report.value();
      const auto predicted = schedule::peak_memory(executor.schedule(), report.stage_bytes);
      for (std::size_t rank = 0; rank < predicted.size(); ++rank) {
        EXPECT_EQ(report.peak_bytes[rank], predicted[rank].peak_bytes)
            << GetParam() << ", rank " << rank << ", " << count(plan, ActionKind::kOffload)
            << " offloaded, " << count(plan, ActionKind::kRecompute) << " recomputed";
      }
      EXPECT_EQ(executor.host_bytes(), host_bytes);
      // A first stage that is recomputed keeps what the step has anyway.
      if (count(plan, ActionKind::kRecompute) == 0) {
        const auto& own = schedule::item(plan.ranks, group.rank());
        EXPECT_EQ(std::ranges::count(own, ActionKind::kOffload, &schedule::Action::kind) > 0,
                  host_bytes > 0);
      }
      if (before > 0) {
        EXPECT_LE(report.peak_bytes[0], before);
      }
      before = report.peak_bytes[0];
    }
  });
}

TEST(PipelineOffloads, KeepOneMicroBatchOfMany) {
  const std::vector<std::int64_t> samples(kMicroBatches, 4);
  run_ranks(2, [&](const Group& group) {
    const auto peak_of = [&](const Schedule& plan) {
      std::map<int, ChainStage> modules = modules_of({group.rank()});
      Executor executor(program_of_chain(plan), codes_of(modules, 2), group);
      executor.step(inputs_of_chain(samples), 0);
      return executor.step(inputs_of_chain(samples), 1, {.report = true}).report->peak_bytes;
    };
    const Schedule plan = schedule::generate("gpipe", 2, kMicroBatches);
    const auto all = peak_of(plan);
    const auto one = peak_of(offloaded(plan, 0));
    const auto three = peak_of(offloaded(plan, 1));
    for (std::size_t rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(all[rank], kMicroBatches * one[rank]);
      EXPECT_EQ(three[rank], 3 * one[rank]);
    }
  });
}

TEST(PipelineOffloads, MicroBatchesOfOtherShapesHaveTheirOwnBlocks) {
  const std::vector<std::int64_t> samples = {4, 4, 4, 2, 2};
  const std::vector<double> weights = weights_for(samples);
  Alone alone = run_chain_alone(2, samples, weights);
  run_ranks(2, [&](const Group& group) {
    const Schedule plan = offloaded(schedule::generate("gpipe", 2, 5), 0);
    Program program = program_of_chain(plan, {4, 2});
    program.variants = {0, 0, 0, 1, 1};
    program.weights = weights;
    std::map<int, ChainStage> modules = modules_of({group.rank()});
    Executor executor(program, codes_of(modules, 2), group);
    const StepResult result = executor.step(inputs_of_chain(samples), 0);
    expect_bits_of(alone, modules, result, plan);
    const std::int64_t host_bytes = executor.host_bytes();
    for (int step = 1; step < 4; ++step) executor.step(inputs_of_chain(samples), step);
    EXPECT_EQ(executor.host_bytes(), host_bytes);
    EXPECT_GT(host_bytes, 0);
  });
}

TEST(PipelineOffloads, AnEvaluationMovesNothing) {
  const std::vector<std::int64_t> samples(kMicroBatches, 4);
  run_ranks(2, [&](const Group& group) {
    const Schedule plan = offloaded(schedule::generate("gpipe", 2, kMicroBatches), 0);
    Program program = program_of_chain(plan);
    program.is_evaluation = true;
    for (BoundaryTensor& boundary_tensor : program.boundary_tensors)
      boundary_tensor.has_gradient = false;
    std::map<int, ChainStage> modules = modules_of({group.rank()});
    Executor executor(program, codes_of(modules, 2), group);
    const StepResult result = executor.step(inputs_of_chain(samples), 0, {.share_loss = true});
    EXPECT_TRUE(result.loss.isfinite().item<bool>());
    EXPECT_EQ(executor.host_bytes(), 0);
  });
}

// LibTorch cannot compare versions of what is saved by hooks.
TEST(PipelineOffloads, FindWhatWasWrittenToAfterAutogradHadSavedIt) {
  for (const bool offloads : {false, true}) {
    const auto thrown = run_ranks_catching(2, [&](const Group& group) {
      Schedule plan = schedule::generate("gpipe", 2, 4);
      if (offloads) plan = offloaded(plan, 0);
      std::map<int, ChainStage> modules = modules_of({group.rank()});
      std::vector<StageCode> codes = codes_of(modules, 2);
      if (group.rank() == 0) {
        codes[0].forward = [weight = modules.at(0)->linear->weight](
                               c10::ArrayRef<at::Tensor> inputs,
                               const MicroBatch&) -> std::vector<at::Tensor> {
          const at::Tensor hidden = torch::tanh(torch::linear(inputs[0], weight));
          hidden.add_(1);  // tanh has saved it
          return {(inputs[0] > 0).to(torch::kLong), hidden};
        };
      }
      Executor(program_of_chain(plan), codes, group).step(inputs_of_chain({4, 4, 4, 4}), 0);
    });
    const std::string expected =
        offloads ? "a tensor [4, 6] Float that backward needs of stage 0 was written to after "
                   "autograd had saved it"
                 : "modified by an inplace operation";
    try {
      ASSERT_NE(thrown[0], nullptr);
      std::rethrow_exception(thrown[0]);
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), HasSubstr(expected));
    }
  }
}

TEST(PipelineOffloads, FindAParameterThatWasWrittenToBeforeItsBackward) {
  const auto thrown = run_ranks_catching(2, [&](const Group& group) {
    const Schedule plan = offloaded(schedule::generate("gpipe", 2, 4), 0);
    std::map<int, ChainStage> modules = modules_of({group.rank()});
    std::vector<StageCode> codes = codes_of(modules, 2);
    codes[0].forward = [forward = codes[0].forward, scale = modules.at(group.rank())->scale](
                           c10::ArrayRef<at::Tensor> inputs, const MicroBatch& micro_batch) {
      if (micro_batch.number == 3) {
        const torch::NoGradGuard no_grad;
        scale.add_(1);
      }
      return forward(inputs, micro_batch);
    };
    Executor(program_of_chain(plan), codes, group).step(inputs_of_chain({4, 4, 4, 4}), 0);
  });
  EXPECT_THAT(message_of<UsageError>(thrown[1]), HasSubstr("was written to after autograd"));
}

}  // namespace
}  // namespace trireme::pipeline::test
