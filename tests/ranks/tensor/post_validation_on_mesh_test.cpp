// SPDX-License-Identifier: Apache-2.0
// Steps that are validated afterwards where parameters are distributed tensors.
#include <trireme/optim/post_validation.h>
#include <trireme/parallel/parallelize.h>

#include <gtest/gtest.h>
#include <tests/ranks/stepping.h>
#include <tests/ranks/tensor/language_model.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <string>
#include <vector>

namespace trireme {
namespace {

using test::Snapshot;
using test::Stepping;

// Parts of the layouts alone, or cut once more along data.
TEST(PostValidationOnMesh, HasTheBitsOfALoopThatWaits) {
  for (const int zero_level : {0, 2}) {
    testing::run_ranks(4, [&](const comm::Group& group) {
      const auto train = [&](Stepping::Way way) {
        test::LanguageModel model = test::seeded();
        Plan plan;
        plan.mesh = {{"data", 2}, {"tensor", 2}};
        plan.layouts = test::megatron();
        plan.zero_level = zero_level;
        Parallelized parallelized = parallelize(*model, plan, group);
        torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01));
        parallelized.shard(optimizer);
        Stepping stepping(optimizer, {.max_norm = 0.05, .skip_not_finite = true}, way);
        std::vector<Snapshot> steps;
        for (int step = 0; step < 6; ++step) {
          optimizer.zero_grad();
          const auto tokens = (torch::arange(24).reshape({4, 6}) * (step + 3)).remainder(10);
          loss_of(model, tokens.narrow(0, 2L * parallelized.data_group().rank(), 2)).backward();
          test::resize_gradients(optimizer, step, /*clips=*/true);
          // What is distributed says itself which rank has what.
          stepping.step(zero_level == 0 ? Sharing() : parallelized.sharing());
          test::set_rates(optimizer, step);
          optimizer.zero_grad();
          steps.push_back(stepping.finish());
        }
        EXPECT_EQ(stepping.num_taken_back, way == Stepping::Way::kValidates ? 2 : 0);
        return steps;
      };
      const auto expected = train(Stepping::Way::kWaits);
      const auto got = train(Stepping::Way::kValidates);
      for (std::size_t step = 0; step < expected.size(); ++step) {
        test::expect_same_bits(got[step], expected[step], "step " + std::to_string(step));
      }
    });
  }
}

}  // namespace
}  // namespace trireme
