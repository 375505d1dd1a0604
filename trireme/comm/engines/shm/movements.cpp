// SPDX-License-Identifier: Apache-2.0
// The collectives that only move bytes.
#include <trireme/base/error.h>
#include <trireme/comm/engines/shm/shm_collectives.h>
#include <trireme/comm/engines/shm/streaming_copy.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace trireme::shm {
namespace {

std::size_t divide_up(std::size_t value, std::size_t by) { return (value + by - 1) / by; }

// Part number `index` of a piece that is cut into parts.
struct Part {
  std::size_t begin;
  std::size_t bytes;
  Part(std::uint64_t index, std::size_t part_bytes, std::size_t bytes_of_piece)
      : begin(std::min(bytes_of_piece, index * part_bytes)),
        bytes(std::min(part_bytes, bytes_of_piece - begin)) {}
};

std::uint64_t num_steps(std::size_t bytes, std::size_t part) {
  return std::max<std::size_t>(1, divide_up(bytes, part));
}

// memcpy must not be passed null, which is the address of a tensor without elements.
void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0 && to != from) std::memcpy(to, from, bytes);
}

// Copies to an output; `total` is its whole length.
void copy_out(void* to, const void* from, std::size_t bytes, std::size_t total) {
  total >= kStreamingBytes ? streaming_copy(to, from, bytes) : copy_bytes(to, from, bytes);
}

// Returns how much a broadcast moves in a step. The receivers copy a chunk while the root copies
// the next one. The last chunk is copied without that overlap. So a chunk is at most a sixteenth of
// the message, but large enough to be worth a step.
std::size_t broadcast_chunk(std::size_t bytes, std::size_t slot_bytes) {
  constexpr std::size_t kChunks = 16;
  constexpr std::size_t kSmallest = std::size_t{32} << 10;
  const std::size_t part = divide_up(bytes, kChunks * kCacheLine) * kCacheLine;
  return std::clamp(part, std::min(kSmallest, slot_bytes), slot_bytes);
}

const std::byte* at(const void* data, std::size_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}
std::byte* at(void* data, std::size_t offset) { return static_cast<std::byte*>(data) + offset; }

}  // namespace

void broadcast(Steps& steps, const Call& call, void* data, std::size_t bytes, int root) {
  const std::size_t chunk = broadcast_chunk(bytes, steps.slot_bytes());
  run_steps(
      steps, num_steps(bytes, chunk),
      [&](std::uint64_t step, std::uint64_t index) {
        const Part part(index, chunk, bytes);
        if (steps.rank() == root) {
          copy_bytes(steps.begin_write(step, part.bytes, call), at(data, part.begin), part.bytes);
          steps.publish(step, call);
        } else if (index == 0) {  // for the others' checks
          steps.begin_write(step, 0, call);
          steps.publish(step, call);
        }
      },
      [&](std::uint64_t step, std::uint64_t index) {
        if (steps.rank() == root) return;
        const Part part(index, chunk, bytes);
        copy_out(at(data, part.begin), steps.await(root, step, part.bytes, call), part.bytes,
                 bytes);
      });
}

void all_gather(Steps& steps, const Call& call, const void* input, std::span<void* const> outputs,
                std::span<const std::size_t> bytes, int only_root) {
  const std::size_t chunk = steps.slot_bytes();
  const std::size_t own = bytes[static_cast<std::size_t>(steps.rank())];
  run_steps(
      steps, num_steps(*std::max_element(bytes.begin(), bytes.end()), chunk),
      [&](std::uint64_t step, std::uint64_t index) {
        const Part part(index, chunk, own);
        std::byte* slot = steps.begin_write(step, part.bytes, call);
        if (steps.rank() != only_root) copy_bytes(slot, at(input, part.begin), part.bytes);
        steps.publish(step, call);
      },
      [&](std::uint64_t step, std::uint64_t index) {
        if (only_root >= 0 && steps.rank() != only_root) return;
        for (int offset = 0; offset < steps.size(); ++offset) {
          // Each rank begins with its own piece, so that not all of them read from the same rank at
          // once.
          const int peer = (steps.rank() + offset) % steps.size();
          const auto piece = static_cast<std::size_t>(peer);
          const Part part(index, chunk, bytes[piece]);
          const std::byte* from = peer == steps.rank() ? at(input, part.begin)
                                                       : steps.await(peer, step, part.bytes, call);
          if (from != at(outputs[piece], part.begin)) {
            copy_out(at(outputs[piece], part.begin), from, part.bytes, bytes[piece]);
          }
        }
      });
}

void scatter(Steps& steps, const Call& call, std::span<const void* const> inputs, void* output,
             std::size_t bytes, int root) {
  const auto ranks = static_cast<std::size_t>(steps.size());
  const std::size_t chunk = steps.slot_bytes() / (ranks * kCacheLine) * kCacheLine;
  run_steps(
      steps, num_steps(bytes, chunk),
      [&](std::uint64_t step, std::uint64_t index) {
        const Part part(index, chunk, bytes);
        if (steps.rank() == root) {
          std::byte* slot = steps.begin_write(step, ranks * chunk, call);
          for (std::size_t piece = 0; piece < ranks; ++piece) {
            if (static_cast<int>(piece) == root) continue;
            copy_bytes(slot + piece * chunk, at(inputs[piece], part.begin), part.bytes);
          }
          steps.publish(step, call);
        } else if (index == 0) {
          steps.begin_write(step, 0, call);
          steps.publish(step, call);
        }
      },
      [&](std::uint64_t step, std::uint64_t index) {
        const Part part(index, chunk, bytes);
        const auto own = static_cast<std::size_t>(steps.rank());
        copy_bytes(at(output, part.begin),
                   steps.rank() == root
                       ? at(inputs[own], part.begin)
                       : steps.await(root, step, ranks * chunk, call) + own * chunk,
                   part.bytes);
      });
}

void all_to_all(Steps& steps, const Call& call, std::span<const void* const> inputs,
                std::span<const std::size_t> input_bytes, std::span<void* const> outputs,
                std::span<const std::size_t> output_bytes) {
  const auto ranks = static_cast<std::size_t>(steps.size());
  const auto own = static_cast<std::size_t>(steps.rank());
  const std::size_t table = ranks * sizeof(std::uint64_t);
  const std::size_t chunk = steps.slot_bytes() / (ranks * kCacheLine) * kCacheLine;

  // First all ranks exchange how much they send to whom. Only then do all of them know how many
  // steps follow.
  const std::uint64_t first = steps.take(1);
  std::memcpy(steps.begin_write(first, table, call), input_bytes.data(), table);
  steps.publish(first, call);
  std::size_t longest = *std::max_element(input_bytes.begin(), input_bytes.end());
  std::array<std::uint64_t, kMaximumRanks> theirs = {};
  for (int peer = 0; peer < steps.size(); ++peer) {
    if (peer == steps.rank()) continue;
    std::memcpy(theirs.data(), steps.await(peer, first, table, call), table);
    longest = std::max(longest, *std::max_element(theirs.begin(), theirs.begin() + ranks));
    if (theirs[own] != output_bytes[static_cast<std::size_t>(peer)]) {
      steps.member().fail(
          peer, call,
          join_message("rank ", peer, " sends ", theirs[own], " bytes to rank ", steps.rank(),
                       ", which expects ", output_bytes[static_cast<std::size_t>(peer)]),
          "the split sizes of sender and receiver must agree");
    }
  }
  steps.finish(first);

  copy_bytes(outputs[own], inputs[own], input_bytes[own]);
  if (longest == 0) return;
  run_steps(
      steps, divide_up(longest, chunk),
      [&](std::uint64_t step, std::uint64_t index) {
        std::byte* slot = steps.begin_write(step, ranks * chunk, call);
        for (std::size_t piece = 0; piece < ranks; ++piece) {
          if (piece == own) continue;
          const Part part(index, chunk, input_bytes[piece]);
          copy_bytes(slot + piece * chunk, at(inputs[piece], part.begin), part.bytes);
        }
        steps.publish(step, call);
      },
      [&](std::uint64_t step, std::uint64_t index) {
        for (int offset = 1; offset < steps.size(); ++offset) {
          const int peer = (steps.rank() + offset) % steps.size();
          const auto piece = static_cast<std::size_t>(peer);
          const Part part(index, chunk, output_bytes[piece]);
          copy_bytes(at(outputs[piece], part.begin),
                     steps.await(peer, step, ranks * chunk, call) + own * chunk, part.bytes);
        }
      });
}

void barrier(Steps& steps, const Call& call) {
  run_steps(
      steps, 1,
      [&](std::uint64_t step, std::uint64_t) {
        steps.begin_write(step, 0, call);
        steps.publish(step, call);
      },
      [&](std::uint64_t step, std::uint64_t) {
        for (int peer = 0; peer < steps.size(); ++peer) {
          if (peer != steps.rank()) steps.await(peer, step, 0, call);
        }
      });
}

}  // namespace trireme::shm
