// SPDX-License-Identifier: Apache-2.0
// The part of TrainingStep that finds the record for a batch in a cache, or makes it: captures the
// module, assigns stages, and compares records between ranks.
#include <trireme/base/config/suggestion.h>
#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/graph/guard.h>
#include <trireme/graph/show/graph_text.h>
#include <trireme/parallel/module/agreement.h>
#include <trireme/parallel/record/predicted_step.h>
#include <trireme/parallel/step/training_step_impl.h>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace trireme {
namespace {

// Throws the same error on every rank if their graphs differ, because code depends on the rank or
// ranks run different builds. Digests are compared first, because the text of a large graph takes
// megabytes.
void check_same_graph(const std::string& text, const comm::Group& group) {
  const auto same_everywhere = [](const std::vector<std::string>& all) {
    return std::ranges::adjacent_find(all, std::not_equal_to<>()) == all.end();
  };
  const std::string digest = std::to_string(std::hash<std::string>()(text));
  if (same_everywhere(comm::all_gather_text(digest, group))) return;
  const std::vector<std::string> all = comm::all_gather_text(text, group);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all.front()) continue;
    const std::string difference =
        graph::first_difference(graph::parse_graph(all.front()), graph::parse_graph(all[rank]));
    if (difference.empty()) continue;
    throw UsageError(join_message("the module does something else on rank ", rank,
                                  " than on rank 0; from that to this, ", difference),
                     "build the same module, and run the same code, on every rank");
  }
}

}  // namespace

// Returns the plan for a batch. While find_micro_batches() measures, the number of micro-batches is
// that of the batch.
Plan TrainingStep::Impl::plan_for(std::size_t micro_batches) const {
  Plan own = plan;
  if (finds_micro_batches) own.micro_batches = static_cast<std::int64_t>(micro_batches);
  return own;
}

pipeline::RunnerOptions TrainingStep::Impl::runner_options() {
  pipeline::RunnerOptions options{
      .numbering = {.seed = seed, .first_micro_batch = data.rank() * plan.micro_batches}};
  if (!has_devices || group.size() > 1) options.name = join_message("rank ", group.rank());
  if (data.size() > 1) {
    options.reduce = [this](const pipeline::StagedGraph::NamedTensors& complete) {
      parameters->add_complete(complete);
    };
  }
  return options;
}

// Captures the module on all ranks of `among`. If it fails on one rank, all throw, because the
// others would wait for that rank in the comparison of graphs.
template <typename Make>
pipeline::StagedGraph TrainingStep::Impl::capture_together(const comm::Group& among,
                                                           const pipeline::SplitBatch& batch,
                                                           const Make& make) const {
  std::optional<pipeline::StagedGraph> staged;
  std::vector<std::string> texts;
  detail::succeed_together(among, "capture the module", [&] {
    staged.emplace(make(plan_for(batch.micro_batches.size())));
    ranks->check(*staged);
    if (among.size() == 1) return;
    for (const auto& graph : staged->graphs()) texts.push_back(graph::to_text(*graph));
  });
  for (const std::string& text : texts) check_same_graph(text, among);
  if (batch.counts_alike) staged->count_alike();
  return std::move(*staged);
}

// Runs once, for the first batch. The assignment of parameters to ranks is fixed from then on,
// because optimizers hold state for it.
void TrainingStep::Impl::assign_stages(const pipeline::SplitBatch& batch) {
  if (parameters) return;
  pipeline::StagedGraph staged = capture_together(group, batch, [&](const Plan& with_count) {
    return pipeline::StagedGraph(module, forward(batch), batch.micro_batches, with_count);
  });
  Plan of_group = plan;  // devices of a process are not ranks of the group
  if (has_devices) std::ranges::find(of_group.mesh, kStageAxis, &MeshAxis::name)->size = 1;
  parameters.emplace(module, staged, of_group, group, stages, data, layouts, *ranks);
  of_functions.emplace(batch.function, staged);
  first.emplace(std::move(staged));
  detail::succeed_together(group, "cut its optimizers", [&] {
    for (torch::optim::Optimizer* const optimizer : waiting) {
      parameters->parallelized().shard(*optimizer);
    }
  });
  waiting.clear();
}

template <typename Make>
pipeline::Record& TrainingStep::Impl::find(Purpose purpose, const pipeline::SplitBatch& batch,
                                           const comm::Group& among, const Make& make) {
  Records& all = records.try_emplace(purpose, kMostRecords).first->second;
  pipeline::Record* const found = all.find(batch.key);
  if (found == nullptr) {
    detail::succeed_together(among, "read its batch",
                             [&] { check_same_values(batch.micro_batches); });
    auto made = std::make_unique<pipeline::Record>(pipeline::Record{.staged = make(), .alone = {}});
    for (int stage = 0; stage < made->staged.program().schedule.num_stages(); ++stage) {
      made->alone.push_back(made->staged.parameters_of_stage_alone(stage));
    }
    ranks->prepare(*made, runner_options());
    return all.add(batch.key, std::move(made));
  }
  // A new capture takes time, so a record is compared only after 1, 2, 4, 8, ... uses.
  if (std::has_single_bit(static_cast<std::uint64_t>(found->num_uses))) {
    detail::succeed_together(among, "go on with what was captured", [&] {
      check_same_values(batch.micro_batches);
      found->staged.check_still_true(module, forward(batch), batch.micro_batches);
    });
  }
  return *found;
}

pipeline::Record& TrainingStep::Impl::training_record(const pipeline::SplitBatch& batch) {
  pipeline::Record& found = find(Purpose::kTraining, batch, group, [&] {
    const bool is_first = !parameters;
    assign_stages(batch);
    if (is_first) return *first;
    pipeline::StagedGraph staged = capture_together(group, batch, [&](const Plan& with_count) {
      return pipeline::StagedGraph(module, forward(batch), batch.micro_batches, with_count, *first);
    });
    parameters->add_record(staged);
    ranks->place(staged);
    outdated_at.reset();
    of_functions.emplace(batch.function, staged);
    return staged;
  });
  latest = &found;
  return found;
}

pipeline::Record& TrainingStep::Impl::evaluation_record(const pipeline::SplitBatch& batch,
                                                        const comm::Group& among) {
  const Purpose purpose = batch.counts_alike ? Purpose::kEvaluationAlongPipe : Purpose::kEvaluation;
  return find(purpose, batch, among, [&] {
    pipeline::StagedGraph staged = capture_together(among, batch, [&](const Plan& with_count) {
      const auto found = of_functions.find(batch.function);
      return pipeline::StagedGraph::for_evaluation(
          module, forward(batch), batch.micro_batches, with_count,
          found == of_functions.end() ? *first : found->second);
    });
    parameters->add_evaluation(staged);
    ranks->place(staged);  // evaluation may use buffers that training does not use
    return staged;
  });
}

void TrainingStep::Impl::forget_records() {
  latest = nullptr;
  records.clear();
}

// The checks run inside split_batch(), which reports the error of one rank to all together with the
// comparison of shapes. That saves a collective in each step.
pipeline::SplitOptions TrainingStep::Impl::split_for(Purpose purpose, const std::string& function) {
  const bool trains = purpose == Purpose::kTraining;
  return {.count = std::max<std::int64_t>(plan.micro_batches, 1),
          .may_be_fewer = !trains || finds_micro_batches,
          .function = name_of(function),
          .check = [this, function, trains] {
            check_function(function);
            if (trains && parameters) parameters->check_before_step();
          }};
}

pipeline::SplitBatch TrainingStep::Impl::split(const std::vector<at::Tensor>& batch,
                                               std::int64_t micro_batches) const {
  return pipeline::split_batch(batch,
                               {.count = micro_batches,
                                .may_be_fewer = true,
                                .function = functions.front().first,
                                .check = {}},
                               module, group);
}

std::string TrainingStep::Impl::name_of(const std::string& function) const {
  return function.empty() ? functions.front().first : function;
}

void TrainingStep::Impl::check_function(const std::string& name) const {
  std::vector<std::string> names;
  for (const auto& [function, forward] : functions) names.push_back(function);
  if (std::ranges::find(names, name_of(name)) != names.end()) return;
  const std::string hint = config::did_you_mean(name, names);
  throw UsageError(
      join_message("no function of the training step is called '", name, "'"),
      hint.empty() ? "name one of those that the TrainingStep was constructed with" : hint);
}

const graph::Forward& TrainingStep::Impl::forward(const pipeline::SplitBatch& batch) const {
  return std::ranges::find(functions, batch.function, &StepFunctions::value_type::first)->second;
}

void TrainingStep::Impl::check_same_values(const pipeline::MicroBatches& micro_batches) const {
  for (const comm::Group& among :
       {stages, layouts.mesh().defined() ? layouts.mesh().group() : comm::Group::self()}) {
    if (among.size() > 1) pipeline::check_same_values(micro_batches, among);
  }
}

const pipeline::Record& TrainingStep::Impl::last() const {
  if (auto* const predicted = detail::PredictedStep::of_process()) predicted->refuse("the record");
  if (latest == nullptr) {
    throw UsageError("the training step has not run, which captures the module",
                     "call step() or prepare() first");
  }
  return *latest;
}

pipeline::StageParameters& TrainingStep::Impl::own() {
  if (!parameters) {
    throw UsageError("which rank has which parameters is not known before the first batch",
                     "call step(), evaluate() or prepare() first");
  }
  return *parameters;
}

}  // namespace trireme
