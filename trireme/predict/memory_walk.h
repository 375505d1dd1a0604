// SPDX-License-Identifier: Apache-2.0
// Follows the memory of activations through forward and backward of one micro-batch.
#pragma once

#include <trireme/parallel/record/module_record.h>
#include <trireme/predict/caching_allocator.h>
#include <trireme/predict/stage_work.h>

#include <string>
#include <utility>
#include <vector>

namespace trireme::predict {

/// Memory of activations and temporary results of one micro-batch in a stage, in bytes.
struct ActivationMemory {
  double kept = 0;           ///< between forward and backward
  double forward_peak = 0;   ///< the maximum during forward
  double backward_peak = 0;  ///< the maximum during backward, with what is still kept
  std::string peak_module;   ///< module of the call at which the larger maximum is reached
  /// What is kept by module, the largest first.
  std::vector<std::pair<std::string, double>> by_module;
  /// The memory while each call runs: those of StageWork::forward, then of StageWork::backward.
  std::vector<double> at_calls;
  /// The gradients of parameters in it (GradientMemory::kMade).
  std::vector<double> gradients_at_calls;
  double peak_gradients = 0;  ///< the same in the larger maximum
};

/// The memory of gradients of parameters.
enum class GradientMemory {
  kMade,  ///< that of each begins when it is made
  /// It is there for the whole step. A gradient that is made is added or copied to it, and freed.
  kReserved,
};

/// Returns the memory of a stage. A result lives until the last call that reads it. What backward
/// reads is kept, except inside of recomputed regions, of which only inputs are kept; their results
/// are made again when backward reaches them. Reserved gradients do not count, those that are made
/// do.
/// @param after_backward what is needed for a moment when backward is through, in bytes: it counts
/// to the last call.
/// @param allocator carries out what is allocated and freed; may be null.
ActivationMemory walk_memory(const ModuleRecord& record, const StageWork& stage,
                             GradientMemory gradients, double after_backward = 0,
                             CachingAllocator* allocator = nullptr);

}  // namespace trireme::predict
