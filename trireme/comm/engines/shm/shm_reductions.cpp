// SPDX-License-Identifier: Apache-2.0
// All-reduce, reduce and reduce-scatter.
#include <trireme/comm/engines/shm/fold.h>
#include <trireme/comm/engines/shm/shm_collectives.h>
#include <trireme/comm/engines/shm/streaming_copy.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

namespace trireme::shm {
namespace {

const std::byte* bytes_of(const void* data) { return static_cast<const std::byte*>(data); }
std::byte* bytes_of(void* data) { return static_cast<std::byte*>(data); }

// memcpy must not be passed null, which is the address of a tensor without elements.
void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

std::size_t divide_up(std::size_t value, std::size_t by) { return (value + by - 1) / by; }

// The buffers of all ranks, in rank order.
class Sources {
 public:
  explicit Sources(int size) : size_(static_cast<std::size_t>(size)) {}
  void set(int rank, const void* data) { all_[static_cast<std::size_t>(rank)] = data; }
  std::span<const void* const> span() const { return {all_.data(), size_}; }

 private:
  std::size_t size_;
  std::array<const void*, kMaximumRanks> all_;
};

// Waits for the `bytes` of every rank in that step. `own` is this rank's buffer. The sources begin
// `offset` bytes into each slot.
Sources await_all(Steps& steps, std::uint64_t step, std::size_t bytes, std::size_t offset,
                  const void* own, const Call& call) {
  Sources sources(steps.size());
  for (int peer = 0; peer < steps.size(); ++peer) {
    sources.set(peer, peer == steps.rank() ? own : steps.await(peer, step, bytes, call) + offset);
  }
  return sources;
}

// All-reduce in chunks. For each chunk, a rank writes its contribution, which the others reduce. It
// reduces its own slice of all contributions and writes the result. Then it copies the results of
// the others. The order of the steps of a rank, with contributions C and results R:
//
//     C0 C1 R0 C2 R1 C3 R2 … C(n-1) R(n-2) R(n-1)
class ChunkedAllReduce {
 public:
  ChunkedAllReduce(Steps& steps, const Call& call, const void* input, void* output,
                   std::size_t count, DataType type, Reduction reduction, std::size_t longest_chunk)
      : steps_(steps),
        call_(call),
        input_(bytes_of(input)),
        output_(bytes_of(output)),
        bytes_(count * size_of(type)),
        type_(type),
        reduction_(reduction),
        ranks_(static_cast<std::size_t>(steps.size())),
        chunk_bytes_(std::min(steps.slot_bytes(), longest_chunk) / (ranks_ * kCacheLine) *
                     (ranks_ * kCacheLine)),
        num_chunks_(divide_up(bytes_, chunk_bytes_)),
        first_step_(steps.take(2 * num_chunks_)),
        streams_(input != output && bytes_ >= kStreamingBytes) {}

  void run() {
    write_contribution(0);
    for (std::size_t chunk = 0; chunk < num_chunks_; ++chunk) {
      if (chunk + 1 < num_chunks_) write_contribution(chunk + 1);
      write_result(chunk);
      if (chunk > 0) read_results(chunk - 1);
    }
    read_results(num_chunks_ - 1);
  }

 private:
  struct Slice {
    std::size_t begin;  // within its chunk
    std::size_t bytes;
  };

  std::uint64_t contribution_step(std::size_t chunk) const {
    return first_step_ + (chunk == 0 ? 0 : 2 * chunk - 1);
  }
  std::uint64_t result_step(std::size_t chunk) const {
    return first_step_ + 2 * chunk + (chunk + 1 == num_chunks_ ? 1 : 2);
  }
  std::size_t length_of(std::size_t chunk) const {
    return std::min(chunk_bytes_, bytes_ - chunk * chunk_bytes_);
  }
  Slice slice_of(int rank, std::size_t chunk) const {
    const std::size_t length = length_of(chunk);
    const std::size_t slice = divide_up(divide_up(length, ranks_), kCacheLine) * kCacheLine;
    const std::size_t begin = std::min(length, static_cast<std::size_t>(rank) * slice);
    return {begin, std::min(slice, length - begin)};
  }

  void write_contribution(std::size_t chunk) {
    const std::uint64_t step = contribution_step(chunk);
    std::byte* slot = steps_.begin_write(step, chunk_bytes_, call_);
    const std::byte* from = input_ + chunk * chunk_bytes_;
    const Slice own = slice_of(steps_.rank(), chunk);
    const std::size_t own_end = own.begin + own.bytes;
    std::memcpy(slot, from, own.begin);
    std::memcpy(slot + own_end, from + own_end, length_of(chunk) - own_end);
    steps_.publish(step, call_);
  }

  void write_result(std::size_t chunk) {
    const Slice own = slice_of(steps_.rank(), chunk);
    const std::size_t offset = chunk * chunk_bytes_ + own.begin;
    const Sources sources = await_all(steps_, contribution_step(chunk), chunk_bytes_, own.begin,
                                      input_ + offset, call_);
    const std::uint64_t step = result_step(chunk);
    std::byte* slot = steps_.begin_write(step, chunk_bytes_, call_);
    const std::array<void*, 2> to = {slot, output_ + offset};
    const std::size_t num_targets = streams_ ? 1 : 2;
    fold(std::span(to).first(num_targets), sources.span(), own.bytes / size_of(type_), type_,
         reduction_);
    steps_.publish(step, call_);
    if (streams_) streaming_copy(output_ + offset, slot, own.bytes);
    steps_.finish(contribution_step(chunk));
  }

  void read_results(std::size_t chunk) {
    const std::uint64_t step = result_step(chunk);
    for (int peer = 0; peer < steps_.size(); ++peer) {
      if (peer == steps_.rank()) continue;
      const Slice slice = slice_of(peer, chunk);
      const std::byte* result = steps_.await(peer, step, chunk_bytes_, call_);
      std::byte* to = output_ + chunk * chunk_bytes_ + slice.begin;
      streams_ ? streaming_copy(to, result, slice.bytes)
               : static_cast<void>(std::memcpy(to, result, slice.bytes));
    }
    steps_.finish(step);
  }

  Steps& steps_;
  const Call& call_;
  const std::byte* input_;
  std::byte* output_;
  std::size_t bytes_;
  DataType type_;
  Reduction reduction_;
  std::size_t ranks_;
  std::size_t chunk_bytes_;
  std::size_t num_chunks_;
  std::uint64_t first_step_;
  bool streams_;
};

}  // namespace

std::uint64_t show_for_all_reduce(Steps& steps, const Call& call, const void* input,
                                  std::size_t bytes) {
  const std::uint64_t step = steps.take(1);
  copy_bytes(steps.begin_write(step, bytes, call), input, bytes);
  steps.publish(step, call);
  return step;
}

void fold_shown(Steps& steps, const Call& call, std::uint64_t step, const void* input, void* output,
                std::size_t count, DataType type, Reduction reduction) {
  const Sources sources = await_all(steps, step, count * size_of(type), 0, input, call);
  fold({&output, 1}, sources.span(), count, type, reduction);
  steps.finish(step);
}

void all_reduce(Steps& steps, const Call& call, const void* input, void* output, std::size_t count,
                DataType type, Reduction reduction, const Thresholds& thresholds) {
  const std::size_t bytes = count * size_of(type);
  if (bytes <= std::min(thresholds.one_shot_bytes, steps.slot_bytes())) {
    const std::uint64_t step = show_for_all_reduce(steps, call, input, bytes);
    fold_shown(steps, call, step, input, output, count, type, reduction);
  } else {
    ChunkedAllReduce(steps, call, input, output, count, type, reduction, thresholds.chunk_bytes)
        .run();
  }
}

void reduce(Steps& steps, const Call& call, const void* input, void* output, std::size_t count,
            DataType type, Reduction reduction, int root) {
  const std::size_t bytes = count * size_of(type);
  const std::size_t chunk = std::min(steps.slot_bytes(), std::max<std::size_t>(bytes, 1));
  const auto range = [&](std::uint64_t index) {
    const std::size_t begin = index * chunk;
    return std::pair{begin, std::min(chunk, bytes - begin)};
  };
  run_steps(
      steps, std::max<std::size_t>(1, divide_up(bytes, chunk)),
      [&](std::uint64_t step, std::uint64_t index) {
        const auto [begin, length] = range(index);
        std::byte* slot = steps.begin_write(step, length, call);
        if (steps.rank() != root) copy_bytes(slot, bytes_of(input) + begin, length);
        steps.publish(step, call);
      },
      [&](std::uint64_t step, std::uint64_t index) {
        if (steps.rank() != root) return;
        const auto [begin, length] = range(index);
        const Sources sources = await_all(steps, step, length, 0, bytes_of(input) + begin, call);
        void* to = bytes_of(output) + begin;
        fold({&to, 1}, sources.span(), length / size_of(type), type, reduction);
      });
}

void reduce_scatter(Steps& steps, const Call& call, const void* input, void* output,
                    std::span<const std::size_t> counts, DataType type, Reduction reduction) {
  const std::size_t element = size_of(type);
  const auto ranks = static_cast<std::size_t>(steps.size());
  // Each slot has room for one part of the piece of each rank.
  const std::size_t part = steps.slot_bytes() / (ranks * kCacheLine) * kCacheLine;
  const std::size_t longest = *std::max_element(counts.begin(), counts.end()) * element;
  const auto range = [&](std::uint64_t index, int piece) {
    const std::size_t bytes = counts[static_cast<std::size_t>(piece)] * element;
    const std::size_t begin = std::min(bytes, index * part);
    return std::pair{begin, std::min(part, bytes - begin)};
  };
  std::array<const std::byte*, kMaximumRanks> pieces;
  pieces[0] = bytes_of(input);
  for (std::size_t rank = 1; rank < ranks; ++rank) {
    pieces[rank] = pieces[rank - 1] + counts[rank - 1] * element;
  }
  run_steps(
      steps, std::max<std::size_t>(1, divide_up(longest, part)),
      [&](std::uint64_t step, std::uint64_t index) {
        std::byte* slot = steps.begin_write(step, part, call);
        for (int piece = 0; piece < steps.size(); ++piece) {
          if (piece == steps.rank()) continue;
          const auto [begin, length] = range(index, piece);
          const auto at = static_cast<std::size_t>(piece);
          copy_bytes(slot + at * part, pieces[at] + begin, length);
        }
        steps.publish(step, call);
      },
      [&](std::uint64_t step, std::uint64_t index) {
        const auto own = static_cast<std::size_t>(steps.rank());
        const auto [begin, length] = range(index, steps.rank());
        const Sources sources = await_all(steps, step, part, own * part, pieces[own] + begin, call);
        void* to = bytes_of(output) + begin;
        fold({&to, 1}, sources.span(), length / element, type, reduction);
      });
}

}  // namespace trireme::shm
