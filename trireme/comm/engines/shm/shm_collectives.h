// SPDX-License-Identifier: Apache-2.0
// The collectives over shared memory, as sequences of steps. Each function is one operation that
// every rank of the group must run, in the same order; it blocks until this rank's part is done.
// Buffers are ordinary memory; input and output may be the same where both have the same length.
//
// Order of summation, for every size and algorithm: element by element, a left fold in rank order.
// So the bits of a result depend on the inputs alone.
#pragma once

#include <trireme/comm/engines/shm/allocation.h>
#include <trireme/comm/engines/shm/data_type.h>
#include <trireme/comm/engines/shm/steps.h>

#include <cstddef>
#include <span>
#include <vector>

namespace trireme::shm {

/// The same piece of registered memory of every rank, by rank; empty where a buffer is not
/// registered on all of them.
using RegisteredBuffers = std::vector<std::byte*>;

/// Tells the others where this rank's buffer is registered, and finds theirs; one step, after which
/// all ranks are in the operation. All buffers are `bytes` long.
RegisteredBuffers exchange_places(Steps& steps, const Call& call, const Allocations& allocations,
                                  const void* data, std::size_t bytes);

/// All-reduce in place of registered buffers: every rank folds its slice of them all and writes it
/// to them all.
void all_reduce_registered(Steps& steps, const Call& call, const RegisteredBuffers& buffers,
                           std::size_t count, DataType type, Reduction reduction);

/// Reduce-scatter of registered inputs, which stay as they are.
void reduce_scatter_registered(Steps& steps, const Call& call, const RegisteredBuffers& inputs,
                               void* output, std::span<const std::size_t> counts, DataType type,
                               Reduction reduction);

/// Messages up to this many bytes are written whole by every rank and folded by every rank (one
/// step); longer ones are folded in slices, one per rank (two steps a chunk).
struct Thresholds {
  std::size_t one_shot_bytes = 32768;
  /// Length of a chunk of the longer ones.
  std::size_t chunk_bytes = 262144;
  /// From this many bytes on, ranks ask each other whether buffers are registered.
  std::size_t registered_bytes = 65536;
};

/// The two halves of an all-reduce that takes one step: showing what this rank has, which does not
/// block where Steps::can_write, and folding what all have shown.
std::uint64_t show_for_all_reduce(Steps& steps, const Call& call, const void* input,
                                  std::size_t bytes);
void fold_shown(Steps& steps, const Call& call, std::uint64_t step, const void* input, void* output,
                std::size_t count, DataType type, Reduction reduction);

void all_reduce(Steps& steps, const Call& call, const void* input, void* output, std::size_t count,
                DataType type, Reduction reduction, const Thresholds& thresholds);

/// `output` is written on rank `root` only.
void reduce(Steps& steps, const Call& call, const void* input, void* output, std::size_t count,
            DataType type, Reduction reduction, int root);

/// Rank r gets the fold of piece r. `counts` has the elements of each piece; pieces follow each
/// other in `input`.
void reduce_scatter(Steps& steps, const Call& call, const void* input, void* output,
                    std::span<const std::size_t> counts, DataType type, Reduction reduction);

void broadcast(Steps& steps, const Call& call, void* data, std::size_t bytes, int root);

/// Piece r comes from rank r; `bytes` has the length of each, `outputs` where it goes. On ranks
/// other than `only_root`, if that is not negative, nothing is written.
void all_gather(Steps& steps, const Call& call, const void* input, std::span<void* const> outputs,
                std::span<const std::size_t> bytes, int only_root = -1);

/// Every rank gets its piece of `inputs`, which is read on rank `root` only; all are of one length.
void scatter(Steps& steps, const Call& call, std::span<const void* const> inputs, void* output,
             std::size_t bytes, int root);

/// Rank a's piece b goes to rank b's piece a. The lengths may differ between pairs; each must be
/// the same on both sides.
void all_to_all(Steps& steps, const Call& call, std::span<const void* const> inputs,
                std::span<const std::size_t> input_bytes, std::span<void* const> outputs,
                std::span<const std::size_t> output_bytes);

void barrier(Steps& steps, const Call& call);

}  // namespace trireme::shm
