// SPDX-License-Identifier: Apache-2.0
// Collectives that read and write registered memory of all ranks in place.
#include <trireme/comm/engines/shm/fold.h>
#include <trireme/comm/engines/shm/shm_collectives.h>

#include <algorithm>
#include <cstring>

namespace trireme::shm {
RegisteredBuffers exchange_places(Steps& steps, const Call& call, const Allocations& allocations,
                                  const void* data, std::size_t bytes) {
  const RegisteredPlace own = allocations.find(data, bytes);
  const std::uint64_t step = steps.take(1);
  std::memcpy(steps.begin_write(step, sizeof(own), call), &own, sizeof(own));
  steps.publish(step, call);
  // All ranks see the same places, so all of them decide alike: the same part of the same
  // allocation, or none.
  const auto allocation = own.allocation == 0 ? nullptr : allocations.get(own.allocation);
  RegisteredBuffers buffers(static_cast<std::size_t>(steps.size()));
  bool is_same = own.allocation != 0;
  for (int rank = 0; rank < steps.size(); ++rank) {
    RegisteredPlace place = own;
    if (rank != steps.rank()) {
      std::memcpy(&place, steps.await(rank, step, sizeof(place), call), sizeof(place));
    }
    is_same = is_same && place == own;
    if (allocation) {
      buffers[static_cast<std::size_t>(rank)] = allocation->block(rank) + place.offset;
    }
  }
  steps.finish(step);
  if (!is_same) buffers.clear();
  return buffers;
}

void all_reduce_registered(Steps& steps, const Call& call, const RegisteredBuffers& buffers,
                           std::size_t count, DataType type, Reduction reduction) {
  const std::size_t bytes = count * size_of(type);
  const auto ranks = static_cast<std::size_t>(steps.size());
  const std::size_t slice = (bytes + ranks * kCacheLine - 1) / (ranks * kCacheLine) * kCacheLine;
  const std::size_t begin = std::min(bytes, static_cast<std::size_t>(steps.rank()) * slice);
  const std::size_t length = std::min(slice, bytes - begin);
  std::vector<void*> to;
  for (std::byte* buffer : buffers) to.push_back(buffer + begin);
  const std::vector<const void*> from(to.begin(), to.end());
  fold(to, from, length / size_of(type), type, reduction);
  steps.synchronize(call);
}

void reduce_scatter_registered(Steps& steps, const Call& call, const RegisteredBuffers& inputs,
                               void* output, std::span<const std::size_t> counts, DataType type,
                               Reduction reduction) {
  std::size_t begin = 0;
  for (int rank = 0; rank < steps.rank(); ++rank) begin += counts[static_cast<std::size_t>(rank)];
  std::vector<const void*> from;
  for (const std::byte* input : inputs) from.push_back(input + begin * size_of(type));
  fold({&output, 1}, from, counts[static_cast<std::size_t>(steps.rank())], type, reduction);
  steps.synchronize(call);
}

}  // namespace trireme::shm
