// SPDX-License-Identifier: Apache-2.0
// TRIREME_CHECK=values compares parameters before the first step and after every 100.
#include <trireme/comm/check_values.h>
#include <trireme/parallel/data_parallel.h>
#include <trireme/parallel/module/local_memory.h>
#include <trireme/parallel/training_step.h>
#include <trireme/tensor/distributed_tensor.h>
#include <trireme/tensor/run_replicated.h>

#include <gmock/gmock.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <cstdlib>
#include <vector>

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Read once by the library: set before any test.
const int kIsSet = ::setenv("TRIREME_CHECK", "values", 1);

TEST(CheckedTraining, NamesAParameterThatARankChangesByItself) {
  ASSERT_EQ(kIsSet, 0);
  for (const int zero_level : {0, 1, 3}) {
    testing::run_ranks(2, [&](const comm::Group& group) {
      torch::nn::Linear first(4, 4);
      torch::nn::Linear second(4, 4);
      torch::optim::SGD optimizer(first->parameters(), 1e-4);
      optimizer.add_param_group(torch::optim::OptimizerParamGroup(second->parameters()));
      Parallelized parallelized =
          parallelize({{"first", first}, {"second", second}},
                      {.zero_level = zero_level, .zero_level_of = {{"first", 0}}}, group);
      parallelized.shard(optimizer);
      const auto step = [&] {
        optimizer.zero_grad();
        second(first(torch::ones({2, 4}))).sum().backward();
        optimizer.step();
      };
      for (std::int64_t done = 0; done < comm::kStepsBetweenChecks; ++done) {
        step();
        const at::NoGradGuard no_grad;
        if (done == 1 && group.rank() == 1) first->weight.add_(1);
      }
      EXPECT_THAT(test::usage_error(step),
                  AllOf(HasSubstr("parameters before step 101 differ"),
                        HasSubstr("first.weight [4, 4] Float: rank 1 differ")))
          << zero_level;
    });
  }
}

struct TwoImpl : torch::nn::Module {
  // What the second adds to zeros is equal, whatever its weight.
  torch::Tensor forward(const torch::Tensor& in) {
    const auto zeros = first(in) * 0;
    if (has_layout(second->weight)) return second(zeros);
    return run_replicated([&](const torch::Tensor& x) { return second(x); }, zeros);
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(4, 4));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(4, 4));
};
TORCH_MODULE(Two);

// Only ranks along data were compared.
TEST(CheckedTraining, NamesWhatDiffersOnRanksThatShareTheWork) {
  const ParameterLayouts distributed = {{"first.*", {"tensor", Shard{0}}}};
  const ParameterLayouts plain = join({distributed, keep_whole("second")});
  for (const ParameterLayouts& layouts : {distributed, plain}) {
    testing::run_ranks(2, [&](const comm::Group& group) {
      Two net;
      const Parallelized parallelized =
          parallelize(*net, {.mesh = {{"tensor", 2}}, .layouts = layouts}, group);
      {
        const at::NoGradGuard no_grad;
        const at::Tensor own = detail::memory_of(net->second->weight);
        own.add_(group.rank());
      }
      EXPECT_THAT(
          test::usage_error([&] { net(torch::ones({2, 4})).sum().backward(); }),
          AllOf(HasSubstr("parameters before step 1 differ"),
                HasSubstr("second.weight [4, 4] Float: rank 1 differ"), Not(HasSubstr("first."))));
    });
  }
}

// Two halves of the ranks have the same slices, which were not compared.
TEST(CheckedTraining, NamesSlicesThatDiffer) {
  for (const int zero_level : {1, 3}) {
    testing::run_ranks(4, [&](const comm::Group& group) {
      torch::nn::Linear net(4, 4);
      torch::optim::SGD optimizer(net->parameters(), 1e-4);
      Parallelized parallelized =
          parallelize(*net, {.zero_level = zero_level, .shard_ranks = 2}, group);
      parallelized.shard(optimizer);
      {
        const at::NoGradGuard no_grad;
        parallelized.expect_parts_to_change();
        for (const at::Tensor& part : optimizer.parameters()) part.add_(group.rank() / 2);
      }
      EXPECT_THAT(test::usage_error([&] { net(torch::ones({2, 4})).sum().backward(); }),
                  HasSubstr("slices of parameters before step 1 differ"))
          << zero_level;
    });
  }
}

struct OutputImpl : torch::nn::Module {
  explicit OutputImpl(const torch::Tensor& shared) : weight(register_parameter("weight", shared)) {}
  torch::Tensor forward(const torch::Tensor& in) { return torch::linear(in, weight); }
  torch::Tensor weight;
};
TORCH_MODULE(Output);

struct TiedImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& in) { return second(first(in)); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(4, 4));
  Output second = register_module("second", Output(first->weight));
};
TORCH_MODULE(Tied);

TEST(CheckedTraining, NamesAWeightThatDiffersBetweenItsStages) {
  testing::run_ranks(2, [](const comm::Group& group) {
    Tied net;
    TrainingStep pipeline(
        *net, [&](const auto& in) { return std::vector{net(in[0]).sum()}; },
        {.mesh = {{"pipe", 2}}, .stages = {{"second", 1}}, .micro_batches = 2}, group);
    {
      const at::NoGradGuard no_grad;
      net->first->weight.add_(group.rank());
    }
    EXPECT_THAT(test::usage_error([&] { static_cast<void>(pipeline.step({torch::ones({2, 4})})); }),
                AllOf(HasSubstr("first.weight differs on ranks 0 and 1 along pipe"),
                      HasSubstr("before step 1")));
  });
}

}  // namespace
}  // namespace trireme
