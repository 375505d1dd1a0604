// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/page/summary.h>

#include <trireme/base/text.h>
#include <trireme/report/number.h>
#include <trireme/report/page/axis.h>
#include <trireme/report/page/markup.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

namespace trireme::report {
namespace {

std::string tile(const std::string& name, const std::string& value, const std::string& below = {},
                 const char* style = "") {
  return "<div class=\"tile\"><span>" + escaped(name) + "</span><b class=\"" + style + "\">" +
         escaped(value) + "</b><span>" + escaped(below) + "</span></div>\n";
}

// Returns the samples of all ranks per second of the steps of the run that began last; 0 if it has
// none. An earlier run may have had other ranks and samples.
double samples_per_second_of_last_run(const RunLog& run) {
  const bool has_all = knows_all_samples(run);
  double longest = 0;
  double samples = 0;
  for (const RankLog& rank : run.ranks) {
    if (rank.rank >= run.world_size || rank.runs.empty() || rank.steps.empty()) continue;
    const std::int64_t last = rank.steps.back().moment.global_step;
    std::int64_t before = 0;  // steps of the last run that has any
    for (const RunRecord& start : rank.runs) {
      if (start.moment.global_step < last) before = start.moment.global_step;
    }
    double seconds = 0;
    double own = 0;
    for (const StepRecord& step : rank.steps) {
      if (step.moment.global_step <= before) continue;
      seconds += step.seconds.total;
      own += static_cast<double>(has_all ? *step.all_samples : step.samples);
    }
    longest = std::max(longest, seconds);
    samples = has_all ? std::max(samples, own) : samples + own;
  }
  return longest > 0 ? samples / longest : 0;
}

void add_evaluations(Summary& summary, const RankLog& rank) {
  for (const EvaluationRecord& evaluation : rank.evaluations) {
    if (!summary.last_evaluation ||
        evaluation.moment.global_step > summary.last_evaluation->moment.global_step) {
      summary.last_evaluation = evaluation;
    }
    if (evaluation.accuracy) {
      summary.best_accuracy = std::max(summary.best_accuracy.value_or(0), *evaluation.accuracy);
    }
    if (std::isfinite(evaluation.loss)) {
      summary.best_loss = std::min(
          summary.best_loss.value_or(std::numeric_limits<double>::infinity()), evaluation.loss);
    }
  }
}

std::string below_utilization(const Peak& peak) {
  return "of " + flops_text(peak.flops) + (peak.dtype.empty() ? "" : " in " + peak.dtype) +
         (peak.cluster.empty() ? "" : ", " + peak.cluster);
}

}  // namespace

std::string bytes_text(double bytes) {
  const Scale scale = scale_of(Unit::kBytes, bytes);
  const double value = bytes * scale.factor;
  return fixed(value, value < 10 ? 2 : (value < 100 ? 1 : 0)) + " " + scale.name;
}

RunStatus status_of(const RunLog& run) {
  std::size_t ended = 0;
  bool is_stopped = false;
  for (const RankLog& rank : run.ranks) {
    if (rank.has_failed) return {"Failed", "see below", "bad"};
    if (!rank.end) continue;
    ++ended;
    is_stopped = is_stopped || rank.end->is_stopped;
  }
  if (ended < run.ranks.size()) return {"No end", "still running, or killed", "warn"};
  if (is_stopped) return {"Stopped", "before its last epoch", "good"};
  return {"Finished", "", "good"};
}

Summary summary_of(const RunLog& run) {
  Summary summary;
  const bool has_all = knows_all_samples(run);
  std::int64_t last_mean = -1;
  for (const RankLog& rank : run.ranks) {
    const double total = total_of(rank);
    summary.longest = std::max(summary.longest, total);
    summary.total += total;
    summary.waited +=
        sum_of(rank, [](const PhaseSeconds& seconds) { return seconds.communication; });
    summary.starved += sum_of(rank, [](const PhaseSeconds& seconds) { return seconds.data; });
    for (const StepRecord& step : rank.steps) {
      // The current memory may have been measured after the peak, and may then be larger.
      const std::int64_t peak =
          std::max(step.peak_memory_bytes.value_or(0), step.memory_bytes.value_or(0));
      summary.peak_bytes = std::max(summary.peak_bytes, static_cast<double>(peak));
      summary.last_step = std::max(summary.last_step, step.moment.global_step);
      summary.last_epoch = std::max(summary.last_epoch, step.moment.epoch);
    }
    std::int64_t skipped = 0;
    double steps = 0;
    double samples = 0;
    for (const StepRecord& step : rank.steps) {
      skipped += step.skipped;
      steps += static_cast<double>(step.steps);
      samples += static_cast<double>(has_all ? *step.all_samples : step.samples);
    }
    const double batch = steps > 0 ? samples / steps : 0;
    // If records know the samples of all ranks, every rank reports the same number; otherwise ranks
    // add up.
    summary.samples = has_all ? std::max(summary.samples, samples) : summary.samples + samples;
    summary.batch = has_all ? std::max(summary.batch, batch) : summary.batch + batch;
    summary.skipped = std::max(summary.skipped, skipped);
    for (const RunRecord& start : rank.runs)
      summary.epochs = std::max(summary.epochs, start.epochs);
    for (const EpochRecord& epoch : rank.epochs) {
      // All ranks record the same mean loss, so that only the first record of each epoch counts.
      if (epoch.moment.global_step <= last_mean) continue;
      last_mean = epoch.moment.global_step;
      if (std::isfinite(epoch.loss)) summary.loss = epoch.loss;
    }
    add_evaluations(summary, rank);
  }
  const auto tokens = tokens_per_sample_of(run);
  if (tokens && summary.longest > 0) {
    summary.tokens_per_second = *tokens * summary.samples / summary.longest;
  }
  const auto flops = flops_per_sample_of(run);
  const double last_rate = samples_per_second_of_last_run(run);
  if (flops && last_rate > 0) {
    summary.flops_per_second = *flops * last_rate;
    if (run.peak) summary.utilization = *summary.flops_per_second / run.peak->flops;
  }
  summary.balance = last_balance_of(run);
  return summary;
}

std::string flops_text(double per_second) {
  constexpr std::string_view kPrefixes = "kMGTPE";
  std::size_t prefix = 0;
  double value = per_second / 1e3;
  for (; value >= 999.5 && prefix + 1 < kPrefixes.size(); ++prefix) value /= 1e3;
  return significant(value, 3) + " " + kPrefixes[prefix] + "FLOP/s";
}

std::string value_text(const std::string& name, const std::string& value) {
  const auto bytes = parse_number<double>(value);
  return name.ends_with("_bytes") && bytes ? bytes_text(*bytes) : value;
}

std::string percent(double share) { return fixed(100 * share, 1) + " %"; }

double sum_of(const RankLog& rank, double (*seconds)(const PhaseSeconds&)) {
  double sum = 0;
  for (const StepRecord& step : rank.steps) sum += seconds(step.seconds);
  return sum;
}

double total_of(const RankLog& rank) {
  return sum_of(rank, [](const PhaseSeconds& seconds) { return seconds.total; });
}

std::string tiles_of(const RunLog& run) {
  const Summary all = summary_of(run);
  const RunStatus status = status_of(run);
  std::string html =
      "<div class=\"tiles\">\n" + tile("Status", status.text, status.below, status.style);
  html += tile("Ranks", std::to_string(run.world_size),
               static_cast<std::size_t>(run.world_size) == run.ranks.size()
                   ? ""
                   : std::to_string(run.ranks.size()) + " with a file");
  html += tile("Steps", with_thousands(all.last_step),
               "epoch " + std::to_string(all.last_epoch) +
                   (all.epochs > 0 ? " of " + std::to_string(all.epochs) : ""));
  if (all.batch > 0) html += tile("Batch", rounded(all.batch, 1), "samples a step, all ranks");
  html += tile("Time in steps", clock_time(all.longest), "of the slowest rank");
  if (all.loss) html += tile("Training loss", significant(*all.loss, 4), "last epoch");
  if (all.last_evaluation && all.last_evaluation->accuracy) {
    html += tile("Accuracy", fixed(100 * *all.last_evaluation->accuracy, 2) + " %",
                 "best " + fixed(100 * all.best_accuracy.value_or(0), 2) + " %");
  }
  if (all.last_evaluation) {
    html += tile("Evaluation loss", significant(all.last_evaluation->loss, 4),
                 all.best_loss ? "best " + significant(*all.best_loss, 4) : "");
  }
  if (all.longest > 0) {
    html += tile("Throughput", rate(all.samples / all.longest), "samples/s, all ranks");
    if (all.tokens_per_second) {
      html += tile("Tokens", rate(*all.tokens_per_second), "tokens/s, all ranks, with padding");
    }
    if (all.flops_per_second) {
      html += tile("Model FLOP/s", flops_text(*all.flops_per_second), "all ranks");
    }
    if (all.utilization) {
      html += tile("Utilization", percent(*all.utilization), below_utilization(*run.peak));
    }
    html += tile("Communication", percent(all.waited / all.total), "of the time, all ranks");
    html += tile("Waiting for data", percent(all.starved / all.total), "of the time, all ranks");
  }
  if (all.peak_bytes > 0) html += tile("Memory", bytes_text(all.peak_bytes), "peak of a rank");
  if (all.balance) {
    html += tile("Busiest expert", fixed(all.balance->busiest, 2) + " x",
                 "an even share, last epoch" +
                     (all.balance->dropped ? "; " + percent(*all.balance->dropped) + " dropped"
                                           : std::string()));
  }
  if (all.skipped > 0)
    html += tile("Skipped steps", with_thousands(all.skipped), "gradients overflowed");
  return html + "</div>\n";
}

}  // namespace trireme::report
