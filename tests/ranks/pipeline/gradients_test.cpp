// SPDX-License-Identifier: Apache-2.0
// What becomes of gradients: weights of micro-batches, shared parameters, what `.grad()` held,
// hooks.
#include <trireme/base/error.h>
#include <trireme/parallel/pipeline/executor.h>
#include <trireme/parallel/pipeline/split/operators.h>
#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/passes.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/pipeline/chain.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <ranges>

namespace trireme::pipeline::test {
namespace {

using comm::Group;
using testing::run_ranks;

std::map<int, ChainStage> all_modules(int count) {
  std::vector<int> stages;
  for (int stage = 0; stage < count; ++stage) stages.push_back(stage);
  return modules_of(stages);
}

TEST(PipelineGradients, UnequalMicroBatchesCountTheirSamples) {
  const std::vector<std::int64_t> samples = {4, 4, 2};
  const std::vector<double> weights = weights_for(samples);
  EXPECT_EQ(weights, (std::vector<double>{4, 4, 2}));
  EXPECT_EQ(weights_for({3, 3}), (std::vector<double>{1, 1}));
  std::map<int, ChainStage> expected = all_modules(3);
  const std::vector<at::Tensor> losses =
      run_alone(codes_of(expected, 3), inputs_of_chain(samples), weights);
  const at::Tensor mean = (losses[0] * 4 + losses[1] * 4 + losses[2] * 2) / 10;
  run_ranks(3, [&](const Group& group) {
    for (const char* kind : {"1f1b", "zb-h1"}) {
      Program program = program_of_chain(schedule::generate(kind, 3, 3), {4, 2});
      program.variants = {0, 0, 1};
      program.weights = weights;
      std::map<int, ChainStage> modules = modules_of({group.rank()});
      Executor executor(program, codes_of(modules, 3), group);
      const StepResult result = executor.step(inputs_of_chain(samples), 0, {.share_loss = true});
      EXPECT_EQ(difference(modules.at(group.rank()), expected.at(group.rank())), "");
      EXPECT_TRUE(torch::equal(result.loss, mean));
    }
  });
}

TEST(PipelineGradients, AreAddedToWhatIsThereInEveryStep) {
  const std::vector<std::int64_t> samples = {4, 4, 4, 4};
  run_ranks(2, [&](const Group& group) {
    const schedule::Schedule plan = schedule::generate("interleaved", 2, 4);
    std::map<int, ChainStage> modules = modules_of(stages_of(plan, group.rank()));
    Executor executor(program_of_chain(plan), codes_of(modules, 4), group);
    executor.step(inputs_of_chain(samples, 0), 0);
    std::map<const void*, std::pair<at::Tensor, at::Tensor>> before;  // itself, and its values
    for (auto& [stage, module] : modules) {
      for (const at::Tensor& parameter : module->parameters()) {
        before[parameter.unsafeGetTensorImpl()] = {
            parameter.grad(), parameter.grad().defined() ? parameter.grad().clone() : at::Tensor()};
      }
    }
    executor.step(inputs_of_chain(samples, 1), 1);

    std::map<int, ChainStage> expected = all_modules(4);
    run_alone(codes_of(expected, 4), inputs_of_chain(samples, 1), {});
    for (auto& [stage, module] : modules) {
      const auto second = expected.at(stage)->named_parameters();
      for (const auto& parameter : module->named_parameters()) {
        const auto& [itself, values] = before.at(parameter.value().unsafeGetTensorImpl());
        ASSERT_EQ(values.defined(), second[parameter.key()].grad().defined());
        if (!values.defined()) continue;  // the norm that its stage does not use
        EXPECT_TRUE(parameter.value().grad().is_same(itself));
        EXPECT_TRUE(
            torch::equal(parameter.value().grad(), values + second[parameter.key()].grad()));
      }
    }
  });
}

TEST(PipelineGradients, AreLeftAsSumsForWhoeverDividesLater) {
  const std::vector<std::int64_t> samples = {4, 4, 4};
  std::map<int, ChainStage> expected = all_modules(2);
  run_alone(codes_of(expected, 2), inputs_of_chain(samples), {});
  run_ranks(2, [&](const Group& group) {
    Program program = program_of_chain(schedule::with_steps(
        schedule::with_reduction(schedule::generate("1f1b", 2, 3), schedule::ReduceAfter::kStage)));
    program.division = GradientDivision::kNone;
    std::map<int, ChainStage> modules = modules_of({group.rank()});
    std::vector<std::string> calls;
    ExecutorOptions options;
    options.callbacks.reduce = [&](int stage, int micro_batch) {
      EXPECT_EQ(micro_batch, schedule::Action::kNone);
      calls.push_back("reduce" + std::to_string(stage));
      for (const at::Tensor& parameter : modules.at(stage)->parameters()) {
        if (parameter.grad().defined()) parameter.mutable_grad().div_(3.0);
      }
    };
    options.callbacks.step = [&](int stage) { calls.push_back("step" + std::to_string(stage)); };
    Executor executor(program, codes_of(modules, 2), group, options);
    executor.step(inputs_of_chain(samples), 0);
    EXPECT_EQ(difference(modules.at(group.rank()), expected.at(group.rank())), "");
    const std::string own = std::to_string(group.rank());
    EXPECT_EQ(calls, (std::vector<std::string>{"reduce" + own, "step" + own}));
  });
}

TEST(PipelineGradients, ReachHooksOnceForEachMicroBatch) {
  run_ranks(2, [](const Group& group) {
    for (const char* kind : {"1f1b", "zb-h1"}) {
      std::map<int, ChainStage> modules = modules_of({group.rank()});
      int calls = 0;
      auto& weight = modules.at(group.rank())->linear->weight;
      weight.register_hook([&calls](const at::Tensor& gradient) {
        EXPECT_TRUE(gradient.defined());
        ++calls;
      });
      Executor executor(program_of_chain(schedule::generate(kind, 2, 5)), codes_of(modules, 2),
                        group);
      executor.step(inputs_of_chain(std::vector<std::int64_t>(5, 4)), 0);
      EXPECT_EQ(calls, 5) << kind;
    }
  });
}

// An embedding whose weight is also that of the last stage, and layers between that have one
// weight.
constexpr std::int64_t kWords = 7;
constexpr std::int64_t kTokens = 5;

struct Tied {
  at::Tensor table;
  at::Tensor middle;
};

Tied make_tied() {
  auto generator = at::detail::createCPUGenerator(1);
  const auto draw = [&](std::int64_t rows) {
    return torch::rand({rows, kWidth}, generator, torch::kFloat).sub_(0.5).set_requires_grad(true);
  };
  return {.table = draw(kWords), .middle = draw(kWidth)};
}

std::vector<std::vector<at::Tensor>> tokens_of(int micro_batches) {
  const auto draw = [](int seed) {
    auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed));
    return torch::randint(0, kWords, {kTokens}, generator, torch::kLong);
  };
  std::vector<std::vector<at::Tensor>> all;
  for (int number = 0; number < micro_batches; ++number) {
    all.push_back({draw(number + 50), draw(number + 150)});
  }
  return all;
}

StageCode tied_code(const Tied& tied, int stage, int num_stages) {
  StageCode code{.stage = stage};
  if (stage == 0) {
    code.inputs = {kInput};
    code.parameters = {{"table", tied.table}};
    code.forward = [tied](c10::ArrayRef<at::Tensor> inputs, const MicroBatch&) {
      return std::vector<at::Tensor>{split::embedding(tied.table, inputs[0])};
    };
  } else if (stage + 1 == num_stages) {
    code.inputs = {kFirstHidden + stage - 1, kTarget};
    code.parameters = {{"table", tied.table}};
    code.forward = [tied](c10::ArrayRef<at::Tensor> inputs, const MicroBatch&) {
      const at::Tensor logits = split::linear(inputs[0], tied.table);
      return std::vector<at::Tensor>{torch::nn::functional::cross_entropy(logits, inputs[1])};
    };
  } else {
    code.inputs = {kFirstHidden + stage - 1};
    code.parameters = {{"middle", tied.middle}};
    code.forward = [tied](c10::ArrayRef<at::Tensor> inputs, const MicroBatch&) {
      return std::vector<at::Tensor>{torch::tanh(split::linear(inputs[0], tied.middle))};
    };
  }
  code.outputs = {stage + 1 == num_stages ? kLoss : kFirstHidden + stage};
  return code;
}

// The tree: each stage's micro-batches in order, then stages from the last one, then one division.
Tied tied_alone(int num_stages, int micro_batches) {
  std::vector<Tied> each;
  std::vector<StageCode> codes;
  for (int stage = 0; stage < num_stages; ++stage) {
    each.push_back(make_tied());
    codes.push_back(tied_code(each.back(), stage, num_stages));
  }
  for (const std::vector<at::Tensor>& inputs : tokens_of(micro_batches)) {
    std::map<int, at::Tensor> values = {{kInput, inputs[0]}, {kTarget, inputs[1]}};
    for (const StageCode& code : codes) {
      std::vector<at::Tensor> taken;
      for (const int value : code.inputs) taken.push_back(values.at(value));
      values[code.outputs[0]] = code.forward(taken, {})[0];
    }
    values.at(kLoss).backward();
  }
  Tied sums;
  const auto add = [](at::Tensor& sum, const at::Tensor& gradient) {
    if (gradient.defined()) sum = sum.defined() ? sum + gradient : gradient;
  };
  for (const Tied& one : std::views::reverse(each)) {  // as autograd meets them
    add(sums.table, one.table.grad());
    add(sums.middle, one.middle.grad());
  }
  if (sums.middle.defined()) sums.middle = sums.middle / micro_batches;
  return {.table = sums.table / micro_batches, .middle = sums.middle};
}

Program tied_program(const schedule::Schedule& plan) {
  const int last = plan.num_stages() - 1;
  Program program{.schedule = plan, .inputs = {kInput, kTarget}, .loss = kLoss, .loss_stage = last};
  for (int stage = 0; stage < last; ++stage) {
    program.boundary_tensors.push_back({.value = kFirstHidden + stage,
                                        .from = stage,
                                        .to = {stage + 1},
                                        .shapes = {{.sizes = {kTokens, kWidth}}}});
  }
  return program;
}

TEST(PipelineGradients, OfASharedParameterAreAddedFromTheLastStageOnEveryRank) {
  for (const auto& [kind, ranks] : std::vector<std::pair<const char*, int>>{
           {"gpipe", 2}, {"1f1b", 4}, {"zb-h1", 3}, {"interleaved", 2}, {"zb-v", 3}}) {
    const schedule::Schedule plan = schedule::generate(kind, ranks, 3);
    const int num_stages = plan.num_stages();
    const Tied expected = tied_alone(num_stages, plan.micro_batches);
    run_ranks(ranks, [&](const Group& group) {
      Tied own = make_tied();
      std::vector<StageCode> codes;
      bool has_table = false;
      bool has_middle = false;
      for (const int stage : stages_of(plan, group.rank())) {
        codes.push_back(tied_code(own, stage, num_stages));
        (codes.back().parameters[0].first == "table" ? has_table : has_middle) = true;
      }
      Executor executor(tied_program(plan), codes, group);
      for (int step = 0; step < 2; ++step) {
        own.table.mutable_grad().reset();
        own.middle.mutable_grad().reset();
        executor.step(tokens_of(plan.micro_batches), step);
        EXPECT_TRUE(is_same(own.table.grad(), has_table ? expected.table : at::Tensor())) << kind;
        EXPECT_TRUE(is_same(own.middle.grad(), has_middle ? expected.middle : at::Tensor()))
            << kind;
      }
    });
  }
}

TEST(PipelineGradients, ThatAreSparseCannotBeSharedOverRanks) {
  const auto thrown = testing::run_ranks_catching(2, [](const Group& group) {
    const schedule::Schedule plan = schedule::generate("1f1b", 2, 2);
    const Tied own = make_tied();
    StageCode code = tied_code(own, group.rank(), 2);
    if (group.rank() == 0) {
      code.forward = [own](c10::ArrayRef<at::Tensor> inputs, const MicroBatch&) {
        return std::vector<at::Tensor>{split::embedding(own.table, inputs[0], -1, false, true)};
      };
    }
    Executor(tied_program(plan), {code}, group).step(tokens_of(2), 0);
  });
  EXPECT_THAT(testing::message_of<UsageError>(thrown[0]),
              ::testing::HasSubstr("the gradient of parameter 'table' is sparse"));
  EXPECT_THAT(testing::message_of<CommError>(thrown[1]),
              ::testing::HasSubstr("rank 0 failed in step 0 of the pipeline: the gradient"));
}

// A parameter of the shape of the stage's gradient gets it as it is; the next micro-batch is added
// into that memory while the gradient may still be on its way or wait for the weight part.
TEST(PipelineGradients, MemoryThatAParameterKeepsIsNoOnesElse) {
  constexpr int kMicroBatches = 6;
  const auto forward_of = [](int stage, const at::Tensor& position, const at::Tensor& weight) {
    return [=](c10::ArrayRef<at::Tensor> inputs, const MicroBatch&) {
      at::Tensor x = split::linear(inputs[0], weight) + position.unsqueeze(0);
      if (stage == 2) x = (x * inputs[1]).sum();
      return std::vector<at::Tensor>{x};
    };
  };
  const auto make = [](int stage, std::int64_t rows) {
    auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(stage) + 7);
    return torch::rand({rows, kWidth}, generator, torch::kFloat).set_requires_grad(true);
  };
  const auto input_of = [](int number) {
    auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(number) + 70);
    return torch::rand({1, 4, kWidth}, generator, torch::kFloat);
  };
  std::vector<at::Tensor> positions;
  std::vector<at::Tensor> weights;
  for (int stage = 0; stage < 3; ++stage) {
    positions.push_back(make(stage, 4));
    weights.push_back(make(stage + 10, kWidth));
  }
  for (int number = 0; number < kMicroBatches; ++number) {
    at::Tensor x = input_of(number);
    for (int stage = 0; stage < 3; ++stage) {
      const auto place = static_cast<std::size_t>(stage);
      x = forward_of(stage, positions[place], weights[place])({x, input_of(number + 20)}, {})[0];
    }
    x.backward();
  }
  run_ranks(3, [&](const Group& group) {
    for (const char* kind : {"gpipe", "zb-h1", "zb-h2"}) {
      const int stage = group.rank();
      const at::Tensor position = make(stage, 4);
      const at::Tensor weight = make(stage + 10, kWidth);
      Program program{.schedule = schedule::generate(kind, 3, kMicroBatches),
                      .inputs = {kInput, kTarget},
                      .loss = kLoss,
                      .loss_stage = 2,
                      .division = GradientDivision::kNone};
      for (int from = 0; from < 2; ++from) {
        program.boundary_tensors.push_back({.value = kFirstHidden + from,
                                            .from = from,
                                            .to = {from + 1},
                                            .shapes = {{.sizes = {1, 4, kWidth}}}});
      }
      StageCode code{.stage = stage,
                     .inputs = {stage == 0 ? kInput : kFirstHidden + stage - 1},
                     .outputs = {stage == 2 ? kLoss : kFirstHidden + stage},
                     .forward = forward_of(stage, position, weight),
                     .parameters = {{"position" + std::to_string(stage), position},
                                    {"weight" + std::to_string(stage), weight}}};
      if (stage == 2) code.inputs.push_back(kTarget);
      std::vector<std::vector<at::Tensor>> inputs;
      for (int number = 0; number < kMicroBatches; ++number) {
        inputs.push_back({input_of(number), input_of(number + 20)});
      }
      Executor(program, {code}, group).step(inputs, 0);
      const auto place = static_cast<std::size_t>(stage);
      EXPECT_TRUE(torch::equal(position.grad(), positions[place].grad())) << kind << stage;
      EXPECT_TRUE(torch::equal(weight.grad(), weights[place].grad())) << kind << stage;
    }
  });
}

}  // namespace
}  // namespace trireme::pipeline::test
