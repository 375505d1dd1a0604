// SPDX-License-Identifier: Apache-2.0
// Finds faults that end no rank by themselves: silent corruption, and losses that are not finite.
#include <trireme/base/error.h>
#include <trireme/base/format_ranks.h>
#include <trireme/base/step_progress.h>
#include <trireme/base/text.h>
#include <trireme/comm/collectives.h>
#include <trireme/data/data_loader.h>
#include <trireme/parallel/check_replicas.h>
#include <trireme/train/loop/model_impl.h>

#include <cstdint>
#include <exception>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace trireme {
namespace {

// Returns the numbers of the samples that this rank has read for a step; empty if they have none.
std::string samples_of(const data::DataLoader& data, const StepContext& step,
                       std::int64_t micro_batches) {
  constexpr std::size_t kShown = 64;
  std::vector<std::int64_t> samples;
  try {
    for (std::int64_t i = 0; i < micro_batches; ++i) {
      const auto some = data.samples_of(step.epoch - 1, (step.step - 1) * micro_batches + i);
      samples.insert(samples.end(), some.begin(), some.end());
    }
  } catch (const std::exception& error) {  // the other ranks wait for this text
    return join_message("unknown (", error.what(), ")");
  }
  const std::size_t left_out = samples.size() > kShown ? samples.size() - kShown : 0;
  samples.resize(samples.size() - left_out);
  return join_message(list_text(samples),
                      left_out > 0 ? join_message(" and ", left_out, " more") : std::string());
}

// Returns a line for the samples of each of these ranks. Ranks that work on one part of the data
// have read the same.
std::string describe_samples(const std::vector<std::string>& by_rank) {
  std::map<std::string, std::vector<int>> ranks;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (!by_rank[rank].empty()) ranks[by_rank[rank]].push_back(static_cast<int>(rank));
  }
  std::string lines;
  for (const auto& [samples, which] : ranks)
    lines += join_message("\n    samples of ", format_ranks(which), ": ", samples);
  return lines;
}

}  // namespace

// What a step of the program gives the ranks is compared before anybody sees it.
void Model::Impl::compare_replicas_if_due(Run& run) {
  if (steps_between_checks == 0) return;
  const std::int64_t step = position.global_step;
  const bool is_kept = recovery && recovery->is_due(step);
  if (step % steps_between_checks != 0 && !is_kept) return;
  run.timer.measure(Phase::kCallbacks, [&] { compare_replicas(run); });
}

void Model::Impl::compare_replicas(const Run& run) {
  if (steps_between_checks == 0 || run.context.is_dry_run || options.group.size() == 1) return;
  if (std::exchange(checked_step, position.global_step) == position.global_step) return;
  agree_to_stop(run);  // parameters of a rank whose optimizer has failed differ
  check_replicas(runner->parallelized(), *module, &optimizer, position.global_step);
}

void Model::Impl::fail_for_loss(const Run& run, const StepContext& step,
                                const detail::NonFiniteLoss& found) {
  const std::string own =
      found.is_own() ? samples_of(run.training, step, options.plan.micro_batches) : std::string();
  const std::string samples = describe_samples(comm::all_gather_text(own, options.group));
  const bool has_states = recovery && !run.context.is_dry_run;
  const bool comes_again = has_states && recovery->note_loss(step.global_step);
  // The data and the random numbers are the same each time.
  report_failure({.is_of_unknown_rank = true, .is_final = comes_again});
  throw TrainingError(
      join_message(found.what(),
                   comes_again  ? "; the step was tried again, and it was so again"
                   : has_states ? "; if a restart is left, the step is tried once more"
                                : "",
                   samples),
      "lower the learning rate, look for infinite or missing values in the data of this step, or "
      "continue from an earlier checkpoint");
}

}  // namespace trireme
