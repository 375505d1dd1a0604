// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/shm/steps.h>

#include <trireme/base/error.h>

namespace trireme::shm {

// Returns whether `peer` has read the previous contents of this rank's slot for that step.
bool Steps::is_free(int peer, std::uint64_t step) noexcept {
  const auto num_slots = static_cast<std::uint64_t>(member_.layout().num_slots);
  std::uint64_t& seen = finished_[static_cast<std::size_t>(peer)];
  if (peer == rank() || seen + num_slots > step) return true;
  seen = member_.block(peer).finished.load(std::memory_order_seq_cst);
  return seen + num_slots > step;
}

bool Steps::can_write() noexcept {
  for (int peer = 0; peer < size(); ++peer) {
    if (!is_free(peer, next_)) return false;
  }
  return true;
}

std::byte* Steps::begin_write(std::uint64_t step, std::size_t bytes, const Call& call) {
  for (int peer = 0; peer < size(); ++peer) {
    if (!is_free(peer, step)) member_.wait_for(peer, call, [&] { return is_free(peer, step); });
  }
  Head& head = member_.slot(rank(), step);
  return bytes <= Head::kInlineBytes ? head.bytes.data() : reinterpret_cast<std::byte*>(&head + 1);
}

void Steps::synchronize(const Call& call) {
  const std::uint64_t step = take(1);
  begin_write(step, 0, call);
  publish(step, call);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) await(peer, step, 0, call);
  }
  finish(step);
}

void Steps::mismatch(int peer, const Operation& theirs, const Call& call) {
  const std::string calls =
      theirs == call.operation
          ? "an earlier call was not the same: " + member_.first_difference(peer)
          : join_message("rank ", rank(), " ",
                         describe({.number = 0, .operation = call.operation, .label = ""}),
                         "; rank ", peer, " ",
                         describe({.number = 0, .operation = theirs, .label = ""}));
  member_.fail(peer, call, "the ranks make different calls: " + calls,
               "every rank of a group must make the same calls in the same order, with the same "
               "element type, counts and root");
}

}  // namespace trireme::shm
