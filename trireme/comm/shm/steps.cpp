// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/shm/steps.h>

#include <trireme/base/error.h>

namespace trireme::shm {

std::byte* Steps::begin_write(std::uint64_t step, std::size_t bytes, const Call& call) {
  const auto num_slots = static_cast<std::uint64_t>(member_.layout().num_slots);
  for (int peer = 0; peer < size(); ++peer) {
    std::uint64_t& seen = finished_[static_cast<std::size_t>(peer)];
    if (peer == rank() || seen + num_slots > step) continue;
    const std::atomic<std::uint64_t>& finished = member_.block(peer).finished;
    member_.wait_for(peer, call, [&] {
      seen = finished.load(std::memory_order_seq_cst);
      return seen + num_slots > step;
    });
  }
  Head& head = member_.slot(rank(), step);
  return bytes <= Head::kInlineBytes ? head.bytes.data() : reinterpret_cast<std::byte*>(&head + 1);
}

void Steps::mismatch(int peer, const Operation& theirs, const Call& call) {
  member_.fail(
      peer, call,
      join_message("the ranks make different calls: rank ", rank(), " ",
                   describe({.number = 0, .operation = call.operation, .label = ""}), "; rank ",
                   peer, " ", describe({.number = 0, .operation = theirs, .label = ""})),
      "every rank of a group must make the same calls in the same order, with the same "
      "element type and count");
}

}  // namespace trireme::shm
