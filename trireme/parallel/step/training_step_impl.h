// SPDX-License-Identifier: Apache-2.0
// The implementation class of TrainingStep, shared by its sources: training_step.cpp (the public
// functions), records.cpp (finds or makes records) and find_micro_batches.cpp.
#pragma once

#include <trireme/parallel/pipeline/lru_cache.h>
#include <trireme/parallel/pipeline/micro_batches.h>
#include <trireme/parallel/pipeline/module_claim.h>
#include <trireme/parallel/step/stage_parameters.h>
#include <trireme/parallel/step/stage_ranks.h>
#include <trireme/parallel/training_step.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

namespace detail {
class PredictedStep;
}

struct TrainingStep::Impl {
  // The purpose of a batch. Each has a cache of records of its own. In kEvaluationAlongPipe, ranks
  // along `data` run independently, so their caches differ; the other caches stay equal on all
  // ranks.
  enum class Purpose : std::uint8_t { kTraining, kEvaluation, kEvaluationAlongPipe, kNumPurposes };
  using Records = pipeline::LruCache<pipeline::Record>;

  Plan plan_for(std::size_t micro_batches) const;
  pipeline::RunnerOptions runner_options();
  template <typename Make>
  pipeline::StagedGraph capture_together(const comm::Group& among,
                                         const pipeline::SplitBatch& batch, const Make& make) const;
  void assign_stages(const pipeline::SplitBatch& batch);
  void shard(torch::optim::Optimizer& optimizer);
  template <typename Make>
  pipeline::Record& find(Purpose purpose, const pipeline::SplitBatch& batch,
                         const comm::Group& among, const Make& make);
  pipeline::Record& training_record(const pipeline::SplitBatch& batch);
  pipeline::Record& evaluation_record(const pipeline::SplitBatch& batch, const comm::Group& among);
  void forget_records();

  pipeline::SplitOptions split_for(Purpose purpose, const std::string& function);
  pipeline::SplitBatch split(const std::vector<at::Tensor>& batch,
                             std::int64_t micro_batches) const;
  std::string name_of(const std::string& function) const;
  void check_function(const std::string& name) const;
  const graph::Forward& forward(const pipeline::SplitBatch& batch) const;
  void check_same_values(const pipeline::MicroBatches& micro_batches) const;

  pipeline::StepResult run_step(const pipeline::SplitBatch& batch, std::int64_t number,
                                const pipeline::StepOptions& options,
                                const std::function<void(pipeline::StepResult&)>& finish);
  pipeline::StepResult run(pipeline::Record& record, const pipeline::SplitBatch& batch,
                           std::int64_t number, const pipeline::StepOptions& options);
  at::Tensor record(detail::PredictedStep& predicted, const pipeline::SplitBatch& batch);
  void follow_buffers(const pipeline::Record& record) const;
  void mark_outdated();
  template <typename Call>
  auto abort_on_error(const Call& call) -> decltype(call());
  double time_step(const pipeline::SplitBatch& batch);
  const pipeline::Record& last() const;
  pipeline::StageParameters& own();

  torch::nn::Module& module;
  StepFunctions functions;
  Plan plan;  // with the axes pipe and data added
  comm::Group group;
  comm::Group stages;               // the ranks along pipe; only this rank if there are devices
  comm::Group data;                 // the ranks along data
  detail::ModuleLayouts layouts{};  // over the ranks that share the work on a stage
  std::unique_ptr<pipeline::StageRanks> ranks{};
  bool has_devices = false;
  bool finds_micro_batches = false;
  std::uint64_t seed = 0;
  pipeline::ModuleClaim claim;
  std::int64_t steps = 0;
  std::vector<torch::optim::Optimizer*> waiting{};  // passed to shard() before stages are assigned
  std::optional<pipeline::StagedGraph> first{};     // the record that assigned the stages
  std::map<std::string, pipeline::StagedGraph> of_functions{};  // the first record of each function
  // ModuleClaim::num_writes() when outdated tensors were marked last; empty if they must be marked.
  std::optional<std::uint64_t> outdated_at{};
  std::optional<pipeline::StageParameters> parameters{};
  std::map<Purpose, Records> records{};
  pipeline::Record* latest = nullptr;
};

}  // namespace trireme
