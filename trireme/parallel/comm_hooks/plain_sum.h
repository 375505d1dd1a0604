// SPDX-License-Identifier: Apache-2.0
// The exchange of gradients that a hook does not compress.
#pragma once

#include <trireme/comm/collectives.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string_view>

namespace trireme::detail {

/// Starts an all-reduce of `tensor` and returns a function that waits for it.
inline std::function<void()> start_plain_sum(const at::Tensor& tensor, const comm::Group& group,
                                             std::string_view label) {
  auto work = std::make_shared<comm::Work>(
      comm::all_reduce_async(tensor, group, comm::ReduceOp::kSum, label));
  return [work] { work->wait(); };
}

}  // namespace trireme::detail
