// SPDX-License-Identifier: Apache-2.0
// Every arrangement of stages, ranks along data, ZeRO levels, micro-batches, schedules and
// recomputation: every bit as one process.
#include <gtest/gtest.h>
#include <tests/ranks/pipeline/loops.h>
#include <tests/ranks/pipeline/networks.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace trireme {
namespace {

using test::Arranged;
using test::NetworkCase;
using test::Outcome;

class ShardedPipelineGrid : public ::testing::TestWithParam<NetworkCase> {};

TEST_P(ShardedPipelineGrid, HasTheBitsOfAPlainLoop) {
  int number = 0;
  for (const int pipe : {1, 2}) {
    for (const int data : {1, 2}) {
      for (const std::int64_t micro_batches : {1, 3, 4}) {
        // Of 5 rows for 4 micro-batches the first have two.
        Arranged arranged{.pipe = pipe,
                          .data = data,
                          .micro_batches = micro_batches,
                          .optimizer = number++ % 2 == 0 ? "momentum" : "adamw",
                          .rows = micro_batches == 4 ? 5 : 6,
                          .steps = micro_batches == 3 ? 10 : 3};
        const Outcome expected = test::alone(GetParam(), arranged);
        for (const std::string schedule : {"gpipe", "1f1b", "zb-h1"}) {
          if (pipe == 1 && schedule != "1f1b") continue;
          arranged.schedule = schedule;
          for (arranged.zero_level = 0; arranged.zero_level <= 3; ++arranged.zero_level) {
            test::expect_bits_of(expected, GetParam(), arranged);
          }
        }
      }
    }
  }
}

// Everything else goes round: each of stages, micro-batches and ranks along data meets every
// schedule, ZeRO level and way of recomputation with some of the others.
TEST_P(ShardedPipelineGrid, HasTheBitsOfAPlainLoopWhateverTheScheduleAndRecomputation) {
  const std::vector<std::pair<std::string, int>> schedules = {
      {"gpipe", 1}, {"zb-h2", 1}, {"interleaved", 2}, {"1f1b", 1}, {"zb-v", 2}, {"zb-h1", 1}};
  const std::vector<std::vector<std::string>> recomputed = {
      {}, {"*"}, {GetParam().make().modules[2]}};
  std::size_t number = 0;
  for (const int pipe : {2, 3, 4}) {
    for (const int data : {1, 2}) {
      for (std::int64_t micro_batches = 1; micro_batches <= 9; ++micro_batches) {
        Arranged arranged{
            .pipe = pipe, .data = data, .micro_batches = micro_batches, .rows = 10, .steps = 2};
        const Outcome expected = test::alone(GetParam(), arranged);
        for (int i = 0; i < 2; ++i, ++number) {
          std::tie(arranged.schedule, arranged.chunks) = schedules[number % schedules.size()];
          if (arranged.chunks > 1 && pipe > 2) continue;  // small networks have few places to cut
          arranged.zero_level = static_cast<int>(number / 3 % 4);
          arranged.recompute = recomputed[number / 2 % recomputed.size()];
          try {
            test::expect_bits_of(expected, GetParam(), arranged);
          } catch (const std::exception& error) {
            ADD_FAILURE() << ::testing::PrintToString(arranged) << ": " << error.what();
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, ShardedPipelineGrid, ::testing::ValuesIn(test::network_cases()),
                         [](const auto& param_info) { return param_info.param.name; });

}  // namespace
}  // namespace trireme
