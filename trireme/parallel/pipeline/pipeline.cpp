// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/pipeline/pipeline.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/graph/guard.h>
#include <trireme/mesh/device_mesh.h>
#include <trireme/parallel/agreement.h>
#include <trireme/parallel/gradient_reducer.h>
#include <trireme/parallel/named_tensors.h>
#include <trireme/parallel/pipeline/executor.h>
#include <trireme/parallel/pipeline/staged_graph.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/nn/module.h>
#include <torch/ordered_dict.h>

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

namespace trireme {
namespace {

using detail::NamedTensor;

[[noreturn]] void refuse(const std::string& what, const char* hint) {
  throw UsageError("a pipeline cannot have " + what, hint);
}

void check_plan(const Plan& plan) {
  if (shares_work(plan)) {
    refuse("axes other than pipe and data", "take them out of plan.mesh");
  }
  if (cuts_anything(plan)) {
    refuse("a zero_stage above 0", "set it to 0: each rank has the state of its own stages");
  }
  if (plan.wire != GradientWire::kAsIs || plan.gradient_predivide != 1) {
    refuse("gradients that travel in half precision or divided before",
           "set wire to as_is and "
           "gradient_predivide to 1");
  }
  if (plan.sync_batch_norm) {
    refuse("sync_batch_norm", "set it to false: batch norm is over a micro-batch");
  }
}

// With both axes named.
Plan on_both_axes(Plan plan, const comm::Group& group) {
  if (plan.mesh.empty()) plan.mesh.push_back({kDataAxis, group.size()});
  for (const char* const name : {kStageAxis, kDataAxis}) {
    if (std::ranges::find(plan.mesh, name, &MeshAxis::name) == plan.mesh.end()) {
      plan.mesh.insert(plan.mesh.begin(), {name, 1});
    }
  }
  return plan;
}

void broadcast_all(const std::vector<NamedTensor>& tensors, const comm::Group& group) {
  std::vector<comm::Work> works;
  for (const NamedTensor& item : tensors) {
    works.push_back(comm::broadcast_async(item.tensor, 0, group));
  }
  for (comm::Work& work : works) work.wait();
}

// Of rank 0's default generator, on all ranks.
std::uint64_t shared_seed(const comm::Group& group) {
  at::Tensor seed = at::empty({1}, at::kLong);
  auto* const value = seed.mutable_data_ptr<std::int64_t>();
  *value = static_cast<std::int64_t>(at::detail::getDefaultCPUGenerator().current_seed());
  comm::broadcast(seed, 0, group, "seed of random numbers");
  return static_cast<std::uint64_t>(*value);
}

void check_batch(const std::vector<at::Tensor>& batch, std::int64_t micro_batches) {
  if (batch.empty()) {
    throw UsageError("a step of a pipeline was given no tensors", "give it the batch");
  }
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (!batch[i].defined() || batch[i].dim() == 0 || batch[i].size(0) != batch[0].size(0)) {
      throw UsageError(
          join_message("tensor ", i, " of the batch is ",
                       batch[i].defined() ? join_message("of ", batch[i].sizes()) : "undefined",
                       " beside one of ", batch[0].sizes(), "; expected as many rows"),
          "every input is cut along dim 0: expand what all rows share, or make it a buffer");
    }
  }
  if (batch[0].size(0) < micro_batches) {
    throw UsageError(join_message("a batch of ", batch[0].size(0), " rows cannot be cut into ",
                                  micro_batches, " micro-batches"),
                     "give larger batches, or a plan with fewer micro_batches");
  }
}

// The longer ones first; sizes differ by one row at most.
std::vector<std::vector<at::Tensor>> micro_batches_of(const std::vector<at::Tensor>& batch,
                                                      std::int64_t count) {
  const std::int64_t rows = batch[0].size(0);
  std::vector<std::vector<at::Tensor>> all;
  std::int64_t begin = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t length = rows / count + (i < rows % count ? 1 : 0);
    std::vector<at::Tensor>& micro_batch = all.emplace_back();
    for (const at::Tensor& tensor : batch) {
      micro_batch.push_back(tensor.narrow(0, begin, length));
    }
    begin += length;
  }
  return all;
}

}  // namespace

struct Pipeline::Impl {
  // What is made for batches of one shape.
  struct Prepared {
    Prepared(Impl& its, const std::vector<std::vector<at::Tensor>>& micro_batches);
    static pipeline::StagedGraph captured(
        Impl& its, const std::vector<std::vector<at::Tensor>>& micro_batches);

    pipeline::StagedGraph staged;
    pipeline::Executor executor;
    std::optional<GradientReducer> reducer;  // over data
    pipeline::StagedGraph::NamedTensors parameters;
    pipeline::StagedGraph::NamedTensors buffers;
    std::int64_t made_in_step;
  };

  Prepared& prepared_for(const std::vector<std::vector<at::Tensor>>& micro_batches);
  void check_same_batch(const std::vector<std::vector<at::Tensor>>& micro_batches) const;
  void check_same_stages(const Prepared& made) const;
  const Prepared& last() const;

  torch::nn::Module& module;
  graph::Forward forward;
  Plan plan;
  comm::Group group;
  comm::Group stages;
  comm::Group data;
  std::uint64_t seed = 0;
  std::int64_t steps = 0;
  std::map<std::string, std::unique_ptr<Prepared>> prepared{};
  Prepared* latest = nullptr;
};

// A rank whose module cannot be captured says so to the others, which would wait for it.
pipeline::StagedGraph Pipeline::Impl::Prepared::captured(
    Impl& its, const std::vector<std::vector<at::Tensor>>& micro_batches) {
  std::optional<pipeline::StagedGraph> staged;
  detail::succeed_together(its.group, "capture the module", [&] {
    staged.emplace(its.module, its.forward, micro_batches, its.plan);
  });
  return std::move(*staged);
}

Pipeline::Impl::Prepared::Prepared(Impl& its,
                                   const std::vector<std::vector<at::Tensor>>& micro_batches)
    : staged(captured(its, micro_batches)),
      executor(staged.program(),
               staged.code_of(its.stages.rank(),
                              {.seed = its.seed,
                               .first_micro_batch = its.data.rank() * its.plan.micro_batches}),
               its.stages),
      parameters(staged.parameters_of(its.stages.rank())),
      buffers(staged.buffers_of(its.stages.rank())),
      made_in_step(its.steps) {
  if (its.data.size() == 1) return;
  torch::OrderedDict<std::string, at::Tensor> named;
  for (const auto& [name, tensor] : parameters) named.insert(name, tensor);
  const auto weights = static_cast<std::int64_t>(staged.program().sum_of_weights());
  reducer.emplace(named, its.data,
                  GradientReducerOptions{.reduction = its.plan.gradient_reduction,
                                         .degree = weights * its.data.size()});
}

Pipeline::Impl::Prepared& Pipeline::Impl::prepared_for(
    const std::vector<std::vector<at::Tensor>>& micro_batches) {
  std::string key;
  for (const auto& micro_batch : micro_batches) key += graph::capture_key(module, micro_batch);
  detail::check_same_text("shapes and mode of a batch", key, group);
  auto& found = prepared[key];
  if (!found) {
    check_same_batch(micro_batches);
    auto made = std::make_unique<Prepared>(*this, micro_batches);
    check_same_stages(*made);
    found = std::move(made);
  } else if (std::has_single_bit(static_cast<std::uint64_t>(steps - found->made_in_step))) {
    check_same_batch(micro_batches);
    detail::succeed_together(group, "go on with what was captured", [&] {
      found->staged.check_still_true(module, forward, micro_batches);
    });
  }
  latest = found.get();
  return *found;
}

// Of two batches one would lend its inputs to the other's labels, and nothing else would tell.
void Pipeline::Impl::check_same_batch(
    const std::vector<std::vector<at::Tensor>>& micro_batches) const {
  std::string digests;
  for (const auto& micro_batch : micro_batches) {
    for (const at::Tensor& tensor : micro_batch) {
      digests += join_message(detail::digest_of(tensor.contiguous()), "\n");
    }
  }
  detail::check_same_text("batch of one pipeline", digests, stages);
}

// A rank has trained the parameters that it has had.
void Pipeline::Impl::check_same_stages(const Prepared& made) const {
  if (latest == nullptr) return;
  using Named = pipeline::StagedGraph::NamedTensors::value_type;
  for (int rank = 0; rank < stages.size(); ++rank) {
    const auto had = latest->staged.parameters_of(rank);
    const auto has = made.staged.parameters_of(rank);
    if (std::ranges::equal(had, has, {}, &Named::first, &Named::first)) continue;
    throw UsageError(
        join_message("for a batch of other shapes, or in another mode, stages of equal cost are "
                     "others: rank ",
                     rank, " along pipe would have other parameters than it has trained"),
        "name the modules that begin stages in plan.stages");
  }
}

const Pipeline::Impl::Prepared& Pipeline::Impl::last() const {
  if (latest == nullptr) {
    throw UsageError("the pipeline has not run a step, which captures the module",
                     "call step() first");
  }
  return *latest;
}

Pipeline::Pipeline(torch::nn::Module& module, graph::Forward forward, const Plan& plan,
                   const comm::Group& group) {
  validate(plan, group.size());
  check_plan(plan);
  detail::check_same_text("plan", trireme::to_string(plan), group);
  std::vector<NamedTensor> tensors = detail::named_tensors(module.named_parameters());
  detail::check_same_on_all_ranks(tensors, "parameter", group);
  const std::vector<NamedTensor> buffers = detail::named_tensors(module.named_buffers());
  detail::check_same_on_all_ranks(buffers, "buffer", group);
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  if (plan.broadcast_parameters) broadcast_all(tensors, group);
  const Plan whole = on_both_axes(plan, group);
  const DeviceMesh mesh(group, whole.mesh);
  impl_ = std::make_unique<Impl>(Impl{.module = module,
                                      .forward = std::move(forward),
                                      .plan = whole,
                                      .group = group,
                                      .stages = mesh.group(mesh.axis(kStageAxis)),
                                      .data = mesh.group(mesh.axis(kDataAxis)),
                                      .seed = shared_seed(group)});
}

Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline& Pipeline::operator=(Pipeline&&) noexcept = default;
Pipeline::~Pipeline() = default;

PipelineStep Pipeline::step(const std::vector<at::Tensor>& batch, bool report) {
  check_batch(batch, impl_->plan.micro_batches);
  const auto micro_batches = micro_batches_of(batch, impl_->plan.micro_batches);
  Impl::Prepared& prepared = impl_->prepared_for(micro_batches);
  if (impl_->plan.broadcast_buffers && impl_->data.size() > 1) {
    for (const auto& [name, buffer] : prepared.buffers) {
      comm::broadcast(buffer, 0, impl_->data, name);
    }
  }
  // What is there already has been added up over ranks and divided.
  std::vector<at::Tensor> before;
  if (prepared.reducer) {
    for (auto& [name, parameter] : prepared.parameters) {
      before.push_back(std::exchange(parameter.mutable_grad(), {}));
    }
  }
  pipeline::StepResult result =
      prepared.executor.step(micro_batches, impl_->steps, {.share_loss = true, .report = report});
  if (prepared.reducer) {
    prepared.reducer->reduce();
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (!before[i].defined()) continue;
      at::Tensor& gradient = prepared.parameters[i].second.mutable_grad();
      if (gradient.defined()) before[i].add_(gradient);
      gradient = before[i];
    }
  }
  ++impl_->steps;
  return {.loss = std::move(result.loss), .report = std::move(result.report)};
}

void Pipeline::gather_parameters() {
  const at::NoGradGuard no_grad;
  const Impl::Prepared& prepared = impl_->last();
  std::map<std::string, int> given;  // by which rank
  for (int rank = 0; rank < impl_->stages.size(); ++rank) {
    auto tensors = prepared.staged.parameters_of(rank);
    const auto buffers = prepared.staged.buffers_of(rank);
    tensors.insert(tensors.end(), buffers.begin(), buffers.end());
    for (const auto& [name, tensor] : tensors) {
      if (!given.emplace(name, rank).second) continue;
      comm::broadcast(tensor, rank, impl_->stages, name);
    }
  }
}

Sharing Pipeline::sharing() const {
  return {.group = impl_->stages, .is_part = [this](const at::Tensor& parameter) {
            const Impl::Prepared& prepared = impl_->last();
            for (int rank = 0; rank <= impl_->stages.rank(); ++rank) {
              for (const auto& [name, tensor] : prepared.staged.parameters_of(rank)) {
                if (tensor.is_same(parameter)) return rank == impl_->stages.rank();
              }
            }
            return false;
          }};
}

const Plan& Pipeline::plan() const noexcept { return impl_->plan; }
const comm::Group& Pipeline::stage_group() const noexcept { return impl_->stages; }
const comm::Group& Pipeline::data_group() const noexcept { return impl_->data; }
const graph::Graph& Pipeline::graph() const { return impl_->last().staged.graph(); }
const std::vector<int>& Pipeline::boundaries() const { return impl_->last().staged.boundaries(); }
const schedule::Schedule& Pipeline::schedule() const { return impl_->last().executor.schedule(); }
std::string Pipeline::to_string() const { return impl_->last().staged.to_string(); }

}  // namespace trireme
