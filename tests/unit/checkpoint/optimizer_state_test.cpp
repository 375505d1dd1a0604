// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/optimizer_state.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/module_state.h>
#include <trireme/optim/lamb.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/temporary_folder.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;
using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(torch::nn::Module&)>;
using test::message_of;
using test::TemporaryFolder;

// Sizes that are no multiple of a vector register, so that tails of kernels take part.
torch::nn::Sequential make_net() {
  return torch::nn::Sequential(torch::nn::Conv2d(3, 5, 3), torch::nn::BatchNorm2d(5),
                               torch::nn::Flatten(), torch::nn::Linear(45, 7));
}

// Two groups with options of their own, as fine-tuning has them.
std::vector<OptimizerParamGroup> groups_of(torch::nn::Module& module,
                                           std::unique_ptr<torch::optim::OptimizerOptions> second) {
  const auto parameters = module.parameters();
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector(parameters.begin(), parameters.begin() + 3));
  groups.emplace_back(std::vector(parameters.begin() + 3, parameters.end()), std::move(second));
  return groups;
}

struct Case {
  std::string name;
  MakeOptimizer make;
};

std::vector<Case> all_optimizers() {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace): two dozen names of it
  return {
      {"SGD", [](auto& m) { return std::make_unique<SGD>(m.parameters(), SGDOptions(0.05)); }},
      {"SGDMomentum",
       [](auto& m) {
         const auto options = SGDOptions(0.05).momentum(0.9).weight_decay(1e-3).nesterov(true);
         return std::make_unique<SGD>(
             groups_of(m, std::make_unique<SGDOptions>(SGDOptions(0.01).momentum(0.5))), options);
       }},
      {"Adam",
       [](auto& m) {
         return std::make_unique<Adam>(m.parameters(), AdamOptions(0.01).betas({0.8, 0.95}));
       }},
      {"AdamAmsgrad",
       [](auto& m) {
         return std::make_unique<Adam>(m.parameters(), AdamOptions(0.01).amsgrad(true));
       }},
      {"AdamW",
       [](auto& m) {
         return std::make_unique<AdamW>(
             groups_of(m, std::make_unique<AdamWOptions>(AdamWOptions(0.1))),
             AdamWOptions(0.01).weight_decay(0.1));
       }},
      {"LAMB",
       [](auto& m) {
         std::vector<LambGroup> groups(2);
         for (const auto& parameter : m.parameters())
           groups[parameter.dim() > 1 ? 0 : 1].parameters.push_back(parameter);
         groups[0].options.learning_rate = 0.02;
         groups[1].adapts = false;
         return lamb(std::move(groups));
       }},
      {"RMSprop",
       [](auto& m) {
         return std::make_unique<RMSprop>(m.parameters(),
                                          RMSpropOptions(0.01).momentum(0.9).centered(true));
       }},
      {"Adagrad",
       [](auto& m) {
         return std::make_unique<Adagrad>(
             m.parameters(), AdagradOptions(0.05).lr_decay(0.1).initial_accumulator_value(0.1));
       }},
  };
}

void train(torch::nn::Sequential& net, Optimizer& optimizer, int first_step, int steps) {
  for (int step = first_step; step < first_step + steps; ++step) {
    torch::manual_seed(100 + static_cast<std::uint64_t>(step));
    const auto images = torch::randn({6, 3, 5, 5});
    const auto labels = torch::randint(7, {6});
    optimizer.zero_grad();
    torch::cross_entropy_loss(net->forward(images), labels).backward();
    // A schedule: the rate it left is part of what is saved.
    for (auto& group : optimizer.param_groups())
      group.options().set_lr(group.options().get_lr() * 0.9);
    optimizer.step();
  }
}

class EveryOptimizer : public ::testing::TestWithParam<Case> {};

TEST_P(EveryOptimizer, ContinuesBitForBitAfterARestart) {
  const TemporaryFolder folder;
  for (const bool channels_last : {false, true}) {
    const auto prepare = [&](torch::nn::Sequential& net) {
      for (auto& parameter : net->parameters()) {
        if (channels_last && parameter.dim() == 4) {
          parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
        }
      }
    };
    torch::manual_seed(7);
    auto net = make_net();
    prepare(net);
    const auto optimizer = GetParam().make(*net);
    train(net, *optimizer, 0, 3);
    const auto state = optimizer_state(*optimizer, *net);
    write_safetensors(folder / "model", module_tensors(*net));
    write_safetensors(folder / "optimizer", state.tensors);
    train(net, *optimizer, 3, 3);

    auto restarted = make_net();
    prepare(restarted);
    const auto restarted_optimizer = GetParam().make(*restarted);
    train(restarted, *restarted_optimizer, 50, 1);  // a history of its own, which has to go
    load_module_tensors(read_safetensors(folder / "model").tensors, *restarted, "model");
    load_optimizer_state({read_safetensors(folder / "optimizer").tensors, state.scalars},
                         *restarted_optimizer, *restarted, "optimizer");
    train(restarted, *restarted_optimizer, 3, 3);

    for (const auto& item : module_tensors(*net)) {
      EXPECT_TRUE(torch::equal(item.second, module_tensors(*restarted).at(item.first)))
          << item.first;
    }
    const auto uninterrupted = optimizer_state(*optimizer, *net);
    const auto continued = optimizer_state(*restarted_optimizer, *restarted);
    EXPECT_EQ(uninterrupted.scalars, continued.scalars);
    for (const auto& [name, tensor] : uninterrupted.tensors) {
      EXPECT_TRUE(torch::equal(tensor, continued.tensors.at(name))) << name;
      EXPECT_EQ(tensor.strides(), continued.tensors.at(name).strides()) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(OptimizerState, EveryOptimizer, ::testing::ValuesIn(all_optimizers()),
                         [](const auto& chosen) { return chosen.param.name; });

TEST(OptimizerState, NamesTensorsByParameter) {
  auto net = make_net();
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  train(net, optimizer, 0, 1);
  const auto state = optimizer_state(optimizer, *net);
  EXPECT_EQ(state.tensors.size(), 6U);
  EXPECT_TRUE(state.tensors.contains("optimizer.3.weight.momentum_buffer"));
  EXPECT_THAT(state.scalars, HasSubstr(R"("kind":"SGD")"));
}

TEST(OptimizerState, HasNoStateForAParameterThatNeverHadAGradient) {
  auto net = make_net();
  net->parameters()[0].set_requires_grad(false);
  torch::optim::Adam optimizer(net->parameters());
  train(net, optimizer, 0, 1);
  const auto state = optimizer_state(optimizer, *net);
  EXPECT_FALSE(state.tensors.contains("optimizer.0.weight.exp_avg"));
  torch::optim::Adam other(net->parameters());
  load_optimizer_state(state, other, *net, "f");
  EXPECT_EQ(other.state().size(), 5U);
}

TEST(OptimizerState, RefusesOptimizersItDoesNotKnow) {
  struct Own : torch::optim::SGD::Optimizer {
    using Optimizer::Optimizer;
    torch::Tensor step(LossClosure) override { return {}; }
  };
  const auto net = make_net();
  EXPECT_THAT(message_of<UsageError>(
                  [&] { optimizer_state(torch::optim::LBFGS(net->parameters()), *net); }),
              AllOf(HasSubstr("LBFGS"), HasSubstr("hint: save the model alone")));
  const Own own(net->parameters(), std::make_unique<torch::optim::SGDOptions>(0.1));
  EXPECT_THAT(message_of<UsageError>([&] { optimizer_state(own, *net); }),
              HasSubstr("not one of LibTorch's"));
}

TEST(OptimizerState, NamesAParameterThatIsNotTheModules) {
  const auto net = make_net();
  const torch::optim::SGD optimizer({torch::ones({2, 3})}, 0.1);
  EXPECT_THAT(message_of<UsageError>([&] { optimizer_state(optimizer, *net); }),
              HasSubstr("parameter 0 of the optimizer's group 0, of shape [2, 3], is not a "
                        "parameter of the module"));
}

TEST(OptimizerState, SaysWhatDoesNotFitAndChangesNothing) {
  auto net = make_net();
  torch::optim::Adam saved(net->parameters(), 0.5);
  train(net, saved, 0, 1);
  const auto state = optimizer_state(saved, *net);
  const auto refusal = [&](const OptimizerState& wrong, Optimizer& target) {
    const auto before = optimizer_state(target, *net).scalars;
    auto message =
        message_of<CheckpointError>([&] { load_optimizer_state(wrong, target, *net, "file f"); });
    EXPECT_EQ(optimizer_state(target, *net).scalars, before);
    return message;
  };
  const auto replace = [&](const std::string& from, const std::string& to) {
    OptimizerState changed = state;
    const auto place = changed.scalars.find(from);
    EXPECT_NE(place, std::string::npos) << from;
    changed.scalars.replace(place, from.size(), to);
    return changed;
  };

  torch::optim::SGD sgd(net->parameters(), 0.1);
  EXPECT_THAT(refusal(state, sgd), HasSubstr("file f does not fit the optimizer: it holds the "
                                             "state of Adam, and the optimizer is SGD"));
  torch::optim::Adam two_groups(groups_of(*net, std::make_unique<torch::optim::AdamOptions>(0.1)),
                                0.1);
  EXPECT_THAT(refusal(state, two_groups),
              HasSubstr("has 1 parameter groups, and the optimizer has 2"));
  const auto parameters = net->parameters();
  torch::optim::Adam fewer(std::vector(parameters.begin(), parameters.end() - 1), 0.1);
  EXPECT_THAT(refusal(state, fewer),
              HasSubstr("has 6 parameters in group 0, and the optimizer has 5"));
  torch::optim::Adam reversed(std::vector(parameters.rbegin(), parameters.rend()), 0.1);
  EXPECT_THAT(
      refusal(state, reversed),
      HasSubstr("has '0.weight' as parameter 0 of group 0, and the optimizer has '3.bias'"));

  torch::optim::Adam target(parameters, 0.1);
  OptimizerState wrong = state;
  wrong.tensors.erase("optimizer.1.bias.exp_avg");
  EXPECT_THAT(refusal(wrong, target), HasSubstr("lacks tensor 'optimizer.1.bias.exp_avg'"));
  wrong = state;
  wrong.tensors["optimizer.1.bias.exp_avg"] = torch::ones({2});
  EXPECT_THAT(refusal(wrong, target),
              HasSubstr("has tensor 'optimizer.1.bias.exp_avg' of shape [2]"));
  wrong = state;
  wrong.tensors["optimizer.other"] = torch::ones({2});
  EXPECT_THAT(refusal(wrong, target),
              HasSubstr("holds 13 tensors, of which this optimizer knows only 12"));
  EXPECT_THAT(refusal(replace("\"lr\":0.45", "\"lr\":null"), target),
              HasSubstr("damaged description"));
  EXPECT_THAT(refusal(replace("{", "("), target), HasSubstr("damaged description"));
  for (const char* number : {"1e300", "0.5"}) {
    EXPECT_THAT(
        refusal(replace("\"step\":", std::string("\"step\":") + number + ",\"x\":"), target),
        AllOf(HasSubstr("for 'step' of '"), HasSubstr("expected an integer")));
  }
  const std::string deep =
      "{\"state\":" + std::string(1'000'000, '[') + std::string(1'000'000, ']') + "}";
  EXPECT_THAT(message_of<CheckpointError>([&] { join_scalars({deep, deep}, "file f"); }),
              HasSubstr("file f has a damaged description of the optimizer: more than 64 lists"));
}

}  // namespace
}  // namespace trireme::checkpoint
