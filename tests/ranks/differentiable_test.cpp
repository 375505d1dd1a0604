// SPDX-License-Identifier: Apache-2.0
// Collectives that autograd follows, against one process that has all rows.
#include <trireme/comm/differentiable.h>

#include <trireme/base/error.h>
#include <trireme/parallel/data_parallel.h>

#include <gmock/gmock.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <numeric>
#include <vector>

namespace trireme::comm {
namespace {

using test::usage_error;
using ::testing::HasSubstr;
using trireme::testing::run_ranks;

class Differentiable : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { trireme::testing::engine_of_ranks = GetParam(); }
  void TearDown() override { trireme::testing::engine_of_ranks = "shm"; }
};
INSTANTIATE_TEST_SUITE_P(Over, Differentiable, ::testing::Values("shm", "gloo", "threads"));

constexpr int kRanks = 3;
constexpr std::int64_t kRows = 4;

torch::Tensor random(std::int64_t seed, at::IntArrayRef sizes) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed));
  return torch::randn(sizes, generator, torch::kDouble);
}

// What a rank's loss sees of rows, its own or all, with weights of the rank's own.
torch::Tensor loss_of(const torch::Tensor& seen, int rank) {
  return (seen.square() * random(100 + rank, seen.sizes())).sum();
}

using Exchange = std::function<torch::Tensor(const torch::Tensor& input, const Group& group)>;
/// What rank `rank` gets of all ranks' inputs.
using Reference =
    std::function<torch::Tensor(const std::vector<torch::Tensor>& inputs, std::int64_t rank)>;

// Outputs, gradients and gradients of gradients of all ranks' losses against one process.
void compare(std::int64_t rows, const Exchange& exchange, const Reference& reference) {
  std::vector<torch::Tensor> inputs;
  for (int rank = 0; rank < kRanks; ++rank) {
    inputs.push_back(random(rank, {rows, 2}).requires_grad_());
  }
  torch::Tensor sum = torch::zeros({}, torch::kDouble);
  std::vector<torch::Tensor> outputs;
  for (int rank = 0; rank < kRanks; ++rank) {
    outputs.push_back(reference(inputs, rank));
    sum = sum + loss_of(outputs.back(), rank);
  }
  const auto first = torch::autograd::grad({sum}, inputs, {}, true, /*create_graph=*/true);
  torch::Tensor second_loss = torch::zeros({}, torch::kDouble);
  for (const torch::Tensor& gradient : first) second_loss = second_loss + gradient.pow(3).sum();
  const auto second = torch::autograd::grad({second_loss}, inputs);

  run_ranks(kRanks, [&](const Group& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    const torch::Tensor input = inputs[rank].detach().clone().requires_grad_();
    const torch::Tensor output = exchange(input, group);
    EXPECT_TRUE(torch::allclose(output, outputs[rank], 1e-12, 1e-12));
    const auto gradient = torch::autograd::grad({loss_of(output, group.rank())}, {input}, {}, true,
                                                /*create_graph=*/true);
    EXPECT_TRUE(torch::allclose(gradient[0], first[rank], 1e-12, 1e-12));
    const auto again = torch::autograd::grad({gradient[0].pow(3).sum()}, {input});
    EXPECT_TRUE(torch::allclose(again[0], second[rank], 1e-10, 1e-10));
  });
}

torch::Tensor sum_of(const std::vector<torch::Tensor>& inputs) {
  torch::Tensor sum = inputs[0];
  for (std::size_t rank = 1; rank < inputs.size(); ++rank) sum = sum + inputs[rank];
  return sum;
}

TEST_P(Differentiable, AllGatherSumsWhatAllLossesSayAboutARanksRows) {
  compare(
      kRows,
      [](const auto& input, const Group& group) { return functional::all_gather(input, group); },
      [](const auto& inputs, std::int64_t) { return torch::cat(inputs); });
}

TEST_P(Differentiable, ReduceScatterAndAllReduceTakeSumsAndAverages) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
    const double divisor = op == ReduceOp::kSum ? 1 : kRanks;
    compare(
        kRows * kRanks,
        [op](const auto& input, const Group& group) {
          return functional::reduce_scatter(input, group, op);
        },
        [divisor](const auto& inputs, std::int64_t rank) {
          return sum_of(inputs).div(divisor).narrow(0, rank * kRows, kRows);
        });
    compare(
        kRows,
        [op](const auto& input, const Group& group) {
          return functional::all_reduce(input, group, op);
        },
        [divisor](const auto& inputs, std::int64_t) { return sum_of(inputs).div(divisor); });
  }
}

TEST_P(Differentiable, AllToAllSendsGradientsBack) {
  compare(
      kRows * kRanks,
      [](const auto& input, const Group& group) { return functional::all_to_all(input, group); },
      [](const auto& inputs, std::int64_t rank) {
        std::vector<torch::Tensor> slices;
        for (const auto& input : inputs) slices.push_back(input.narrow(0, rank * kRows, kRows));
        return torch::cat(slices);
      });
}

// Each rank sends another number of rows to each rank, and to one of them none.
TEST_P(Differentiable, AllToAllOfUnequalNumbersOfRowsSendsGradientsBack) {
  const auto rows_to = [](std::int64_t rank) {
    std::vector<std::int64_t> rows;
    for (std::int64_t other = 0; other < kRanks; ++other) rows.push_back((rank + other) % kRanks);
    return rows;  // the same the other way round
  };
  compare(
      kRanks * (kRanks - 1) / 2,
      [&](const auto& input, const Group& group) {
        return functional::all_to_all(input, rows_to(group.rank()), rows_to(group.rank()), group);
      },
      [&](const auto& inputs, std::int64_t rank) {
        std::vector<torch::Tensor> slices;
        for (std::size_t from = 0; from < inputs.size(); ++from) {
          const auto rows = rows_to(static_cast<std::int64_t>(from));
          const auto own = rows.begin() + rank;
          slices.push_back(
              inputs[from].narrow(0, std::accumulate(rows.begin(), own, std::int64_t{0}), *own));
        }
        return torch::cat(slices);
      });
}

TEST(Differentiable, TakesTensorsThatAreNotContiguousAndGroupsOfOne) {
  run_ranks(2, [](const Group& group) {
    const torch::Tensor input = torch::ones({3, 4}).requires_grad_();
    functional::all_gather(input.t(), group).sum().backward();
    EXPECT_TRUE(torch::equal(input.grad(), torch::full({3, 4}, 2.0F)));
  });
  const torch::Tensor input = torch::ones({3}).requires_grad_();
  const Group self = Group::self();
  const torch::Tensor same = functional::all_to_all(
      functional::reduce_scatter(functional::all_gather(input, self), self), self);
  functional::all_reduce(same, self, ReduceOp::kAverage).sum().backward();
  EXPECT_TRUE(torch::equal(input.grad(), torch::ones({3})));
}

TEST(Differentiable, RefusesWhatCannotBeExchanged) {
  run_ranks(2, [](const Group& group) {
    EXPECT_THAT(
        usage_error([&] {
          static_cast<void>(functional::all_reduce(torch::ones({2}), group, ReduceOp::kMaximum));
        }),
        HasSubstr("neither a sum nor an average"));
    EXPECT_THAT(
        usage_error([&] { static_cast<void>(functional::all_to_all(torch::ones({3}), group)); }),
        HasSubstr("multiple of the number of ranks"));
    EXPECT_THAT(
        usage_error([&] { static_cast<void>(functional::all_gather(torch::ones({}), group)); }),
        HasSubstr("first dimension"));
    using Rows = std::vector<std::int64_t>;
    const auto refused = [&](const Rows& rows_to, const Rows& rows_from) {
      return usage_error([&] {
        static_cast<void>(functional::all_to_all(torch::ones({3, 1}), rows_to, rows_from, group));
      });
    };
    EXPECT_THAT(refused({3}, {3, 0}), HasSubstr("told to send [3] rows and to receive [3, 0]"));
    EXPECT_THAT(refused({2, 2}, {2, 2}), HasSubstr("a number of rows for each rank"));
    EXPECT_THAT(group.rank() == 0 ? refused({2, 1}, {1, 1}) : refused({1, 2}, {1, 1}),
                HasSubstr("sends itself what it receives of itself"));
  });
}

struct EncoderImpl : torch::nn::Module {
  EncoderImpl() {
    first = register_module("first", torch::nn::Linear(6, 8));
    second = register_module("second", torch::nn::Linear(8, 5));
    to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    std::int64_t seed = 7;
    for (torch::Tensor& parameter : parameters())
      parameter.copy_(random(++seed, parameter.sizes()));
  }
  torch::Tensor forward(const torch::Tensor& rows) {
    return torch::nn::functional::normalize(second(torch::tanh(first(rows))));
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(Encoder);

// Own rows of one view against all rows of the other one.
torch::Tensor contrastive(const torch::Tensor& own, const torch::Tensor& all,
                          std::int64_t first_own) {
  const torch::Tensor targets = torch::arange(first_own, first_own + own.size(0));
  return torch::nn::functional::cross_entropy(own.matmul(all.t()).div(0.1), targets);
}

// By `full()` of a distributed tensor the gradients were 42 to 66 % off.
TEST_P(Differentiable, GivesAContrastiveLossTheGradientsOfOneProcess) {
  const torch::Tensor a = random(1, {kRanks * kRows, 6});
  const torch::Tensor b = random(2, {kRanks * kRows, 6});
  Encoder alone;
  contrastive(alone(a), alone(b), 0).backward();

  run_ranks(kRanks, [&](const Group& group) {
    Encoder encoder;
    const DataParallel parallel(*encoder, group);
    const std::int64_t begin = group.rank() * kRows;
    const torch::Tensor own = encoder(a.narrow(0, begin, kRows));
    const torch::Tensor all = functional::all_gather(encoder(b.narrow(0, begin, kRows)), group);
    contrastive(own, all, begin).backward();
    const auto expected = alone->named_parameters();
    for (const auto& parameter : encoder->named_parameters()) {
      EXPECT_TRUE(
          torch::allclose(parameter.value().grad(), expected[parameter.key()].grad(), 1e-10, 1e-12))
          << parameter.key();
    }
  });
}

// The sum used to be infinite.
TEST_P(Differentiable, AveragesHalfPrecisionWhoseSumItCannotHold) {
  run_ranks(2, [](const Group& group) {
    const torch::Tensor own = torch::full({2, 3}, 40000 + 64 * group.rank(), torch::kHalf);
    const torch::Tensor input = own.clone().requires_grad_();
    const torch::Tensor all = functional::all_reduce(input, group, ReduceOp::kAverage);
    const torch::Tensor part = functional::reduce_scatter(input, group, ReduceOp::kAverage);
    EXPECT_TRUE(torch::equal(all, torch::full({2, 3}, 40032, torch::kHalf)));
    EXPECT_TRUE(torch::equal(part, torch::full({1, 3}, 40032, torch::kHalf)));
    (all.sum() + part.sum()).backward();
    EXPECT_TRUE(torch::equal(input.grad(), torch::full({2, 3}, 1.5, torch::kHalf)));
  });
}

}  // namespace
}  // namespace trireme::comm
