// SPDX-License-Identifier: Apache-2.0
// What a step says of itself, and what stays the same from step to step.
#include <trireme/parallel/pipeline/executor.h>
#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/passes.h>
#include <trireme/schedule/pictures/schedule_picture.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/pipeline/chain.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

namespace trireme::pipeline::test {
namespace {

using comm::Group;
using testing::run_ranks;

constexpr int kMicroBatches = 6;

// Steps once for gradients to have their memory, and then with a report.
StepReport report_of(const schedule::Schedule& plan, const Group& group) {
  std::map<int, ChainStage> modules = modules_of(stages_of(plan, group.rank()));
  Executor executor(program_of_chain(plan), codes_of(modules, plan.num_stages()), group);
  const std::vector<std::int64_t> samples(static_cast<std::size_t>(plan.micro_batches), 4);
  executor.step(inputs_of_chain(samples), 0);
  StepResult result = executor.step(inputs_of_chain(samples), 1, {.report = true});
  EXPECT_FALSE(executor.step(inputs_of_chain(samples), 2).report.has_value());

  const std::vector<schedule::RankMemory> predicted =
      schedule::peak_memory(executor.schedule(), result.report->stage_bytes);
  for (std::size_t rank = 0; rank < predicted.size(); ++rank) {
    EXPECT_EQ(result.report->peak_bytes[rank], predicted[rank].peak_bytes)
        << plan.name << ", rank " << rank;
    EXPECT_EQ(result.report->timeline.ranks[rank].size(), executor.schedule().ranks[rank].size());
  }
  return *result.report;
}

TEST(PipelineReport, KeepsTheBytesThatTheVerifierPredicts) {
  run_ranks(2, [](const Group& group) {
    std::vector<std::int64_t> peaks;
    for (const char* kind : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}) {
      const schedule::Schedule plan = schedule::generate(kind, 2, kMicroBatches);
      peaks.push_back(report_of(plan, group).peak_bytes[0]);
    }
    EXPECT_GT(peaks[0], 2 * peaks[1]);  // all micro-batches, and as many as ranks
  });
}

TEST(PipelineReport, RecomputedStagesKeepTheirInputsAlone) {
  run_ranks(2, [](const Group& group) {
    const std::vector<int> stages = {0, 1};
    const schedule::Schedule plan = schedule::generate("gpipe", 2, kMicroBatches);
    const StepReport kept = report_of(plan, group);
    const StepReport recomputed = report_of(schedule::with_recomputation(plan, stages), group);
    EXPECT_EQ(recomputed.stage_bytes[0].stage_inputs, 0);  // the step has them
    EXPECT_LT(recomputed.peak_bytes[0], kept.peak_bytes[0] / 2);
    EXPECT_LT(recomputed.peak_bytes[1], kept.peak_bytes[1]);
    EXPECT_GT(recomputed.stage_bytes[1].stage_inputs, 0);
  });
}

TEST(PipelineReport, HasEveryActionOfEveryRankInTime) {
  run_ranks(3, [](const Group& group) {
    const StepReport report = report_of(schedule::generate("zb-h1", 3, kMicroBatches), group);
    double end = 0;
    for (const std::vector<schedule::Span>& spans : report.timeline.ranks) {
      double last = 0;
      for (const schedule::Span& span : spans) {
        EXPECT_LE(last, span.begin);
        EXPECT_LE(span.begin, span.end);
        last = span.end;
      }
      end = std::max(end, last);
    }
    EXPECT_GT(report.timeline.compute_time, 0);
    EXPECT_LE(report.timeline.longest_rank_time, report.timeline.step_time);
    EXPECT_LE(report.timeline.step_time, end);
    EXPECT_THAT(schedule::to_trace(report.timeline),
                ::testing::HasSubstr(R"("name":"weight backward","ph":"X")"));
  });
}

TEST(PipelineSteps, UseTheSameBuffersAgain) {
  run_ranks(3, [](const Group& group) {
    for (const char* kind : {"1f1b", "interleaved", "zb-h2", "zb-v"}) {
      const schedule::Schedule plan = schedule::generate(kind, 3, kMicroBatches);
      std::map<int, ChainStage> modules = modules_of(stages_of(plan, group.rank()));
      Executor executor(program_of_chain(plan), codes_of(modules, plan.num_stages()), group);
      const std::vector<std::int64_t> samples(kMicroBatches, 4);
      executor.step(inputs_of_chain(samples), 0);
      executor.step(inputs_of_chain(samples), 1);
      const std::size_t buffers = executor.num_buffers();
      for (int step = 2; step < 5; ++step) {
        for (auto& [stage, module] : modules) module->zero_grad();
        executor.step(inputs_of_chain(samples), step);
        EXPECT_EQ(executor.num_buffers(), buffers) << kind;
      }
    }
  });
}

TEST(PipelineSteps, GiveTheLossToAllWhereAsked) {
  run_ranks(2, [](const Group& group) {
    std::map<int, ChainStage> modules = modules_of({group.rank()});
    Executor executor(program_of_chain(schedule::generate("1f1b", 2, 2)), codes_of(modules, 2),
                      group);
    const StepResult alone = executor.step(inputs_of_chain({4, 4}), 0);
    const StepResult shared = executor.step(inputs_of_chain({4, 4}), 0, {.share_loss = true});
    EXPECT_EQ(alone.loss.defined(), group.rank() == 1);
    EXPECT_EQ(alone.losses.size(), group.rank() == 1 ? 2U : 0U);
    ASSERT_TRUE(shared.loss.defined());
    EXPECT_GT(shared.loss.item<float>(), 0);
    if (group.rank() == 1) {
      EXPECT_TRUE(torch::equal(shared.loss, alone.loss));
    }
  });
}

TEST(PipelineSteps, RecomputationRepeatsNoWriteToABuffer) {
  run_ranks(2, [](const Group& group) {
    const schedule::Schedule plan =
        schedule::with_recomputation(schedule::generate("gpipe", 2, 3), std::vector<int>{0, 1});
    std::map<int, ChainStage> modules = modules_of({group.rank()});
    const at::Tensor calls = torch::zeros({}, torch::kLong);
    const at::Tensor repeated = torch::zeros({}, torch::kLong);
    std::vector<StageCode> codes = codes_of(modules, 2);
    codes[0].buffers.push_back(calls);
    codes[0].forward = [=, forward = codes[0].forward](c10::ArrayRef<at::Tensor> inputs,
                                                       const MicroBatch& micro_batch) mutable {
      calls.add_(1);
      if (micro_batch.is_recomputation) repeated.add_(1);
      EXPECT_EQ(micro_batch.step, 5);
      return forward(inputs, micro_batch);
    };
    Executor(program_of_chain(plan), codes, group).step(inputs_of_chain({4, 4, 4}), 5);
    EXPECT_EQ(calls.item<std::int64_t>(), 3);
    EXPECT_EQ(repeated.item<std::int64_t>(), 3);
  });
}

}  // namespace
}  // namespace trireme::pipeline::test
