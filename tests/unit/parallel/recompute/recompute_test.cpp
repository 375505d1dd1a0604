// SPDX-License-Identifier: Apache-2.0
// Recomputation gives what the function gives without, bit by bit, in every shape of a graph.
#include <trireme/parallel/recompute.h>

#include <models/gpt.h>
#include <trireme/optim/autocast.h>

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <tests/unit/parallel/recompute/recompute_checks.h>
#include <torch/torch.h>

#include <thread>

namespace trireme {
namespace {

namespace autograd = torch::autograd;
using test::Caller;
using test::expect_same;
using test::leaf;
using test::same;
using test::state_after;
using test::Tensors;

torch::nn::Sequential make_block() {
  return torch::nn::Sequential(torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})),
                               torch::nn::Linear(8, 16), torch::nn::GELU(), torch::nn::Dropout(0.4),
                               torch::nn::Linear(16, 8));
}

TEST(Recompute, GivesTheGradientsOfInputsAndOfWhatTheFunctionCaptures) {
  expect_same([](const Caller& call) {
    torch::nn::Sequential net = make_block();
    const torch::Tensor input = leaf({6, 8});
    torch::Tensor x = input;
    for (int layer = 0; layer < 3; ++layer) {
      x = x + call([&](const torch::Tensor& h) { return net->forward(h); }, x);
    }
    const torch::Tensor loss = x.square().mean();
    loss.backward();
    Tensors all = state_after({input}, *net);
    all.push_back(loss.detach());
    return all;
  });
}

TEST(Recompute, DoesSoForLayersOfEveryKind) {
  expect_same([](const Caller& call) {
    torch::nn::LSTM lstm(torch::nn::LSTMOptions(8, 8).num_layers(2).dropout(0.3).batch_first(true));
    torch::nn::Conv1d conv(torch::nn::Conv1dOptions(5, 5, 3).padding(1));
    torch::nn::MultiheadAttention attention(torch::nn::MultiheadAttentionOptions(8, 2));
    torch::nn::PReLU prelu;
    torch::nn::Sequential all(lstm, conv, attention, prelu);
    const torch::Tensor input = leaf({5, 5, 8});
    const torch::Tensor output = call(
        [&](const torch::Tensor& x) {
          torch::Tensor h = prelu(conv(std::get<0>(lstm(x))));
          h = std::get<0>(attention(h, h, h));
          h = at::scaled_dot_product_attention(h, h, h, {}, 0, /*is_causal=*/true);
          return at::max_pool1d(h, 2) * at::softmax(h, -1).sum() + at::logsumexp(h, -1, true);
        },
        input);
    output.square().sum().backward();
    return state_after({input}, *all);
  });
}

static_assert(!detail::Recomputes<int (*)(int), torch::Tensor>);
static_assert(!detail::Recomputes<torch::nn::Linear, std::vector<torch::Tensor>>);
static_assert(detail::ForwardsTensor<torch::nn::Sequential&>);
static_assert(!detail::ForwardsTensor<torch::nn::LSTM&>);
static_assert(detail::Recomputes<torch::Tensor (*)(const torch::Tensor&), torch::Tensor>);

TEST(Recompute, TakesLambdasAndModules) {
  const torch::Tensor input = leaf({6, 8});
  const auto gradient_of = [&](const auto& run) {
    torch::manual_seed(3);
    return torch::autograd::grad({run(input).square().sum()}, {input})[0];
  };
  torch::nn::Linear layer(8, 8);
  torch::nn::Sequential block = make_block();
  const torch::Tensor expected = gradient_of([&](const auto& x) { return layer(x); });
  const auto all = [&](const std::vector<torch::Tensor>& x) { return Tensors{layer(x[0])}; };
  const auto shared = layer.ptr();
  EXPECT_TRUE(same(expected, gradient_of([&](const auto& x) { return recompute(layer, x); })));
  EXPECT_TRUE(same(expected, gradient_of([&](const auto& x) { return recompute(shared, x); })));
  EXPECT_TRUE(same(expected, gradient_of([&](const auto& x) {
                     // NOLINTNEXTLINE(performance-unnecessary-value-param): functions may copy
                     return recompute([&](torch::Tensor h) { return layer(h); }, x);
                   })));
  EXPECT_TRUE(same(expected, gradient_of([&](const auto& x) {
                     return recompute(all, std::vector<torch::Tensor>{x})[0];
                   })));
  EXPECT_TRUE(same(expected, gradient_of([&](const auto& x) { return recompute(all, {x})[0]; })));
  EXPECT_TRUE(same(gradient_of([&](const auto& x) { return block->forward(x); }),
                   gradient_of([&](const auto& x) { return recompute(block, x); })));
}

TEST(Recompute, MayBeNested) {
  for (const int depth : {1, 2, 3, 4}) {
    expect_same([depth](const Caller& call) {
      torch::nn::Sequential net = make_block();
      const std::function<torch::Tensor(const torch::Tensor&, int)> run =
          [&](const torch::Tensor& x, int left) -> torch::Tensor {
        if (left == 0) return net->forward(x);
        const torch::Tensor first =
            call([&run, left](const torch::Tensor& h) { return run(h, left - 1).tanh(); }, x * 2);
        return first +
               call([&run, left](const torch::Tensor& h) { return run(h, left - 1); }, first);
      };
      const torch::Tensor input = leaf({6, 8});
      run(input, depth).square().mean().backward();
      return state_after({input}, *net);
    });
  }
}

TEST(Recompute, TakesAndGivesSeveralTensorsOfEveryKind) {
  expect_same([](const Caller& call) {
    torch::nn::Embedding embedding(10, 8);
    const torch::Tensor words = torch::randint(10, {6});
    const torch::Tensor a = leaf({6, 8});
    const torch::Tensor plain = torch::randn({6, 8});
    const Tensors outputs = call(
        [&](const Tensors& in) -> Tensors {
          const torch::Tensor h = (embedding(in[0]) * in[1]).sin() * in[2];
          EXPECT_FALSE(in[3].defined());
          EXPECT_FALSE(in[0].requires_grad() || in[2].requires_grad());
          return {h, h.exp(), in[0] + 1, h.argmax(1), h.t(), in[1], in[1].view({-1}), {}};
        },
        {words, a, plain, {}});
    EXPECT_FALSE(outputs[7].defined());
    // Output 1 is not used, output 0 twice.
    (outputs[0].sum() + (outputs[0] * outputs[4].t()).cos().sum() + outputs[5].square().sum() +
     outputs[6].dot(outputs[6]))
        .backward();
    Tensors all = state_after({a}, *embedding);
    all.push_back(outputs[2] + outputs[3]);
    return all;
  });
}

TEST(Recompute, GivesParametersTheirsWhereNoInputRequiresAGradient) {
  expect_same([](const Caller& call) {
    torch::nn::Sequential net = make_block();
    const torch::Tensor output =
        call([&](const torch::Tensor& x) { return net->forward(x); }, torch::randn({6, 8}));
    EXPECT_TRUE(output.requires_grad());
    output.square().mean().backward();
    return state_after({}, *net);
  });
}

TEST(Recompute, TakesAWholeNetworkFromIntegers) {
  for (const bool is_tied : {false, true}) {
    expect_same([is_tied](const Caller& call) {
      models::GPT gpt(models::GPTOptions{.vocabulary = 50,
                                         .sequence = 8,
                                         .hidden = 16,
                                         .layers = 2,
                                         .heads = 2,
                                         .dropout = 0.2,
                                         .tied = is_tied});
      const torch::Tensor tokens = torch::randint(50, {3, 8});
      const torch::Tensor loss =
          call([&](const torch::Tensor& rows) { return gpt->forward(rows); }, tokens)
              .square()
              .mean();
      loss.backward();
      Tensors all = state_after({}, *gpt);
      all.push_back(loss.detach());
      return all;
    });
  }
}

TEST(Recompute, AddsGradientsInTheSameOrder) {
  expect_same([](const Caller& call) {
    const torch::Tensor weight = leaf({40, 40});
    const torch::Tensor input = leaf({40, 40});
    const torch::Tensor x = input / 3;
    // Each is used in it more than once, and before and after it.
    const torch::Tensor h = (x.matmul(weight) * 0.1).tanh();
    const Tensors outputs = call(
        [&](const Tensors& in) -> Tensors {
          const torch::Tensor a = (in[0].matmul(weight) * 0.1).sin() * in[0];
          return {a.matmul(weight), a + in[1].matmul(weight.exp()).tanh()};
        },
        {x, h});
    (outputs[0] * outputs[1] + x.matmul(weight) * h).pow(3).mean().backward();
    return Tensors{weight.grad(), input.grad()};
  });
}

TEST(Recompute, GivesSingleGradientsByAutogradGradAndLeavesOthersAlone) {
  expect_same([](const Caller& call) {
    torch::nn::Sequential net = make_block();
    const torch::Tensor input = leaf({6, 8});
    const torch::Tensor loss =
        call([&](const torch::Tensor& x) { return net->forward(x); }, input).square().mean();
    const torch::Tensor weight = net->parameters()[2];
    Tensors all = autograd::grad({loss}, {weight}, {}, /*retain_graph=*/true);
    for (const auto& each : autograd::grad({loss}, {input, weight})) all.push_back(each);
    EXPECT_FALSE(input.grad().defined() || weight.grad().defined());
    return all;
  });
}

TEST(Recompute, GivesSecondDerivatives) {
  expect_same([](const Caller& call) {
    torch::nn::Sequential net(torch::nn::Linear(8, 8), torch::nn::Tanh(), torch::nn::Linear(8, 8));
    const torch::Tensor input = leaf({6, 8});
    const torch::Tensor output =
        call([&](const torch::Tensor& x) { return net->forward(x).sin(); }, input);
    const auto first = autograd::grad({output.square().sum()}, {input}, {}, true, true);
    first[0].square().sum().backward();
    return state_after({input}, *net);
  });
}

TEST(Recompute, RunsBackwardOfOneGraphAsOftenAsItIsKept) {
  expect_same([](const Caller& call) {
    torch::nn::Sequential net = make_block();
    const torch::Tensor input = leaf({6, 8});
    const torch::Tensor loss =
        call([&](const torch::Tensor& x) { return net->forward(x); }, input).square().mean();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    EXPECT_THROW(loss.backward(), c10::Error);
    return state_after({input}, *net);
  });
}

TEST(Recompute, RepeatsAutocast) {
  expect_same([](const Caller& call) {
    torch::nn::Sequential net = make_block();
    const torch::Tensor input = leaf({6, 8});
    torch::Tensor loss;
    {
      const Autocast autocast(at::kCPU, at::kBFloat16);
      const torch::Tensor output = call(
          [&](const torch::Tensor& x) {
            const torch::Tensor h = net->forward(x);
            EXPECT_EQ(h.scalar_type(), at::kBFloat16);
            return h * h.softmax(-1);
          },
          input);
      loss = output.to(at::kFloat).square().mean();
    }
    loss.backward();
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
    return state_after({input}, *net);
  });
}

TEST(Recompute, RepeatsTrainingFlagsOfTheModulesThatItIsGiven) {
  torch::nn::Sequential net = make_block();
  net[3]->eval();
  Tensors ends[2];
  for (const bool is_switched : {false, true}) {
    net->zero_grad();
    torch::manual_seed(1);
    const torch::Tensor output =
        recompute([&](const torch::Tensor& x) { return net->forward(x); }, torch::ones({6, 8}),
                  {.name = "", .preserve_random = true, .modules = {net.ptr()}});
    if (is_switched) net->is_training() ? net->eval() : net->train();
    output.square().mean().backward();
    EXPECT_EQ(net->is_training(), !is_switched);
    EXPECT_FALSE(net[3]->is_training());
    ends[is_switched] = state_after({}, *net);
  }
  for (std::size_t i = 0; i < ends[0].size(); ++i) EXPECT_TRUE(same(ends[0][i], ends[1][i]));
}

TEST(Recompute, OnlyCallsTheFunctionWhereGradModeIsOff) {
  const torch::NoGradGuard no_grad;
  int calls = 0;
  const torch::Tensor output = recompute(
      [&](const torch::Tensor& x) {
        ++calls;
        return x.sin();
      },
      leaf({3}));
  EXPECT_FALSE(output.requires_grad());
  EXPECT_EQ(calls, 1);
}

TEST(Recompute, KeepsPartsWithoutGradientsAndInPlaceOperatorsAsTheyAre) {
  expect_same([](const Caller& call) {
    const torch::Tensor input = leaf({6, 8});
    const torch::Tensor output = call(
        [](const torch::Tensor& x) {
          torch::Tensor mask;
          {
            const torch::NoGradGuard no_grad;
            mask = (x > 0).to(at::kFloat).mul_(2).add_(1);
          }
          torch::Tensor h = (x * mask).relu_().clone();
          h.slice(0, 0, 3).mul_(x.slice(0, 3, 6).sigmoid());
          h.index_put_({torch::indexing::Slice(), 2}, x.select(1, 0).exp());
          return h.detach().square() * h.add_(x).sigmoid_();
        },
        input);
    output.sum().backward();
    return Tensors{input.grad(), output.detach()};
  });
}

TEST(Recompute, CallsHooksOnceForEachBackward) {
  for (const bool is_recomputed : {false, true}) {
    int calls = 0;
    const torch::Tensor input = leaf({3});
    const torch::Tensor output = Caller(is_recomputed)(
        [&](const torch::Tensor& x) {
          const torch::Tensor h = x.sin();
          h.register_hook([&](const torch::Tensor& gradient) {
            ++calls;
            return gradient * 2;
          });
          return h.exp();
        },
        input);
    output.sum().backward();
    EXPECT_EQ(calls, 1);
    EXPECT_TRUE(at::allclose(input.grad(), 2 * input.cos() * input.sin().exp()));
  }
}

// Takes what it saved twice.
struct Cube : autograd::Function<Cube> {
  static torch::Tensor forward(autograd::AutogradContext* context, const torch::Tensor& x) {
    const torch::Tensor square = x * x;
    context->save_for_backward({x, square});
    return square * x;
  }
  static autograd::variable_list backward(autograd::AutogradContext* context,
                                          const autograd::variable_list& gradients) {
    const torch::Tensor x = context->get_saved_variables()[0];
    const torch::Tensor square = context->get_saved_variables()[1];
    return {gradients[0] * (square + 2 * x * x)};
  }
};

TEST(Recompute, ServesFunctionsThatTakeWhatTheySavedTwice) {
  expect_same([](const Caller& call) {
    const torch::Tensor input = leaf({6});
    call([](const torch::Tensor& x) { return Cube::apply(x.sin()).exp(); }, input).sum().backward();
    return Tensors{input.grad()};
  });
}

TEST(Recompute, ServesBackwardInsideTheFunction) {
  expect_same([](const Caller& call) {
    torch::nn::Linear linear(8, 8);
    const torch::Tensor input = leaf({6, 8});
    const torch::Tensor penalty = call(
        [&](const torch::Tensor& x) {
          const torch::Tensor h = x * 1;
          const torch::Tensor inner =
              call([&](const torch::Tensor& each) { return linear(each).tanh(); }, h);
          return autograd::grad({inner.square().sum()}, {h}, {}, true, true)[0].square();
        },
        input);
    penalty.sum().backward();
    return state_after({input}, *linear);
  });
}

// The function inside runs again in the second run of the one around it, with its own numbers.
TEST(Recompute, ServesBackwardThroughRandomNumbersInsideTheFunction) {
  expect_same([](const Caller& call) {
    torch::nn::Linear linear(8, 8);
    const torch::Tensor input = leaf({6, 8});
    const torch::Tensor penalty = call(
        [&](const torch::Tensor& x) {
          const torch::Tensor h = x * 1;
          const torch::Tensor inner = call(
              [&](const torch::Tensor& each) {
                return torch::dropout(linear(each), 0.5, /*train=*/true).tanh();
              },
              h);
          const torch::Tensor slope =
              autograd::grad({inner.square().sum()}, {h}, {}, true, true)[0];
          return torch::dropout(slope, 0.3, /*train=*/true).square();
        },
        input);
    penalty.sum().backward();
    return state_after({input}, *linear);
  });
}

TEST(Recompute, MayBeCapturedByWhatIsRecomputedItself) {
  expect_same([](const Caller& call) {
    const torch::Tensor input = leaf({6, 8});
    const torch::Tensor captured = input.cos() * 2;
    const torch::Tensor output =
        call([&](const torch::Tensor& x) { return (x * captured).sin() * captured; }, input.sin());
    (output * captured).sum().backward();
    return Tensors{input.grad()};
  });
}

TEST(Recompute, SavesWhatIsComputedBesideIt) {
  expect_same([](const Caller& call) {
    torch::nn::Linear linear(8, 8);
    const torch::Tensor input = leaf({6, 8});
    const torch::Tensor output =
        call([&](const torch::Tensor& x) { return linear(x).exp(); }, input);
    // Saved outside: there as ever, though it was made inside.
    output.square().log().sum().backward();
    return state_after({input}, *linear);
  });
}

TEST(Recompute, RunsOnSeveralThreadsAtOnce) {
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([] {
      torch::nn::Linear linear(8, 8);
      for (int step = 0; step < 50; ++step) {
        Tensors ends;
        const torch::Tensor value = torch::randn({6, 8});
        for (const bool is_recomputed : {false, true}) {
          const torch::Tensor input = value.clone().requires_grad_();
          const Caller call(is_recomputed);
          call([&](const torch::Tensor& x) { return linear(x).tanh().exp(); }, input)
              .sum()
              .backward();
          ends.push_back(input.grad());
        }
        EXPECT_TRUE(ends[0].equal(ends[1]));
      }
    });
  }
}

}  // namespace
}  // namespace trireme
