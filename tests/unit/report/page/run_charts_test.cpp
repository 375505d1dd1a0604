// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/page/run_charts.h>

#include "tests/unit/report/page/run_files.h"

#include <gmock/gmock.h>

#include <algorithm>

namespace trireme::report {
namespace {

using test::file_of;
using test::step_record;
using test::write_run;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using trireme::test::TemporaryFolder;

std::vector<std::string> titles_of(const std::vector<Chart>& charts) {
  std::vector<std::string> titles;
  for (const Chart& chart : charts) titles.push_back(chart.title);
  return titles;
}

const Chart& chart_called(const std::vector<Chart>& charts, const std::string& title) {
  const auto found = std::ranges::find(charts, title, &Chart::title);
  if (found == charts.end()) throw std::out_of_range("no chart " + title);
  return *found;
}

RunLog run_of(int ranks, std::int64_t steps) {
  const TemporaryFolder folder;
  write_run(folder.path(), ranks, steps);
  return read_run(folder.path());
}

TEST(Curves, AreThoseThatWereRecorded) {
  EXPECT_THAT(titles_of(curves_of(run_of(2, 100))),
              ElementsAre("Training loss", "Loss by epoch", "Accuracy", "Learning rate",
                          "Gradient norm", "Throughput of each rank", "Memory"));
  EXPECT_THAT(curves_of(RunLog{}), IsEmpty());
}

TEST(Curves, HaveALineForEachRankOrOneWhereAllAreEqual) {
  const auto charts = curves_of(run_of(3, 100));
  const Chart& loss = chart_called(charts, "Training loss");
  ASSERT_THAT(loss.series, SizeIs(3));
  EXPECT_EQ(loss.series[2].name, "rank 2");
  EXPECT_NE(loss.series[1].style, loss.series[2].style);
  EXPECT_THAT(loss.series[0].columns, SizeIs(100));
  EXPECT_EQ(loss.series[1].columns[9].mean, step_record(1, 10).loss);
  const Chart& rate = chart_called(charts, "Learning rate");
  ASSERT_THAT(rate.series, SizeIs(1));
  EXPECT_EQ(rate.note, "the same on all ranks");
}

TEST(Curves, ManyRanksShareALegend) {
  EXPECT_FALSE(chart_called(curves_of(run_of(1, 2)), "Training loss").has_legend);
  EXPECT_TRUE(chart_called(curves_of(run_of(6, 2)), "Training loss").has_legend);
  EXPECT_FALSE(chart_called(curves_of(run_of(7, 2)), "Training loss").has_legend);
}

TEST(Curves, ThroughputIsSamplesByWallClock) {
  const Chart throughput = chart_called(curves_of(run_of(1, 10)), "Throughput of each rank");
  EXPECT_NEAR(throughput.series[0].columns[0].mean, 32 / 0.040, 1e-9);
}

TEST(Curves, ThroughputIsThatOfAllRanksWhereItIsKnown) {
  RunLog run = run_of(2, 10);
  for (RankLog& rank : run.ranks) {
    for (StepRecord& step : rank.steps) step.all_samples = 64;
  }
  const Chart throughput = chart_called(curves_of(run), "Throughput");
  EXPECT_NEAR(throughput.series[0].columns[0].mean, 64 / 0.040, 1e-9);
}

TEST(Curves, ManyRanksAreAMeanBetweenExtremes) {
  const Chart loss = chart_called(curves_of(run_of(20, 10)), "Training loss");
  ASSERT_THAT(loss.series, SizeIs(1));
  EXPECT_EQ(loss.note, "mean of 20 ranks, between lowest and highest");
  const Column& first = loss.series[0].columns[0];
  EXPECT_EQ(first.low, step_record(0, 1).loss);
  EXPECT_EQ(first.high, step_record(19, 1).loss);
  EXPECT_NEAR(first.mean, (first.low + first.high) / 2, 1e-9);
}

TEST(Curves, ShowNothingTwice) {
  RunLog run = run_of(1, 10);
  for (StepRecord& step : run.ranks[0].steps) {
    step.all_samples = 32;
    step.scalars = {{"learning_rate/0", 0.1},     {"gradient_norm/all", 1.0},
                    {"samples_per_second", 10.0}, {"steps_per_second", 1.0},
                    {"memory/resident", 3e8},     {"memory/peak_resident", 4e8}};
  }
  const auto charts = curves_of(run);
  EXPECT_THAT(titles_of(charts),
              ElementsAre("Training loss", "Learning rate", "Gradient norm", "Throughput", "Memory",
                          "memory/peak_resident", "steps_per_second"));
  EXPECT_EQ(chart_called(charts, "memory/peak_resident").unit, Unit::kBytes);
  for (StepRecord& step : run.ranks[0].steps) {
    step.gradient_norm.reset();
    step.scalars["learning_rate/1"] = 0.2;
  }
  const auto others = titles_of(curves_of(run));
  EXPECT_THAT(others,
              testing::IsSupersetOf({"gradient_norm/all", "learning_rate/0", "learning_rate/1"}));
}

TEST(Curves, ShowWhatCallbacksLogged) {
  const TemporaryFolder folder;
  write_run(folder.path(), 1, 2);
  JsonlFile file(folder / file_of(0));
  StepRecord step = step_record(0, 3);
  step.scalars["entropy"] = 0.7;
  file.write(step);
  file.write(EvaluationRecord{
      .moment = {.epoch = 1, .global_step = 3}, .loss = 1, .scalars = {{"f1", 0.5}}});
  const auto charts = curves_of(read_run(folder.path()));
  EXPECT_EQ(chart_called(charts, "entropy").series[0].columns[0].mean, 0.7);
  EXPECT_EQ(chart_called(charts, "f1").series[0].columns[0].mean, 0.5);
}

TEST(Curves, ShowTheElementsOfANameInOneChart) {
  RunLog run = run_of(2, 10);
  for (RankLog& rank : run.ranks) {
    for (StepRecord& step : rank.steps) {
      step.scalars = {{"taken/0", 3.0},     {"taken/1", 5.0}, {"taken/10", 7.0}, {"other/0", 1.0},
                      {"own/0", rank.rank}, {"own/1", 2.0},   {"taken/x", 4.0}};
      for (int i = 0; i < 20; ++i) step.scalars["many/" + std::to_string(i)] = i;
    }
  }
  const auto charts = curves_of(run);
  const Chart taken = chart_called(charts, "taken");
  ASSERT_THAT(taken.series, SizeIs(3));
  EXPECT_EQ(taken.series[2].name, "10");
  EXPECT_EQ(taken.series[2].columns[0].mean, 7);
  const Chart many = chart_called(charts, "many");
  ASSERT_THAT(many.series, SizeIs(1));
  EXPECT_EQ(many.note, "mean of 20, between lowest and highest");
  EXPECT_EQ(many.series[0].columns[0].high, 19);
  // One element alone, elements that ranks have differently, and what is no number stay apart.
  EXPECT_THAT(titles_of(charts), testing::IsSupersetOf({"other/0", "own/0", "own/1", "taken/x"}));
}

TEST(Curves, ShowTokensWhereTheRunSaysHowManyASampleHas) {
  RunLog run = run_of(2, 10);
  for (RankLog& rank : run.ranks) rank.runs.back().tokens_per_sample = 512;
  const Chart each = chart_called(curves_of(run), "Tokens of each rank");
  EXPECT_EQ(each.unit, Unit::kTokensPerSecond);
  EXPECT_NEAR(each.series[0].columns[0].mean, 512 * 32 / 0.040, 1e-6);
  for (RankLog& rank : run.ranks) {
    for (StepRecord& step : rank.steps) step.all_samples = 64;
  }
  const Chart all = chart_called(curves_of(run), "Tokens");
  EXPECT_NEAR(all.series[0].columns[0].mean, 512 * 64 / 0.040, 1e-6);
}

TEST(Curves, ShowHowEvenlyExpertsAreUsed) {
  RunLog run = run_of(2, 10);
  for (RankLog& rank : run.ranks) {
    for (StepRecord& step : rank.steps) {
      step.scalars = {{"a.tokens_taken/0", 6.0},   {"a.tokens_taken/1", 2.0},
                      {"a.tokens_dropped/0", 2.0}, {"a.tokens_dropped/1", 0.0},
                      {"b.tokens_taken/0", 4.0},   {"b.tokens_taken/1", 4.0}};
    }
  }
  const auto charts = curves_of(run);
  const Chart& busiest = chart_called(charts, "Busiest expert");
  ASSERT_THAT(busiest.series, SizeIs(2));
  EXPECT_EQ(busiest.series[0].name, "a");
  EXPECT_EQ(busiest.series[0].columns[0].mean, 1.5);
  EXPECT_EQ(busiest.series[1].columns[0].mean, 1);
  const Chart& dropped = chart_called(charts, "Dropped choices");
  ASSERT_THAT(dropped.series, SizeIs(1));
  EXPECT_EQ(dropped.series[0].columns[0].mean, 0.2);
  EXPECT_THAT(titles_of(charts), testing::IsSupersetOf({"a.tokens_taken", "b.tokens_taken"}));
}

TEST(Curves, MarkFailuresAndWhereARunWentOn) {
  const TemporaryFolder folder;
  write_run(folder.path(), 2, 10);
  for (int rank = 0; rank < 2; ++rank) {
    JsonlFile file(folder / file_of(rank));
    file.write(FailureRecord{.moment = {.epoch = 1, .global_step = 10}, .message = "x"});
    file.write(test::run_record(rank, 2, 5));
    file.write(step_record(rank, 6));
  }
  const auto charts = curves_of(read_run(folder.path()));
  const auto& events = charts.front().events;
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[0].name, "went on at step 5");
  EXPECT_EQ(events[1].name, "failure at step 10");
  EXPECT_TRUE(events[1].is_failure);
}

TEST(TimeCharts, SplitAStepByPhases) {
  const auto charts = time_charts_of(run_of(2, 10));
  ASSERT_THAT(charts, SizeIs(2));
  std::vector<std::string> names;
  double sum = 0;
  for (const Series& series : charts[1].series) {
    names.push_back(series.name);
    sum += series.columns[0].mean;
  }
  EXPECT_THAT(names, ElementsAre("data", "forward", "backward", "communication", "optimizer",
                                 "callbacks", "between"));
  EXPECT_NEAR(sum, 0.041, 1e-12);
  EXPECT_NEAR(charts[0].common_top, 0.041, 1e-12);
}

TEST(TimeCharts, OfManyRanksShowTheSlowestAndTheFastest) {
  const auto charts = time_charts_of(run_of(20, 5));
  ASSERT_THAT(charts, SizeIs(8));
  EXPECT_EQ(charts.front().title, "Rank 0");
  EXPECT_EQ(charts.back().title, "Rank 19");
}

}  // namespace
}  // namespace trireme::report
