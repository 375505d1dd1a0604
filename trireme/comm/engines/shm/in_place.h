// SPDX-License-Identifier: Apache-2.0
// Collectives that read and write the ordinary memory of all ranks in place. The ranks agree for
// each call whether they do: they do if the memory of every rank lies in shared pages
// (shared_pages.h) that all ranks can map.
#pragma once

#include <trireme/comm/engines/shm/peer_pages.h>
#include <trireme/comm/engines/shm/shared_pages.h>
#include <trireme/comm/engines/shm/shm_collectives.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace trireme::shm {

/// The buffers of all ranks in one operation, which this rank reads and writes in place.
struct SharedBuffers {
  /// By rank; null for a rank without a buffer. The first and last kEdge bytes of a buffer may be
  /// accessed only if `is_whole`.
  std::vector<std::byte*> data;
  /// True if whole buffers lie in shared pages. Equal on all ranks. Otherwise the edges, which
  /// share pages with other data, travel through the slots.
  bool is_whole = true;

  /// The bytes at both ends of a buffer that may share a page with other data.
  static constexpr std::size_t kEdge = 4096;

  /// Tells that all ranks are done. Without that, the operation has failed.
  void finish() noexcept { use.finish(); }

  SharedPages::Use use;  // of this rank's buffer
  std::vector<std::shared_ptr<const PeerPages::Window>> windows;
};

/// One rank's knowledge of the shared pages of a group. Not thread-safe: one operation at a time.
class InPlace {
 public:
  /// @param pages the shared pages of this process, or null if it has none.
  InPlace(std::shared_ptr<SharedPages> pages, int size);

  /// Returns whether this process has shared pages. Ranks ask each other when they connect.
  bool is_possible() const noexcept { return pages_ != nullptr; }
  /// Lets the group use memory in place. All ranks call it, or none does.
  void enable() noexcept { is_enabled_ = true; }
  /// Returns whether to ask all ranks where their buffers lie. All ranks come to the same answer.
  bool may_apply(std::size_t bytes, const Thresholds& thresholds) const noexcept {
    return is_enabled_ && bytes >= thresholds.in_place_bytes;
  }

  /// Publishes where this rank's buffer lies, and returns all buffers if all can be used in place.
  /// All ranks get buffers, or none does. Takes one step, and one more when a rank has pages that
  /// another one has not opened yet. Afterwards all ranks have entered the operation.
  /// @param data this rank's buffer.
  /// @param bytes the length of the buffer of each rank; 0 for ranks whose memory no rank needs.
  std::optional<SharedBuffers> meet(Steps& steps, const Call& call, const void* data,
                                    std::span<const std::size_t> bytes);

 private:
  struct Place;
  struct Peer {
    std::uint64_t number = 0;  // of the file
    std::shared_ptr<PeerPages> pages;
  };
  SharedPages::Found publish(Steps& steps, const Call& call, std::uint64_t step, const void* data,
                             std::size_t bytes, Place& place);
  std::optional<SharedBuffers> map_all(std::span<const Place> places,
                                       std::span<const std::size_t> bytes, int rank,
                                       const void* data);

  const std::shared_ptr<SharedPages> pages_;
  std::vector<Peer> peers_;
  bool is_enabled_ = false;
};

/// Reduces buffers in place like all_reduce_registered().
void all_reduce_in_place(Steps& steps, const Call& call, const SharedBuffers& buffers,
                         std::size_t count, DataType type, Reduction reduction);

/// Reduces and scatters inputs like reduce_scatter_registered().
void reduce_scatter_in_place(Steps& steps, const Call& call, const SharedBuffers& inputs,
                             void* output, std::span<const std::size_t> counts, DataType type,
                             Reduction reduction);

/// Copies the inputs of all ranks to `outputs`.
void all_gather_in_place(Steps& steps, const Call& call, const SharedBuffers& inputs,
                         std::span<void* const> outputs, std::span<const std::size_t> bytes);

/// Copies the buffer of rank `root` to `data` of the others.
void broadcast_in_place(Steps& steps, const Call& call, const SharedBuffers& buffers, void* data,
                        std::size_t bytes, int root);

}  // namespace trireme::shm
