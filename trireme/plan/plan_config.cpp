// SPDX-License-Identifier: Apache-2.0
#include <trireme/plan/plan_config.h>

#include <trireme/base/config/configuration.h>
#include <trireme/base/environment.h>
#include <trireme/base/error.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <optional>

namespace trireme::config {

/// Reads and writes an axis as text, such as `data=2`.
template <>
struct Codec<MeshAxis> {
  static std::string expected() { return "an axis and its size such as \"tensor=2\""; }
  static std::optional<MeshAxis> parse(const Value& value) {
    const auto text = value.text();
    const std::size_t at = text ? text->find('=') : std::string::npos;
    if (at == std::string::npos || at == 0) return std::nullopt;
    MeshAxis axis = {.name = text->substr(0, at), .size = 0};
    const char* const end = text->data() + text->size();
    const auto [rest, failure] = std::from_chars(text->data() + at + 1, end, axis.size);
    if (failure != std::errc{} || rest != end) return std::nullopt;
    return axis;
  }
  static Value write(const MeshAxis& axis) {
    return {.data = axis.name + "=" + std::to_string(axis.size)};
  }
};

/// Reads and writes a layout as the text of to_string().
template <>
struct Codec<ParameterLayout> {
  static std::string expected() {
    return "a pattern and its placement such as \"*.qkv.weight -> Shard(0) on tensor\"";
  }
  static std::optional<ParameterLayout> parse(const Value& value) {
    const auto text = value.text();
    return text ? parse_layout(*text) : std::nullopt;
  }
  static Value write(const ParameterLayout& layout) { return {.data = to_string(layout)}; }
};

/// Reads and writes a layout of operators as the text of to_string().
template <>
struct Codec<OperatorLayout> {
  static std::string expected() {
    return "operators and their layouts such as \"blocks.*.mlp takes {{4, 1}, {1, 1}} and gives "
           "Shard(1) on tensor\"";
  }
  static std::optional<OperatorLayout> parse(const Value& value) {
    const auto text = value.text();
    return text ? parse_operator_layout(*text) : std::nullopt;
  }
  static Value write(const OperatorLayout& layout) { return {.data = to_string(layout)}; }
};

}  // namespace trireme::config

namespace trireme {
namespace {

// The limits of a field apply to single values, so pairs need a rule of their own.
bool are_zero_levels(const std::vector<std::pair<std::string, int>>& rules) {
  return std::ranges::all_of(rules,
                             [](const auto& rule) { return rule.second >= 0 && rule.second <= 3; });
}

}  // namespace

config::EnumNames<PlanMode> enum_names(PlanMode /*mode*/) {
  return {{PlanMode::kManual, "manual"}, {PlanMode::kAutomatic, "auto"}};
}

config::EnumNames<SequenceAttention> enum_names(SequenceAttention /*attention*/) {
  return {{SequenceAttention::kCheapest, "cheapest"},
          {SequenceAttention::kRing, "ring"},
          {SequenceAttention::kHeads, "heads"},
          {SequenceAttention::kGather, "gather"}};
}

config::EnumNames<GradientReduction> enum_names(GradientReduction /*reduction*/) {
  return {{GradientReduction::kMean, "mean"}, {GradientReduction::kSum, "sum"}};
}

config::EnumNames<GradientCompression> enum_names(GradientCompression /*wire*/) {
  return {{GradientCompression::kNone, "as_is"},
          {GradientCompression::kFp16, "fp16"},
          {GradientCompression::kBf16, "bf16"}};
}

void describe(config::Fields& fields, Plan& plan) {
  fields.add("mode", plan.mode, "who makes the choices; auto: the search for plans");
  fields.add("constraints", plan.constraints, "what a plan of mode auto must be like");
  fields.add("mesh", plan.mesh,
             "axes of ranks; along data, each rank trains on its own part of the data");
  fields.add("layouts", plan.layouts,
             "how parameters are sharded along the other axes, by patterns of names");
  fields.add("operators", plan.operators,
             "how single operators run along the other axes, by modules or names");
  fields.add("sequence_attention", plan.sequence_attention,
             "how attention runs on a sharded sequence: the cheapest, or the one that is named");
  fields.add("stages", plan.stages,
             "where pipeline stages begin, by the paths of modules or the names of marks");
  fields.add("schedule", plan.schedule,
             "the order in which ranks work on stages and micro-batches");
  fields
      .add("chunks", plan.chunks, "stages of each rank along pipe; 0: the default of the schedule")
      .at_least(0);
  fields.add("recompute", plan.recompute,
             "what backward recomputes: patterns of modules, and of operators with ::");
  fields
      .add("activation_bytes", plan.activation_bytes,
           "bytes that a rank may keep for backward, the rest is recomputed; 0: no limit")
      .at_least(0);
  fields.add("offload_activations", plan.offload_activations,
             "move activations to host memory until their backward");
  fields.add("data_parallel", plan.data_parallel, "every rank trains on its own part of the data");
  fields.add("micro_batches", plan.micro_batches, "backward passes in one step").at_least(1);
  fields
      .add("bucket_bytes", plan.bucket_bytes,
           "size of the buckets in which gradients are reduced; 0: by the size of the module")
      .at_least(0);
  fields
      .add("first_bucket_bytes", plan.first_bucket_bytes, "size of the bucket that is ready first")
      .at_least(1);
  fields
      .add("allreduce_streams", plan.allreduce_streams,
           "connections that reduce buckets in parallel; 0: TRIREME_ALLREDUCE_STREAMS, or 1")
      .between(0, 16);
  fields
      .add("zero_level", plan.zero_level,
           "what is sharded over ranks: 0 nothing, 1 the optimizer's state, 2 also gradients, 3 "
           "also parameters")
      .between(0, 3);
  fields.add("zero_level_of", plan.zero_level_of, "ZeRO levels of single modules, by name")
      .check_that(are_zero_levels, "ZeRO levels from 0 to 3");
  fields.add("shard_ranks", plan.shard_ranks, "number of ranks over which ZeRO shards; 0: all")
      .at_least(0);
  fields
      .add("gathered_buckets", plan.gathered_buckets,
           "buckets of parameters gathered at the same time in ZeRO level 3; 0: all")
      .check_that([](std::int64_t buckets) { return buckets == 0 || buckets >= 2; },
                  "0 or at least 2");
  fields.add("offload_optimizer", plan.offload_optimizer,
             "keep the state of optimizers in host memory, and step there");
  fields.add("sparse_gradients", plan.sparse_gradients,
             "parameters whose gradients are sparse, besides those of embeddings");
  fields.add("gradient_reduction", plan.gradient_reduction,
             "mean or sum of gradients over ranks and micro-batches");
  fields
      .add("gradient_predivide", plan.gradient_predivide,
           "gradients are divided by this before communication")
      .above(0);
  fields.add("wire", plan.wire, "how gradients are compressed for communication");
  fields.add("divide_by_active_ranks", plan.divide_by_active_ranks,
             "divide a mean by the number of ranks that contributed gradients");
  fields.add("broadcast_parameters", plan.broadcast_parameters,
             "start all ranks with the parameters of rank 0");
  fields.add("broadcast_buffers", plan.broadcast_buffers,
             "copy the buffers of rank 0 to all ranks in every step");
  fields.add("sync_batch_norm", plan.sync_batch_norm,
             "compute batch norm over the batches of all ranks");
  fields.renamed("zero_stage", "zero_level");
  fields.renamed("zero_stage_of", "zero_level_of");
}

std::string to_toml(const Plan& plan) {
  PlanSettings settings = {.plan = plan};
  return config::Configuration(settings).to_toml();
}

namespace {

// A request is for the whole process.
std::atomic<bool>& request_is_used() {
  static std::atomic<bool> is_used = false;
  return is_used;
}

std::string request() { return Settings::from(Environment::of_process()).plan; }

}  // namespace

Plan automatic_of(Plan plan) {
  const Plan none;
  plan.mode = PlanMode::kAutomatic;
  plan.mesh = none.mesh;
  plan.layouts = none.layouts;
  plan.operators = none.operators;
  plan.stages = none.stages;
  plan.schedule = none.schedule;
  plan.chunks = none.chunks;
  plan.recompute = none.recompute;
  plan.micro_batches = none.micro_batches;
  plan.zero_level = none.zero_level;
  plan.activation_bytes = none.activation_bytes;
  plan.offload_activations = none.offload_activations;
  return plan;
}

Plan requested_plan(const Plan& of_program) {
  const std::string name = request();
  request_is_used() = true;
  if (name.empty()) return of_program;
  if (name == "auto") return automatic_of(of_program);
  PlanSettings settings;
  try {
    config::Configuration(settings).read_file(name);
  } catch (const ConfigError& error) {  // its text contains a hint
    throw ConfigError(
        join_message("environment variable TRIREME_PLAN is '", name, "': ", error.what()), "");
  }
  return settings.plan;
}

void detail::check_request_is_used(std::string_view what) {
  if (request_is_used() || request().empty()) return;
  throw UsageError(
      join_message("TRIREME_PLAN is '", request(), "', and ", what, " has a plan of the program"),
      "only a Model takes it by itself: unset the variable; a program without a Model "
      "can give trireme::requested_plan(plan) for a file, and for auto the plan that "
      "trireme::search::find_plan returns");
}

}  // namespace trireme
