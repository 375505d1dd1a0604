// SPDX-License-Identifier: Apache-2.0
// Data parallel and sharded data parallel against one process that accumulates the same
// micro-batches: bit by bit where the engine adds in rank order, within a bound where it chooses
// the order. The numerics contract is docs/design/numerics.md; parity_grid_test.cpp has more cases.
#include <tests/ranks/parity.h>

namespace trireme {
namespace {

using comm::Group;
using test::Case;
using testing::run_ranks;

class Parity : public ::testing::TestWithParam<Case> {};

TEST_P(Parity, GivesTheBitsOfOneProcessWithTheSameMicroBatches) {
  test::expect_bits_of_one_process(GetParam());
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int zero_level : {0, 1, 2, 3}) {
    all.push_back({.ranks = 1, .micro_batches = 3, .zero_level = zero_level});
    for (const int ranks : {2, 3}) {
      for (const std::int64_t bucket_bytes : {1, 4096, 1 << 20}) {
        all.push_back({.ranks = ranks, .bucket_bytes = bucket_bytes, .zero_level = zero_level});
      }
      all.push_back(
          {.ranks = ranks, .micro_batches = 2, .zero_level = zero_level, .is_delayed = true});
    }
    for (const char* optimizer : {"sgd", "adam", "adamw", "rmsprop", "adagrad"}) {
      all.push_back({.ranks = 3, .zero_level = zero_level, .optimizer = optimizer});
    }
    all.push_back({.ranks = 2, .zero_level = zero_level, .set_to_none = false});
    all.push_back({.ranks = 3, .bucket_bytes = 1, .zero_level = zero_level, .streams = 3});
    all.push_back({.ranks = 2, .zero_level = zero_level, .optimizer_first = false});
  }
  for (const std::int64_t gathered_buckets : {0, 2, 5}) {
    all.push_back({.ranks = 3,
                   .micro_batches = 2,
                   .bucket_bytes = 1,
                   .zero_level = 3,
                   .gathered_buckets = gathered_buckets});
  }
  for (const int zero_level : {1, 2, 3}) {
    all.push_back(
        {.ranks = 3, .zero_level = zero_level, .optimizer = "adam", .offload_optimizer = true});
    all.push_back({.ranks = 4, .zero_level = zero_level, .is_delayed = true, .shard_ranks = 2});
    all.push_back({.ranks = 6,
                   .micro_batches = 2,
                   .bucket_bytes = 1,
                   .zero_level = zero_level,
                   .streams = 2,
                   .shard_ranks = 3});
  }
  all.push_back({.ranks = 3,
                 .bucket_bytes = 512,
                 .zero_level = 2,
                 .optimizer = "adam",
                 .zero_level_of = {{"first", 3}, {"second.weight", 0}, {"conv", 1}}});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Cases, Parity, ::testing::ValuesIn(cases()));

TEST(DataParallelOverThreeRanksOfGloo, IsTheSameOnAllRanksAndCloseToOneProcess) {
  trireme::testing::engine_of_ranks = "gloo";
  const Case c{.ranks = 3};
  const auto expected = test::train_alone(c, 3);
  std::vector<std::vector<torch::Tensor>> of_rank(3);
  run_ranks(3, [&](const Group& group) {
    of_rank[static_cast<std::size_t>(group.rank())] = test::train_parallel(c, 3, group);
  });
  trireme::testing::engine_of_ranks = "shm";
  for (std::size_t p = 0; p < expected.size(); ++p) {
    EXPECT_TRUE(torch::equal(of_rank[0][p], of_rank[1][p]) &&
                torch::equal(of_rank[0][p], of_rank[2][p]));
    // Three summands in another order: a few units in the last place of the largest element, a
    // step.
    const double difference = (of_rank[0][p] - expected[p]).abs().max().item<double>();
    EXPECT_LE(difference, 1e-5 * expected[p].abs().max().item<double>()) << "parameter " << p;
  }
}

}  // namespace
}  // namespace trireme
