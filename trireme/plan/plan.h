// SPDX-License-Identifier: Apache-2.0
// The plan: how a module is trained in parallel. It is a plain value that can be compared, copied
// and printed; `parallelize` applies it.
#pragma once

#include <trireme/mesh/mesh_axis.h>
#include <trireme/plan/operator_layouts.h>
#include <trireme/plan/parameter_layouts.h>
#include <trireme/schedule/schedule.h>
#include <trireme/tensor/sequence_attention.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

/// The combination of gradients over ranks and micro-batches.
enum class GradientReduction {
  kMean,  ///< the sum divided by their number
  kSum,   ///< the sum
};

/// The format in which gradients are communicated; they are always summed in fp32.
enum class GradientCompression {
  kNone,  ///< in their own dtype
  kFp16,  ///< in fp16
  kBf16   ///< in bf16
};

/// The source of a plan's choices.
enum class PlanMode {
  kManual,    ///< the program: all choices are in the plan
  kAutomatic  ///< the search for plans, before the first step (search/search.h)
};

/// All choices of a parallel training. The default is data parallelism over all ranks.
///
///     const Plan plan = {.mesh = {{"data", 2}, {"pipe", 4}},
///                        .schedule = "zb-v",
///                        .micro_batches = 8,
///                        .zero_level = 1};
struct Plan {
  /// kAutomatic: a Model finds mesh, layouts, stages, schedule, chunks, recomputation,
  /// micro-batches and ZeRO level before its first step, so these must not be set. All other
  /// settings are kept. parallelize and TrainingStep need the plan that was found.
  PlanMode mode = PlanMode::kManual;

  /// kAutomatic: what the plan must be like, such as `pipe=1`, `tensor<=2`, `zero_level=3` or
  /// `memory_gib=4`, as `trireme plan --with` takes it (search::add_constraint).
  std::vector<std::string> constraints{};

  /// The arrangement of ranks: axes whose sizes multiply to the number of ranks, the last one
  /// varying fastest. Along `data`, each rank trains on its own part of the data. Along `pipe`,
  /// each rank has one or more stages of the module. Along `context`, ranks have parts of the
  /// sequence of [batch, sequence, …], from the first embedding or linear layer on. Along `expert`,
  /// they have some of its rows in the same way, and the experts that `layouts` divides along it
  /// (expert_layouts()). Along all other axes, ranks work together on one part of the data, as
  /// `layouts` says, which must name each of them. Empty: all ranks along `data`.
  std::vector<MeshAxis> mesh{};

  /// The layouts of parameters and buffers along the other axes (tensor parallelism). Parameters
  /// that no pattern matches are whole there. For an axis on which all parameters are whole,
  /// because operators are sharded by strategies or by layouts in forward, give `{"*", {{"tensor",
  /// Replicate{}}}}`.
  ParameterLayouts layouts{};

  /// How single operators of forward run along these axes, where it is not to be what costs least:
  /// the parts of their inputs and the placements of their results.
  OperatorLayouts operators{};

  /// How scaled dot product attention runs where an axis shards the sequence of queries, keys and
  /// values, as `context` does.
  SequenceAttention sequence_attention = SequenceAttention::kCheapest;

  /// The beginnings of pipeline stages, in the order of execution and counted from 0. An entry
  /// names a module by its path, `{"layer3", 1}`, or a place in the code by the name of a mark
  /// (graph/mark.h). Code that runs before that place, and belongs to no other named module, is in
  /// the previous stage. Several entries may have the same stage, and stage 0 need not be named.
  /// Empty: stages of about equal cost, as many as `chunks` asks for. Requires a TrainingStep.
  std::vector<std::pair<std::string, int>> stages{};

  /// The order in which ranks work on stages and micro-batches: one of schedule::kKinds, or the
  /// text of a schedule as schedule::to_text writes it. Such a schedule must be for `micro_batches`
  /// micro-batches and says which rank has which stage. It orders computation and recomputation,
  /// with all messages or none, and computes weight gradients in the order of micro-batches.
  std::string schedule = "1f1b";

  /// The number of stages of each rank along `pipe`. 0: the default of the schedule, which is 1 or
  /// 2.
  std::int64_t chunks = 0;

  /// What is recomputed in backward instead of being kept: modules by patterns of their paths as in
  /// `layouts`, and operators by patterns with `::`, such as `aten::gelu`. The outermost modules
  /// that match a pattern are recomputed one by one. `{"blocks.*", "blocks.*.attention"}`
  /// recomputes the attention again within a block that is recomputed. Requires a TrainingStep,
  /// possibly of one stage.
  std::vector<std::string> recompute{};

  /// The maximum number of bytes that a rank may keep for backward. The operators to recompute are
  /// chosen so that the fewest floating-point operations are repeated. 0: no limit. Not together
  /// with `recompute`; requires a TrainingStep.
  std::int64_t activation_bytes = 0;

  /// True to move activations to host memory if their backward is several forwards or backwards
  /// away. They are moved back before it, and the copies overlap with computation.
  /// `activation_bytes` then counts only what is on the device. Requires a TrainingStep whose
  /// stages are on accelerators.
  bool offload_activations = false;

  /// True if every rank trains on its own part of the data, and gradients are averaged over ranks.
  bool data_parallel = true;

  /// The number of micro-batches in one step. Their gradients are summed, and divided once by
  /// micro-batches times ranks. Ranks exchange them during the last one. After parallelize() each
  /// is one call of backward(). A TrainingStep splits its batch into as many. For a Model each is
  /// one batch of its data. 0, only for a TrainingStep over devices of one process: the number that
  /// is measured to be the fastest.
  std::int64_t micro_batches = 1;

  /// The approximate size in bytes of the buckets in which gradients are reduced. Large buckets use
  /// the full rate of the engine. Small ones overlap earlier with backward, and in ZeRO levels 2
  /// and 3 need less memory. 0: a sixteenth of the module, but between 1 and 25 MiB, which is the
  /// size in PyTorch's DistributedDataParallel.
  std::int64_t bucket_bytes = 0;

  /// The size of the bucket that is ready first, at most that of the others. It is small so that
  /// communication starts early.
  std::int64_t first_bucket_bytes = 1LL << 20;

  /// The number of connections over which buckets are reduced at the same time. More than one helps
  /// if one connection does not saturate the network. 0: the value of TRIREME_ALLREDUCE_STREAMS, or
  /// one.
  std::int64_t allreduce_streams = 0;

  /// The ZeRO level, which says what is sharded over ranks: 0 nothing, 1 the optimizer's state, 2
  /// also gradients, 3 also parameters. Levels above 0 require that the optimizer is sharded as
  /// well.
  int zero_level = 0;

  /// The ZeRO levels of single modules. A rule applies to the parameter with the given name, and to
  /// all whose names begin with it and a dot. The first rule that applies counts.
  std::vector<std::pair<std::string, int>> zero_level_of{};

  /// The number of consecutive ranks along `data` over which ZeRO shards. Each such group holds
  /// everything, and the groups are replicas (hybrid sharding, for example within a host). It must
  /// divide the number of ranks. 0: all ranks.
  std::int64_t shard_ranks = 0;

  /// ZeRO level 3: the number of buckets of parameters that may be gathered at the same time,
  /// including prefetched ones. The least recently used bucket is freed first. An operator that
  /// needs more buckets gets them. 0: all, so that forward's parameters stay gathered for backward.
  std::int64_t gathered_buckets = 2;

  /// ZeRO levels above 0: true to keep the optimizer's parameters and state in host memory, and to
  /// step on the CPU. Shards are copied to the device when they are gathered. Also works for a
  /// single rank along `data`, which shards nothing.
  bool offload_optimizer = false;

  /// The names of parameters with sparse gradients. Those of torch::nn::Embedding and EmbeddingBag
  /// with `sparse` are found automatically. They are reduced whole, at every ZeRO level.
  std::vector<std::string> sparse_gradients{};

  /// Mean or sum of gradients over ranks and micro-batches.
  GradientReduction gradient_reduction = GradientReduction::kMean;

  /// Each rank's gradients are divided by this number before communication, and the sum by the rest
  /// of the divisor. With 1, means in half precision are divided in fp32 before they are rounded,
  /// or by a power of two before they are added, so that sums do not overflow. If the number is not
  /// a power of two, results differ in rounding from those of the numerics contract.
  double gradient_predivide = 1;

  /// The format in which gradients are communicated.
  GradientCompression wire = GradientCompression::kNone;

  /// True to divide a mean by the number of ranks that contributed gradients in a step, instead of
  /// all ranks. The numbers differ if some ranks have run out of data (join).
  bool divide_by_active_ranks = false;

  /// True to start all ranks with the parameters and buffers of rank 0.
  bool broadcast_parameters = true;

  /// True to copy the buffers of rank 0 (running statistics of batch norm) to all ranks in every
  /// step.
  bool broadcast_buffers = true;

  /// True to compute batch norm over the batches of all ranks together.
  bool sync_batch_norm = false;

  /// Returns a plan of mode kAutomatic.
  static Plan automatic(std::vector<std::string> constraints = {}) {
    Plan plan;
    plan.mode = PlanMode::kAutomatic;
    plan.constraints = std::move(constraints);
    return plan;
  }

  bool operator==(const Plan&) const = default;
};

/// Returns the ZeRO level of the parameter with the given name.
int zero_level_of(const Plan& plan, const std::string& name);

/// Returns true if anything is sharded (a ZeRO level above 0), so that optimizers step shards.
bool cuts_anything(const Plan& plan);

/// Returns true if some parameters are sharded (ZeRO level 3), so that forward needs all ranks.
bool cuts_parameters(const Plan& plan);

/// The name of the axis along which data is sharded.
inline constexpr const char* kDataAxis = "data";

/// The name of the axis along which a module is divided into stages.
inline constexpr const char* kStageAxis = "pipe";

/// Returns the schedule that plan.schedule contains as text, or std::nullopt if it names a kind.
/// Throws UsageError if it is neither, and DataError with line and column if the text cannot be
/// parsed.
std::optional<schedule::Schedule> own_schedule(const Plan& plan);

/// Returns the number of ranks along `pipe`, 1 if there is no such axis.
int stage_ranks(const Plan& plan);

/// Returns the number of ranks along `data`. Each of them has its own part of the data.
/// @param plan the plan.
/// @param ranks the number of all ranks.
int data_ranks(const Plan& plan, int ranks);

/// Returns true if several ranks work on the same part of the data together, because the mesh has
/// other axes than `data` and `pipe`.
bool shares_work(const Plan& plan);

/// Returns the plan as a table, with one line per setting.
std::string to_string(const Plan& plan);

}  // namespace trireme
