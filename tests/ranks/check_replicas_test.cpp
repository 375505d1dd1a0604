// SPDX-License-Identifier: Apache-2.0
// Bits that flip on one rank are found, wherever several ranks must hold the same.
#include <trireme/parallel/check_replicas.h>

#include <trireme/base/error.h>
#include <trireme/base/step_progress.h>
#include <trireme/comm/check_values.h>
#include <trireme/parallel/data_parallel.h>
#include <trireme/parallel/module/local_memory.h>
#include <trireme/parallel/training_step.h>

#include <gmock/gmock.h>
#include <tests/ranks/thread_ranks.h>
#include <tests/temporary_folder.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// An optimizer whose state no checkpoint holds.
class OfUnknownKind : public torch::optim::Optimizer {
 public:
  explicit OfUnknownKind(std::vector<at::Tensor> parameters)
      : Optimizer(std::vector<torch::optim::OptimizerParamGroup>{std::move(parameters)},
                  std::make_unique<torch::optim::SGDOptions>(0.1)) {}
  at::Tensor step(LossClosure /*closure*/) override { return {}; }
};

// Flips one bit in the memory of this rank, as a broken memory module does.
void flip_bit(const at::Tensor& tensor, std::int64_t element = 0, int bit = 3) {
  const at::NoGradGuard no_grad;
  auto* const bits = static_cast<std::uint32_t*>(detail::memory_of(tensor).data_ptr());
  bits[element] ^= 1U << static_cast<unsigned>(bit);
}

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(4, 8));
    second = register_module("second", torch::nn::Linear(8, 4));
  }
  torch::Tensor forward(const torch::Tensor& in) { return second(torch::relu(first(in))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(Net);

// A training by hand on one rank.
struct Training {
  Training(const Plan& plan, const comm::Group& group)
      : parallelized(parallelize(*net, plan, group)),
        optimizer(net->parameters(), torch::optim::AdamOptions(0.01)) {
    parallelized.shard(optimizer);
  }
  void step() {
    optimizer.zero_grad();
    net(torch::full({2, 4}, 1.0 + parallelized.data_group().rank())).square().mean().backward();
    optimizer.step();
  }
  void check(std::int64_t number) { check_replicas(parallelized, *net, &optimizer, number); }

  Net net;
  Parallelized parallelized;
  torch::optim::Adam optimizer;
};

const at::Tensor& first_moment(torch::optim::Adam& optimizer, std::size_t parameter) {
  const at::Tensor& key = optimizer.param_groups().front().params()[parameter];
  return static_cast<torch::optim::AdamParamState&>(
             *optimizer.state().at(key.unsafeGetTensorImpl()))
      .exp_avg();
}

// Trains, lets `corrupt` change one rank, and returns what all ranks throw.
std::string error_of(int ranks, const Plan& plan, int faulty,
                     const std::function<void(Training&)>& corrupt) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  testing::run_ranks(ranks, [&](const comm::Group& group) {
    Training training(plan, group);
    for (std::int64_t number = 1; number <= 3; ++number) {
      training.step();
      training.check(number);  // throws nothing
    }
    training.step();
    if (group.rank() == faulty) corrupt(training);
    try {
      training.check(4);
    } catch (const TrainingError& error) {
      errors[static_cast<std::size_t>(group.rank())] = error.what();
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, errors.front());
  return errors.front();
}

TEST(CheckReplicas, NamesTheRankWhoseParameterDiffers) {
  const std::string error =
      error_of(3, {}, 1, [](Training& training) { flip_bit(training.net->second->weight, 5); });
  EXPECT_THAT(error,
              AllOf(HasSubstr("after step 4 the ranks do not hold the same bits where they must: "
                              "rank 1 (on "),
                    HasSubstr("in the minority. 1 tensor differs:\n"
                              "    parameter second.weight: rank 1 differs from ranks 0, 2"),
                    HasSubstr("test that host"), Not(HasSubstr("first."))));
  const auto progress = own_progress();
  ASSERT_TRUE(progress);
  EXPECT_EQ(reported_failure(*progress), (FailureReport{.faulty_rank = 1}));
  report_failure({});
}

TEST(CheckReplicas, NamesBothOfTwoRanks) {
  const std::string error =
      error_of(2, {}, 1, [](Training& training) { flip_bit(training.net->first->bias); });
  EXPECT_THAT(error,
              AllOf(HasSubstr("ranks 0, 1 (on "),
                    HasSubstr("of which no majority says who is right. 1 tensor differs:\n    "
                              "parameter first.bias: ranks 0, 1 differ from each other"),
                    HasSubstr("With three replicas or more, the faulty one is known")));
  EXPECT_TRUE(reported_failure(own_progress().value_or(StepProgress())).is_of_unknown_rank);
  report_failure({});
}

TEST(CheckReplicas, FailsOnAllRanksIfOneCannotComputeItsChecksums) {
  testing::run_ranks(3, [](const comm::Group& group) {
    Training training({}, group);
    training.step();
    OfUnknownKind unknown(training.net->parameters());
    torch::optim::Optimizer* given = &training.optimizer;
    if (group.rank() == 1) given = &unknown;
    const std::string error = test::message_of<UsageError>(
        [&] { check_replicas(training.parallelized, *training.net, given, 1); });
    if (group.rank() != 1) {
      EXPECT_THAT(error,
                  HasSubstr("rank 1 could not compute the checksums of its tensors and failed: "));
    }
  });
}

TEST(CheckReplicas, FindsGradientsAndOptimizerState) {
  EXPECT_THAT(
      error_of(3, {}, 2, [](Training& training) { flip_bit(training.net->first->weight.grad()); }),
      HasSubstr("gradient of first.weight: rank 2 differs from ranks 0, 1"));
  EXPECT_THAT(
      error_of(3, {}, 0, [](Training& training) { flip_bit(first_moment(training.optimizer, 3)); }),
      HasSubstr("optimizer state second.bias.exp_avg: rank 0 differs from ranks 1, 2"));
}

// A rank reads a copy of the slices of others, which were right when they were sent.
TEST(CheckReplicas, FindsGatheredParameters) {
  for (const int zero_level : {1, 2}) {
    EXPECT_THAT(error_of(3, {.zero_level = zero_level}, 1,
                         [](Training& training) {
                           training.parallelized.gather_parameters();
                           flip_bit(training.net->first->weight, 31);
                         }),
                HasSubstr("gathered parameter first.weight: rank 1 differs from ranks 0, 2"))
        << zero_level;
  }
}

TEST(CheckReplicas, FindsSlicesOfHybridSharding) {
  for (const int zero_level : {1, 2, 3}) {
    const std::string error =
        error_of(6, {.zero_level = zero_level, .shard_ranks = 2}, 3, [](Training& training) {
          for (const Parallelized::Part& part : training.parallelized.parts())
            if (part.tensor.numel() > 0) return flip_bit(part.tensor);
        });
    EXPECT_THAT(error, AllOf(HasSubstr("rank 3 (on "), HasSubstr("rank 3 differs from ranks 1, 5")))
        << zero_level;
  }
}

// The weight is cut along the axis, the bias of the second layer is whole.
TEST(CheckReplicas, FindsWhatRanksOfATensorAxisShare) {
  const Plan plan{
      .mesh = {{"data", 2}, {"tensor", 2}},
      .layouts = {{"first.*", {{"tensor", Shard{0}}}}, {"second.weight", {{"tensor", Shard{1}}}}}};
  EXPECT_THAT(
      error_of(4, plan, 2, [](Training& training) { flip_bit(training.net->second->bias); }),
      HasSubstr("parameter second.bias: rank 2 differs from ranks 0, 1, 3"));
  // Only two ranks have the same part.
  EXPECT_THAT(
      error_of(4, plan, 3, [](Training& training) { flip_bit(training.net->first->weight); }),
      HasSubstr("parameter first.weight: ranks 1, 3 differ from each other"));
}

TEST(CheckReplicas, FindsWhatRanksOfAStageShare) {
  std::vector<std::string> errors(6);
  testing::run_ranks(6, [&](const comm::Group& group) {
    Net net;
    torch::optim::Adam optimizer(net->parameters(), 0.01);
    TrainingStep training(
        *net, [&](const auto& in) { return std::vector{net(in[0]).sum()}; },
        {.mesh = {{"data", 3}, {"pipe", 2}},
         .stages = {{"first", 0}, {"second", 1}},
         .micro_batches = 2,
         .zero_level = 1},
        group);
    training.shard(optimizer);
    for (std::int64_t number = 1; number <= 2; ++number) {
      static_cast<void>(training.step({torch::full({4, 4}, 1.0 + training.data_group().rank())}));
      optimizer.step();
      optimizer.zero_grad();
      check_replicas(training.parallelized(), *net, &optimizer, number);
    }
    if (group.rank() == 3) {
      training.parallelized().gather_parameters();
      flip_bit(net->second->weight);
    }
    try {
      check_replicas(training.parallelized(), *net, &optimizer, 2);
    } catch (const TrainingError& error) {
      errors[static_cast<std::size_t>(group.rank())] = error.what();
    }
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, errors.front());
    EXPECT_THAT(error,
                HasSubstr("gathered parameter second.weight: rank 3 differs from ranks 1, 5"));
  }
}

TEST(ReplicaVerdict, IsOfTheRanksWithFewestCompanions) {
  const auto same = detail::judge_replicas({"1 5 a\n1 6 b\n", "1 5 a\n1 6 b\n2 9 c\n"});
  EXPECT_THAT(same.differences, IsEmpty());
  const auto two_of_five =
      detail::judge_replicas({"1 5 a\n", "1 7 a\n", "1 5 a\n", "1 8 a\n", "1 5 a\n"});
  EXPECT_THAT(two_of_five.minority, ElementsAre(1, 3));
  EXPECT_THAT(two_of_five.undecided, IsEmpty());
  const auto all_differ = detail::judge_replicas({"1 5 a\n", "1 7 a\n", "1 8 a\n"});
  EXPECT_THAT(all_differ.minority, IsEmpty());
  EXPECT_THAT(all_differ.undecided, ElementsAre(0, 1, 2));
  // A tensor that one rank does not have.
  const auto missing = detail::judge_replicas({"1 5 a\n1 0 b\n", "1 5 a\n", "1 5 a\n1 0 b\n"});
  EXPECT_THAT(missing.minority, ElementsAre(1));
  EXPECT_THAT(missing.differences, ElementsAre("b: rank 1 differs from ranks 0, 2"));
}

TEST(DigestOfValues, IsAnotherOneForEachBitOfEachType) {
  for (const at::ScalarType type :
       {at::kByte, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kComplexDouble}) {
    // More than one round of the sum, the last one short.
    const at::Tensor values = at::ones({(1 << 17) + 3}, type);
    std::set<std::int64_t> digests{comm::digest_of_values(values)};
    auto* const bytes = static_cast<std::uint8_t*>(values.data_ptr());
    const auto last = static_cast<std::int64_t>(values.nbytes()) - 1;
    for (const std::int64_t byte : {std::int64_t{0}, std::int64_t{5}, last}) {
      for (int bit = 0; bit < 8; ++bit) {
        const auto mask = static_cast<std::uint8_t>(1U << static_cast<unsigned>(bit));
        bytes[byte] ^= mask;
        digests.insert(comm::digest_of_values(values));
        bytes[byte] ^= mask;
      }
    }
    EXPECT_EQ(digests.size(), 25U) << type;
    EXPECT_EQ(comm::digest_of_values(values), comm::digest_of_values(values.clone())) << type;
  }
}

}  // namespace
}  // namespace trireme
