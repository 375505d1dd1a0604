// SPDX-License-Identifier: Apache-2.0
// Recurrent layers and a small convolutional network on distributed tensors against one process.
#include <tests/ranks/operators/operator_checks.h>

#include <string>
#include <vector>

namespace trireme {
namespace {

namespace nn = torch::nn;
using test::sample;
using test::Tensors;

// What a module gives and the gradients of its parameters.
struct Outcome {
  Tensors values;
  Tensors gradients;
};

template <typename Forward>
Outcome outcome_of(const nn::Module& module, const Forward& forward) {
  Outcome outcome;
  outcome.values = forward();
  test::weighted_sum(outcome.values).backward();
  for (const auto& parameter : module.parameters()) outcome.gradients.push_back(parameter.grad());
  return outcome;
}

void expect_equal(const Outcome& got, const Outcome& expected, double bound) {
  ASSERT_EQ(got.values.size(), expected.values.size());
  for (std::size_t i = 0; i < got.values.size(); ++i) {
    test::expect_close(got.values[i].detach(), expected.values[i].detach(), bound,
                       "value " + std::to_string(i));
  }
  for (std::size_t i = 0; i < got.gradients.size(); ++i) {
    test::expect_close(got.gradients[i], expected.gradients[i], bound,
                       "gradient " + std::to_string(i));
  }
}

// Parameters that depend on nothing but their place.
template <typename Module>
void fill(Module& module, torch::ScalarType dtype) {
  const torch::NoGradGuard guard;
  module->to(dtype);
  for (auto& parameter : module->parameters())
    parameter.copy_(sample(parameter.sizes(), dtype) / 8);
}

template <typename Module, typename Options>
void check_recurrent(const Options& options, torch::ScalarType dtype, double bound, int ranks,
                     std::int64_t batch) {
  testing::run_ranks(ranks, [&](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"data", ranks}});
    const auto plain = sample({4, batch, 3}, dtype);
    const auto flatten = [](const auto& result) {
      Tensors values = {std::get<0>(result)};
      if constexpr (std::is_same_v<std::decay_t<decltype(std::get<1>(result))>, torch::Tensor>) {
        values.push_back(std::get<1>(result));
      } else {
        values.push_back(std::get<0>(std::get<1>(result)));
        values.push_back(std::get<1>(std::get<1>(result)));
      }
      return values;
    };
    Module alone(options);
    fill(alone, dtype);
    const Outcome expected = outcome_of(*alone, [&] { return flatten(alone->forward(plain)); });
    Module together(options);
    fill(together, dtype);
    for (auto& parameter : together->parameters()) {
      distribute_in_place(parameter, Layout::replicated(mesh));
    }
    const auto cut = distribute(plain, Layout(mesh, {Shard{1}}));
    const Outcome got = outcome_of(*together, [&] { return flatten(together->forward(cut)); });
    // Elsewhere the initial state is what everything else is added to: replicated, if not given.
    const bool is_one_operator = dtype == torch::kFloat && std::is_same_v<Module, nn::LSTM>;
    if (is_one_operator) {
      EXPECT_TRUE(layout_of(got.values[0])[0].is_shard(1)) << layout_of(got.values[0]).to_string();
    }
    expect_equal(got, expected, bound);
  });
}

TEST(RecurrentRules, LstmWithACutBatch) {
  for (const auto dtype : {torch::kFloat, torch::kDouble}) {
    const double bound = dtype == torch::kFloat ? 1e-5 : 1e-11;
    check_recurrent<nn::LSTM>(nn::LSTMOptions(3, 4), dtype, bound, 2, 5);
    check_recurrent<nn::LSTM>(nn::LSTMOptions(3, 4).num_layers(2).bidirectional(true), dtype, bound,
                              3, 2);
    check_recurrent<nn::LSTM>(nn::LSTMOptions(3, 4).bias(false), dtype, bound, 2, 3);
  }
}

// One layer of an LSTM: steps, both states, weights and biases.
test::OperatorCase lstm_layer(torch::ScalarType dtype, bool has_biases) {
  Tensors inputs = {sample({4, 5, 3}, dtype), sample({1, 5, 4}, dtype),
                    sample({1, 5, 4}, dtype) / 4, sample({16, 3}, dtype) / 8,
                    sample({16, 4}, dtype) / 8};
  if (has_biases) {
    inputs.push_back(sample({16}, dtype) / 4);
    inputs.push_back(sample({16}, dtype) / 2);
  }
  return {.name = has_biases ? "lstm" : "lstm without biases",
          .function =
              [has_biases](const Tensors& in) {
                const Tensors states = {in[1], in[2]};
                const Tensors weights(in.begin() + 3, in.end());
                const auto [steps, hidden, cell] =
                    torch::lstm(in[0], states, weights, has_biases, 1, 0,
                                /*train=*/true, /*bidirectional=*/false, /*batch_first=*/false);
                return Tensors{steps, hidden, cell};
              },
          .inputs = std::move(inputs),
          .bound = dtype == torch::kFloat ? 1e-4 : 1e-11};
}

TEST(RecurrentRules, LstmLayersWithEveryPlacement) {
  test::check_operators({lstm_layer(torch::kFloat, true), lstm_layer(torch::kFloat, false),
                         lstm_layer(torch::kDouble, true)});
}

// oneDNN keeps a workspace of the batch that a rank had in forward: backward must have the same,
// wherever the gradients are that arrive.
TEST(RecurrentRules, LstmGradientsThatArriveCutOtherwiseThanForwardWas) {
  const test::OperatorCase lstm = lstm_layer(torch::kFloat, true);
  testing::run_ranks(2, [&](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    Tensors plain;
    for (const auto& input : lstm.inputs) plain.push_back(input.clone().requires_grad_());
    const test::Expected expected = test::run_plain(lstm, plain);
    for (const Placement& of_steps : {Placement(Replicate{}), Placement(Shard{1})}) {
      for (const Placement& of_gradients :
           {Placement(Replicate{}), Placement(Shard{0}), Placement(Shard{1}), Placement(Shard{2}),
            Placement(Partial{})}) {
        Tensors inputs;
        for (const auto& input : lstm.inputs) {
          const Layout layout(mesh, {inputs.empty() ? of_steps : Placement(Replicate{})});
          inputs.push_back(test::spread(input, layout).requires_grad_());
        }
        const auto weigh = [&](std::size_t i) {
          return test::spread(test::weights_of(expected.values[i].detach()),
                              Layout(mesh, {of_gradients}));
        };
        SCOPED_TRACE(of_steps.to_string() + ", gradients " + of_gradients.to_string());
        EXPECT_NO_THROW(test::compare(test::run_case(lstm, inputs, weigh), expected, lstm.bound));
      }
    }
  });
}

TEST(RecurrentRules, GruAndRnnWithACutBatch) {
  check_recurrent<nn::GRU>(nn::GRUOptions(3, 4), torch::kDouble, 1e-11, 2, 5);
  check_recurrent<nn::GRU>(nn::GRUOptions(3, 4).num_layers(2), torch::kFloat, 1e-5, 3, 2);
  check_recurrent<nn::RNN>(nn::RNNOptions(3, 4), torch::kDouble, 1e-11, 2, 3);
}

TEST(RecurrentRules, KeepTheCutOfAGivenState) {
  testing::run_ranks(2, [&](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"data", 2}});
    nn::RNN rnn(nn::RNNOptions(3, 4));
    fill(rnn, torch::kDouble);
    const auto steps = sample({4, 5, 3});
    const auto expected = std::get<0>(rnn->forward(steps, torch::zeros({1, 5, 4}, torch::kDouble)));
    for (auto& parameter : rnn->parameters()) {
      distribute_in_place(parameter, Layout::replicated(mesh));
    }
    const Layout batch(mesh, {Shard{1}});
    const auto state = distribute(torch::zeros({1, 5, 4}, torch::kDouble), batch);
    const auto got = std::get<0>(rnn->forward(distribute(steps, batch), state));
    EXPECT_TRUE(layout_of(got)[0].is_shard(1)) << layout_of(got).to_string();
    test::expect_close(got.detach(), expected.detach(), 1e-11, "steps");
  });
}

TEST(RecurrentRules, CellsWithEveryPlacement) {
  test::OperatorCase lstm = {
      .name = "lstm_cell",
      .function =
          [](const Tensors& in) {
            const auto [hidden, state] = torch::lstm_cell(in[0], {in[1], in[1]}, in[2], in[3]);
            return Tensors{hidden, state};
          },
      .inputs = {sample({3, 2}), sample({3, 2}), sample({8, 2}), sample({8, 2})}};
  test::check_in_both_precisions({lstm});
}

// A residual block between a convolution and a classifier.
struct NetImpl : nn::Module {
  nn::Conv2d first{nullptr}, second{nullptr}, third{nullptr};
  nn::BatchNorm2d norm{nullptr}, inner_norm{nullptr}, outer_norm{nullptr};
  nn::Linear classifier{nullptr};

  NetImpl() {
    first = register_module("first", nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1).bias(false)));
    norm = register_module("norm", nn::BatchNorm2d(8));
    second =
        register_module("second", nn::Conv2d(nn::Conv2dOptions(8, 8, 3).padding(1).bias(false)));
    inner_norm = register_module("inner_norm", nn::BatchNorm2d(8));
    third = register_module("third", nn::Conv2d(nn::Conv2dOptions(8, 8, 3).padding(1)));
    outer_norm = register_module("outer_norm", nn::BatchNorm2d(8));
    classifier = register_module("classifier", nn::Linear(8, 5));
  }

  torch::Tensor forward(const torch::Tensor& images) {
    auto x = torch::max_pool2d(torch::relu(norm(first(images))), 2);
    x = torch::relu(outer_norm(third(torch::relu(inner_norm(second(x))))) + x);
    return classifier(torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
  }
};
TORCH_MODULE(Net);

// Placements along the axis, by the beginning of a parameter's name; others are replicated.
using Placements = std::vector<std::pair<std::string, Placement>>;

void check_net(int ranks, Placement of_images, const Placements& placements) {
  testing::run_ranks(ranks, [&](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"ranks", ranks}});
    const auto images = sample({6, 3, 8, 8});
    Net alone;
    fill(alone, torch::kDouble);
    const Outcome expected = outcome_of(*alone, [&] { return Tensors{alone->forward(images)}; });
    Net together;
    fill(together, torch::kDouble);
    const auto place = [&](const std::string& name) -> Placement {
      for (const auto& [prefix, placement] : placements) {
        if (name.starts_with(prefix)) return placement;
      }
      return Replicate{};
    };
    for (const auto& item : together->named_parameters()) {
      distribute_in_place(item.value(), Layout(mesh, {place(item.key())}));
    }
    for (const auto& item : together->named_buffers()) {
      const Placement placement = item.value().dim() == 0 ? Replicate{} : place(item.key());
      distribute_in_place(item.value(), Layout(mesh, {placement}));
    }
    const auto cut = distribute(images, Layout(mesh, {of_images}));
    const Outcome got = outcome_of(*together, [&] { return Tensors{together->forward(cut)}; });
    expect_equal(got, expected, 1e-9);
  });
}

TEST(ConvolutionalNet, WithACutBatch) {
  check_net(2, Shard{0}, {});
  check_net(4, Shard{0}, {});
}

// Output channels of the first of two convolutions and input channels of the second.
TEST(ConvolutionalNet, WithCutChannels) {
  const Placements channels = {
      {"second", Shard{0}}, {"inner_norm", Shard{0}}, {"third.weight", Shard{1}}};
  check_net(2, Replicate{}, channels);
  check_net(4, Replicate{}, channels);
}

}  // namespace
}  // namespace trireme
