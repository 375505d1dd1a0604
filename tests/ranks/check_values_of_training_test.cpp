// SPDX-License-Identifier: Apache-2.0
// TRIREME_CHECK=values compares parameters before the first step and after every 100.
#include <trireme/comm/check_values.h>
#include <trireme/parallel/data_parallel.h>

#include <gmock/gmock.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <cstdlib>

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Read once by the library: set before any test.
const int is_set = ::setenv("TRIREME_CHECK", "values", 1);

TEST(CheckedTraining, NamesAParameterThatARankChangesByItself) {
  ASSERT_EQ(is_set, 0);
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

}  // namespace
}  // namespace trireme
