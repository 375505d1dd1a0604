// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/group.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>

namespace trireme::comm {

struct Group::State {
  c10::intrusive_ptr<c10d::Backend> backend;
  std::string name = "self";
  SummationOrder order = SummationOrder::kRank;
  std::chrono::milliseconds timeout{0};
  int rank = 0;
  int size = 1;
  // Relaxed is enough: collectives of one group start on one thread at a time, and the number only
  // labels them.
  std::atomic<std::uint64_t> sequence_number{0};
};

Group::Group() : state_(std::make_shared<State>()) {}

Group::Group(c10::intrusive_ptr<c10d::Backend> backend, std::string name, SummationOrder order,
             std::chrono::milliseconds timeout)
    : Group() {
  state_->rank = backend->getRank();
  state_->size = backend->getSize();
  state_->backend = std::move(backend);
  state_->name = std::move(name);
  state_->order = order;
  state_->timeout = timeout;
}

int Group::rank() const noexcept { return state_->rank; }
int Group::size() const noexcept { return state_->size; }
const std::string& Group::name() const noexcept { return state_->name; }
std::string Group::engine() const {
  return state_->backend ? state_->backend->getBackendName() : "none";
}
SummationOrder Group::summation_order() const noexcept { return state_->order; }
std::chrono::milliseconds Group::timeout() const noexcept { return state_->timeout; }
const c10::intrusive_ptr<c10d::Backend>& Group::backend() const noexcept { return state_->backend; }
std::uint64_t Group::next_sequence_number() const noexcept {
  return state_->sequence_number.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace trireme::comm
