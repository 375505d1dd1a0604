// SPDX-License-Identifier: Apache-2.0
// Pipelines whose ranks along `data` cut parameters, gradients and optimizer state: every bit as
// one process with the same micro-batches.
#include <trireme/base/error.h>
#include <trireme/optim/gradients.h>
#include <trireme/optim/loss_scale.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/cut_stack.h>
#include <tests/ranks/pipeline/loops.h>
#include <tests/ranks/pipeline/networks.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace trireme {
namespace {

using test::Alone;
using test::Arranged;
using test::Network;
using test::NetworkCase;
using test::Outcome;
using test::part_of;
using test::plan_of;
using test::usage_error;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::run_ranks_catching;

class ShardedPipelineOf : public ::testing::TestWithParam<NetworkCase> {};

// All arrangements: sharded_grid_test.cpp.
TEST_P(ShardedPipelineOf, HasTheBitsOfAPlainLoop) {
  Arranged arranged{.pipe = 2,
                    .data = 2,
                    .micro_batches = 3,
                    .schedule = "zb-h1",
                    .optimizer = "adamw",
                    .rows = 5};
  const Outcome expected = test::alone(GetParam(), arranged);
  for (arranged.zero_level = 0; arranged.zero_level <= 3; ++arranged.zero_level) {
    test::expect_bits_of(expected, GetParam(), arranged);
  }
}

// Each rank along data is a process of two devices.
TEST_P(ShardedPipelineOf, HasTheBitsOfAPlainLoopOverDevicesOfProcesses) {
  Arranged arranged{.pipe = 2,
                    .data = 2,
                    .micro_batches = 3,
                    .schedule = "zb-h1",
                    .optimizer = "adamw",
                    .rows = 5,
                    .on_devices = true};
  const Outcome expected = test::alone(GetParam(), arranged);
  for (arranged.zero_level = 0; arranged.zero_level <= 2; ++arranged.zero_level) {
    test::expect_bits_of(expected, GetParam(), arranged);
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, ShardedPipelineOf, ::testing::ValuesIn(test::network_cases()),
                         [](const auto& param_info) { return param_info.param.name; });

// As after parallelize, whose rounding is that of the wire.
TEST(ShardedPipeline, SendsGradientsInHalfPrecision) {
  for (const int zero_level : {0, 2}) {
    run_ranks(2, [&](const comm::Group& group) {
      const Plan plan{.zero_level = zero_level, .wire = GradientCompression::kBf16};
      const Network recorded = test::residual_net();
      const Network called = test::residual_net();
      torch::optim::SGD of_recorded(recorded.module->parameters(), 0.1);
      torch::optim::SGD of_called(called.module->parameters(), 0.1);
      TrainingStep training(*recorded.module, recorded.forward, plan, group);
      Parallelized parallel = parallelize(*called.module, plan, group);
      training.shard(of_recorded);
      parallel.shard(of_called);
      for (int step = 0; step < 2; ++step) {
        const auto batch = part_of(recorded.batch(8, step), group.rank(), group.size());
        of_recorded.zero_grad();
        training.step(batch);
        of_recorded.step();
        of_called.zero_grad();
        called.forward(batch)[0].backward();
        of_called.step();
      }
      training.gather_parameters();
      parallel.gather_parameters();
      test::expect_same_bits(recorded.module->parameters(), called.module->parameters(),
                             "parameter");
    });
  }
}

// Of four ranks along data two have the same slices as the other two, whose sums come second.
TEST(ShardedPipeline, IsCutAmongSomeOfTheRanksAlongData) {
  Arranged arranged{.pipe = 1, .data = 4, .micro_batches = 2, .shard_ranks = 2};
  Outcome expected;
  run_ranks(4, [&](const comm::Group& group) {
    arranged.zero_level = 0;
    const Outcome outcome = test::train(test::residual_net(), arranged, group);
    if (group.rank() == 0) expected = outcome;
  });
  arranged.zero_level = 3;
  run_ranks(4, [&](const comm::Group& group) {
    const Outcome got = test::train(test::residual_net(), arranged, group);
    for (std::size_t i = 0; i < got.parameters.size(); ++i) {
      EXPECT_TRUE(torch::allclose(got.parameters[i], expected.parameters[i], 1e-5, 1e-6)) << i;
    }
  });
}

// Stacks of equal layers, each a bucket of its own: half of them on each stage.
struct Stacked {
  Stacked()
      : net(8), forward([this](const auto& in) -> std::vector<torch::Tensor> {
          return {net->forward(in[0]).pow(2).mean()};
        }) {
    test::fill(*net);
  }

  Plan plan(int zero_level, std::int64_t gathered_buckets) const {
    Plan plan = test::cut(gathered_buckets);
    plan.zero_level = zero_level;
    plan.mesh = {{kDataAxis, 2}, {kStageAxis, 2}};
    plan.stages = {{"layer0", 0}, {"layer4", 1}};
    plan.micro_batches = 3;
    return plan;
  }

  test::Stack net;
  graph::Forward forward;
};

// What a rank keeps between steps of its stage's four layers.
struct Kept {
  std::int64_t parameters = 0;  // bytes of parts, and of buckets that are whole
  std::int64_t state = 0;       // bytes of momentum
  std::int64_t gradients = 0;   // bytes of what the optimizer steps with
  std::size_t num_whole = 0;    // buckets
};

Kept kept(int zero_level, std::int64_t gathered_buckets) {
  Kept all;
  run_ranks(4, [&](const comm::Group& group) {
    Stacked stacked;
    TrainingStep pipeline(*stacked.net, stacked.forward, stacked.plan(zero_level, gathered_buckets),
                          group);
    torch::optim::SGD optimizer(stacked.net->parameters(),
                                torch::optim::SGDOptions(0.1).momentum(0.9));
    pipeline.shard(optimizer);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      static_cast<void>(pipeline.step({test::numbers({6, 32}, step)}));
      optimizer.step();
    }
    if (group.rank() > 0) return;
    std::set<const void*> whole;
    for (const Parallelized::Part& part : pipeline.parallelized().parts()) {
      if (!part.is_own) continue;
      const bool is_cut = !part.tensor.is_same(part.parameter);
      if (part.parameter.storage().nbytes() > 0 &&
          whole.insert(part.parameter.storage().unsafeGetStorageImpl()).second) {
        all.parameters += static_cast<std::int64_t>(part.parameter.storage().nbytes());
      }
      // In stages 1 and 2 a part lies in the parameters' memory.
      if (is_cut && zero_level == 3) {
        all.parameters += static_cast<std::int64_t>(part.tensor.nbytes());
      }
    }
    all.num_whole = whole.size();
    for (const auto& [key, state] : optimizer.state()) {
      const auto& sgd = dynamic_cast<const torch::optim::SGDParamState&>(*state);
      all.state += static_cast<std::int64_t>(sgd.momentum_buffer().nbytes());
    }
    for (const torch::Tensor& tensor : optimizer.param_groups()[0].params()) {
      if (tensor.grad().defined()) {
        all.gradients += static_cast<std::int64_t>(tensor.grad().nbytes());
      }
    }
  });
  return all;
}

TEST(ShardedPipeline, KeepsItsPartOfItsStages) {
  constexpr std::int64_t kStage = 4 * test::kLayerBytes;
  const auto about = [](std::int64_t bytes) {
    return AllOf(::testing::Ge(bytes), ::testing::Le(bytes + bytes / 8));
  };
  const Kept none = kept(0, 2);
  EXPECT_EQ(none.state, kStage);
  EXPECT_EQ(none.gradients, kStage);
  for (const int zero_level : {1, 2}) {
    const Kept memory = kept(zero_level, 2);
    EXPECT_THAT(memory.parameters, about(kStage));
    EXPECT_EQ(memory.state, kStage / 2);
    EXPECT_EQ(memory.gradients, kStage / 2);
  }
  const Kept cut = kept(3, 2);
  EXPECT_EQ(cut.num_whole, 2);
  EXPECT_THAT(cut.parameters, about(kStage / 2 + 2 * test::kLayerBytes));
  EXPECT_THAT(cut.state, about(kStage / 2));
}

// With places for all buckets a step gathers each once; with two, each micro-batch anew.
TEST(ShardedPipeline, GathersOnceAStepWhereAllBucketsMayBeWhole) {
  EXPECT_EQ(kept(3, 2).num_whole, 2);
  EXPECT_EQ(kept(3, 0).num_whole, 4);
  Arranged arranged{.pipe = 2, .data = 2, .zero_level = 3, .micro_batches = 3, .rows = 6};
  const Outcome expected = Alone(test::residual_net()).train(arranged);
  for (const std::int64_t gathered : {0, 2, 3}) {
    arranged.gathered_buckets = gathered;
    run_ranks(4, [&](const comm::Group& group) {
      test::expect_same_bits(test::train(test::residual_net(), arranged, group), expected);
    });
  }
}

// The sum over data is among the actions: right after the last backward of a stage.
TEST(ShardedPipeline, ReducesAStageAsSoonAsItIsComplete) {
  using schedule::ActionKind;
  run_ranks(4, [](const comm::Group& group) {
    const Network network = test::language_model(0);
    Plan plan = plan_of({.pipe = 2, .data = 2, .schedule = "interleaved"}, network);
    plan.stages = {{network.modules[0], 0},
                   {network.modules[1], 1},
                   {network.modules[2], 2},
                   {network.modules[3], 3}};
    TrainingStep pipeline(*network.module, network.forward, plan, group);
    EXPECT_TRUE(pipeline.step(network.batch(4, 0), {.report = true}).report.has_value());
    const auto& actions = schedule::item(pipeline.schedule().ranks, pipeline.stage_group().rank());
    const auto reduced = std::ranges::find(actions, ActionKind::kReduce, &schedule::Action::kind);
    ASSERT_NE(reduced, actions.end());
    EXPECT_EQ(std::prev(reduced)->stage, reduced->stage);
    const auto is_backward = [&](const schedule::Action& action) {
      return action.kind == ActionKind::kBackward;
    };
    EXPECT_TRUE(std::any_of(reduced, actions.end(), is_backward));  // of the other stage
  });
}

TEST(ShardedPipeline, ClipsByTheNormOfAllStagesAndParts) {
  constexpr double kMost = 0.05;
  const Arranged whole{.pipe = 2, .data = 2};
  double expected = 0;
  std::vector<torch::Tensor> clipped;
  for (const int zero_level : {0, 1, 2, 3}) {
    run_ranks(4, [&](const comm::Group& group) {
      const Network network = test::language_model(0, /*tied=*/true);
      Arranged arranged = whole;
      arranged.zero_level = zero_level;
      TrainingStep pipeline(*network.module, network.forward, plan_of(arranged, network), group);
      torch::optim::SGD optimizer(network.module->parameters(), 0.1);
      pipeline.shard(optimizer);
      const Sharing sharing = pipeline.sharing();
      const int rank = pipeline.data_group().rank();
      static_cast<void>(pipeline.step(part_of(network.batch(8, 0), rank, 2)));
      const auto norm = clip_by_global_norm(optimizer, kMost, sharing).item<double>();
      EXPECT_TRUE(all_finite(optimizer, sharing));
      optimizer.step();
      pipeline.gather_parameters();
      if (zero_level == 0 && group.rank() == 0) {
        expected = norm;
        clipped = test::copies(*network.module);
      } else if (zero_level > 0) {
        EXPECT_EQ(norm, expected);
        EXPECT_TRUE(test::all_equal(test::copies(*network.module), clipped));
      }
    });
  }
  // As one process has it.
  const Network plain = test::language_model(0, /*tied=*/true);
  torch::optim::SGD optimizer(plain.module->parameters(), 0.1);
  plain.forward(plain.batch(8, 0))[0].backward();
  EXPECT_NEAR(expected, global_norm(optimizer), 1e-5 * expected);
}

// Each rank used to clip by the norm of its own stages.
TEST(ShardedPipeline, RefusesToClipByTheNormOfOneRank) {
  for (const Arranged& arranged : {Arranged{.pipe = 2, .data = 1}, Arranged{.pipe = 2, .data = 2},
                                   Arranged{.pipe = 2, .data = 2, .zero_level = 2}}) {
    run_ranks(arranged.pipe * arranged.data, [&](const comm::Group& group) {
      const Network network = test::language_model(0, /*tied=*/true);
      TrainingStep pipeline(*network.module, network.forward, plan_of(arranged, network), group);
      torch::optim::SGD optimizer(network.module->parameters(), 0.1);
      pipeline.shard(optimizer);
      const int rank = pipeline.data_group().rank();
      const auto batch = part_of(network.batch(8, 0), rank, static_cast<int>(arranged.data));
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        static_cast<void>(pipeline.step(batch));
        for (const double norm_type : {2.0, 1.0, std::numeric_limits<double>::infinity()}) {
          EXPECT_THAT(usage_error([&] {
                        torch::nn::utils::clip_grad_norm_(network.module->parameters(), 1e-3,
                                                          norm_type);
                      }),
                      HasSubstr("clip_by_global_norm(optimizer, max_norm, "));
        }
        EXPECT_THAT(usage_error([&] { clip_by_global_norm(optimizer, 1e-3); }),
                    HasSubstr("sharing() of the Parallelized or the TrainingStep"));
        EXPECT_THROW(LossScale().unscale(optimizer), UsageError);
        // To look at norms is no mistake.
        if (arranged.zero_level == 0) {
          for (const torch::Tensor& parameter : network.module->parameters()) {
            if (parameter.grad().defined()) parameter.grad().norm();
          }
        }
        EXPECT_GT(clip_by_global_norm(optimizer, 1e-3, pipeline.sharing()).item<double>(), 1e-3);
        EXPECT_LT(global_norm(optimizer, pipeline.sharing()), 1.1e-3);
        optimizer.step();
      }
    });
  }
}

// Gradients of what is not cut add up over steps, others are replaced.
TEST(ShardedPipeline, AddsToGradientsOfWhatIsNotCut) {
  run_ranks(2, [](const comm::Group& group) {
    const Network network = test::skipping_net();
    const Network plain = test::skipping_net();
    Plan plan = plan_of({.pipe = 1, .data = 2}, network);
    plan.zero_level_of = {{"first", 2}};
    TrainingStep pipeline(*network.module, network.forward, plan, group);
    torch::optim::SGD optimizer(network.module->parameters(), 0.1);
    pipeline.shard(optimizer);
    for (const std::int64_t step : {0, 1}) {
      const auto batch = plain.batch(8, step);
      static_cast<void>(pipeline.step(part_of(batch, group.rank(), 2)));
      plain.forward(batch)[0].backward();
    }
    auto* const got = network.module->as<test::SkippingNetImpl>();
    auto* const expected = plain.module->as<test::SkippingNetImpl>();
    EXPECT_TRUE(
        torch::allclose(got->bottom->weight.grad(), expected->bottom->weight.grad(), 1e-5, 1e-6));
    EXPECT_THAT(usage_error([&] { got->first->weight.grad().norm(); }),
                HasSubstr("first.weight was used, which no rank has whole"));
    EXPECT_THROW(got->first->weight.grad().data_ptr<float>(), c10::Error);  // and is no null
  });
}

// The optimizer is a plain one again, with the whole state of this rank's stages.
TEST(ShardedPipeline, GivesOptimizersBack) {
  run_ranks(4, [](const comm::Group& group) {
    const Network network = test::residual_net();
    torch::optim::AdamW optimizer(network.module->parameters(), 0.01);
    {
      const Arranged arranged{.pipe = 2, .data = 2, .zero_level = 2};
      TrainingStep pipeline(*network.module, network.forward, plan_of(arranged, network), group);
      pipeline.shard(optimizer);
      static_cast<void>(pipeline.step(network.batch(4, 0)));
      optimizer.step();
      pipeline.unshard(optimizer);
      pipeline.gather_parameters();
    }
    const auto parameters = network.module->parameters();
    const auto& stepped = optimizer.param_groups()[0].params();
    ASSERT_EQ(stepped.size(), parameters.size());
    for (std::size_t i = 0; i < stepped.size(); ++i) {
      EXPECT_TRUE(stepped[i].is_same(parameters[i])) << i;
    }
    const bool is_last = group.rank() % 2 == 1;
    const auto& head = network.module->as<test::ResidualNetImpl>()->head->weight;
    EXPECT_EQ(optimizer.state().count(head.unsafeGetTensorImpl()) == 0, is_last);
    network.forward(network.batch(4, 0))[0].backward();  // as any module
  });
}

// An optimizer may have parameters of one stage alone, and step with others.
TEST(ShardedPipeline, TakesSeveralOptimizers) {
  run_ranks(4, [](const comm::Group& group) {
    const Network network = test::skipping_net();
    auto* const net = network.module->as<test::SkippingNetImpl>();
    std::vector<torch::Tensor> rest;
    for (const auto& item : net->named_parameters()) {
      if (!item.key().starts_with("first")) rest.push_back(item.value());
    }
    torch::optim::SGD of_first(net->first->parameters(), 0.1);
    torch::optim::SGD of_rest(rest, 0.1);
    const Arranged arranged{.pipe = 2, .data = 2, .zero_level = 1};
    TrainingStep pipeline(*net, network.forward, plan_of(arranged, network), group);
    pipeline.shard(of_first);
    pipeline.prepare(network.batch(4, 0));
    pipeline.shard(of_rest);  // before and after stages are known
    const auto before = test::copies(*net);
    static_cast<void>(pipeline.step(network.batch(4, 0)));
    of_first.step();
    of_rest.step();
    pipeline.gather_parameters();
    const auto after = test::copies(*net);
    for (std::size_t i = 0; i < after.size(); ++i) EXPECT_FALSE(torch::equal(before[i], after[i]));
  });
}

// -- mistakes ----------------------------------------------------------------------------------

std::string error_of(const std::function<void(const Network&, const comm::Group&)>& mistake) {
  std::string message;
  run_ranks(4, [&](const comm::Group& group) {
    const Network network = test::skipping_net();
    const std::string text = usage_error([&] { mistake(network, group); });
    if (group.rank() == 3) message = text;
  });
  return message;
}

TEST(ShardedPipeline, RefusesOptimizersThatItCannotCut) {
  const Arranged arranged{.pipe = 2, .data = 2, .zero_level = 1};
  EXPECT_THAT(error_of([&](const Network& network, const comm::Group& group) {
                TrainingStep pipeline(*network.module, network.forward, plan_of(arranged, network),
                                      group);
                torch::optim::LBFGS optimizer(network.module->parameters());
                pipeline.shard(optimizer);
              }),
              HasSubstr("LBFGS"));
  EXPECT_THAT(error_of([&](const Network& network, const comm::Group& group) {
                TrainingStep pipeline(*network.module, network.forward, plan_of(arranged, network),
                                      group);
                torch::optim::SGD optimizer(test::skipping_net().module->parameters(), 0.1);
                pipeline.shard(optimizer);
              }),
              HasSubstr("none of the module's parameters"));
  EXPECT_THAT(error_of([&](const Network& network, const comm::Group& group) {
                TrainingStep pipeline(*network.module, network.forward, plan_of(arranged, network),
                                      group);
                pipeline.prepare(network.batch(4, 0));  // which makes no difference
                torch::optim::SGD optimizer(test::skipping_net().module->parameters(), 0.1);
                pipeline.shard(optimizer);
              }),
              HasSubstr("none of the module's parameters"));
  EXPECT_THAT(error_of([&](const Network& network, const comm::Group& group) {
                TrainingStep pipeline(*network.module, network.forward, plan_of(arranged, network),
                                      group);
                torch::optim::SGD optimizer(network.module->parameters(), 0.1);
                pipeline.shard(optimizer);
                pipeline.prepare(network.batch(4, 0));
                pipeline.shard(optimizer);
              }),
              HasSubstr("steps slices of the parameters already"));
  EXPECT_THAT(error_of([&](const Network& network, const comm::Group& group) {
                TrainingStep pipeline(*network.module, network.forward, plan_of(arranged, network),
                                      group);
                static_cast<void>(pipeline.step(network.batch(4, 0)));
              }),
              AllOf(HasSubstr("is in none that it knows"), HasSubstr("call shard(optimizer)")));
}

TEST(ShardedPipeline, RefusesStagesThatAreTooSmallToBeCut) {
  EXPECT_THAT(error_of([&](const Network& network, const comm::Group& group) {
                Plan plan = plan_of({.pipe = 2, .data = 2, .zero_level = 1}, network);
                const torch::NoGradGuard no_grad;
                auto* const net = network.module->as<test::SkippingNetImpl>();
                for (auto& parameter : net->first->parameters()) parameter.requires_grad_(false);
                net->second->weight.requires_grad_(false);  // its bias is all there is in stage 0
                plan.stages = {{"first", 0}, {"bottom", 1}};
                TrainingStep pipeline(*network.module, network.forward, plan, group);
                pipeline.prepare(network.batch(4, 0));
              }),
              AllOf(HasSubstr("could not cut its stages"), HasSubstr("too small to be cut")));
}

TEST(ShardedPipeline, RefusesNamesThatNoParameterHas) {
  EXPECT_THAT(error_of([&](const Network& network, const comm::Group& group) {
                Plan plan = plan_of({.pipe = 2, .data = 2}, network);
                plan.zero_level_of = {{"botom", 3}};
                TrainingStep pipeline(*network.module, network.forward, plan, group);
                pipeline.prepare(network.batch(4, 0));
              }),
              AllOf(HasSubstr("zero_level_of"), HasSubstr("botom")));
}

TEST(ShardedPipeline, RefusesAStepThatNobodyWouldSee) {
  EXPECT_THAT(error_of([&](const Network& network, const comm::Group& group) {
                TrainingStep pipeline(*network.module, network.forward,
                                      plan_of({.pipe = 2, .data = 2, .zero_level = 2}, network),
                                      group);
                torch::optim::SGD optimizer(network.module->parameters(), 0.1);
                pipeline.shard(optimizer);
                static_cast<void>(pipeline.step(network.batch(4, 0)));
                optimizer.step();
                pipeline.gather_parameters();
                optimizer.step();  // too late
                static_cast<void>(pipeline.step(network.batch(4, 0)));
              }),
              HasSubstr("an optimizer stepped after an operator had gathered the parameters"));
}

// Stage 3 needs the ranks along data inside forward.
TEST(ShardedPipeline, EndsOnAllRanksWhereOneFails) {
  const auto thrown = run_ranks_catching(4, [](const comm::Group& group) {
    const Network network = test::language_model(0);
    TrainingStep pipeline(*network.module, network.forward,
                          plan_of({.pipe = 2, .data = 2, .zero_level = 3}, network), group);
    torch::optim::SGD optimizer(network.module->parameters(), 0.1);
    pipeline.shard(optimizer);
    auto batch = network.batch(4, 0);
    if (pipeline.data_group().rank() == 1) batch[1] = batch[1] + 100;  // targets out of range
    static_cast<void>(pipeline.step(batch));
    static_cast<void>(pipeline.step(network.batch(4, 1)));
  });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(testing::message_of<CommError>(thrown[static_cast<std::size_t>(rank)]),
                AllOf(HasSubstr("rank"), HasSubstr("out of bounds")))
        << rank;
  }
  EXPECT_THAT(testing::message_of<UsageError>(thrown[3]), HasSubstr("out of bounds"));
}

}  // namespace
}  // namespace trireme
