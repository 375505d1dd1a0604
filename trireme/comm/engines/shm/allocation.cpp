// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/shm/allocation.h>

#include <utility>

namespace trireme::shm {

Allocation::Allocation(Segment segment, std::uint64_t number, int rank, std::size_t bytes)
    : segment_(std::move(segment)), number_(number), rank_(rank), bytes_(bytes) {}

void Allocations::add(const std::shared_ptr<Allocation>& allocation) {
  const std::lock_guard lock(mutex_);
  std::erase_if(by_address_, [](const auto& entry) { return entry.second.expired(); });
  by_address_[allocation->data()] = allocation;
}

RegisteredPlace Allocations::find(const void* data, std::size_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex_);
  auto next = by_address_.upper_bound(begin);
  if (next == by_address_.begin()) return {};
  const auto allocation = std::prev(next)->second.lock();
  if (!allocation || begin + bytes > allocation->data() + allocation->bytes()) return {};
  return {allocation->number(), static_cast<std::uint64_t>(begin - allocation->data())};
}

std::shared_ptr<Allocation> Allocations::get(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [address, weak] : by_address_) {
    if (auto allocation = weak.lock(); allocation && allocation->number() == number) {
      return allocation;
    }
  }
  return nullptr;
}

}  // namespace trireme::shm
