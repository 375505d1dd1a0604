// SPDX-License-Identifier: Apache-2.0
// The collectives over shared memory, as sequences of steps. Every rank of the group must run each
// function, in the same order. A function blocks until this rank's part is done. Buffers are
// ordinary memory. Input and output may be equal if both have the same length.
//
// The order of summation is the same for every size and algorithm: element by element, in rank
// order. So the bits of a result depend on the inputs alone.
#pragma once

#include <trireme/comm/engines/shm/allocation.h>
#include <trireme/comm/engines/shm/data_type.h>
#include <trireme/comm/engines/shm/steps.h>

#include <cstddef>
#include <span>
#include <vector>

namespace trireme::shm {

/// The same piece of registered memory of every rank, by rank. Empty if the buffer is not
/// registered on all ranks.
using RegisteredBuffers = std::vector<std::byte*>;

/// Publishes where this rank's buffer is registered, and returns the buffers of all ranks. All
/// buffers have `bytes` bytes. Takes one step, after which all ranks have entered the operation.
RegisteredBuffers exchange_places(Steps& steps, const Call& call, const Allocations& allocations,
                                  const void* data, std::size_t bytes);

/// Reduces registered buffers in place. Every rank reduces its slice of all buffers and writes the
/// result to all of them.
void all_reduce_registered(Steps& steps, const Call& call, const RegisteredBuffers& buffers,
                           std::size_t count, DataType type, Reduction reduction);

/// Reduces and scatters registered inputs, which are not changed.
void reduce_scatter_registered(Steps& steps, const Call& call, const RegisteredBuffers& inputs,
                               void* output, std::span<const std::size_t> counts, DataType type,
                               Reduction reduction);

/// The message sizes at which algorithms change.
struct Thresholds {
  /// The longest message that every rank writes and reduces as a whole, in one step. Of longer
  /// messages each rank reduces a slice, with two steps per chunk.
  std::size_t one_shot_bytes = 32768;
  /// The length of a chunk of longer messages.
  std::size_t chunk_bytes = 262144;
  /// The shortest message for which ranks ask each other whether their buffers are registered.
  std::size_t registered_bytes = 65536;
  /// The shortest buffer for which ranks ask each other whether their ordinary memory can be used
  /// in place.
  std::size_t in_place_bytes = std::size_t{256} << 10;
};

/// Writes this rank's contribution to a one-step all-reduce, and returns the number of the step.
/// Does not block if Steps::can_write.
std::uint64_t show_for_all_reduce(Steps& steps, const Call& call, const void* input,
                                  std::size_t bytes);
/// Reduces the contributions that all ranks have written with show_for_all_reduce.
void fold_shown(Steps& steps, const Call& call, std::uint64_t step, const void* input, void* output,
                std::size_t count, DataType type, Reduction reduction);

/// Reduces `input` over all ranks into `output`.
void all_reduce(Steps& steps, const Call& call, const void* input, void* output, std::size_t count,
                DataType type, Reduction reduction, const Thresholds& thresholds);

/// Reduces `input` over all ranks. Writes `output` on rank `root` only.
void reduce(Steps& steps, const Call& call, const void* input, void* output, std::size_t count,
            DataType type, Reduction reduction, int root);

/// Reduces piece r over all ranks into `output` of rank r. The pieces follow each other in `input`;
/// `counts` has the number of elements of each.
void reduce_scatter(Steps& steps, const Call& call, const void* input, void* output,
                    std::span<const std::size_t> counts, DataType type, Reduction reduction);

/// Copies `data` of rank `root` to all ranks.
void broadcast(Steps& steps, const Call& call, void* data, std::size_t bytes, int root);

/// Copies the input of each rank r, `bytes[r]` long, to `outputs[r]`. If `only_root` is not
/// negative, only that rank writes its outputs.
void all_gather(Steps& steps, const Call& call, const void* input, std::span<void* const> outputs,
                std::span<const std::size_t> bytes, int only_root = -1);

/// Copies piece r of `inputs` to rank r. `inputs` is read on rank `root` only, and all pieces have
/// the same length.
void scatter(Steps& steps, const Call& call, std::span<const void* const> inputs, void* output,
             std::size_t bytes, int root);

/// Copies piece b of rank a to piece a of rank b. Lengths may differ between pairs, but both sides
/// of a pair must give the same.
void all_to_all(Steps& steps, const Call& call, std::span<const void* const> inputs,
                std::span<const std::size_t> input_bytes, std::span<void* const> outputs,
                std::span<const std::size_t> output_bytes);

/// Blocks until all ranks have called it.
void barrier(Steps& steps, const Call& call);

}  // namespace trireme::shm
