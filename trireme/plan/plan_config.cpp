// SPDX-License-Identifier: Apache-2.0
#include <trireme/plan/plan_config.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>

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

}  // namespace trireme::config

namespace trireme {
namespace {

// The limits of a field apply to single values, so pairs need a rule of their own.
bool are_zero_levels(const std::vector<std::pair<std::string, int>>& rules) {
  return std::ranges::all_of(rules,
                             [](const auto& rule) { return rule.second >= 0 && rule.second <= 3; });
}

}  // namespace

config::EnumNames<GradientReduction> enum_names(GradientReduction /*reduction*/) {
  return {{GradientReduction::kMean, "mean"}, {GradientReduction::kSum, "sum"}};
}

config::EnumNames<GradientCompression> enum_names(GradientCompression /*wire*/) {
  return {{GradientCompression::kNone, "as_is"},
          {GradientCompression::kFp16, "fp16"},
          {GradientCompression::kBf16, "bf16"}};
}

void describe(config::Fields& fields, Plan& plan) {
  fields.add("mesh", plan.mesh,
             "how ranks are arranged; along the axis data each has its own part of the data");
  fields.add("layouts", plan.layouts, "how parameters are cut along the other axes, by name");
  fields.add("stages", plan.stages,
             "where stages of a pipeline begin, by the paths of modules or the names of marks");
  fields.add("schedule", plan.schedule, "in which order ranks work on stages and micro-batches");
  fields.add("chunks", plan.chunks, "stages of each rank along pipe; 0: what the schedule has")
      .at_least(0);
  fields.add("recompute", plan.recompute,
             "what backward computes again: patterns of modules, and of operators with ::");
  fields
      .add("activation_bytes", plan.activation_bytes,
           "how much a rank may keep for backward, the rest is computed again; 0: all")
      .at_least(0);
  fields.add("offload_activations", plan.offload_activations,
             "what a rank keeps for a backward that is far off is in host memory");
  fields.add("data_parallel", plan.data_parallel,
             "every rank has all parameters and trains on its own part of the data");
  fields.add("micro_batches", plan.micro_batches, "backward passes of a step").at_least(1);
  fields
      .add("bucket_bytes", plan.bucket_bytes,
           "gradients travel in buckets of about this many bytes; 0: by the size of the module")
      .at_least(0);
  fields.add("first_bucket_bytes", plan.first_bucket_bytes, "the bucket that is ready first")
      .at_least(1);
  fields
      .add("allreduce_streams", plan.allreduce_streams,
           "connections over which buckets travel at once; 0: TRIREME_ALLREDUCE_STREAMS, else 1")
      .between(0, 16);
  fields
      .add("zero_level", plan.zero_level,
           "what is cut over ranks: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 "
           "parameters too")
      .between(0, 3);
  fields.add("zero_level_of", plan.zero_level_of, "ZeRO levels of single modules, by name")
      .check_that(are_zero_levels, "ZeRO levels from 0 to 3");
  fields.add("shard_ranks", plan.shard_ranks, "over how many ranks things are cut; 0: over all")
      .at_least(0);
  fields
      .add("gathered_buckets", plan.gathered_buckets,
           "buckets of parameters that are whole at a time in ZeRO level 3; 0: all")
      .check_that([](std::int64_t buckets) { return buckets == 0 || buckets >= 2; },
                  "0 or at least 2");
  fields.add("offload_optimizer", plan.offload_optimizer,
             "optimizers step in host memory, where their state is");
  fields.add("sparse_gradients", plan.sparse_gradients,
             "parameters whose gradients are sparse, besides those of embeddings");
  fields.add("gradient_reduction", plan.gradient_reduction,
             "what a step makes of the gradients of ranks and micro-batches");
  fields
      .add("gradient_predivide", plan.gradient_predivide,
           "gradients are divided by this before they travel")
      .above(0);
  fields.add("wire", plan.wire, "how gradients are compressed for communication");
  fields.add("divide_by_active_ranks", plan.divide_by_active_ranks,
             "a mean divides by the ranks that gave gradients");
  fields.add("broadcast_parameters", plan.broadcast_parameters,
             "all ranks begin with rank 0's parameters");
  fields.add("broadcast_buffers", plan.broadcast_buffers,
             "all ranks have rank 0's buffers in every step");
  fields.add("sync_batch_norm", plan.sync_batch_norm, "batch norm over the batches of all ranks");
  fields.renamed("zero_stage", "zero_level");
  fields.renamed("zero_stage_of", "zero_level_of");
}

}  // namespace trireme
