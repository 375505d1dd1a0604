// SPDX-License-Identifier: Apache-2.0
// Mixtures without a capacity whose experts are divided over ranks: losses, gradients, counts and
// trained parameters are those of one process, however unequally tokens choose experts.
#include <models/mixture.h>
#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/data/data_loader.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/parallel/training_step.h>
#include <trireme/plan/expert_layouts.h>
#include <trireme/plan/transformer_layouts.h>
#include <trireme/tensor/distributed_tensor.h>
#include <trireme/tensor/run_experts.h>
#include <trireme/train/count_monitor.h>
#include <trireme/train/lambda_callback.h>
#include <trireme/train/model.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/close_tensors.h>
#include <tests/ranks/tensor/mixture_training.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace trireme {
namespace {

using ::testing::AllOf;
using testing::expect_close;
using ::testing::HasSubstr;
using testing::message_of;
using testing::run_ranks;
using testing::run_ranks_catching;

// Of double precision: sums over rows and experts are made in another order.
constexpr double kBound = 1e-11;
constexpr std::int64_t kTokens = 11;
constexpr std::int64_t kVocabulary = 23;

struct Case {
  std::int64_t rows = 8;
  std::int64_t experts = 4;
  std::int64_t per_token = 2;
  bool is_crowded = false;  // all tokens choose the same experts, the first ones
};

std::string name_of(const Case& one) {
  return join_message(one.rows, " rows, ", one.experts, " experts, ", one.per_token, " per token",
                      one.is_crowded ? ", crowded" : "");
}

std::mutex seeding;  // ranks are threads and share the generator

models::MixtureGPT dropless(const Case& one) {
  const std::scoped_lock lock(seeding);
  torch::manual_seed(7);
  models::MixtureGPT model(models::MixtureOptions{
      .gpt = {.vocabulary = kVocabulary, .sequence = 16, .hidden = 16, .layers = 2, .heads = 4},
      .experts = one.experts,
      .experts_per_token = one.per_token,
      .is_dropless = true,
      .run_experts = run_experts,
      .counts_tokens = true});
  model->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) parameter.mul_(8);  // so that experts differ
  for (auto& buffer : model->buffers()) buffer.set_data(buffer.to(torch::kInt64));
  if (one.is_crowded) {
    // Of the features only the bias of the norm is left, whose sum is the score of an expert.
    const auto parameters = model->named_parameters();
    parameters["blocks.1.norm2.weight"].fill_(1e-3);
    parameters["blocks.1.norm2.bias"].fill_(1);
    auto router = parameters["blocks.1.mixture.router.weight"];
    for (std::int64_t expert = 0; expert < one.experts; ++expert) {
      router[expert].fill_(-static_cast<double>(expert) / 4);
    }
  }
  return model;
}

torch::Tensor tokens_of(std::int64_t first, std::int64_t rows, std::int64_t step = 5) {
  const auto all = torch::arange(first * kTokens, (first + rows) * kTokens) * step;
  return (all + all / kTokens * 3).remainder(kVocabulary).to(torch::kLong).reshape({rows, kTokens});
}

torch::Tensor loss_of(models::MixtureGPT& model, std::int64_t first, std::int64_t rows) {
  const auto [logits, balance_loss] = model->forward(tokens_of(first, rows));
  return torch::cross_entropy_loss(logits.transpose(1, 2), tokens_of(first, rows, 3)) +
         0.01 * balance_loss;
}

Plan plan_for(const models::MixtureGPT& model, std::vector<MeshAxis> mesh) {
  Plan plan = test::plan_of_mixture(model, std::move(mesh));
  plan.broadcast_buffers = false;  // each rank counts the tokens of its own rows
  return plan;
}

// One backward of the plan equals one of a single process on the rows of all ranks.
void expect_same(const Case& one, std::vector<MeshAxis> mesh, const comm::Group& group) {
  auto plain = dropless(one);
  auto cut = dropless(one);
  comm::barrier(group);  // parallelize sets the generator of all threads
  const torch::Tensor expected = loss_of(plain, 0, one.rows);
  expected.backward();
  Parallelized parallelized = parallelize(*cut, plan_for(cut, std::move(mesh)), group);
  const comm::Group& data = parallelized.data_group();
  const std::int64_t rows = one.rows / data.size();
  const auto loss = loss_of(cut, data.rank() * rows, rows);
  loss.backward();
  const std::string name = join_message(name_of(one), " on ", group.size());
  const torch::Tensor mean = full(loss.detach()).clone();
  comm::all_reduce(mean, data);
  expect_close(mean / data.size(), expected.detach(), kBound, name);
  const auto parameters = cut->named_parameters();
  for (const auto& item : plain->named_parameters()) {
    const auto& gradient = parameters[item.key()].grad();
    ASSERT_TRUE(gradient.defined()) << name << ": " << item.key();
    // Gradients of the biases of keys are zero, but for rounding.
    const double bound = 1e-13 + kBound * testing::largest(item.value().grad());
    EXPECT_LE(testing::largest(full(gradient) - item.value().grad()), bound)
        << name << ": " << item.key();
  }
  torch::Tensor taken = full(cut->named_buffers()["blocks.1.mixture.tokens_taken"]).clone();
  comm::all_reduce(taken, data);
  const auto expected_taken = plain->named_buffers()["blocks.1.mixture.tokens_taken"];
  EXPECT_TRUE(taken.equal(expected_taken)) << name;
  EXPECT_EQ(taken.sum().item<std::int64_t>(), one.rows * kTokens * one.per_token) << name;
  if (one.is_crowded) {
    EXPECT_EQ(taken[0].item<std::int64_t>(), one.rows * kTokens) << name;
    EXPECT_EQ(taken[one.per_token].item<std::int64_t>(), 0) << name;
  }
}

TEST(DroplessExperts, TrainLikeOneProcess) {
  for (const int ranks : {2, 4}) {
    run_ranks(ranks, [ranks](const comm::Group& group) {
      for (const std::int64_t per_token : {1, 2}) {
        expect_same({.per_token = per_token}, {{"expert", ranks}}, group);
        // All tokens go to one rank, and the experts of others have none.
        expect_same({.per_token = per_token, .is_crowded = true}, {{"expert", ranks}}, group);
      }
    });
  }
}

// Ranks divide neither the rows nor the experts, or there are fewer of them than ranks.
TEST(DroplessExperts, RanksNeedNotDivideRowsAndExperts) {
  run_ranks(3, [](const comm::Group& group) {
    for (const std::int64_t rows : {2, 7}) {
      for (const std::int64_t experts : {2, 4}) {
        expect_same({.rows = rows, .experts = experts}, {{"expert", 3}}, group);
      }
    }
  });
}

TEST(DroplessExperts, WithOtherAxes) {
  const std::vector<std::vector<MeshAxis>> meshes = {{{"data", 2}, {"expert", 2}},
                                                     {{"expert", 2}, {"tensor", 2}},
                                                     {{"expert", 2}, {"context", 2}}};
  for (const auto& mesh : meshes) {
    run_ranks(4, [&](const comm::Group& group) {
      expect_same({}, mesh, group);
      expect_same({.rows = 6, .experts = 3, .is_crowded = true}, mesh, group);
    });
  }
}

TEST(DroplessExperts, TrainsWithDataParallelismAndZero) {
  const test::MixtureTraining training = {
      .make = [] { return dropless({}); },
      .loss_of = [](models::MixtureGPT& model, std::int64_t begin,
                    std::int64_t rows) { return loss_of(model, begin, rows); },
      .rows = 8};
  run_ranks(4, [&](const comm::Group& group) {
    test::expect_same_training_at_every_zero_level(training, group);
  });
}

struct Outcome {
  History history;
  double evaluation = 0;
  std::vector<Scalars> counts;
};

Outcome trained_by_model(std::vector<MeshAxis> mesh, const comm::Group& group,
                         std::int64_t rows_of_rank) {
  auto network = dropless({});
  Plan plan;
  if (!mesh.empty()) plan = plan_for(network, std::move(mesh));
  plan.broadcast_buffers = false;
  torch::optim::AdamW optimizer(network->parameters(), 1e-3);
  const auto data = data::DataLoader(data::tensors({{"input", tokens_of(0, 16)},
                                                    {"target", tokens_of(0, 16, 3)}}))
                        .batch(rows_of_rank);
  const auto loss = [&](const data::Batch& batch) {
    const auto [logits, balance_loss] = network->forward(batch["input"]);
    return torch::cross_entropy_loss(logits.transpose(1, 2), batch["target"]) + 0.01 * balance_loss;
  };
  Model model(loss, network.ptr(), optimizer, {.group = group, .plan = plan, .clip_norm = 1.0});
  Outcome outcome;
  CountMonitor monitor({.buffers = {"*.tokens_taken", "*.tokens_dropped"}});
  LambdaCallback read({.step_end = [&](const StepEndContext& step) {
    outcome.counts.push_back(*step.run.scalars);
  }});
  outcome.history = model.train(2, data, {monitor, read});
  outcome.evaluation = model.evaluate(data).loss;
  return outcome;
}

TEST(DroplessExperts, ModelTrainsAndCountsAsOneProcess) {
  Outcome expected;
  run_ranks(1, [&](const comm::Group& group) { expected = trained_by_model({}, group, 8); });
  ASSERT_EQ(expected.counts.size(), 4);
  run_ranks(4, [&](const comm::Group& group) {
    const Outcome outcome = trained_by_model({{"data", 2}, {"expert", 2}}, group, 4);
    ASSERT_EQ(outcome.history.epochs.size(), 2);
    // Ranks exchange losses in single precision.
    EXPECT_NEAR(outcome.history.epochs[1].loss, expected.history.epochs[1].loss, 1e-6);
    EXPECT_NEAR(outcome.evaluation, expected.evaluation, 1e-8);
    EXPECT_EQ(outcome.counts, expected.counts);
  });
}

// Without an axis for experts every rank has all of them.
TEST(DroplessExperts, MayBeWholeOnAMesh) {
  run_ranks(2, [](const comm::Group& group) {
    auto plain = dropless({});
    auto cut = dropless({});
    comm::barrier(group);
    loss_of(plain, 0, 4).backward();
    Plan plan = {.mesh = {{"tensor", 2}}, .layouts = transformer_layouts(*cut)};
    plan.broadcast_buffers = false;
    const Parallelized parallelized = parallelize(*cut, plan, group);
    loss_of(cut, 0, 4).backward();
    for (const auto& item : plain->named_parameters()) {
      const double bound = 1e-13 + kBound * testing::largest(item.value().grad());
      const auto& gradient = cut->named_parameters()[item.key()].grad();
      EXPECT_LE(testing::largest(full(gradient) - item.value().grad()), bound) << item.key();
    }
  });
}

// A sum of a token's features, times the only parameter of its expert.
torch::Tensor scaled(const torch::Tensor& tokens, const std::vector<std::int64_t>& counts,
                     const std::vector<torch::Tensor>& parameters) {
  std::vector<torch::Tensor> results;
  const auto pieces = tokens.split_with_sizes(counts);
  for (std::size_t expert = 0; expert < counts.size(); ++expert) {
    results.push_back(pieces[expert].sum(1, /*keepdim=*/true) *
                      parameters[0][static_cast<std::int64_t>(expert)]);
  }
  return torch::cat(results);
}

TEST(RunExperts, GivesEachTokenTheResultsOfItsExperts) {
  const auto features = torch::tensor({{{1.0, 2.0}, {3.0, 4.0}}, {{5.0, 6.0}, {7.0, 8.0}}});
  const auto chosen = torch::tensor({{{2, 0}, {1, 1}}, {{0, 2}, {2, 1}}}, torch::kLong);
  const auto factors = torch::tensor({1.0, 10.0, 100.0});
  const auto expected =
      torch::tensor({{{300.0, 3.0}, {70.0, 70.0}}, {{11.0, 1100.0}, {1500.0, 150.0}}});
  EXPECT_TRUE(run_experts(features, chosen, {factors}, scaled).squeeze(-1).equal(expected));
  run_ranks(2, [&](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"expert", 2}});
    const auto cut = distribute(factors, Layout(mesh, {{"expert", Shard{0}}}));
    const auto result = run_experts(features, chosen, {cut}, scaled);
    EXPECT_TRUE(layout_of(result)["expert"].is_shard(0));
    EXPECT_TRUE(full(result).squeeze(-1).equal(expected));
  });
}

TEST(RunExperts, RefusesWhatDoesNotFit) {
  const auto features = torch::ones({2, 3, 4});
  const auto chosen = torch::zeros({2, 3, 1}, torch::kLong);
  const auto factors = torch::ones({3});
  const auto refused = [](const auto&... arguments) {
    return test::usage_error([&] { static_cast<void>(run_experts(arguments..., scaled)); });
  };
  using Tensors = std::vector<torch::Tensor>;
  EXPECT_THAT(refused(features, torch::zeros({2, 4, 1}, torch::kLong), Tensors{factors}),
              AllOf(HasSubstr("features [2, 3, 4] and chosen experts [2, 4, 1] of Long"),
                    HasSubstr("int64 [rows, …, experts of a token]")));
  EXPECT_THAT(refused(features, torch::zeros({2, 3, 1}), Tensors{factors}), HasSubstr("of Float"));
  EXPECT_THAT(refused(features, chosen, Tensors{}), HasSubstr("no parameters"));
  EXPECT_THAT(refused(features, chosen, Tensors{factors, torch::ones({2})}),
              HasSubstr("parameters of experts that do not fit"));
  EXPECT_THAT(refused(features, chosen + 3, Tensors{factors}),
              HasSubstr("the chosen expert 3 of 3 experts"));
  EXPECT_THAT(refused(features, chosen - 1, Tensors{factors}),
              HasSubstr("the chosen expert -1 of 3 experts"));
  EXPECT_THAT(refused(features, chosen.to(torch::kMeta), Tensors{factors}),
              HasSubstr("without values"));
  EXPECT_THAT(test::usage_error([&] {
                static_cast<void>(run_experts(
                    features, chosen, {factors},
                    [](const auto& tokens, const auto&, const auto&) { return tokens.sum(1); }));
              }),
              HasSubstr("made [6] of tokens [6, 4]"));
  run_ranks(2, [&](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"expert", 2}});
    const Layout by_rows(mesh, {{"expert", Shard{0}}});
    const auto cut = distribute(factors, by_rows);
    const auto whole = distribute(factors, Layout::replicated(mesh));
    EXPECT_THAT(refused(features, chosen, Tensors{cut, whole}),
                AllOf(HasSubstr("distributed differently"), HasSubstr("expert_layouts()")));
    EXPECT_THAT(refused(distribute(features, by_rows), chosen, Tensors{factors}),
                HasSubstr("plain parameters of experts beside features"));
    // The rows of one rank have an expert that there is not: all ranks say so, and none waits.
    auto wrong = chosen.clone();
    wrong[1][2][0] = 7;
    EXPECT_THAT(refused(features, wrong, Tensors{cut}),
                HasSubstr("the chosen expert 7 of 3 experts"));
  });
}

TEST(RunExperts, SaysWhatARecordedStepLacks) {
  const auto thrown = run_ranks_catching(2, [](const comm::Group& group) {
    auto model = dropless({});
    TrainingStep step(
        *model,
        [&](const std::vector<at::Tensor>& in) {
          return std::vector<at::Tensor>{model->forward(in[0]).output.sum()};
        },
        plan_for(model, {{"expert", 2}}), group);
    static_cast<void>(step.step({tokens_of(0, 8)}));
  });
  for (const auto& each : thrown) {
    EXPECT_THAT(message_of<UsageError>(each), AllOf(HasSubstr("chosen experts [8, 11, 2] without"),
                                                    HasSubstr("give experts a capacity")));
  }
}

}  // namespace
}  // namespace trireme
