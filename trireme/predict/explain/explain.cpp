// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/explain.h>

#include <trireme/base/error.h>
#include <trireme/cluster/collective_cost.h>
#include <trireme/parallel/module/agreement.h>
#include <trireme/parallel/record/module_dry_run.h>
#include <trireme/parallel/record/module_record.h>
#include <trireme/parallel/tensor_parallel/cluster_links.h>
#include <trireme/plan/check_plan.h>
#include <trireme/plan/plan_schedule.h>
#include <trireme/plan/rank_groups.h>
#include <trireme/predict/buckets.h>
#include <trireme/predict/explain/explain_reasons.h>
#include <trireme/predict/predictable_plan.h>
#include <trireme/predict/stage_work.h>

#include <torch/nn/module.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace trireme::predict {
namespace {

using detail::NamedTensor;

void check_explainable(const Plan& plan) {
  if (plan.mesh.empty()) {
    throw UsageError(
        "the plan to explain has no mesh",
        "name its axes, such as {{\"data\", 8}}: nothing runs here that could tell how "
        "many ranks there are");
  }
  check_plan(plan, use_of(plan));
}

void check_mesh(const Plan& plan, const DeviceMesh& given) {
  if (!given.defined() || given.state()->axes == axes_of_layouts(plan)) return;
  const DeviceMesh expected = DeviceMesh::unconnected(axes_of_layouts(plan));
  throw UsageError(join_message("explain got a mesh of ", given.to_string(), ", and the plan has ",
                                expected.to_string(), " besides data and pipe"),
                   "give the mesh of the plan's other axes, in their order");
}

// The links between the ranks of a plan: those of a described cluster, or the default Link.
class Links {
 public:
  Links(const Plan& plan, const std::optional<cluster::Cluster>& described) {
    if (!described) return;
    cluster_ = detail::cluster_for(plan, *described);
    groups_.emplace(plan, *cluster_);
  }

  double seconds(const BucketExchange& exchange) const {
    if (!groups_) return trireme::seconds(exchange.collective, exchange.bytes, exchange.ranks);
    return exchange_seconds(*groups_, exchange);
  }

  double message_seconds(double bytes, int from, int to) const {
    if (from == to) return 0;
    if (groups_) return groups_->message_seconds(bytes, from, to);
    const Link link;
    return link.latency + bytes / link.bytes_per_second;
  }

 private:
  std::optional<cluster::Cluster> cluster_;
  std::optional<RankGroups> groups_;  // on `cluster_`
};

class Explaining {
 public:
  Explaining(const Plan& plan, const ModuleRecord& record,
             const std::optional<cluster::Cluster>& described)
      : plan_(plan), record_(record), links_(plan, described) {
    const int micro_batches = static_cast<int>(std::max<std::int64_t>(plan.micro_batches, 1));
    if (needs_training_step(plan)) schedule_ = plan_schedule(plan, micro_batches);
    stages_ = divide(record, plan, schedule_ ? schedule_->num_stages() : 1);
  }

  void add_operators(const std::vector<tensor::DryRunCall>& calls, const Reasons& reasons,
                     Explanation& explanation) const {
    for (std::size_t i = 0; i < calls.size(); ++i) {
      explanation.operators.push_back({.call = calls[i],
                                       .communication = reasons.of_call(static_cast<int>(i)),
                                       .is_backward = static_cast<int>(i) >= record_.num_forward});
    }
    for (std::size_t number = 0; number < stages_.size(); ++number) {
      for (const auto* own : {&stages_[number].forward, &stages_[number].backward}) {
        for (const int call : *own) {
          ExplainedOperator& op = explanation.operators[static_cast<std::size_t>(call)];
          op.stage = static_cast<int>(number);
          for (ExplainedCommunication& line : op.communication) line.stage = op.stage;
        }
      }
    }
  }

  void add_stages(Explanation& explanation) const {
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      const StageWork& stage = stages_[i];
      ExplainedStage made = {.rank = rank_of(i)};
      if (!stage.forward.empty()) {
        made.first_module = record_.call(stage.forward.front()).module;
        made.last_module = record_.call(stage.forward.back()).module;
      }
      for (const int parameter : stage.parameters) made.bytes += parameter_of(parameter).bytes;
      for (const auto& [to, bytes] : stage.sent) {
        const int to_rank = rank_of(static_cast<std::size_t>(to));
        made.messages.push_back({.to = to,
                                 .bytes = bytes,
                                 .seconds = links_.message_seconds(bytes, rank_of(i), to_rank)});
      }
      explanation.stages.push_back(std::move(made));
    }
  }

  // Adds how gradients come to the layouts of their parameters, and their exchange along `data`.
  void add_gradients(const LaidOutModule& laid_out,
                     const std::vector<detail::DryRunGradient>& gradients, const Reasons& reasons,
                     Explanation& explanation) const {
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      const auto add = [&](ExplainedCommunication line) {
        line.stage = static_cast<int>(i);
        explanation.gradients.push_back(std::move(line));
      };
      const std::set<int> own(stages_[i].parameters.begin(), stages_[i].parameters.end());
      for (const detail::DryRunGradient& gradient : gradients) {
        if (!own.contains(static_cast<int>(gradient.parameter))) continue;
        const Layout& layout = laid_out.layouts[gradient.parameter];
        for (ExplainedCommunication& line : reasons.of_gradient(gradient.tensor, layout)) {
          line.tensor = "gradient of " + laid_out.tensors[gradient.parameter].name;
          add(std::move(line));
        }
      }
      if (!plan_.data_parallel || data_ranks(plan_, 1) == 1) continue;
      for (const Bucket& bucket : make_buckets(record_, stages_[i], plan_)) {
        for (ExplainedCommunication& line : exchanges_of(bucket)) add(std::move(line));
      }
    }
  }

  // Adds the memory of parameters and buffers. Ranks along `pipe` hold those of their stages; what
  // no operator reads is on all of them.
  void add_memory(const std::vector<NamedTensor>& tensors, Explanation& explanation) const {
    std::map<int, std::set<int>> held;
    std::set<int> read;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      held[rank_of(i)].insert(stages_[i].parameters.begin(), stages_[i].parameters.end());
      read.insert(stages_[i].parameters.begin(), stages_[i].parameters.end());
    }
    double whole = 0;
    double unread = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      whole += parameter_of(static_cast<int>(i)).global_elements *
               static_cast<double>(tensors[i].tensor.element_size());
      if (!read.contains(static_cast<int>(i))) unread += parameter_of(static_cast<int>(i)).bytes;
    }
    double most = 0;
    for (const auto& [rank, parameters] : held) {
      double bytes = unread;
      for (const int parameter : parameters) bytes += parameter_of(parameter).bytes;
      most = std::max(most, bytes);
    }
    explanation.bytes = static_cast<std::int64_t>(whole);
    explanation.bytes_of_rank = static_cast<std::int64_t>(most);
  }

 private:
  int rank_of(std::size_t stage) const {
    return schedule_ ? schedule_->rank_of(static_cast<int>(stage)) : 0;
  }
  const ParameterRecord& parameter_of(int number) const {
    return record_.parameters[static_cast<std::size_t>(number)];
  }

  std::vector<ExplainedCommunication> exchanges_of(const Bucket& bucket) const {
    std::vector<ExplainedCommunication> lines;
    const DataRanks ranks = data_ranks_of(plan_);
    const std::string names = join_message(
        " of ", parameter_of(bucket.parameters.front()).name,
        bucket.parameters.size() > 1 ? join_message(" and ", bucket.parameters.size() - 1, " more")
                                     : "");
    const auto add = [&](const BucketExchange& exchange, const char* what, const char* asked_by) {
      if (exchange.ranks == 1) return;
      lines.push_back({.collective = name_of(exchange.collective),
                       .axis = kDataAxis,
                       .bytes = bytes_sent(exchange.collective, exchange.bytes, exchange.ranks),
                       .seconds = links_.seconds(exchange),
                       .tensor = what + names,
                       .asked_by = asked_by});
    };
    for (const BucketExchange& exchange : reductions_of(bucket, ranks)) {
      add(exchange, "gradients", "ranks along data have other data");
    }
    if (bucket.zero_level == 0) return lines;
    const BucketExchange gather = gather_of(bucket, ranks);
    if (bucket.zero_level < 3) {
      add(gather, "parameters", "each rank steps a part of them (ZeRO)");
      return lines;
    }
    add(gather, "parameters", "forward needs them whole (ZeRO level 3)");
    // Without a limit of gathered buckets, those of forward stay whole for backward.
    if (plan_.gathered_buckets > 0) {
      add(gather, "parameters", "backward needs them whole (ZeRO level 3)");
    }
    return lines;
  }

  const Plan& plan_;
  const ModuleRecord& record_;
  Links links_;
  std::optional<schedule::Schedule> schedule_;
  std::vector<StageWork> stages_;
};

}  // namespace

Explanation explain(ModuleRef module, const Plan& plan, const std::function<at::Tensor()>& forward,
                    const DeviceMesh& mesh) {
  check_explainable(plan);
  check_mesh(plan, mesh);
  const std::optional<cluster::Cluster> described = detail::cluster_of_environment();
  const LaidOutModule laid_out =
      lay_out_module(*module, plan, described ? &*described : nullptr, mesh);
  const detail::ModuleDryRun dry_run =
      detail::dry_run_module(laid_out.tensors, laid_out.layouts, forward);
  const ModuleRecord record = make_record(laid_out, dry_run);
  const Explaining explaining(plan, record, described);
  const Reasons reasons(dry_run.calls, plan);
  Explanation explanation;
  explanation.mesh = laid_out.mesh;
  explanation.axes = plan.mesh;
  explaining.add_operators(dry_run.calls, reasons, explanation);
  explaining.add_stages(explanation);
  explaining.add_gradients(laid_out, dry_run.gradients, reasons, explanation);
  explaining.add_memory(laid_out.tensors, explanation);
  return explanation;
}

}  // namespace trireme::predict
