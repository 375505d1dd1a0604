// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/cluster/units.h>
#include <trireme/report/number.h>
#include <trireme/search/search.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iomanip>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::search {
namespace {

using report::bytes_as_text;

std::string duration(double seconds) {
  constexpr int kDigits = 3;
  if (seconds < cluster::kMilli) return report::rounded(seconds / cluster::kMicro, kDigits) + " us";
  if (seconds < 1) return report::rounded(seconds / cluster::kMilli, kDigits) + " ms";
  return report::rounded(seconds, kDigits) + " s";
}

std::string percent(double share) { return report::fixed(share * 100, 1) + " %"; }

struct NamedPart {
  std::string_view name;
  double predict::StepParts::* seconds;
  std::string_view meaning;
};

constexpr std::array<NamedPart, 6> kParts = {{
    {"compute", &predict::StepParts::compute, "operators of forward and backward"},
    {"recomputation", &predict::StepParts::recomputation, "operators that backward repeats"},
    {"layouts", &predict::StepParts::layouts, "collectives along tensor, context and expert"},
    {"exchange along data", &predict::StepParts::data_exchange,
     "gradients and parameters, as far as computation does not hide it"},
    {"pipeline", &predict::StepParts::pipeline, "waiting for other stages, and messages"},
    {"optimizer", &predict::StepParts::optimizer, "the optimizer's step"},
}};

struct NamedMemory {
  std::string_view name;
  double predict::RankMemoryPrediction::* bytes;
};

constexpr std::array<NamedMemory, 7> kMemory = {{
    {"parameters", &predict::RankMemoryPrediction::parameters},
    {"gradients", &predict::RankMemoryPrediction::gradients},
    {"optimizer", &predict::RankMemoryPrediction::optimizer},
    {"buckets", &predict::RankMemoryPrediction::buckets},
    {"activations", &predict::RankMemoryPrediction::activations},
    {"temporary", &predict::RankMemoryPrediction::temporary},
    {"inputs", &predict::RankMemoryPrediction::inputs},
}};

std::string mesh_text(const Plan& plan) {
  std::string text;
  for (const MeshAxis& axis : plan.mesh) {
    text += join_message(text.empty() ? "" : " ", axis.name, "=", axis.size);
  }
  return text;
}

std::string schedule_text(const Plan& plan) {
  if (stage_ranks(plan) == 1) return "-";
  return plan.schedule == "interleaved" ? join_message(plan.schedule, " x", plan.chunks)
                                        : plan.schedule;
}

// One line of the table of plans.
struct Row {
  std::vector<std::string> cells;
};

Row row_of(const Candidate& candidate, double fastest) {
  const Plan& plan = candidate.plan;
  const double seconds = candidate.prediction.step_seconds;
  return {{mesh_text(plan), join_message(plan.zero_level), schedule_text(plan),
           join_message(plan.micro_batches), join_message(candidate.rows),
           candidate.recomputed == 0 ? "-" : join_message(candidate.recomputed, " modules"),
           duration(seconds), report::fixed(seconds / fastest, 2),
           bytes_as_text(candidate.prediction.peak_memory())}};
}

std::string table_of(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths(rows.front().cells.size(), 0);
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], row.cells[i].size());
    }
  }
  TextWriter text;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < widths.size(); ++i) {
      line += (i == 0 ? "  " : "   ") + row.cells[i] +
              std::string(widths[i] - row.cells[i].size(), ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text << line << '\n';
  }
  return text.str();
}

const predict::RankMemoryPrediction* largest_rank(const predict::Prediction& prediction) {
  const auto found =
      std::ranges::max_element(prediction.memory, {}, &predict::RankMemoryPrediction::total);
  return found == prediction.memory.end() ? nullptr : &*found;
}

void write_memory(TextWriter& text, const predict::Prediction& prediction) {
  const predict::RankMemoryPrediction* const largest = largest_rank(prediction);
  if (largest == nullptr) return;
  for (const auto& [name, bytes] : kMemory) {
    if (largest->*bytes <= 0) continue;
    text << "  " << std::left << std::setw(20) << name << std::right << std::setw(12)
         << bytes_as_text(largest->*bytes) << '\n';
  }
}

// Parts are differences, which leave rounding errors.
bool is_nothing(double part, const predict::Prediction& prediction) {
  constexpr double kRounding = 1e-9;
  return part <= kRounding * prediction.step_seconds;
}

// What would make a step faster, by the largest part beside computation.
std::string advice(const Candidate& candidate) {
  const predict::Prediction& prediction = candidate.prediction;
  const predict::StepParts& parts = prediction.parts;
  const std::array<std::pair<double, const char*>, 5> remedies = {{
      {parts.optimizer, "a fused optimizer, or one that is sharded over more ranks"},
      {parts.recomputation, "more memory, which saves recomputation"},
      {parts.layouts, "faster links between the ranks along tensor, context and expert"},
      {parts.data_exchange, "faster links along data, or more rows in a step"},
      {parts.pipeline, "more micro-batches, so more rows in a step, for the pipeline"},
  }};
  const auto most = std::ranges::max_element(remedies, {}, &std::pair<double, const char*>::first);
  constexpr double kWorthNaming = 0.03;
  if (most->first < kWorthNaming * prediction.step_seconds) {
    return "Computation takes nearly all time: only faster devices or more of them would help.";
  }
  return join_message("At most ", percent(most->first / prediction.step_seconds),
                      " of the step would be saved by ", most->second, ".");
}

void write_one_device(TextWriter& text, const SearchResult& result) {
  if (!result.one_device) return;
  const Candidate& one = *result.one_device;
  const double ratio = one.prediction.step_seconds / result.best.front().prediction.step_seconds;
  if (result.best.front().prediction.ranks == 1) return;
  text << "one device " << (one.fits ? "takes " : "does not have the memory, and would take ")
       << duration(one.prediction.step_seconds) << ", " << report::fixed(ratio, 2)
       << " times as long\n";
  if (one.fits && ratio <= 1) {
    text << "  PARALLEL TRAINING DOES NOT PAY: train on one device.\n";
  }
}

// The module with which each stage after the first one begins; empty for stages of equal work.
std::string stages_text(const Plan& plan) {
  if (plan.stages.empty()) return "stages of equal work";
  return "stages begin at " +
         list_text(plan.stages, ", ", [](const auto& stage) { return stage.first; });
}

// What each part of a cluster of several kinds of devices does.
void write_devices(TextWriter& text, const Candidate& candidate) {
  if (candidate.devices.empty()) return;
  text << "devices of several kinds";
  if (candidate.devices.size() > 1) text << "; " << stages_text(candidate.plan);
  text << '\n';
  std::vector<Row> rows = {{{"pipe", "device", "memory", "of"}}};
  for (std::size_t rank = 0; rank < candidate.devices.size(); ++rank) {
    rows.push_back({{join_message(rank), candidate.devices[rank].kind,
                     bytes_as_text(candidate.prediction.memory[rank].total()),
                     bytes_as_text(candidate.devices[rank].memory_limit)}});
  }
  text << table_of(rows);
}

void write_effort(TextWriter& text, const SearchResult& result) {
  text << "searched " << report::with_thousands(result.considered) << " plans in "
       << duration(result.seconds) << ": " << report::with_thousands(result.too_large)
       << " have too large parameters, " << report::with_thousands(result.bounded)
       << " cannot be faster, " << report::with_thousands(result.predicted) << " were predicted, "
       << report::with_thousands(result.left) << " are left\n";
  if (!result.without_tensor.empty()) {
    text << "  left out " << result.without_tensor << '\n';
  }
  if (result.invalid > 0) {
    text << "  " << report::with_thousands(result.invalid)
         << " cannot be carried out; the first reason: " << result.first_invalid << '\n';
  }
  if (result.best.empty()) return;
  if (result.is_complete) {
    text << "  no other plan of the search is faster\n";
  } else {
    text << "  no plan is more than " << percent(result.gap())
         << " faster (by bounds; not all plans were predicted)\n";
  }
}

void write_nothing_fits(TextWriter& text, const SearchResult& result) {
  if (result.left > 0) {
    text << "no plan was found that fits into " << bytes_as_text(result.memory_limit)
         << " per device, and " << report::with_thousands(result.left)
         << " were left when the search ended: search longer (--seconds)\n";
  } else {
    text << "NO PLAN FITS into " << bytes_as_text(result.memory_limit) << " per device\n";
  }
  if (!result.smallest) return;
  const predict::Prediction& prediction = result.smallest->prediction;
  const RankMemory memory = fullest_rank(*result.smallest, result.memory_limit);
  text << "the smallest plan, " << mesh_text(result.smallest->plan) << " with zero_level "
       << result.smallest->plan.zero_level << " and " << result.smallest->plan.micro_batches
       << " micro-batches, needs " << bytes_as_text(memory.needed) << ", "
       << bytes_as_text(memory.needed - memory.limit) << " too much:\n";
  write_memory(text, prediction);
  const predict::RankMemoryPrediction* const largest = largest_rank(prediction);
  const double states = largest->parameters + largest->gradients + largest->optimizer;
  text << (states > result.memory_limit
               ? "Parameters, gradients and optimizer alone are too large: take more devices, or "
                 "devices with more memory.\n"
               : "Activations are too large: take fewer rows or shorter ones, or more devices "
                 "along tensor, context or expert.\n");
}

}  // namespace

std::string to_string(const SearchResult& result) {
  TextWriter text;
  if (result.best.empty()) {
    write_nothing_fits(text, result);
    write_effort(text, result);
    return text.str();
  }
  const Candidate& fastest = result.best.front();
  const predict::Prediction& prediction = fastest.prediction;
  text << "plan for " << prediction.ranks << (prediction.ranks == 1 ? " rank" : " ranks") << " of "
       << prediction.cluster << ": " << mesh_text(fastest.plan) << '\n';
  text << "step " << duration(prediction.step_seconds) << ", " << percent(prediction.utilization)
       << " of the peak rate\n";
  for (const auto& [name, seconds, meaning] : kParts) {
    const double part = prediction.parts.*seconds;
    if (is_nothing(part, prediction)) continue;
    text << "  " << std::left << std::setw(20) << name << std::right << std::setw(12)
         << duration(part) << std::setw(9) << percent(part / prediction.step_seconds) << "  "
         << meaning << '\n';
  }
  const RankMemory memory = fullest_rank(fastest, result.memory_limit);
  text << (fastest.devices.empty() ? "memory of the largest rank " : "memory of the fullest rank ")
       << bytes_as_text(memory.needed) << " of " << bytes_as_text(memory.limit) << '\n';
  write_memory(text, prediction);
  write_devices(text, fastest);
  text << advice(fastest) << "\n";
  write_one_device(text, result);
  text << "the best plans\n";
  std::vector<Row> rows = {{{"mesh", "zero", "schedule", "micro-batches", "rows", "recomputed",
                             "step", "ratio", "memory"}}};
  for (const Candidate& each : result.best) {
    rows.push_back(row_of(each, prediction.step_seconds));
  }
  text << table_of(rows);
  write_effort(text, result);
  return text.str();
}

std::string summary_of(const SearchResult& result) {
  const Candidate& fastest = result.fastest();
  const Plan& plan = fastest.plan;
  std::string text = mesh_text(plan);
  if (stage_ranks(plan) > 1) text += join_message(", schedule ", schedule_text(plan));
  if (plan.zero_level > 0) text += join_message(", ZeRO level ", plan.zero_level);
  text += join_message(", micro-batches ", plan.micro_batches, " of ", fastest.rows, " rows");
  if (fastest.recomputed > 0) text += join_message(", recomputed modules ", fastest.recomputed);
  text +=
      join_message("; predicted ", duration(fastest.prediction.step_seconds), " for a step and ",
                   bytes_as_text(fastest.prediction.peak_memory()), " on a rank");
  if (result.one_device && result.one_device->fits) {
    const double ratio =
        result.one_device->prediction.step_seconds / fastest.prediction.step_seconds;
    if (ratio < 1) {
      text += join_message("; one rank alone would take ", report::fixed(ratio, 2),
                           " of that time, so more do not pay here");
    }
  }
  return text;
}

std::string compare(const SearchResult& chosen, const SearchResult& alternative,
                    const std::string& wish) {
  TextWriter text;
  text << "why not " << wish << ":\n";
  if (chosen.best.empty()) {
    text << (alternative.best.empty() ? "  nothing was found that fits with it either\n"
                                      : "  with it, a plan fits:\n" + to_string(alternative));
    return text.str();
  }
  if (alternative.best.empty()) {
    text << "  no such plan fits into " << bytes_as_text(alternative.memory_limit);
    if (alternative.smallest) {
      text << "; the smallest needs "
           << bytes_as_text(fullest_rank(*alternative.smallest, alternative.memory_limit).needed)
           << ":\n";
      write_memory(text, alternative.smallest->prediction);
    } else {
      text << '\n';
    }
    return text.str();
  }
  const Candidate& best = chosen.best.front();
  const Candidate& other = alternative.best.front();
  const double seconds = best.prediction.step_seconds;
  const double difference = other.prediction.step_seconds - seconds;
  if (best.plan == other.plan) {
    text << "  the chosen plan is such a plan\n";
    return text.str();
  }
  text << "  the best such plan is " << mesh_text(other.plan) << " with zero_level "
       << other.plan.zero_level << " and " << other.plan.micro_batches
       << " micro-batches; its step takes " << duration(other.prediction.step_seconds) << ", "
       << report::fixed(other.prediction.step_seconds / seconds, 3) << " times as long\n";
  if (difference < 0) {
    text << "  it is faster: the search for the chosen plan ended before it came to this one\n";
  }
  std::vector<Row> rows = {{{"", "chosen", "with " + wish, "difference"}}};
  for (const auto& [name, part, meaning] : kParts) {
    const double mine = best.prediction.parts.*part;
    const double theirs = other.prediction.parts.*part;
    if (is_nothing(mine, best.prediction) && is_nothing(theirs, other.prediction)) continue;
    rows.push_back(
        {{std::string(name), duration(std::max(0.0, mine)), duration(std::max(0.0, theirs)),
          (theirs < mine ? "-" : "+") + duration(std::abs(theirs - mine))}});
  }
  rows.push_back({{"memory", bytes_as_text(best.prediction.peak_memory()),
                   bytes_as_text(other.prediction.peak_memory()), ""}});
  text << table_of(rows);
  return text.str();
}

}  // namespace trireme::search
