// SPDX-License-Identifier: Apache-2.0
// One module trained by several functions, each with its loss and optimizer, over the stages of one
// pipeline; and what is refused where two pipelines would train it.
#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/data_parallel.h>
#include <trireme/parallel/deferred.h>
#include <trireme/parallel/training_step.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/pipeline/loops.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace trireme {
namespace {

using test::clones;
using test::fill;
using test::numbers;
using test::usage_error;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_ranks;
using torch::Tensor;

constexpr std::int64_t kRows = 8;
constexpr std::int64_t kMicroBatches = 2;
constexpr int kSteps = 3;

template <typename Function>
std::string c10_error(const Function& function) {
  try {
    function();
  } catch (const c10::Error& error) {
    return error.what();
  }
  return "no error";
}

// A generator with batch norm in stage 0 and a discriminator in stage 1.
struct AdversariesImpl : torch::nn::Module {
  AdversariesImpl() {
    generator = register_module(
        "generator",
        torch::nn::Sequential(torch::nn::Linear(3, 8), torch::nn::BatchNorm1d(8), torch::nn::ReLU(),
                              torch::nn::Linear(8, 4), torch::nn::Tanh()));
    discriminator = register_module(
        "discriminator", torch::nn::Sequential(torch::nn::Linear(4, 8), torch::nn::LeakyReLU(),
                                               torch::nn::Linear(8, 1)));
    scale = register_parameter("scale", torch::ones({1}));  // of the generator's loss alone
    fill(*this);
  }

  static Tensor loss_of(const Tensor& judged, double label) {
    return torch::binary_cross_entropy_with_logits(judged, torch::full_like(judged, label));
  }

  // Of real rows and noise. The generator runs, and is not trained.
  Tensor tell_apart(const Tensor& real, const Tensor& noise) {
    Tensor made;
    {
      const torch::NoGradGuard no_grad;
      made = generator->forward(noise);
    }
    return loss_of(discriminator->forward(made), 0) + loss_of(discriminator->forward(real), 1);
  }

  Tensor deceive(const Tensor& noise) {
    return loss_of(discriminator->forward(generator->forward(noise)), 1) +
           (scale - 0.5).square().sum();
  }

  std::vector<Tensor> parameters_of_generator() const {
    std::vector<Tensor> all = generator->parameters();
    all.push_back(scale);
    return all;
  }

  torch::nn::Sequential generator{nullptr}, discriminator{nullptr};
  Tensor scale;
};
TORCH_MODULE(Adversaries);

StepFunctions functions_of(Adversaries net) {
  return {{"discriminator",
           [net](const std::vector<Tensor>& in) mutable -> std::vector<Tensor> {
             return {net->tell_apart(in[0], in[1])};
           }},
          {"generator", [net](const std::vector<Tensor>& in) mutable -> std::vector<Tensor> {
             return {net->deceive(in[0])};
           }}};
}

Plan plan_of(int pipe, int data, int zero_level = 0) {
  Plan plan;
  plan.mesh = {{kDataAxis, data}, {kStageAxis, pipe}};
  plan.stages = {{"generator", 0}};
  if (pipe > 1) plan.stages.emplace_back("discriminator", 1);
  plan.micro_batches = kMicroBatches;
  plan.zero_level = zero_level;
  return plan;
}

std::vector<Tensor> batch_of(const std::string& function, int step) {
  const Tensor noise = numbers({kRows, 3}, step);
  if (function == "generator") return {noise};
  return {numbers({kRows, 4}, 10 + step), noise};
}

struct Outcome {
  std::vector<Tensor> losses;
  std::vector<Tensor> tensors;
};

template <typename Step>
std::vector<Tensor> train(const Adversaries& net, const Step& step_of,
                          const std::function<void(torch::optim::Optimizer&)>& shard = {}) {
  torch::optim::Adam of_generator(net->parameters_of_generator(), torch::optim::AdamOptions(0.05));
  torch::optim::Adam of_discriminator(net->discriminator->parameters(),
                                      torch::optim::AdamOptions(0.05));
  const std::map<std::string, torch::optim::Optimizer*> optimizers = {
      {"discriminator", &of_discriminator}, {"generator", &of_generator}};
  if (shard) {
    for (const auto& [function, optimizer] : optimizers) shard(*optimizer);
  }
  std::vector<Tensor> losses;
  for (int step = 0; step < kSteps; ++step) {
    for (const auto& [function, optimizer] : optimizers) {
      of_generator.zero_grad();
      of_discriminator.zero_grad();
      losses.push_back(step_of(function, step).detach().clone());
      optimizer->step();
    }
  }
  return losses;
}

std::vector<Tensor> tensors_of(const Adversaries& net) {
  std::vector<Tensor> all = clones(net->parameters());
  for (const Tensor& buffer : net->buffers()) all.push_back(buffer.clone());
  return all;
}

Outcome alone() {
  Adversaries net;
  const StepFunctions functions = functions_of(net);
  Outcome outcome;
  outcome.losses = train(net, [&](const std::string& function, int step) {
    const graph::Forward& forward = functions[function == functions[0].first ? 0 : 1].second;
    std::vector<Tensor> losses;
    for (const auto& part : test::micro_batches_of(batch_of(function, step), kMicroBatches)) {
      const Tensor loss = forward(part)[0];
      loss.backward();
      losses.push_back(loss.detach());
    }
    for (const Tensor& parameter : net->parameters()) {
      if (parameter.grad().defined()) parameter.grad().div_(kMicroBatches);
    }
    return test::mean_of(losses, {1, 1});
  });
  outcome.tensors = tensors_of(net);
  return outcome;
}

Outcome in_stages(const Plan& plan, const comm::Group& group) {
  Adversaries net;
  TrainingStep pipeline(net, functions_of(net), plan, group);
  Outcome outcome;
  outcome.losses = train(
      net,
      [&](const std::string& function, int step) {
        const auto batch = test::part_of(batch_of(function, step), pipeline.data_group().rank(),
                                         pipeline.data_group().size());
        return pipeline.step(batch, {.function = function}).loss;
      },
      [&](torch::optim::Optimizer& optimizer) { pipeline.shard(optimizer); });
  pipeline.gather_parameters();
  outcome.tensors = tensors_of(net);
  return outcome;
}

TEST(StepFunctions, TrainAdversariesAsOneProcessDoes) {
  const Outcome expected = alone();
  for (const int pipe : {1, 2}) {
    run_ranks(pipe, [&](const comm::Group& group) {
      const Outcome got = in_stages(plan_of(pipe, 1), group);
      test::expect_same_bits(got.losses, expected.losses, "loss");
      test::expect_same_bits(got.tensors, expected.tensors, "tensor");
    });
  }
}

// Two ranks along data have half of the rows each: batch norm sees those alone, and sums are
// others, so that only parameters of two such trainings are compared.
TEST(StepFunctions, CutParametersAlongDataAlike) {
  std::vector<Tensor> whole;
  std::vector<Tensor> cut;
  for (const int zero_level : {0, 1, 3}) {
    run_ranks(4, [&](const comm::Group& group) {
      const Outcome got = in_stages(plan_of(2, 2, zero_level), group);
      if (group.rank() == 0) (zero_level == 0 ? whole : cut) = got.tensors;
    });
    if (zero_level > 0) test::expect_same_bits(cut, whole, "tensor");
  }
}

TEST(StepFunctions, EvaluateEach) {
  Adversaries net;
  net->eval();
  const Tensor expected = net->deceive(batch_of("generator", 0)[0]).detach();
  run_ranks(2, [&](const comm::Group& group) {
    Adversaries own;
    TrainingStep pipeline(own, functions_of(own), plan_of(2, 1), group);
    const auto judged = pipeline.evaluate(batch_of("discriminator", 0));
    const auto deceived = pipeline.evaluate(batch_of("generator", 0), {.function = "generator"});
    EXPECT_TRUE(torch::allclose(deceived.loss, expected));
    EXPECT_FALSE(torch::allclose(judged.loss, expected));
  });
}

// Stages by cost: the second function, which has other operators, is cut where the first was.
TEST(StepFunctions, HaveTheStagesOfTheFirst) {
  const auto make = [] {
    torch::nn::Sequential net(torch::nn::Linear(4, 6), torch::nn::Tanh(), torch::nn::Linear(6, 6),
                              torch::nn::Tanh(), torch::nn::Linear(6, 2));
    fill(*net);
    return net;
  };
  const auto functions = [](torch::nn::Sequential net) -> StepFunctions {
    return {{"squares",
             [net](const std::vector<Tensor>& in) mutable -> std::vector<Tensor> {
               return {net->forward(in[0]).square().mean()};
             }},
            {"distances", [net](const std::vector<Tensor>& in) mutable -> std::vector<Tensor> {
               return {torch::l1_loss(net->forward(in[0] * 2), in[1])};
             }}};
  };
  const auto batch = [](std::int64_t function) -> std::vector<Tensor> {
    return {numbers({kRows, 4}, function), numbers({kRows, 2}, 7)};
  };
  torch::nn::Sequential expected = make();
  torch::optim::SGD of_expected(expected->parameters(), 0.1);
  const StepFunctions plain = functions(expected);
  for (const std::size_t i : {0U, 1U, 0U}) {
    of_expected.zero_grad();
    for (const auto& part :
         test::micro_batches_of(batch(static_cast<std::int64_t>(i)), kMicroBatches)) {
      plain[i].second(part)[0].backward();
    }
    for (const Tensor& parameter : expected->parameters()) parameter.grad().div_(kMicroBatches);
    of_expected.step();
  }
  run_ranks(2, [&](const comm::Group& group) {
    torch::nn::Sequential net = make();
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    Plan plan;
    plan.mesh = {{kStageAxis, 2}};
    plan.micro_batches = kMicroBatches;
    const StepFunctions all = functions(net);
    TrainingStep pipeline(net, all, plan, group);
    for (const std::size_t i : {0U, 1U, 0U}) {
      optimizer.zero_grad();
      static_cast<void>(
          pipeline.step(batch(static_cast<std::int64_t>(i)), {.function = all[i].first}));
      optimizer.step();
    }
    pipeline.gather_parameters();
    test::expect_same_bits(clones(net->parameters()), clones(expected->parameters()), "parameter");
  });
}

// The rank of the second stage had no memory for it.
TEST(StepFunctions, UseAConstantOnAnotherRankThanBefore) {
  struct ScaledImpl : torch::nn::Module {
    ScaledImpl() {
      first = register_module("first", torch::nn::Linear(3, 4));
      second = register_module("second", torch::nn::Linear(4, 2));
      frozen = register_parameter("frozen", torch::rand({4}), /*requires_grad=*/false);
      scale = register_buffer("scale", torch::full({2}, 3.0F));
    }
    torch::nn::Linear first{nullptr}, second{nullptr};
    Tensor frozen, scale;
  };
  const auto functions = [](const std::shared_ptr<ScaledImpl>& net) -> StepFunctions {
    return {{"early",
             [net](const std::vector<Tensor>& in) -> std::vector<Tensor> {
               const Tensor hidden = net->first(in[0]) * net->frozen * net->scale.sum();
               return {net->second(hidden).square().mean()};
             }},
            {"late", [net](const std::vector<Tensor>& in) -> std::vector<Tensor> {
               const Tensor out = net->second(net->first(in[0])) * net->scale;
               return {(out * net->frozen.sum()).square().mean()};
             }}};
  };
  const auto make_net = [] {
    static std::mutex one_at_a_time;  // LibTorch's random generator is the process's
    const std::lock_guard lock(one_at_a_time);
    torch::manual_seed(7);
    return deferred([] { return std::make_shared<ScaledImpl>(); });
  };
  run_ranks(2, [&](const comm::Group& group) {
    const auto net = make_net();
    Plan plan;
    plan.mesh = {{kStageAxis, 2}};
    plan.stages = {{"second", 1}};
    plan.micro_batches = kMicroBatches;
    TrainingStep pipeline(net, functions(net), plan, group);
    const std::vector<Tensor> batch = {numbers({kRows, 3}, 0)};
    static_cast<void>(pipeline.step(batch, {.function = "early"}));
    const Tensor evaluated = pipeline.evaluate(batch, {.function = "late"}).loss;
    const Tensor late = pipeline.step(batch, {.function = "late"}).loss;
    pipeline.gather_parameters();
    const Tensor expected = functions(net)[1].second(batch)[0].detach();
    EXPECT_TRUE(torch::allclose(late, expected)) << late << expected;
    EXPECT_TRUE(torch::allclose(evaluated, expected)) << evaluated << expected;
  });
}

TEST(StepFunctions, RefuseWhatTheyCannotTell) {
  run_ranks(2, [](const comm::Group& group) {
    Adversaries net;
    StepFunctions functions = functions_of(net);
    {
      TrainingStep pipeline(net, functions, plan_of(2, 1), group);
      EXPECT_THAT(
          usage_error([&] {
            static_cast<void>(pipeline.step(batch_of("generator", 0), {.function = "generater"}));
          }),
          AllOf(HasSubstr("'generater'"), HasSubstr("did you mean 'generator'")));
    }
    functions[1].first = "discriminator";
    EXPECT_THAT(
        usage_error([&] { const TrainingStep pipeline(net, functions, plan_of(2, 1), group); }),
        HasSubstr("'discriminator'"));
    functions[1] = {"nothing", {}};
    EXPECT_THAT(
        usage_error([&] { const TrainingStep pipeline(net, functions, plan_of(2, 1), group); }),
        HasSubstr("function nothing, is empty"));
  });
}

// Each computed with values of its own stages, of which the other had trained some elsewhere.
TEST(Pipelines, OfOneModuleAreRefused) {
  run_ranks(2, [](const comm::Group& group) {
    Adversaries net;
    const StepFunctions functions = functions_of(net);
    const TrainingStep first(net, functions[0].second, plan_of(2, 1), group);
    const auto message = AllOf(HasSubstr("the module has a TrainingStep already"),
                               HasSubstr("forward passes by name"));
    EXPECT_THAT(usage_error([&] {
                  const TrainingStep second(net, functions[1].second, plan_of(2, 1), group);
                }),
                message);
    EXPECT_THAT(usage_error([&] {
                  const TrainingStep second(net->generator, functions[1].second, plan_of(2, 1),
                                            group);
                }),
                message);
  });
}

// Hooks of one ran in backward of the other.
TEST(Pipelines, AreNotMixedWithDataParallelOverOneModule) {
  run_ranks(2, [](const comm::Group& group) {
    Adversaries net;
    const StepFunctions functions = functions_of(net);
    {
      const DataParallel parallel(*net, group);
      EXPECT_THAT(
          usage_error([&] { const TrainingStep pipeline(net, functions, plan_of(2, 1), group); }),
          AllOf(HasSubstr("parameter scale"), HasSubstr("hook already")));
    }
    TrainingStep pipeline(net, functions, plan_of(2, 1), group);
    const auto message = AllOf(HasSubstr("the module has a TrainingStep already, which has "),
                               HasSubstr("destroy the TrainingStep before"));
    EXPECT_THAT(usage_error([&] { const DataParallel parallel(*net, group); }), message);
    EXPECT_THAT(usage_error([&] {
                  const Parallelized parallel =
                      parallelize({{"layer", net->generator}}, Plan(), group);
                }),
                message);
    {
      const TrainingStep moved = std::move(pipeline);
    }
    const DataParallel parallel(*net, group);
  });
}

TEST(Pipelines, OneAfterTheOtherBeginWithTrainedValues) {
  run_ranks(2, [](const comm::Group& group) {
    Adversaries net;
    const StepFunctions functions = functions_of(net);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    const auto train_once = [&](bool gathers) {
      TrainingStep pipeline(net, functions[1].second, plan_of(2, 1), group);
      static_cast<void>(pipeline.step(batch_of("generator", 0)));
      optimizer.step();
      if (gathers) pipeline.gather_parameters();
    };
    train_once(true);
    const std::vector<Tensor> trained = clones(net->parameters());
    {
      const TrainingStep pipeline(net, functions[1].second, plan_of(2, 1), group);
      test::expect_same_bits(clones(net->parameters()), trained, "parameter");
    }
    train_once(false);
    EXPECT_THAT(usage_error([&] { train_once(true); }), HasSubstr("gather_parameters()"));
    // Values that were written since, by a checkpoint say, are not old.
    {
      const torch::NoGradGuard no_grad;
      for (const Tensor& tensor : net->parameters()) tensor.mul_(1);
      for (const Tensor& tensor : net->buffers()) tensor.mul_(1);
    }
    EXPECT_NO_THROW(train_once(true));
  });
}

// Parameters that are views of one tensor cannot be watched, and are refused all the same.
TEST(Pipelines, OneAfterTheOtherBeginWithTrainedValuesInOneMemory) {
  run_ranks(2, [](const comm::Group& group) {
    Adversaries net;
    std::vector<Tensor> flat;
    for (const Tensor& parameter : net->parameters()) flat.push_back(parameter.detach().flatten());
    const Tensor all = torch::cat(flat);
    std::int64_t begin = 0;
    for (Tensor parameter : net->parameters()) {  // NOLINT(performance-for-range-copy)
      parameter.set_data(all.narrow(0, begin, parameter.numel()).view(parameter.sizes()));
      begin += parameter.numel();
    }
    const StepFunctions functions = functions_of(net);
    {
      TrainingStep pipeline(net, functions[1].second, plan_of(2, 1), group);
      static_cast<void>(pipeline.step(batch_of("generator", 0)));
    }
    EXPECT_THAT(usage_error([&] {
                  const TrainingStep next(net, functions[1].second, plan_of(2, 1), group);
                }),
                HasSubstr("gather_parameters()"));
  });
}

// They were read with the values that they had before the training.
TEST(Pipelines, ParametersThatOtherRanksTrainAreNotRead) {
  run_ranks(2, [](const comm::Group& group) {
    Adversaries net;
    const StepFunctions functions = functions_of(net);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    TrainingStep pipeline(net, functions[1].second, plan_of(2, 1), group);
    const auto parameters = net->named_parameters();
    const std::string first = "generator.0.weight";
    const std::string last = "discriminator.0.weight";
    const Tensor& own = parameters[group.rank() == 0 ? first : last];
    const Tensor& other = parameters[group.rank() == 0 ? last : first];
    const auto message = AllOf(HasSubstr((group.rank() == 0 ? last : first) + " was read"),
                               HasSubstr("gather_parameters()"));
    EXPECT_NO_THROW(other.norm());  // alike on all ranks still
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      static_cast<void>(pipeline.step(batch_of("generator", step)));
      optimizer.step();
      const torch::NoGradGuard no_grad;
      EXPECT_THAT(usage_error([&] { other.norm(); }), message);
      EXPECT_THAT(usage_error([&] { other.detach().to(torch::kDouble); }), message);
      EXPECT_THAT(usage_error([&] { other.flatten(); }), message);
      // Without an operator, which wrote and gave old values.
      EXPECT_THAT(c10_error([&] { other.data_ptr(); }), message);
      EXPECT_THAT(c10_error([&] {
                    std::ostringstream file;
                    torch::save(net, file);
                  }),
                  AllOf(HasSubstr("was read"), HasSubstr("gather_parameters()")));
      EXPECT_THAT(usage_error([&] { comm::all_reduce(other, group); }), message);
      EXPECT_NO_THROW(own.norm());
    }
    pipeline.gather_parameters();
    EXPECT_NO_THROW(other.norm());
    static_cast<void>(pipeline.step(batch_of("generator", 0)));
    const torch::NoGradGuard no_grad;
    other.zero_();  // the caller's value
    EXPECT_NO_THROW(other.norm());
    EXPECT_NO_THROW(static_cast<void>(other.data_ptr()));
    // A collective writes into it as an operator does.
    static_cast<void>(pipeline.step(batch_of("generator", 0)));
    comm::broadcast(parameters[first], 0, group);
    comm::broadcast(parameters[last], 1, group);
    EXPECT_NO_THROW(other.norm());
    std::ostringstream file;
    EXPECT_THAT(c10_error([&] { torch::save(net, file); }),
                HasSubstr("was read"));  // others are old
    pipeline.gather_parameters();
    EXPECT_NO_THROW(torch::save(net, file));
  });
}

}  // namespace
}  // namespace trireme
