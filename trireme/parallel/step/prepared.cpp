// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/config/suggestion.h>
#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/graph/guard.h>
#include <trireme/graph/show/graph_text.h>
#include <trireme/parallel/buckets/buffer_broadcast.h>
#include <trireme/parallel/init/deferred_scope.h>
#include <trireme/parallel/module/local_memory.h>
#include <trireme/parallel/pipeline/execution/on_mesh.h>
#include <trireme/parallel/step/pipeline_impl.h>
#include <trireme/schedule/passes.h>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme {
namespace {

// The same error on every rank, where code asks for its rank or ranks were built differently. Texts
// travel where they differ alone: that of a large graph takes megabytes.
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

pipeline::Program Pipeline::Impl::program_of(const pipeline::StagedGraph& staged) const {
  pipeline::Program program = staged.program();
  if (data.size() == 1 || program.is_evaluation) return program;
  program.schedule = schedule::with_reduction(program.schedule, schedule::ReduceAfter::kStage);
  return program;
}

pipeline::ExecutorOptions Pipeline::Impl::options_of(const Prepared& ready) {
  pipeline::ExecutorOptions options;
  options.name = join_message("rank ", group.rank());
  options.callbacks.reduce = [this, &ready](int stage, int /*micro_batch*/) {
    parameters->add_complete(schedule::item(ready.alone, stage));
  };
  return options;
}

Pipeline::Impl::Prepared::Prepared(Impl& impl, pipeline::StagedGraph made)
    : staged(std::move(made)),
      executor(impl.program_of(staged),
               pipeline::on_mesh(staged.code_of(impl.stages.rank(),
                                                {.seed = impl.seed,
                                                 .first_micro_batch =
                                                     impl.data.rank() * impl.plan.micro_batches}),
                                 impl.layouts.mesh()),
               impl.stages, impl.options_of(*this)) {
  for (int stage = 0; stage < staged.program().schedule.num_stages(); ++stage) {
    alone.push_back(staged.parameters_of_stage_alone(stage));
  }
}

// A rank whose module cannot be captured says so to the others, which would wait for it.
// @param among which others.
template <typename Make>
pipeline::StagedGraph Pipeline::Impl::made_together(const comm::Group& among,
                                                    const pipeline::SplitBatch& batch,
                                                    const Make& make) const {
  std::optional<pipeline::StagedGraph> staged;
  std::vector<std::string> texts;
  detail::succeed_together(among, "capture the module", [&] {
    staged.emplace(make());
    if (among.size() == 1) return;
    for (const auto& graph : staged->graphs()) texts.push_back(graph::to_text(*graph));
  });
  for (const std::string& text : texts) check_same_graph(text, among);
  if (batch.counts_alike) staged->count_alike();
  return std::move(*staged);
}

// Once: which rank has which parameters does not change any more.
void Pipeline::Impl::assign_stages(const pipeline::SplitBatch& batch) {
  if (parameters) return;
  pipeline::StagedGraph staged = made_together(group, batch, [&] {
    return pipeline::StagedGraph(module, forward(batch), batch.micro_batches, plan);
  });
  parameters.emplace(module, staged, plan, group, stages, data, layouts);
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
Pipeline::Impl::Prepared& Pipeline::Impl::find(ByKey& all, const pipeline::SplitBatch& batch,
                                               const comm::Group& among, const Make& make) {
  Prepared* const found = all.find(batch.key);
  if (found == nullptr) {
    detail::succeed_together(among, "read its batch",
                             [&] { check_same_values(batch.micro_batches); });
    return all.add(batch.key, std::make_unique<Prepared>(*this, make()));
  }
  if (std::has_single_bit(static_cast<std::uint64_t>(found->num_uses))) {
    detail::succeed_together(among, "go on with what was captured", [&] {
      check_same_values(batch.micro_batches);
      found->staged.check_still_true(module, forward(batch), batch.micro_batches);
    });
  }
  return *found;
}

Pipeline::Impl::Prepared& Pipeline::Impl::prepared_for(const pipeline::SplitBatch& batch) {
  Prepared& found = find(prepared, batch, group, [&] {
    const bool is_first = !parameters;
    assign_stages(batch);
    if (is_first) return *first;
    pipeline::StagedGraph staged = made_together(group, batch, [&] {
      return pipeline::StagedGraph(module, forward(batch), batch.micro_batches, plan, *first);
    });
    parameters->add_record(staged);
    outdated_at.reset();
    of_functions.emplace(batch.function, staged);
    return staged;
  });
  latest = &found;
  return found;
}

Pipeline::Impl::Prepared& Pipeline::Impl::begin_step(const pipeline::SplitBatch& batch) {
  const bool was_checked = parameters.has_value();
  Prepared& found = prepared_for(batch);
  if (!was_checked) {
    detail::succeed_together(group, "begin a step", [&] { parameters->check_before_step(); });
  }
  parameters->begin_step();
  return found;
}

Pipeline::Impl::Prepared& Pipeline::Impl::evaluation_for(const pipeline::SplitBatch& batch,
                                                         const comm::Group& among) {
  ByKey& all = batch.counts_alike ? evaluated_by_pipeline : evaluated;
  return find(all, batch, among, [&] {
    pipeline::StagedGraph staged = made_together(among, batch, [&] {
      const auto found = of_functions.find(batch.function);
      return pipeline::StagedGraph::for_evaluation(
          module, forward(batch), batch.micro_batches, plan,
          found == of_functions.end() ? *first : found->second);
    });
    parameters->check_evaluation(staged);
    // Buffers that training does not use.
    std::vector<at::Tensor> used;
    for (const auto& [name, buffer] : staged.buffers_of(stages.rank())) used.push_back(buffer);
    materialize(used);
    layouts.distribute(used);
    return staged;
  });
}

// A mistake of one rank is told to all with the batch. Before the first there is none.
pipeline::SplitOptions Pipeline::Impl::of_step(const std::string& function) {
  return {.count = plan.micro_batches, .function = name_of(function), .check = [this, function] {
            check_function(function);
            if (parameters) parameters->check_before_step();
          }};
}

pipeline::SplitOptions Pipeline::Impl::of_evaluation(const std::string& function) const {
  return {.count = plan.micro_batches,
          .may_be_fewer = true,
          .function = name_of(function),
          .check = [this, function] { check_function(function); }};
}

const std::string& Pipeline::Impl::name_of(const std::string& function) const {
  return function.empty() ? functions.front().first : function;
}

void Pipeline::Impl::check_function(const std::string& name) const {
  std::vector<std::string> names;
  for (const auto& [function, forward] : functions) names.push_back(function);
  if (std::ranges::find(names, name_of(name)) != names.end()) return;
  const std::string hint = config::did_you_mean(name, names);
  throw UsageError(
      join_message("no function of the pipeline is called '", name, "'"),
      hint.empty() ? "name one of those that the pipeline was constructed with" : hint);
}

const graph::Forward& Pipeline::Impl::forward(const pipeline::SplitBatch& batch) const {
  return std::ranges::find(functions, batch.function, &PipelineFunctions::value_type::first)
      ->second;
}

void Pipeline::Impl::count_step(Prepared& ready) {
  ++steps;
  ++ready.num_uses;
  const std::uint64_t num_writes = pipeline::ModuleClaim::num_writes();
  if (std::exchange(outdated_at, num_writes) == num_writes) return;
  claim.set_outdated(parameters->trained_elsewhere());
}

void Pipeline::Impl::check_same_values(const pipeline::MicroBatches& micro_batches) const {
  pipeline::check_same_values(micro_batches, stages);
  if (layouts.mesh().defined()) {
    pipeline::check_same_values(micro_batches, layouts.mesh().group());
  }
}

void Pipeline::Impl::follow_buffers(const Prepared& ready) const {
  if (!plan.broadcast_buffers || data.size() == 1) return;
  for (const auto& [name, buffer] : ready.staged.buffers_of(stages.rank())) {
    detail::broadcast_strided(detail::memory_of(buffer), 0, data, name);
  }
}

const Pipeline::Impl::Prepared& Pipeline::Impl::last() const {
  if (latest == nullptr) {
    throw UsageError("the pipeline has not run a step, which captures the module",
                     "call step() or prepare() first");
  }
  return *latest;
}

pipeline::StageParameters& Pipeline::Impl::own() {
  if (!parameters) {
    throw UsageError("which rank has which parameters is not known before the first batch",
                     "call step(), evaluate() or prepare() first");
  }
  return *parameters;
}

}  // namespace trireme
