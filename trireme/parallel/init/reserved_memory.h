// SPDX-License-Identifier: Apache-2.0
// Memory of deferred tensors whose values nobody needs: addresses that take memory only where code
// writes to them through pointers.
#pragma once
#include <cstddef>

namespace trireme::detail {

/// Reserves `bytes` of addresses, which read as zeros. Returns an empty object if the system does
/// not give addresses beyond its memory (a limit of address space, or strict overcommit).
class ReservedMemory {
 public:
  explicit ReservedMemory(std::size_t bytes);
  ~ReservedMemory();
  ReservedMemory(const ReservedMemory&) = delete;
  ReservedMemory& operator=(const ReservedMemory&) = delete;

  void* address() const noexcept { return address_; }
  /// Returns true if the first 4 MiB or the last page have been read or written.
  bool is_touched() const;

 private:
  void* address_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace trireme::detail
