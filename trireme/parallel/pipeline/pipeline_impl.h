// SPDX-License-Identifier: Apache-2.0
// The inside of Pipeline, shared by its sources: pipeline.cpp (what callers see) and prepared.cpp
// (what is made for batches of one shape).
#pragma once

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/parallel/agreement.h>
#include <trireme/parallel/pipeline/batch.h>
#include <trireme/parallel/pipeline/executor.h>
#include <trireme/parallel/pipeline/module_claim.h>
#include <trireme/parallel/pipeline/pipeline.h>
#include <trireme/parallel/pipeline/recently_used.h>
#include <trireme/parallel/pipeline/stage_parameters.h>
#include <trireme/parallel/pipeline/staged_graph.h>
#include <trireme/parallel/tensor/module_layouts.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

struct Pipeline::Impl {
  // What is made for batches of one shape.
  struct Prepared {
    Prepared(Impl& its, pipeline::StagedGraph made);

    pipeline::StagedGraph staged;
    std::vector<pipeline::StagedGraph::NamedTensors> alone;  // parameters, by stage
    pipeline::Executor executor;
    std::int64_t num_uses = 0;  // steps or evaluations that it was for
  };
  using ByKey = pipeline::RecentlyUsed<Prepared>;

  pipeline::Program program_of(const pipeline::StagedGraph& staged) const;
  pipeline::ExecutorOptions options_of(const Prepared& its);
  template <typename Make>
  pipeline::StagedGraph made_together(const comm::Group& among, const pipeline::CutBatch& batch,
                                      const Make& make) const;
  void take_stages(const pipeline::CutBatch& batch);
  Prepared& prepared_for(const pipeline::CutBatch& batch);
  Prepared& begin_step(const pipeline::CutBatch& batch);
  Prepared& evaluation_for(const pipeline::CutBatch& batch, const comm::Group& among);
  template <typename Make>
  Prepared& find(ByKey& all, const pipeline::CutBatch& batch, const comm::Group& among,
                 const Make& make);
  pipeline::CutOptions of_step(const std::string& function);
  pipeline::CutOptions of_evaluation(const std::string& function) const;
  const std::string& name_of(const std::string& function) const;
  void check_function(const std::string& name) const;
  const graph::Forward& forward(const pipeline::CutBatch& batch) const;
  void count_step(Prepared& its);
  void check_same_values(const pipeline::MicroBatches& micro_batches) const;
  void follow_buffers(const Prepared& its) const;
  template <typename Call>
  auto ending_for_all(const Call& call) -> decltype(call());
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
auto Pipeline::Impl::ending_for_all(const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception& error) {
    const std::string reason =
        join_message("rank ", group.rank(), " of the pipelines failed: ", message_of(error));
    detail::end_for_all(stages, reason);
    parameters->parallelized().end_for_all(reason);
    throw;
  }
}

}  // namespace trireme
