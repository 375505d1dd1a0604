// SPDX-License-Identifier: Apache-2.0
// What LibTorch's allocators give.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace trireme::test {

/// Bytes of each memory that LibTorch allocates for tensors during `call`, on the calling thread
/// and on threads that autograd works on for it.
template <typename Call>
std::vector<std::int64_t> allocations_of(const Call& call) {
  struct Reports : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void* /*memory*/, std::int64_t size, std::size_t /*total*/,
                           std::size_t /*reserved*/, c10::Device /*device*/) override {
      if (size > 0) all.push_back(size);
    }
    bool memoryProfilingEnabled() const override { return true; }
    std::vector<std::int64_t> all;
  };
  const auto reports = std::make_shared<Reports>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, reports);
  call();
  return reports->all;
}

}  // namespace trireme::test
