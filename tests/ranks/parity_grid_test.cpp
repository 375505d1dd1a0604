// SPDX-License-Identifier: Apache-2.0
// parity_test.cpp over the whole grid of ranks, micro-batches, buckets, ZeRO levels and optimizers.
#include <tests/ranks/parity.h>

namespace trireme {
namespace {

using test::Case;

class ParityGrid : public ::testing::TestWithParam<Case> {};

TEST_P(ParityGrid, GivesTheBitsOfOneProcessWithTheSameMicroBatches) {
  test::expect_bits_of_one_process(GetParam());
}

std::vector<Case> grid() {
  std::vector<Case> all;
  for (const int zero_level : {0, 1, 2, 3}) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      for (const std::int64_t micro_batches : {1, 2, 3}) {
        for (const std::int64_t bucket_bytes : {1, 4096, 1 << 20}) {
          for (const char* optimizer : {"sgd", "momentum", "adam"}) {
            all.push_back({.ranks = ranks,
                           .micro_batches = micro_batches,
                           .bucket_bytes = bucket_bytes,
                           .zero_level = zero_level,
                           .optimizer = optimizer,
                           .is_delayed = bucket_bytes == 4096});
          }
        }
      }
    }
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Grid, ParityGrid, ::testing::ValuesIn(grid()));

}  // namespace
}  // namespace trireme
