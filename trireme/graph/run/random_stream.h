// SPDX-License-Identifier: Apache-2.0
// Random numbers that belong to one operator of one micro-batch of one step: the same wherever and
// however often it runs.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>

namespace trireme::graph {

/// Of a run: masks of dropout and other random numbers follow from these three and the operator's
/// place in its graph alone (docs/design/numerics.md).
struct RandomStream {
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  std::int64_t micro_batch = 0;  ///< among all ranks' of the step
};

namespace detail {

/// As long as it lives, random operators of this thread that are given no generator draw from one
/// of this operator's own. The default generators are neither read nor locked. Operators whose
/// kernels take no generator (attention on CUDA) keep theirs.
class NumberedRandom {
 public:
  NumberedRandom(const RandomStream& stream, int node);
  ~NumberedRandom();
  NumberedRandom(const NumberedRandom&) = delete;
  NumberedRandom& operator=(const NumberedRandom&) = delete;
  NumberedRandom(NumberedRandom&&) = delete;
  NumberedRandom& operator=(NumberedRandom&&) = delete;

 private:
  const at::Generator* outer_;
  at::Generator generator_;
  c10::impl::IncludeDispatchKeyGuard include_;
};

}  // namespace detail
}  // namespace trireme::graph
