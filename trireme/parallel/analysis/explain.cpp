// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/explain.h>

#include <trireme/base/error.h>
#include <trireme/cluster/collective_cost.h>
#include <trireme/parallel/analysis/explain_reasons.h>
#include <trireme/parallel/buckets/bucket_layout.h>
#include <trireme/parallel/module/named_tensors.h>
#include <trireme/parallel/record/module_dry_run.h>
#include <trireme/parallel/tensor_parallel/cluster_links.h>
#include <trireme/parallel/tensor_parallel/distribute_module.h>
#include <trireme/plan/check_plan.h>
#include <trireme/plan/rank_groups.h>
#include <trireme/tensor/axis_links.h>
#include <trireme/tensor/dispatch/decision.h>
#include <trireme/tensor/dry_run/results.h>

#include <ATen/ops/empty.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

namespace trireme {
namespace {

using detail::NamedTensor;
std::vector<MeshAxis> axes_without_data(const Plan& plan) {
  std::vector<MeshAxis> axes;
  std::ranges::copy_if(plan.mesh, std::back_inserter(axes),
                       [](const MeshAxis& axis) { return axis.name != kDataAxis; });
  // On an axis of one rank every tensor is whole.
  if (axes.empty()) axes.push_back({"tensor", 1});
  return axes;
}

void check_explainable(const Plan& plan) {
  if (plan.mesh.empty()) {
    throw UsageError(
        "the plan to explain has no mesh",
        "name its axes, such as {{\"data\", 8}}: nothing runs here that could tell how "
        "many ranks there are");
  }
  if (stage_ranks(plan) > 1) {
    throw UsageError(join_message("the plan to explain has ", stage_ranks(plan),
                                  " ranks along pipe, which communicate as their schedule says"),
                     "explain it without that axis, and print the schedule: trireme schedule");
  }
  check_plan(plan, {.ranks = static_cast<int>(num_ranks(plan.mesh))});
}

DeviceMesh mesh_of(const Plan& plan, const DeviceMesh& given) {
  const std::vector<MeshAxis> axes = axes_without_data(plan);
  if (!given.defined()) return DeviceMesh::unconnected(axes);
  if (given.state()->axes == axes) return given;
  const DeviceMesh expected = DeviceMesh::unconnected(axes);
  throw UsageError(join_message("explain got a mesh of ", given.to_string(), ", and the plan has ",
                                expected.to_string(), " besides data"),
                   "give the mesh of the plan's other axes, in their order");
}

double bytes_of(const NamedTensor& item) {
  return static_cast<double>(item.tensor.numel()) * static_cast<double>(item.tensor.element_size());
}

// -- along data --------------------------------------------------------------------------------

class DataAxis {
 public:
  DataAxis(const Plan& plan, const std::optional<cluster::Cluster>& described,
           std::vector<ExplainedCommunication>& lines)
      : plan_(plan), lines_(lines), ranks_(data_ranks(plan, 1)) {
    if (!described) return;
    cluster_ = detail::cluster_for(plan, *described);
    groups_.emplace(plan_, *cluster_);
  }

  /// Adds the exchanges of gradients.
  /// @param gradients this rank's parts, in the order in which backward computes them.
  void explain(const std::vector<NamedTensor>& gradients) {
    if (ranks_ == 1 || !plan_.data_parallel || gradients.empty()) return;
    std::vector<std::size_t> order(gradients.size());
    std::iota(order.begin(), order.end(), 0);
    std::vector<int> zero_levels;
    for (const NamedTensor& item : gradients)
      zero_levels.push_back(zero_level_of(plan_, item.name));
    const std::int64_t bytes = bucket_bytes(gradients);
    for (const detail::BucketLayout& bucket : detail::assign_buckets(
             gradients, order, std::min(plan_.first_bucket_bytes, bytes), bytes, zero_levels)) {
      std::vector<std::string> names;
      for (const auto& place : bucket.places) names.push_back(gradients[place.tensor].name);
      const at::Tensor& first = gradients[bucket.places.front().tensor].tensor;
      explain_bucket(bucket, names, first);
    }
  }

 private:
  std::int64_t bucket_bytes(const std::vector<NamedTensor>& gradients) const {
    if (plan_.bucket_bytes > 0) return plan_.bucket_bytes;
    double all = 0;
    for (const NamedTensor& item : gradients) all += bytes_of(item);
    constexpr std::int64_t kMiB = 1 << 20;
    return std::clamp(static_cast<std::int64_t>(all) / 16, kMiB, 25 * kMiB);
  }

  void explain_bucket(const detail::BucketLayout& bucket, const std::vector<std::string>& names,
                      const at::Tensor& first) {
    const auto elements = static_cast<double>(bucket.elements);
    const double bytes = elements * static_cast<double>(first.element_size());
    const bool is_halved =
        plan_.wire != GradientCompression::kNone && first.scalar_type() == at::kFloat;
    const std::string what =
        join_message("gradients of ", names.front(),
                     names.size() > 1 ? join_message(" and ", names.size() - 1, " more") : "");
    const char* asked_by = "ranks along data have other data";
    if (bucket.kind == 0) {
      add(Collective::kAllReduce, is_halved ? bytes / 2 : bytes, {.ranks = ranks_}, what, asked_by);
      return;
    }
    const std::int64_t cut = plan_.shard_ranks == 0 ? ranks_ : plan_.shard_ranks;
    const auto parts = static_cast<double>(cut);
    add(Collective::kReduceScatter, is_halved ? bytes / 2 : bytes, {.ranks = cut}, what, asked_by);
    add(Collective::kAllReduce, bytes / parts, {.ranks = ranks_ / cut, .every = cut}, what,
        asked_by);
    const std::string parameters = "parameters" + what.substr(std::string_view("gradients").size());
    // Without a limit of gathered buckets, those of forward stay whole for backward.
    const int times = bucket.kind == 3 && plan_.gathered_buckets > 0 ? 2 : 1;
    for (int i = 0; i < times; ++i) {
      add(Collective::kAllGather, bytes, {.ranks = cut}, parameters,
          bucket.kind < 3 ? "each rank steps a part of them (ZeRO)"
          : i == 0        ? "forward needs them whole (ZeRO level 3)"
                          : "backward needs them whole (ZeRO level 3)");
    }
  }

  // Ranks along data that communicate: some consecutive ones, or every n-th of all.
  struct Some {
    std::int64_t ranks = 1;
    std::int64_t every = 1;
  };

  double seconds_of(Collective collective, double bytes, const Some& some) const {
    if (!groups_) return seconds(collective, bytes, some.ranks);
    return some.every > 1 ? groups_->seconds_of_every(kDataAxis, some.every, collective, bytes)
                          : groups_->seconds_of_part(kDataAxis, some.ranks, collective, bytes);
  }

  void add(Collective collective, double bytes, const Some& some, const std::string& what,
           const char* asked_by) {
    if (some.ranks == 1) return;
    lines_.push_back({.collective = detail::name_of(collective),
                      .axis = kDataAxis,
                      .bytes = bytes_sent(collective, bytes, some.ranks),
                      .seconds = seconds_of(collective, bytes, some),
                      .tensor = what,
                      .asked_by = asked_by});
  }

  const Plan& plan_;
  std::vector<ExplainedCommunication>& lines_;
  std::int64_t ranks_;
  std::optional<cluster::Cluster> cluster_;
  std::optional<RankGroups> groups_;  // on `cluster_`
};

// -- the whole ---------------------------------------------------------------------------------

void add_gradients(Explanation& explanation, const Plan& plan,
                   const std::vector<NamedTensor>& parameters,
                   const std::vector<DistributedParameter>& given,
                   const std::vector<detail::DryRunGradient>& gradients,
                   const detail::Reasons& reasons,
                   const std::optional<cluster::Cluster>& described) {
  std::vector<NamedTensor> parts;
  for (const detail::DryRunGradient& gradient : gradients) {
    const NamedTensor& parameter = parameters[gradient.parameter];
    const Layout& layout = given[gradient.parameter].layout;
    for (ExplainedCommunication& line : reasons.of_gradient(gradient.tensor, layout)) {
      line.tensor = "gradient of " + parameter.name;
      explanation.gradients.push_back(std::move(line));
    }
    const auto options = at::TensorOptions().dtype(gradient.tensor.dtype).device(at::kMeta);
    parts.push_back(
        {parameter.name, tensor::meta_part(at::empty(gradient.tensor.sizes, options), layout)});
  }
  // Backward computes the gradients of the last layers first.
  std::ranges::reverse(parts);
  DataAxis(plan, described, explanation.gradients).explain(parts);
}

void add_memory(Explanation& explanation, const std::vector<NamedTensor>& tensors,
                const std::vector<DistributedParameter>& given) {
  double whole = 0;
  double here = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i].tensor;
    double elements = 1;
    for (const std::int64_t size :
         local_sizes(tensor.sizes(), given[i].layout, tensor::coordinate_here(explanation.mesh))) {
      elements *= static_cast<double>(size);
    }
    whole += bytes_of(tensors[i]);
    here += elements * static_cast<double>(tensor.element_size());
  }
  explanation.bytes = static_cast<std::int64_t>(whole);
  explanation.bytes_of_rank = static_cast<std::int64_t>(here);
}

}  // namespace

Explanation explain(ModuleRef holder, const Plan& plan, const std::function<at::Tensor()>& forward,
                    const DeviceMesh& mesh) {
  torch::nn::Module& module = *holder;
  check_explainable(plan);
  Explanation explanation;
  explanation.mesh = mesh_of(plan, mesh);
  explanation.axes = plan.mesh;
  const std::optional<cluster::Cluster> described = detail::cluster_of_environment();
  // A mesh of a module that was made parallel has its links already.
  if (described && !tensor::has_axis_links(explanation.mesh)) {
    detail::set_links(explanation.mesh, plan, *described);
  }
  const std::vector<NamedTensor> tensors = detail::parameters_and_buffers(module);
  const std::vector<DistributedParameter> given =
      planned_layouts(module, explanation.mesh, plan.layouts);
  std::vector<Layout> layouts;
  for (const DistributedParameter& item : given) layouts.push_back(item.layout);
  add_memory(explanation, tensors, given);

  const detail::ModuleDryRun recorded = detail::dry_run_module(tensors, layouts, forward);
  const detail::Reasons reasons(recorded.calls, plan);
  add_gradients(explanation, plan, tensors, given, recorded.gradients, reasons, described);
  for (std::size_t i = 0; i < recorded.calls.size(); ++i) {
    explanation.operators.push_back({.call = recorded.calls[i],
                                     .communication = reasons.of_call(static_cast<int>(i)),
                                     .is_backward = i >= recorded.num_forward});
  }
  return explanation;
}

}  // namespace trireme
