// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/module_state.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/temporary_folder.h>
#include <torch/torch.h>

namespace trireme::checkpoint {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

torch::nn::Sequential small_net(std::int64_t hidden = 4, std::int64_t classes = 3) {
  return torch::nn::Sequential(torch::nn::Linear(2, hidden), torch::nn::BatchNorm1d(hidden),
                               torch::nn::Linear(hidden, classes));
}

TEST(ModuleState, HasParametersAndBuffersUnderTheirNames) {
  const auto net = small_net();
  const TensorMap tensors = module_tensors(*net);
  EXPECT_EQ(tensors.size(), 9U);
  EXPECT_EQ(tensors.at("0.weight").data_ptr(), net->parameters()[0].data_ptr())
      << "nothing is copied";
  EXPECT_FALSE(tensors.at("0.weight").requires_grad());
  EXPECT_TRUE(tensors.contains("1.running_mean"));
  EXPECT_TRUE(tensors.contains("1.num_batches_tracked"));
}

TEST(ModuleState, LoadsInPlaceAndLeavesGradientsAndStrides) {
  const auto source = torch::nn::Conv2d(2, 3, 3);
  auto target = torch::nn::Conv2d(2, 3, 3);
  target->weight.set_data(target->weight.contiguous(at::MemoryFormat::ChannelsLast));
  target->weight.mutable_grad() = torch::ones_like(target->weight);
  const void* storage = target->weight.data_ptr();

  load_module_tensors(module_tensors(*source), *target, "the test");
  EXPECT_TRUE(torch::equal(source->weight, target->weight));
  EXPECT_EQ(target->weight.data_ptr(), storage);
  EXPECT_TRUE(target->weight.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(target->weight.requires_grad());
  EXPECT_TRUE(torch::equal(target->weight.grad(), torch::ones_like(target->weight)));
}

TEST(ModuleState, NamesTheFirstParameterOfAnotherShapeAndChangesNothing) {
  const auto source = small_net(5, 3);
  auto target = small_net(4, 3);
  const auto before = target->parameters()[0].clone();
  EXPECT_THAT(
      message_of<CheckpointError>(
          [&] { load_module_tensors(module_tensors(*source), *target, "file f"); }),
      AllOf(HasSubstr(
          "file f is of another model: parameter '0.weight' has shape [5, 2] there and [4, 2] in "
          "the model (besides it: 6 of another shape or dtype, 0 missing, 0 unexpected)")));
  EXPECT_TRUE(torch::equal(before, target->parameters()[0]));
}

TEST(ModuleState, ChecksLateParametersBeforeItChangesEarlyOnes) {
  const auto source = small_net(4, 10);
  auto target = small_net(4, 3);
  const auto before = target->parameters()[0].clone();
  EXPECT_THAT(message_of<CheckpointError>(
                  [&] { load_module_tensors(module_tensors(*source), *target, "f"); }),
              HasSubstr("parameter '2.weight' has shape [10, 4] there and [3, 4] in the model"));
  EXPECT_TRUE(torch::equal(before, target->parameters()[0]));
}

TEST(ModuleState, CountsMissingAndUnexpectedTensors) {
  auto tensors = module_tensors(*small_net());
  tensors.erase("0.bias");
  tensors.erase("1.running_var");
  tensors["extra"] = torch::ones({1});
  EXPECT_THAT(
      message_of<CheckpointError>([&] { check_module_tensors(tensors, *small_net(), "f"); }),
      AllOf(HasSubstr("parameter '0.bias' of shape [4] is missing there"),
            HasSubstr("0 of another shape or dtype, 1 missing, 1 unexpected")));
}

TEST(ModuleState, NamesAnUnexpectedTensorWhereEverythingElseFits) {
  auto tensors = module_tensors(*small_net());
  tensors["extra"] = torch::ones({1});
  EXPECT_THAT(
      message_of<CheckpointError>([&] { check_module_tensors(tensors, *small_net(), "f"); }),
      HasSubstr("'extra' of shape [1] is there and not in the model"));
}

TEST(ModuleState, RefusesAnotherDtype) {
  auto source = small_net();
  source->to(at::kDouble);
  EXPECT_THAT(message_of<CheckpointError>(
                  [&] { check_module_tensors(module_tensors(*source), *small_net(), "f"); }),
              HasSubstr("parameter '0.weight' has dtype Double there and Float in the model"));
}

TEST(ModuleState, RefusesAParameterAndABufferOfOneName) {
  struct Twice : torch::nn::Module {
    Twice() {
      register_parameter("x", torch::ones({1}));
      register_buffer("x", torch::ones({1}));
    }
  };
  EXPECT_THAT(message_of<UsageError>([] { module_tensors(Twice()); }), HasSubstr("same name 'x'"));
}

}  // namespace
}  // namespace trireme::checkpoint
