// SPDX-License-Identifier: Apache-2.0
// What recompute refuses, and how it says so.
#include <trireme/base/error.h>
#include <trireme/parallel/recompute.h>

#include <gmock/gmock.h>
#include <tests/ranks/checks.h>
#include <tests/unit/parallel/recompute/recompute_checks.h>
#include <torch/torch.h>

#include <stdexcept>
#include <string>

namespace trireme {
namespace {

using test::leaf;
using test::Tensors;
using test::usage_error;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Of backward through a function whose second run is another one.
std::string message_of_second(const ManyToMany& first, const ManyToMany& second) {
  int runs = 0;
  const Tensors outputs =
      recompute([&](const Tensors& inputs) { return runs++ == 0 ? first(inputs) : second(inputs); },
                {leaf({4, 8})}, {.name = "block 3", .preserve_random = true, .modules = {}});
  return usage_error([&] { outputs.front().sum().backward(); });
}

Tensors sine(const Tensors& inputs) { return {inputs[0].sin().exp()}; }

TEST(RecomputeErrors, RefuseAnEmptyFunction) {
  EXPECT_THAT(usage_error([] { recompute(ManyToMany(), Tensors{}); }), HasSubstr("empty function"));
  EXPECT_THAT(usage_error([] { recompute(OneToOne(), leaf({3})); }), HasSubstr("empty function"));
}

TEST(RecomputeErrors, PassOnWhatTheFirstRunThrows) {
  const auto throwing = [](const torch::Tensor& x) -> torch::Tensor {
    const torch::Tensor y = x.sin();
    throw std::out_of_range("index 7");
  };
  EXPECT_THROW(recompute(throwing, leaf({3})), std::out_of_range);
  // And leave nothing behind: what comes is saved as ever.
  const torch::Tensor input = leaf({3});
  input.sin().sum().backward();
  EXPECT_TRUE(input.grad().equal(input.cos()));
}

TEST(RecomputeErrors, NameTheFunctionWhoseSecondRunThrows) {
  const auto throwing = [](const Tensors&) -> Tensors { throw std::out_of_range("index 7"); };
  EXPECT_THAT(message_of_second(sine, throwing),
              AllOf(HasSubstr("the recomputed function block 3"), HasSubstr("index 7"),
                    HasSubstr("ran it again")));
  const auto named = [](const Tensors&) -> Tensors { throw UsageError("of its own", "as it is"); };
  EXPECT_THAT(message_of_second(sine, named),
              AllOf(HasSubstr("of its own"), HasSubstr("as it is")));
}

TEST(RecomputeErrors, NameTheOutputThatHasAnotherShape) {
  EXPECT_THAT(
      message_of_second(sine, [](const Tensors& in) { return sine({in[0].slice(0, 0, 2)}); }),
      AllOf(HasSubstr("block 3"), HasSubstr("is not the same"), HasSubstr("output 0"),
            HasSubstr("[4, 8] Float"), HasSubstr("[2, 8] Float")));
  EXPECT_THAT(
      message_of_second(sine, [](const Tensors& in) { return sine({in[0].to(at::kDouble)}); }),
      AllOf(HasSubstr("output 0"), HasSubstr("[4, 8] Float"), HasSubstr("[4, 8] Double")));
}

TEST(RecomputeErrors, NameTheSavedTensorWhereOutputsAreTheSame) {
  EXPECT_THAT(message_of_second(
                  sine, [](const Tensors& in) -> Tensors { return {in[0].t().sin().exp().t()}; }),
              AllOf(HasSubstr("tensor 0"), HasSubstr("autograd saved"), HasSubstr("[8, 4] Float")));
}

TEST(RecomputeErrors, SayWhereFewerTensorsAreSaved) {
  EXPECT_THAT(message_of_second(sine, [](const Tensors& in) -> Tensors { return {in[0].sin()}; }),
              AllOf(HasSubstr("1 tensors"), HasSubstr("saved 2"), HasSubstr("saves 1")));
  EXPECT_THAT(message_of_second(sine,
                                [](const Tensors& in) -> Tensors {
                                  const torch::NoGradGuard no_grad;
                                  return sine(in);
                                }),
              HasSubstr("saves 0"));
}

TEST(RecomputeErrors, RefuseAFunctionThatWritesToItsInputs) {
  const torch::Tensor values = torch::randn({4, 8});
  const torch::Tensor input = values.clone();
  const torch::Tensor weight = leaf({8});
  const auto writing = [&](const Tensors& in) -> Tensors { return {in[1].relu_() * weight}; };
  EXPECT_THAT(
      usage_error([&] { recompute(writing, {weight, input}); }),
      AllOf(HasSubstr("writes to its input 1"), HasSubstr("aten::relu_"), HasSubstr("clone()")));
  EXPECT_TRUE(input.equal(values));
  const auto through_view = [](const torch::Tensor& in) { return in.view(-1).zero_(); };
  EXPECT_THAT(usage_error([&] { recompute(through_view, input); }),
              HasSubstr("writes to its input 0"));
  torch::nn::BatchNorm1d norm(8);
  const auto statistics = [&](const Tensors& in) -> Tensors {
    return {at::batch_norm(in[0], {}, {}, in[1], in[2], /*training=*/true, 0.1, 1e-5, false)};
  };
  const Tensors inputs = {input, norm->running_mean, norm->running_var};
  EXPECT_THAT(usage_error([&] { recompute(statistics, inputs); }),
              AllOf(HasSubstr("writes to its input"), HasSubstr("batch_norm")));
}

TEST(RecomputeErrors, RefuseGradientsThatLeaveByATensorThatWasThere) {
  const torch::Tensor kept = torch::zeros({4, 8});
  const auto leaking = [&](const torch::Tensor& x) {
    kept.copy_(x.sin());
    return x.exp();
  };
  EXPECT_THAT(
      usage_error([&] { recompute(leaking, leaf({4, 8})); }),
      AllOf(HasSubstr("requires a gradient"), HasSubstr("aten::copy_"), HasSubstr("detach()")));
}

TEST(RecomputeErrors, NameAnInputThatWasWrittenToMeanwhile) {
  const torch::Tensor input = leaf({4, 8});
  const torch::Tensor x = input * 1;
  const torch::Tensor output = recompute([](const torch::Tensor& h) { return h.exp().sin(); }, x,
                                         {.name = "of mine", .modules = {}});
  x.add_(1);
  EXPECT_THAT(usage_error([&] { output.sum().backward(); }),
              AllOf(HasSubstr("input 0"), HasSubstr("of mine"), HasSubstr("written to")));
}

TEST(RecomputeErrors, NameAParameterThatWasWrittenToMeanwhile) {
  torch::nn::Linear linear(8, 8);
  const torch::Tensor input = leaf({4, 8});
  const torch::Tensor output =
      recompute([&](const torch::Tensor& x) { return linear(x).exp(); }, input);
  output.sum().backward({}, /*retain_graph=*/true);
  {
    const torch::NoGradGuard no_grad;
    linear->weight.add_(1);
  }
  EXPECT_THAT(usage_error([&] { output.sum().backward(); }),
              AllOf(HasSubstr("[8, 8] Float"), HasSubstr("uses was written to before backward")));
}

TEST(RecomputeErrors, NameATensorThatTheSecondRunChangesAfterItWasSaved) {
  const torch::Tensor input = leaf({4, 8});
  const torch::Tensor output = recompute(
      [](const torch::Tensor& x) {
        torch::Tensor h = x.exp();
        const torch::Tensor y = h * h;
        h.add_(1);
        return y.sin();
      },
      input);
  EXPECT_THAT(usage_error([&] { output.sum().backward(); }),
              AllOf(HasSubstr("[4, 8] Float"), HasSubstr("after autograd had saved it")));
}

TEST(RecomputeErrors, AreAutogradsOwnWhereTheGraphIsGone) {
  const torch::Tensor output =
      recompute([](const torch::Tensor& x) { return x.sin().exp(); }, leaf({3}));
  output.sum().backward();
  EXPECT_THROW(output.sum().backward(), c10::Error);
}

TEST(RecomputeErrors, LeaveStreamsFlagsAndBuffersAsTheyWere) {
  torch::manual_seed(1);
  const torch::Tensor count = torch::zeros({1});
  int runs = 0;
  const torch::Tensor output = recompute(
      [&](const torch::Tensor& x) {
        count.add_(1);
        const torch::Tensor y = at::dropout(x, 0.5, true);
        if (++runs > 1) throw std::runtime_error("out of luck");
        return y.sin();
      },
      leaf({8}));
  const torch::Tensor state = at::detail::getDefaultCPUGenerator().get_state();
  EXPECT_THAT(usage_error([&] { output.sum().backward(); }), HasSubstr("out of luck"));
  EXPECT_EQ(count.item<float>(), 1);
  EXPECT_TRUE(at::detail::getDefaultCPUGenerator().get_state().equal(state));
  EXPECT_TRUE(at::GradMode::is_enabled());
  // Autograd saves as ever.
  const torch::Tensor after = leaf({3});
  after.sin().sum().backward();
  EXPECT_TRUE(after.grad().equal(after.cos()));
}

}  // namespace
}  // namespace trireme
