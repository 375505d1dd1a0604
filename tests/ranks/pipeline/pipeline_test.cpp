// SPDX-License-Identifier: Apache-2.0
// Unmodified modules trained in stages: every bit as one process with the same micro-batches.
#include <trireme/base/error.h>
#include <trireme/graph/mark.h>
#include <trireme/parallel/training_step.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/pipeline/networks.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace trireme {
namespace {

using test::Network;
using test::usage_error;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::run_ranks_catching;

constexpr std::int64_t kSteps = 2;

struct Outcome {
  std::vector<torch::Tensor> losses;
  std::vector<torch::Tensor> tensors;  ///< parameters and buffers
};

Outcome outcome_of(const Network& network, std::vector<torch::Tensor> losses) {
  Outcome outcome = {.losses = std::move(losses), .tensors = {}};
  for (const auto& tensor : network.module->parameters()) {
    outcome.tensors.push_back(tensor.detach().clone());
  }
  for (const auto& tensor : network.module->buffers()) outcome.tensors.push_back(tensor.clone());
  return outcome;
}

void expect_same_bits(const Outcome& got, const Outcome& expected) {
  ASSERT_EQ(got.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < got.losses.size(); ++i) {
    EXPECT_TRUE(torch::equal(got.losses[i], expected.losses[i]))
        << "loss of step " << i << ": " << got.losses[i].item<double>() << " and "
        << expected.losses[i].item<double>();
  }
  ASSERT_EQ(got.tensors.size(), expected.tensors.size());
  for (std::size_t i = 0; i < got.tensors.size(); ++i) {
    EXPECT_TRUE(torch::equal(got.tensors[i], expected.tensors[i])) << "tensor " << i;
  }
}

// This rank's rows of a batch for all ranks along data.
std::vector<torch::Tensor> part_of(const std::vector<torch::Tensor>& batch,
                                   const comm::Group& data) {
  std::vector<torch::Tensor> part;
  const auto rank = static_cast<std::size_t>(data.rank());
  for (const torch::Tensor& tensor : batch) part.push_back(tensor.chunk(data.size())[rank]);
  return part;
}

Outcome train(const Network& network, const Plan& plan, const comm::Group& group,
              std::int64_t rows) {
  torch::optim::SGD optimizer(network.module->parameters(),
                              torch::optim::SGDOptions(0.1).momentum(0.9));
  TrainingStep pipeline(*network.module, network.forward, plan, group);
  std::vector<torch::Tensor> losses;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const auto batch = part_of(network.batch(rows, step), pipeline.data_group());
    losses.push_back(pipeline.step(batch).loss.clone());
    optimizer.step();
  }
  pipeline.gather_parameters();
  return outcome_of(network, std::move(losses));
}

// The loop that a user would write: micro-batches one after the other, divided once.
Outcome train_plainly(const Network& network, std::int64_t rows, std::int64_t micro_batches) {
  torch::optim::SGD optimizer(network.module->parameters(),
                              torch::optim::SGDOptions(0.1).momentum(0.9));
  std::vector<torch::Tensor> losses;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const auto batch = network.batch(rows, step);
    torch::Tensor sum;
    for (std::int64_t i = 0; i < micro_batches; ++i) {
      std::vector<torch::Tensor> part;
      for (const auto& tensor : batch) {
        part.push_back(tensor.chunk(micro_batches)[static_cast<std::size_t>(i)]);
      }
      const torch::Tensor loss = network.forward(part)[0];
      loss.backward();
      sum = sum.defined() ? sum + loss.detach() : loss.detach();
    }
    for (const auto& parameter : network.module->parameters()) {
      if (parameter.grad().defined()) parameter.grad().div_(micro_batches);
    }
    losses.push_back(sum / micro_batches);
    optimizer.step();
  }
  return outcome_of(network, std::move(losses));
}

// `num_stages` stages of the first modules.
Plan plan_of(const Network& network, int pipe, int data, int num_stages,
             const std::string& schedule, std::int64_t micro_batches) {
  Plan plan;
  plan.mesh = {{kDataAxis, data}, {kStageAxis, pipe}};
  plan.schedule = schedule;
  plan.micro_batches = micro_batches;
  for (int stage = 0; stage < num_stages; ++stage) {
    plan.stages.emplace_back(network.modules[static_cast<std::size_t>(stage)], stage);
  }
  return plan;
}

struct Case {
  std::string name;
  std::function<Network()> make;
  friend std::ostream& operator<<(std::ostream& out, const Case& test_case) {
    return out << test_case.name;
  }
};

class PipelineOf : public ::testing::TestWithParam<Case> {};

TEST_P(PipelineOf, HasTheBitsOfAPlainLoop) {
  constexpr std::int64_t kMicroBatches = 3;
  const Outcome expected = train_plainly(GetParam().make(), 6, kMicroBatches);
  for (const int pipe : {1, 2, 4}) {
    run_ranks(pipe, [&](const comm::Group& group) {
      const Network network = GetParam().make();
      const Plan plan = plan_of(network, pipe, 1, pipe, "1f1b", kMicroBatches);
      expect_same_bits(train(network, plan, group, 6), expected);
    });
  }
}

TEST_P(PipelineOf, HasTheSameBitsByEverySchedule) {
  for (const std::int64_t micro_batches : {1, 5}) {
    const std::int64_t rows = 2 * micro_batches;
    const Outcome expected = train_plainly(GetParam().make(), rows, micro_batches);
    for (const std::string schedule : {"gpipe", "interleaved", "zb-h1", "zb-h2", "zb-v"}) {
      run_ranks(2, [&](const comm::Group& group) {
        const Network network = GetParam().make();
        const int stages = schedule == "interleaved" || schedule == "zb-v" ? 4 : 2;
        const Plan plan = plan_of(network, 2, 1, stages, schedule, micro_batches);
        SCOPED_TRACE(schedule);
        expect_same_bits(train(network, plan, group, rows), expected);
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, PipelineOf,
                         ::testing::Values(Case{"residual", test::residual_net},
                                           Case{"language", [] { return test::language_model(0); }},
                                           Case{"skipping", test::skipping_net},
                                           Case{"recurrent", test::recurrent_net},
                                           Case{"padded", test::padded_net}),
                         [](const auto& param_info) { return param_info.param.name; });

TEST(TrainingStep, DrawsTheSameNumbersForAnyNumberOfStagesAndRanksAlongData) {
  Outcome expected;
  run_ranks(1, [&](const comm::Group& group) {
    const Network network = test::language_model(0.2);
    expected = train(network, plan_of(network, 1, 1, 1, "1f1b", 4), group, 8);
  });
  Outcome other;
  run_ranks(1, [&](const comm::Group& group) {
    const Network network = test::language_model(0.1);
    other = train(network, plan_of(network, 1, 1, 1, "1f1b", 4), group, 8);
  });
  EXPECT_FALSE(torch::equal(expected.losses[1], other.losses[1]));
  for (const int data : {1, 2}) {
    run_ranks(2 * data, [&](const comm::Group& group) {
      const Network network = test::language_model(0.2);
      const Plan plan = plan_of(network, 2, data, 2, "1f1b", 4 / data);
      const Outcome got = train(network, plan, group, 8);
      if (data == 1) return expect_same_bits(got, expected);
      // Losses are of this rank's rows, and sums over ranks are another tree.
      for (std::size_t i = 0; i < got.tensors.size(); ++i) {
        EXPECT_TRUE(torch::allclose(got.tensors[i], expected.tensors[i], 1e-5, 1e-6)) << i;
      }
    });
  }
}

// The gradient of a weight that two stages use is the sum of theirs over micro-batches, which one
// process adds up in another order.
TEST(TrainingStep, KeepsOneGradientOfATiedWeight) {
  const Outcome expected = train_plainly(test::language_model(0, true), 6, 3);
  Outcome first;
  for (const std::string schedule : {"1f1b", "gpipe", "zb-h1"}) {
    run_ranks(2, [&](const comm::Group& group) {
      const Network network = test::language_model(0, true);
      const Outcome got = train(network, plan_of(network, 2, 1, 2, schedule, 3), group, 6);
      for (std::size_t i = 0; i < got.tensors.size(); ++i) {
        EXPECT_TRUE(torch::allclose(got.tensors[i], expected.tensors[i], 1e-5, 1e-6)) << i;
      }
      if (group.rank() > 0) return;
      if (first.tensors.empty()) first = got;
      expect_same_bits(got, first);
    });
  }
}

TEST(TrainingStep, WeighsMicroBatchesByTheirRows) {
  run_ranks(2, [](const comm::Group& group) {
    const Network network = test::skipping_net();
    const Network plain = test::skipping_net();
    const Plan plan = plan_of(network, 2, 1, 2, "1f1b", 4);
    TrainingStep pipeline(*network.module, network.forward, plan, group);
    const auto batch = network.batch(7, 0);
    const torch::Tensor loss = pipeline.step(batch).loss;
    const torch::Tensor expected = plain.forward(batch)[0];
    expected.backward();
    EXPECT_TRUE(torch::allclose(loss, expected, 1e-6, 1e-6));
    const auto got = network.module->parameters();
    const auto all = plain.module->parameters();
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (!got[i].grad().defined()) continue;
      EXPECT_TRUE(torch::allclose(got[i].grad(), all[i].grad(), 1e-5, 1e-6)) << i;
    }
  });
}

// Without a mesh all ranks are along data.
TEST(TrainingStep, AddsToGradientsThatAreThere) {
  run_ranks(2, [](const comm::Group& group) {
    for (const bool has_pipe : {false, true}) {
      const Network network = test::skipping_net();
      const Network plain = test::skipping_net();
      Plan plan;
      plan.micro_batches = 2;
      if (has_pipe) plan = plan_of(network, 2, 1, 2, "1f1b", 2);
      TrainingStep pipeline(*network.module, network.forward, plan, group);
      for (const std::int64_t step : {0, 1}) {
        const auto batch = plain.batch(8, step);
        static_cast<void>(pipeline.step(part_of(batch, pipeline.data_group())));
        plain.forward(batch)[0].backward();
      }
      const auto got = network.module->parameters();
      const auto expected = plain.module->parameters();
      for (std::size_t i = 0; i < got.size(); ++i) {
        if (!got[i].grad().defined()) continue;
        EXPECT_TRUE(torch::allclose(got[i].grad(), expected[i].grad(), 1e-5, 1e-6)) << i;
      }
    }
  });
}

TEST(TrainingStep, HasStagesWithoutParameters) {
  run_ranks(3, [](const comm::Group& group) {
    const Network network = test::padded_net();
    TrainingStep pipeline(*network.module, network.forward, plan_of(network, 3, 1, 3, "zb-h1", 2),
                          group);
    static_cast<void>(pipeline.step(network.batch(4, 0)));
    const std::string stages = pipeline.to_string();
    EXPECT_THAT(stages.substr(stages.find("stage 1")), HasSubstr(", 0 bytes of parameters"));
    const auto parameters = network.module->parameters();
    const bool has_any = std::ranges::any_of(
        parameters, [](const torch::Tensor& parameter) { return parameter.grad().defined(); });
    EXPECT_EQ(has_any, group.rank() != 1);
  });
}

TEST(TrainingStep, BalancesStagesByItself) {
  run_ranks(2, [](const comm::Group& group) {
    const Network network = test::language_model(0);
    Plan plan;
    plan.mesh = {{kStageAxis, 2}};
    plan.micro_batches = 2;
    TrainingStep pipeline(*network.module, network.forward, plan, group);
    static_cast<void>(pipeline.step(network.batch(4, 0)));
    EXPECT_EQ(pipeline.boundaries().size(), 3);
    EXPECT_THAT(pipeline.to_string(),
                AllOf(HasSubstr("stage 0 on rank 0"), HasSubstr("stage 1 on rank 1")));
  });
}

TEST(TrainingStep, ClipsByTheNormOfAllStages) {
  double expected = 0;
  {
    const Network network = test::language_model(0, true);
    torch::optim::SGD optimizer(network.module->parameters(), 0.1);
    network.forward(network.batch(4, 0))[0].backward();
    expected = global_norm(optimizer);
  }
  run_ranks(2, [&](const comm::Group& group) {
    const Network network = test::language_model(0, true);
    torch::optim::SGD optimizer(network.module->parameters(), 0.1);
    TrainingStep pipeline(*network.module, network.forward, plan_of(network, 2, 1, 2, "1f1b", 1),
                          group);
    static_cast<void>(pipeline.step(network.batch(4, 0)));
    EXPECT_EQ(global_norm(optimizer, pipeline.sharing()), expected);
  });
}

TEST(TrainingStep, FollowsTrainingAndShapes) {
  run_ranks(2, [](const comm::Group& group) {
    const Network network = test::residual_net();
    const Network plain = test::residual_net();
    TrainingStep pipeline(*network.module, network.forward, plan_of(network, 2, 1, 2, "1f1b", 1),
                          group);
    for (const std::int64_t rows : {4, 2, 4}) {
      for (const bool training : {true, false}) {
        network.module->train(training);
        plain.module->train(training);
        const auto batch = network.batch(rows, 0);
        EXPECT_TRUE(torch::equal(pipeline.step(batch).loss, plain.forward(batch)[0]));
      }
    }
  });
}

TEST(TrainingStep, ReportsWhatRan) {
  run_ranks(2, [](const comm::Group& group) {
    const Network network = test::skipping_net();
    TrainingStep pipeline(*network.module, network.forward, plan_of(network, 2, 1, 2, "1f1b", 3),
                          group);
    const StepOutput step = pipeline.step(network.batch(6, 0), {.report = true});
    ASSERT_TRUE(step.report.has_value());
    EXPECT_EQ(step.report->peak_bytes.size(), 2);
    EXPECT_GT(step.report->peak_bytes[0], 0);
  });
}

// -- mistakes ----------------------------------------------------------------------------------

std::string error_of(const std::function<void(const Network&, const comm::Group&)>& mistake) {
  std::string message;
  run_ranks(2, [&](const comm::Group& group) {
    const Network network = test::skipping_net();
    const std::string text = usage_error([&] { mistake(network, group); });
    if (group.rank() == 0) message = text;
  });
  return message;
}

std::string error_of_stages(const std::vector<std::pair<std::string, int>>& stages) {
  return error_of([&](const Network& network, const comm::Group& group) {
    Plan plan = plan_of(network, 2, 1, 0, "1f1b", 2);
    plan.stages = stages;
    TrainingStep pipeline(*network.module, network.forward, plan, group);
    static_cast<void>(pipeline.step(network.batch(4, 0)));
  });
}

TEST(TrainingStep, RefusesStagesThatAreNone) {
  EXPECT_THAT(error_of_stages({{"first", 0}, {"botom", 1}}),
              AllOf(HasSubstr("'botom'"), HasSubstr("bottom")));
  EXPECT_THAT(error_of_stages({{"bottom", 0}, {"first", 1}}), HasSubstr("runs after"));
  EXPECT_THAT(error_of_stages({{"first", 1}}), HasSubstr("nothing runs before module first"));
  EXPECT_THAT(error_of_stages({{"first", 0}, {"second", 1}, {"last", 2}}),
              HasSubstr("as many for each of the 2 ranks along pipe"));
}

TEST(TrainingStep, RefusesAMarkBeforeWhichNothingRuns) {
  EXPECT_THAT(error_of([](const Network& network, const comm::Group& group) {
                Plan plan = plan_of(network, 2, 1, 0, "1f1b", 2);
                plan.stages = {{"start", 1}};
                const auto forward = [&](const std::vector<torch::Tensor>& in) {
                  return network.forward({mark(in[0], "start"), in[1]});
                };
                TrainingStep pipeline(*network.module, forward, plan, group);
                static_cast<void>(pipeline.step(network.batch(4, 0)));
              }),
              HasSubstr("nothing runs before mark start"));
}

TEST(TrainingStep, RefusesPlansThatItCannotCarryOut) {
  const auto error_of_plan = [](const std::function<void(Plan&)>& change) {
    return error_of([&](const Network& network, const comm::Group& group) {
      Plan plan = plan_of(network, 2, 1, 2, "1f1b", 2);
      change(plan);
      const TrainingStep pipeline(*network.module, network.forward, plan, group);
    });
  };
  EXPECT_THAT(error_of_plan([](Plan& plan) { plan.mesh = {{"tensor", 2}}; }),
              HasSubstr("no layout names its axis tensor"));
  EXPECT_THAT(error_of_plan([](Plan& plan) { plan.sync_batch_norm = true; }),
              HasSubstr("a training step cannot have sync_batch_norm"));
  // All reasons at once.
  EXPECT_THAT(error_of_plan([](Plan& plan) {
                plan.sync_batch_norm = true;
                plan.gathered_buckets = 1;
              }),
              AllOf(HasSubstr("for 2 reasons"), HasSubstr("gathered_buckets is 1"),
                    HasSubstr("cannot have sync_batch_norm")));
}

TEST(TrainingStep, RefusesBatchesThatItCannotCut) {
  const auto error_of_batch = [](const std::vector<torch::Tensor>& batch) {
    return error_of([&](const Network& network, const comm::Group& group) {
      TrainingStep pipeline(*network.module, network.forward, plan_of(network, 2, 1, 2, "1f1b", 4),
                            group);
      static_cast<void>(pipeline.step(batch));
    });
  };
  EXPECT_THAT(error_of_batch({}), HasSubstr("no tensors"));
  EXPECT_THAT(error_of_batch({torch::ones({8, 2, 8}), torch::ones({4, 1, 8})}),
              HasSubstr("tensor 1 of the batch is of [4, 1, 8]"));
  EXPECT_THAT(error_of_batch({torch::ones({3, 2, 8}), torch::ones({3, 1, 8})}),
              HasSubstr("a batch of 3 rows cannot be cut into 4"));
}

TEST(TrainingStep, NoticesRanksWithOtherBatches) {
  const auto error_of_batches =
      [](const std::function<std::vector<torch::Tensor>(const Network&, int rank)>& batch) {
        return error_of([&](const Network& network, const comm::Group& group) {
          Plan plan = plan_of(network, 2, 1, 0, "1f1b", 2);
          plan.stages = {{"bottom", 1}};  // stage 0 is what comes before
          TrainingStep pipeline(*network.module, network.forward, plan, group);
          static_cast<void>(pipeline.step(network.batch(4, 0)));
          static_cast<void>(pipeline.step(batch(network, group.rank())));
        });
      };
  EXPECT_THAT(
      error_of_batches([](const Network& network, int rank) { return network.batch(4, rank); }),
      HasSubstr("ranks differ in the batch of one pipeline"));
  EXPECT_THAT(
      error_of_batches([](const Network& network, int rank) { return network.batch(4 + rank, 0); }),
      HasSubstr("ranks differ in the shapes and mode of a batch"));
}

TEST(TrainingStep, NoticesAModuleThatDoesSomethingElse) {
  EXPECT_THAT(error_of([](const Network& network, const comm::Group& group) {
                int calls = 0;
                const auto forward = [&](const std::vector<torch::Tensor>& in) {
                  auto results = network.forward(in);
                  if (calls++ > 0) results[0] = results[0] * 2;
                  return results;
                };
                TrainingStep pipeline(*network.module, forward,
                                      plan_of(network, 2, 1, 2, "1f1b", 1), group);
                for (int step = 0; step < 2; ++step) {
                  static_cast<void>(pipeline.step(network.batch(2, 0)));
                }
              }),
              AllOf(HasSubstr("does not do what it did"), HasSubstr("aten::mul")));
}

// Three kinds of batches by turns, so that none of them comes in steps that are a power of two
// after its first.
TEST(TrainingStep, NoticesThatWhateverTheOrderOfBatches) {
  EXPECT_THAT(error_of([](const Network& network, const comm::Group& group) {
                double factor = 1;
                const auto forward = [&](const std::vector<torch::Tensor>& in) {
                  auto results = network.forward(in);
                  results[0] = results[0] * factor;
                  return results;
                };
                TrainingStep pipeline(*network.module, forward,
                                      plan_of(network, 2, 1, 2, "1f1b", 1), group);
                for (int step = 0; step < 6; ++step) {
                  if (step == 3) factor = 2;
                  static_cast<void>(pipeline.step(network.batch(2 + 2 * (step % 3), 0)));
                }
              }),
              AllOf(HasSubstr("does not do what it did"), HasSubstr("aten::mul")));
}

TEST(TrainingStep, RefusesAModuleThatDoesSomethingElseOnOneRank) {
  EXPECT_THAT(error_of([](const Network& network, const comm::Group& group) {
                const auto forward = [&](const std::vector<torch::Tensor>& in) {
                  auto results = network.forward(in);
                  results[0] = group.rank() == 0 ? results[0].abs() : results[0].relu();
                  return results;
                };
                TrainingStep pipeline(*network.module, forward,
                                      plan_of(network, 2, 1, 2, "1f1b", 1), group);
                static_cast<void>(pipeline.step(network.batch(2, 0)));
              }),
              AllOf(HasSubstr("does something else on rank 1 than on rank 0"),
                    HasSubstr("aten::abs"), HasSubstr("aten::relu")));
}

TEST(TrainingStep, EndsOnAllRanksWhereOneFails) {
  const auto thrown = run_ranks_catching(2, [](const comm::Group& group) {
    const Network network = test::language_model(0);
    TrainingStep pipeline(*network.module, network.forward, plan_of(network, 2, 1, 2, "1f1b", 2),
                          group);
    auto batch = network.batch(4, 0);
    batch[1] = batch[1] + 100;  // targets out of range: the second stage fails
    static_cast<void>(pipeline.step(batch));
  });
  EXPECT_THAT(testing::message_of<CommError>(thrown[0]),
              AllOf(HasSubstr("rank 1"), HasSubstr("out of bounds")));
  EXPECT_THAT(testing::message_of<UsageError>(thrown[1]), HasSubstr("out of bounds"));
}

// Gives the gradient 30000 at every element of a weight in half precision.
struct SteepImpl : torch::nn::Module {
  SteepImpl() { weight = register_parameter("weight", torch::zeros({4}, torch::kHalf)); }
  torch::Tensor forward(const torch::Tensor& rows) {
    return (rows.to(torch::kHalf) * weight).mean(0).sum().to(torch::kFloat);
  }
  torch::Tensor weight;
};
TORCH_MODULE(Steep);

// The sum over micro-batches, which are weighted by their rows if these differ, was infinite.
TEST(TrainingStep, AveragesGradientsInHalfPrecisionWhoseSumWouldOverflow) {
  for (const int data : {1, 2}) {
    for (const std::int64_t num_rows : {8, 10}) {
      run_ranks(data, [&](const comm::Group& group) {
        Steep net;
        TrainingStep step(
            net,
            [&](const std::vector<at::Tensor>& batch) -> std::vector<at::Tensor> {
              return {net->forward(batch[0])};
            },
            {.mesh = {{"data", data}}, .micro_batches = 4}, group);
        static_cast<void>(step.step({torch::full({num_rows, 4}, 30000.0)}));
        EXPECT_TRUE(torch::equal(net->weight.grad(), torch::full({4}, 30000.0, torch::kHalf)))
            << num_rows << " rows on each of " << data << " ranks: " << net->weight.grad();
      });
    }
  }
}

}  // namespace
}  // namespace trireme
