// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism of unmodified modules by patterns over their parameters' names.
#include <trireme/parallel/distribute_module.h>

#include <trireme/tensor/distributed_tensor.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/tensor/language_model.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <memory>
#include <string>

namespace trireme {
namespace {

using test::LanguageModel;
using test::loss_of;
using test::megatron;
using test::seeded;
using test::usage_error;
using ::testing::HasSubstr;
using testing::run_ranks;

TEST(DistributeModule, TrainsLikeOneProcessWhenCutByColumnsRowsAndVocabulary) {
  for (const int ranks : {2, 3, 4}) {
    run_ranks(ranks, [ranks](const comm::Group& group) {
      const DeviceMesh mesh(group, {{"tensor", ranks}});
      auto plain = seeded();
      auto model = seeded();
      const auto given = distribute_module(*model, mesh, megatron());
      EXPECT_EQ(given.size(), plain->parameters().size());
      torch::optim::AdamW plain_optimizer(plain->parameters());
      torch::optim::AdamW optimizer(model->parameters());
      const auto tokens = torch::arange(12).reshape({2, 6}).remainder(10);
      for (int step = 0; step < 3; ++step) {
        plain_optimizer.zero_grad();
        optimizer.zero_grad();
        const auto expected = loss_of(plain, tokens);
        const auto loss = loss_of(model, tokens);
        expected.backward();
        loss.backward();
        EXPECT_NEAR(full(loss).item<double>(), expected.item<double>(), 1e-12);
        const double plain_norm = torch::nn::utils::clip_grad_norm_(plain->parameters(), 1.0);
        const double norm = torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
        EXPECT_NEAR(norm, plain_norm, 1e-12);
        plain_optimizer.step();
        optimizer.step();
      }
      for (const auto& item : plain->named_parameters()) {
        const auto parameter = model->named_parameters()[item.key()];
        EXPECT_TRUE(torch::allclose(full(parameter.detach()), item.value(), 1e-9, 1e-9))
            << item.key() << " " << describe(parameter);
      }
    });
  }
}

TEST(DistributeModule, SaysWhatDoesNotFitAndChangesNothing) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    auto model = seeded();
    EXPECT_THAT(usage_error([&] { distribute_module(*model, mesh, column_parallel("*.gate")); }),
                HasSubstr("the pattern *.gate.weight fits no parameter or buffer"));
    EXPECT_THAT(
        usage_error([&] { distribute_module(*model, mesh, {{"*.bias", {{"tensor", Shard{1}}}}}); }),
        HasSubstr("parameter first.norm.bias of [8] cannot be cut along dim 1, as *.bias -> "
                  "Shard(1) on tensor asks for"));
    const FlatShard ranges = {.ranges = {{0, 4}, {4, 3}}};
    EXPECT_THAT(
        usage_error(
            [&] { distribute_module(*model, mesh, {{"second.down.bias", {{"tensor", ranges}}}}); }),
        HasSubstr("parameter second.down.bias of [8] cannot be cut into these ranges, which "
                  "do not cover it, as second.down.bias -> FlatShard(0+4, 4+3)"));
    EXPECT_THAT(usage_error([&] {
                  distribute_module(*model, mesh, {{"second.down.bias", {{"tensor", Partial{}}}}});
                }),
                HasSubstr("parameter second.down.bias of [8] cannot be Partial(sum), as "));
    model->first->up->bias.mutable_grad() = torch::zeros({12}, torch::kDouble).to_sparse();
    EXPECT_THAT(usage_error([&] { distribute_module(*model, mesh, megatron()); }),
                HasSubstr("the gradient of parameter first.up.bias is sparse"));
    model->zero_grad();
    EXPECT_THAT(
        usage_error([&] { distribute_module(*model, mesh, column_parallel("*.up", "model")); }),
        HasSubstr("model"));
    for (const auto& parameter : model->parameters()) EXPECT_FALSE(has_layout(parameter));
    distribute_module(*model, mesh, megatron());
    EXPECT_THAT(usage_error([&] { distribute_module(*model, mesh, {}); }),
                HasSubstr("parameter embedding.weight is distributed already"));
  });
}

TEST(DistributeModule, CutsGradientsThatAreThere) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    auto plain = seeded();
    auto model = seeded();
    const auto tokens = torch::arange(12).reshape({2, 6}).remainder(10);
    for (LanguageModel* each : {&plain, &model}) loss_of(*each, tokens).backward();
    const FlatShard ranges = {.ranges = {{0, 3}, {3, 5}}};
    const auto given = distribute_module(
        *model, mesh, join({{{"second.norm.bias", {{"tensor", ranges}}}}, megatron()}));
    // Another backward adds to them.
    for (LanguageModel* each : {&plain, &model}) loss_of(*each, tokens).backward();
    const auto parameters = model->named_parameters();
    for (const DistributedParameter& item : given) {
      const auto gradient = parameters[item.name].grad();
      ASSERT_TRUE(has_layout(gradient)) << item.name;
      EXPECT_TRUE(torch::allclose(full(gradient), plain->named_parameters()[item.name].grad()))
          << item.name;
    }
    torch::optim::SGD(plain->parameters(), 0.1).step();
    torch::optim::SGD(model->parameters(), 0.1).step();
    EXPECT_TRUE(torch::allclose(full(parameters["second.norm.bias"].detach()),
                                plain->second->norm->bias.detach()));
  });
}

// Two modules that register one weight.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    const auto weight = torch::ones({10, 8}, torch::kDouble);
    for (const char* name : {"words", "head"}) {
      register_module(name, std::make_shared<torch::nn::Module>())
          ->register_parameter("weight", weight);
    }
  }
};
TORCH_MODULE(Tied);

TEST(DistributeModule, ATiedParameterAnswersToEachOfItsNames) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    const auto cut = [](const char* pattern, int dim) {
      return ParameterLayout{pattern, {{"tensor", Shard{dim}}}};
    };
    Tied refused;
    EXPECT_THAT(usage_error([&] {
                  distribute_module(*refused, mesh, {cut("words.*", 1), cut("head.*", 0)});
                }),
                HasSubstr("parameter words.weight, which is head.weight too, is as [tensor: "
                          "Shard(1)] by the one name and as [tensor: Shard(0)] by the other"));
    EXPECT_FALSE(has_layout(refused->parameters().front()));
    for (const ParameterLayouts& layouts : {ParameterLayouts{cut("head.weight", 0)},
                                            {cut("words.weight", 0), cut("head.weight", 0)}}) {
      Tied tied;
      const auto given = distribute_module(*tied, mesh, layouts);
      ASSERT_EQ(given.size(), 1);
      EXPECT_EQ(given.front().name, "words.weight");
      EXPECT_EQ(given.front().layout, Layout(mesh, {Shard{0}}));
    }
  });
}

TEST(ParameterLayouts, TheFirstPatternThatFitsCounts) {
  const ParameterLayouts layouts = {{"*.first.weight", {{"tensor", Shard{1}}}},
                                    {"*.weight", {{"tensor", Shard{0}}}}};
  EXPECT_EQ(find_layout(layouts, "a.first.weight"), &layouts[0]);
  EXPECT_EQ(find_layout(layouts, "a.b.second.weight"), &layouts[1]);
  EXPECT_EQ(find_layout(layouts, "a.bias"), nullptr);
  EXPECT_EQ(to_string(layouts),
            "*.first.weight -> Shard(1) on tensor\n*.weight -> Shard(0) on tensor\n");
}

}  // namespace
}  // namespace trireme
