// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/streams.h>

#include <trireme/base/error.h>

#include <gtest/gtest.h>

namespace trireme::predict {
namespace {

TEST(Streams, RunBesideEachOther) {
  const auto spans = run_streams({{.seconds = 2},
                                  {.stream = Stream::kCommunication, .seconds = 3, .after = {0}},
                                  {.seconds = 4},
                                  {.seconds = 1, .after = {1}}});
  EXPECT_DOUBLE_EQ(spans[1].start, 2);
  EXPECT_DOUBLE_EQ(spans[1].end, 5);
  EXPECT_DOUBLE_EQ(spans[2].end, 6);
  EXPECT_DOUBLE_EQ(spans[3].start, 6);
}

TEST(Streams, SlowComputationWhileCommunicationTakesItsShare) {
  const auto spans = run_streams(
      {{.seconds = 2}, {.stream = Stream::kCommunication, .seconds = 1, .compute_share = 0.5}});
  // One second at half the speed, and then the other three halves.
  EXPECT_DOUBLE_EQ(spans[0].end, 2.5);
}

TEST(Streams, StartTheFirstCommunicationThatIsReady) {
  // Gradients that are computed until 2 are reduced after parameters that can be gathered at once.
  const auto spans = run_streams({{.seconds = 2},
                                  {.stream = Stream::kCommunication, .seconds = 3, .after = {0}},
                                  {.stream = Stream::kCommunication, .seconds = 1},
                                  {.seconds = 4, .after = {2}}});
  EXPECT_DOUBLE_EQ(spans[2].end, 1);
  EXPECT_DOUBLE_EQ(spans[1].start, 2);
  EXPECT_DOUBLE_EQ(spans[3].end, 6);
}

TEST(Streams, RefuseATaskThatWaitsForALaterOne) {
  EXPECT_THROW((void)run_streams({{.seconds = 1, .after = {1}}, {.seconds = 1}}), UsageError);
}

}  // namespace
}  // namespace trireme::predict
