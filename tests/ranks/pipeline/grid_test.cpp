// SPDX-License-Identifier: Apache-2.0
// Every kind of schedule gives the bits of one process.
#include <trireme/parallel/pipeline/executor.h>
#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/passes.h>

#include <gtest/gtest.h>
#include <tests/ranks/pipeline/chain.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <numeric>

namespace trireme::pipeline::test {
namespace {

using comm::Group;
using testing::run_ranks;

struct Alone {
  std::map<int, ChainStage> modules;
  std::vector<at::Tensor> losses;
};

std::vector<int> all_stages(int count) {
  std::vector<int> stages(static_cast<std::size_t>(count));
  std::iota(stages.begin(), stages.end(), 0);
  return stages;
}

Alone run_chain_alone(int num_stages, int micro_batches) {
  Alone alone{.modules = modules_of(all_stages(num_stages)), .losses = {}};
  const std::vector<std::int64_t> samples(static_cast<std::size_t>(micro_batches), 4);
  alone.losses = run_alone(codes_of(alone.modules, num_stages), inputs_of_chain(samples), {});
  return alone;
}

void compare(const Group& group, const schedule::Schedule& plan, Alone& alone,
             const ExecutorOptions& options = {}) {
  std::map<int, ChainStage> modules = modules_of(stages_of(plan, group.rank()));
  const int num_stages = plan.num_stages();
  Executor executor(program_of_chain(plan), codes_of(modules, num_stages), group, options);
  const std::vector<std::int64_t> samples(static_cast<std::size_t>(plan.micro_batches), 4);
  const StepResult result = executor.step(inputs_of_chain(samples), 0);
  for (auto& [stage, module] : modules) {
    EXPECT_EQ(difference(module, alone.modules.at(stage)), "")
        << plan.name << ", " << group.size() << " ranks, " << plan.micro_batches
        << " micro-batches, stage " << stage;
  }
  const bool has_loss = plan.rank_of(num_stages - 1) == group.rank();
  EXPECT_EQ(has_loss, result.loss.defined());
  for (std::size_t i = 0; i < result.losses.size(); ++i) {
    EXPECT_TRUE(torch::equal(result.losses[i], alone.losses[i]));
  }
}

class PipelineGrid : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, PipelineGrid, ::testing::Values(2, 3, 4));

TEST_P(PipelineGrid, EveryScheduleGivesTheBitsOfOneProcess) {
  const int ranks = GetParam();
  std::map<std::pair<int, int>, Alone> alone;  // by stages and micro-batches
  for (int micro_batches = 1; micro_batches <= 9; ++micro_batches) {
    for (const int num_stages : {ranks, 2 * ranks}) {
      alone[{num_stages, micro_batches}] = run_chain_alone(num_stages, micro_batches);
    }
  }
  run_ranks(ranks, [&](const Group& group) {
    for (const std::string_view kind : schedule::kKinds) {
      for (int micro_batches = 1; micro_batches <= 9; ++micro_batches) {
        const schedule::Schedule plan = schedule::generate(kind, ranks, micro_batches);
        Alone& expected = alone.at({plan.num_stages(), micro_batches});
        compare(group, plan, expected);
        if (ranks == 4 && micro_batches % 3 != 0) continue;  // to save time
        // Of all stages, or of every other one.
        std::vector<int> recomputed = all_stages(plan.num_stages());
        if (micro_batches % 2 == 0) std::erase_if(recomputed, [](int stage) { return stage % 2; });
        compare(group, schedule::with_recomputation(plan, recomputed), expected);
      }
    }
  });
}

TEST_P(PipelineGrid, TheWayOfMessagesChangesNoBits) {
  const int ranks = GetParam();
  Alone alone = run_chain_alone(2 * ranks, 5);
  run_ranks(ranks, [&](const Group& group) {
    const schedule::Schedule plan = schedule::generate("zb-v", ranks, 5);
    for (const std::optional<int> outstanding :
         {std::optional<int>(), std::optional(0), std::optional(1), std::optional(3)}) {
      for (const int ahead : {0, 1, 100}) {
        const MessageOptions messages{.outstanding = outstanding, .receives_ahead = ahead};
        compare(group, plan, alone, {.messages = messages});
      }
    }
  });
}

TEST(TrainingStep, OverOtherEnginesGivesTheSameBits) {
  Alone three = run_chain_alone(3, 5);
  Alone six = run_chain_alone(6, 5);
  for (const char* engine : {"gloo", "threads"}) {
    testing::engine_of_ranks = engine;
    run_ranks(3, [&](const Group& group) {
      for (const char* kind : {"1f1b", "zb-h1", "interleaved", "zb-v"}) {
        const schedule::Schedule plan = schedule::generate(kind, 3, 5);
        compare(group, plan, plan.num_stages() == 3 ? three : six);
      }
    });
  }
  testing::engine_of_ranks = "shm";
}

TEST(TrainingStep, OneRankRunsAllStages) {
  schedule::Schedule plan = schedule::generate("gpipe", 3, 4);
  plan.rank_of_stage = {0, 0, 0};
  std::vector<schedule::Action> all;
  for (const auto& actions : plan.ranks) {
    for (const schedule::Action& action : actions) {
      if (action.kind == schedule::ActionKind::kForward) all.push_back(action);
    }
  }
  for (auto actions = plan.ranks.rbegin(); actions != plan.ranks.rend(); ++actions) {
    for (const schedule::Action& action : *actions) {
      if (action.kind == schedule::ActionKind::kBackward) all.push_back(action);
    }
  }
  plan.ranks = {all};
  Alone alone = run_chain_alone(3, 4);
  compare(Group::self(), plan, alone);
}

}  // namespace
}  // namespace trireme::pipeline::test
