// SPDX-License-Identifier: Apache-2.0
// What a Model says when a device has no memory left.
#include "tests/unit/train/small_problem.h"
#include <trireme/base/error.h>

#include <gmock/gmock.h>

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::points;
using ::testing::ThrowsMessage;

// Finds no memory in the forward of its third step. Its weight has 1 MiB, and gradients are
// cleared.
struct Large : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    TORCH_CHECK_WITH(OutOfMemoryError, ++calls < 3, "tried to allocate 7 TiB");
    return torch::nn::functional::linear(x, weight).narrow(1, 0, 3);
  }
  torch::Tensor weight = register_parameter("weight", torch::zeros({1 << 16, 4}));
  int calls = 0;
};

TEST(Model, SaysWhatTheMemoryHoldsWhenADeviceIsFull) {
  auto data = points(40);
  data.batch(8);
  const auto network = std::make_shared<Large>();
  torch::optim::Adam optimizer(network->parameters());
  Model model(network, CrossEntropy(), optimizer);
  EXPECT_THAT([&] { model.train(1, data); },
              ThrowsMessage<TrainingError>(
                  AllOf(HasSubstr("no memory is left on cpu. Parameters and buffers hold 1.0 MiB, "
                                  "gradients 0 B, the optimizer's state 2.0 MiB"),
                        HasSubstr("plan.micro_batches"), HasSubstr("plan.zero_level"))));
}

}  // namespace
}  // namespace trireme
