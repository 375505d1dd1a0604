// SPDX-License-Identifier: Apache-2.0
// Plans that have backward compute things again: every bit as without, and the memory that they
// say.
#include <trireme/base/error.h>
#include <trireme/schedule/verifier/memory.h>

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/pipeline/loops.h>
#include <tests/ranks/pipeline/networks.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <regex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace trireme {
namespace {

using test::Alone;
using test::Arranged;
using test::Network;
using test::Outcome;
using test::part_of;
using test::plan_of;
using test::usage_error;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_ranks;

using Patterns = std::vector<std::string>;

// A network, and things in it to compute again.
struct Case {
  std::string name;
  std::function<Network()> make;
  std::vector<Patterns> patterns;
  friend std::ostream& operator<<(std::ostream& out, const Case& test_case) {
    return out << test_case.name;
  }
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"residual",
       test::residual_net,
       {{"blocks.*"}, {"blocks.*.norm", "aten::conv2d"}, {"blocks.*", "blocks.*.norm"}}},
      {"language",
       [] { return test::language_model(0); },
       {{"blocks.*"},
        {"aten::gelu", "aten::layer_norm"},
        {"blocks.*", "blocks.*.norm?", "blocks.1.attention*"}}},
      {"skipping", test::skipping_net, {{"first", "bottom"}, {"aten::gelu"}, {"*", "third"}}},
      {"recurrent", test::recurrent_net, {{"lower", "upper"}, {"aten::lstm*"}}}};
  return all;
}

// Batches without gaps, as a record takes them to be.
std::vector<torch::Tensor> batch_of(const Network& network, std::int64_t rows, int step) {
  std::vector<torch::Tensor> batch = network.batch(rows, step);
  for (torch::Tensor& tensor : batch) tensor = tensor.contiguous();
  return batch;
}

Plan with(Plan plan, const Patterns& patterns, std::int64_t activation_bytes = 0) {
  plan.recompute = patterns;
  plan.activation_bytes = activation_bytes;
  return plan;
}

// Stages of a schedule over so many ranks.
Plan plan_for(const Arranged& setup, const Network& network) {
  Plan plan = plan_of(setup, network);
  if (setup.schedule != "interleaved" && setup.schedule != "zb-v") return plan;
  plan.stages.clear();
  for (int stage = 0; stage < 2 * setup.pipe; ++stage) {
    plan.stages.emplace_back(network.modules[static_cast<std::size_t>(stage)], stage);
  }
  return plan;
}

struct Trained {
  Outcome outcome;
  StepOutput last;
  Recomputation recomputation;
  std::vector<schedule::RankMemory> predicted;  ///< peaks
  std::vector<schedule::RankMemory> explained;  ///< by what the last step has measured
};

Trained train(const Network& network, const Arranged& setup, const Plan& plan,
              const comm::Group& group) {
  const auto optimizer = test::make_optimizer(setup.optimizer, network.module->parameters());
  TrainingStep pipeline(*network.module, network.forward, plan, group);
  pipeline.shard(*optimizer);
  Trained trained;
  std::vector<torch::Tensor> losses;
  const comm::Group& data = pipeline.data_group();
  for (int step = 0; step < setup.steps; ++step) {
    optimizer->zero_grad();
    const auto batch = batch_of(network, setup.rows * setup.data, step);
    trained.last = pipeline.step(part_of(batch, data.rank(), data.size()), {.report = true});
    losses.push_back(trained.last.loss.clone());
    optimizer->step();
  }
  trained.recomputation = pipeline.recomputation();
  trained.predicted = schedule::peak_memory(pipeline.schedule(), trained.recomputation.bytes);
  trained.explained = schedule::peak_memory(pipeline.schedule(), trained.last.report->stage_bytes);
  pipeline.gather_parameters();
  Outcome& outcome = trained.outcome;
  outcome.losses.resize(static_cast<std::size_t>(setup.data));
  outcome.losses[static_cast<std::size_t>(data.rank())] = std::move(losses);
  outcome.parameters = test::clones(network.module->parameters());
  if (data.rank() == 0) outcome.buffers = test::clones(network.module->buffers());
  return trained;
}

// What the record says is what LibTorch's allocators have counted, to the byte, but for what it
// says as a bound: of backward in two parts, and of attention with dropout, whose matrix products
// copy some of their inputs.
void expect_predicted(const Trained& trained, const Arranged& setup, bool is_bound = false) {
  const pipeline::StepReport& report = *trained.last.report;
  is_bound = is_bound || setup.schedule.starts_with("zb");
  for (std::size_t rank = 0; rank < report.peak_bytes.size(); ++rank) {
    EXPECT_EQ(report.peak_bytes[rank], trained.explained[rank].peak_bytes) << rank;
    if (is_bound) {
      EXPECT_LE(report.peak_bytes[rank], trained.predicted[rank].peak_bytes) << rank;
    } else {
      EXPECT_EQ(report.peak_bytes[rank], trained.predicted[rank].peak_bytes) << rank;
    }
  }
  for (std::size_t stage = 0; stage < report.stage_bytes.size(); ++stage) {
    const schedule::StageBytes& measured = report.stage_bytes[stage];
    const schedule::StageBytes& said = trained.recomputation.bytes[stage];
    if (is_bound) {
      EXPECT_LE(measured.activations, said.activations) << "stage " << stage;
      EXPECT_LE(measured.rebuilding, said.rebuilding) << "stage " << stage;
      EXPECT_LE(measured.weight_inputs, said.weight_inputs) << "stage " << stage;
    } else {
      EXPECT_EQ(measured.activations, said.activations) << "stage " << stage;
      EXPECT_EQ(measured.rebuilding, said.rebuilding) << "stage " << stage;
    }
  }
}

Arranged setup_of(int pipe, const std::string& schedule = "1f1b", std::int64_t micro_batches = 3) {
  Arranged setup;
  setup.pipe = pipe;
  setup.schedule = schedule;
  setup.micro_batches = micro_batches;
  setup.rows = 2 * micro_batches;
  return setup;
}

std::string text_of(const Patterns& patterns) {
  std::string text;
  for (const std::string& pattern : patterns) text += pattern + " ";
  return text;
}

class Recomputed : public ::testing::TestWithParam<Case> {};

TEST_P(Recomputed, ByNameHasTheBitsOfAPlainLoop) {
  const Outcome expected = Alone(GetParam().make()).train(setup_of(1));
  std::vector<Patterns> lists = GetParam().patterns;
  lists.push_back({"*"});
  for (const Patterns& patterns : lists) {
    for (const int pipe : {1, 2}) {
      run_ranks(pipe, [&](const comm::Group& group) {
        SCOPED_TRACE(text_of(patterns) + std::to_string(pipe));
        const Arranged setup = setup_of(pipe);
        const Network network = GetParam().make();
        const Trained trained =
            train(network, setup, with(plan_for(setup, network), patterns), group);
        test::expect_same_bits(trained.outcome, expected);
        expect_predicted(trained, setup);
        EXPECT_FALSE(std::ranges::all_of(trained.recomputation.parts,
                                         [](const auto& parts) { return parts.empty(); }));
      });
    }
  }
}

TEST_P(Recomputed, HasTheSameBitsByEverySchedule) {
  for (const std::string schedule : {"gpipe", "interleaved", "zb-h1", "zb-v"}) {
    const Arranged setup = setup_of(2, schedule, 4);
    const Outcome expected = Alone(GetParam().make()).train(setup);
    run_ranks(2, [&](const comm::Group& group) {
      SCOPED_TRACE(schedule);
      const Network network = GetParam().make();
      const Plan plan = with(plan_for(setup, network), GetParam().patterns.front());
      const Trained trained = train(network, setup, plan, group);
      test::expect_same_bits(trained.outcome, expected);
      expect_predicted(trained, setup);
    });
  }
}

TEST_P(Recomputed, ByMemoryKeepsToItWithTheBitsOfAPlainLoop) {
  for (const std::string schedule : {"1f1b", "gpipe", "interleaved", "zb-h1"}) {
    const Arranged setup = setup_of(2, schedule, 4);
    const Outcome expected = Alone(GetParam().make()).train(setup);
    std::int64_t most = 0;
    std::int64_t least = 1;
    run_ranks(2, [&](const comm::Group& group) {
      const Network network = GetParam().make();
      const Plan plan = plan_for(setup, network);
      const Trained without = train(network, setup, plan, group);
      expect_predicted(without, setup);
      std::int64_t bytes = 1;  // the first rank that lacks some says how much, and then the next
      for (int rank = 0; rank < 2; ++rank) {
        TrainingStep pipeline(*network.module, network.forward, with(plan, {}, bytes), group);
        const std::string error =
            usage_error([&] { pipeline.prepare(batch_of(network, setup.rows, 0)); });
        std::smatch number;
        if (!std::regex_search(error, number, std::regex("at least (\\d+)"))) break;
        bytes = std::stoll(number[1].str());
      }
      if (group.rank() > 0) return;
      for (const auto& rank : without.predicted) most = std::max(most, rank.peak_bytes);
      least = bytes;
    });
    EXPECT_LT(least, most);
    for (const double share : {0.0, 0.3, 0.7}) {
      const auto budget =
          least + static_cast<std::int64_t>(share * static_cast<double>(most - least));
      run_ranks(2, [&](const comm::Group& group) {
        SCOPED_TRACE(schedule + " within " + std::to_string(budget) + " of " +
                     std::to_string(most));
        const Network network = GetParam().make();
        const Trained trained =
            train(network, setup, with(plan_for(setup, network), {}, budget), group);
        test::expect_same_bits(trained.outcome, expected);
        expect_predicted(trained, setup);
        for (const std::int64_t peak : trained.last.report->peak_bytes) EXPECT_LE(peak, budget);
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, Recomputed, ::testing::ValuesIn(cases()),
                         [](const auto& param_info) { return param_info.param.name; });

TEST(Recomputation, DrawsTheSameMasksAgain) {
  const auto make = [] { return test::language_model(0.2); };
  const Arranged setup = setup_of(1);
  Outcome expected;
  run_ranks(1, [&](const comm::Group& group) {
    const Network network = make();
    expected = train(network, setup, plan_for(setup, network), group).outcome;
  });
  for (const Patterns& patterns :
       {Patterns{"*"}, Patterns{"blocks.*"}, Patterns{"aten::dropout", "aten::gelu"},
        Patterns{"blocks.*", "aten::dropout"}, Patterns{"*.attention*", "*"}}) {
    for (const std::string schedule : {"1f1b", "zb-h2"}) {
      run_ranks(2, [&](const comm::Group& group) {
        SCOPED_TRACE(text_of(patterns) + schedule);
        const Arranged arranged = setup_of(2, schedule);
        const Network network = make();
        const Trained trained =
            train(network, arranged, with(plan_for(arranged, network), patterns), group);
        test::expect_same_bits(trained.outcome, expected);
        expect_predicted(trained, arranged, /*is_bound=*/true);
      });
    }
  }
}

// Of one rank along pipe what a step keeps, without recomputation.
std::int64_t most_kept(const Network& network, const Plan& plan, const Arranged& setup,
                       const comm::Group& group) {
  TrainingStep pipeline(*network.module, network.forward, plan, group);
  pipeline.prepare(batch_of(network, setup.rows, 0));
  const auto peaks = schedule::peak_memory(pipeline.schedule(), pipeline.recomputation().bytes);
  return std::ranges::max(peaks, {}, &schedule::RankMemory::peak_bytes).peak_bytes;
}

// Every stage of sharding, by name and within a memory budget.
class RecomputedAlongData : public ::testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(RecomputedAlongData, HasTheBitsOfOneProcess) {
  Arranged setup = setup_of(2, "1f1b", 2);
  setup.data = 2;
  bool has_budget = false;
  std::tie(setup.zero_level, has_budget) = GetParam();
  const Outcome expected = Alone(test::residual_net()).train(setup);
  run_ranks(4, [&](const comm::Group& group) {
    const Network network = test::residual_net();
    const auto optimizer = test::make_optimizer(setup.optimizer, network.module->parameters());
    Plan plan = plan_of(setup, network);
    if (has_budget) {
      plan.activation_bytes = most_kept(network, plan, setup, group) * 3 / 4;
    } else {
      plan.recompute = {"blocks.*", "head"};
    }
    TrainingStep pipeline(*network.module, network.forward, plan, group);
    pipeline.shard(*optimizer);
    const comm::Group& data = pipeline.data_group();
    for (int step = 0; step < setup.steps; ++step) {
      optimizer->zero_grad();
      const auto batch = batch_of(network, setup.rows * setup.data, step);
      const torch::Tensor loss =
          pipeline.step(part_of(batch, data.rank(), data.size())).loss.clone();
      const auto rank = static_cast<std::size_t>(data.rank());
      EXPECT_TRUE(torch::equal(loss, expected.losses[rank][static_cast<std::size_t>(step)]));
      optimizer->step();
    }
    EXPECT_GT(pipeline.recomputation().flops, 0);
    pipeline.gather_parameters();
    test::expect_same_bits(test::clones(network.module->parameters()), expected.parameters,
                           "parameter");
    if (data.rank() > 0) return;
    test::expect_same_bits(test::clones(network.module->buffers()), expected.buffers, "buffer");
  });
}

INSTANTIATE_TEST_SUITE_P(ZeroStages, RecomputedAlongData,
                         ::testing::Combine(::testing::Range(0, 4), ::testing::Bool()));

// No axis, no stage and no schedule: the way to a memory budget for a plain program.
TEST(Recomputation, WithinMemoryNeedsOneProcessAndNoMore) {
  const auto make = [] { return test::language_model(0); };
  const Arranged setup = setup_of(1, "1f1b", 1);
  const Outcome expected = Alone(make()).train(setup);
  run_ranks(1, [&](const comm::Group& group) {
    Network network = make();
    const std::int64_t most = most_kept(network, Plan(), setup, group);
    const Trained trained = train(network, setup, with({}, {}, most / 2), group);
    test::expect_same_bits(trained.outcome, expected);
    expect_predicted(trained, setup);
    EXPECT_LE(trained.last.report->peak_bytes.front(), most / 2);
    EXPECT_FALSE(trained.recomputation.parts.front().empty());
  });
}

// A buffer that is read where things are computed again, and written to elsewhere; norms whose
// statistics are written twice in a step.
struct CountingNetImpl : torch::nn::Module {
  CountingNetImpl() {
    first = register_module("first", torch::nn::Linear(4, 4));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    last = register_module("last", torch::nn::Linear(4, 1));
    seen = register_buffer("seen", torch::zeros({4}));
    calls = register_buffer("calls", torch::ones({}));
  }
  torch::Tensor forward(const torch::Tensor& input) {
    torch::Tensor x = torch::sigmoid(first(input) + calls);
    calls.add_(1);
    x = norm(torch::tanh(norm(x)));
    x = torch::exp(x * (seen + 0.1));
    {
      const torch::NoGradGuard no_grad;
      seen.mul_(0.9).add_(x.mean(0), 0.1);
    }
    return last(x);
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::Tensor seen, calls;
};

Network counting_net() {
  auto net = std::make_shared<CountingNetImpl>();
  test::fill(*net);
  return {.module = net,
          .forward = [net = net.get()](const auto& in) -> std::vector<torch::Tensor> {
            return {torch::mse_loss(net->forward(in[0]), in[1])};
          },
          .batch = [](std::int64_t rows, std::int64_t step) -> std::vector<torch::Tensor> {
            return {test::numbers({rows, 4}, step), test::numbers({rows, 1}, step + 50)};
          },
          .modules = {"first"}};
}

TEST(Recomputation, SeesBuffersAsTheyWere) {
  const Arranged setup = setup_of(1);
  const Outcome expected = Alone(counting_net()).train(setup);
  for (const Patterns& patterns :
       {Patterns{"*"}, Patterns{"norm"}, Patterns{"first", "aten::add", "aten::exp", "last"},
        Patterns{"aten::sigmoid", "aten::tanh", "aten::batch_norm"}}) {
    run_ranks(1, [&](const comm::Group& group) {
      SCOPED_TRACE(text_of(patterns));
      const Network network = counting_net();
      const Trained trained =
          train(network, setup, with(plan_for(setup, network), patterns), group);
      test::expect_same_bits(trained.outcome, expected);
      expect_predicted(trained, setup);
    });
  }
}

// A tied weight is cast once, and its gradients are added in half precision, whatever lies between.
TEST(Recomputation, LeavesAutocastAlone) {
  const auto make = [] {
    Network network = test::language_model(0, /*tied=*/true);
    network.forward = [forward = network.forward](const auto& in) {
      at::autocast::set_autocast_enabled(at::kCPU, true);
      at::autocast::increment_nesting();
      auto results = forward(in);
      if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(at::kCPU, false);
      return results;
    };
    return network;
  };
  const Arranged setup = setup_of(1);
  const Outcome expected = Alone(make()).train(setup);
  for (const Patterns& patterns :
       {Patterns{}, Patterns{"*"}, Patterns{"blocks.*"}, Patterns{"aten::gelu", "norm*"}}) {
    run_ranks(1, [&](const comm::Group& group) {
      SCOPED_TRACE(text_of(patterns));
      const Network network = make();
      const Trained trained =
          train(network, setup, with(plan_for(setup, network), patterns), group);
      test::expect_same_bits(trained.outcome, expected);
    });
  }
}

TEST(Recomputation, GoesOnWithEvaluationAndOtherShapes) {
  run_ranks(2, [](const comm::Group& group) {
    const Network network = test::residual_net();
    const Network plain = test::residual_net();
    const Arranged setup = setup_of(2, "1f1b", 1);
    TrainingStep pipeline(*network.module, network.forward,
                          with(plan_of(setup, network), {"blocks.*"}), group);
    for (const std::int64_t rows : {4, 2, 4}) {
      const auto batch = network.batch(rows, 0);
      EXPECT_TRUE(torch::equal(pipeline.step(batch).loss, plain.forward(batch)[0]));
      plain.module->eval();
      EXPECT_TRUE(torch::equal(pipeline.evaluate(batch).loss, plain.forward(batch)[0]));
      plain.module->train();
    }
  });
}

// -- what is chosen -----------------------------------------------------------------------------

TEST(Recomputation, ChoosesNothingWhereMemoryIsThere) {
  run_ranks(1, [](const comm::Group& group) {
    const Network network = test::language_model(0);
    const Arranged setup = setup_of(1);
    TrainingStep pipeline(*network.module, network.forward,
                          with(plan_of(setup, network), {}, 1 << 30), group);
    pipeline.prepare(network.batch(setup.rows, 0));
    EXPECT_TRUE(pipeline.recomputation().parts.front().empty());
    EXPECT_EQ(pipeline.recomputation().flops, 0);
  });
}

TEST(Recomputation, RunsMoreAgainTheLessMemoryThereIs) {
  run_ranks(1, [](const comm::Group& group) {
    const Arranged setup = setup_of(1);
    double last = -1;
    for (const double share : {0.95, 0.8, 0.6, 0.45}) {
      const Network network = test::language_model(0);
      Plan plan = plan_of(setup, network);
      {
        TrainingStep without(*network.module, network.forward, plan, group);
        without.prepare(network.batch(setup.rows, 0));
        const auto all = static_cast<double>(without.recomputation().bytes[0].activations);
        plan.activation_bytes = static_cast<std::int64_t>(share * all);
      }
      TrainingStep pipeline(*network.module, network.forward, plan, group);
      pipeline.prepare(network.batch(setup.rows, 0));
      const Recomputation& recomputation = pipeline.recomputation();
      EXPECT_GE(recomputation.flops, last);
      EXPECT_LE(recomputation.flops_at_least, recomputation.flops);
      EXPECT_LE(recomputation.flops,
                1.05 * recomputation.flops_at_least);  // the search has room for so many choices
      EXPECT_FALSE(recomputation.parts.front().empty());
      EXPECT_THAT(pipeline.to_string(), HasSubstr("and runs operators"));
      last = recomputation.flops;
    }
    EXPECT_GT(last, 0);
  });
}

// -- mistakes -----------------------------------------------------------------------------------

std::string error_of(const std::function<void(Plan&)>& change) {
  std::string message;
  run_ranks(2, [&](const comm::Group& group) {
    const Network network = test::language_model(0);
    const Arranged setup = setup_of(2);
    Plan plan = plan_of(setup, network);
    change(plan);
    const std::string text = usage_error([&] {
      TrainingStep pipeline(*network.module, network.forward, plan, group);
      pipeline.prepare(network.batch(setup.rows, 0));
    });
    if (group.rank() == 0) message = text;
  });
  return message;
}

TEST(Recomputation, RefusesPatternsThatFitNothing) {
  EXPECT_THAT(error_of([](Plan& plan) { plan.recompute = {"blocs.*"}; }),
              AllOf(HasSubstr("'blocs.*' fits no module"), HasSubstr("blocks.*")));
  EXPECT_THAT(error_of([](Plan& plan) { plan.recompute = {"aten::gleu"}; }),
              AllOf(HasSubstr("'aten::gleu' fits no operator"), HasSubstr("aten::gelu")));
}

TEST(Recomputation, RefusesLessMemoryThanItTakesAndSaysHowMuchThatIs) {
  EXPECT_THAT(error_of([](Plan& plan) { plan.activation_bytes = 100; }),
              AllOf(HasSubstr("activation_bytes is 100"), HasSubstr("needs at least")));
  EXPECT_THAT(error_of([](Plan& plan) {
                plan.activation_bytes = 100;
                plan.recompute = {"*"};
              }),
              HasSubstr("expected 0 where recompute says"));
}

TEST(Recomputation, NeedsAPipeline) {
  run_ranks(1, [](const comm::Group& group) {
    torch::nn::Linear layer(2, 2);
    for (const Plan& plan : {with({}, {"*"}), with({}, {}, 1000)}) {
      EXPECT_THAT(usage_error([&] { static_cast<void>(parallelize(*layer, plan, group)); }),
                  AllOf(HasSubstr("computed again"), HasSubstr("trireme::TrainingStep")));
    }
  });
}

}  // namespace
}  // namespace trireme
