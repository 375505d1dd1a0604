// SPDX-License-Identifier: Apache-2.0
// Times the collectives and messages of a running group.
#pragma once

#include <trireme/cluster/measured.h>
#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

namespace trireme::predict {

/// How much sample_links measures. Tests set less than the defaults.
struct LinkSampling {
  std::int64_t largest_bytes = 64 << 20;  ///< sizes up to this one; the smallest is 1 KiB
  double seconds = 0.06;                  ///< for each size and collective, at least
};

/// Times every collective and messages for groups of two ranks and more whose sizes divide the
/// number of ranks. All groups of one size communicate at the same time. Collective and blocking;
/// all ranks return the same. Empty for one rank.
/// @param group of one host.
/// @param device of the tensors of this rank.
std::vector<cluster::MeasuredCollective> sample_links(const comm::Group& group,
                                                      const c10::Device& device = at::kCPU,
                                                      const LinkSampling& sampling = {});

/// Returns the share of computing power that an all-reduce takes from products that run beside it,
/// between 0 and 0.99. Collective and blocking; all ranks return the same. 0 for one rank.
double sample_interference(const comm::Group& group, const c10::Device& device = at::kCPU);

}  // namespace trireme::predict
