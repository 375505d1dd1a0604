// SPDX-License-Identifier: Apache-2.0
// A plan says how a module is trained in parallel. It is a plain value: compared, copied and
// printed; `parallelize` is what carries it out.
#pragma once

#include <trireme/mesh/mesh_axis.h>
#include <trireme/plan/parameter_layouts.h>
#include <trireme/schedule/schedule.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

/// What a step makes of the gradients of ranks and micro-batches.
enum class GradientReduction {
  kMean,  ///< their sum, divided once
  kSum,
};

/// how gradients are communicated; they are folded in fp32 in any case.
enum class GradientCompression { kNone, kFp16, kBf16 };

struct Plan {
  /// How the ranks are arranged: axes whose sizes multiply to their number, the last varying
  /// fastest. Along `data` each rank trains on its own part of the data; along `pipe` each has a
  /// stage of the module, or a few; the ranks along all other axes work on one part together, as
  /// `layouts` says, which must name each of them. Empty: all ranks along `data`.
  std::vector<MeshAxis> mesh{};

  /// How parameters and buffers are cut along the other axes (tensor parallelism); those that no
  /// pattern fits are whole there. Along an axis on which all are whole, and operators are cut by
  /// strategies or by layouts in forward, say `{"*", {{"tensor", Replicate{}}}}`.
  ParameterLayouts layouts{};

  /// Where stages of a pipeline begin, in the order of execution and counted from 0: modules by
  /// their paths, `{"layer3", 1}`, and places within their code by the names of marks
  /// (graph/mark.h). What runs before the module or mark, and is not in another that is named, is
  /// in the stage before. Several may have one stage; stage 0 need not be named. Empty: stages of
  /// about the same cost, as many as `chunks` asks for. Needs a TrainingStep.
  std::vector<std::pair<std::string, int>> stages{};

  /// In which order ranks work on stages and micro-batches: one of schedule::kKinds, or a schedule
  /// of one's own, as schedule::to_text writes it. That one is for as many micro-batches, orders
  /// computation and recomputation (of messages all or none are there), and says which rank has
  /// which stage; weight gradients are computed in the order of micro-batches.
  std::string schedule = "1f1b";

  /// Stages of each rank along `pipe`. 0: what the schedule has; of the kinds 1 or 2.
  std::int64_t chunks = 0;

  /// What is computed again in backward instead of being kept for it: modules by patterns of their
  /// paths, as in `layouts`, and operators by patterns with `::`, `aten::gelu`. The outermost
  /// modules that fit a pattern are run again one by one; `{"blocks.*", "blocks.*.attention"}` runs
  /// the attention again within a block that is run again. Needs a TrainingStep, of one stage or
  /// more.
  std::vector<std::string> recompute{};

  /// How much a rank may keep for backward, in bytes; what has to be computed again for that is
  /// chosen so that the fewest floating-point operations are. 0: as much as there is. Not together
  /// with `recompute`; needs a TrainingStep.
  std::int64_t activation_bytes = 0;

  /// What a rank keeps for the backward of a micro-batch is moved to host memory where that
  /// backward is several forwards or backwards away, and comes back before it: the copies go on
  /// beside computation. `activation_bytes` then counts what is on the device. Needs a
  /// TrainingStep whose stages are on accelerators.
  bool offload_activations = false;

  /// Every rank holds all parameters and trains on its own part of the data; gradients are
  /// averaged.
  bool data_parallel = true;

  /// The micro-batches that make up a step: their gradients are summed, exchanged during the last
  /// of them, and divided once, by micro-batches times ranks. After parallelize each is one call of
  /// backward(); a TrainingStep cuts its batch into as many; of a Model each is one batch of its
  /// data. 0, for a TrainingStep over devices of one process: as many as it measures to be fastest.
  std::int64_t micro_batches = 1;

  /// Gradients travel in buckets of about this many bytes: large enough for the engine's best rate,
  /// small enough that the first are under way while backward still computes the rest, and that in
  /// ZeRO levels 2 and 3 little is whole at a time. 0: a sixteenth of the module, between 1 and 25
  /// MiB, which is what PyTorch's DistributedDataParallel takes.
  std::int64_t bucket_bytes = 0;

  /// Size of the bucket that is ready first, at most that of the others; small, so that
  /// communication starts early.
  std::int64_t first_bucket_bytes = 1LL << 20;

  /// Connections over which buckets travel at once, in turn; more than one helps where one does not
  /// fill the network. 0: as TRIREME_ALLREDUCE_STREAMS says, else one.
  std::int64_t allreduce_streams = 0;

  /// What is cut into one part a rank (ZeRO): 0 nothing, 1 the optimizer's state, 2 the gradients
  /// too, 3 the parameters too. ZeRO levels above 0 need Parallelized::shard.
  int zero_level = 0;

  /// ZeRO levels of single modules: parameters whose name is the given one, or begins with it and a
  /// dot, have that level; the first that fits counts.
  std::vector<std::pair<std::string, int>> zero_level_of{};

  /// Over how many consecutive ranks along `data` things are cut; each such group has everything,
  /// and the groups are copies of each other (hybrid sharding: the ranks of a host, say). Divides
  /// the number of ranks. 0: over all.
  std::int64_t shard_ranks = 0;

  /// ZeRO level 3: how many buckets of parameters may be whole at a time, the one in use and those
  /// predicted; what was not used for longest makes place. An operator that needs more gets them.
  /// 0: all, so that what forward gathered is kept for backward.
  std::int64_t gathered_buckets = 2;

  /// ZeRO levels above 0: what optimizers step, and with it their state, is in host memory, and
  /// they step on the processor; slices travel to the device when they are gathered.
  bool offload_optimizer = false;

  /// Names of parameters whose gradients are sparse, besides those of torch::nn::Embedding and
  /// EmbeddingBag made with `sparse`, which are found. They are summed whole, at every ZeRO level.
  std::vector<std::string> sparse_gradients{};

  /// Mean or sum over ranks and micro-batches.
  GradientReduction gradient_reduction = GradientReduction::kMean;

  /// Each rank's gradients are divided by this before they travel, and the sum by the rest of the
  /// divisor: keeps large sums within the range of fp16. Another tree of sums than the contract's
  /// where it is not a power of two.
  double gradient_predivide = 1;

  GradientCompression wire = GradientCompression::kNone;

  /// A mean divides by the ranks that gave gradients in a step instead of all: by what remain while
  /// others are in Parallelized::join.
  bool divide_by_active_ranks = false;

  /// Parallelize gives all ranks the parameters and buffers of rank 0.
  bool broadcast_parameters = true;

  /// Give all ranks the buffers of rank 0 (running statistics of batch norm) in every step.
  bool broadcast_buffers = true;

  /// Batch norm over the batches of all ranks together.
  bool sync_batch_norm = false;

  bool operator==(const Plan&) const = default;
};

/// The ZeRO level of a parameter of that name.
int zero_level_of(const Plan& plan, const std::string& name);

/// Whether anything is cut (ZeRO levels above 0), so that optimizers step parts.
bool cuts_anything(const Plan& plan);

/// Whether some parameters are cut (ZeRO level 3), so that forward needs all ranks.
bool cuts_parameters(const Plan& plan);

/// The name of the axis along which data is cut.
inline constexpr const char* kDataAxis = "data";

/// The name of the axis along which a module is cut into stages.
inline constexpr const char* kStageAxis = "pipe";

/// The schedule that plan.schedule holds as text; nothing where it names a kind. Throws UsageError
/// where it is neither, and DataError with line and column for a text that cannot be read.
std::optional<schedule::Schedule> own_schedule(const Plan& plan);

/// Ranks along `pipe`, 1 where there is none.
int stage_ranks(const Plan& plan);

/// Ranks along `data`: each has its own part of the data.
int data_ranks(const Plan& plan, int ranks);

/// Whether ranks work on one part of the data together, on the same operators: the mesh has other
/// axes than `data` and `pipe`.
bool shares_work(const Plan& plan);

/// Returns the plan as a table, one line a setting.
std::string to_string(const Plan& plan);

}  // namespace trireme
