// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/faults.h>

#include <trireme/base/error.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/predict/prediction.h>

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace trireme::predict {
namespace {

// 2,048 hosts, of which one fails every three hours.
FaultOptions large_run() {
  return {.host_failure_seconds = 3 * 3600.0 * 2048,
          .hosts = 2048,
          .detect_seconds = 60,
          .restart_seconds = 480,
          .load_seconds = 60,
          .save_seconds = 30};
}

// Simulates a training of `useful_seconds` of work with random failures, and returns the share of
// time that was training that counts.
double simulated_share(const FaultOptions& options, double useful_seconds) {
  const double recovery = options.detect_seconds + options.restart_seconds + options.load_seconds;
  std::mt19937_64 random(1);  // NOLINT(bugprone-random-generator-seed): the same in every run
  std::exponential_distribution<double> next_failure(static_cast<double>(options.hosts) /
                                                     options.host_failure_seconds);
  double now = 0;
  double done = 0;  // work that is saved
  double failure = next_failure(random);
  while (done < useful_seconds) {
    const double end = now + options.interval_seconds + options.save_seconds;
    if (failure > end) {
      now = end;
      done += options.interval_seconds;
      continue;
    }
    now = failure;
    // A failure during recovery begins it anew.
    while (true) {
      failure = now + next_failure(random);
      if (failure > now + recovery) break;
      now = failure;
    }
    now += recovery;
  }
  return done / now;
}

TEST(Faults, YoungsIntervalIsNearTheBestOne) {
  const FaultPrediction prediction = predict_faults(large_run());
  EXPECT_DOUBLE_EQ(prediction.failure_seconds, 10'800);
  EXPECT_DOUBLE_EQ(prediction.young_interval, std::sqrt(2 * 30 * 10'800.0));
  EXPECT_NEAR(prediction.daly_interval, prediction.best_interval, 0.01 * prediction.best_interval);
  EXPECT_NEAR(prediction.useful_share + prediction.saving_share + prediction.lost_share, 1, 1e-12);
}

TEST(Faults, NoIntervalIsBetterThanTheBestOne) {
  FaultOptions options = large_run();
  const FaultPrediction best = predict_faults(options);
  for (const double factor : {0.25, 0.5, 0.9, 1.1, 2.0, 4.0}) {
    options.interval_seconds = best.best_interval * factor;
    EXPECT_LE(predict_faults(options).useful_share, best.useful_share) << factor;
  }
}

TEST(Faults, AgreeWithASimulation) {
  FaultOptions options = large_run();
  options.interval_seconds = 600;
  EXPECT_NEAR(predict_faults(options).useful_share, simulated_share(options, 3e8), 0.01);
}

TEST(Faults, AddUpOverHostsThatAreNotAlike) {
  cluster::Cluster cluster = cluster::read_cluster("a100-80");
  cluster.hosts = {{.count = 2, .devices = 8, .device = "A100-80", .failure_hours = 100},
                   {.count = 3, .devices = 8, .device = "A100-80", .failure_hours = 300},
                   {.count = 1, .devices = 8, .device = "A100-80"}};
  Prediction prediction;
  prediction.ranks = 48;
  prediction.checkpoint_seconds = 12;
  const FaultOptions options = fault_options(prediction, cluster);
  EXPECT_EQ(options.hosts, 6);
  // 2 / 100 + 3 / 300 failures in an hour; the last host does not fail.
  EXPECT_DOUBLE_EQ(predict_faults(options).failure_seconds, 3600 / 0.03);
  EXPECT_EQ(options.save_seconds, 12);
  EXPECT_EQ(options.load_seconds, 12);
}

TEST(Faults, AreUnknownIfNoDescriptionTellsThem) {
  Prediction prediction;
  prediction.ranks = 16;
  const FaultOptions options = fault_options(prediction, cluster::read_cluster("a100-80"));
  EXPECT_EQ(options.hosts, 2);
  EXPECT_EQ(options.host_failure_seconds, 0);
  EXPECT_EQ(options.save_seconds, FaultOptions{}.save_seconds);
}

TEST(Faults, RefuseTimesThatCannotBe) {
  FaultOptions options = large_run();
  options.save_seconds = -1;
  EXPECT_THROW((void)predict_faults(options), UsageError);
  EXPECT_THROW((void)predict_faults({}), UsageError);
}

}  // namespace
}  // namespace trireme::predict
