// SPDX-License-Identifier: Apache-2.0
// What predictions take from a record is what a TrainingStep takes from the captured graph: where
// stages begin, and what is recomputed within a limit of memory.
#include <trireme/base/error.h>
#include <trireme/graph/graph.h>
#include <trireme/parallel/record/module_record.h>
#include <trireme/parallel/training_step.h>
#include <trireme/plan/plan_schedule.h>
#include <trireme/predict/limited_activations.h>
#include <trireme/predict/stage_work.h>
#include <trireme/schedule/verifier/memory.h>

#include <gtest/gtest.h>
#include <tests/ranks/pipeline/networks.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <ostream>
#include <set>
#include <string>
#include <vector>

namespace trireme {
namespace {

using predict::RecomputedRegion;
using predict::StageWork;
using test::Network;

constexpr std::int64_t kMicroBatches = 4;
constexpr std::int64_t kRows = 4;

struct Case {
  std::string name;
  std::function<Network()> make;
  friend std::ostream& operator<<(std::ostream& out, const Case& test_case) {
    return out << test_case.name;
  }
};

Plan plan_of(int stages, const std::string& schedule) {
  Plan plan{.schedule = schedule, .micro_batches = kMicroBatches};
  plan.mesh = {{kStageAxis, stages}};
  return plan;
}

ModuleRecord record_of(const Network& network, const Plan& plan) {
  const auto batch = network.batch(kRows, 0);
  return record_module(*network.module, plan, [&] { return network.forward(batch)[0]; });
}

// Calls `check` with the step of each stage after its record was made.
void with_steps(const Case& test_case, const Plan& plan,
                const std::function<void(const TrainingStep&, int rank)>& check) {
  testing::run_ranks(stage_ranks(plan), [&](const comm::Group& group) {
    const Network network = test_case.make();
    TrainingStep step(*network.module, network.forward, plan, group);
    step.prepare(network.batch(kRows * kMicroBatches, 0));
    check(step, group.rank());
  });
}

double flops_of(const TrainingStep& step, int stage) {
  const auto first = static_cast<std::size_t>(stage);
  double flops = 0;
  for (int node = step.boundaries()[first]; node < step.boundaries()[first + 1]; ++node) {
    flops += step.graph().node(node).flops + step.graph().node(node).backward_flops;
  }
  return flops;
}

double flops_of(const ModuleRecord& record, const StageWork& stage) {
  double flops = 0;
  for (const auto* calls : {&stage.forward, &stage.backward}) {
    for (const int call : *calls) flops += record.call(call).counted_flops;
  }
  return flops;
}

std::set<std::string> parameters_of(const TrainingStep& step, int stage) {
  const auto first = static_cast<std::size_t>(stage);
  std::set<std::string> names;
  for (int node = step.boundaries()[first]; node < step.boundaries()[first + 1]; ++node) {
    for (const graph::ValueId id : step.graph().inputs_of(node)) {
      const graph::Value& memory = step.graph().value(step.graph().value(id).memory);
      if (memory.kind == graph::ValueKind::kParameter) names.insert(memory.name);
    }
  }
  return names;
}

std::set<std::string> parameters_of(const ModuleRecord& record, const StageWork& stage) {
  std::set<std::string> names;
  for (const int number : stage.parameters) {
    const ParameterRecord& parameter = record.parameters[static_cast<std::size_t>(number)];
    if (parameter.requires_grad) names.insert(parameter.name);
  }
  return names;
}

class PredictedStages : public ::testing::TestWithParam<Case> {};

TEST_P(PredictedStages, BeginWhereThoseOfAStepBegin) {
  for (const int ranks : {2, 3, 4}) {
    SCOPED_TRACE(ranks);
    const Plan plan = plan_of(ranks, "1f1b");
    const Network network = GetParam().make();
    const ModuleRecord record = record_of(network, plan);
    const std::vector<StageWork> stages = predict::divide(record, plan, ranks);
    with_steps(GetParam(), plan, [&](const TrainingStep& step, int rank) {
      const StageWork& stage = stages[static_cast<std::size_t>(rank)];
      EXPECT_EQ(parameters_of(record, stage), parameters_of(step, rank)) << "stage " << rank;
      const double run = flops_of(step, rank);
      EXPECT_NEAR(flops_of(record, stage), run, 0.01 * run) << "stage " << rank;
    });
  }
}

TEST_P(PredictedStages, BeginWhereAPlanSays) {
  for (const std::string schedule : {"1f1b", "interleaved"}) {
    SCOPED_TRACE(schedule);
    Plan plan = plan_of(2, schedule);
    const Network network = GetParam().make();
    const int stages = schedule == "1f1b" ? 2 : 4;
    if (static_cast<int>(network.modules.size()) < stages) continue;
    for (int stage = 0; stage < stages; ++stage) {
      const std::size_t module = static_cast<std::size_t>(stage) * network.modules.size() /
                                 static_cast<std::size_t>(stages);
      plan.stages.emplace_back(network.modules[module], stage);
    }
    const ModuleRecord record = record_of(network, plan);
    ASSERT_EQ(plan_schedule(plan, kMicroBatches).num_stages(), stages);
    const std::vector<StageWork> divided = predict::divide(record, plan, stages);
    with_steps(GetParam(), plan, [&](const TrainingStep& step, int rank) {
      if (rank > 0) return;
      for (int stage = 0; stage < stages; ++stage) {
        EXPECT_EQ(parameters_of(record, divided[static_cast<std::size_t>(stage)]),
                  parameters_of(step, stage))
            << "stage " << stage;
      }
    });
  }
}

// The FLOPs that backward repeats.
double repeated_flops(const ModuleRecord& record, const std::vector<StageWork>& stages) {
  double flops = 0;
  for (const StageWork& stage : stages) {
    for (const RecomputedRegion& region : stage.regions) {
      for (int call = region.first; call <= region.last_repeated; ++call) {
        flops += record.call(call).counted_flops;
      }
    }
  }
  return flops;
}

TEST_P(PredictedStages, RepeatTheFlopsOfAStepThatRecomputesByName) {
  Plan plan = plan_of(2, "1f1b");
  const Network network = GetParam().make();
  plan.recompute = {network.modules.front(), network.modules.back()};
  const ModuleRecord record = record_of(network, plan);
  const double flops = repeated_flops(record, predict::divide(record, plan, 2));
  with_steps(GetParam(), plan, [&](const TrainingStep& step, int rank) {
    if (rank > 0) return;
    EXPECT_NEAR(flops, step.recomputation().flops, 0.02 * flops + 1);
  });
}

TEST_P(PredictedStages, RecomputeWhatAStepRecomputesWithinALimit) {
  // Where a rank has several stages, both follow a part of all combinations only, and small
  // differences lead to other ones.
  for (const std::string schedule : {"1f1b", "gpipe", "zb-h1"}) {
    Plan plan = plan_of(2, schedule);
    std::int64_t most = 0;
    int num_stages = 0;
    with_steps(GetParam(), plan, [&](const TrainingStep& step, int rank) {
      if (rank > 0) return;
      num_stages = step.schedule().num_stages();
      for (const auto& peak : schedule::peak_memory(step.schedule(), step.recomputation().bytes)) {
        most = std::max(most, peak.peak_bytes);
      }
    });
    plan.activation_bytes = most * 8 / 10;
    SCOPED_TRACE(schedule);
    const Network network = GetParam().make();
    const ModuleRecord record = record_of(network, plan);
    std::vector<StageWork> stages = predict::divide(record, plan, num_stages);
    double run = 0;
    try {
      with_steps(GetParam(), plan, [&](const TrainingStep& step, int rank) {
        if (rank == 0) run = step.recomputation().flops;
      });
    } catch (const UsageError&) {
      // The rest cannot be recomputed: a prediction says so too.
      EXPECT_THROW(predict::limit_activations(record, plan_schedule(plan, kMicroBatches),
                                              plan.activation_bytes, stages),
                   UsageError);
      continue;
    }
    EXPECT_NO_THROW(predict::limit_activations(record, plan_schedule(plan, kMicroBatches),
                                               plan.activation_bytes, stages));
    // A record counts the statistics of a norm as part of its result, and no copies of buffers, so
    // that choices may differ a little.
    EXPECT_GT(run, 0);
    EXPECT_NEAR(repeated_flops(record, stages), run, 0.3 * run);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Networks, PredictedStages,
    ::testing::Values(Case{"ResidualNet", test::residual_net},
                      Case{"LanguageModel", [] { return test::language_model(0); }},
                      Case{"TiedEmbedding", [] { return test::language_model(0, true); }},
                      Case{"SkippingNet", test::skipping_net}),
    [](const auto& param_info) { return param_info.param.name; });

}  // namespace
}  // namespace trireme
