// SPDX-License-Identifier: Apache-2.0
// Backward in two parts: the same bits as in one.
#include <trireme/parallel/pipeline/split/operators.h>
#include <trireme/parallel/pipeline/split/weight_gradients.h>

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

namespace trireme::pipeline {
namespace {

using Tensors = std::vector<torch::Tensor>;

torch::Tensor draw(at::IntArrayRef sizes, std::uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return torch::rand(sizes, generator, torch::kFloat) - 0.4;
}

// One operator, or a few, of an input that requires a gradient and of weights that do.
struct Case {
  std::string name;
  torch::Tensor input;
  Tensors weights;
  std::function<torch::Tensor(const torch::Tensor& input, const Tensors& weights)> forward;
  bool is_of_sums = false;  ///< whose weight gradients come with that of the input
};

std::ostream& operator<<(std::ostream& stream, const Case& one) { return stream << one.name; }

// An operator, split if it can be.
torch::Tensor call(const char* name, std::vector<c10::IValue> arguments) {
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  if (!split::replace(handle, arguments)) handle.callBoxed(arguments);
  return arguments.back().toTensor();
}

std::vector<Case> norms() {
  const torch::Tensor rows = draw({2, 5, 6}, 1);
  const torch::Tensor image = draw({2, 4, 7, 7}, 2);
  return {
      {"layer norm",
       rows,
       {draw({6}, 3), draw({6}, 4)},
       [](const auto& x, const auto& w) { return split::layer_norm(x, {6}, w[0], w[1]); }},
      {"batch norm",
       image,
       {draw({4}, 3), draw({4}, 4)},
       [](const auto& x, const auto& w) {
         return split::batch_norm(x, w[0], w[1], torch::zeros({4}), torch::ones({4}), true, 0.1,
                                  1e-5);
       },
       /*is_of_sums=*/true},
      {"group norm",
       image,
       {draw({4}, 3), draw({4}, 4)},
       [](const auto& x, const auto& w) {
         return call("aten::group_norm", {x, 2, w[0], w[1], 1e-5, true});
       },
       /*is_of_sums=*/true},
      {"instance norm",
       image,
       {draw({4}, 3), draw({4}, 4)},
       [](const auto& x, const auto& w) {
         return call("aten::instance_norm",
                     {x, w[0], w[1], c10::IValue(), c10::IValue(), true, 0.1, 1e-5, true});
       },
       /*is_of_sums=*/true},
      {"root mean square norm",
       rows,
       {draw({6}, 3)},
       [](const auto& x, const auto& w) {
         return call("aten::rms_norm", {x, std::vector<std::int64_t>{6}, w[0], 1e-5});
       }},
  };
}

std::vector<Case> cases() {
  const torch::Tensor rows = draw({2, 5, 6}, 1);
  const torch::Tensor image = draw({2, 4, 7, 7}, 2);
  return {
      {"linear",
       rows,
       {draw({3, 6}, 3), draw({3}, 4)},
       [](const auto& x, const auto& w) { return split::linear(x, w[0], w[1]); }},
      {"linear without bias, of a transposed input",
       draw({6, 5}, 1),
       {draw({3, 6}, 3)},
       [](const auto& x, const auto& w) { return split::linear(x.t(), w[0]); }},
      {"linear, then in place",
       rows,
       {draw({3, 6}, 3), draw({3}, 4)},
       [](const auto& x, const auto& w) { return split::linear(x, w[0], w[1]).relu_(); }},
      {"what torch::nn::Linear calls for two dims and for more",
       draw({5, 6}, 1),
       {draw({6, 6}, 3), draw({6}, 4)},
       [](const auto& x, const auto& w) {
         const auto first = call("aten::addmm", {w[1], x, w[0].t(), 1, 1});
         return call("aten::matmul", {first.unsqueeze(0), w[0].t()});
       }},
      {"convolution",
       image,
       {draw({6, 2, 3, 3}, 3), draw({6}, 4)},
       [](const auto& x, const auto& w) {
         return split::convolution(x, w[0], w[1], {2, 2}, {1, 1}, {1, 1}, false, {0, 0}, 2);
       }},
      {"convolution without bias, transposed",
       image,
       {draw({4, 3, 3, 3}, 3)},
       [](const auto& x, const auto& w) {
         return split::convolution(x, w[0], {}, {1, 1}, {0, 0}, {1, 1}, true, {0, 0}, 1);
       }},
      {"a weight twice, and a third time transposed",
       draw({5, 6}, 1),
       {draw({6, 6}, 3)},
       [](const auto& x, const auto& w) {
         return split::linear(torch::tanh(split::linear(split::linear(x, w[0]), w[0])), w[0]);
       }},
      {"an embedding and its transpose",
       draw({5, 6}, 1),
       {draw({7, 6}, 3)},
       [](const auto& x, const auto& w) {
         const torch::Tensor words = torch::tensor({1, 3, 3, 0, 6});
         return split::linear(split::embedding(w[0], words) * x, w[0]);
       }},
  };
}

class SplitBackward : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Operators, SplitBackward, ::testing::ValuesIn(cases()));
INSTANTIATE_TEST_SUITE_P(Norms, SplitBackward, ::testing::ValuesIn(norms()));

struct Computed {
  torch::Tensor input;
  Tensors weights;
  torch::Tensor output;
};

Computed forward(const Case& one) {
  Computed run{.input = one.input.clone().set_requires_grad(true), .weights = {}, .output = {}};
  for (const torch::Tensor& weight : one.weights) {
    run.weights.push_back(weight.clone().set_requires_grad(true));
  }
  run.output = one.forward(run.input * 1, run.weights);  // inputs of operators are no leaves
  return run;
}

TEST_P(SplitBackward, GivesTheBitsOfAWholeOne) {
  Computed whole = forward(GetParam());
  const auto queue = std::make_shared<WeightGradients>();
  Computed parts;
  {
    const WeightGradients::Guard guard(queue);
    parts = forward(GetParam());
  }
  EXPECT_TRUE(torch::equal(whole.output, parts.output));
  for (int repetition = 0; repetition < 2; ++repetition) {  // the second is added
    const torch::Tensor gradient = draw(whole.output.sizes(), 9);
    whole.output.backward(gradient);
    std::vector<bool> had_gradient;
    for (const torch::Tensor& weight : parts.weights) {
      had_gradient.push_back(weight.grad().defined());
    }
    parts.output.backward(gradient);
    EXPECT_TRUE(torch::equal(whole.input.grad(), parts.input.grad()));
    for (std::size_t i = 0; i < parts.weights.size(); ++i) {
      EXPECT_EQ(parts.weights[i].grad().defined(), had_gradient[i]);
    }
    const bool ends_with_it = parts.output.grad_fn()->name() == "SplitBackward";
    EXPECT_TRUE(ends_with_it || GetParam().name.find("then in place") != std::string::npos);
    EXPECT_EQ(queue->reads(gradient), ends_with_it && !GetParam().is_of_sums);
    queue->run();
    for (std::size_t i = 0; i < parts.weights.size(); ++i) {
      EXPECT_TRUE(torch::equal(whole.weights[i].grad(), parts.weights[i].grad())) << i;
    }
    EXPECT_FALSE(queue->reads(gradient));
    if (repetition == 1) break;
    whole.output = GetParam().forward(whole.input * 1, whole.weights);
    const WeightGradients::Guard guard(queue);
    parts.output = GetParam().forward(parts.input * 1, parts.weights);
  }
}

TEST(SplitBackward, SparseGradientsToo) {
  const torch::Tensor words = torch::tensor({1, 3, 3, 0, 6});
  torch::Tensor whole = draw({7, 4}, 1).set_requires_grad(true);
  torch::Tensor parts = whole.detach().clone().set_requires_grad(true);
  split::embedding(whole, words, -1, false, true).square().sum().backward();
  const auto queue = std::make_shared<WeightGradients>();
  {
    const WeightGradients::Guard guard(queue);
    split::embedding(parts, words, -1, false, true).square().sum().backward();
  }
  EXPECT_FALSE(parts.grad().defined());
  queue->run();
  EXPECT_TRUE(parts.grad().is_sparse());
  EXPECT_TRUE(torch::equal(whole.grad().to_dense(), parts.grad().to_dense()));
}

TEST(SplitBackward, HooksOfAWeightSeeTheSumOnce) {
  torch::Tensor weight = draw({6, 6}, 1).set_requires_grad(true);
  int calls = 0;
  weight.register_hook([&calls](const torch::Tensor& gradient) {
    EXPECT_TRUE(gradient.defined());
    ++calls;
    return gradient * 2;
  });
  const auto queue = std::make_shared<WeightGradients>();
  const torch::Tensor input = draw({5, 6}, 2);
  {
    const WeightGradients::Guard guard(queue);
    split::linear(split::linear(input, weight), weight).sum().backward();
  }
  EXPECT_EQ(calls, 0);
  queue->run();
  EXPECT_EQ(calls, 1);
  torch::Tensor plain = weight.detach().clone().set_requires_grad(true);
  split::linear(split::linear(input, plain), plain).sum().backward();
  EXPECT_TRUE(torch::equal(weight.grad(), plain.grad() * 2));
}

// There is memory for one, and none is copied.
TEST(SplitBackward, GivesEachGradientToItsWeightBeforeTheNextIsComputed) {
  std::vector<std::string> events;
  WeightGradients queue;
  std::vector<torch::Tensor> weights;
  std::vector<const void*> computed;
  for (const std::string name : {"a", "b"}) {
    weights.push_back(torch::zeros({3}).set_requires_grad(true));
    weights.back().register_hook(
        [&events, name](const torch::Tensor& /*gradient*/) { events.push_back("gave " + name); });
    queue.put_off({weights.back()}, torch::ones({3}), [&events, &computed, name] {
      events.push_back("computed " + name);
      Tensors gradient = {torch::full({3}, 2.0)};
      computed.push_back(gradient.front().data_ptr());
      return gradient;
    });
  }
  queue.run();
  EXPECT_EQ(events, (std::vector<std::string>{"computed a", "gave a", "computed b", "gave b"}));
  for (std::size_t i = 0; i < weights.size(); ++i) {
    EXPECT_EQ(weights[i].grad().data_ptr(), computed[i]);
  }
}

TEST(SplitBackward, ReplacesOnAStackWhatIsOnTop) {
  const auto linear = c10::Dispatcher::singleton().findSchemaOrThrow("aten::linear", "");
  const torch::Tensor weight = draw({3, 6}, 1).set_requires_grad(true);
  const torch::Tensor input = draw({5, 6}, 2);
  const auto queue = std::make_shared<WeightGradients>();
  const WeightGradients::Guard guard(queue);
  std::vector<c10::IValue> stack = {"below", input, weight, c10::IValue()};
  ASSERT_TRUE(split::replace(linear, stack));
  ASSERT_EQ(stack.size(), 2U);
  EXPECT_EQ(stack[0].toStringRef(), "below");
  EXPECT_TRUE(torch::equal(stack[1].toTensor(), torch::linear(input, weight)));
}

TEST(SplitBackward, LeavesAloneWhatItCannotSplit) {
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto linear = dispatcher.findSchemaOrThrow("aten::linear", "");
  const auto tanh = dispatcher.findSchemaOrThrow("aten::tanh", "");
  const torch::Tensor weight = draw({3, 6}, 1).set_requires_grad(true);
  const torch::Tensor input = draw({5, 6}, 2);
  std::vector<c10::IValue> stack = {input, weight, c10::IValue()};
  const auto is_replaced = [&](const c10::OperatorHandle& handle, std::vector<c10::IValue> values) {
    const std::size_t count = values.size();
    const bool result = split::replace(handle, values);
    EXPECT_TRUE(result || values.size() == count);
    return result;
  };
  EXPECT_FALSE(is_replaced(linear, stack));  // there is no queue
  const auto queue = std::make_shared<WeightGradients>();
  const WeightGradients::Guard guard(queue);
  EXPECT_TRUE(is_replaced(linear, stack));
  EXPECT_FALSE(is_replaced(tanh, {weight}));
  EXPECT_FALSE(is_replaced(linear, {input, weight * 1, c10::IValue()}));  // no leaf
  EXPECT_FALSE(is_replaced(linear, {input, weight.detach(), c10::IValue()}));
  {
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(is_replaced(linear, stack));
  }
  at::autocast::set_autocast_enabled(at::kCPU, true);
  EXPECT_FALSE(is_replaced(linear, stack));
  at::autocast::set_autocast_enabled(at::kCPU, false);
  {
    const WeightGradients::Guard none(nullptr);
    EXPECT_FALSE(is_replaced(linear, stack));
  }
  EXPECT_EQ(WeightGradients::current(), queue);
}

}  // namespace
}  // namespace trireme::pipeline
