// SPDX-License-Identifier: Apache-2.0
// How an example ends: it looks whether what it shows has come true, and says so.
#pragma once

#include <trireme/comm/collectives.h>
#include <trireme/comm/world.h>

#include <torch/torch.h>

#include <algorithm>
#include <iostream>
#include <vector>

namespace examples {

/// Whether every rank holds the same bits.
inline bool same_on_all_ranks(const std::vector<torch::Tensor>& parameters,
                              const trireme::comm::Group& group) {
  const torch::NoGradGuard no_gradients;
  bool same = true;
  for (const torch::Tensor& parameter : parameters) {
    const torch::Tensor own = parameter.cpu().flatten();
    const torch::Tensor all = torch::empty({group.size() * own.numel()}, own.options());
    trireme::comm::all_gather(all, own, group);
    same = same && all.view({group.size(), -1}).eq(own).all().item<bool>();
  }
  return same;
}

/// Prints on rank 0 what became of the loss and whether the ranks agree; returns the program's exit
/// code.
inline int report(const std::vector<torch::Tensor>& parameters, const std::vector<double>& losses,
                  const trireme::World& world) {
  const bool same = same_on_all_ranks(parameters, world.group);
  const bool fell = losses.back() < 0.5 * losses.front();
  if (world.is_first()) {
    std::cout << "the loss " << (fell ? "fell" : "DID NOT FALL") << " from " << losses.front()
              << " to " << losses.back() << '\n'
              << world.size << (world.size == 1 ? " rank has " : " ranks have ")
              << (same ? "the same" : "DIFFERENT") << " parameters" << std::endl;
  }
  return same && fell ? 0 : 1;
}

}  // namespace examples
