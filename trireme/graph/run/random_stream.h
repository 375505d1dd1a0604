// SPDX-License-Identifier: Apache-2.0
// Random numbers that belong to one operator of one micro-batch of one step: the same wherever and
// however often it runs.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <optional>

namespace trireme::graph {

/// Of a run: masks of dropout and other random numbers follow from these three and the operator's
/// place in its graph alone (docs/design/numerics.md).
struct RandomStream {
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  std::int64_t micro_batch = 0;  ///< among all ranks' of the step
};

namespace detail {

/// As long as it lives, random operators of this thread that are given no generator draw numbers of
/// this operator's own. On the processor from a generator of its own: the default one is neither
/// read nor locked. On other devices, where some kernels take none but the default generator, that
/// one is seeded for it, and is afterwards what it was; one thread at a time may do so on a device.
class NumberedRandom {
 public:
  NumberedRandom(const RandomStream& stream, int node, at::Device device = at::kCPU);
  ~NumberedRandom();
  NumberedRandom(const NumberedRandom&) = delete;
  NumberedRandom& operator=(const NumberedRandom&) = delete;
  NumberedRandom(NumberedRandom&&) = delete;
  NumberedRandom& operator=(NumberedRandom&&) = delete;

 private:
  const at::Generator* outer_ = nullptr;
  at::Generator generator_;  // of its own, or the device's
  at::Tensor state_;         // of the device's, as it was
  std::optional<c10::impl::IncludeDispatchKeyGuard> include_;
};

}  // namespace detail
}  // namespace trireme::graph
