// SPDX-License-Identifier: Apache-2.0
#include <trireme/plan/plan.h>

#include <trireme/base/config/suggestion.h>
#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/plan/plan_config.h>
#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/schedule_text.h>

#include <algorithm>

namespace trireme {
namespace {

std::int64_t size_of_axis(const Plan& plan, const char* name) {
  const auto found = std::ranges::find(plan.mesh, name, &MeshAxis::name);
  return found == plan.mesh.end() ? 1 : found->size;
}

const char* yes_no(bool value) { return value ? "yes" : "no"; }

const char* name_of(GradientCompression wire) {
  switch (wire) {
    case GradientCompression::kNone:
      return "as they are";
    case GradientCompression::kFp16:
      return "fp16";
    case GradientCompression::kBf16:
      return "bf16";
  }
  return "unknown";
}

// Indents all lines of a text except the first to the second column of the table.
std::string in_column(const std::string& text) {
  std::string lines;
  for (const char letter : text) {
    lines += letter == '\n' ? "\n                     " : std::string(1, letter);
  }
  return lines;
}

}  // namespace

std::optional<schedule::Schedule> own_schedule(const Plan& plan) {
  if (std::ranges::find(schedule::kKinds, plan.schedule) != schedule::kKinds.end()) return {};
  if (!plan.schedule.starts_with("trireme-schedule")) {
    const std::vector<std::string> kinds(schedule::kKinds.begin(), schedule::kKinds.end());
    const std::string meant = config::did_you_mean(plan.schedule, kinds);
    throw UsageError(
        join_message("plan: schedule is '", plan.schedule, "', expected one of ", list_text(kinds),
                     ", or the text of a schedule (docs/formats/schedule.md)"),
        meant.empty() ? "read a file with schedule::read_schedule first, and give its "
                        "text (schedule::to_text)"
                      : meant);
  }
  return schedule::parse_schedule(plan.schedule, "plan.schedule");
}

int zero_level_of(const Plan& plan, const std::string& name) {
  const auto found = std::ranges::find_if(plan.zero_level_of, [&](const auto& rule) {
    return name == rule.first || name.starts_with(rule.first + ".");
  });
  return found == plan.zero_level_of.end() ? plan.zero_level : found->second;
}

bool cuts_anything(const Plan& plan) {
  return plan.zero_level > 0 ||
         std::ranges::any_of(plan.zero_level_of, [](const auto& rule) { return rule.second > 0; });
}

bool cuts_parameters(const Plan& plan) {
  return plan.zero_level == 3 ||
         std::ranges::any_of(plan.zero_level_of, [](const auto& rule) { return rule.second == 3; });
}

int data_ranks(const Plan& plan, int ranks) {
  return plan.mesh.empty() ? ranks : static_cast<int>(size_of_axis(plan, kDataAxis));
}

int stage_ranks(const Plan& plan) { return static_cast<int>(size_of_axis(plan, kStageAxis)); }

bool shares_work(const Plan& plan) {
  return std::ranges::any_of(plan.mesh, [](const MeshAxis& axis) {
    return axis.name != kDataAxis && axis.name != kStageAxis;
  });
}

std::string to_string(const Plan& plan) {
  std::string sparse;
  for (const std::string& name : plan.sparse_gradients) sparse += " " + name;
  std::string levels;
  for (const auto& [name, level] : plan.zero_level_of) {
    levels += join_message(", ", level, " for ", name);
  }
  const auto text_of = [](const auto& layout) { return to_string(layout); };
  const std::string layouts = list_text(plan.layouts, "\n                     ", text_of);
  const std::string operators = list_text(plan.operators, "\n                     ", text_of);
  const std::string pipeline = list_text(plan.stages, ", ", [](const auto& stage) {
    return join_message(stage.second, " from ", stage.first);
  });
  const std::string recomputed = list_text(plan.recompute);
  if (plan.mode == PlanMode::kAutomatic) {
    const std::string constraints = list_text(plan.constraints);
    return join_message("mode                 automatic\n",  //
                        "constraints          ", constraints.empty() ? "none" : constraints, "\n");
  }
  const config::Value attention = config::Codec<SequenceAttention>::write(plan.sequence_attention);
  return join_message("mesh                 ", plan.mesh.empty() ? "data" : to_string(plan.mesh),
                      "\n",  //
                      "layouts              ", layouts.empty() ? "none" : layouts, "\n",
                      "operators            ", operators.empty() ? "cheapest" : operators, "\n",
                      "sequence attention   ", *attention.text(), "\n",  //
                      "stages               ", pipeline.empty() ? "balanced" : pipeline, "\n",
                      "schedule             ", in_column(plan.schedule), "\n",  //
                      "chunks               ", plan.chunks, "\n",               //
                      "recompute            ", recomputed.empty() ? "nothing" : recomputed, "\n",
                      "activation bytes     ", plan.activation_bytes, "\n",  //
                      "offload activations  ", yes_no(plan.offload_activations), "\n",
                      "data parallel        ", yes_no(plan.data_parallel), "\n",  //
                      "micro-batches        ", plan.micro_batches, "\n",          //
                      "bucket bytes         ", plan.bucket_bytes, "\n",           //
                      "first bucket bytes   ", plan.first_bucket_bytes, "\n",     //
                      "all-reduce streams   ", plan.allreduce_streams, "\n",      //
                      "ZeRO level           ", plan.zero_level, levels, "\n",     //
                      "shard ranks          ", plan.shard_ranks, "\n",            //
                      "gathered buckets     ", plan.gathered_buckets, "\n",       //
                      "offload optimizer    ", yes_no(plan.offload_optimizer), "\n",
                      "sparse gradients    ", sparse.empty() ? " of embeddings" : sparse, "\n",
                      "reduction            ",
                      plan.gradient_reduction == GradientReduction::kMean ? "mean" : "sum", "\n",
                      "predivide            ", plan.gradient_predivide, "\n",  //
                      "gradients on wire    ", name_of(plan.wire), "\n",       //
                      "divide by active     ", yes_no(plan.divide_by_active_ranks), "\n",
                      "broadcast parameters ", yes_no(plan.broadcast_parameters), "\n",
                      "broadcast buffers    ", yes_no(plan.broadcast_buffers), "\n",
                      "sync batch norm      ", yes_no(plan.sync_batch_norm), "\n");
}

}  // namespace trireme
