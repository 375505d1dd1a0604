// SPDX-License-Identifier: Apache-2.0
// The inside of Pipeline, shared by its sources: pipeline.cpp (what callers see) and prepared.cpp
// (what is made for batches of one shape).
#pragma once

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/parallel/module/agreement.h>
#include <trireme/parallel/pipeline/executor.h>
#include <trireme/parallel/pipeline/lru_cache.h>
#include <trireme/parallel/pipeline/micro_batches.h>
#include <trireme/parallel/pipeline/module_claim.h>
#include <trireme/parallel/pipeline/staged_graph.h>
#include <trireme/parallel/step/pipeline.h>
#include <trireme/parallel/step/stage_parameters.h>
#include <trireme/parallel/tensor_parallel/module_layouts.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

struct Pipeline::Impl {
  // What is made for batches of one shape.
  struct Prepared {
    Prepared(Impl& impl, pipeline::StagedGraph made);

    pipeline::StagedGraph staged;
    std::vector<pipeline::StagedGraph::NamedTensors> alone;  // parameters, by stage
    pipeline::Executor executor;
    std::int64_t num_uses = 0;  // steps or evaluations that it was for
  };
  using ByKey = pipeline::LruCache<Prepared>;

  pipeline::Program program_of(const pipeline::StagedGraph& staged) const;
  pipeline::ExecutorOptions options_of(const Prepared& ready);
  template <typename Make>
  pipeline::StagedGraph made_together(const comm::Group& among, const pipeline::SplitBatch& batch,
                                      const Make& make) const;
  void assign_stages(const pipeline::SplitBatch& batch);
  Prepared& prepared_for(const pipeline::SplitBatch& batch);
  Prepared& begin_step(const pipeline::SplitBatch& batch);
  Prepared& evaluation_for(const pipeline::SplitBatch& batch, const comm::Group& among);
  template <typename Make>
  Prepared& find(ByKey& all, const pipeline::SplitBatch& batch, const comm::Group& among,
                 const Make& make);
  pipeline::SplitOptions of_step(const std::string& function);
  pipeline::SplitOptions of_evaluation(const std::string& function) const;
  const std::string& name_of(const std::string& function) const;
  void check_function(const std::string& name) const;
  const graph::Forward& forward(const pipeline::SplitBatch& batch) const;
  void count_step(Prepared& ready);
  void check_same_values(const pipeline::MicroBatches& micro_batches) const;
  void follow_buffers(const Prepared& ready) const;
  template <typename Call>
  auto abort_on_error(const Call& call) -> decltype(call());
  const Prepared& last() const;
  pipeline::StageParameters& own();

  torch::nn::Module& module;
  PipelineFunctions functions;
  Plan plan;
  comm::Group group;
  comm::Group stages;
  comm::Group data;
  detail::ModuleLayouts layouts{};  // over the ranks that share the work on a stage
  std::uint64_t seed = 0;
  std::int64_t steps = 0;
  std::vector<torch::optim::Optimizer*> waiting{};  // for the parameters of this rank's stages
  std::optional<pipeline::StagedGraph> first{};     // which says what those are
  std::map<std::string, pipeline::StagedGraph> of_functions{};  // the first of each
  pipeline::ModuleClaim claim;
  // Writes into tensors with old values when those that other ranks train were named as such.
  std::optional<std::uint64_t> outdated_at{};
  std::optional<pipeline::StageParameters> parameters{};
  ByKey prepared{kMostRecords};
  // Apart, since ranks of other pipelines may have others of the second.
  ByKey evaluated{kMostRecords};
  ByKey evaluated_by_pipeline{kMostRecords};
  Prepared* latest = nullptr;
};

// Others would wait for one that fails: those with the other stages, which the executor tells only
// of what fails in it, those along data, and those that share its work.
template <typename Call>
auto Pipeline::Impl::abort_on_error(const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception& error) {
    const std::string reason =
        join_message("rank ", group.rank(), " of the pipelines failed: ", message_of(error));
    detail::abort(stages, reason);
    parameters->parallelized().abort(reason);
    throw;
  }
}

}  // namespace trireme
