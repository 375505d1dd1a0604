// SPDX-License-Identifier: Apache-2.0
// The state of pipelines whose stages are shared by ranks along a tensor axis: that of one process,
// for any other mesh.
#include <trireme/checkpoint/module_state.h>
#include <trireme/parallel/deferred.h>
#include <trireme/parallel/init/deferred_scope.h>
#include <trireme/parallel/sharded_state.h>
#include <trireme/parallel/state_dict.h>
#include <trireme/tensor/distributed_tensor.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/pipeline/loops.h>
#include <tests/ranks/pipeline/networks.h>
#include <tests/ranks/thread_ranks.h>
#include <tests/temporary_folder.h>
#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace trireme {
namespace {

using test::Network;
using test::part_of;
using testing::run_ranks;

constexpr int kFirst = 2;  // steps before state is taken,
constexpr int kMore = 2;   // and after it was put in
constexpr std::int64_t kRows = 8;
constexpr double kBound = 1e-9;

// In double precision, so that other orders of sums make next to no difference.
Network tied_net() {
  Network network = test::language_model(/*dropout=*/0, /*tied=*/true);
  network.module->to(torch::kDouble);
  return network;
}

Plan plan_of(std::vector<MeshAxis> mesh, const Network& network, int zero_level) {
  Plan plan;
  plan.mesh = std::move(mesh);
  plan.stages = {{network.modules[0], 0}, {network.modules[2], 1}};
  if (stage_ranks(plan) == 1) plan.stages.clear();
  if (shares_work(plan)) {
    plan.layouts = join({vocabulary_parallel("token_embedding"),
                         column_parallel("*.attention.input"), row_parallel("*.attention.output"),
                         column_parallel("*.mlp_input"), row_parallel("*.mlp_output")});
  }
  plan.micro_batches = 4 / data_ranks(plan, 1);
  plan.zero_level = zero_level;
  plan.bucket_bytes = plan.first_bucket_bytes = 1024;
  return plan;
}

// A rank with a network, its optimizer and its place in a pipeline.
struct Rank {
  Rank(const std::vector<MeshAxis>& mesh, int zero_level, const comm::Group& group)
      : network(tied_net()),
        adam(network.module->parameters(), torch::optim::AdamWOptions(0.01).amsgrad(true)),
        pipeline(*network.module, network.forward, plan_of(mesh, network, zero_level), group) {
    pipeline.shard(adam);
  }

  std::vector<torch::Tensor> batch(int step) const {
    return part_of(network.batch(kRows, step), pipeline.data_group().rank(),
                   pipeline.data_group().size());
  }

  void train(int first, int count) {
    for (int step = first; step < first + count; ++step) {
      adam.zero_grad();
      static_cast<void>(pipeline.step(batch(step)));
      adam.step();
    }
  }

  Network network;
  torch::optim::AdamW adam;
  TrainingStep pipeline;
};

int ranks_of(const std::vector<MeshAxis>& mesh) {
  std::int64_t ranks = 1;
  for (const MeshAxis& axis : mesh) ranks *= axis.size;
  return static_cast<int>(ranks);
}

struct Arrangement {
  std::vector<MeshAxis> mesh;
  int zero_level = 0;
};

std::vector<Arrangement> arrangements() {
  return {{.mesh = {{"pipe", 1}}},
          {.mesh = {{"pipe", 2}, {"tensor", 2}}},
          {.mesh = {{"tensor", 2}, {"pipe", 1}}},
          {.mesh = {{"tensor", 2}, {"data", 2}, {"pipe", 2}}, .zero_level = 2},
          {.mesh = {{"pipe", 2}, {"data", 2}, {"tensor", 2}}, .zero_level = 3}};
}

void expect_close(const checkpoint::TensorMap& got, const checkpoint::TensorMap& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(got.contains(name)) << name;
    EXPECT_FALSE(has_layout(got.at(name))) << name;
    EXPECT_TRUE(torch::allclose(got.at(name), tensor, kBound, kBound)) << name;
  }
}

// After the first steps, and after more.
struct Taken {
  FullState first;
  FullState more;
};

// On the first rank, or the last.
Taken take(const Arrangement& arrangement, bool on_last) {
  Taken taken;
  const int ranks = ranks_of(arrangement.mesh);
  const int root = on_last ? ranks - 1 : 0;
  run_ranks(ranks, [&](const comm::Group& group) {
    Rank rank(arrangement.mesh, arrangement.zero_level, group);
    const auto state = [&] {
      return full_state(rank.pipeline.parallelized(), *rank.network.module, rank.adam, root);
    };
    rank.train(0, kFirst);
    FullState first = state();
    rank.train(kFirst, kMore);
    FullState more = state();
    EXPECT_EQ(first.module.empty(), group.rank() != root);
    if (group.rank() == root) taken = {.first = std::move(first), .more = std::move(more)};
  });
  return taken;
}

TEST(TensorPipelineState, IsWholeOnOneRankAndGoesIntoAnyOtherPlan) {
  const Taken expected = take(arrangements().front(), /*on_last=*/false);
  for (const Arrangement& arrangement : arrangements()) {
    for (const bool on_last : {false, true}) {
      const Taken got = take(arrangement, on_last);
      expect_close(got.first.module, expected.first.module);
      expect_close(got.first.optimizer.tensors, expected.first.optimizer.tensors);
      EXPECT_EQ(got.first.optimizer.scalars, expected.first.optimizer.scalars);
      expect_close(got.more.module, expected.more.module);
    }
    run_ranks(ranks_of(arrangement.mesh), [&](const comm::Group& group) {
      Rank rank(arrangement.mesh, arrangement.zero_level, group);
      rank.pipeline.prepare(rank.batch(0));
      load_full_state(expected.first, rank.pipeline.parallelized(), *rank.network.module,
                      rank.adam);
      rank.train(kFirst, kMore);
      const FullState state =
          full_state(rank.pipeline.parallelized(), *rank.network.module, rank.adam);
      if (group.rank() > 0) return;
      expect_close(state.module, expected.more.module);
      expect_close(state.optimizer.tensors, expected.more.optimizer.tensors);
    });
  }
}

TEST(TensorPipelineState, IsSavedByAllRanksAndLoadedByOthers) {
  const test::TemporaryFolder folder;
  const Taken expected = take(arrangements().front(), /*on_last=*/false);
  int number = 0;
  for (const Arrangement& saving : arrangements()) {
    if (ranks_of(saving.mesh) == 1) continue;
    const std::string prefix = "shared" + std::to_string(++number);
    std::filesystem::path path;
    run_ranks(ranks_of(saving.mesh), [&](const comm::Group& group) {
      Rank rank(saving.mesh, saving.zero_level, group);
      rank.train(0, kFirst);
      const auto written =
          save_checkpoint({.folder = folder.path(), .prefix = prefix}, rank.pipeline.parallelized(),
                          *rank.network.module, &rank.adam, {.step = kFirst});
      if (group.rank() == 0) path = written;
    });
    for (const Arrangement& loading : arrangements()) {
      run_ranks(ranks_of(loading.mesh), [&](const comm::Group& group) {
        Rank rank(loading.mesh, loading.zero_level, group);
        rank.pipeline.prepare(rank.batch(0));
        const auto state =
            load_checkpoint(path, rank.pipeline.parallelized(), *rank.network.module, &rank.adam);
        EXPECT_EQ(state.step, kFirst);
        rank.train(kFirst, kMore);
        const FullState after =
            full_state(rank.pipeline.parallelized(), *rank.network.module, rank.adam);
        if (group.rank() == 0) expect_close(after.module, expected.more.module);
      });
    }
    // And by a process that has no pipeline.
    run_ranks(1, [&](const comm::Group& group) {
      const Network plain = tied_net();
      torch::optim::AdamW adam(plain.module->parameters(), torch::optim::AdamWOptions());
      Parallelized parallel = parallelize(*plain.module, {}, group);
      load_checkpoint(path, parallel, *plain.module, &adam);
      expect_close(checkpoint::module_tensors(*plain.module), expected.first.module);
    });
  }
}

TEST(TensorPipelineState, OfThisRankGoesBackIntoTheSameCut) {
  run_ranks(8, [](const comm::Group& group) {
    Rank rank({{"pipe", 2}, {"data", 2}, {"tensor", 2}}, /*zero_level=*/2, group);
    rank.train(0, kFirst);
    PartialState state =
        partial_state(rank.pipeline.parallelized(), *rank.network.module, rank.adam);
    for (auto& [name, tensor] : state.parameters) tensor = tensor.clone();
    for (auto& [name, tensor] : state.optimizer.tensors) tensor = tensor.clone();
    const auto values = [&] {
      rank.pipeline.gather_parameters();
      std::vector<torch::Tensor> all;
      for (const torch::Tensor& parameter : rank.network.module->parameters()) {
        all.push_back(full(parameter.detach()).clone());
      }
      return all;
    };
    rank.train(kFirst, kMore);
    const auto expected = values();
    load_partial_state(state, rank.pipeline.parallelized(), *rank.network.module, rank.adam);
    rank.train(kFirst, kMore);
    EXPECT_TRUE(test::all_equal(values(), expected));
  });
}

// -- modules without memory ---------------------------------------------------------------------

struct NarrowingImpl : torch::nn::Module {
  NarrowingImpl()
      : up(register_module("up", torch::nn::Linear(6, 8))),
        down(register_module("down", torch::nn::Linear(8, 4))),
        last(register_module("last", torch::nn::Linear(4, 3))) {}
  torch::Tensor loss(const torch::Tensor& x) {
    return last(torch::gelu(down(torch::gelu(up(x))))).square().mean();
  }
  torch::nn::Linear up, down, last;
};
TORCH_MODULE(Narrowing);

Narrowing narrowing(bool is_deferred) {
  static std::mutex one_at_a_time;  // LibTorch's random generator is the process's
  const std::lock_guard lock(one_at_a_time);
  torch::manual_seed(7);
  const auto make = [] { return Narrowing(); };
  return is_deferred ? deferred(make) : make();
}

TEST(TensorPipelineState, IsThatOfAnOrdinaryModuleWhereItHadNoMemory) {
  std::vector<std::vector<torch::Tensor>> expected(4);
  for (const bool is_deferred : {false, true}) {
    run_ranks(4, [&](const comm::Group& group) {
      Narrowing net = narrowing(is_deferred);
      Plan plan;
      plan.mesh = {{"pipe", 2}, {"tensor", 2}};
      plan.stages = {{"up", 0}, {"last", 1}};
      plan.layouts = join({column_parallel("up"), row_parallel("down")});
      plan.micro_batches = 2;
      TrainingStep pipeline(
          *net,
          [net](const auto& in) -> std::vector<torch::Tensor> {
            return {Narrowing(net)->loss(in[0])};
          },
          plan, group);
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      static_cast<void>(pipeline.step({test::numbers({4, 6}, 1)}));
      optimizer.step();
      if (is_deferred) {
        EXPECT_EQ(detail::is_deferred(net->up->weight), group.rank() >= 2);
        EXPECT_EQ(detail::is_deferred(net->last->weight), group.rank() < 2);
      }
      pipeline.gather_parameters();
      std::vector<torch::Tensor> values;
      for (const torch::Tensor& parameter : net->parameters()) {
        values.push_back(full(parameter.detach()).clone());
      }
      auto& known = expected[static_cast<std::size_t>(group.rank())];
      if (!is_deferred) known = values;
      EXPECT_TRUE(test::all_equal(values, known));
      EXPECT_EQ(layout_of(net->up->weight).to_string(), "[tensor: Shard(0)]");
    });
  }
}

}  // namespace
}  // namespace trireme
