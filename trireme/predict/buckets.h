// SPDX-License-Identifier: Apache-2.0
// The buckets in which a stage exchanges gradients and gathers parameters along `data`.
#pragma once

#include <trireme/parallel/record/module_record.h>
#include <trireme/plan/plan.h>
#include <trireme/predict/stage_work.h>

#include <vector>

namespace trireme::predict {

/// Parameters that are exchanged together.
struct Bucket {
  std::vector<int> parameters;  ///< positions in ModuleRecord::parameters
  int zero_level = 0;           ///< of all of them
  double bytes = 0;             ///< of the parameters on a rank, before ZeRO
  double gradient_bytes = 0;    ///< as they are sent
  /// Position in StageWork::backward of the call after which all gradients are there.
  int ready_after = 0;
};

/// Returns the buckets of a stage in the order in which their gradients become ready.
std::vector<Bucket> make_buckets(const ModuleRecord& record, const StageWork& stage,
                                 const Plan& plan);

/// Returns the bytes of gathered parameters at ZeRO level 3, and of the gradients of one whole
/// bucket at levels 2 and 3.
double bucket_memory(const std::vector<Bucket>& buckets, const Plan& plan);

}  // namespace trireme::predict
