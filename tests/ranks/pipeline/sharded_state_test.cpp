// SPDX-License-Identifier: Apache-2.0
// The state of pipelines whose parameters are cut, or are on some ranks alone.
#include <trireme/parallel/sharded_state.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/module_state.h>
#include <trireme/parallel/deferred.h>
#include <trireme/parallel/init/deferred_scope.h>
#include <trireme/parallel/state_dict.h>

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
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace trireme {
namespace {

using test::Arranged;
using test::Network;
using test::part_of;
using test::plan_of;
using test::usage_error;
using ::testing::HasSubstr;
using testing::run_ranks;

constexpr int kFirst = 2;  // steps before state is taken,
constexpr int kMore = 2;   // and after it was put in

// A rank with a network, its optimizer and its place in a pipeline.
struct Rank {
  Rank(Network given, const Arranged& arranged, const comm::Group& group)
      : network(std::move(given)),
        adam(network.module->parameters(), torch::optim::AdamWOptions(0.01).amsgrad(true)),
        pipeline(*network.module, network.forward, plan_of(arranged, network), group),
        rows(8 / arranged.data) {
    pipeline.shard(adam);
  }

  std::vector<torch::Tensor> batch(int step) const {
    return part_of(network.batch(rows * pipeline.data_group().size(), step),
                   pipeline.data_group().rank(), pipeline.data_group().size());
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
  std::int64_t rows;
};

Network tied_net() { return test::language_model(0, /*tied=*/true); }

// Of the micro-batches in all, 4, each rank along data has its share.
std::vector<Arranged> arrangements() {
  std::vector<Arranged> all;
  for (const int pipe : {1, 2}) {
    for (const int data : {1, 2}) {
      for (const int zero_level : {0, 1, 3}) {
        if (data == 1 && zero_level > 0) continue;
        all.push_back(
            {.pipe = pipe, .data = data, .zero_level = zero_level, .micro_batches = 4 / data});
      }
    }
  }
  return all;
}

struct Taken {
  FullState after_first;
  checkpoint::TensorMap after_more;  // the module's
  checkpoint::TensorMap of_optimizer;
};

// With as many ranks along data, so that the tree of sums is the same.
Taken take(Network (*make)(), const Arranged& arranged, int root) {
  Taken taken;
  run_ranks(arranged.pipe * arranged.data, [&](const comm::Group& group) {
    Rank rank(make(), arranged, group);
    rank.train(0, kFirst);
    FullState first =
        full_state(rank.pipeline.parallelized(), *rank.network.module, rank.adam, root);
    rank.train(kFirst, kMore);
    const FullState more =
        full_state(rank.pipeline.parallelized(), *rank.network.module, rank.adam, root);
    EXPECT_EQ(first.module.empty(), group.rank() != root);
    if (group.rank() != root) return;
    taken = {.after_first = std::move(first),
             .after_more = more.module,
             .of_optimizer = more.optimizer.tensors};
  });
  return taken;
}

void expect_equal(const checkpoint::TensorMap& got, const checkpoint::TensorMap& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(got.contains(name)) << name;
    EXPECT_TRUE(torch::equal(got.at(name), tensor)) << name;
  }
}

// Taken on the last rank, put in under every other arrangement with as many ranks along data.
// Running statistics are those of the rank's own data until the next step.
TEST(PipelineState, IsWholeOnOneRankAndGoesIntoAnyOtherPlan) {
  for (Network (*const make)() : {test::residual_net, tied_net}) {
    for (const int data : {1, 2}) {
      std::map<int, Taken> taken;  // by stages: a tied weight has another tree of sums with two
      for (const Arranged& arranged : arrangements()) {
        if (arranged.data != data) continue;
        SCOPED_TRACE(::testing::PrintToString(arranged));
        const int last = make == tied_net ? arranged.pipe * data - 1 : arranged.pipe - 1;
        const Taken got = take(make, arranged, last);
        const auto [of_first, is_first] = taken.emplace(make == tied_net ? arranged.pipe : 1, got);
        expect_equal(got.after_first.module, of_first->second.after_first.module);
        expect_equal(got.after_more, of_first->second.after_more);
        expect_equal(got.of_optimizer, of_first->second.of_optimizer);
        run_ranks(arranged.pipe * data, [&](const comm::Group& group) {
          Rank rank(make(), arranged, group);
          EXPECT_THAT(usage_error([&] { static_cast<void>(rank.pipeline.parallelized()); }),
                      HasSubstr("not known before the first batch"));
          rank.pipeline.prepare(rank.batch(0));
          load_full_state(of_first->second.after_first, rank.pipeline.parallelized(),
                          *rank.network.module, rank.adam);
          rank.train(kFirst, kMore);
          const FullState state =
              full_state(rank.pipeline.parallelized(), *rank.network.module, rank.adam);
          if (group.rank() > 0) return;
          expect_equal(state.module, of_first->second.after_more);
          expect_equal(state.optimizer.tensors, of_first->second.of_optimizer);
        });
      }
    }
  }
}

TEST(PipelineState, IsSavedByAllRanksAndLoadedByOthers) {
  const test::TemporaryFolder folder;
  int number = 0;
  for (Network (*const make)() : {test::residual_net, tied_net}) {
    for (const Arranged& saving : arrangements()) {
      if (saving.data != 2 || saving.zero_level == 0) continue;
      SCOPED_TRACE(::testing::PrintToString(saving));
      const Taken expected = take(make, saving, 0);
      const std::string prefix = join_message("pipeline", ++number);
      std::filesystem::path path;
      run_ranks(saving.pipe * saving.data, [&](const comm::Group& group) {
        Rank rank(make(), saving, group);
        rank.train(0, kFirst);
        const auto written = save_checkpoint({.folder = folder.path(), .prefix = prefix},
                                             rank.pipeline.parallelized(), *rank.network.module,
                                             &rank.adam, {.step = kFirst});
        if (group.rank() == 0) path = written;
      });
      for (const Arranged& loading : arrangements()) {
        const bool has_other_tree = make == tied_net && loading.pipe != saving.pipe;
        if (loading.data != 2 || loading.zero_level == 1 || has_other_tree) continue;
        SCOPED_TRACE(::testing::PrintToString(loading));
        run_ranks(loading.pipe * loading.data, [&](const comm::Group& group) {
          Rank rank(make(), loading, group);
          rank.pipeline.prepare(rank.batch(0));
          const auto state =
              load_checkpoint(path, rank.pipeline.parallelized(), *rank.network.module, &rank.adam);
          EXPECT_EQ(state.step, kFirst);
          rank.train(kFirst, kMore);
          const FullState after =
              full_state(rank.pipeline.parallelized(), *rank.network.module, rank.adam);
          if (group.rank() == 0) expect_equal(after.module, expected.after_more);
        });
      }
      // And by a process that has no pipeline.
      run_ranks(1, [&](const comm::Group& group) {
        const Network plain = make();
        torch::optim::AdamW adam(plain.module->parameters(), torch::optim::AdamWOptions());
        Parallelized parallel = parallelize(*plain.module, {}, group);
        load_checkpoint(path, parallel, *plain.module, &adam);
        expect_equal(checkpoint::module_tensors(*plain.module), expected.after_first.module);
      });
    }
  }
}

TEST(PipelineState, OfThisRankGoesBackIntoTheSameCut) {
  run_ranks(4, [](const comm::Group& group) {
    const Arranged arranged{.pipe = 2, .data = 2, .zero_level = 3};
    Rank rank(tied_net(), arranged, group);
    rank.train(0, kFirst);
    PartialState state =
        partial_state(rank.pipeline.parallelized(), *rank.network.module, rank.adam);
    std::set<std::string> own;
    for (const Parallelized::Part& part : rank.pipeline.parallelized().parts()) {
      if (part.is_own) own.insert(part.name);
    }
    EXPECT_EQ(state.places.size(), own.size());
    for (auto& [name, tensor] : state.parameters) tensor = tensor.clone();
    for (auto& [name, tensor] : state.optimizer.tensors) tensor = tensor.clone();
    rank.train(kFirst, kMore);
    rank.pipeline.gather_parameters();
    const auto expected = test::copies(*rank.network.module);
    load_partial_state(state, rank.pipeline.parallelized(), *rank.network.module, rank.adam);
    rank.train(kFirst, kMore);
    rank.pipeline.gather_parameters();
    EXPECT_TRUE(test::all_equal(test::copies(*rank.network.module), expected));
  });
}

// -- modules without memory ---------------------------------------------------------------------

Network random_net(bool is_deferred, std::uint64_t seed) {
  static std::mutex one_at_a_time;  // LibTorch's random generator is the process's
  const std::lock_guard lock(one_at_a_time);
  torch::manual_seed(seed);
  const auto make = [] { return std::make_shared<test::ResidualNetImpl>(); };
  Network network = test::residual_net();
  auto net = is_deferred ? deferred(make) : make();
  network.module = net;
  network.forward = [net = net.get()](const auto& in) -> std::vector<torch::Tensor> {
    return {torch::cross_entropy_loss(net->forward(in[0]), in[1])};
  };
  return network;
}

// Constants have memory in any case.
std::set<std::string> names_without_memory(const torch::nn::Module& module) {
  std::set<std::string> names;
  for (const auto& item : module.named_parameters()) {
    if (detail::is_deferred(item.value())) names.insert(item.key());
  }
  return names;
}

TEST(DeferredPipeline, HasTheValuesOfAnOrdinaryModule) {
  for (const int zero_level : {0, 1, 2, 3}) {
    const Arranged arranged{.pipe = 2, .data = 2, .zero_level = zero_level};
    std::vector<test::Outcome> expected(4);
    for (const bool is_deferred : {false, true}) {
      run_ranks(4, [&](const comm::Group& group) {
        // Rank 0's numbers count.
        const auto seed = 7 + static_cast<std::uint64_t>(group.rank());
        const Network network = random_net(is_deferred, seed);
        EXPECT_EQ(names_without_memory(*network.module).size(), is_deferred ? 7 : 0);
        auto& known = expected[static_cast<std::size_t>(group.rank())];
        test::Outcome got = test::train(network, arranged, group);
        if (is_deferred) {
          test::expect_same_bits(got, known);
        } else {
          known = std::move(got);
        }
      });
    }
  }
}

TEST(DeferredPipeline, HasMemoryForItsStagesAlone) {
  run_ranks(2, [](const comm::Group& group) {
    const Network network = random_net(/*is_deferred=*/true, 7);
    const std::set<std::string> all = names_without_memory(*network.module);
    const Arranged arranged{.pipe = 2};
    TrainingStep pipeline(*network.module, network.forward, plan_of(arranged, network), group);
    EXPECT_EQ(names_without_memory(*network.module), all);
    torch::optim::SGD optimizer(network.module->parameters(), 0.1);
    static_cast<void>(pipeline.step(network.batch(4, 0)));
    optimizer.step();
    static_cast<void>(pipeline.evaluate(network.batch(4, 0)));
    std::set<std::string> of_others;
    for (const Parallelized::Part& part : pipeline.parallelized().parts()) {
      EXPECT_EQ(part.is_own, part.name.starts_with("head") == (group.rank() == 0)) << part.name;
      if (!part.is_own && all.contains(part.name)) of_others.insert(part.name);
    }
    EXPECT_EQ(of_others.size(), group.rank() == 0 ? 5 : 2);
    EXPECT_EQ(names_without_memory(*network.module), of_others);
    pipeline.gather_parameters();
    EXPECT_TRUE(names_without_memory(*network.module).empty());
    const torch::NoGradGuard no_grad;
    network.module->eval();
    EXPECT_TRUE(torch::isfinite(network.forward(network.batch(4, 0))[0]).item<bool>());
  });
}

}  // namespace
}  // namespace trireme
