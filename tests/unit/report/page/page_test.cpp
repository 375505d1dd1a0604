// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/page/page.h>

#include "tests/unit/report/page/run_files.h"
#include <trireme/base/error.h>
#include <trireme/report/page/summary.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <regex>

namespace trireme::report {
namespace {

using test::file_of;
using test::step_record;
using test::write_run;
using testing::HasSubstr;
using testing::Not;
using trireme::test::read_file;
using trireme::test::TemporaryFolder;

RunLog run_of(int ranks, std::int64_t steps) {
  const TemporaryFolder folder;
  write_run(folder.path(), ranks, steps);
  return read_run(folder.path());
}

RunLog with_last(const FailureRecord* failure, const EndRecord* end) {
  RunLog run = run_of(2, 10);
  run.ranks[1].end = end != nullptr ? std::optional(*end) : std::nullopt;
  if (failure != nullptr) {
    run.ranks[1].failures.push_back(*failure);
    run.ranks[1].has_failed = true;
  }
  return run;
}

TEST(Page, IsWholeAndNeedsNothingBesideItself) {
  const std::string html = to_html(run_of(2, 100));
  EXPECT_TRUE(html.starts_with("<!DOCTYPE html>\n"));
  EXPECT_TRUE(html.ends_with("</html>\n"));
  for (const char* outside : {"src=", "href=", "@import", "url(", "fetch(", "http:", "https:"}) {
    if (std::string_view(outside) == "http:") continue;  // the name of SVG, which nobody fetches
    EXPECT_THAT(html, Not(HasSubstr(outside)));
  }
  const std::regex address("http://(?!www\\.w3\\.org/2000/svg)");
  EXPECT_FALSE(std::regex_search(html, address));
}

TEST(Page, ShowsHowTheRunEnded) {
  EXPECT_THAT(to_html(run_of(2, 10)), HasSubstr(">Finished</b>"));
  EXPECT_THAT(to_html(with_last(nullptr, nullptr)),
              HasSubstr(">No end</b><span>still running, or killed"));
  const EndRecord stopped = {.is_stopped = true, .seconds = 1};
  EXPECT_THAT(to_html(with_last(nullptr, &stopped)), HasSubstr(">Stopped</b>"));
  const FailureRecord failure = {.moment = {.time = 1.7e9, .epoch = 1, .global_step = 10},
                                 .message = "loss is nan\n  hint: lower the rate"};
  const std::string failed = to_html(with_last(&failure, nullptr));
  EXPECT_THAT(failed, HasSubstr(">Failed</b>"));
  EXPECT_THAT(failed,
              HasSubstr("Rank 1 failed</b> <small>epoch 1, step 10, 2023-11-14 22:13:20 UTC"));
  EXPECT_THAT(failed, HasSubstr("<pre>loss is nan\n  hint: lower the rate</pre>"));
}

TEST(Page, RanksThatFailedAlikeShareACard) {
  RunLog run = run_of(3, 10);
  for (RankLog& rank : run.ranks) {
    rank.failures = {{.moment = {.time = 1, .epoch = 1, .global_step = 10},
                      .message = rank.rank < 2 ? "same" : "other"}};
  }
  const std::string html = to_html(run);
  EXPECT_THAT(html, HasSubstr("Ranks 0, 1 failed</b>"));
  EXPECT_THAT(html, HasSubstr("Rank 2 failed</b>"));
  EXPECT_THAT(html, HasSubstr("<pre>same</pre>"));
}

TEST(Page, OfManyFailuresShowsTheFirst) {
  RunLog run = run_of(1, 10);
  for (int index = 0; index < 12; ++index) {
    run.ranks[0].failures.push_back(
        {.moment = {.time = 12.0 - index}, .message = "no. " + std::to_string(index)});
  }
  const std::string html = to_html(run);
  EXPECT_THAT(html, HasSubstr("<pre>no. 11</pre>"));
  EXPECT_THAT(html, Not(HasSubstr("<pre>no. 1</pre>")));
  EXPECT_THAT(html, HasSubstr("and 2 more failures"));
}

TEST(Page, SummarisesAllRanks) {
  const std::string html = to_html(run_of(2, 100));
  EXPECT_THAT(html, HasSubstr("<span>Ranks</span><b class=\"\">2</b>"));
  EXPECT_THAT(html, HasSubstr("<span>Steps</span><b class=\"\">100</b><span>epoch 2 of 2</span>"));
  EXPECT_THAT(html, HasSubstr("80.00 %</b><span>best 80.00 %"));
  // Two ranks, 100 steps of 32 samples, 4.1 s on the slower.
  EXPECT_THAT(html, HasSubstr("1,561</b><span>samples/s, all ranks"));
  EXPECT_THAT(html, HasSubstr("11.1 %</b><span>of the time, all ranks"));
  EXPECT_THAT(html, HasSubstr("300 MiB</b><span>peak of a rank"));
}

TEST(Page, ACheckpointOfSeveralRanksIsOne) {
  RunLog run = run_of(2, 10);
  for (RankLog& rank : run.ranks) {
    for (const std::int64_t step : {5, 10}) {
      rank.checkpoints.push_back({.moment = {.epoch = 1, .global_step = step},
                                  .path = "checkpoints/" + std::to_string(step),
                                  .seconds = 0.25 + rank.rank});
    }
  }
  run.ranks[0].checkpoints.push_back(
      {.moment = {.epoch = 1, .global_step = 7}, .path = "checkpoints/7", .seconds = 1});
  const std::string html = to_html(run);
  EXPECT_THAT(html, HasSubstr("<b>Checkpoints</b> <small>3, newest first"));
  EXPECT_THAT(html, HasSubstr("<td class=\"n\">10</td><td>all ranks</td><td class=\"n\">1.25 s"
                              "</td><td>checkpoints/10</td>"));
  EXPECT_THAT(html, HasSubstr("<td class=\"n\">7</td><td>rank 0</td>"));
}

TEST(Page, BytesAreReadInLargeUnits) {
  RunLog run = run_of(1, 2);
  run.ranks[0].runs[0].environment["memory_bytes"] = "25769803776";
  run.ranks[0].runs[0].environment["other_bytes"] = "many";
  const std::string html = to_html(run);
  EXPECT_THAT(html, HasSubstr("<th scope=\"row\">memory_bytes</th><td>24.0 GiB</td>"));
  EXPECT_THAT(html, HasSubstr("<td>many</td>"));
}

// The peak is what the system counted, and never below what was seen.
TEST(Page, ThePeakOfMemoryIsNoLessThanWhatWasUsed) {
  RunLog run = run_of(1, 3);
  run.ranks[0].steps[0].peak_memory_bytes = std::int64_t{700} << 20;
  EXPECT_THAT(to_html(run), HasSubstr("700 MiB</b><span>peak of a rank"));
  run.ranks[0].steps[0].peak_memory_bytes = std::int64_t{100} << 20;
  EXPECT_THAT(to_html(run), HasSubstr("300 MiB</b><span>peak of a rank"));
}

TEST(Page, ShowsTheBatchOfAllRanks) {
  EXPECT_THAT(to_html(run_of(3, 10)),
              HasSubstr("<span>Batch</span><b class=\"\">96</b><span>samples a step, all ranks"));
}

// Ranks that work on the same samples count them once.
TEST(Page, DoesNotAddUpWhatAllRanksKnow) {
  RunLog run = run_of(2, 100);
  for (RankLog& rank : run.ranks) {
    for (StepRecord& step : rank.steps) step.all_samples = 32;
  }
  const std::string html = to_html(run);
  EXPECT_THAT(html, HasSubstr("<span>Batch</span><b class=\"\">32</b>"));
  EXPECT_THAT(html, HasSubstr("780</b><span>samples/s, all ranks"));
}

TEST(Page, ComparesRuns) {
  std::vector<RunLog> runs = {run_of(1, 60), run_of(2, 100)};
  runs[0].name = "plain<";
  runs[1].name = "zero";
  runs[1].ranks[0].runs[0].settings = {{"plan.zero_level", "3"}};
  runs[0].ranks[0].runs[0].environment["memory_bytes"] = "25769803776";
  runs[1].ranks[0].runs[0].environment["memory_bytes"] = "8589934592";
  const std::string html = to_html(runs);
  EXPECT_THAT(html, HasSubstr("<h1>Comparison of 2 runs</h1>"));
  EXPECT_THAT(html, HasSubstr("<th scope=\"row\">plain&lt;</th><td class=\"n\">Finished</td>"
                              "<td class=\"n\">1</td><td class=\"n\">60</td>"));
  EXPECT_THAT(html, HasSubstr("<th scope=\"row\">plan.zero_level</th><td>0</td><td>3</td>"));
  EXPECT_THAT(html, Not(HasSubstr("<th scope=\"row\">trireme</th>")));  // the same in both
  EXPECT_THAT(html, HasSubstr("class=\"line c1\" data-series=\"zero\""));
  EXPECT_THAT(html,
              HasSubstr("<th scope=\"row\">memory_bytes</th><td>24.0 GiB</td><td>8.00 GiB</td>"));
  // What the script makes a slider of: the label, and the lines that it draws anew.
  EXPECT_THAT(html, HasSubstr("<label class=\"smoothing soft\" hidden>Smoothing <input"));
  EXPECT_THAT(html, HasSubstr("document.querySelector(\".smoothing\")"));
  EXPECT_THAT(html, Not(HasSubstr("plain<")));
}

TEST(Page, ShowsTokensAndTheBusiestExpert) {
  RunLog run = run_of(2, 100);
  EXPECT_THAT(to_html(run), Not(HasSubstr("tokens/s")));
  for (RankLog& rank : run.ranks) {
    rank.runs.back().tokens_per_sample = 100;
    for (StepRecord& step : rank.steps) {
      step.scalars = {{"mixture.tokens_taken/0", 3.0},
                      {"mixture.tokens_taken/1", 1.0},
                      {"mixture.tokens_dropped/0", 1.0}};
    }
  }
  const std::string html = to_html(run);
  EXPECT_THAT(html, HasSubstr("156,098</b><span>tokens/s, all ranks, with padding"));
  EXPECT_THAT(html, HasSubstr("<span>Busiest expert</span><b class=\"\">1.50 x</b>"
                              "<span>an even share, last epoch; 20.0 % dropped</span>"));
}

// Two ranks take 6,400 samples in 4.1 s, 2 GFLOP each: 3.12 TFLOP/s.
TEST(Page, ShowsFlopsAndTheirShareOfThePeak) {
  RunLog run = run_of(2, 100);
  EXPECT_THAT(to_html(run), Not(HasSubstr("FLOP")));
  run.peak = Peak{.flops = 12.5e12, .dtype = "bfloat16", .cluster = "<lab>"};
  EXPECT_THAT(to_html(run), Not(HasSubstr("Utilization")));
  run.ranks[1].runs.back().flops_per_sample = 2e9;
  EXPECT_THAT(
      to_html(run),
      HasSubstr("<span>Model FLOP/s</span><b class=\"\">3.12 TFLOP/s</b><span>all ranks</span>"));
  EXPECT_THAT(to_html(run),
              HasSubstr("<span>Utilization</span><b class=\"\">25.0 %</b><span>of 12.5 TFLOP/s in "
                        "bfloat16, &lt;lab&gt;</span>"));
  RunLog unknown = run;
  unknown.peak.reset();
  EXPECT_THAT(to_html(unknown), HasSubstr("3.12 TFLOP/s"));
  EXPECT_THAT(to_html(unknown), Not(HasSubstr("Utilization")));
  const std::string compared = to_html(std::vector<RunLog>{run, unknown, run_of(1, 5)});
  EXPECT_THAT(compared, HasSubstr("class=\"n\">utilization</th>"));
  EXPECT_THAT(compared, HasSubstr("<td class=\"n\">3.12 TFLOP/s</td><td class=\"n\">25.0 %</td>"));
  EXPECT_THAT(compared, HasSubstr("<td class=\"n\">3.12 TFLOP/s</td><td class=\"n\"></td>"));
}

// The first half of the steps was ten times as slow, and another rank took part.
TEST(Page, ShowsTheFlopsOfTheRunAfterAResume) {
  RunLog run = run_of(3, 100);
  run.world_size = 2;
  run.peak = Peak{.flops = 12.5e12, .dtype = "bfloat16", .cluster = "lab"};
  run.ranks[2].runs.back().flops_per_sample = 5e9;
  for (RankLog& rank : run.ranks) {
    for (StepRecord& step : rank.steps) {
      if (step.moment.global_step <= 50) step.seconds.total *= 10;
    }
    if (rank.rank == 2) {
      rank.steps.resize(50);
      continue;
    }
    rank.runs.push_back(rank.runs.back());
    rank.runs.back().moment.global_step = 50;
    rank.runs.back().flops_per_sample = 2e9;
  }
  EXPECT_THAT(to_html(run), HasSubstr("3.12 TFLOP/s"));
  EXPECT_THAT(to_html(run), HasSubstr("<span>Utilization</span><b class=\"\">25.0 %</b>"));
}

TEST(Page, WritesFlopsInTheLargestUnit) {
  EXPECT_EQ(flops_text(0), "0 kFLOP/s");
  EXPECT_EQ(flops_text(999.4e3), "999 kFLOP/s");
  EXPECT_EQ(flops_text(999.6e3), "1 MFLOP/s");
  EXPECT_EQ(flops_text(1.234e15), "1.23 PFLOP/s");
  EXPECT_EQ(flops_text(5e21), "5e+03 EFLOP/s");
}

// Both runs have the same batches, and the second a loss that is higher by 0.25.
TEST(Page, ComparesLossesTokensAndExpertsWithTheFirstRun) {
  std::vector<RunLog> runs = {run_of(1, 20), run_of(1, 40)};
  runs[0].name = "<reference>";
  runs[1].name = "other";
  for (StepRecord& step : runs[1].ranks[0].steps) {
    step.loss += 0.25;
    step.scalars = {{"mixture.tokens_taken/0", 3.0}, {"mixture.tokens_taken/1", 1.0}};
  }
  runs[1].ranks[0].runs.back().tokens_per_sample = 10;
  const std::string html = to_html(runs);
  const auto figure = [&](const std::string& title) {
    const std::size_t begin = html.find("<figcaption>" + title);
    if (begin == std::string::npos) return "no chart " + title;
    return html.substr(begin, html.find("</figure>", begin) - begin);
  };
  const std::string difference = figure("Difference of the training loss");
  EXPECT_THAT(difference, HasSubstr("minus that of &lt;reference&gt;, at the same steps"));
  EXPECT_THAT(difference, HasSubstr("0.25"));
  EXPECT_THAT(difference, HasSubstr("data-series=\"other\""));
  EXPECT_THAT(difference, Not(HasSubstr("data-series=\"&lt;reference")));
  EXPECT_THAT(figure("Tokens"), HasSubstr("data-series=\"other\""));
  EXPECT_THAT(figure("Busiest expert"), HasSubstr("data-series=\"other\""));
  EXPECT_THAT(html, HasSubstr("<td class=\"n\">8,000</td><td class=\"n\"></td><td class=\"n\"></td>"
                              "<td class=\"n\">1.50 x</td>"));
  // Runs without these have no such charts.
  const std::string plain = to_html(std::vector<RunLog>{run_of(1, 5), run_of(1, 5)});
  EXPECT_THAT(plain, Not(HasSubstr("<figcaption>Busiest expert")));
  EXPECT_THAT(plain, Not(HasSubstr("<figcaption>Tokens")));
}

TEST(Page, EverythingFromTheRunStaysText) {
  RunLog run = run_of(1, 60);
  const std::string hostile = "</pre></script><script>alert(1)</script>\"'&\xff";
  run.name = hostile;
  run.config = hostile;
  run.notes = {hostile};
  run.ranks[0].failures = {{.moment = {}, .message = hostile}};
  run.ranks[0].checkpoints = {
      {.moment = {.epoch = 1, .global_step = 5}, .path = hostile, .seconds = 1}};
  run.ranks[0].runs[0].settings = {{hostile, hostile}};
  run.ranks[0].runs[0].environment = {{hostile, hostile}};
  run.ranks[0].steps[0].scalars = {{hostile, 1.0}};
  const std::string html = to_html(run);
  EXPECT_THAT(html, Not(HasSubstr("alert(1)</script>")));
  EXPECT_THAT(html, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;alert(1)"));
}

TEST(Page, ShowsWhatIsMissing) {
  RunLog run = run_of(2, 10);
  run.world_size = 3;
  run.notes = {"of 3 ranks, rank 2 left no file"};
  const std::string html = to_html(run);
  EXPECT_THAT(html, HasSubstr("<li>of 3 ranks, rank 2 left no file</li>"));
  EXPECT_THAT(html, HasSubstr("<b class=\"\">3</b><span>2 with a file</span>"));
  EXPECT_THAT(to_html(run_of(2, 10)), Not(HasSubstr("Not complete")));
}

TEST(Page, SettingsAndEnvironmentNameTheRanksWhereTheyDiffer) {
  const std::string html = to_html(run_of(4, 2));
  EXPECT_THAT(
      html, HasSubstr("<th scope=\"row\">host</th><td>ranks 0, 1: node0\nranks 2, 3: node1</td>"));
  EXPECT_THAT(html, HasSubstr("<th scope=\"row\">trireme</th><td>0.1.0</td>"));
  EXPECT_THAT(html, HasSubstr("<th scope=\"row\">plan.zero_level</th><td>0</td>"));
}

TEST(Page, OfARunWithoutStepsSaysSo) {
  const TemporaryFolder folder;
  JsonlFile file(folder / file_of(0));
  file.write(test::run_record(0, 1));
  EXPECT_THAT(to_html(read_run(folder.path())), HasSubstr("No step has been recorded."));
}

TEST(Page, StaysSmallHoweverLongTheRunWas) {
  RunLog run = run_of(16, 1);
  for (RankLog& rank : run.ranks) {
    rank.steps.clear();
    for (std::int64_t step = 1; step <= 20'000; ++step) {
      StepRecord record = step_record(rank.rank, step);
      record.loss += 0.3 * std::sin(static_cast<double>(step * (rank.rank + 1)));
      record.seconds.total *= 1 + 0.1 * std::sin(static_cast<double>(step));
      rank.steps.push_back(record);
    }
  }
  EXPECT_LT(to_html(run).size(), 1U << 20U);
}

TEST(Page, OfTheSameRunIsTheSame) {
  const RunLog run = run_of(3, 70);
  EXPECT_EQ(to_html(run), to_html(run));
}

TEST(Page, IsWrittenWhole) {
  const TemporaryFolder folder;
  const RunLog run = run_of(1, 5);
  write_page(run, folder / "report.html");
  EXPECT_EQ(read_file(folder / "report.html"), to_html(run));
  EXPECT_THROW(write_page(run, folder / "none" / "report.html"), CheckpointError);
}

}  // namespace
}  // namespace trireme::report
