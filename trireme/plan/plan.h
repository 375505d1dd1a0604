// SPDX-License-Identifier: Apache-2.0
// A plan says how a module is trained in parallel. It is a plain value: compared, copied and
// printed; `parallelize` is what carries it out.
#pragma once

#include <cstdint>
#include <string>

namespace trireme {

struct Plan {
  /// Every rank holds all parameters and trains on its own part of the data; gradients are
  /// averaged.
  bool data_parallel = true;

  /// Backward passes that make up one step. Their gradients are summed and divided once, by
  /// micro-batches times ranks; ranks exchange them during the last pass.
  std::int64_t micro_batches = 1;

  /// Gradients travel in buckets of about this many bytes: large enough for the engine's best rate,
  /// small enough that the first are under way while backward still computes the rest. 25 MiB as in
  /// PyTorch's DistributedDataParallel.
  std::int64_t bucket_bytes = 25LL << 20;

  /// Size of the bucket that is ready first; small, so that communication starts early.
  std::int64_t first_bucket_bytes = 1LL << 20;

  /// Connections over which buckets travel at once, in turn; more than one helps where one does not
  /// fill the network. 0: as TRIREME_ALLREDUCE_STREAMS says, else one.
  std::int64_t allreduce_streams = 0;

  /// What is cut into one part a rank (ZeRO): 0 nothing, 1 the optimizer's state, 2 the gradients
  /// too. Stages above 0 need Parallelized::shard.
  int zero_stage = 0;

  /// Give all ranks the buffers of rank 0 (running statistics of batch norm) in every step.
  bool broadcast_buffers = true;

  bool operator==(const Plan&) const = default;
};

/// Returns the plan as a table, one line a setting.
std::string to_string(const Plan& plan);

/// Throws UsageError naming the field, its value and what was expected where the plan cannot be
/// carried out.
void validate(const Plan& plan);

}  // namespace trireme
