// SPDX-License-Identifier: Apache-2.0
#include <trireme/schedule/generators/generators.h>

#include <trireme/base/error.h>
#include <trireme/schedule/passes.h>
#include <trireme/schedule/timeline.h>
#include <trireme/schedule/verifier/verify.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>
#include <tests/unit/schedule/parts.h>

#include <algorithm>
#include <vector>

namespace trireme::schedule {
namespace {

using testing::HasSubstr;

constexpr int kMostRanks = 8;
constexpr int kMostMicroBatches = 20;
constexpr int kMostChunks = 4;

std::vector<RankMemory> counts(const Schedule& schedule) {
  const std::vector<StageBytes> one{StageBytes{}};
  return peak_memory(schedule, one);
}

// Calls `check(ranks, micro_batches)` for the whole grid.
template <typename Check>
void for_all_sizes(const Check& check) {
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
    for (int micro_batches = 1; micro_batches <= kMostMicroBatches; ++micro_batches) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, " << micro_batches << " micro-batches");
      check(ranks, micro_batches);
    }
  }
}

void expect_right(const Schedule& schedule) {
  using Transfers = VerifyOptions::Transfers;
  const auto wrong = find_errors(schedule, {.transfers = Transfers::kImplicit});
  ASSERT_TRUE(wrong.empty()) << wrong.front().sentence;
  EXPECT_TRUE(keeps_order_of_gradients(schedule));
  std::vector<Messages> engines = {{}, {.outstanding = 0}};
  if (schedule.micro_batches < 9) {
    engines.push_back({.matching = Messages::Matching::kByTag});
    engines.push_back({.outstanding = 1});
  }
  for (const Messages& messages : engines) {
    const auto findings = find_errors(with_messages(schedule, messages), {.messages = messages});
    ASSERT_TRUE(findings.empty()) << messages.outstanding.value_or(-1)
                                  << " outstanding: " << findings.front().sentence;
  }
}

TEST(Generators, MakeSchedulesThatCanBeExecutedForAllSizes) {
  for (const std::string_view kind : kKinds) {
    SCOPED_TRACE(kind);
    for_all_sizes([kind](int ranks, int micro_batches) {
      for (int chunks = 1; chunks <= (kind == "interleaved" ? kMostChunks : 1); ++chunks) {
        expect_right(generate(kind, ranks, micro_batches, kind == "interleaved" ? chunks : 0));
      }
    });
  }
}

TEST(Generators, WriteTheKnownOrders) {
  EXPECT_EQ(computation_of(gpipe(2, 3), 1), "F1.0 F1.1 F1.2 B1.0 B1.1 B1.2");
  const Schedule plain = one_forward_one_backward(3, 4);
  EXPECT_EQ(computation_of(plain, 0), "F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3");
  EXPECT_EQ(computation_of(plain, 2), "F2.0 B2.0 F2.1 B2.1 F2.2 B2.2 F2.3 B2.3");
  const Schedule h1 = zero_bubble_h1(3, 5);
  EXPECT_EQ(computation_of(h1, 0),
            "F0.0 F0.1 F0.2 I0.0 W0.0 F0.3 I0.1 W0.1 F0.4 I0.2 W0.2 I0.3 W0.3 I0.4 W0.4");
  EXPECT_EQ(computation_of(h1, 2),
            "F2.0 I2.0 F2.1 I2.1 F2.2 I2.2 W2.0 F2.3 I2.3 W2.1 F2.4 I2.4 W2.2 W2.3 W2.4");
  // Megatron-LM's order for two ranks with two chunks.
  EXPECT_EQ(computation_of(interleaved(2, 4, 2), 1),
            "F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 F1.3 B1.1 F3.2 B3.2 F3.3 B3.3 B1.2 B1.3");
}

TEST(Generators, PlaceStages) {
  EXPECT_EQ(looped_placement(3, 2), (std::vector<int>{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(v_placement(3), (std::vector<int>{0, 1, 2, 2, 1, 0}));
  EXPECT_EQ(interleaved(3, 4, 2).rank_of_stage, looped_placement(3, 2));
  EXPECT_EQ(zero_bubble_v(3, 4).rank_of_stage, v_placement(3));
  EXPECT_EQ(interleaved(3, 4, 1).ranks, one_forward_one_backward(3, 4).ranks);
}

TEST(Generators, KeepAsManyMicroBatchesAsTheirPapersSay) {
  for_all_sizes([](int ranks, int micro_batches) {
    const auto gpipe_peaks = counts(gpipe(ranks, micro_batches));
    const auto plain = counts(one_forward_one_backward(ranks, micro_batches));
    const auto h1 = counts(zero_bubble_h1(ranks, micro_batches));
    const auto h2 = counts(zero_bubble_h2(ranks, micro_batches));
    const auto v = counts(zero_bubble_v(ranks, micro_batches));
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(item(gpipe_peaks, rank).peak_forwards, micro_batches);
      EXPECT_EQ(item(plain, rank).peak_forwards, std::min(micro_batches, ranks - rank));
      EXPECT_EQ(item(h1, rank).peak_forwards, std::min(micro_batches, ranks - rank));
      EXPECT_EQ(item(h1, rank).peak_unfinished, std::min(micro_batches, ranks));
      EXPECT_EQ(item(h2, rank).peak_unfinished, std::min(micro_batches, 2 * ranks - 1));
      EXPECT_LE(item(v, rank).peak_unfinished,
                2 * std::min(micro_batches, ranks));  // of half a share
      for (int chunks = 2; micro_batches % ranks == 0 && chunks <= kMostChunks; ++chunks) {
        const auto peaks = counts(interleaved(ranks, micro_batches, chunks));
        const int ahead = (chunks - 1) * ranks + 2 * (ranks - 1 - rank) + 1;
        EXPECT_EQ(item(peaks, rank).peak_forwards, std::min(chunks * micro_batches, ahead));
      }
    }
  });
}

TEST(Generators, OneForwardOneBackwardHasTheBubbleOfItsFormula) {
  for_all_sizes([](int ranks, int micro_batches) {
    const Timeline plain =
        simulate(one_forward_one_backward(ranks, micro_batches), times_of_all(1, 1, 1));
    EXPECT_DOUBLE_EQ(plain.step_time, 3 * (micro_batches + ranks - 1));
    EXPECT_DOUBLE_EQ(simulate(gpipe(ranks, micro_batches), times_of_all(1, 1, 1)).step_time,
                     plain.step_time);
  });
}

TEST(Generators, InterleavingDividesTheBubbleByTheChunksForAnyNumberOfMicroBatches) {
  for_all_sizes([](int ranks, int micro_batches) {
    for (int chunks = 1; chunks <= kMostChunks; ++chunks) {
      if (micro_batches < ranks) continue;
      const Timeline timeline =
          simulate(interleaved(ranks, micro_batches, chunks), times_of_all(1, 1, 1));
      EXPECT_DOUBLE_EQ(timeline.step_time, 3 * (chunks * micro_batches + ranks - 1)) << chunks;
    }
  });
}

TEST(Generators, InterleavingIsNeverSlowerThanOneForwardOneBackward) {
  for_all_sizes([](int ranks, int micro_batches) {
    const double plain =
        simulate(one_forward_one_backward(ranks, micro_batches), times_of_all(4, 4, 4)).step_time;
    for (const int chunks : {2, 4}) {
      const double share = 4.0 / chunks;
      const Times times = times_of_all(share, share, share);
      EXPECT_LE(simulate(interleaved(ranks, micro_batches, chunks), times).step_time, plain);
    }
  });
}

TEST(Generators, ZeroBubbleSchedulesHaveNoneWherePartsAreEqual) {
  for_all_sizes([](int ranks, int micro_batches) {
    if (micro_batches >= 2 * ranks - 1) {
      const auto h2 = simulate(zero_bubble_h2(ranks, micro_batches), times_of_all(1, 1, 1));
      EXPECT_NEAR(h2.bubble_rate(), 0, 1e-12);
    }
    if (micro_batches >= 2 * ranks) {
      const auto v = simulate(zero_bubble_v(ranks, micro_batches), times_of_all(1, 1, 1));
      EXPECT_NEAR(v.bubble_rate(), 0, 1e-12);
    }
    if (micro_batches >= ranks) {
      const auto h1 = simulate(zero_bubble_h1(ranks, micro_batches), times_of_all(1, 1, 1));
      EXPECT_DOUBLE_EQ(h1.longest_rank_time, 3 * micro_batches + ranks - 1);
    }
  });
}

TEST(Generators, RefuseWhatNoScheduleIs) {
  EXPECT_THAT(test::message_of<UsageError>([] { gpipe(0, 1); }),
              HasSubstr("a schedule of 0 ranks"));
  EXPECT_THAT(test::message_of<UsageError>([] { zero_bubble_v(2, -1); }),
              HasSubstr("a schedule of -1 micro-batches"));
  EXPECT_THAT(test::message_of<UsageError>([] { interleaved(2, 2, 0); }),
              HasSubstr("a schedule of 0 chunks on each rank"));
  EXPECT_THAT(test::message_of<UsageError>([] { generate("pipedream", 2, 2); }),
              testing::AllOf(HasSubstr("no schedule is called 'pipedream'"),
                             HasSubstr("gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v")));
  EXPECT_THAT(test::message_of<UsageError>([] { generate("1f1b", 2, 2, 3); }),
              HasSubstr("a schedule 1f1b of 3 chunks on each rank"));
}

TEST(Generators, AreFoundByName) {
  EXPECT_EQ(generate("gpipe", 2, 3), gpipe(2, 3));
  EXPECT_EQ(generate("1f1b", 2, 3), one_forward_one_backward(2, 3));
  EXPECT_EQ(generate("interleaved", 2, 3), interleaved(2, 3, 2));
  EXPECT_EQ(generate("interleaved", 2, 3, 3), interleaved(2, 3, 3));
  EXPECT_EQ(generate("zb-h1", 2, 3), zero_bubble_h1(2, 3));
  EXPECT_EQ(generate("zb-h2", 2, 3), zero_bubble_h2(2, 3));
  EXPECT_EQ(generate("zb-v", 2, 3, 2), zero_bubble_v(2, 3));
}

}  // namespace
}  // namespace trireme::schedule
