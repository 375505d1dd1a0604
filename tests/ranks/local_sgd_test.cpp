// SPDX-License-Identifier: Apache-2.0
// Ranks that train on their own and average their parameters now and then.
#include <trireme/parallel/local_sgd.h>

#include <trireme/base/error.h>

#include <tests/ranks/comm_hook_buckets.h>
#include <tests/ranks/small_net.h>

#include <algorithm>
#include <memory>
#include <ostream>

namespace trireme {
namespace {

using comm::Group;
using test::expect_refused_on_all_ranks;
using test::is_same_on_all_ranks;
using test::loss_of;
using test::make_batch;
using test::make_net;
using ::testing::HasSubstr;
using testing::run_ranks;

std::unique_ptr<torch::optim::SGD> make_optimizer(test::Net& net) {
  return std::make_unique<torch::optim::SGD>(net->parameters(),
                                             torch::optim::SGDOptions(0.05).momentum(0.9));
}

void train(test::Net& net, torch::optim::Optimizer& optimizer, int step, int rank) {
  optimizer.zero_grad();
  loss_of(net, make_batch(step, rank)).backward();
  optimizer.step();
}

// All ranks one after the other in one process, for 9 steps: [step][rank][tensor].
using History = std::vector<std::vector<std::vector<torch::Tensor>>>;

std::vector<torch::Tensor> copies_of(test::Net& net) {
  std::vector<torch::Tensor> copies;
  for (const auto& tensor : net->parameters()) copies.push_back(tensor.detach().clone());
  for (const auto& tensor : net->buffers()) copies.push_back(tensor.clone());
  return copies;
}

History train_manually(int ranks, const std::vector<int>& averaged_after) {
  std::vector<test::Net> nets;
  std::vector<std::unique_ptr<torch::optim::SGD>> optimizers;
  for (int rank = 0; rank < ranks; ++rank) {
    nets.push_back(make_net(1));
    optimizers.push_back(make_optimizer(nets.back()));
  }
  History history;
  for (int step = 1; step <= 9; ++step) {
    for (std::size_t rank = 0; rank < nets.size(); ++rank) {
      train(nets[rank], *optimizers[rank], step, static_cast<int>(rank));
    }
    if (std::ranges::find(averaged_after, step) != averaged_after.end()) {
      const torch::NoGradGuard no_grad;
      for (std::size_t p = 0; p < nets[0]->parameters().size(); ++p) {
        torch::Tensor sum = nets[0]->parameters()[p].clone();
        for (std::size_t rank = 1; rank < nets.size(); ++rank)
          sum = sum + nets[rank]->parameters()[p];
        for (test::Net& net : nets) net->parameters()[p].copy_(sum / ranks);
      }
    }
    history.emplace_back();
    for (test::Net& net : nets) history.back().push_back(copies_of(net));
  }
  return history;
}

struct LocalCase {
  int ranks;
  LocalSgdOptions options;
  std::vector<int> averaged_after;
  const char* engine = "shm";
};

// GoogleTest looks for this name.
// NOLINTNEXTLINE(readability-identifier-naming)
void PrintTo(const LocalCase& c, std::ostream* out) {
  *out << c.ranks << " ranks over " << c.engine << ", period " << c.options.period << ", warm_up "
       << c.options.warm_up << ", buckets of " << c.options.bucket_bytes;
}

class LocalSgdByHand : public ::testing::TestWithParam<LocalCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, LocalSgdByHand,
                         ::testing::Values(LocalCase{3, {.period = 3, .warm_up = 2}, {1, 2, 5, 8}},
                                           LocalCase{2, {.period = 1}, {1, 2, 3, 4, 5, 6, 7, 8, 9}},
                                           LocalCase{4, {.period = 4, .bucket_bytes = 500}, {4, 8}},
                                           LocalCase{
                                               3, {.period = 20, .warm_up = 1}, {1}, "gloo"}));

TEST_P(LocalSgdByHand, GivesTheSameBits) {
  const LocalCase& c = GetParam();
  const History expected = train_manually(c.ranks, c.averaged_after);
  testing::engine_of_ranks = c.engine;
  run_ranks(c.ranks, [&](const Group& group) {
    test::Net net =
        make_net(1 + static_cast<std::uint64_t>(group.rank()));  // rank 0's values count
    if (group.rank() != 0) net->norm->running_mean.fill_(7);
    const auto optimizer = make_optimizer(net);
    LocalSgd local(*net, c.options, group);
    for (int step = 1; step <= 9; ++step) {
      train(net, *optimizer, step, group.rank());
      local.step();
      const auto& here =
          expected[static_cast<std::size_t>(step - 1)][static_cast<std::size_t>(group.rank())];
      const auto got = copies_of(net);
      for (std::size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(torch::equal(got[i], here[i])) << "tensor " << i << ", step " << step;
      }
      const bool is_averaged = std::ranges::find(c.averaged_after, step) != c.averaged_after.end();
      EXPECT_EQ(is_same_on_all_ranks(net->first->weight.detach(), group), is_averaged) << step;
    }
  });
  testing::engine_of_ranks = "shm";
}

TEST(LocalSgd, AveragesWhenAskedAndOnlyWhatIsTrained) {
  run_ranks(2, [](const Group& group) {
    torch::nn::Linear linear(2, 2);
    linear->weight.set_requires_grad(false);
    LocalSgd local(*linear, {.period = 1000}, group);
    EXPECT_TRUE(is_same_on_all_ranks(linear->weight, group));
    {
      const torch::NoGradGuard no_grad;
      linear->weight.fill_(group.rank());
      linear->bias.fill_(group.rank());
    }
    local.step();
    EXPECT_EQ(linear->bias[0].item<float>(), static_cast<float>(group.rank()));
    local.average();
    EXPECT_EQ(linear->bias[0].item<float>(), 0.5F);
    EXPECT_EQ(linear->weight[0][0].item<float>(), static_cast<float>(group.rank()));
    EXPECT_TRUE(linear->bias.requires_grad() && linear->bias.is_leaf());
  });
}

TEST(LocalSgd, LeavesAGroupOfOneAlone) {
  torch::nn::Linear linear(3, 3);
  const torch::Tensor before = linear->weight.detach().clone();
  LocalSgd local(*linear, {.period = 1}, Group::self());
  local.step();
  local.average();
  EXPECT_TRUE(torch::equal(linear->weight, before));
}

TEST(LocalSgd, AcceptsAModuleWithoutParameters) {
  run_ranks(2, [](const Group& group) {
    torch::nn::ReLU relu;
    LocalSgd local(*relu, {.period = 1}, group);
    local.step();
  });
}

TEST(LocalSgd, RefusesWhatDiffersBetweenRanks) {
  expect_refused_on_all_ranks(
      3,
      [](const Group& group) {
        torch::nn::Linear linear(4, group.rank() == 2 ? 5 : 4);
        const LocalSgd local(*linear, {}, group);
      },
      "the module differs between ranks, first in a parameter:\n    rank 0 has weight");
  expect_refused_on_all_ranks(
      2,
      [](const Group& group) {
        torch::nn::Linear linear(4, 4);
        const LocalSgd local(*linear, {.period = 4 + group.rank()}, group);
      },
      "rank 0 has 'local SGD, period 4, ");
}

TEST(LocalSgd, RefusesOptionsThatCannotBe) {
  for (const LocalSgdOptions& options :
       {LocalSgdOptions{.period = 0}, LocalSgdOptions{.warm_up = -1},
        LocalSgdOptions{.bucket_bytes = 0}}) {
    torch::nn::Linear linear(2, 2);
    std::string message;
    try {
      const LocalSgd local(*linear, options, Group::self());
    } catch (const UsageError& error) {
      message = error.what();
    }
    EXPECT_THAT(message,
                HasSubstr(join_message("local SGD: period ", options.period, ", warm_up ",
                                       options.warm_up, ", bucket_bytes ", options.bucket_bytes)));
  }
}

TEST(LocalSgd, RefusesOnAllRanksOptionsThatCannotBeOnOne) {
  run_ranks(2, [](const Group& group) {
    torch::nn::Linear linear(2, 2);
    EXPECT_THROW(const LocalSgd local(*linear, {.period = group.rank() == 0 ? 8 : 0}, group),
                 UsageError);
  });
}

}  // namespace
}  // namespace trireme
