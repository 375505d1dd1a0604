// SPDX-License-Identifier: Apache-2.0
// What a search returns and says.
#include "tests/unit/search/small_training.h"
#include <models/mixture.h>
#include <models/resnet.h>
#include <trireme/base/config/configuration.h>
#include <trireme/base/error.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/plan/plan_config.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>

namespace trireme::search {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

SearchResult search_for(std::int64_t ranks, std::int64_t rows, const Constraints& constraints = {},
                        PlanEntry entry = PlanEntry::kTrainingStep) {
  SmallGpt gpt;
  Training training = gpt.training(rows);
  training.entry = entry;
  return find_plan(training, ranks, cluster::read_cluster("a100-80"), constraints);
}

TEST(Search, ReturnsAPlanThatCanBePredicted) {
  SmallGpt gpt;
  const SearchResult result = search_for(8, 16);
  const Candidate& fastest = result.fastest();
  const auto tokens = torch::empty(
      {fastest.rows, 32}, torch::TensorOptions().dtype(torch::kInt64).device(torch::kMeta));
  const auto prediction =
      predict::predict(gpt.model, fastest.plan, cluster::read_cluster("a100-80"), [&] {
        return torch::cross_entropy_loss(gpt.model->forward(tokens).flatten(0, 1),
                                         tokens.flatten());
      });
  EXPECT_NEAR(prediction.step_seconds, fastest.prediction.step_seconds,
              1e-9 * prediction.step_seconds);
  EXPECT_EQ(prediction.peak_memory(), fastest.prediction.peak_memory());
}

// A GPT whose second block has a mixture of eight experts.
Training mixture_training(std::int64_t rows) {
  auto model = deferred([] {
    return models::MixtureGPT(models::MixtureOptions{
        .gpt = {.vocabulary = 128, .sequence = 32, .hidden = 64, .layers = 2, .heads = 4},
        .experts = 8});
  });
  const auto meta = torch::TensorOptions().dtype(torch::kInt64).device(torch::kMeta);
  return {.module = model,
          .forward = [model](const std::vector<at::Tensor>& in) mutable -> std::vector<at::Tensor> {
            const auto [logits, balance_loss] = model->forward(in[0]);
            return {torch::cross_entropy_loss(logits.transpose(1, 2), in[0]) + 0.01 * balance_loss};
          },
          .inputs = {torch::empty({1, 32}, meta)},
          .rows = rows};
}

TEST(Search, DividesExpertsOverRanks) {
  const auto best_with = [](const std::string& constraint) {
    Constraints constraints;
    for (const std::string& text : {std::string("pipe=1"), std::string("tensor=1"), constraint}) {
      add_constraint(constraints, text);
    }
    const SearchResult result =
        find_plan(mixture_training(16), 8, cluster::read_cluster("a100-80"), constraints);
    return result.fastest();
  };
  const Candidate divided = best_with("expert=4");
  EXPECT_EQ(divided.plan.mesh, (std::vector<MeshAxis>{{"data", 2}, {"expert", 4}}));
  EXPECT_THAT(to_string(divided.plan.layouts), HasSubstr("Shard(0) on expert"));
  EXPECT_NO_THROW(check_plan(divided.plan, {.ranks = 8}));
  const Candidate whole = best_with("expert=1");
  EXPECT_EQ(whole.plan.mesh, (std::vector<MeshAxis>{{"data", 8}}));
  EXPECT_TRUE(whole.plan.layouts.empty());
}

TEST(Search, RefusesAxesThatAModelHasNoUseFor) {
  Constraints experts;
  add_constraint(experts, "expert=2");
  try {
    search_for(8, 16, experts);
    FAIL() << "no error";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("finds no experts in the model"));
  }
}

TEST(Search, GivesTheSamePlanAgain) {
  const SearchResult first = search_for(8, 32);
  const SearchResult second = search_for(8, 32);
  ASSERT_EQ(first.best.size(), second.best.size());
  for (std::size_t i = 0; i < first.best.size(); ++i) {
    EXPECT_EQ(first.best[i].plan, second.best[i].plan);
  }
}

TEST(Search, PlansReadBackFromToml) {
  const SearchResult result = search_for(8, 32);
  for (const Candidate& candidate : result.best) {
    PlanSettings written = {.plan = candidate.plan};
    const std::string file = testing::TempDir() + "/trireme_plan.toml";
    config::Configuration(written).save(file);
    PlanSettings read;
    config::Configuration(read).read_file(file);
    EXPECT_EQ(read.plan, candidate.plan);
  }
}

TEST(Search, KeepsRowsOfAStep) {
  for (const Candidate& candidate : search_for(8, 48).best) {
    std::int64_t data = 1;
    for (const MeshAxis& axis : candidate.plan.mesh) {
      if (axis.name == kDataAxis) data = axis.size;
    }
    EXPECT_EQ(data * candidate.plan.micro_batches * candidate.rows, 48);
  }
}

TEST(Search, OfALoopHasNoStages) {
  for (const Candidate& candidate : search_for(8, 16, {}, PlanEntry::kParallelize).best) {
    EXPECT_FALSE(needs_training_step(candidate.plan)) << to_string(candidate.plan);
  }
}

TEST(Search, ObeysConstraints) {
  Constraints constraints;
  add_constraint(constraints, "pipe=2");
  add_constraint(constraints, "data=4");
  add_constraint(constraints, "zero_level=1");
  add_constraint(constraints, "schedule=zb-h1");
  for (const Candidate& candidate : search_for(8, 32, constraints).best) {
    EXPECT_EQ(stage_ranks(candidate.plan), 2);
    EXPECT_EQ(candidate.plan.zero_level, 1);
    EXPECT_EQ(candidate.plan.schedule, "zb-h1");
  }
}

std::string refusal(const Constraints& constraints, std::int64_t ranks = 8,
                    std::int64_t rows = 16) {
  try {
    search_for(ranks, rows, constraints);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Search, SaysWhyNoPlanIsLeft) {
  Constraints constraints;
  add_constraint(constraints, "tensor=4");
  add_constraint(constraints, "pipe=4");
  EXPECT_THAT(refusal(constraints), AllOf(HasSubstr("8 ranks"), HasSubstr("tensor=4")));
  Constraints rows;
  add_constraint(rows, "rows=5");
  EXPECT_THAT(refusal(rows), HasSubstr("rows=5"));
  EXPECT_THAT(refusal({}, 0), HasSubstr("0 ranks"));
  EXPECT_THAT(refusal({}, 8, 0), HasSubstr("0 rows"));
}

TEST(Search, SaysWhatIsMissingIfNothingFits) {
  Constraints constraints;
  constraints.memory_gib = 0.0001;
  const SearchResult result = search_for(4, 8, constraints);
  EXPECT_THAT(to_string(result),
              AllOf(HasSubstr("NO PLAN FITS"), HasSubstr("too much"), HasSubstr("optimizer")));
  EXPECT_THROW(result.fastest(), UsageError);
  EXPECT_EQ(result.gap(), 0);
}

TEST(Search, SaysIfOneDeviceIsFaster) {
  // Two ranks of a host with slow links and tiny work do not pay.
  SmallGpt gpt(1, 16);
  cluster::Cluster cluster = cluster::read_cluster("cpu");
  for (cluster::Links& links : cluster.links) {
    links.latency_us = 1e6;
    links.gb_per_s = 0.001;
  }
  const SearchResult result = find_plan(gpt.training(2), 2, cluster);
  EXPECT_THAT(to_string(result), HasSubstr("PARALLEL TRAINING DOES NOT PAY"));
}

TEST(Search, ExplainsTheAlternative) {
  const SearchResult chosen = search_for(8, 32);
  Constraints constraints;
  add_constraint(constraints, "pipe=4");
  const SearchResult other = search_for(8, 32, constraints);
  EXPECT_THAT(compare(chosen, other, "pipe=4"),
              AllOf(HasSubstr("why not pipe=4"), HasSubstr("times as long"), HasSubstr("compute"),
                    HasSubstr("pipeline"), HasSubstr("memory")));
  EXPECT_THAT(compare(chosen, chosen, "data=8"), HasSubstr("the chosen plan is such a plan"));
  constraints.memory_gib = 0.0001;
  EXPECT_THAT(compare(chosen, search_for(8, 32, constraints), "pipe=4"),
              HasSubstr("no such plan fits"));
}

TEST(Search, RecomputesNoMoreThanMemoryNeeds) {
  // Between the memory of a plan without recomputation and of one with all of it.
  SmallGpt gpt(8);
  const Training training = gpt.training(64);
  const auto cluster = cluster::read_cluster("a100-80");
  Constraints constraints;
  add_constraint(constraints, "data=1");
  add_constraint(constraints, "micro_batches=1");
  const auto memory = [&](const char* recompute) {
    Constraints one = constraints;
    add_constraint(one, recompute);
    return find_plan(training, 1, cluster, one).fastest().prediction.peak_memory();
  };
  constraints.memory_gib =
      (memory("recompute=none") + memory("recompute=repeated")) / 2 / (1LL << 30);
  const SearchResult result = find_plan(training, 1, cluster, constraints);
  const std::int64_t recomputed = result.fastest().recomputed;
  EXPECT_GT(recomputed, 0);
  EXPECT_LT(recomputed, 8);
  EXPECT_EQ(static_cast<std::int64_t>(result.fastest().plan.recompute.size()), recomputed);
}

TEST(Search, SaysThatPlansWereLeft) {
  SmallGpt gpt;
  const SearchResult result =
      find_plan(gpt.training(64), 8, cluster::read_cluster("a100-80"), {}, {.patience = 0});
  EXPECT_EQ(result.left, result.considered);
  EXPECT_EQ(result.predicted, 0);
  EXPECT_FALSE(result.is_complete);
  EXPECT_THAT(to_string(result), AllOf(HasSubstr("search longer"), Not(HasSubstr("NO PLAN"))));
}

TEST(Search, TakesAModuleWithParametersOfItsOwn) {
  torch::nn::Linear layer(8, 8);
  const Training training = {
      .module = layer,
      .forward = [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
        return {layer->forward(in[0]).sum()};
      },
      .inputs = {torch::zeros({4, 8})},
      .rows = 16};
  const SearchResult result = find_plan(training, 2, cluster::read_cluster("cpu"));
  EXPECT_FALSE(result.best.empty());
}

// Views of shards in this memory format would need communication.
TEST(Search, LeavesOutSizesOfTensorWhoseOperatorsCannotBeSharded) {
  models::ResNet net(models::ResNetOptions{
      .stem = models::Stem::kSmall, .blocks = {1, 1}, .width = 8, .classes = 4});
  for (at::Tensor& parameter : net->parameters()) {
    if (parameter.dim() != 4) continue;
    parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
  }
  const Training training = {
      .module = net,
      .forward = [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
        return {torch::cross_entropy_loss(net->forward(in[0]), in[1])};
      },
      .inputs = {torch::zeros({4, 3, 8, 8}), torch::zeros({4}, torch::kLong)},
      .rows = 32};
  const auto cluster = cluster::read_cluster("cpu");
  const SearchResult result = find_plan(training, 2, cluster);
  EXPECT_FALSE(result.best.empty());
  EXPECT_THAT(result.without_tensor, HasSubstr("tensor=2: operator aten::"));
  EXPECT_THAT(to_string(result), HasSubstr("left out tensor=2: operator aten::"));
  Constraints constraints;
  constraints.axes["tensor"] = {.least = 2, .most = 2};
  try {
    (void)find_plan(training, 2, cluster, constraints);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("tensor=2: operator aten::"));
  }
}

TEST(Search, RefusesMoreMemoryThanADeviceHas) {
  SmallGpt gpt(2);
  Constraints constraints;
  constraints.memory_gib = 200;
  try {
    (void)find_plan(gpt.training(8), 2, cluster::read_cluster("a100-80"), constraints);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("memory_gib=200 is more than the 80 GiB of a device"));
  }
}

TEST(Search, RefusesAForwardWithoutLoss) {
  SmallGpt gpt;
  Training training = gpt.training(4);
  training.forward = [](const std::vector<at::Tensor>&) { return std::vector<at::Tensor>(); };
  EXPECT_THROW(find_plan(training, 2, cluster::read_cluster("a100-80")), UsageError);
  training.forward = nullptr;
  EXPECT_THROW(find_plan(training, 2, cluster::read_cluster("a100-80")), UsageError);
}

TEST(Search, ComparesWithTheBestOfOneDevice) {
  // Only three micro-batches fit on one device.
  SmallGpt gpt;
  const auto cluster = cluster::read_cluster("a100-80");
  Constraints constraints;
  constraints.memory_gib = 0.01;
  const SearchResult one = find_plan(gpt.training(81), 1, cluster, constraints);
  ASSERT_FALSE(one.best.empty());
  const SearchResult three = find_plan(gpt.training(81), 3, cluster, constraints);
  ASSERT_TRUE(three.one_device);
  EXPECT_TRUE(three.one_device->fits);
  EXPECT_NEAR(three.one_device->prediction.step_seconds, one.fastest().prediction.step_seconds,
              0.01 * one.fastest().prediction.step_seconds);
}

TEST(Search, LimitsMicroBatches) {
  for (const Candidate& candidate : search_for(1, 1LL << 40).best) {
    EXPECT_LE(candidate.plan.micro_batches, 1 << 20);
  }
}

TEST(Search, WritesJson) {
  const SearchResult result = search_for(4, 8);
  const auto json = nlohmann::json::parse(to_json(result));
  EXPECT_EQ(json["best"].size(), result.best.size());
  EXPECT_EQ(json["best"][0]["prediction"]["ranks"], 4);
  EXPECT_THAT(json["best"][0]["plan_toml"].get<std::string>(), HasSubstr("mesh"));
  EXPECT_GT(json["considered"], 10);
  EXPECT_THAT(to_string(result), AllOf(HasSubstr("the best plans"), Not(HasSubstr("NO PLAN"))));
}

}  // namespace
}  // namespace trireme::search
