// SPDX-License-Identifier: Apache-2.0
// Forward through the stages, in evaluation mode: every bit as the module by itself.
#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/pipeline/loops.h>
#include <tests/ranks/pipeline/networks.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace trireme {
namespace {

using test::Arranged;
using test::Network;
using test::part_of;
using test::plan_of;
using test::usage_error;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::run_ranks_catching;

using Tensors = std::vector<torch::Tensor>;

// The network's forward with what the module gives as a second result.
template <typename Module>
Network with_output(Network network) {
  auto* const module = network.module->as<Module>();
  network.forward = [module, loss = network.forward](const Tensors& in) -> Tensors {
    const torch::Tensor output = module->forward(in[0]);
    return {in[1].is_floating_point()
                ? torch::mse_loss(output, in[1])
                : torch::cross_entropy_loss(output.flatten(0, -2), in[1].flatten()),
            output};
  };
  return network;
}

struct Case {
  std::string name;
  std::function<Network()> make;
  friend std::ostream& operator<<(std::ostream& out, const Case& test_case) {
    return out << test_case.name;
  }
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"residual", [] { return with_output<test::ResidualNetImpl>(test::residual_net()); }},
      {"language",
       [] { return with_output<models::GPTImpl>(test::language_model(0.2, /*tied=*/true)); }},
      {"skipping", [] { return with_output<test::SkippingNetImpl>(test::skipping_net()); }},
      {"recurrent", [] { return with_output<test::RecurrentNetImpl>(test::recurrent_net()); }}};
  return all;
}

// What the module gives by itself, micro-batch for micro-batch.
Tensors evaluate_alone(const Network& network, const Tensors& batch, std::int64_t count) {
  const torch::NoGradGuard no_grad;
  network.module->eval();
  const auto micro_batches = test::micro_batches_of(batch, std::min(count, batch[0].size(0)));
  Tensors losses;
  Tensors outputs;
  for (const auto& micro_batch : micro_batches) {
    const Tensors results = network.forward(micro_batch);
    losses.push_back(results[0]);
    outputs.push_back(results[1]);
  }
  network.module->train();
  return {test::mean_of(losses, test::weights_of(micro_batches)), torch::cat(outputs)};
}

class EvaluationOf : public ::testing::TestWithParam<Case> {};

// Rows that micro-batches do not divide, and fewer rows than micro-batches.
TEST_P(EvaluationOf, HasTheBitsOfTheModuleByItself) {
  for (const int pipe : {1, 2, 4}) {
    for (const std::int64_t micro_batches : {1, 3}) {
      run_ranks(pipe, [&](const comm::Group& group) {
        const Arranged arranged{.pipe = pipe, .micro_batches = micro_batches};
        SCOPED_TRACE(::testing::PrintToString(arranged));
        const Network network = GetParam().make();
        TrainingStep pipeline(*network.module, network.forward, plan_of(arranged, network), group);
        torch::optim::SGD optimizer(network.module->parameters(), 0.1);
        static_cast<void>(pipeline.step(network.batch(6, 0)));
        optimizer.step();
        std::vector<StepEvaluation> got;
        for (const std::int64_t rows : {6, 5, 2}) {
          got.push_back(pipeline.evaluate(network.batch(rows, 7), {.share_results = true}));
        }
        EXPECT_TRUE(network.module->is_training());
        pipeline.gather_parameters();
        std::size_t i = 0;
        for (const std::int64_t rows : {6, 5, 2}) {
          const Tensors expected = evaluate_alone(network, network.batch(rows, 7), micro_batches);
          EXPECT_TRUE(torch::equal(got[i].loss, expected[0])) << rows << " rows";
          ASSERT_EQ(got[i].results.size(), 1);
          EXPECT_TRUE(torch::equal(got[i].results[0], expected[1])) << rows << " rows";
          ++i;
        }
      });
    }
  }
}

// Ranks along data have rows of their own, and cut parameters.
TEST_P(EvaluationOf, HasTheBitsOfTheModuleWhereParametersAreCut) {
  for (const int zero_level : {1, 3}) {
    run_ranks(4, [&](const comm::Group& group) {
      const Arranged arranged{.pipe = 2, .data = 2, .zero_level = zero_level, .micro_batches = 2};
      const Network network = GetParam().make();
      TrainingStep pipeline(*network.module, network.forward, plan_of(arranged, network), group);
      torch::optim::SGD optimizer(network.module->parameters(), 0.1);
      pipeline.shard(optimizer);
      const int rank = pipeline.data_group().rank();
      for (int step = 0; step < 2; ++step) {
        static_cast<void>(pipeline.step(part_of(network.batch(8, step), rank, 2)));
        optimizer.step();
      }
      const Tensors batch = part_of(network.batch(8, 7), rank, 2);
      const StepEvaluation got = pipeline.evaluate(batch, {.share_results = true});
      pipeline.gather_parameters();
      const Tensors expected = evaluate_alone(network, batch, 2);
      EXPECT_TRUE(torch::equal(got.loss, expected[0]));
      EXPECT_TRUE(torch::equal(got.results[0], expected[1]));
    });
  }
}

// Stages of equal cost: in evaluation the operators are others.
TEST_P(EvaluationOf, KeepsTheStagesOfTraining) {
  run_ranks(2, [&](const comm::Group& group) {
    const Network network = GetParam().make();
    Plan plan{.mesh = {{kStageAxis, 2}}, .micro_batches = 2};
    TrainingStep pipeline(*network.module, network.forward, plan, group);
    const Tensors batch = network.batch(4, 7);
    const StepEvaluation before = pipeline.evaluate(batch);  // decides on the stages
    const Tensors expected = evaluate_alone(network, batch, 2);
    EXPECT_TRUE(torch::equal(before.loss, expected[0]));
    EXPECT_EQ(before.results[0].defined(), group.rank() == 1);
    torch::optim::SGD optimizer(network.module->parameters(), 0.1);
    static_cast<void>(pipeline.step(network.batch(4, 0)));
    optimizer.step();
    const StepEvaluation after = pipeline.evaluate(batch);
    pipeline.gather_parameters();
    EXPECT_TRUE(torch::equal(after.loss, evaluate_alone(network, batch, 2)[0]));
    EXPECT_FALSE(torch::equal(after.loss, before.loss));
  });
}

INSTANTIATE_TEST_SUITE_P(Networks, EvaluationOf, ::testing::ValuesIn(cases()),
                         [](const auto& param_info) { return param_info.param.name; });

Tensors trained(const Network& network, const comm::Group& group, bool evaluates) {
  const Arranged arranged{.pipe = 2, .micro_batches = 2};
  TrainingStep pipeline(*network.module, network.forward, plan_of(arranged, network), group);
  torch::optim::SGD optimizer(network.module->parameters(), 0.1);
  Tensors losses;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    losses.push_back(pipeline.step(network.batch(4, step)).loss.clone());
    if (evaluates) static_cast<void>(pipeline.evaluate(network.batch(3, 9)));
    optimizer.step();
  }
  pipeline.gather_parameters();
  for (const auto& tensor : test::clones(network.module->parameters())) losses.push_back(tensor);
  for (const auto& tensor : test::clones(network.module->buffers())) losses.push_back(tensor);
  return losses;
}

// Dropout's masks, running statistics, gradients between backward and the optimizer.
TEST(Evaluation, LeavesTrainingAsItIs) {
  for (const Case& test_case : cases()) {
    run_ranks(2, [&](const comm::Group& group) {
      SCOPED_TRACE(test_case.name);
      const Tensors expected = trained(test_case.make(), group, /*evaluates=*/false);
      test::expect_same_bits(trained(test_case.make(), group, /*evaluates=*/true), expected,
                             "tensor");
    });
  }
}

TEST(Evaluation, LeavesModesAsTheyAre) {
  run_ranks(2, [](const comm::Group& group) {
    const Network network = test::residual_net();
    const Arranged arranged{.pipe = 2};
    TrainingStep pipeline(*network.module, network.forward, plan_of(arranged, network), group);
    auto& net = *network.module->as<test::ResidualNetImpl>();
    net.blocks[1]->eval();
    static_cast<void>(pipeline.evaluate(network.batch(4, 0)));
    EXPECT_TRUE(net.is_training());
    EXPECT_TRUE(net.blocks[0]->is_training());
    EXPECT_FALSE(net.blocks[1]->is_training());
    for (const auto& child : net.blocks[1]->children()) EXPECT_FALSE(child->is_training());
  });
}

TEST(Evaluation, IsRecordedBesideTraining) {
  run_ranks(2, [](const comm::Group& group) {
    const Network network = test::skipping_net();
    int calls = 0;
    const auto forward = [&](const Tensors& in) {
      ++calls;
      return network.forward(in);
    };
    const Arranged arranged{.pipe = 2};
    TrainingStep pipeline(*network.module, forward, plan_of(arranged, network), group);
    for (int step = 0; step < 8; ++step) {
      static_cast<void>(pipeline.step(network.batch(4, step)));
      static_cast<void>(pipeline.evaluate(network.batch(4, step)));
    }
    // Each at first, and 1, 2 and 4 later to compare.
    EXPECT_EQ(calls, 8);
  });
}

// Of training, and of both kinds of evaluation.
TEST(Evaluation, KeepsTheRecordsThatWereUsedLast) {
  using Call = std::function<void(TrainingStep&, const Tensors& batch)>;
  const std::vector<Call> kinds = {
      [](TrainingStep& pipeline, const Tensors& batch) { static_cast<void>(pipeline.step(batch)); },
      [](TrainingStep& pipeline, const Tensors& batch) {
        static_cast<void>(pipeline.evaluate(batch));
      },
      [](TrainingStep& pipeline, const Tensors& batch) {
        static_cast<void>(pipeline.evaluate_micro_batches({batch}));
      }};
  run_ranks(2, [&](const comm::Group& group) {
    const Network network = test::skipping_net();
    int calls = 0;
    const auto forward = [&](const Tensors& in) {
      ++calls;
      return network.forward(in);
    };
    const Arranged arranged{.pipe = 2, .micro_batches = 1};
    TrainingStep pipeline(*network.module, forward, plan_of(arranged, network), group);
    pipeline.prepare(network.batch(100, 0));
    for (const Call& kind : kinds) {
      const auto is_recorded = [&](std::int64_t rows) {
        calls = 0;
        kind(pipeline, network.batch(rows, 0));
        return calls > 0;
      };
      const auto most = static_cast<std::int64_t>(kMostRecords);
      // After one use and after two a record is compared with a new one, and then after four.
      for (std::int64_t rows = 1; rows <= most + 1; ++rows) {
        for (int use = 0; use < 3; ++use) EXPECT_TRUE(is_recorded(rows)) << rows;
      }
      EXPECT_FALSE(is_recorded(most - 1));
      EXPECT_TRUE(is_recorded(1));  // in place of 2
      EXPECT_FALSE(is_recorded(3));
      EXPECT_TRUE(is_recorded(2));
    }
  });
}

// Numbers become a vector; what an earlier stage makes is on its rank.
TEST(Evaluation, GivesWhatForwardReturns) {
  run_ranks(2, [](const comm::Group& group) {
    const Network network = test::skipping_net();
    auto* const net = network.module->as<test::SkippingNetImpl>();
    const auto forward = [net](const Tensors& in) -> Tensors {
      const torch::Tensor first = net->first(in[0]);
      const torch::Tensor output = net->forward(in[0]);
      return {torch::mse_loss(output, in[1]), first, output.abs().mean(), in[1]};
    };
    Plan plan{
        .mesh = {{kStageAxis, 2}}, .stages = {{"first", 0}, {"third", 1}}, .micro_batches = 3};
    TrainingStep pipeline(*network.module, forward, plan, group);
    const Tensors batch = network.batch(6, 0);
    const StepEvaluation own = pipeline.evaluate(batch);
    ASSERT_EQ(own.results.size(), 3);
    EXPECT_EQ(own.results[0].defined(), group.rank() == 0);
    EXPECT_EQ(own.results[1].defined(), group.rank() == 1);
    const StepEvaluation shared = pipeline.evaluate(batch, {.share_results = true});
    Tensors firsts;
    Tensors means;
    const torch::NoGradGuard no_grad;
    for (const auto& micro_batch : test::micro_batches_of(batch, 3)) {
      const Tensors results = forward(micro_batch);
      firsts.push_back(results[1]);
      means.push_back(results[2]);
    }
    EXPECT_TRUE(torch::equal(shared.results[0], torch::cat(firsts)));
    EXPECT_TRUE(torch::equal(shared.results[1], torch::stack(means)));
    EXPECT_TRUE(torch::equal(shared.results[2], batch[1]));
    EXPECT_EQ(shared.results[2].sizes(), batch[1].sizes());
  });
}

// -- mistakes ----------------------------------------------------------------------------------

std::string error_of(const std::function<Tensors(const Network&, int rank)>& batch) {
  std::string message;
  run_ranks(2, [&](const comm::Group& group) {
    const Network network = test::skipping_net();
    const Arranged arranged{.pipe = 2};
    TrainingStep pipeline(*network.module, network.forward, plan_of(arranged, network), group);
    static_cast<void>(pipeline.evaluate(network.batch(4, 0)));
    const std::string text =
        usage_error([&] { static_cast<void>(pipeline.evaluate(batch(network, group.rank()))); });
    EXPECT_TRUE(network.module->is_training());
    if (group.rank() == 0) message = text;
  });
  return message;
}

TEST(Evaluation, RefusesBatchesOnAllRanks) {
  EXPECT_THAT(error_of([](const Network&, int) { return Tensors(); }), HasSubstr("no tensors"));
  EXPECT_THAT(error_of([](const Network& network, int) { return network.batch(0, 0); }),
              HasSubstr("a batch of 0 rows"));
  EXPECT_THAT(error_of([](const Network& network, int rank) {
                return rank == 0 ? network.batch(4, 0) : Tensors();
              }),
              AllOf(HasSubstr("ranks differ in the shapes and mode of a batch"),
                    HasSubstr("was given no tensors")));
  EXPECT_THAT(error_of([](const Network& network, int rank) { return network.batch(4, rank); }),
              HasSubstr("ranks differ in the batch of one pipeline"));
}

TEST(Evaluation, RefusesAForwardWithoutALoss) {
  run_ranks(2, [](const comm::Group& group) {
    const Network network = with_output<test::SkippingNetImpl>(test::skipping_net());
    auto* const net = network.module->as<test::SkippingNetImpl>();
    const auto forward = [&](const Tensors& in) -> Tensors {
      return net->is_training() ? network.forward(in) : Tensors{net->forward(in[0])};
    };
    const Arranged arranged{.pipe = 2};
    TrainingStep pipeline(*network.module, forward, plan_of(arranged, network), group);
    EXPECT_THAT(usage_error([&] { static_cast<void>(pipeline.evaluate(network.batch(4, 0))); }),
                HasSubstr("expected the loss, one floating-point number"));
  });
}

TEST(Evaluation, EndsOnAllRanksWhereOneFails) {
  const auto thrown = run_ranks_catching(4, [](const comm::Group& group) {
    const Network network = test::language_model(0);
    const Arranged arranged{.pipe = 2, .data = 2};
    TrainingStep pipeline(*network.module, network.forward, plan_of(arranged, network), group);
    Tensors batch = network.batch(4, 0);
    static_cast<void>(pipeline.step(batch));
    if (pipeline.data_group().rank() == 1) batch[1] = batch[1] + 100;  // targets out of range
    static_cast<void>(pipeline.evaluate(batch));
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
