// SPDX-License-Identifier: Apache-2.0
// The simulated step agrees with the prediction: its time, its parts and its largest memory.
#include <trireme/predict/simulated_step.h>

#include <models/gpt.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/parallel/deferred.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace trireme::predict {
namespace {

using Row = SimulatedSpan::Row;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

SimulatedStep simulate(const Plan& plan, const TrainingOptions& options = {}) {
  models::GPT model = deferred([] {
    return models::GPT(models::GPTOptions{
        .vocabulary = 1024, .sequence = 256, .hidden = 512, .layers = 8, .heads = 8});
  });
  const auto tokens =
      torch::empty({1, 256}, torch::TensorOptions().dtype(torch::kInt64).device(torch::kMeta));
  return simulate_step(
      model, plan, cluster::read_cluster("a100-80"),
      [&] {
        return torch::cross_entropy_loss(model->forward(tokens).flatten(0, 1), tokens.flatten());
      },
      options);
}

Plan pipeline(const std::string& schedule, std::int64_t chunks = 1) {
  return {.mesh = {{"pipe", 2}, {"data", 4}},
          .schedule = schedule,
          .chunks = chunks,
          .micro_batches = 6};
}

std::vector<Plan> plans() {
  return {Plan{.mesh = {{"data", 1}}},
          Plan{.mesh = {{"data", 16}}},
          Plan{.mesh = {{"data", 16}}, .micro_batches = 3, .zero_level = 3},
          Plan{.mesh = {{"data", 16}}, .zero_level = 1},
          Plan{.mesh = {{"data", 4}}, .recompute = {"blocks.*"}},
          pipeline("1f1b"),
          pipeline("gpipe"),
          pipeline("interleaved", 2),
          pipeline("zb-h1")};
}

std::vector<std::string> names_in(const SimulatedRank& rank, Row row) {
  std::vector<std::string> names;
  for (const SimulatedSpan& span : rank.spans) {
    if (span.row == row) names.push_back(span.name);
  }
  return names;
}

TEST(SimulatedStep, EndsWhenThePredictionSays) {
  for (const Plan& plan : plans()) {
    const SimulatedStep step = simulate(plan);
    double end = 0;
    for (const SimulatedRank& rank : step.ranks) end = std::max(end, rank.end());
    EXPECT_NEAR(end, step.prediction.step_seconds, 1e-9) << plan.schedule;
  }
}

TEST(SimulatedStep, HasThePeakOfThePrediction) {
  for (const Plan& plan : plans()) {
    const SimulatedStep step = simulate(plan);
    ASSERT_EQ(step.ranks.size(), step.prediction.memory.size());
    for (std::size_t i = 0; i < step.ranks.size(); ++i) {
      const RankMemoryPrediction& expected = step.prediction.memory[i];
      const MemoryMoment& peak = step.ranks[i].peak();
      EXPECT_DOUBLE_EQ(peak.activations, expected.activations) << plan.schedule;
      EXPECT_DOUBLE_EQ(peak.temporary, expected.temporary) << plan.schedule;
      EXPECT_EQ(peak.module, expected.peak_module) << plan.schedule;
    }
  }
}

TEST(SimulatedStep, KeepsNothingAtItsEnd) {
  for (const Plan& plan : plans()) {
    for (const SimulatedRank& rank : simulate(plan).ranks) {
      EXPECT_NEAR(rank.memory.back().activations, 0, 1e-3) << plan.schedule;
      EXPECT_EQ(rank.memory.back().temporary, 0) << plan.schedule;
      EXPECT_TRUE(std::ranges::is_sorted(rank.memory, {}, &MemoryMoment::time)) << plan.schedule;
    }
  }
}

// Viewers show spans of a row wrong if they overlap without nesting.
TEST(SimulatedStep, NestsTheSpansOfARow) {
  for (const Plan& plan : plans()) {
    for (const SimulatedRank& rank : simulate(plan).ranks) {
      std::map<Row, std::vector<SimulatedSpan>> rows;
      for (const SimulatedSpan& span : rank.spans) rows[span.row].push_back(span);
      rows.erase(Row::kMessages);
      for (auto& [row, spans] : rows) {
        std::vector<double> ends;  // of the spans around the next
        double last = 0;
        for (const SimulatedSpan& span : spans) {
          constexpr double kRounding = 1e-12;
          EXPECT_GE(span.begin, last - kRounding) << plan.schedule << ' ' << span.name;
          last = span.begin;
          while (!ends.empty() && ends.back() <= span.begin + kRounding) ends.pop_back();
          if (!ends.empty()) {
            EXPECT_LE(span.end, ends.back() + kRounding) << plan.schedule << ' ' << span.name;
          }
          ends.push_back(span.end);
        }
      }
    }
  }
}

TEST(SimulatedStep, NamesPhasesModulesOperatorsAndBuckets) {
  const SimulatedStep step = simulate({.mesh = {{"data", 16}}, .zero_level = 3});
  const SimulatedRank& rank = step.ranks.front();
  EXPECT_EQ(names_in(rank, Row::kPhases),
            (std::vector<std::string>{"forward", "backward", "communication", "optimizer"}));
  EXPECT_THAT(
      names_in(rank, Row::kComputation),
      AllOf(Contains("blocks.3.mlp_input"), Contains(HasSubstr("aten::")), Contains("optimizer")));
  EXPECT_THAT(names_in(rank, Row::kCommunication),
              AllOf(Contains("gather bucket 0"), Contains("reduce bucket 0")));
}

TEST(SimulatedStep, ShowsMessagesAndRecomputation) {
  Plan plan = pipeline("1f1b");
  plan.recompute = {"blocks.*"};
  const SimulatedStep step = simulate(plan);
  ASSERT_EQ(step.ranks.size(), 2);
  EXPECT_EQ(step.ranks[1].rank, 4);
  EXPECT_THAT(names_in(step.ranks[0], Row::kMessages),
              Contains("activations of micro-batch 5 to stage 1"));
  EXPECT_THAT(names_in(step.ranks[1], Row::kMessages),
              Contains("gradients of micro-batch 0 to stage 0"));
  EXPECT_THAT(names_in(step.ranks[0], Row::kComputation), Contains(HasSubstr("(recomputed)")));
}

TEST(SimulatedStep, CombinesOperatorsOfLongSteps) {
  const auto spans = [](std::int64_t micro_batches) {
    return names_in(simulate({.mesh = {{"data", 1}}, .micro_batches = micro_batches}).ranks[0],
                    Row::kComputation);
  };
  EXPECT_THAT(spans(1), Contains(HasSubstr("aten::")));
  EXPECT_THAT(spans(300),
              AllOf(Contains("blocks.3.mlp_input"), Not(Contains(HasSubstr("aten::")))));
  EXPECT_EQ(spans(4000).size(), 2 * 4000 + 1);  // passes and the optimizer
}

TEST(SimulatedStep, IsATraceWithTheRowsOfRuns) {
  const SimulatedStep step = simulate(pipeline("1f1b"));
  const auto events = nlohmann::json::parse(to_trace(step));
  std::map<std::string, int> kinds;
  for (const auto& event : events) ++kinds[event.at("ph").get<std::string>()];
  EXPECT_GT(kinds["X"], 100);
  EXPECT_GT(kinds["C"], 100);
  EXPECT_EQ(kinds["b"], 12);  // six micro-batches, there and back
  EXPECT_EQ(kinds["e"], 12);
  EXPECT_EQ(events[0],
            nlohmann::json::parse(
                R"({"name":"process_name","ph":"M","pid":0,"tid":0,"args":{"name":"rank 0"}})"));
}

TEST(SimulatedStep, IsAPictureThatMarksThePeak) {
  const SimulatedStep step = simulate({.mesh = {{"data", 8}}});
  const std::string picture = to_svg(step);
  EXPECT_THAT(picture, AllOf(testing::StartsWith("<svg"), testing::EndsWith("</svg>\n"),
                             HasSubstr("activations"), HasSubstr("optimizer"), HasSubstr("peak "),
                             HasSubstr(" of micro-batch 0")));
}

}  // namespace
}  // namespace trireme::predict
