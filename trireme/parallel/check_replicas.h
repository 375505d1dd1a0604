// SPDX-License-Identifier: Apache-2.0
// Finds silent corruption: ranks that hold the same parameters, gradients or optimizer state must
// hold the same bits. docs/guide/recovery.md shows its use. TRIREME_CHECK=values
// (comm/check_values.h) looks for mistakes in programs instead, and compares more.
#pragma once

#include <trireme/graph/module_ref.h>
#include <trireme/parallel/parallelize.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace trireme {

/// Compares what several ranks hold, bit by bit, by a checksum of each tensor:
/// - parameters and optimizer state: whole ones over the ranks along `data`, parts of distributed
///   tensors over the ranks that have the same part, slices of hybrid sharding over the ranks that
///   have the same slice;
/// - parameters of ZeRO levels 1 and 2 as every rank has gathered them;
/// - gradients that this step has summed, as long as they are there.
///
/// A slice of ZeRO that one rank holds alone cannot be compared. Nor are buffers, which may differ
/// along `data`, and weights that stages of a pipeline share, except on the first of these stages.
///
/// Call it after the optimizer has stepped, on all ranks. Collective and blocking over the plan's
/// group: costs a pass over the memory, and one message of some bytes. Gathers parameters of ZeRO
/// levels 1 and 2, as the next forward would do.
///
/// Throws the same TrainingError on every rank if anything differs. It names tensors, the step, and
/// the ranks whose checksum is in the minority; without a majority, all that differ. The launcher
/// learns the faulty rank too (base/step_progress.h). Do not go on with the state of any rank then:
/// the others have used gradients of the faulty one. Throws on all ranks, too, if a rank cannot
/// compute its checksums, as for an optimizer whose state is not known.
/// @param optimizer may be null.
/// @param step the number of the step, for the message.
void check_replicas(Parallelized& parallelized, ConstModuleRef module,
                    torch::optim::Optimizer* optimizer, std::int64_t step);

/// Returns the number of steps between two calls of check_replicas that `trireme run
/// --check-replicas` asks for (TRIREME_CHECK_REPLICAS); 0 for none.
std::int64_t steps_between_replica_checks();

namespace detail {

/// The ranks at fault, as checksums show.
struct ReplicaVerdict {
  std::vector<int> minority;   ///< ranks that differ from most others
  std::vector<int> undecided;  ///< ranks that differ, and of which no set is larger than others
  std::vector<std::string> differences;  ///< a line for each tensor that differs
};

/// Compares the checksums of all ranks. A text has a line `<set> <checksum> <name>` for each
/// tensor. Ranks that name the same set must have the same tensors in it.
ReplicaVerdict judge_replicas(const std::vector<std::string>& texts);

}  // namespace detail
}  // namespace trireme
