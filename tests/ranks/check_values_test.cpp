// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/check_values.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

namespace trireme::comm {
namespace {

using test::usage_error;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using trireme::testing::run_ranks;

std::vector<NamedValue> values_of(const torch::Tensor& weight, const torch::Tensor& bias) {
  return {{"layer.weight", weight}, {"layer.bias", bias}};
}

TEST(CheckedValues, PassWhereTheyAreEqualInAnyLayout) {
  run_ranks(3, [](const Group& group) {
    const torch::Tensor weight = torch::arange(200'000).to(torch::kFloat).view({400, 500});
    const torch::Tensor own = group.rank() == 1 ? weight.t().contiguous().t() : weight;
    check_equal_values(values_of(own, torch::full({3}, NAN)), group, "parameters");
    check_equal_values(values_of(torch::empty({0}), torch::ones({2}, torch::kComplexDouble)), group,
                       "parameters");
    check_equal_values({}, group, "parameters");
  });
}

TEST(CheckedValues, NameTensorRanksAndDistanceOnEveryRank) {
  run_ranks(4, [](const Group& group) {
    const torch::Tensor weight = torch::zeros({100, 7});
    const torch::Tensor bias = torch::zeros({5}, torch::kBFloat16);
    if (group.rank() == 1 || group.rank() == 3) bias[2] = group.rank();
    const std::string message = usage_error(
        [&] { check_equal_values(values_of(weight, bias), group, "parameters after step 100"); });
    EXPECT_THAT(
        message,
        AllOf(HasSubstr("1 of 2 parameters after step 100 differ between ranks"),
              HasSubstr("layer.bias [5] BFloat16: ranks 1, 3 differ from rank 0, by up to 3"),
              Not(HasSubstr("layer.weight"))));
  });
}

TEST(CheckedValues, SeeEveryElementAndTheirOrder) {
  for (const std::int64_t place : {0L, 131'071L, 131'072L, 299'999L}) {
    run_ranks(2, [&](const Group& group) {
      const torch::Tensor weight = torch::arange(300'000, torch::kFloat);
      if (group.rank() == 1) weight[place] = weight[place] + 0.5;
      EXPECT_THAT(usage_error([&] { check_equal_values({{{"w", weight}}}, group, "values"); }),
                  HasSubstr("by up to 0.5"));
    });
  }
  EXPECT_NE(digest_of_values(torch::tensor({1.0F, 2.0F})),
            digest_of_values(torch::tensor({2.0F, 1.0F})));
  EXPECT_NE(digest_of_values(torch::tensor({0.0F})), digest_of_values(torch::tensor({-0.0F})));
}

TEST(CheckedValues, NameTheTensorThatIsAnotherOne) {
  run_ranks(2, [](const Group& group) {
    const torch::Tensor bias = group.rank() == 0 ? torch::zeros({5}) : torch::zeros({6});
    EXPECT_THAT(
        usage_error([&] { check_equal_values(values_of(torch::zeros({2}), bias), group, "p"); }),
        AllOf(HasSubstr("rank 0 has layer.bias [5] Float"),
              HasSubstr("rank 1 has layer.bias [6] Float")));
  });
}

}  // namespace
}  // namespace trireme::comm
