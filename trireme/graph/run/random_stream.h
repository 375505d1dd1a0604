// SPDX-License-Identifier: Apache-2.0
// Random numbers that belong to one operator of one micro-batch of one step. They are the same on
// any rank, and in any recomputation.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <optional>

namespace trireme::graph {

/// Determines, with the number of the operator in its graph, all random numbers of an operator,
/// such as the mask of a dropout (docs/design/numerics.md).
struct RandomStream {
  std::uint64_t seed = 0;        ///< seed of the run
  std::int64_t step = 0;         ///< number of the training step
  std::int64_t micro_batch = 0;  ///< number among the micro-batches of all ranks in the step
};

namespace detail {

/// While it lives, random operators of this thread without a generator argument draw the numbers of
/// operator `node`.
///
/// On CPU they get a generator of their own; the default one is neither read nor locked. On other
/// devices some kernels accept only the default generator: it is seeded, and restored by the
/// destructor. Only one thread at a time may do this on a device.
class NumberedRandom {
 public:
  NumberedRandom(const RandomStream& stream, int node, at::Device device = at::kCPU);
  ~NumberedRandom();
  NumberedRandom(const NumberedRandom&) = delete;
  NumberedRandom& operator=(const NumberedRandom&) = delete;

 private:
  const at::Generator* outer_ = nullptr;
  at::Generator generator_;  // its own on CPU, otherwise the device's
  at::Tensor state_;         // the former state of the device's generator
  std::optional<c10::impl::IncludeDispatchKeyGuard> include_;
};

}  // namespace detail
}  // namespace trireme::graph
