// SPDX-License-Identifier: Apache-2.0
// Plans whose mesh has other axes than data: tensor parallelism together with data parallelism and
// ZeRO, against one process on the same work.
#include <trireme/optim/gradients.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/parallel/state_dict.h>
#include <trireme/tensor/distributed_tensor.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/tensor/language_model.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace trireme {
namespace {

const ParameterLayouts kWhole = {{"*", {{"tensor", Replicate{}}}}};

using test::loss_of;
using test::megatron;
using test::seeded;
using test::usage_error;
using ::testing::HasSubstr;
using testing::run_ranks;

struct Case {
  std::vector<MeshAxis> mesh;
  int zero_level = 0;
  std::int64_t micro_batches = 1;
  std::int64_t shard_ranks = 0;

  friend std::ostream& operator<<(std::ostream& out, const Case& test_case) {
    for (const MeshAxis& axis : test_case.mesh) out << axis.name << "_" << axis.size << "_";
    return out << "stage_" << test_case.zero_level << "_micro_" << test_case.micro_batches
               << "_among_" << test_case.shard_ranks;
  }
};

int ranks_of(const Case& test_case) {
  std::int64_t ranks = 1;
  for (const MeshAxis& axis : test_case.mesh) ranks *= axis.size;
  return static_cast<int>(ranks);
}

Plan plan_of(const Case& test_case) {
  Plan plan;
  plan.mesh = test_case.mesh;
  if (shares_work(plan)) plan.layouts = megatron();
  if (std::ranges::find(plan.mesh, "other", &MeshAxis::name) != plan.mesh.end()) {
    plan.layouts.push_back({"*", {"other", Replicate{}}});
  }
  plan.zero_level = test_case.zero_level;
  plan.micro_batches = test_case.micro_batches;
  plan.shard_ranks = test_case.shard_ranks;
  plan.bucket_bytes = 1200;  // several
  plan.first_bucket_bytes = 400;
  return plan;
}

constexpr std::int64_t kRows = 8;  // of the batch of all ranks

torch::Tensor tokens_of(int step) {
  return (torch::arange(kRows * 6).reshape({kRows, 6}) * (step + 3)).remainder(10);
}

class OnMesh : public ::testing::TestWithParam<Case> {};

TEST_P(OnMesh, TrainsLikeOneProcess) {
  const Case& test_case = GetParam();
  run_ranks(ranks_of(test_case), [&test_case](const comm::Group& group) {
    auto plain = seeded();
    auto model = seeded();
    const Plan plan = plan_of(test_case);
    Parallelized parallelized = parallelize(*model, plan, group);
    const comm::Group& data = parallelized.data_group();
    EXPECT_EQ(data.size(), data_ranks(plan, group.size()));
    torch::optim::AdamW plain_optimizer(plain->parameters());
    torch::optim::AdamW optimizer(model->parameters());
    parallelized.shard(optimizer);
    const std::int64_t rows = kRows / data.size() / plan.micro_batches;
    for (int step = 0; step < 3; ++step) {
      plain_optimizer.zero_grad();
      optimizer.zero_grad();
      const auto tokens = tokens_of(step);
      const auto expected = loss_of(plain, tokens);
      expected.backward();
      double mean = 0;
      for (std::int64_t micro = 0; micro < plan.micro_batches; ++micro) {
        const std::int64_t first = (data.rank() * plan.micro_batches + micro) * rows;
        const auto loss = loss_of(model, tokens.narrow(0, first, rows));
        EXPECT_EQ(has_layout(loss), shares_work(plan));
        mean += full(loss).item<double>() / static_cast<double>(plan.micro_batches);
        parallelized.add_to_step(loss);
        loss.backward();
      }
      if (plan.micro_batches == 1) {
        EXPECT_NEAR(parallelized.sum_of_step() / data.size(), expected.item<double>(), 1e-6);
      }
      if (data.size() == 1) {
        EXPECT_NEAR(mean, expected.item<double>(), 1e-12);
      }
      const auto norm = clip_by_global_norm(optimizer, 0.5, parallelized.sharing()).item<double>();
      EXPECT_NEAR(norm, clip_by_global_norm(plain_optimizer, 0.5).item<double>(), 1e-12);
      EXPECT_NEAR(global_maximum(optimizer, parallelized.sharing()),
                  global_maximum(plain_optimizer), 1e-12);
      plain_optimizer.step();
      optimizer.step();
    }
    parallelized.gather_parameters();
    for (const auto& item : plain->named_parameters()) {
      const auto parameter = model->named_parameters()[item.key()];
      EXPECT_TRUE(torch::allclose(full(parameter.detach()), item.value(), 1e-9, 1e-9))
          << item.key();
      if (!shares_work(plan) || test_case.zero_level > 0) continue;
      EXPECT_EQ(layout_of(parameter.grad()), layout_of(parameter)) << item.key();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, OnMesh,
    ::testing::Values(
        Case{{{"tensor", 1}}}, Case{{{"tensor", 2}}}, Case{{{"tensor", 3}}}, Case{{{"data", 2}}},
        Case{{{"data", 2}, {"tensor", 2}}}, Case{{{"tensor", 2}, {"data", 2}}},
        Case{{{"data", 2}, {"tensor", 3}}}, Case{{{"tensor", 2}}, 0, 2},
        Case{{{"data", 2}, {"tensor", 2}}, 0, 2}, Case{{{"data", 1}, {"tensor", 2}, {"other", 2}}},
        Case{{{"data", 2}, {"tensor", 2}}, 1}, Case{{{"data", 2}, {"tensor", 2}}, 2},
        Case{{{"data", 2}, {"tensor", 2}}, 2, 2}, Case{{{"data", 2}, {"tensor", 2}}, 3},
        Case{{{"tensor", 2}, {"data", 2}}, 3, 2}, Case{{{"data", 4}, {"tensor", 2}}, 2, 1, 2}),
    [](const auto& test) {
      std::ostringstream name;
      name << test.param;
      return name.str();
    });

// Without layouts the ranks that work together do the same, so everything has the bits that it has
// where each works alone.
TEST(OnMesh, HasTheBitsOfOneRankAlongTensorWhereNothingIsCut) {
  const auto train = [](const Plan& plan, const comm::Group& group) {
    auto model = seeded();
    Parallelized parallelized = parallelize(*model, plan, group);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    const comm::Group& data = parallelized.data_group();
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      loss_of(model, tokens_of(step).narrow(0, data.rank() * 4L, 4)).backward();
      optimizer.step();
    }
    std::vector<torch::Tensor> values;
    for (const auto& parameter : model->parameters()) {
      values.push_back(full(parameter.detach()).clone());
    }
    return values;
  };
  std::vector<torch::Tensor> expected;
  run_ranks(2, [&](const comm::Group& group) {
    Plan plan;
    plan.mesh = {{"data", 2}, {"tensor", 1}};
    const auto values = train(plan, group);
    if (group.rank() == 0) expected = values;
  });
  run_ranks(4, [&](const comm::Group& group) {
    Plan plan;
    plan.mesh = {{"data", 2}, {"tensor", 2}};
    plan.layouts = kWhole;
    const auto values = train(plan, group);
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_TRUE(torch::equal(values[i], expected[i])) << (values[i] - expected[i]).abs().max();
  });
}

TEST(OnMesh, BuffersFollowTheFirstRankAlongData) {
  run_ranks(4, [](const comm::Group& group) {
    torch::nn::BatchNorm1d norm(3);
    Plan plan;
    plan.mesh = {{"data", 2}, {"tensor", 2}};
    plan.layouts = kWhole;
    Parallelized parallelized = parallelize(*norm, plan, group);
    const double value = parallelized.data_group().rank();
    norm(torch::full({4, 3}, value) + torch::arange(4).unsqueeze(1)).sum().backward();
    EXPECT_NEAR(full(norm->running_mean).select(0, 0).item<double>(), 0.1 * 1.5, 1e-6);
  });
}

TEST(OnMesh, TellsEachRankItsPartOfTheData) {
  run_ranks(6, [](const comm::Group& group) {
    const auto part = [&](std::vector<MeshAxis> mesh) {
      Plan plan;
      plan.mesh = std::move(mesh);
      if (shares_work(plan)) plan.layouts = kWhole;
      const DataPart own = data_part(plan, group);
      return std::pair(own.index, own.count);
    };
    const std::int64_t rank = group.rank();
    using Part = std::pair<std::int64_t, std::int64_t>;
    EXPECT_EQ(part({}), Part(rank, 6));
    EXPECT_EQ(part({{"data", 2}, {"tensor", 3}}), Part(rank / 3, 2));
    EXPECT_EQ(part({{"tensor", 2}, {"data", 3}}), Part(rank % 3, 3));
    EXPECT_EQ(part({{"tensor", 6}}), Part(0, 1));
    auto norm = torch::nn::BatchNorm1d(3);
    Plan plan;
    plan.mesh = {{"a", 1}, {"data", 3}, {"tensor", 2}};
    plan.layouts = kWhole;
    const Parallelized parallelized = parallelize(*norm, plan, group);
    EXPECT_EQ(parallelized.data_group().rank(), data_part(plan, group).index);
  });
}

TEST(OnMesh, LeavesADistributedModuleBehind) {
  run_ranks(2, [](const comm::Group& group) {
    auto model = seeded();
    Plan plan = plan_of({.mesh = {{"tensor", 2}}});
    {
      const Parallelized parallelized = parallelize(*model, plan, group);
      EXPECT_EQ(parallelized.mesh().to_string(), "tensor=2");
    }
    EXPECT_EQ(layout_of(model->first->up->weight).to_string(), "[tensor: Shard(0)]");
    loss_of(model, tokens_of(0)).backward();
  });
}

// Without data parallelism too, so that the norm counts each element once.
TEST(OnMesh, BringsGradientsToTheirLayoutsWhereNothingIsDataParallel) {
  run_ranks(2, [](const comm::Group& group) {
    auto plain = seeded();
    auto model = seeded();
    Plan plan = plan_of({.mesh = {{"tensor", 2}}});
    plan.data_parallel = false;
    const Parallelized parallelized = parallelize(*model, plan, group);
    torch::optim::SGD plain_optimizer(plain->parameters(), 0.1);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    loss_of(plain, tokens_of(0)).backward();
    loss_of(model, tokens_of(0)).backward();
    EXPECT_NEAR(global_norm(optimizer, parallelized.sharing()), global_norm(plain_optimizer),
                1e-12);
    EXPECT_NEAR(global_norm(optimizer), global_norm(plain_optimizer), 1e-12);
    for (const auto& parameter : model->parameters()) {
      EXPECT_EQ(layout_of(parameter.grad()), layout_of(parameter));
    }
  });
}

TEST(OnMesh, RefusesWhatItCannotDo) {
  run_ranks(2, [](const comm::Group& group) {
    auto model = seeded();
    const Plan plan = plan_of({.mesh = {{"tensor", 2}}});
    EXPECT_THAT(usage_error([&] {
                  auto all =
                      parallelize({{"weight", torch::ones({2}).requires_grad_()}}, plan, group);
                }),
                HasSubstr("give parallelize the module"));
    torch::nn::Embedding sparse(torch::nn::EmbeddingOptions(4, 4).sparse(true));
    Plan whole = plan;
    whole.layouts = kWhole;
    EXPECT_THAT(usage_error([&] { auto all = parallelize(*sparse, whole, group); }),
                HasSubstr("parameter weight has sparse gradients"));
    Plan in_stages;
    in_stages.mesh = {{"pipe", 2}};
    EXPECT_THAT(usage_error([&] { auto all = parallelize(*model, in_stages, group); }),
                HasSubstr("2 ranks along pipe"));
    Parallelized parallelized = parallelize(*model, plan, group);
    EXPECT_THAT(usage_error([&] { auto again = parallelize(*model, {}, group); }),
                HasSubstr("parameter embedding.weight is distributed already"));
    EXPECT_THAT(usage_error([&] { parallelized.finish_without_backward(); }),
                HasSubstr("the ranks of [tensor=2] take part together"));
  });
}

// The second rank along tensor has nothing of the weight, so nothing that could be cut along data.
TEST(OnMesh, RefusesOnAllRanksAModuleThatIsTooSmallOnSome) {
  run_ranks(4, [](const comm::Group& group) {
    torch::nn::Linear narrow(torch::nn::LinearOptions(20, 1).bias(false));
    Plan plan;
    plan.mesh = {{"data", 2}, {"tensor", 2}};
    plan.layouts = {{"weight", {{"tensor", Shard(0)}}}};
    plan.zero_level = 1;
    const std::string message = usage_error([&] { auto all = parallelize(*narrow, plan, group); });
    EXPECT_THAT(message, HasSubstr("too small to be cut for 2 ranks: rank 0 would have nothing"));
    if (group.rank() % 2 == 0) {
      EXPECT_THAT(message, HasSubstr("rank 1 could not cut the module and failed"));
    }
  });
}

// Ranks along `tensor` used to compute with halves of two batches.
TEST(OnMesh, DifferentRowsOfRanksThatWorkTogetherAreAnError) {
  for (const std::vector<MeshAxis>& axes :
       {std::vector<MeshAxis>{{"tensor", 2}}, std::vector<MeshAxis>{{"data", 2}, {"tensor", 2}}}) {
    run_ranks(axes.size() == 1 ? 2 : 4, [&axes](const comm::Group& group) {
      for (const int first_wrong : {0, 1}) {
        auto model = seeded();
        const auto parallelized = parallelize(*model, plan_of({.mesh = axes}), group);
        for (int step = 0; step < first_wrong; ++step) loss_of(model, tokens_of(step)).backward();
        EXPECT_THAT(usage_error([&] { loss_of(model, tokens_of(7 + group.rank())).backward(); }),
                    ::testing::AllOf(HasSubstr("have given different values to operator aten::"),
                                     HasSubstr("data_part(plan, group)")));
      }
    });
  }
}

// What one rank computes for a log alone is no mistake.
TEST(OnMesh, OperatorsOfOneRankAloneAreNotCompared) {
  run_ranks(2, [](const comm::Group& group) {
    auto model = seeded();
    const auto parallelized = parallelize(*model, plan_of({.mesh = {{"tensor", 2}}}), group);
    if (group.rank() == 0) {
      const torch::NoGradGuard no_grad;
      to_local(model->first->norm->weight * torch::rand({8}, torch::kDouble));
    }
    loss_of(model, tokens_of(0)).backward();
    EXPECT_TRUE(model->first->up->weight.grad().defined());
  });
}

TEST(GlobalNorm, OfADistributedModuleNeedsNoSharing) {
  run_ranks(4, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"a", 2}, {"b", 2}});
    const auto values = torch::arange(12, torch::kDouble).reshape({4, 3}) - 5;
    std::vector<torch::Tensor> parameters;
    for (const Layout& layout : {Layout(mesh, {{"a", Shard{0}}}), Layout::replicated(mesh),
                                 Layout(mesh, {{"a", Shard{1}}, {"b", Shard{0}}}),
                                 Layout(mesh, {{"b", Partial{}}, {"a", Shard{0}}})}) {
      parameters.push_back(
          distribute(torch::zeros({4, 3}, torch::kDouble), Layout::replicated(mesh))
              .detach()
              .requires_grad_());
      parameters.back().mutable_grad() = distribute(values, layout);
    }
    torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.1));
    const double expected = std::sqrt(4 * values.square().sum().item<double>());
    EXPECT_DOUBLE_EQ(global_norm(optimizer), expected);
    EXPECT_DOUBLE_EQ(global_maximum(optimizer), 6);
    EXPECT_TRUE(all_finite(optimizer));
    EXPECT_DOUBLE_EQ(clip_by_global_norm(optimizer, 1).item<double>(), expected);
    EXPECT_NEAR(global_norm(optimizer), 1, 1e-6);
    const DeviceMesh other(group, {{"c", 4}});
    parameters[1].mutable_grad() = distribute(values, Layout::replicated(other));
    EXPECT_THAT(usage_error([&] { global_norm(optimizer); }),
                HasSubstr("distributed on two meshes, [a=2, b=2] and [c=4]"));
  });
}

}  // namespace
}  // namespace trireme
