// SPDX-License-Identifier: Apache-2.0
#include <trireme/plan/plan.h>

#include <trireme/base/config/suggestion.h>
#include <trireme/base/error.h>
#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/schedule_text.h>
#include <trireme/schedule/verifier/verify.h>

#include <algorithm>

namespace trireme {
namespace {

template <typename Value>
[[noreturn]] void refuse(const char* field, const Value& value, const std::string& expected) {
  throw UsageError(join_message("plan: ", field, " is ", value, ", expected ", expected),
                   "correct the plan before handing it to parallelize");
}

void check_at_least_one(const char* field, std::int64_t value) {
  if (value < 1) refuse(field, value, "1 or more");
}

std::string describe(const std::vector<MeshAxis>& mesh) {
  std::string text;
  for (const MeshAxis& axis : mesh) {
    text += join_message(text.empty() ? "" : ", ", axis.name, "=", axis.size);
  }
  return text;
}

std::int64_t size_of_axis(const Plan& plan, const char* name) {
  const auto found = std::ranges::find(plan.mesh, name, &MeshAxis::name);
  return found == plan.mesh.end() ? 1 : found->size;
}

void check_mesh(const Plan& plan, int ranks) {
  if (plan.mesh.empty()) return;
  std::int64_t product = 1;
  for (const MeshAxis& axis : plan.mesh) {
    if (axis.size < 1) refuse("mesh", describe(plan.mesh), "sizes of 1 or more");
    if (axis.name.empty() || std::ranges::count(plan.mesh, axis.name, &MeshAxis::name) > 1) {
      refuse("mesh", describe(plan.mesh), "another name for every axis");
    }
    product *= axis.size;
  }
  if (product != ranks) {
    refuse("mesh", describe(plan.mesh),
           join_message("sizes that multiply to the ", ranks, " ranks there are"));
  }
}

// Refuses axes that nothing uses: their ranks would each train alone, or all do the same work.
void check_axes(const Plan& plan) {
  const auto names = [](const ParameterLayout& layout, const std::string& axis) {
    return std::ranges::any_of(layout.placements,
                               [&](const auto& other) { return other.first == axis; });
  };
  for (const MeshAxis& axis : plan.mesh) {
    if (axis.name == kDataAxis || axis.name == kStageAxis) continue;
    if (std::ranges::any_of(plan.layouts,
                            [&](const auto& rule) { return names(rule, axis.name); })) {
      continue;
    }
    const std::string meant = config::did_you_mean(axis.name, {kDataAxis, kStageAxis});
    if (axis.size == 1 && meant.empty()) continue;
    throw UsageError(
        join_message("plan: mesh is ", describe(plan.mesh), ", and no layout names its axis ",
                     axis.name,
                     "; ranks have different data along `data`, different modules along "
                     "`pipe`, and parts of parameters along axes that layouts name"),
        meant.empty()
            ? join_message("cut parameters along it in plan.layouts; where they are whole "
                           "along it on purpose, say so by {\"*\", {{\"",
                           axis.name, "\", Replicate{}}}}")
            : meant);
  }
}

void check_layout(const ParameterLayout& layout, const Plan& plan) {
  for (const auto& [axis, placement] : layout.placements) {
    if (axis == kDataAxis) {
      refuse("layouts", to_string(layout),
             "another axis than data: what is cut along that one says zero_level");
    }
    if (axis == kStageAxis) {
      refuse("layouts", to_string(layout),
             "another axis than pipe: which rank has which module says stages");
    }
    if (std::ranges::find(plan.mesh, axis, &MeshAxis::name) == plan.mesh.end()) {
      std::vector<std::string> names;
      for (const MeshAxis& each : plan.mesh) names.push_back(each.name);
      const std::string meant = config::did_you_mean(axis, names);
      refuse(
          "layouts", to_string(layout),
          plan.mesh.empty()
              ? "a mesh that has the axis " + axis
              : join_message("an axis of the mesh ", describe(plan.mesh), meant.empty() ? "" : "; ",
                             meant, meant.empty() ? "" : " Or is the name in the mesh misspelt?"));
    }
    if (placement.is_partial() || placement.is_flat_shard()) {
      refuse("layouts", to_string(layout), "Shard or Replicate");
    }
  }
}

void check_zero_level(const char* field, int level, const Plan& plan) {
  if (level < 0 || level > 3) refuse(field, level, "0 to 3");
  if (level > 0 && !plan.data_parallel) refuse(field, level, "0 where data_parallel is false");
}

void check_own_schedule(const Plan& plan, const schedule::Schedule& own, int last_stage) {
  if (own.num_ranks() != stage_ranks(plan)) {
    refuse("schedule", join_message("one of ", own.num_ranks(), " ranks"),
           join_message("one of the ", stage_ranks(plan), " ranks along pipe"));
  }
  if (own.micro_batches != plan.micro_batches) {
    refuse("micro_batches", plan.micro_batches,
           join_message(own.micro_batches, ", as many as its schedule is for"));
  }
  if (!plan.stages.empty() && last_stage + 1 != own.num_stages()) {
    refuse("stages", join_message(last_stage + 1, " of them"),
           join_message("the ", own.num_stages(), " of its schedule"));
  }
  if (plan.chunks != 0) refuse("chunks", plan.chunks, "0: its schedule says which rank has what");
  for (const auto& actions : own.ranks) {
    for (const schedule::Action& action : actions) {
      if (schedule::computes(action.kind) || schedule::is_message(action.kind)) continue;
      refuse("schedule", "one with " + schedule::to_text(action),
             "computation and messages: a pipeline does the rest itself, as the plan says");
    }
  }
  using Transfers = schedule::VerifyOptions::Transfers;
  schedule::verify(own, {.transfers = schedule::lists_messages(own) ? Transfers::kListed
                                                                    : Transfers::kImplicit});
  if (!schedule::keeps_order_of_gradients(own)) {
    refuse("schedule", "one that computes weight gradients of a stage in another order",
           "that of micro-batches, in which they are added");
  }
}

// Checks the stages: in the order of execution, each number is that of the previous entry or one
// more.
void check_stages(const Plan& plan) {
  int last = 0;
  for (const auto& [path, stage] : plan.stages) {
    if (stage < last || stage > last + 1) {
      refuse(("stages: " + path).c_str(), stage,
             join_message(last, " or ", last + 1,
                          ": stages are named in the order of execution, counted from 0, and none "
                          "is left out"));
    }
    last = stage;
  }
  if (plan.chunks < 0) refuse("chunks", plan.chunks, "0 or more");
  if (const auto own = own_schedule(plan)) return check_own_schedule(plan, *own, last);
  const int ranks = stage_ranks(plan);
  if (!plan.stages.empty() && (last + 1) % ranks != 0) {
    refuse("stages", join_message(last + 1, " of them"),
           join_message("as many for each of the ", ranks, " ranks along pipe"));
  }
  if (!plan.stages.empty() && plan.chunks > 0 && plan.chunks * ranks != last + 1) {
    refuse("chunks", plan.chunks,
           join_message("0, or the ", (last + 1) / ranks, " stages that each rank has"));
  }
}

void check_recomputation(const Plan& plan) {
  if (std::ranges::find(plan.recompute, "") != plan.recompute.end()) {
    refuse("recompute", "an empty pattern", "patterns of modules or operators, `*` for everything");
  }
  if (plan.activation_bytes < 0) refuse("activation_bytes", plan.activation_bytes, "0 or more");
  if (plan.activation_bytes > 0 && !plan.recompute.empty()) {
    refuse("activation_bytes", plan.activation_bytes,
           "0 where recompute says what is computed again");
  }
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
    std::string kinds;
    for (const std::string_view kind : schedule::kKinds) kinds += join_message(" ", kind);
    refuse("schedule", plan.schedule,
           "one of" + kinds + ", or the text of a schedule (schedule::to_text, docs/formats)");
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
  std::string layouts;
  for (const ParameterLayout& layout : plan.layouts) {
    layouts += (layouts.empty() ? "" : "\n                     ") + to_string(layout);
  }
  std::string pipeline;
  for (const auto& [path, stage] : plan.stages) {
    pipeline += join_message(pipeline.empty() ? "" : ", ", stage, " from ", path);
  }
  std::string recomputed;
  for (const std::string& pattern : plan.recompute) {
    recomputed += (recomputed.empty() ? "" : ", ") + pattern;
  }
  return join_message("mesh                 ", plan.mesh.empty() ? "data" : describe(plan.mesh),
                      "\n",  //
                      "layouts              ", layouts.empty() ? "none" : layouts, "\n",
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

void validate(const Plan& plan, int ranks) {
  check_mesh(plan, ranks);
  for (const ParameterLayout& layout : plan.layouts) check_layout(layout, plan);
  check_axes(plan);
  if (shares_work(plan) && plan.sync_batch_norm) {
    refuse(
        "sync_batch_norm", "true",
        "false where the mesh has other axes than data: batch norm of distributed tensors is over "
        "all ranks that share a batch");
  }
  check_stages(plan);
  check_recomputation(plan);
  check_at_least_one("micro_batches", plan.micro_batches);
  if (plan.bucket_bytes < 0) refuse("bucket_bytes", plan.bucket_bytes, "0 or more");
  check_at_least_one("first_bucket_bytes", plan.first_bucket_bytes);
  check_zero_level("zero_level", plan.zero_level, plan);
  for (const auto& [name, level] : plan.zero_level_of) {
    check_zero_level(("zero_level_of " + name).c_str(), level, plan);
  }
  const int along_data = data_ranks(plan, ranks);
  if (plan.shard_ranks < 0 || (plan.shard_ranks > 0 && along_data % plan.shard_ranks != 0)) {
    refuse("shard_ranks", plan.shard_ranks,
           join_message("0, or a divisor of the ", along_data, " ranks",
                        shares_work(plan) ? " along data" : ""));
  }
  if (plan.gathered_buckets < 0 || plan.gathered_buckets == 1) {
    refuse("gathered_buckets", plan.gathered_buckets, "0 for all, or 2 or more");
  }
  if (!(plan.gradient_predivide > 0))
    refuse("gradient_predivide", plan.gradient_predivide, "a number above 0");
  if (plan.allreduce_streams < 0 || plan.allreduce_streams > 16) {
    refuse("allreduce_streams", plan.allreduce_streams, "0 to 16");
  }
}

}  // namespace trireme
