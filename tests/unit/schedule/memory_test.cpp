// SPDX-License-Identifier: Apache-2.0
#include <trireme/schedule/verifier/memory.h>

#include <trireme/base/error.h>
#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/passes.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>
#include <tests/unit/schedule/parts.h>

namespace trireme::schedule {
namespace {

RankMemory peak_of(const std::string& actions, int micro_batches, const StageBytes& bytes) {
  const std::vector<StageBytes> stages{bytes};
  return peak_memory(schedule_of({actions}, micro_batches), stages).front();
}

TEST(PeakMemory, IsReachedWhereActivationsAreKept) {
  const RankMemory peak = peak_of("F0.0 F0.1 B0.0 F0.2 B0.1 B0.2", 3, {.activations = 10});
  EXPECT_EQ(peak.peak_bytes, 20);
  EXPECT_EQ(peak.peak_position, 1U);
  EXPECT_EQ(peak.peak_forwards, 2);
  EXPECT_EQ(peak.peak_unfinished, 2);
}

TEST(PeakMemory, CountsWhatWaitsForTheWeightPart) {
  const StageBytes bytes = {.activations = 10, .weight_inputs = 4};
  const RankMemory peak = peak_of("F0.0 I0.0 F0.1 I0.1 F0.2 W0.0 I0.2 W0.1 W0.2", 3, bytes);
  EXPECT_EQ(peak.peak_bytes, 4 + 4 + 10);
  EXPECT_EQ(peak.peak_position, 4U);
  EXPECT_EQ(peak.peak_forwards, 1);
  EXPECT_EQ(peak.peak_unfinished, 3);
}

TEST(PeakMemory, KeepsOnlyInputsWhereActivationsAreRecomputed) {
  const StageBytes bytes = {.activations = 10, .stage_inputs = 1};
  const RankMemory peak =
      peak_of("F0.0 F0.1 F0.2 recompute0.0 B0.0 recompute0.1 B0.1 recompute0.2 B0.2", 3, bytes);
  EXPECT_EQ(peak.peak_bytes, 3 + 10);
  EXPECT_EQ(peak.peak_position, 3U);
  EXPECT_EQ(peak.peak_forwards, 3);
}

TEST(PeakMemory, CountsWhatBackwardComputesAgain) {
  const StageBytes bytes = {.activations = 10, .weight_inputs = 4, .rebuilding = 25};
  RankMemory peak = peak_of("F0.0 F0.1 F0.2 B0.0 B0.1 B0.2", 3, bytes);
  EXPECT_EQ(peak.peak_bytes, 2 * 10 + 25);
  EXPECT_EQ(peak.peak_position, 3U);
  peak = peak_of("F0.0 F0.1 I0.0 I0.1 W0.0 W0.1", 2, bytes);
  EXPECT_EQ(peak.peak_bytes, 10 + 25);
  EXPECT_EQ(peak.peak_position, 2U);
  peak = peak_of("F0.0 F0.1 F0.2 B0.0 B0.1 B0.2", 3, {.activations = 10, .rebuilding = 5});
  EXPECT_EQ(peak.peak_bytes, 3 * 10);
}

TEST(PeakMemory, LeavesOutWhatIsOffloaded) {
  const RankMemory peak =
      peak_of("F0.0 offload0.0 F0.1 offload0.1 load0.1 load0.0 B0.0 B0.1", 2, {.activations = 7});
  EXPECT_EQ(peak.peak_bytes, 14);
  EXPECT_EQ(peak.peak_position, 5U);
}

TEST(PeakMemory, AddsUpTheStagesOfARank) {
  const std::vector<StageBytes> bytes = {
      {.activations = 1}, {.activations = 10}, {.activations = 100}, {.activations = 1000}};
  const auto peaks = peak_memory(interleaved(2, 2, 2), bytes);
  EXPECT_EQ(peaks[0].peak_bytes, 2 * 1 + 2 * 100);
  EXPECT_EQ(peaks[1].peak_bytes, 2 * 10 + 1000);
}

TEST(PeakMemory, RefusesBytesOfAnotherNumberOfStages) {
  const std::vector<StageBytes> bytes(3);
  EXPECT_THAT(test::message_of<UsageError>([&] { peak_memory(two_ranks(), bytes); }),
              testing::HasSubstr("there are bytes of 3 stages, expected 1 or 2"));
}

}  // namespace
}  // namespace trireme::schedule
